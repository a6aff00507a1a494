// One row of a packed segment, dequantised: the embedding lookup, from the same bytes as the head.
// Not here: matmul. Truth: blocks.decode in Python; the float steps are those of the file format:
// Q4_1 d*q + m, Q4_K (d*sc)*q - (dmin*m), Q6_K (d*sc)*q, each operation rounded; others likewise.
#pragma once
#include "kernels.h"
#include "simd.h"

namespace insitu::INSITU_NS {

// Output o of a line of 32 halves.
static inline float half_at(const uint8_t* line, int o) {
  uint16_t bits[16] = {};
  __builtin_memcpy(bits, line + 2 * o, 2);
  float lanes[16];
  storeu(lanes, load_f16(bits));
  return lanes[0];
}

// Line positions of pack.h: input i of output o within a group of 32.
static inline int nibble_at(const uint8_t* lines, int o, int i) {
  const int byte = lines[128 * (i / 8) + 64 * (o / 16) + 4 * (o % 16) + i % 4];
  return i % 8 < 4 ? byte & 15 : byte >> 4;
}
// The bits above nibbles: lines of `Bits` each, 8 / Bits groups of four inputs to a line.
template <int Bits>
static inline int with_bits_at(const uint8_t* lines, int o, int i) {
  const int per_line = 32 / Bits, shift = Bits * (i % per_line / 4);
  const int byte = lines[512 + 128 * (i / per_line) + 64 * (o / 16) + 4 * (o % 16) + i % 4];
  return nibble_at(lines, o, i) | (byte >> shift & ((1 << Bits) - 1)) << 4;
}
static inline int byte_at(const uint8_t* lines, int o, int i) {
  return lines[128 * (i / 4) + 64 * (o / 16) + 4 * (o % 16) + i % 4];
}

static inline void embed_q4_0(const uint8_t* w, int o, float* out) {
  const float d = half_at(w + 512, o);
  for (int i = 0; i < 32; i++) out[i] = d * static_cast<float>(nibble_at(w, o, i) - 8);
}
static inline void embed_q4_1(const uint8_t* w, int o, float* out) {
  const float d = half_at(w + 512, o), m = half_at(w + 576, o);
  for (int i = 0; i < 32; i++) out[i] = d * static_cast<float>(nibble_at(w, o, i)) + m;
}
static inline void embed_q5_0(const uint8_t* w, int o, float* out) {
  const float d = half_at(w + 640, o);
  for (int i = 0; i < 32; i++) out[i] = d * static_cast<float>(with_bits_at<1>(w, o, i) - 16);
}
static inline void embed_q5_1(const uint8_t* w, int o, float* out) {
  const float d = half_at(w + 640, o), m = half_at(w + 704, o);
  for (int i = 0; i < 32; i++) out[i] = d * static_cast<float>(with_bits_at<1>(w, o, i)) + m;
}
static inline void embed_q8_0(const uint8_t* w, int o, float* out) {
  const float d = half_at(w + 1024, o);
  for (int i = 0; i < 32; i++) out[i] = d * static_cast<float>(byte_at(w, o, i) - 128);
}
template <int Bits>  // 4 or 5
static inline void embed_q45_k(const uint8_t* w, int o, float* out) {
  constexpr int kGroup = Bits == 4 ? 512 : 640;
  const uint8_t *scales = w + 8 * kGroup, *mins = scales + 256, *supers = mins + 256;
  const float d = half_at(supers, o), dmin = half_at(supers + 64, o);
  for (int s = 0; s < 8; s++) {
    const float scale = d * static_cast<float>(scales[32 * s + o]);
    const float low = dmin * static_cast<float>(mins[64 * (s / 2) + 2 * o + s % 2]);
    const uint8_t* lines = w + kGroup * s;
    for (int i = 0; i < 32; i++)
      out[32 * s + i] = scale * static_cast<float>(Bits == 4 ? nibble_at(lines, o, i) : with_bits_at<1>(lines, o, i)) - low;
  }
}
static inline void embed_q2_k(const uint8_t* w, int o, float* out) {
  const float d = half_at(w + 3072, o), dmin = half_at(w + 3136, o);
  for (int s = 0; s < 16; s++) {
    const float scale = d * static_cast<float>(w[2048 + 32 * s + o]);
    const float low = dmin * static_cast<float>(w[2560 + 32 * s + o]);
    const uint8_t* line = w + 128 * s + 64 * (o / 16) + 4 * (o % 16);
    for (int i = 0; i < 16; i++) out[16 * s + i] = scale * static_cast<float>(line[i % 4] >> (2 * (i / 4)) & 3) - low;
  }
}
static inline void embed_q8_k16(const uint8_t* w, int o, float* out) {
  float d;
  __builtin_memcpy(&d, w + 8704 + 4 * o, 4);
  for (int s = 0; s < 16; s++) {
    const float scale = d * static_cast<float>(static_cast<int8_t>(w[8192 + 32 * s + o]));
    for (int i = 0; i < 16; i++)
      out[16 * s + i] = scale * static_cast<float>(byte_at(w + 1024 * (s / 2), o, 16 * (s % 2) + i) - 128);
  }
}
static inline void embed_q6_k(const uint8_t* w, int o, float* out) {
  const float d = half_at(w + 6656, o);
  for (int s = 0; s < 16; s++) {
    const float scale = d * static_cast<float>(static_cast<int8_t>(w[6144 + 32 * s + o]));
    for (int i = 0; i < 16; i++)
      out[16 * s + i] = scale * static_cast<float>(with_bits_at<2>(w + 768 * (s / 2), o, 16 * (s % 2) + i) - 32);
  }
}

static inline void embed_floats(const PackedSegment& w, const uint8_t* block, int o, float* out) {
  for (int i = 0; i < w.k; i++) {
    if (w.type == BlockType::F32) {
      __builtin_memcpy(out + i, block + 128 * static_cast<size_t>(i) + 4 * o, 4);
    } else if (w.type == BlockType::F16) {
      out[i] = half_at(block + 64 * static_cast<size_t>(i), o);
    } else {
      uint16_t high;
      __builtin_memcpy(&high, block + 64 * static_cast<size_t>(i) + 2 * o, 2);
      const uint32_t bits = uint32_t{high} << 16;
      __builtin_memcpy(out + i, &bits, 4);
    }
  }
}

static void embed_row(const PackedSegment& w, int row, float* out) {
  const uint8_t* block = w.data + row / kBlockOutputs * w.block_bytes;
  const int o = row % kBlockOutputs;
  switch (w.type) {
    case BlockType::Q4_0:
      for (int k = 0; k < w.k; k += 32) embed_q4_0(block + k / 32 * size_t{576}, o, out + k);
      return;
    case BlockType::Q4_1:
      for (int k = 0; k < w.k; k += 32) embed_q4_1(block + k / 32 * size_t{640}, o, out + k);
      return;
    case BlockType::Q5_0:
      for (int k = 0; k < w.k; k += 32) embed_q5_0(block + k / 32 * size_t{704}, o, out + k);
      return;
    case BlockType::Q8_0:
      for (int k = 0; k < w.k; k += 32) embed_q8_0(block + k / 32 * size_t{1088}, o, out + k);
      return;
    case BlockType::Q4_K:
      for (int k = 0; k < w.k; k += 256) embed_q45_k<4>(block + k / 256 * size_t{4736}, o, out + k);
      return;
    case BlockType::Q5_K:
      for (int k = 0; k < w.k; k += 256) embed_q45_k<5>(block + k / 256 * size_t{5760}, o, out + k);
      return;
    case BlockType::Q2_K:
      for (int k = 0; k < w.k; k += 256) embed_q2_k(block + k / 256 * size_t{3200}, o, out + k);
      return;
    case BlockType::Q8_K16:
      for (int k = 0; k < w.k; k += 256) embed_q8_k16(block + k / 256 * size_t{8832}, o, out + k);
      return;
    case BlockType::Q5_1:
      for (int k = 0; k < w.k; k += 32) embed_q5_1(block + k / 32 * size_t{768}, o, out + k);
      return;
    case BlockType::Q6_K:
      for (int k = 0; k < w.k; k += 256) embed_q6_k(block + k / 256 * size_t{6720}, o, out + k);
      return;
    default: return embed_floats(w, block, o, out);
  }
}

}  // namespace insitu::INSITU_NS
