// y = W x for one n-block of 32 outputs and any number of rows, for every block type.
// Not here: byte layouts (pack.h, quantize.h draw them), threads, or which n-block.
// Truth: kernels/reference.py after quantize_rows. Always true: the float order of an output is its own
// chain over k, so neither the number of rows, nor the tile's height, nor the instruction set moves a bit.
#pragma once
#include "kernels.h"
#include "matmul_dot.h"
#include "quantize.h"

namespace insitu::INSITU_NS {

constexpr int kVectors = kBlockOutputs / kLanes;

// The weights that come next, fetched into the second cache while the present ones are multiplied. A load that
// waits keeps in the scheduler all that depends on it, so that a format with more to do for a line has fewer
// lines under way; a prefetch keeps nothing. Lines are taken from four places at a time: a core's own prefetcher
// follows a page each, and one page alone is less than memory can give.
struct Ahead {
  const uint8_t* at;
  ptrdiff_t stride;     // between streams
  int left;             // fours of lines
  int step, due;        // fours a group and due so far, in 1/256

  static constexpr int kStreams = 4, kWhole = 256;

  // Part `part` of the lines of what begins at `next`, a few in each of `groups` groups.
  static Ahead share(const uint8_t* next, int lines, int part, int parts, int groups) {
    const int fours = (lines + kStreams - 1) / kStreams;
    const RowTile mine = near_equal(fours, parts, part);
    return {next + ptrdiff_t{64} * mine.first, ptrdiff_t{64} * fours, mine.rows,
            (kWhole * mine.rows + groups - 1) / groups, kWhole - 1};
  }

  INSITU_INLINE void group() {
    due += step;
    const int count = due / kWhole < left ? due / kWhole : left;
    due %= kWhole;
    left -= count;
    for (int i = 0; i < count; i++, at += 64)
      INSITU_UNROLL for (int stream = 0; stream < kStreams; stream++) __builtin_prefetch(at + stream * stride, 0, 2);
  }
};

template <int R>
using Sums = fvec[R][kTogether];

// --- types with one float scale per 32 inputs ------------------------------------------------------

// Four lines of nibbles: Q4_0 (offset 8) and Q4_1 (a minimum).
template <bool HasMin>
struct Nibbles32 {
  static constexpr size_t kGroupBytes = HasMin ? 640 : 576;
  static constexpr size_t kScales = 512;
  static constexpr int kOffset = HasMin ? 0 : -8;  // added to each integer
  static constexpr bool kHasMin = HasMin;
  static constexpr int kMaxQ = 15;

  template <int R>
  static INSITU_INLINE void dot(const uint8_t* w, const uint8_t* a, Dot<kMaxQ> (&d)[R][kTogether]) {
    INSITU_UNROLL for (int j = 0; j < 4; j++) {
      ivec low[kTogether], high[kTogether];
      INSITU_UNROLL for (int v = 0; v < kTogether; v++) {
        const ivec p = load_bytes(w + 128 * j + 4 * kLanes * v);
        low[v] = low_nibbles(p);
        high[v] = high_nibbles(p);
      }
      INSITU_UNROLL for (int r = 0; r < R; r++) {
        const ivec x = isame(four_bytes(a + 32 * r + 8 * j));
        INSITU_UNROLL for (int v = 0; v < kTogether; v++) d[r][v].add(low[v], x, 2 * j);
      }
      INSITU_UNROLL for (int r = 0; r < R; r++) {
        const ivec x = isame(four_bytes(a + 32 * r + 8 * j + 4));
        INSITU_UNROLL for (int v = 0; v < kTogether; v++) d[r][v].add(high[v], x, 2 * j + 1);
      }
    }
  }
};

// Eight lines of bytes: Q8_0.
struct Bytes32 {
  static constexpr size_t kGroupBytes = 1088;
  static constexpr size_t kScales = 1024;
  static constexpr int kOffset = -128;
  static constexpr bool kHasMin = false;
  static constexpr int kMaxQ = 255;

  template <int R>
  static INSITU_INLINE void dot(const uint8_t* w, const uint8_t* a, Dot<kMaxQ> (&d)[R][kTogether]) {
    INSITU_UNROLL for (int j = 0; j < 8; j++) {
      ivec p[kTogether];
      INSITU_UNROLL for (int v = 0; v < kTogether; v++) p[v] = load_bytes(w + 128 * j + 4 * kLanes * v);
      INSITU_UNROLL for (int r = 0; r < R; r++) {
        const ivec x = isame(four_bytes(a + 32 * r + 4 * j));
        INSITU_UNROLL for (int v = 0; v < kTogether; v++) d[r][v].add(p[v], x, j);
      }
    }
  }
};

// Four lines of nibbles and one of fifth bits: Q5_0 (offset 16) and Q5_1 (a minimum).
template <bool HasMin>
struct Fifths32 {
  static constexpr size_t kGroupBytes = HasMin ? 768 : 704;
  static constexpr size_t kScales = 640;
  static constexpr int kOffset = HasMin ? 0 : -16;
  static constexpr bool kHasMin = HasMin;
  static constexpr int kMaxQ = 31;

  template <int R>
  static INSITU_INLINE void dot(const uint8_t* w, const uint8_t* a, Dot<kMaxQ> (&d)[R][kTogether]) {
    ivec fifths[kTogether];
    INSITU_UNROLL for (int v = 0; v < kTogether; v++) fifths[v] = load_bytes(w + 512 + 4 * kLanes * v);
    unrolled<8>([&](auto j) INSITU_INLINE_LAMBDA {
      ivec p[kTogether];
      INSITU_UNROLL for (int v = 0; v < kTogether; v++)
        p[v] = with_bits<4 - j, 0x10>(nibbles<j % 2>(load_bytes(w + 128 * (j / 2) + 4 * kLanes * v)), fifths[v]);
      INSITU_UNROLL for (int r = 0; r < R; r++) {
        const ivec x = isame(four_bytes(a + 32 * r + 4 * j));
        INSITU_UNROLL for (int v = 0; v < kTogether; v++) d[r][v].add(p[v], x, j);
      }
    });
  }
};

constexpr uint8_t kOnes[32] = {1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1,
                               1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1};

template <class Codec>
struct Scaled32 {
  static constexpr size_t kGroupBytes = Codec::kGroupBytes;
  static constexpr int kInRecord = Codec::kOffset == -128 ? -128 : -8, kTimes = Codec::kOffset / kInRecord;

  // dots += shift * the sum of each output's weights, both within 16 bits.
  template <int R>
  static INSITU_INLINE void add_shifts(const uint8_t* w, const uint8_t* shifts, ivec (&dots)[R][kTogether]) {
    constexpr int32_t offset = 32 * Codec::kOffset;
    __asm__("" : "+r"(w));  // lest what was unpacked for the rows be kept for this rare case
    Dot<Codec::kMaxQ> d[1][kTogether];
    INSITU_UNROLL for (int v = 0; v < kTogether; v++) d[0][v].start(offset);
    Codec::template dot<1>(w, kOnes, d);
    INSITU_UNROLL for (int v = 0; v < kTogether; v++) {
      const ivec weights = d[0][v].finish(offset);
      INSITU_UNROLL for (int r = 0; r < R; r++)
        dots[r][v] = add_pairs(dots[r][v], weights, isame(static_cast<uint16_t>(static_cast<int8_t>(shifts[r]))));
    }
  }

  // acc = fma(float(idot), ws * as, acc), then with minima acc = fma(m, as * float(isum), acc); idot and isum are of
  // the inputs' integers with their shift.
  template <int R>
  static INSITU_INLINE void run(const uint8_t* w, int first, int k, const uint8_t* a, Ahead ahead, Sums<R>& acc) {
    for (int g = 0; g < k / 32; g++, w += kGroupBytes, a += R * kRecord32) {
      ahead.group();
      const uint8_t *scales = a + 32 * R, *offsets = scales + (kInRecord == -8 ? 4 : 8) * R;
      const uint8_t *shifts = scales + 12 * R, *sums = scales + 16 * R;
      Dot<Codec::kMaxQ> d[R][kTogether];
      int32_t offset[R];
      INSITU_UNROLL for (int r = 0; r < R; r++) {
        offset[r] = kTimes == 0 ? 0 : kTimes * four_bytes(offsets + 4 * r);
        INSITU_UNROLL for (int v = 0; v < kTogether; v++) d[r][v].start(offset[r]);
      }
      Codec::template dot<R>(w + 4 * first, a, d);
      ivec dots[R][kTogether];
      INSITU_UNROLL for (int r = 0; r < R; r++)
        INSITU_UNROLL for (int v = 0; v < kTogether; v++) dots[r][v] = d[r][v].finish(offset[r]);
      if (is_shifted<R>(shifts)) [[unlikely]] add_shifts<R>(w + 4 * first, shifts, dots);
      fvec ws[kTogether], wm[kTogether];
      INSITU_UNROLL for (int v = 0; v < kTogether; v++) {
        ws[v] = fload_f16(w + Codec::kScales + 2 * (first + kLanes * v));
        if constexpr (Codec::kHasMin) wm[v] = fload_f16(w + Codec::kScales + 64 + 2 * (first + kLanes * v));
      }
      INSITU_UNROLL for (int r = 0; r < R; r++) {
        const fvec as = fsame(float_at(scales + 4 * r));
        INSITU_UNROLL for (int v = 0; v < kTogether; v++) {
          acc[r][v] = ffma(fconvert(dots[r][v]), fmul(ws[v], as), acc[r][v]);
          if constexpr (Codec::kHasMin) acc[r][v] = ffma(wm[v], fsame(float_at(sums + 4 * r)), acc[r][v]);
        }
      }
    }
  }
};

// --- K types: integer sub-scales, one float scale per 256 inputs ------------------------------------

struct Q6K {
  static constexpr size_t kGroupBytes = 6720, kScales = 6144, kSupers = 6656;

  template <int R>
  static INSITU_INLINE void run(const uint8_t* w, int first, int k, const uint8_t* a, Ahead ahead, Sums<R>& acc) {
    for (int g = 0; g < k / 256; g++, w += kGroupBytes, a += R * kRecord256) {
      const uint8_t *scales = a + 256 * R, *offsets = scales + 20 * R;
      ivec total[R][kTogether];
      INSITU_UNROLL for (int r = 0; r < R; r++)
        INSITU_UNROLL for (int v = 0; v < kTogether; v++) total[r][v] = izero();
      for (int s = 0; s < 16; s++) {  // sub-groups of 16 inputs
        if (s % 2 == 0) ahead.group();
        Dot<63> d[R][kTogether];
        int32_t offset[R];
        INSITU_UNROLL for (int r = 0; r < R; r++) {
          offset[r] = four_bytes(offsets + 64 * r + 4 * s);
          INSITU_UNROLL for (int v = 0; v < kTogether; v++) d[r][v].start(offset[r]);
        }
        const uint8_t* at = w + 768 * (s / 2) + 4 * first;
        ivec tops[kTogether];
        INSITU_UNROLL for (int v = 0; v < kTogether; v++)
          tops[v] = load_bytes(at + 512 + 128 * (s % 2) + 4 * kLanes * v);
        at += 256 * (s % 2);
        unrolled<4>([&](auto j) INSITU_INLINE_LAMBDA {
          ivec p[kTogether];
          INSITU_UNROLL for (int v = 0; v < kTogether; v++)
            p[v] = with_bits<4 - 2 * j, 0x30>(nibbles<j % 2>(load_bytes(at + 128 * (j / 2) + 4 * kLanes * v)), tops[v]);
          INSITU_UNROLL for (int r = 0; r < R; r++) {
            const ivec x = isame(four_bytes(a + 256 * r + 16 * s + 4 * j));
            INSITU_UNROLL for (int v = 0; v < kTogether; v++) d[r][v].add(p[v], x, j);
          }
        });
        INSITU_UNROLL for (int v = 0; v < kTogether; v++) {
          const ivec scale = widen_i8(w + kScales + 32 * s + first + kLanes * v);
          INSITU_UNROLL for (int r = 0; r < R; r++)
            total[r][v] = sum(total[r][v], product(d[r][v].finish(offset[r]), scale));
        }
      }
      INSITU_UNROLL for (int v = 0; v < kTogether; v++) {
        const fvec super = fload_f16(w + kSupers + 2 * (first + kLanes * v));
        INSITU_UNROLL for (int r = 0; r < R; r++)
          acc[r][v] = ffma(fconvert(total[r][v]), fmul(super, fsame(float_at(scales + 4 * r))), acc[r][v]);
      }
    }
  }
};

}  // namespace insitu::INSITU_NS
#include "matmul_k.h"
namespace insitu::INSITU_NS {

// --- float weights: acc = fma(w[k], x[k], acc) --------------------------------------------------------

template <BlockType Type>
struct Floats {
  static constexpr size_t kInputBytes = Type == BlockType::F32 ? 128 : 64;  // 32 outputs of one input

  static INSITU_INLINE fvec weights(const uint8_t* w, int o) {
    if constexpr (Type == BlockType::F32) return fload(w + 4 * o);
    else if constexpr (Type == BlockType::F16) return fload_f16(w + 2 * o);
    else return fload_bf16(w + 2 * o);
  }

  template <int R>
  static INSITU_INLINE void run(const uint8_t* w, int first, int k, const float* x, ptrdiff_t stride, Ahead ahead,
                                Sums<R>& acc) {
    for (int i = 0; i < k; i++, w += kInputBytes) {
      if (i % 32 == 0) ahead.group();
      INSITU_UNROLL for (int v = 0; v < kTogether; v++) {
        const fvec p = weights(w, first + kLanes * v);
        INSITU_UNROLL for (int r = 0; r < R; r++) acc[r][v] = ffma(p, fsame(x[r * stride + i]), acc[r][v]);
      }
    }
  }
};

// --- tiles ---------------------------------------------------------------------------------------------

struct Output {
  const Epilogue* epilogue;
  float* out;
  ptrdiff_t stride;
  int first_output, num_outputs;  // of this n-block within the segment
};

// The last n-block of a segment may hold fewer outputs than a vector. Kept apart: it is rare and long.
__attribute__((noinline)) static void finish_ragged(const float* sums, int n, int count, int row, const Output& y) {
  const Epilogue& e = *y.epilogue;
  for (int i = 0; i < count; i++) {
    float s = sums[i];
    if (e.bias) s = s + e.bias[n + i];
    if (e.residual) s = s + e.residual[row * e.residual_stride + n + i];
    y.out[row * y.stride + n + i] = s;
  }
}

static INSITU_INLINE void finish(fvec sums, int lane, int row, const Output& y) {
  const Epilogue& e = *y.epilogue;
  const int n = y.first_output + lane, count = y.num_outputs - lane;
  if (count >= kLanes) {
    if (e.bias) sums = fadd(sums, fload(e.bias + n));
    if (e.residual) sums = fadd(sums, fload(e.residual + row * e.residual_stride + n));
    fstore(y.out + row * y.stride + n, sums);
    return;
  }
  float lanes[kLanes];
  fstore(lanes, sums);
  finish_ragged(lanes, n, count, row, y);
}

#if defined(INSITU_AMX)
}  // namespace insitu::INSITU_NS
#include "matmul_amx.h"
namespace insitu::INSITU_NS {
#else
static void multiply_wide(const PackedSegment&, const uint8_t*, const Activations&, const Output&) {}
static void end_matmul() {}
#endif

// One n-block by R rows from `first_row`; `inputs` are the tile's quantised records or float rows.
template <class Codec, int R, class... Inputs>
__attribute__((noinline)) static void multiply_tile(const uint8_t* w, int k, int first_row, Ahead ahead,
                                                    const Output& y, Inputs... inputs) {
  for (int v0 = 0; v0 < kVectors; v0 += kTogether) {
    Sums<R> acc;
    INSITU_UNROLL for (int r = 0; r < R; r++)
      INSITU_UNROLL for (int v = 0; v < kTogether; v++) acc[r][v] = fzero();
    Codec::template run<R>(w, v0 * kLanes, k, inputs..., ahead, acc);
    INSITU_UNROLL for (int r = 0; r < R; r++)
      INSITU_UNROLL for (int v = 0; v < kTogether; v++) finish(acc[r][v], (v0 + v) * kLanes, first_row + r, y);
    ahead.left = 0;
  }
}

template <class Codec, class... Inputs>
static void multiply_rows(int rows, const uint8_t* w, int k, int first_row, Ahead ahead, const Output& y,
                          Inputs... inputs) {
  static_assert(kRegisterRows == 6);
  switch (rows) {
    case 1: return multiply_tile<Codec, 1>(w, k, first_row, ahead, y, inputs...);
    case 2: return multiply_tile<Codec, 2>(w, k, first_row, ahead, y, inputs...);
    case 3: return multiply_tile<Codec, 3>(w, k, first_row, ahead, y, inputs...);
    case 4: return multiply_tile<Codec, 4>(w, k, first_row, ahead, y, inputs...);
    case 5: return multiply_tile<Codec, 5>(w, k, first_row, ahead, y, inputs...);
    case 6: return multiply_tile<Codec, 6>(w, k, first_row, ahead, y, inputs...);
    default: return;
  }
}

static void multiply_one_tile(const PackedSegment& s, const uint8_t* w, RowTile t, const Activations& x, Ahead ahead,
                              const Output& y) {
  if (x.group == 0) {
    const float* rows = x.rows + t.first * x.row_stride;
    switch (s.type) {
      case BlockType::F32:
        return multiply_rows<Floats<BlockType::F32>>(t.rows, w, s.k, t.first, ahead, y, rows, x.row_stride);
      case BlockType::F16:
        return multiply_rows<Floats<BlockType::F16>>(t.rows, w, s.k, t.first, ahead, y, rows, x.row_stride);
      default: return multiply_rows<Floats<BlockType::BF16>>(t.rows, w, s.k, t.first, ahead, y, rows, x.row_stride);
    }
  }
  const uint8_t* a = x.quantized + t.first * quantized_row_bytes(x.k, x.group);
  switch (s.type) {
    case BlockType::Q4_0: return multiply_rows<Scaled32<Nibbles32<false>>>(t.rows, w, s.k, t.first, ahead, y, a);
    case BlockType::Q4_1: return multiply_rows<Scaled32<Nibbles32<true>>>(t.rows, w, s.k, t.first, ahead, y, a);
    case BlockType::Q5_0: return multiply_rows<Scaled32<Fifths32<false>>>(t.rows, w, s.k, t.first, ahead, y, a);
    case BlockType::Q5_1: return multiply_rows<Scaled32<Fifths32<true>>>(t.rows, w, s.k, t.first, ahead, y, a);
    case BlockType::Q8_0: return multiply_rows<Scaled32<Bytes32>>(t.rows, w, s.k, t.first, ahead, y, a);
    case BlockType::Q4_K: return multiply_rows<Q4K>(t.rows, w, s.k, t.first, ahead, y, a);
    case BlockType::Q6_K: return multiply_rows<Q6K>(t.rows, w, s.k, t.first, ahead, y, a);
    case BlockType::Q2_K: return multiply_rows<Q2K>(t.rows, w, s.k, t.first, ahead, y, a);
    case BlockType::Q5_K: return multiply_rows<Q5K>(t.rows, w, s.k, t.first, ahead, y, a);
    case BlockType::Q8_K16: return multiply_rows<Q8K16>(t.rows, w, s.k, t.first, ahead, y, a);
    default: return;
  }
}

static void matmul_block(const PackedSegment& w, int n_block, const Activations& x, const Epilogue& e, float* out,
                         ptrdiff_t out_stride) {
  const uint8_t* block = w.data + n_block * w.block_bytes;
  const int first = n_block * kBlockOutputs, left = w.n - first;
  const Output y{&e, out, out_stride, first, left < kBlockOutputs ? left : kBlockOutputs};
  if (x.group && is_wide(x.num_rows, x.group)) return multiply_wide(w, block, x, y);
  const int tiles = (x.num_rows + kRegisterRows - 1) / kRegisterRows;
  const int lines = static_cast<int>(w.block_bytes / 64), groups = (w.k + 31) / 32;
  for (int t = 0; t < tiles; t++) {
    const Ahead ahead = Ahead::share(block + w.block_bytes, lines, t, tiles, groups);
    multiply_one_tile(w, block, near_equal(x.num_rows, tiles, t), x, ahead, y);
  }
}

}  // namespace insitu::INSITU_NS
