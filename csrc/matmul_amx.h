// y = W x for one n-block of a K type and many rows (is_wide) on AMX, and the choice among AMX's kernels.
// Not here: types with 32 inputs a scale (matmul_tiles.h), few rows, float weights (matmul.h). Truth: matmul.h.
// Always true: tiles stay configured until end_matmul; nothing is allocated but stack.
//
// Up to kPanelInputs inputs of the n-block are unpacked to bytes, once for up to kPanelTiles tiles of rows:
//   low, high[256 inputs][half][64 lines]: (q - offset) * sub_scale = 256 high + low, low unsigned, high signed:
//   a scale's whole group of 256 is one exact sum of two dots
// A line is 16 outputs x 4 inputs; rows of input bytes times 16 lines is what a tile instruction does.
#pragma once
#include "kernels.h"
#include "matmul_dot.h"
#include "matmul_tiles.h"
#include "quantize.h"

namespace insitu::INSITU_NS {

struct Panel {
  alignas(64) uint8_t low[kPanelInputs<256> * kBlockOutputs];
  alignas(64) uint8_t high[kPanelInputs<256> * kBlockOutputs];
  alignas(64) float scales[kPanelInputs<256> / 256][kBlockOutputs];
  alignas(64) float mins[kPanelInputs<256> / 256][kBlockOutputs];
  alignas(64) uint8_t sub_mins[kPanelInputs<256> / 256][512];
};

// A line of signed bytes times one int16 an output (twice in each lane) as two digits.
static INSITU_INLINE void unpack_scaled(ivec q, ivec scale, uint8_t* low, uint8_t* high) {
  const ivec even = _mm512_mullo_epi16(_mm512_srai_epi16(_mm512_slli_epi16(q, 8), 8), scale);
  const ivec odd = _mm512_mullo_epi16(_mm512_srai_epi16(q, 8), scale);
  const ivec is_low = _mm512_set1_epi16(255);
  store_line(low, _mm512_or_si512(_mm512_and_si512(even, is_low), _mm512_slli_epi16(odd, 8)));
  store_line(high, _mm512_or_si512(_mm512_srli_epi16(even, 8), _mm512_andnot_si512(is_low, odd)));
}

static INSITU_INLINE ivec twice(ivec x) {
  return _mm512_or_si512(_mm512_and_si512(x, _mm512_set1_epi32(0xffff)), _mm512_slli_epi32(x, 16));
}

template <int Bits>  // 4 or 5
static void unpack_q45_k(const uint8_t* w, Panel& p, int g) {
  constexpr int kGroup = Bits == 4 ? 512 : 640, kScales = 8 * kGroup;
  for (int h = 0; h < 2; h++)
    for (int s = 0; s < 8; s++) {
      const ivec scale = twice(widen_u8(w + kScales + 32 * s + 16 * h));
      const uint8_t* lines = w + kGroup * s + 64 * h;
      const ivec fifths = Bits == 4 ? izero() : load_bytes(lines + 512);
      unrolled<8>([&](auto j) INSITU_INLINE_LAMBDA {
        ivec q = nibbles<j % 2>(load_bytes(lines + 128 * (j / 2)));
        if constexpr (Bits == 5) q = with_bits<4 - j, 0x10>(q, fifths);
        const size_t at = 8192 * static_cast<size_t>(g) + 4096 * h + 512 * s + 64 * j;
        unpack_scaled(q, scale, p.low + at, p.high + at);
      });
    }
  __builtin_memcpy(p.sub_mins[g], w + kScales + 256, 256);
  unpack_halves(w + kScales + 512, p.scales[g]);
  unpack_halves(w + kScales + 576, p.mins[g]);
}

static void unpack_q2_k(const uint8_t* w, Panel& p, int g) {
  for (int h = 0; h < 2; h++)
    for (int s = 0; s < 16; s++) {
      const ivec scale = twice(widen_u8(w + 2048 + 32 * s + 16 * h)), four = load_bytes(w + 128 * s + 64 * h);
      unrolled<4>([&](auto j) INSITU_INLINE_LAMBDA {
        const size_t at = 8192 * static_cast<size_t>(g) + 4096 * h + 256 * s + 64 * j;
        unpack_scaled(with_bits<-2 * j, 3>(izero(), four), scale, p.low + at, p.high + at);
      });
    }
  __builtin_memcpy(p.sub_mins[g], w + 2560, 512);
  unpack_halves(w + 3072, p.scales[g]);
  unpack_halves(w + 3136, p.mins[g]);
}

static void unpack_q8_k16(const uint8_t* w, Panel& p, int g) {
  for (int h = 0; h < 2; h++)
    for (int s = 0; s < 16; s++) {
      const ivec scale = twice(widen_i8(w + 8192 + 32 * s + 16 * h));
      for (int j = 0; j < 4; j++) {
        const ivec q = _mm512_sub_epi8(load_bytes(w + 512 * s + 128 * j + 64 * h), bytes_of(128));
        const size_t at = 8192 * static_cast<size_t>(g) + 4096 * h + 256 * s + 64 * j;
        unpack_scaled(q, scale, p.low + at, p.high + at);
      }
    }
  __builtin_memcpy(p.scales[g], w + 8704, 128);
}

static void unpack_q6_k(const uint8_t* w, Panel& p, int g) {
  for (int h = 0; h < 2; h++)
    for (int s = 0; s < 16; s++) {
      const ivec scale = twice(widen_i8(w + 6144 + 32 * s + 16 * h));
      const uint8_t* lines = w + 768 * (s / 2) + 64 * h;
      const ivec tops = load_bytes(lines + 512 + 128 * (s % 2));
      unrolled<4>([&](auto j) INSITU_INLINE_LAMBDA {
        const ivec nibble = nibbles<j % 2>(load_bytes(lines + 256 * (s % 2) + 128 * (j / 2)));
        const ivec q = _mm512_sub_epi8(with_bits<4 - 2 * j, 0x30>(nibble, tops), bytes_of(32));
        const size_t at = 8192 * static_cast<size_t>(g) + 4096 * h + 256 * s + 64 * j;
        unpack_scaled(q, scale, p.low + at, p.high + at);
      });
    }
  unpack_halves(w + 6656, p.scales[g]);
}

// Both halves' low and high digits: tiles 0, 1 and 2, 3.
static INSITU_INLINE void begin_dots(const uint8_t* a, const uint8_t* low, const uint8_t* high) {
  _tile_zero(0);
  _tile_zero(1);
  _tile_zero(2);
  _tile_zero(3);
  for (int s = 0; s < 4; s++, a += 64, low += 1024, high += 1024) {
    _tile_loadd(4, a, 256);
    _tile_loadd(5, low, 64);
    _tile_loadd(7, high, 64);
    _tile_dpbsud(0, 4, 5);
    _tile_dpbssd(1, 4, 7);
    _tile_loadd(5, low + 4096, 64);
    _tile_loadd(7, high + 4096, 64);
    _tile_dpbsud(2, 4, 5);
    _tile_dpbssd(3, 4, 7);
  }
}

static INSITU_INLINE void store_dots(int32_t (*dots)[16][16]) {
  _tile_stored(0, dots[0], 64);
  _tile_stored(1, dots[1], 64);
  _tile_stored(2, dots[2], 64);
  _tile_stored(3, dots[3], 64);
}

// Integers times 256, by moving bytes: on the port that a shift would leave idle.
static INSITU_INLINE ivec times_256(ivec x) {
  return _mm512_shuffle_epi8(x, _mm512_set4_epi32(0x0e0d0c80, 0x0a090880, 0x06050480, 0x02010080));
}

// How many inputs share a minimum; 0: there are none. A group's dots are stored when the sums before it are made.
template <int R, int MinInputs>
__attribute__((noinline)) static void add_groups_256(const Panel& p, int groups, const uint8_t* a, Ahead ahead, float (*sums)[32]) {
  alignas(64) int32_t dots[4][16][16];
  begin_dots(a, p.low, p.high);
  for (int g = 0; g < groups; g++, a += R * kRecord256) {
    store_dots(dots);
    const size_t next = 8192 * static_cast<size_t>(g + 1);
    if (g + 1 < groups) begin_dots(a + R * kRecord256, p.low + next, p.high + next);
    ahead.group();
    const uint8_t *scales = a + 256 * R, *in_sums = scales + 4 * R, *sums_of_16 = in_sums + 16 * R;
    for (int half = 0; half < 2; half++) {
      const fvec super = fload(p.scales[g] + 16 * half), super_min = fload(p.mins[MinInputs ? g : 0] + 16 * half);
      ivec mins[4];
      if constexpr (MinInputs == 32)
        INSITU_UNROLL for (int i = 0; i < 4; i++) mins[i] = widen_pairs(p.sub_mins[g] + 64 * i + 32 * half);
      const int32_t(*low)[16] = dots[2 * half], (*high)[16] = dots[2 * half + 1];
      INSITU_UNROLL for (int r = 0; r < R; r++) {
        const ivec total = sum(_mm512_load_si512(low[r]), times_256(_mm512_load_si512(high[r])));
        const fvec as = fsame(float_at(scales + 4 * r));
        fvec acc = ffma(fconvert(total), fmul(super, as), fload(sums[r] + 16 * half));
        if constexpr (MinInputs == 16) {  // sums are held times -32: see matmul_k.h
          ivec minimum = izero();
          for (int s = 0; s < 16; s++)
            minimum = sum(minimum, product(widen_u8(p.sub_mins[g] + 32 * s + 16 * half),
                                           isame(four_bytes(sums_of_16 + 64 * r + 4 * s))));
          acc = ffma(fmul(fconvert(minimum), fsame(0.03125f)), fmul(super_min, as), acc);
        }
        if constexpr (MinInputs == 32) {
          ivec minimum = izero();
          INSITU_UNROLL for (int i = 0; i < 4; i++)
            minimum = _mm512_dpwssd_epi32(minimum, mins[i], isame(four_bytes(in_sums + 16 * r + 4 * i)));
          acc = ffnma(fconvert(minimum), fmul(super_min, as), acc);
        }
        fstore(sums[r] + 16 * half, acc);
      }
    }
  }
}

// --- tiles --------------------------------------------------------------------------------------------

static void unpack_group(BlockType type, const uint8_t* w, Panel& p, int g) {
  switch (type) {
    case BlockType::Q2_K: return unpack_q2_k(w, p, g);
    case BlockType::Q4_K: return unpack_q45_k<4>(w, p, g);
    case BlockType::Q5_K: return unpack_q45_k<5>(w, p, g);
    case BlockType::Q6_K: return unpack_q6_k(w, p, g);
    case BlockType::Q8_K16: return unpack_q8_k16(w, p, g);
    default: return;
  }
}

template <int R>
static void add_groups(BlockType type, const Panel& p, int groups, const uint8_t* a, Ahead ahead, float (*sums)[32]) {
  switch (type) {
    case BlockType::Q2_K: return add_groups_256<R, 16>(p, groups, a, ahead, sums);
    case BlockType::Q4_K:
    case BlockType::Q5_K: return add_groups_256<R, 32>(p, groups, a, ahead, sums);
    case BlockType::Q6_K:
    case BlockType::Q8_K16: return add_groups_256<R, 0>(p, groups, a, ahead, sums);
    default: return;
  }
}

__attribute__((noinline)) static void multiply_wide_256(const PackedSegment& w, const uint8_t* block,
                                                        const Activations& x, const Output& y) {
  Panel panel;
  const size_t group_bytes = w.block_bytes / (w.k / 256);
  multiply_panels<256>(
      w, block, x, y,
      [&](const uint8_t* weights, int groups) {
        for (int g = 0; g < groups; g++) unpack_group(w.type, weights + g * group_bytes, panel, g);
      },
      [&](int rows, int groups, const uint8_t* a, const auto& ahead, float(*sums)[kBlockOutputs]) {
        with_rows(rows, [&](auto r) { add_groups<r>(w.type, panel, groups, a, ahead(groups), sums); });
      });
}

static void multiply_wide(const PackedSegment& w, const uint8_t* block, const Activations& x, const Output& y) {
  if (x.group == 32) return multiply_wide_32(w, block, x, y);
  multiply_wide_256(w, block, x, y);
}

}  // namespace insitu::INSITU_NS
