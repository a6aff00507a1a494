// What matmul.h needs of an instruction set: a vector of outputs and exact dot products of bytes.
// Not here: loops over inputs or rows. Lanes are outputs (16, or 8 on AVX2 and NEON), never inputs.
// Always true: a Dot's result is the exact int32 sum, whichever instructions made it.
//
//   Dot<MaxQ> d; d.start(); d.add(weights, inputs, j) for j = 0, 1, ...; d.finish(offset)
//   weights: four unsigned bytes <= MaxQ a lane; inputs: the same four int8 in every lane.
#pragma once
#include <utility>

#include "simd.h"

namespace insitu::INSITU_NS {

static INSITU_INLINE int32_t four_bytes(const void* p) {
  int32_t w;
  __builtin_memcpy(&w, p, sizeof w);
  return w;
}
static INSITU_INLINE float float_at(const void* p) {
  float x;
  __builtin_memcpy(&x, p, sizeof x);
  return x;
}

// f(0), f(1), ... f(N - 1), each argument a constant: for shifts by immediates.
template <int... I, class F>
static INSITU_INLINE void unrolled_over(std::integer_sequence<int, I...>, const F& f) {
  (f(std::integral_constant<int, I>{}), ...);
}
template <int N, class F>
static INSITU_INLINE void unrolled(const F& f) { unrolled_over(std::make_integer_sequence<int, N>{}, f); }

#if INSITU_SIMD_BITS == 512

constexpr int kLanes = 16, kTogether = 2;  // outputs a vector; vectors of an n-block handled at once
using fvec = __m512;
using ivec = __m512i;

static INSITU_INLINE fvec fzero() { return _mm512_setzero_ps(); }
static INSITU_INLINE ivec izero() { return _mm512_setzero_si512(); }
static INSITU_INLINE fvec fsame(float x) { return _mm512_set1_ps(x); }
static INSITU_INLINE ivec isame(int32_t x) { return _mm512_set1_epi32(x); }
static INSITU_INLINE fvec fmul(fvec a, fvec b) { return _mm512_mul_ps(a, b); }
static INSITU_INLINE fvec fadd(fvec a, fvec b) { return _mm512_add_ps(a, b); }
static INSITU_INLINE fvec ffma(fvec a, fvec b, fvec c) { return _mm512_fmadd_ps(a, b, c); }
static INSITU_INLINE fvec ffnma(fvec a, fvec b, fvec c) { return _mm512_fnmadd_ps(a, b, c); }
static INSITU_INLINE fvec fconvert(ivec a) { return _mm512_cvtepi32_ps(a); }
static INSITU_INLINE ivec sum(ivec a, ivec b) { return _mm512_add_epi32(a, b); }
static INSITU_INLINE ivec product(ivec a, ivec b) { return _mm512_mullo_epi32(a, b); }
static INSITU_INLINE fvec fload(const void* p) { return _mm512_loadu_ps(p); }
static INSITU_INLINE void fstore(float* p, fvec a) { _mm512_storeu_ps(p, a); }
static INSITU_INLINE fvec fload_f16(const void* p) {
  return _mm512_cvtph_ps(_mm256_loadu_si256(static_cast<const __m256i*>(p)));
}
static INSITU_INLINE fvec fload_bf16(const void* p) {
  const __m512i x = _mm512_cvtepu16_epi32(_mm256_loadu_si256(static_cast<const __m256i*>(p)));
  return _mm512_castsi512_ps(_mm512_slli_epi32(x, 16));
}
static INSITU_INLINE ivec load_bytes(const void* p) { return _mm512_loadu_si512(p); }
static INSITU_INLINE ivec widen_u8(const uint8_t* p) {
  return _mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
}
static INSITU_INLINE ivec widen_i8(const uint8_t* p) {
  return _mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
}
static INSITU_INLINE ivec low_nibbles(ivec x) { return _mm512_and_si512(x, _mm512_set1_epi8(15)); }
static INSITU_INLINE ivec high_nibbles(ivec x) {
  return _mm512_and_si512(_mm512_srli_epi16(x, 4), _mm512_set1_epi8(15));
}
// low | (high << Left & Mask) in every byte; Left < 0 shifts right. Mask takes only bits of that byte.
template <int Left, int Mask>
static INSITU_INLINE ivec with_bits(ivec low, ivec high) {
  const ivec moved = Left >= 0 ? _mm512_slli_epi16(high, Left >= 0 ? Left : 0) : _mm512_srli_epi16(high, Left < 0 ? -Left : 0);
  return _mm512_ternarylogic_epi32(low, moved, _mm512_set1_epi8(Mask), 0xf8);
}
// Pairs of u8 to pairs of int16, and c + a0*b0 + a1*b1 of such pairs.
static INSITU_INLINE ivec widen_pairs(const uint8_t* p) {
  return _mm512_cvtepu8_epi16(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
}
static INSITU_INLINE ivec add_pairs(ivec c, ivec a, ivec b) { return _mm512_add_epi32(c, _mm512_madd_epi16(a, b)); }
static INSITU_INLINE ivec multiply_bytes(ivec w, ivec x) { return _mm512_maddubs_epi16(w, x); }
static INSITU_INLINE ivec add_words(ivec a, ivec b) { return _mm512_add_epi16(a, b); }
static INSITU_INLINE ivec sum_words(ivec a) { return _mm512_madd_epi16(a, _mm512_set1_epi16(1)); }
static INSITU_INLINE ivec times_16(ivec a) { return _mm512_slli_epi32(a, 4); }
#if defined(INSITU_VNNI)
static INSITU_INLINE ivec add_dots(ivec c, ivec w, ivec x) { return _mm512_dpbusd_epi32(c, w, x); }
#endif

#elif INSITU_SIMD_BITS == 256

constexpr int kLanes = 8, kTogether = 1;
using fvec = __m256;
using ivec = __m256i;

static INSITU_INLINE fvec fzero() { return _mm256_setzero_ps(); }
static INSITU_INLINE ivec izero() { return _mm256_setzero_si256(); }
static INSITU_INLINE fvec fsame(float x) { return _mm256_set1_ps(x); }
static INSITU_INLINE ivec isame(int32_t x) { return _mm256_set1_epi32(x); }
static INSITU_INLINE fvec fmul(fvec a, fvec b) { return _mm256_mul_ps(a, b); }
static INSITU_INLINE fvec fadd(fvec a, fvec b) { return _mm256_add_ps(a, b); }
static INSITU_INLINE fvec ffma(fvec a, fvec b, fvec c) { return _mm256_fmadd_ps(a, b, c); }
static INSITU_INLINE fvec ffnma(fvec a, fvec b, fvec c) { return _mm256_fnmadd_ps(a, b, c); }
static INSITU_INLINE fvec fconvert(ivec a) { return _mm256_cvtepi32_ps(a); }
static INSITU_INLINE ivec sum(ivec a, ivec b) { return _mm256_add_epi32(a, b); }
static INSITU_INLINE ivec product(ivec a, ivec b) { return _mm256_mullo_epi32(a, b); }
static INSITU_INLINE fvec fload(const void* p) { return _mm256_loadu_ps(static_cast<const float*>(p)); }
static INSITU_INLINE void fstore(float* p, fvec a) { _mm256_storeu_ps(p, a); }
static INSITU_INLINE fvec fload_f16(const void* p) { return _mm256_cvtph_ps(load_quarter(p)); }
static INSITU_INLINE fvec fload_bf16(const void* p) {
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(load_quarter(p)), 16));
}
static INSITU_INLINE ivec load_bytes(const void* p) { return load_half(p); }
static INSITU_INLINE ivec widen_u8(const uint8_t* p) { return _mm256_cvtepu8_epi32(_mm_loadu_si64(p)); }
static INSITU_INLINE ivec widen_i8(const uint8_t* p) { return _mm256_cvtepi8_epi32(_mm_loadu_si64(p)); }
static INSITU_INLINE ivec low_nibbles(ivec x) { return _mm256_and_si256(x, _mm256_set1_epi8(15)); }
static INSITU_INLINE ivec high_nibbles(ivec x) {
  return _mm256_and_si256(_mm256_srli_epi16(x, 4), _mm256_set1_epi8(15));
}
template <int Left, int Mask>
static INSITU_INLINE ivec with_bits(ivec low, ivec high) {
  const ivec moved = Left >= 0 ? _mm256_slli_epi16(high, Left >= 0 ? Left : 0) : _mm256_srli_epi16(high, Left < 0 ? -Left : 0);
  return _mm256_or_si256(low, _mm256_and_si256(moved, _mm256_set1_epi8(Mask)));
}
static INSITU_INLINE ivec widen_pairs(const uint8_t* p) { return _mm256_cvtepu8_epi16(load_quarter(p)); }
static INSITU_INLINE ivec add_pairs(ivec c, ivec a, ivec b) { return _mm256_add_epi32(c, _mm256_madd_epi16(a, b)); }
static INSITU_INLINE ivec multiply_bytes(ivec w, ivec x) { return _mm256_maddubs_epi16(w, x); }
static INSITU_INLINE ivec add_words(ivec a, ivec b) { return _mm256_add_epi16(a, b); }
static INSITU_INLINE ivec sum_words(ivec a) { return _mm256_madd_epi16(a, _mm256_set1_epi16(1)); }
static INSITU_INLINE ivec times_16(ivec a) { return _mm256_slli_epi32(a, 4); }
#if defined(INSITU_VNNI)
static INSITU_INLINE ivec add_dots(ivec c, ivec w, ivec x) { return _mm256_dpbusd_avx_epi32(c, w, x); }
#endif

#elif INSITU_SIMD_BITS == 128

constexpr int kLanes = 8, kTogether = 1;
struct fvec { float32x4_t lo, hi; };
struct ivec { int32x4_t lo, hi; };

static INSITU_INLINE fvec fsame(float x) { return {vdupq_n_f32(x), vdupq_n_f32(x)}; }
static INSITU_INLINE ivec isame(int32_t x) { return {vdupq_n_s32(x), vdupq_n_s32(x)}; }
static INSITU_INLINE fvec fzero() { return fsame(0.0f); }
static INSITU_INLINE ivec izero() { return isame(0); }
static INSITU_INLINE fvec fmul(fvec a, fvec b) { return {vmulq_f32(a.lo, b.lo), vmulq_f32(a.hi, b.hi)}; }
static INSITU_INLINE fvec fadd(fvec a, fvec b) { return {vaddq_f32(a.lo, b.lo), vaddq_f32(a.hi, b.hi)}; }
static INSITU_INLINE fvec ffma(fvec a, fvec b, fvec c) {
  return {vfmaq_f32(c.lo, a.lo, b.lo), vfmaq_f32(c.hi, a.hi, b.hi)};
}
static INSITU_INLINE fvec ffnma(fvec a, fvec b, fvec c) {
  return {vfmsq_f32(c.lo, a.lo, b.lo), vfmsq_f32(c.hi, a.hi, b.hi)};
}
static INSITU_INLINE fvec fconvert(ivec a) { return {vcvtq_f32_s32(a.lo), vcvtq_f32_s32(a.hi)}; }
static INSITU_INLINE ivec sum(ivec a, ivec b) { return {vaddq_s32(a.lo, b.lo), vaddq_s32(a.hi, b.hi)}; }
static INSITU_INLINE ivec product(ivec a, ivec b) { return {vmulq_s32(a.lo, b.lo), vmulq_s32(a.hi, b.hi)}; }
static INSITU_INLINE fvec fload(const void* p) {
  return {vreinterpretq_f32_u8(vld1q_u8(static_cast<const uint8_t*>(p))),
          vreinterpretq_f32_u8(vld1q_u8(static_cast<const uint8_t*>(p) + 16))};
}
static INSITU_INLINE void fstore(float* p, fvec a) {
  vst1q_f32(p, a.lo);
  vst1q_f32(p + 4, a.hi);
}
static INSITU_INLINE uint16x4_t half_line(const void* p, int part) {
  return vreinterpret_u16_u8(vld1_u8(static_cast<const uint8_t*>(p) + 8 * part));
}
static INSITU_INLINE fvec fload_f16(const void* p) {
  return {vcvt_f32_f16(vreinterpret_f16_u16(half_line(p, 0))), vcvt_f32_f16(vreinterpret_f16_u16(half_line(p, 1)))};
}
static INSITU_INLINE fvec fload_bf16(const void* p) {
  return {vreinterpretq_f32_u32(vshll_n_u16(half_line(p, 0), 16)),
          vreinterpretq_f32_u32(vshll_n_u16(half_line(p, 1), 16))};
}
static INSITU_INLINE int8x16_t bytes(int32x4_t a) { return vreinterpretq_s8_s32(a); }
static INSITU_INLINE int32x4_t from_bytes(uint8x16_t a) { return vreinterpretq_s32_u8(a); }
static INSITU_INLINE ivec load_bytes(const void* p) {
  const uint8_t* at = static_cast<const uint8_t*>(p);
  return {from_bytes(vld1q_u8(at)), from_bytes(vld1q_u8(at + 16))};
}
static INSITU_INLINE ivec widen_u8(const uint8_t* p) {
  const uint16x8_t x = vmovl_u8(vld1_u8(p));
  return {vreinterpretq_s32_u32(vmovl_u16(vget_low_u16(x))), vreinterpretq_s32_u32(vmovl_u16(vget_high_u16(x)))};
}
static INSITU_INLINE ivec widen_i8(const uint8_t* p) {
  const int16x8_t x = vmovl_s8(vreinterpret_s8_u8(vld1_u8(p)));
  return {vmovl_s16(vget_low_s16(x)), vmovl_s16(vget_high_s16(x))};
}
static INSITU_INLINE ivec low_nibbles(ivec x) {
  const int32x4_t mask = vdupq_n_s32(0x0f0f0f0f);
  return {vandq_s32(x.lo, mask), vandq_s32(x.hi, mask)};
}
static INSITU_INLINE ivec high_nibbles(ivec x) {
  return {from_bytes(vshrq_n_u8(vreinterpretq_u8_s32(x.lo), 4)), from_bytes(vshrq_n_u8(vreinterpretq_u8_s32(x.hi), 4))};
}
template <int Left, int Mask>
static INSITU_INLINE int32x4_t half_with_bits(int32x4_t low, int32x4_t high) {
  uint8x16_t moved = vreinterpretq_u8_s32(high);
  if constexpr (Left > 0) moved = vshlq_n_u8(moved, Left);
  if constexpr (Left < 0) moved = vshrq_n_u8(moved, -Left);
  return vorrq_s32(low, from_bytes(vandq_u8(moved, vdupq_n_u8(Mask))));
}
template <int Left, int Mask>
static INSITU_INLINE ivec with_bits(ivec low, ivec high) {
  return {half_with_bits<Left, Mask>(low.lo, high.lo), half_with_bits<Left, Mask>(low.hi, high.hi)};
}
static INSITU_INLINE ivec widen_pairs(const uint8_t* p) {
  const uint8x16_t x = vld1q_u8(p);
  return {vreinterpretq_s32_u16(vmovl_u8(vget_low_u8(x))), vreinterpretq_s32_u16(vmovl_u8(vget_high_u8(x)))};
}
static INSITU_INLINE int32x4_t pair_products(int32x4_t a, int32x4_t b) {
  const int16x8_t x = vreinterpretq_s16_s32(a), y = vreinterpretq_s16_s32(b);
  return vpaddq_s32(vmull_s16(vget_low_s16(x), vget_low_s16(y)), vmull_high_s16(x, y));
}
static INSITU_INLINE ivec add_pairs(ivec c, ivec a, ivec b) {
  return {vaddq_s32(c.lo, pair_products(a.lo, b.lo)), vaddq_s32(c.hi, pair_products(a.hi, b.hi))};
}
// Bytes up to 255 as signed ones, 128 less: callers' offset for them is -128 times the inputs' sum.
template <int MaxQ>
static INSITU_INLINE ivec signed_bytes(ivec w) {
  if constexpr (MaxQ <= 127) return w;
  const int32x4_t flip = vdupq_n_s32(static_cast<int32_t>(0x80808080u));
  return {veorq_s32(w.lo, flip), veorq_s32(w.hi, flip)};
}

#else

constexpr int kLanes = 16, kTogether = 1;
using fvec = f32x16;
using ivec = i32x16;  // bytes and words are taken from lanes by shifts: any byte order, any compiler

static inline fvec fzero() { return broadcast(0.0f); }
static inline ivec izero() { return ibroadcast(0); }
static inline fvec fsame(float x) { return broadcast(x); }
static inline ivec isame(int32_t x) { return ibroadcast(x); }
static inline fvec fmul(fvec a, fvec b) { return mul(a, b); }
static inline fvec fadd(fvec a, fvec b) { return add(a, b); }
static inline fvec ffma(fvec a, fvec b, fvec c) { return fma(a, b, c); }
static inline fvec ffnma(fvec a, fvec b, fvec c) { return fnma(a, b, c); }
static inline fvec fconvert(ivec a) { return to_float(a); }
static inline ivec sum(ivec a, ivec b) { return iadd(a, b); }
static inline ivec product(ivec a, ivec b) { return imul(a, b); }
static inline fvec fload(const void* p) { return loadu(static_cast<const float*>(p)); }
static inline void fstore(float* p, fvec a) { storeu(p, a); }
static inline fvec fload_f16(const void* p) { return load_f16(static_cast<const uint16_t*>(p)); }
static inline fvec fload_bf16(const void* p) { return load_bf16(static_cast<const uint16_t*>(p)); }
static inline ivec load_bytes(const void* p) { return iload(static_cast<const int32_t*>(p)); }
static inline ivec widen_u8(const uint8_t* p) { return load_u8(p); }
static inline ivec widen_i8(const uint8_t* p) { return load_i8(reinterpret_cast<const int8_t*>(p)); }
static inline ivec low_nibbles(ivec x) { return iand(x, ibroadcast(0x0f0f0f0f)); }
static inline ivec high_nibbles(ivec x) { return iand(ishr_logic(x, 4), ibroadcast(0x0f0f0f0f)); }
template <int Left, int Mask>
static inline ivec with_bits(ivec low, ivec high) {
  const ivec moved = Left >= 0 ? ishl(high, Left >= 0 ? Left : 0) : ishr_logic(high, Left < 0 ? -Left : 0);
  return ior(low, iand(moved, ibroadcast(Mask * 0x01010101)));
}
static inline ivec widen_pairs(const uint8_t* p) {
  return ieach([&](int i) { return p[2 * i] | p[2 * i + 1] << 16; });
}
static inline ivec add_pairs(ivec c, ivec a, ivec b) {
  return ieach([&](int i) {
    return c.v[i] + static_cast<int16_t>(a.v[i]) * static_cast<int16_t>(b.v[i]) + (a.v[i] >> 16) * (b.v[i] >> 16);
  });
}

#endif

template <int High>
static INSITU_INLINE ivec nibbles(ivec x) {
  if constexpr (High) return high_nibbles(x);
  else return low_nibbles(x);
}

#if defined(INSITU_VNNI)

template <int MaxQ>
struct Dot {
  ivec total;
  INSITU_INLINE void start(int32_t offset) { total = isame(offset); }
  INSITU_INLINE void add(ivec w, ivec x, int) { total = add_dots(total, w, x); }
  INSITU_INLINE ivec finish(int32_t) { return total; }
};

#elif INSITU_SIMD_BITS == 128 && defined(__ARM_FEATURE_DOTPROD)

template <int MaxQ>
struct Dot {
  ivec total;
  INSITU_INLINE void start(int32_t offset) { total = isame(MaxQ <= 127 ? offset : 0); }
  INSITU_INLINE void add(ivec w, ivec x, int) {
    w = signed_bytes<MaxQ>(w);
    total.lo = vdotq_s32(total.lo, bytes(w.lo), bytes(x.lo));
    total.hi = vdotq_s32(total.hi, bytes(w.hi), bytes(x.hi));
  }
  INSITU_INLINE ivec finish(int32_t) { return total; }
};

#elif INSITU_SIMD_BITS == 128

// Products are summed in int16, four for each output, for as many lines as cannot overflow.
template <int MaxQ>
struct Dot {
  static constexpr int kRun = 32767 / ((MaxQ <= 127 ? MaxQ : 128) * 127);
  static_assert(kRun >= 2);
  int16x8_t words[4];
  ivec total;
  INSITU_INLINE void start(int32_t offset) {
    INSITU_UNROLL for (int i = 0; i < 4; i++) words[i] = vdupq_n_s16(0);
    total = isame(MaxQ <= 127 ? offset : 0);
  }
  INSITU_INLINE void add(ivec weights, ivec x, int j) {
    const ivec w = signed_bytes<MaxQ>(weights);
    const int8x8_t same = vget_low_s8(bytes(x.lo));
    if (j > 0 && j % kRun == 0) drain();
    words[0] = vmlal_s8(words[0], vget_low_s8(bytes(w.lo)), same);
    words[1] = vmlal_s8(words[1], vget_high_s8(bytes(w.lo)), same);
    words[2] = vmlal_s8(words[2], vget_low_s8(bytes(w.hi)), same);
    words[3] = vmlal_s8(words[3], vget_high_s8(bytes(w.hi)), same);
  }
  INSITU_INLINE ivec finish(int32_t) {
    drain();
    return total;
  }

 private:
  INSITU_INLINE void drain() {
    total.lo = vaddq_s32(total.lo, vpaddq_s32(vpaddlq_s16(words[0]), vpaddlq_s16(words[1])));
    total.hi = vaddq_s32(total.hi, vpaddq_s32(vpaddlq_s16(words[2]), vpaddlq_s16(words[3])));
    INSITU_UNROLL for (int i = 0; i < 4; i++) words[i] = vdupq_n_s16(0);
  }
};

#elif INSITU_SIMD_BITS != 0

// Pairs are summed in int16 for as many lines as cannot overflow: 32767 / (2 * MaxQ * 127).
template <int MaxQ>
struct Dot {
  static constexpr int kRun = 32767 / (2 * MaxQ * 127);
  static_assert(kRun >= 2);
  ivec words, total;
  INSITU_INLINE void start(int32_t) { words = total = izero(); }
  INSITU_INLINE void add(ivec w, ivec x, int j) {
    words = j % kRun == 0 ? multiply_bytes(w, x) : add_words(words, multiply_bytes(w, x));
    if (j % kRun == kRun - 1) total = sum(total, sum_words(words)), words = izero();
  }
  INSITU_INLINE ivec finish(int32_t offset) { return sum(sum(total, sum_words(words)), isame(offset)); }
};

// 255 * 127 * 2 overflows int16, so whole bytes are taken as 16 * high + low nibbles. At most 8 lines.
template <>
struct Dot<255> {
  ivec low, high;
  INSITU_INLINE void start(int32_t) { low = high = izero(); }
  INSITU_INLINE void add(ivec w, ivec x, int) {
    low = add_words(low, multiply_bytes(low_nibbles(w), x));
    high = add_words(high, multiply_bytes(high_nibbles(w), x));
  }
  INSITU_INLINE ivec finish(int32_t offset) {
    return sum(sum(sum_words(low), times_16(sum_words(high))), isame(offset));
  }
};

#else

template <int MaxQ>
struct Dot {
  ivec total;
  inline void start(int32_t offset) { total = isame(offset); }
  inline void add(const ivec& w, const ivec& x, int) {
    const int32_t a = x.v[0];
    const int32_t a0 = static_cast<int8_t>(a), a1 = static_cast<int8_t>(a >> 8), a2 = static_cast<int8_t>(a >> 16);
    for (int i = 0; i < 16; i++) {
      const int32_t b = w.v[i];
      total.v[i] += (b & 255) * a0 + (b >> 8 & 255) * a1 + (b >> 16 & 255) * a2 + (b >> 24 & 255) * (a >> 24);
    }
  }
  inline ivec finish(int32_t) { return total; }
};

#endif

}  // namespace insitu::INSITU_NS
