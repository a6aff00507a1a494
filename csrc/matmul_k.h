// K types but Q6_K (matmul.h): Q4_K, Q5_K, Q2_K, and Q8_K16, which finer types are expanded to. Integer
// sub-scales, one float scale per 256 inputs.
// Not here: byte layouts (pack.h), tiles. Included by matmul.h alone, between its types and its tiles.
// Always true: the sum over 256 inputs is one exact int32, then fma for the scale, then for the minimum.
#pragma once
#include "kernels.h"
#include "matmul_dot.h"
#include "quantize.h"

namespace insitu::INSITU_NS {

// Eight sub-groups of 32 inputs, each with an integer scale and minimum; a codec unpacks one of them.
template <class Codec>
struct Minimum32s {
  static constexpr size_t kScales = 8 * Codec::kSubBytes, kMins = kScales + 256, kSupers = kMins + 256;
  static constexpr size_t kGroupBytes = kSupers + 128;

  template <int R>
  static INSITU_INLINE void run(const uint8_t* w, int first, int k, const uint8_t* a, Ahead ahead, Sums<R>& acc) {
    for (int g = 0; g < k / 256; g++, w += kGroupBytes, a += R * kRecord256) {
      ivec total[R][kTogether];
      INSITU_UNROLL for (int r = 0; r < R; r++)
        INSITU_UNROLL for (int v = 0; v < kTogether; v++) total[r][v] = izero();
      for (int s = 0; s < 8; s++) {
        ahead.group();
        Dot<Codec::kMost> d[R][kTogether];
        INSITU_UNROLL for (int r = 0; r < R; r++)
          INSITU_UNROLL for (int v = 0; v < kTogether; v++) d[r][v].start(0);
        Codec::template dot<R>(w + Codec::kSubBytes * s + 4 * first, a + 32 * s, d);
        INSITU_UNROLL for (int v = 0; v < kTogether; v++) {
          const ivec scale = widen_u8(w + kScales + 32 * s + first + kLanes * v);
          INSITU_UNROLL for (int r = 0; r < R; r++) total[r][v] = sum(total[r][v], product(d[r][v].finish(0), scale));
        }
      }
      const uint8_t *scales = a + 256 * R, *sums = scales + 4 * R;
      INSITU_UNROLL for (int v = 0; v < kTogether; v++) {
        const int o = first + kLanes * v;
        const fvec super = fload_f16(w + kSupers + 2 * o), super_min = fload_f16(w + kSupers + 64 + 2 * o);
        ivec mins[4];
        INSITU_UNROLL for (int p = 0; p < 4; p++) mins[p] = widen_pairs(w + kMins + 64 * p + 2 * o);
        INSITU_UNROLL for (int r = 0; r < R; r++) {
          ivec low = izero();
          INSITU_UNROLL for (int p = 0; p < 4; p++)
            low = add_pairs(low, mins[p], isame(four_bytes(sums + 16 * r + 4 * p)));
          const fvec as = fsame(float_at(scales + 4 * r));
          acc[r][v] = ffma(fconvert(total[r][v]), fmul(super, as), acc[r][v]);
          acc[r][v] = ffnma(fconvert(low), fmul(super_min, as), acc[r][v]);
        }
      }
    }
  }
};

struct Nibbles256 {
  static constexpr int kMost = 15;
  static constexpr size_t kSubBytes = 512;

  template <int R>  // as Nibbles32, but rows lie 256 bytes apart
  static INSITU_INLINE void dot(const uint8_t* w, const uint8_t* a, Dot<15> (&d)[R][kTogether]) {
    INSITU_UNROLL for (int j = 0; j < 4; j++) {
      INSITU_UNROLL for (int v = 0; v < kTogether; v++) {
        const ivec p = load_bytes(w + 128 * j + 4 * kLanes * v), low = low_nibbles(p), high = high_nibbles(p);
        INSITU_UNROLL for (int r = 0; r < R; r++) {
          d[r][v].add(low, isame(four_bytes(a + 256 * r + 8 * j)), 2 * j);
          d[r][v].add(high, isame(four_bytes(a + 256 * r + 8 * j + 4)), 2 * j + 1);
        }
      }
    }
  }
};

struct Fifths256 {
  static constexpr int kMost = 31;
  static constexpr size_t kSubBytes = 640;

  template <int R>  // as Fifths32, but rows lie 256 bytes apart
  static INSITU_INLINE void dot(const uint8_t* w, const uint8_t* a, Dot<31> (&d)[R][kTogether]) {
    ivec fifths[kTogether];
    INSITU_UNROLL for (int v = 0; v < kTogether; v++) fifths[v] = load_bytes(w + 512 + 4 * kLanes * v);
    unrolled<8>([&](auto j) INSITU_INLINE_LAMBDA {
      INSITU_UNROLL for (int v = 0; v < kTogether; v++) {
        const ivec p = with_bits<4 - j, 0x10>(nibbles<j % 2>(load_bytes(w + 128 * (j / 2) + 4 * kLanes * v)), fifths[v]);
        INSITU_UNROLL for (int r = 0; r < R; r++) d[r][v].add(p, isame(four_bytes(a + 256 * r + 4 * j)), j);
      }
    });
  }
};

using Q4K = Minimum32s<Nibbles256>;
using Q5K = Minimum32s<Fifths256>;

struct Q2K {
  static constexpr size_t kGroupBytes = 3200, kScales = 2048, kMins = 2560, kSupers = 3072;

  template <int R>
  static INSITU_INLINE void run(const uint8_t* w, int first, int k, const uint8_t* a, Ahead ahead, Sums<R>& acc) {
    for (int g = 0; g < k / 256; g++, w += kGroupBytes, a += R * kRecord256) {
      const uint8_t *scales = a + 256 * R, *sums = scales + 20 * R;  // -32 times each sum of 16 inputs
      ivec total[R][kTogether], low[R][kTogether];
      INSITU_UNROLL for (int r = 0; r < R; r++)
        INSITU_UNROLL for (int v = 0; v < kTogether; v++) total[r][v] = low[r][v] = izero();
      for (int s = 0; s < 16; s++) {
        if (s % 2 == 0) ahead.group();
        INSITU_UNROLL for (int v = 0; v < kTogether; v++) {
          const int o = first + kLanes * v;
          const ivec four = load_bytes(w + 128 * s + 4 * o);
          const ivec scale = widen_u8(w + kScales + 32 * s + o), min = widen_u8(w + kMins + 32 * s + o);
          INSITU_UNROLL for (int r = 0; r < R; r++) {
            Dot<3> d;
            d.start(0);
            unrolled<4>([&](auto j) INSITU_INLINE_LAMBDA {
              d.add(with_bits<-2 * j, 3>(izero(), four), isame(four_bytes(a + 256 * r + 16 * s + 4 * j)), j);
            });
            total[r][v] = sum(total[r][v], product(d.finish(0), scale));
            low[r][v] = sum(low[r][v], product(min, isame(four_bytes(sums + 64 * r + 4 * s))));
          }
        }
      }
      INSITU_UNROLL for (int v = 0; v < kTogether; v++) {
        const int o = first + kLanes * v;
        const fvec super = fload_f16(w + kSupers + 2 * o), super_min = fload_f16(w + kSupers + 64 + 2 * o);
        INSITU_UNROLL for (int r = 0; r < R; r++) {
          const fvec as = fsame(float_at(scales + 4 * r));
          acc[r][v] = ffma(fconvert(total[r][v]), fmul(super, as), acc[r][v]);
          // Exact: below 2^24, and a power of two.
          const fvec minimum = fmul(fconvert(low[r][v]), fsame(0.03125f));
          acc[r][v] = ffma(minimum, fmul(super_min, as), acc[r][v]);
        }
      }
    }
  }
};

struct Q8K16 {
  static constexpr size_t kGroupBytes = 8832, kScales = 8192, kSupers = 8704;

  template <int R>
  static INSITU_INLINE void run(const uint8_t* w, int first, int k, const uint8_t* a, Ahead ahead, Sums<R>& acc) {
    for (int g = 0; g < k / 256; g++, w += kGroupBytes, a += R * kRecord256) {
      const uint8_t *scales = a + 256 * R, *offsets = scales + 20 * R;
      ivec total[R][kTogether];
      INSITU_UNROLL for (int r = 0; r < R; r++)
        INSITU_UNROLL for (int v = 0; v < kTogether; v++) total[r][v] = izero();
      for (int s = 0; s < 16; s++) {
        if (s % 2 == 0) ahead.group();
        Dot<255> d[R][kTogether];
        int32_t offset[R];
        INSITU_UNROLL for (int r = 0; r < R; r++) {
          offset[r] = 4 * four_bytes(offsets + 64 * r + 4 * s);
          INSITU_UNROLL for (int v = 0; v < kTogether; v++) d[r][v].start(offset[r]);
        }
        INSITU_UNROLL for (int j = 0; j < 4; j++)
          INSITU_UNROLL for (int v = 0; v < kTogether; v++) {
            const ivec p = load_bytes(w + 512 * s + 128 * j + 4 * (first + kLanes * v));
            INSITU_UNROLL for (int r = 0; r < R; r++) d[r][v].add(p, isame(four_bytes(a + 256 * r + 16 * s + 4 * j)), j);
          }
        INSITU_UNROLL for (int v = 0; v < kTogether; v++) {
          const ivec scale = widen_i8(w + kScales + 32 * s + first + kLanes * v);
          INSITU_UNROLL for (int r = 0; r < R; r++)
            total[r][v] = sum(total[r][v], product(d[r][v].finish(offset[r]), scale));
        }
      }
      INSITU_UNROLL for (int v = 0; v < kTogether; v++) {
        const fvec super = fload(w + kSupers + 4 * (first + kLanes * v));
        INSITU_UNROLL for (int r = 0; r < R; r++)
          acc[r][v] = ffma(fconvert(total[r][v]), fmul(super, fsame(float_at(scales + 4 * r))), acc[r][v]);
      }
    }
  }
};

}  // namespace insitu::INSITU_NS
