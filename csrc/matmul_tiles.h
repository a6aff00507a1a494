// y = W x for one n-block and twelve rows or more (is_wide) on AMX, for types with 32 inputs a scale, 16 rows at a time.
// Of up to kStreamTiles tiles each unpacks weights a few groups before it multiplies them; more share panels of up to
// kPanelGroups groups.
// Not here: K types (matmul_amx.h), few rows, float weights (matmul.h). Truth: matmul.h.
// Always true: the float chain of an output is that of matmul.h; nothing is allocated but stack.
//
// What was measured of the tile unit and shapes these loops: its instructions run in order, and the store of a
// product waits some fifty cycles for it, so a product is stored after the next one has begun. For about a hundred
// cycles after any of them port 5 neither multiplies, converts nor fuses, but adds and does logic as ever: integers
// become floats by additions there. What is loaded into tiles must lie in the first cache, or all wait.
#pragma once
#include <type_traits>

#include "kernels.h"
#include "matmul_dot.h"
#include "quantize.h"

namespace insitu::INSITU_NS {

struct alignas(64) TileConfig {
  uint8_t palette = 1, start_row = 0, reserved[14] = {};
  uint16_t row_bytes[16] = {};
  uint8_t rows[16] = {};

  // 0-3: dots; 4, 6: inputs; 5, 7: weights.
  TileConfig(int num_rows, int num_inputs) {
    for (int i = 0; i < 8; i++) row_bytes[i] = 64, rows[i] = static_cast<uint8_t>(num_rows);
    row_bytes[4] = row_bytes[6] = static_cast<uint16_t>(num_inputs);
    rows[5] = rows[7] = static_cast<uint8_t>(num_inputs / 4);
  }

  INSITU_INLINE void load() const {
    __asm__ volatile("" : : "r"(this) : "memory");  // the intrinsic names eight of its bytes
    _tile_loadconfig(this);
  }
};

// What this thread's tiles are configured for. Loading a configuration takes as long as six products, so it stays
// from block to block; what else a step does is up to a tenth slower while it does, so end_matmul gives it back.
static thread_local int configured_tiles = 0;

static void configure_tiles(int num_rows, int num_inputs) {
  const int wanted = num_rows << 8 | num_inputs;
  if (configured_tiles == wanted) return;
  configured_tiles = wanted;
  TileConfig(num_rows, num_inputs).load();
}

static void end_matmul() {
  if (configured_tiles == 0) return;
  configured_tiles = 0;
  _tile_release();
}

static INSITU_INLINE void store_line(uint8_t* at, ivec x) { _mm512_store_si512(at, x); }
static INSITU_INLINE ivec bytes_of(int x) { return _mm512_set1_epi8(static_cast<char>(x)); }

// A group of one half of the outputs: eight lines of 16 outputs x 4 inputs, q - offset as signed bytes.
template <bool HasMin>
struct NibbleLines {
  static constexpr size_t kGroupBytes = HasMin ? 640 : 576, kScales = 512, kMins = 576;
  static constexpr bool kHasMin = HasMin;

  static INSITU_INLINE void unpack(const uint8_t* w, uint8_t* out) {
    INSITU_UNROLL for (int j = 0; j < 4; j++) {
      const ivec p = load_bytes(w + 128 * j);
      ivec low = low_nibbles(p), high = high_nibbles(p);
      if constexpr (!HasMin) low = _mm512_sub_epi8(low, bytes_of(8)), high = _mm512_sub_epi8(high, bytes_of(8));
      store_line(out + 128 * j, low);
      store_line(out + 128 * j + 64, high);
    }
  }
};

struct ByteLines {
  static constexpr size_t kGroupBytes = 1088, kScales = 1024, kMins = 0;
  static constexpr bool kHasMin = false;

  static INSITU_INLINE void unpack(const uint8_t* w, uint8_t* out) {
    INSITU_UNROLL for (int j = 0; j < 8; j++)
      store_line(out + 64 * j, _mm512_xor_si512(load_bytes(w + 128 * j), bytes_of(128)));
  }
};

template <bool HasMin>
struct FifthLines {
  static constexpr size_t kGroupBytes = HasMin ? 768 : 704, kScales = 640, kMins = 704;
  static constexpr bool kHasMin = HasMin;

  static INSITU_INLINE void unpack(const uint8_t* w, uint8_t* out) {
    const ivec fifths = load_bytes(w + 512);
    unrolled<8>([&](auto j) INSITU_INLINE_LAMBDA {
      const ivec q = with_bits<4 - j, 0x10>(nibbles<j % 2>(load_bytes(w + 128 * (j / 2))), fifths);
      store_line(out + 64 * j, HasMin ? q : _mm512_sub_epi8(q, bytes_of(16)));
    });
  }
};

// Walks what is multiplied in turn, all groups of one half of the outputs and then of the other. Of an odd number
// the last is taken twice, so that each half begins at an even turn.
struct Walk {
  const uint8_t* at;
  const uint8_t* second;
  size_t stride;
  int groups, group = 0;

  INSITU_INLINE void advance() {
    if (++group < groups) at += stride;
    else if (group == groups + groups % 2) group = 0, at = second;
  }
};

static INSITU_INLINE void begin_even(const uint8_t* inputs, int stride, const uint8_t* weights) {
  _tile_zero(0);
  _tile_loadd(4, inputs, stride);
  _tile_loadd(5, weights, 64);
  _tile_dpbssd(0, 4, 5);
}
static INSITU_INLINE void begin_odd(const uint8_t* inputs, int stride, const uint8_t* weights) {
  _tile_zero(1);
  _tile_loadd(6, inputs, stride);
  _tile_loadd(7, weights, 64);
  _tile_dpbssd(1, 6, 7);
}

// As fconvert of |x| < 2^22, by additions: 1.5 * 2^23 + x has the bits of an integer's sum.
static INSITU_INLINE fvec convert_small(ivec x) {
  const fvec magic = fsame(12582912.0f);
  return _mm512_sub_ps(_mm512_castsi512_ps(sum(x, _mm512_castps_si512(magic))), magic);
}

// The sum of each output's weights in a group's eight lines.
static INSITU_INLINE ivec line_sums(const uint8_t* lines) {
  ivec even = izero(), odd = izero();
  INSITU_UNROLL for (int j = 0; j < 8; j += 2) {
    even = _mm512_dpbusd_epi32(even, bytes_of(1), load_bytes(lines + 64 * j));
    odd = _mm512_dpbusd_epi32(odd, bytes_of(1), load_bytes(lines + 64 * j + 64));
  }
  return sum(even, odd);
}

// dots += shift * weights, in the rows whose integers are shifted; both are within 16 bits.
template <int R>
static INSITU_INLINE void add_shifts(const uint8_t* shifts, ivec weights, int32_t (*dots)[16]) {
  const __m128i bytes = _mm_maskz_loadu_epi8((1u << R) - 1, shifts);
  for (uint32_t rows = _mm_test_epi8_mask(bytes, bytes); rows; rows &= rows - 1) {
    const int r = __builtin_ctz(rows);
    const ivec shift = isame(static_cast<uint16_t>(static_cast<int8_t>(shifts[r])));
    _mm512_store_si512(dots[r], _mm512_dpwssd_epi32(_mm512_load_si512(dots[r]), weights, shift));
  }
}

// acc = fma(float(dot), ws * as, acc), then with minima acc = fma(wm, as * float(sum), acc); `record` holds as.
template <bool HasMin, int R>
static INSITU_INLINE void add_products(const int32_t (*dots)[16], fvec ws, fvec wm, const uint8_t* record, fvec (&acc)[R]) {
  INSITU_UNROLL for (int r = 0; r < R; r++) {
    const fvec dot = convert_small(_mm512_load_si512(dots[r]));
    acc[r] = ffma(dot, fmul(ws, fsame(float_at(record + 4 * r))), acc[r]);
    if constexpr (HasMin) acc[r] = ffma(wm, fsame(float_at(record + 16 * R + 4 * r)), acc[r]);
  }
}

// --- few tiles: weights unpacked as they are multiplied ----------------------------------------------------

constexpr int kRing = 4;  // groups unpacked and not yet multiplied

template <class Lines, int R>
__attribute__((noinline)) static void multiply_tile_32(const uint8_t* w, int k, const uint8_t* a, int first_row,
                                                       Ahead ahead, const Output& y) {
  alignas(64) uint8_t ring[kRing][512], spare[512];
  alignas(64) int32_t dots[2][16][16];
  alignas(64) float sums[R][16];
  const int groups = k / 32;
  Walk packed{w, w + 64, Lines::kGroupBytes, groups}, inputs{a, a, R * kRecord32, groups};
  int unpacked = 0, begun = 0;
  const auto unpack = [&]() INSITU_INLINE_LAMBDA {
    Lines::unpack(packed.at, ring[unpacked++ % kRing]);
    packed.advance();
  };
  const auto even = [&]() INSITU_INLINE_LAMBDA {
    begin_even(inputs.at, 32, ring[begun++ % kRing]);
    inputs.advance();
  };
  const auto odd = [&]() INSITU_INLINE_LAMBDA {
    begin_odd(inputs.at, 32, ring[begun++ % kRing]);
    inputs.advance();
  };
  for (int i = 0; i < kRing; i++) unpack();
  even();
  odd();
  _tile_stored(0, dots[0], 64);
  for (int half = 0; half < 2; half++) {
    const uint8_t *scales = w + Lines::kScales + 32 * half, *record = a + 32 * R;
    fvec acc[R];
    INSITU_UNROLL for (int r = 0; r < R; r++) acc[r] = fzero();
    const auto add = [&](int32_t (*products)[16]) INSITU_INLINE_LAMBDA {
      if (is_shifted<R>(record + 12 * R)) [[unlikely]] {
        Lines::unpack(scales - Lines::kScales + 32 * half, spare);  // this half's lines, 64 * half into the group
        add_shifts<R>(record + 12 * R, line_sums(spare), products);
      }
      const fvec wm = fload_f16(scales + (Lines::kHasMin ? Lines::kMins - Lines::kScales : 0));
      add_products<Lines::kHasMin, R>(products, fload_f16(scales), wm, record, acc);
      scales += Lines::kGroupBytes;
      record += R * kRecord32;
    };
    for (int g = 0; g < groups; g += 2) {
      ahead.group();
      unpack();
      even();
      _tile_stored(1, dots[1], 64);
      add(dots[0]);
      unpack();
      odd();
      _tile_stored(0, dots[0], 64);
      if (g + 1 < groups) add(dots[1]);
    }
    INSITU_UNROLL for (int r = 0; r < R; r++) fstore(sums[r], acc[r]);
    for (int r = 0; r < R; r++) finish(fload(sums[r]), 16 * half, first_row + r, y);
  }
}

// --- many rows: weights unpacked once for up to kPanelTiles tiles ---------------------------------------

constexpr int kStreamTiles = 2, kPanelTiles = 16, kPanelGroups = 18;  // 576 inputs: widths of many models, whole
template <int Group>
constexpr int kPanelInputs = Group == 32 ? 32 * kPanelGroups : 512;

// One half's groups after the other's, an even number of each, in the order in which they are multiplied.
struct Panel32 {
  alignas(64) uint8_t low[2 * kPanelGroups + 2][512];
  alignas(64) float scales[kPanelGroups][kBlockOutputs];
  alignas(64) float mins[kPanelGroups][kBlockOutputs];
};

static INSITU_INLINE void unpack_halves(const uint8_t* w, float* out) {
  fstore(out, fload_f16(w));
  fstore(out + 16, fload_f16(w + 32));
}

template <class Lines>
__attribute__((noinline)) static void unpack_panel(const uint8_t* w, int groups, Panel32& p) {
  const int second = groups + groups % 2;
  for (int g = 0; g < groups; g++, w += Lines::kGroupBytes) {
    Lines::unpack(w, p.low[g]);
    Lines::unpack(w + 64, p.low[second + g]);
    unpack_halves(w + Lines::kScales, p.scales[g]);
    if constexpr (Lines::kHasMin) unpack_halves(w + Lines::kMins, p.mins[g]);
  }
}

// What is added to outputs was written by any thread, in rows far apart: fetched while their sums are made. (Inline:
// a compiler takes a function that only fetches for one that does nothing.)
static INSITU_INLINE void prefetch_residual(RowTile t, const Output& y) {
  const Epilogue& e = *y.epilogue;
  if (!e.residual) return;
  const float* at = e.residual + t.first * e.residual_stride + y.first_output;
  for (int r = 0; r < t.rows; r++, at += e.residual_stride) __builtin_prefetch(at), __builtin_prefetch(at + 16);
}

static INSITU_INLINE void start_rows(int rows, float (*sums)[kBlockOutputs]) {
  for (int r = 0; r < rows; r++) fstore(sums[r], fzero()), fstore(sums[r] + 16, fzero());
}

static void finish_rows(RowTile t, const float (*sums)[kBlockOutputs], const Output& y) {
  for (int r = 0; r < t.rows; r++)
    for (int half = 0; half < 2; half++) finish(fload(sums[r] + 16 * half), 16 * half, t.first + r, y);
}

template <bool HasMin, int R>
__attribute__((noinline)) static void add_panel_32(const Panel32& p, int groups, const uint8_t* a,
                                                   float (*sums)[kBlockOutputs]) {
  constexpr int kRecord = R * kRecord32;
  alignas(64) int32_t dots[2][16][16];
  const int turns = groups + groups % 2;  // of each half
  const uint8_t* weights = p.low[0];
  Walk inputs{a, a, kRecord, groups};
  const auto even = [&]() INSITU_INLINE_LAMBDA {
    begin_even(inputs.at, 32, weights);
    weights += 512;
    inputs.advance();
  };
  const auto odd = [&]() INSITU_INLINE_LAMBDA {
    begin_odd(inputs.at, 32, weights);
    weights += 512;
    inputs.advance();
  };
  even();
  odd();
  _tile_stored(0, dots[0], 64);
  for (int half = 0; half < 2; half++) {
    fvec acc[R];
    INSITU_UNROLL for (int r = 0; r < R; r++) acc[r] = fload(sums[r] + 16 * half);
    const uint8_t* record = a + 32 * R;
    const float *scales = p.scales[0] + 16 * half, *mins = p.mins[0] + 16 * half;
    const auto add = [&](int g, int32_t (*products)[16]) INSITU_INLINE_LAMBDA {
      if (is_shifted<R>(record + 12 * R)) [[unlikely]]
        add_shifts<R>(record + 12 * R, line_sums(p.low[half * turns + g]), products);
      add_products<HasMin, R>(products, fload(scales), HasMin ? fload(mins) : fzero(), record, acc);
      record += kRecord, scales += kBlockOutputs, mins += kBlockOutputs;
    };
    for (int g = 0; g < groups; g += 2) {
      even();
      _tile_stored(1, dots[1], 64);
      add(g, dots[0]);
      odd();
      _tile_stored(0, dots[0], 64);
      if (g + 1 < groups) add(g + 1, dots[1]);
    }
    INSITU_UNROLL for (int r = 0; r < R; r++) fstore(sums[r] + 16 * half, acc[r]);
  }
}

// f(R), R a constant, of as many rows as near_equal makes tiles of: no fewer than half of the most.
template <int R = kWideRows, class F>
static INSITU_INLINE void with_rows(int rows, const F& f) {
  if constexpr (R > kWideRows / 2 - 1) {
    if (rows == R) return f(std::integral_constant<int, R>{});
    with_rows<R - 1>(rows, f);
  }
}

// Near-equal panels of at most kPanelInputs inputs, and kPanelTiles tiles: unpack(weights, groups), then for each
// tile add(rows, groups, inputs, ahead, sums), ahead(n) being its share of what is unpacked next, in n parts.
template <int Group, class Unpack, class Add>
static INSITU_INLINE void multiply_panels(const PackedSegment& w, const uint8_t* block, const Activations& x,
                                          const Output& y, const Unpack& unpack, const Add& add) {
  constexpr int kTileInputs = Group < 64 ? Group : 64;
  alignas(64) float sums[kPanelTiles][kWideRows][kBlockOutputs];
  const int tiles = num_row_tiles(x.num_rows, Group);
  const int all_groups = w.k / Group, most = kPanelInputs<Group> / Group, panels = (all_groups + most - 1) / most;
  const size_t group_bytes = w.block_bytes / all_groups, record = quantized_row_bytes(Group, Group);
  const int together = panels == 1 ? tiles : kPanelTiles;  // of one panel no sums wait: all tiles use the same lines
  for (int t0 = 0; t0 < tiles; t0 += together) {
    const int t1 = t0 + together < tiles ? t0 + together : tiles;
    for (int panel = 0; panel < panels; panel++) {
      const RowTile part = near_equal(all_groups, panels, panel);
      const int groups = part.rows, first = part.first;
      unpack(block + first * group_bytes, groups);
      // What is unpacked next follows in memory, be it of the next n-block; its lines are shared out over tiles.
      const uint8_t* next = block + (first + groups) * group_bytes;
      const int lines = static_cast<int>(groups * group_bytes / 64);
      for (int t = t0, configured = 0; t < t1; t++) {
        const RowTile tile = near_equal(x.num_rows, tiles, t);
        if (tile.rows != configured) configure_tiles(configured = tile.rows, kTileInputs);
        const uint8_t* a = x.quantized + tile.first * quantized_row_bytes(x.k, Group) +
                           static_cast<size_t>(first) * tile.rows * record;
        float(*of_tile)[kBlockOutputs] = sums[panels == 1 ? 0 : t - t0];
        if (panel == 0) start_rows(tile.rows, of_tile);
        if (panel == panels - 1) prefetch_residual(tile, y);
        add(tile.rows, groups, a, [&](int parts) { return Ahead::share(next, lines, t, tiles, parts); }, of_tile);
        if (panel == panels - 1) finish_rows(tile, of_tile, y);
      }
    }
  }
}

template <class Lines>
static void multiply_panels_32(const PackedSegment& w, const uint8_t* block, const Activations& x, const Output& y) {
  Panel32 panel;
  multiply_panels<32>(
      w, block, x, y, [&](const uint8_t* weights, int groups) { unpack_panel<Lines>(weights, groups, panel); },
      [&](int rows, int groups, const uint8_t* a, const auto& ahead, float(*sums)[kBlockOutputs]) {
        ahead(1).group();
        with_rows(rows, [&](auto r) { add_panel_32<Lines::kHasMin, r>(panel, groups, a, sums); });
      });
}

// --- the choice between the two ---------------------------------------------------------------------------

template <class Lines>
static void multiply_wide_32(const PackedSegment& w, const uint8_t* block, const Activations& x, const Output& y) {
  const int tiles = num_row_tiles(x.num_rows, 32), lines = static_cast<int>(w.block_bytes / 64);
  if (tiles > kStreamTiles) return multiply_panels_32<Lines>(w, block, x, y);
  for (int t = 0, configured = 0; t < tiles; t++) {
    const RowTile tile = row_tile(x.num_rows, 32, t);
    if (tile.rows != configured) configure_tiles(configured = tile.rows, 32);
    const Ahead ahead = Ahead::share(block + w.block_bytes, lines, t, tiles, w.k / 32);
    const uint8_t* a = x.quantized + tile.first * quantized_row_bytes(x.k, 32);
    with_rows(tile.rows, [&](auto r) { multiply_tile_32<Lines, r>(block, w.k, a, tile.first, ahead, y); });
  }
}

__attribute__((noinline)) static void multiply_wide_32(const PackedSegment& w, const uint8_t* block,
                                                       const Activations& x, const Output& y) {
  switch (w.type) {
    case BlockType::Q4_0: multiply_wide_32<NibbleLines<false>>(w, block, x, y); break;
    case BlockType::Q4_1: multiply_wide_32<NibbleLines<true>>(w, block, x, y); break;
    case BlockType::Q5_0: multiply_wide_32<FifthLines<false>>(w, block, x, y); break;
    case BlockType::Q5_1: multiply_wide_32<FifthLines<true>>(w, block, x, y); break;
    case BlockType::Q8_0: multiply_wide_32<ByteLines>(w, block, x, y); break;
    default: break;
  }
}

}  // namespace insitu::INSITU_NS
