// Packs n-blocks four bytes at a time: see pack.h for both layouts' drawing.
#include "pack.h"

#include <cstring>

namespace insitu {
namespace {

struct Layout {
  int block_size;       // weights of one raw block
  size_t block_bytes;   // of one raw block
  size_t packed_bytes;  // of block_size inputs x 32 outputs
};

Layout layout_of(BlockType type) {
  switch (type) {
    case BlockType::F32: return {1, 4, 128};
    case BlockType::F16: return {1, 2, 64};
    case BlockType::BF16: return {1, 2, 64};
    case BlockType::Q8_0: return {32, 34, 1024 + 64};
    case BlockType::Q4_0: return {32, 18, 512 + 64};
    case BlockType::Q4_1: return {32, 20, 512 + 128};
    case BlockType::Q5_0: return {32, 22, 512 + 128 + 64};
    case BlockType::Q4_K: return {256, 144, 8 * 512 + 256 + 256 + 128};
    case BlockType::Q6_K: return {256, 210, 8 * (512 + 256) + 512 + 64};
    case BlockType::Q5_1: return {32, 24, 512 + 128 + 128};
    case BlockType::Q2_K: return {256, 84, 8 * 256 + 512 + 512 + 128};
    case BlockType::Q5_K: return {256, 176, 8 * (512 + 128) + 256 + 256 + 128};
    case BlockType::Q8_K16: return {256, 276, 8 * 1024 + 512 + 128};
  }
  return {1, 0, 0};
}

constexpr uint32_t kLow = 0x0f0f0f0fu, kHigh = 0xf0f0f0f0u;

inline uint32_t word_at(const uint8_t* p) {
  uint32_t w;
  std::memcpy(&w, p, 4);
  return w;
}

// Where output o of a line pair has its four bytes; line j is 128 bytes further on.
inline uint8_t* slot(uint8_t* lines, int o) { return lines + (o / 16) * 64 + (o % 16) * 4; }

inline void put(uint8_t* at, int j, uint32_t w) { std::memcpy(at + 128 * j, &w, 4); }

// Bytes i = 0..3: bit i of `bits`.
inline uint32_t spread(uint32_t bits) { return ((bits & 15) * 0x00204081u) & 0x01010101u; }

// 16 bytes whose low nibbles are k = 0..15 and whose high ones are k = 16..31.
void pack_nibbles(const uint8_t* q, uint8_t* at) {
  const uint32_t w0 = word_at(q), w1 = word_at(q + 4), w2 = word_at(q + 8), w3 = word_at(q + 12);
  put(at, 0, (w0 & kLow) | (w1 & kLow) << 4);
  put(at, 1, (w2 & kLow) | (w3 & kLow) << 4);
  put(at, 2, (w0 >> 4 & kLow) | (w1 & kHigh));
  put(at, 3, (w2 >> 4 & kLow) | (w3 & kHigh));
}

void pack_q4(const uint8_t* raw, int o, bool has_min, uint8_t* out) {
  pack_nibbles(raw + (has_min ? 4 : 2), slot(out, o));
  std::memcpy(out + 512 + 2 * o, raw, 2);
  if (has_min) std::memcpy(out + 576 + 2 * o, raw + 2, 2);
}

void pack_q8_0(const uint8_t* raw, int o, uint8_t* out) {
  uint8_t* at = slot(out, o);
  for (int j = 0; j < 8; j++) put(at, j, word_at(raw + 2 + 4 * j) ^ 0x80808080u);
  std::memcpy(out + 1024 + 2 * o, raw, 2);
}

void pack_q5(const uint8_t* raw, int o, bool has_min, uint8_t* out) {
  const uint8_t* bits = raw + (has_min ? 4 : 2);
  const uint32_t fifth = word_at(bits);  // bit k: weight k's fifth bit
  pack_nibbles(bits + 4, slot(out, o));
  uint32_t fifths = 0;
  for (int j = 0; j < 8; j++) fifths |= spread(fifth >> (4 * j)) << j;
  put(slot(out + 512, o), 0, fifths);
  std::memcpy(out + 640 + 2 * o, raw, 2);
  if (has_min) std::memcpy(out + 704 + 2 * o, raw + 2, 2);
}

// Q4_K and, where a group has 640 bytes, Q5_K.
void pack_q45_k(const uint8_t* raw, int o, int group_bytes, uint8_t* out) {
  const uint8_t *s = raw + 4, *fifths = raw + 16, *q = raw + (group_bytes == 512 ? 16 : 48);
  for (int group = 0; group < 8 && group_bytes > 512; group++) {
    uint32_t joined = 0;
    for (int j = 0; j < 8; j++) joined |= (word_at(fifths + 4 * j) >> group & 0x01010101u) << j;
    put(slot(out + group_bytes * group + 512, o), 0, joined);
  }
  for (int pair = 0; pair < 4; pair++) {  // 64 weights: low nibbles one group of 32, high ones the next
    uint8_t *low = slot(out + 2 * group_bytes * pair, o), *high = low + group_bytes;
    for (int j = 0; j < 4; j++) {
      const uint32_t a = word_at(q + 32 * pair + 8 * j), b = word_at(q + 32 * pair + 8 * j + 4);
      put(low, j, (a & kLow) | (b & kLow) << 4);
      put(high, j, (a >> 4 & kLow) | (b & kHigh));
    }
  }
  uint8_t *scales = out + 8 * group_bytes, *mins = scales + 256, *supers = mins + 256;
  for (int j = 0; j < 8; j++) {  // six bits each, the upper four pairs split over two places
    const int scale = j < 4 ? s[j] & 63 : (s[j + 4] & 15) | (s[j - 4] >> 6) << 4;
    const int min = j < 4 ? s[j + 4] & 63 : s[j + 4] >> 4 | (s[j] >> 6) << 4;
    scales[32 * j + o] = static_cast<uint8_t>(scale);
    mins[64 * (j / 2) + 2 * o + j % 2] = static_cast<uint8_t>(min);
  }
  std::memcpy(supers + 2 * o, raw, 2);
  std::memcpy(supers + 64 + 2 * o, raw + 2, 2);
}

void pack_q6_k(const uint8_t* raw, int o, uint8_t* out) {
  constexpr uint32_t kTop = 0x03030303u;
  for (int half = 0; half < 2; half++) {  // 128 weights: four groups of 32
    const uint8_t *low = raw + 64 * half, *high = raw + 128 + 32 * half;
    for (int part = 0; part < 4; part++) {
      uint8_t* at = slot(out + 768 * (4 * half + part), o);
      const uint8_t* nibbles = low + 32 * (part % 2);
      for (int j = 0; j < 4; j++) {
        const uint32_t a = word_at(nibbles + 8 * j) >> (4 * (part / 2)) & kLow;
        const uint32_t b = word_at(nibbles + 8 * j + 4) >> (4 * (part / 2)) & kLow;
        put(at, j, a | b << 4);
      }
      for (int i = 0; i < 2; i++) {
        uint32_t tops = 0;
        for (int j = 0; j < 4; j++) tops |= (word_at(high + 16 * i + 4 * j) >> (2 * part) & kTop) << (2 * j);
        put(at + 512, i, tops);
      }
    }
  }
  for (int j = 0; j < 16; j++) out[6144 + 32 * j + o] = raw[192 + j];
  std::memcpy(out + 6144 + 512 + 2 * o, raw + 208, 2);
}

void pack_q2_k(const uint8_t* raw, int o, uint8_t* out) {
  constexpr uint32_t kTwo = 0x03030303u;
  for (int group = 0; group < 8; group++) {  // two halves of 128 weights: 32 bytes, two bits of four groups each
    const uint8_t* q = raw + 16 + 32 * (group / 4);
    for (int i = 0; i < 2; i++) {
      uint32_t joined = 0;
      for (int j = 0; j < 4; j++) joined |= (word_at(q + 16 * i + 4 * j) >> (2 * (group % 4)) & kTwo) << (2 * j);
      put(slot(out + 256 * group, o), i, joined);
    }
  }
  uint8_t *scales = out + 2048, *mins = scales + 512, *supers = mins + 512;
  for (int j = 0; j < 16; j++) scales[32 * j + o] = raw[j] & 15, mins[32 * j + o] = raw[j] >> 4;
  std::memcpy(supers + 2 * o, raw + 80, 2);
  std::memcpy(supers + 64 + 2 * o, raw + 82, 2);
}

void pack_q8_k16(const uint8_t* raw, int o, uint8_t* out) {
  for (int group = 0; group < 8; group++)
    for (int j = 0; j < 8; j++)
      put(slot(out + 1024 * group, o), j, word_at(raw + 20 + 32 * group + 4 * j) ^ 0x80808080u);
  for (int j = 0; j < 16; j++) out[8192 + 32 * j + o] = raw[4 + j];
  std::memcpy(out + 8704 + 4 * o, raw, 4);
}

template <class T>
void pack_floats(const uint8_t* raw, size_t row_bytes, int rows, int k, uint8_t* out) {
  for (int k0 = 0; k0 < k; k0 += 16) {  // tiles that stay in the first cache
    const int k1 = k0 + 16 < k ? k0 + 16 : k;
    for (int o = 0; o < rows; o++)
      for (int i = k0; i < k1; i++)
        std::memcpy(out + (size_t{32} * i + o) * sizeof(T), raw + o * row_bytes + i * sizeof(T), sizeof(T));
  }
}

}  // namespace

size_t block_row_bytes(BlockType type, int k) {
  const Layout layout = layout_of(type);
  return static_cast<size_t>(k / layout.block_size) * layout.block_bytes;
}

size_t packed_block_bytes(BlockType type, int k) {
  const Layout layout = layout_of(type);
  return static_cast<size_t>(k / layout.block_size) * layout.packed_bytes;
}

void pack_block(BlockType type, const uint8_t* raw, int n, int k, int n_block, uint8_t* out) {
  const Layout layout = layout_of(type);
  const size_t row_bytes = block_row_bytes(type, k);
  const int first = n_block * kBlockOutputs, rows = n - first < kBlockOutputs ? n - first : kBlockOutputs;
  raw += static_cast<size_t>(first) * row_bytes;
  if (rows < kBlockOutputs) std::memset(out, 0, packed_block_bytes(type, k));
  if (type == BlockType::F32) return pack_floats<uint32_t>(raw, row_bytes, rows, k, out);
  if (layout.block_size == 1) return pack_floats<uint16_t>(raw, row_bytes, rows, k, out);
  for (int b = 0; b < k / layout.block_size; b++, raw += layout.block_bytes, out += layout.packed_bytes)
    for (int o = 0; o < rows; o++) {
      const uint8_t* block = raw + o * row_bytes;
      switch (type) {
        case BlockType::Q8_0: pack_q8_0(block, o, out); break;
        case BlockType::Q4_0: pack_q4(block, o, false, out); break;
        case BlockType::Q4_1: pack_q4(block, o, true, out); break;
        case BlockType::Q5_0: pack_q5(block, o, false, out); break;
        case BlockType::Q5_1: pack_q5(block, o, true, out); break;
        case BlockType::Q2_K: pack_q2_k(block, o, out); break;
        case BlockType::Q4_K: pack_q45_k(block, o, 512, out); break;
        case BlockType::Q5_K: pack_q45_k(block, o, 640, out); break;
        case BlockType::Q8_K16: pack_q8_k16(block, o, out); break;
        case BlockType::Q6_K: pack_q6_k(block, o, out); break;
        default: break;
      }
    }
}

}  // namespace insitu
