// y = W x for one n-block and many rows (is_wide) on AMX: integer dots of 16 rows x 16 outputs in one
// instruction, the float chain as in matmul.h and so the same bits.
// Not here: few rows, float weights (matmul.h). Truth: matmul.h.
// Always true: tiles are configured on entry and released on return; nothing is allocated but stack.
//
// Up to kPanelInputs inputs of the n-block are unpacked to bytes, once for up to kPanelRows rows:
//   32 inputs a scale    low[group][half][8 lines]: q - offset, signed
//   K types              low, high[256 inputs][half][64 lines]: (q - offset) * sub_scale = 256 high + low,
//                        low unsigned, high signed: a scale's whole group of 256 is one exact sum of two dots
// A line is 16 outputs x 4 inputs; rows of input bytes times 8 or 16 lines is what a tile instruction does.
#pragma once
#include "kernels.h"
#include "matmul_dot.h"
#include "quantize.h"

namespace insitu::INSITU_NS {

constexpr int kPanelInputs = 512, kPanelTiles = 16;

struct Panel {
  alignas(64) uint8_t low[kPanelInputs * kBlockOutputs];
  alignas(64) uint8_t high[kPanelInputs * kBlockOutputs];
  alignas(64) float scales[kPanelInputs / 32][kBlockOutputs];
  alignas(64) float mins[kPanelInputs / 32][kBlockOutputs];
  alignas(64) uint8_t sub_mins[kPanelInputs / 256][512];
};

// Dots of two groups at most: the one being stored by the tile unit and the one being read.
template <int Tiles>
struct Dots {
  alignas(64) int32_t of[2][Tiles][16][16];
};

struct alignas(64) TileConfig {
  uint8_t palette = 1, start_row = 0, reserved[14] = {};
  uint16_t row_bytes[16] = {};
  uint8_t rows[16] = {};

  // 0-3: dots; 4: inputs; 5, 6: weights.
  TileConfig(int num_rows, int num_inputs) {
    for (int i = 0; i < 7; i++) row_bytes[i] = 64, rows[i] = static_cast<uint8_t>(num_rows);
    row_bytes[4] = static_cast<uint16_t>(num_inputs);
    rows[5] = rows[6] = static_cast<uint8_t>(num_inputs / 4);
  }
};

static INSITU_INLINE void store_line(uint8_t* at, ivec x) { _mm512_store_si512(at, x); }
static INSITU_INLINE ivec bytes_of(int x) { return _mm512_set1_epi8(static_cast<char>(x)); }

// --- 32 inputs a scale ------------------------------------------------------------------------------

template <int Offset>
static INSITU_INLINE void unpack_nibbles(const uint8_t* w, uint8_t* low) {
  for (int h = 0; h < 2; h++)
    for (int j = 0; j < 4; j++) {
      const ivec p = load_bytes(w + 128 * j + 64 * h);
      store_line(low + 512 * h + 128 * j, _mm512_sub_epi8(low_nibbles(p), bytes_of(Offset)));
      store_line(low + 512 * h + 128 * j + 64, _mm512_sub_epi8(high_nibbles(p), bytes_of(Offset)));
    }
}

template <int Offset>
static INSITU_INLINE void unpack_bytes(const uint8_t* w, uint8_t* low) {
  for (int h = 0; h < 2; h++)
    for (int j = 0; j < 8; j++)
      store_line(low + 512 * h + 64 * j, _mm512_sub_epi8(load_bytes(w + 128 * j + 64 * h), bytes_of(Offset)));
}

template <int Offset>
static INSITU_INLINE void unpack_fifths(const uint8_t* w, uint8_t* low) {
  for (int h = 0; h < 2; h++) {
    const ivec fifths = load_bytes(w + 512 + 64 * h);
    unrolled<8>([&](auto j) INSITU_INLINE_LAMBDA {
      const ivec q = with_bits<4 - j, 0x10>(nibbles<j % 2>(load_bytes(w + 128 * (j / 2) + 64 * h)), fifths);
      store_line(low + 512 * h + 64 * j, _mm512_sub_epi8(q, bytes_of(Offset)));
    });
  }
}

static INSITU_INLINE void unpack_halves(const uint8_t* w, float* out) {
  fstore(out, fload_f16(w));
  fstore(out + 16, fload_f16(w + 32));
}

static INSITU_INLINE void dots_of_32(const uint8_t* a, const uint8_t* low, int32_t (*dots)[16]) {
  _tile_zero(0);
  _tile_loadd(4, a, 32);
  _tile_loadd(5, low, 64);
  _tile_dpbssd(0, 4, 5);
  _tile_stored(0, dots, 64);
}

// Adds `groups` groups to R rows of sums, one half of the outputs after the other.
template <int R, bool HasMin>
__attribute__((noinline)) static void add_groups_32(const Panel& p, int groups, const uint8_t* a, Ahead ahead, float (*sums)[32]) {
  Dots<1> dots;
  for (int half = 0; half < 2; half++) {
    const uint8_t *low = p.low + 512 * half, *row = a;
    fvec acc[R];
    INSITU_UNROLL for (int r = 0; r < R; r++) acc[r] = fload(sums[r] + 16 * half);
    dots_of_32(row, low, dots.of[0][0]);
    for (int g = 0; g < groups; g++, row += R * kRecord32) {
      if (g + 1 < groups) dots_of_32(row + R * kRecord32, low += 1024, dots.of[(g + 1) % 2][0]);
      ahead.group();
      const fvec ws = fload(p.scales[g] + 16 * half), wm = fload(p.mins[HasMin ? g : 0] + 16 * half);
      const uint8_t *scales = row + 32 * R, *in_sums = scales + 16 * R;
      INSITU_UNROLL for (int r = 0; r < R; r++) {
        const fvec dot = fconvert(_mm512_load_si512(dots.of[g % 2][0][r]));
        acc[r] = ffma(dot, fmul(ws, fsame(float_at(scales + 4 * r))), acc[r]);
        if constexpr (HasMin) acc[r] = ffma(wm, fsame(float_at(in_sums + 4 * r)), acc[r]);
      }
    }
    INSITU_UNROLL for (int r = 0; r < R; r++) fstore(sums[r] + 16 * half, acc[r]);
    ahead.left = 0;
  }
}

// --- K types ------------------------------------------------------------------------------------------

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
template <int R>
static INSITU_INLINE void dots_of_256(const uint8_t* a, const uint8_t* low, const uint8_t* high,
                                      int32_t (*dots)[16][16]) {
  _tile_zero(0);
  _tile_zero(1);
  _tile_zero(2);
  _tile_zero(3);
  for (int s = 0; s < 4; s++, a += 64, low += 1024, high += 1024) {
    _tile_loadd(4, a, 256);
    _tile_loadd(5, low, 64);
    _tile_loadd(6, high, 64);
    _tile_dpbsud(0, 4, 5);
    _tile_dpbssd(1, 4, 6);
    _tile_loadd(5, low + 4096, 64);
    _tile_loadd(6, high + 4096, 64);
    _tile_dpbsud(2, 4, 5);
    _tile_dpbssd(3, 4, 6);
  }
  _tile_stored(0, dots[0], 64);
  _tile_stored(1, dots[1], 64);
  _tile_stored(2, dots[2], 64);
  _tile_stored(3, dots[3], 64);
}

// How many inputs share a minimum; 0: there are none.
template <int R, int MinInputs>
__attribute__((noinline)) static void add_groups_256(const Panel& p, int groups, const uint8_t* a, Ahead ahead, float (*sums)[32]) {
  Dots<4> dots;
  dots_of_256<R>(a, p.low, p.high, dots.of[0]);
  for (int g = 0; g < groups; g++, a += R * kRecord256) {
    const size_t next = 8192 * static_cast<size_t>(g + 1);
    if (g + 1 < groups) dots_of_256<R>(a + R * kRecord256, p.low + next, p.high + next, dots.of[(g + 1) % 2]);
    ahead.group();
    const uint8_t *scales = a + 256 * R, *in_sums = scales + 4 * R, *sums_of_16 = in_sums + 16 * R;
    for (int half = 0; half < 2; half++) {
      const fvec super = fload(p.scales[g] + 16 * half), super_min = fload(p.mins[MinInputs ? g : 0] + 16 * half);
      ivec mins[4];
      if constexpr (MinInputs == 32)
        INSITU_UNROLL for (int i = 0; i < 4; i++) mins[i] = widen_pairs(p.sub_mins[g] + 64 * i + 32 * half);
      const int32_t(*low)[16] = dots.of[g % 2][2 * half], (*high)[16] = dots.of[g % 2][2 * half + 1];
      INSITU_UNROLL for (int r = 0; r < R; r++) {
        const ivec total = sum(_mm512_load_si512(low[r]), _mm512_slli_epi32(_mm512_load_si512(high[r]), 8));
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
    case BlockType::Q4_0: unpack_nibbles<8>(w, p.low + 1024 * g); break;
    case BlockType::Q4_1:
      unpack_nibbles<0>(w, p.low + 1024 * g);
      unpack_halves(w + 576, p.mins[g]);
      break;
    case BlockType::Q5_0: unpack_fifths<16>(w, p.low + 1024 * g); break;
    case BlockType::Q5_1:
      unpack_fifths<0>(w, p.low + 1024 * g);
      unpack_halves(w + 704, p.mins[g]);
      break;
    case BlockType::Q8_0: unpack_bytes<128>(w, p.low + 1024 * g); break;
    case BlockType::Q2_K: return unpack_q2_k(w, p, g);
    case BlockType::Q4_K: return unpack_q45_k<4>(w, p, g);
    case BlockType::Q5_K: return unpack_q45_k<5>(w, p, g);
    case BlockType::Q6_K: return unpack_q6_k(w, p, g);
    case BlockType::Q8_K16: return unpack_q8_k16(w, p, g);
    default: return;
  }
  const bool has_fifths = type == BlockType::Q5_0 || type == BlockType::Q5_1;
  unpack_halves(w + (type == BlockType::Q8_0 ? 1024 : has_fifths ? 640 : 512), p.scales[g]);
}

template <int R>
static void add_groups(BlockType type, const Panel& p, int groups, const uint8_t* a, Ahead ahead, float (*sums)[32]) {
  switch (type) {
    case BlockType::Q4_1:
    case BlockType::Q5_1: return add_groups_32<R, true>(p, groups, a, ahead, sums);
    case BlockType::Q2_K: return add_groups_256<R, 16>(p, groups, a, ahead, sums);
    case BlockType::Q4_K:
    case BlockType::Q5_K: return add_groups_256<R, 32>(p, groups, a, ahead, sums);
    case BlockType::Q6_K:
    case BlockType::Q8_K16: return add_groups_256<R, 0>(p, groups, a, ahead, sums);
    default: return add_groups_32<R, false>(p, groups, a, ahead, sums);
  }
}

template <int R = kWideRows>
static void add_rows(int rows, BlockType type, const Panel& p, int groups, const uint8_t* a, Ahead ahead,
                     float (*sums)[32]) {
  if constexpr (R > kWideRows / 2 - 1) {
    if (rows == R) return add_groups<R>(type, p, groups, a, ahead, sums);
    return add_rows<R - 1>(rows, type, p, groups, a, ahead, sums);
  }
}

// Rows of the output, and of what is added to it, lie far apart: they are fetched while their sums are made.
static void prefetch_outputs(RowTile t, const Output& y) {
  const Epilogue& e = *y.epilogue;
  for (int row = t.first; row < t.first + t.rows; row++)
    for (int half = 0; half < 2; half++) {
      __builtin_prefetch(y.out + row * y.stride + y.first_output + 16 * half, 1);
      if (e.residual) __builtin_prefetch(e.residual + row * e.residual_stride + y.first_output + 16 * half);
    }
}

static void finish_rows(RowTile t, const float (*sums)[kBlockOutputs], const Output& y) {
  for (int r = 0; r < t.rows; r++)
    for (int half = 0; half < 2; half++) finish(fload(sums[r] + 16 * half), 16 * half, t.first + r, y);
}

__attribute__((noinline)) static void multiply_wide(const PackedSegment& w, const uint8_t* block, const Activations& x,
                                                    const Output& y) {
  Panel panel;
  alignas(64) float sums[kPanelTiles][kWideRows][kBlockOutputs];
  const int group = x.group, record = group == 32 ? kRecord32 : kRecord256, tiles = num_row_tiles(x.num_rows);
  const size_t group_bytes = w.block_bytes / (w.k / group);
  for (int t0 = 0; t0 < tiles; t0 += kPanelTiles) {
    const int t1 = t0 + kPanelTiles < tiles ? t0 + kPanelTiles : tiles;
    __builtin_memset(sums, 0, (t1 - t0) * sizeof sums[0]);
    for (int k0 = 0; k0 < w.k; k0 += kPanelInputs) {
      const int groups = (w.k - k0 < kPanelInputs ? w.k - k0 : kPanelInputs) / group, first = k0 / group;
      for (int g = 0; g < groups; g++) unpack_group(w.type, block + (first + g) * group_bytes, panel, g);
      // What is unpacked next follows in memory, be it of the next n-block; its lines are shared out over tiles.
      const uint8_t* next = block + (first + groups) * group_bytes;
      const int lines = static_cast<int>(groups * group_bytes / 64);
      for (int t = t0, configured = 0; t < t1; t++) {
        const RowTile tile = row_tile(x.num_rows, t);
        if (tile.rows != configured) {
          const TileConfig config(configured = tile.rows, group == 32 ? 32 : 64);
          _tile_loadconfig(&config);
        }
        const uint8_t* a = x.quantized + tile.first * quantized_row_bytes(x.k, group) +
                           static_cast<size_t>(first) * tile.rows * record;
        const bool is_last = k0 + kPanelInputs >= w.k;
        if (is_last) prefetch_outputs(tile, y);
        add_rows(tile.rows, w.type, panel, groups, a, Ahead::share(next, lines, t, tiles, groups), sums[t - t0]);
        if (is_last) finish_rows(tile, sums[t - t0], y);
      }
    }
  }
  _tile_release();
}

}  // namespace insitu::INSITU_NS
