// simd.h for AVX2 with FMA and F16C: lanes 0-7 in `lo`, 8-15 in `hi`.
#pragma once
#include <immintrin.h>

namespace insitu::INSITU_NS {

struct f32x16 { __m256 lo, hi; };
struct i32x16 { __m256i lo, hi; };
struct mask16 { __m256 lo, hi; };  // all ones or all zeros a lane

static inline f32x16 load(const float* p) { return {_mm256_load_ps(p), _mm256_load_ps(p + 8)}; }
static inline f32x16 loadu(const float* p) { return {_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)}; }
static inline void store(float* p, f32x16 a) {
  _mm256_store_ps(p, a.lo);
  _mm256_store_ps(p + 8, a.hi);
}
static inline void storeu(float* p, f32x16 a) {
  _mm256_storeu_ps(p, a.lo);
  _mm256_storeu_ps(p + 8, a.hi);
}
static inline f32x16 broadcast(float x) { return {_mm256_set1_ps(x), _mm256_set1_ps(x)}; }
static inline f32x16 add(f32x16 a, f32x16 b) { return {_mm256_add_ps(a.lo, b.lo), _mm256_add_ps(a.hi, b.hi)}; }
static inline f32x16 sub(f32x16 a, f32x16 b) { return {_mm256_sub_ps(a.lo, b.lo), _mm256_sub_ps(a.hi, b.hi)}; }
static inline f32x16 mul(f32x16 a, f32x16 b) { return {_mm256_mul_ps(a.lo, b.lo), _mm256_mul_ps(a.hi, b.hi)}; }
static inline f32x16 div(f32x16 a, f32x16 b) { return {_mm256_div_ps(a.lo, b.lo), _mm256_div_ps(a.hi, b.hi)}; }
static inline f32x16 sqrt(f32x16 a) { return {_mm256_sqrt_ps(a.lo), _mm256_sqrt_ps(a.hi)}; }
static inline f32x16 fma(f32x16 a, f32x16 b, f32x16 c) {
  return {_mm256_fmadd_ps(a.lo, b.lo, c.lo), _mm256_fmadd_ps(a.hi, b.hi, c.hi)};
}
static inline f32x16 fnma(f32x16 a, f32x16 b, f32x16 c) {
  return {_mm256_fnmadd_ps(a.lo, b.lo, c.lo), _mm256_fnmadd_ps(a.hi, b.hi, c.hi)};
}
static inline f32x16 max(f32x16 a, f32x16 b) { return {_mm256_max_ps(a.lo, b.lo), _mm256_max_ps(a.hi, b.hi)}; }
static inline f32x16 min(f32x16 a, f32x16 b) { return {_mm256_min_ps(a.lo, b.lo), _mm256_min_ps(a.hi, b.hi)}; }
static inline f32x16 abs(f32x16 a) {
  const __m256 sign = _mm256_set1_ps(-0.0f);
  return {_mm256_andnot_ps(sign, a.lo), _mm256_andnot_ps(sign, a.hi)};
}

static inline mask16 lt(f32x16 a, f32x16 b) {
  return {_mm256_cmp_ps(a.lo, b.lo, _CMP_LT_OQ), _mm256_cmp_ps(a.hi, b.hi, _CMP_LT_OQ)};
}
static inline mask16 gt(f32x16 a, f32x16 b) {
  return {_mm256_cmp_ps(a.lo, b.lo, _CMP_GT_OQ), _mm256_cmp_ps(a.hi, b.hi, _CMP_GT_OQ)};
}
static inline mask16 eq(f32x16 a, f32x16 b) {
  return {_mm256_cmp_ps(a.lo, b.lo, _CMP_EQ_OQ), _mm256_cmp_ps(a.hi, b.hi, _CMP_EQ_OQ)};
}
static inline f32x16 select(mask16 m, f32x16 a, f32x16 b) {
  return {_mm256_blendv_ps(b.lo, a.lo, m.lo), _mm256_blendv_ps(b.hi, a.hi, m.hi)};
}
static inline i32x16 iselect(mask16 m, i32x16 a, i32x16 b) {
  return {_mm256_blendv_epi8(b.lo, a.lo, _mm256_castps_si256(m.lo)),
          _mm256_blendv_epi8(b.hi, a.hi, _mm256_castps_si256(m.hi))};
}
static inline mask16 first_lanes(int n) {
  const __m256i lane = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7), count = _mm256_set1_epi32(n);
  return {_mm256_castsi256_ps(_mm256_cmpgt_epi32(count, lane)),
          _mm256_castsi256_ps(_mm256_cmpgt_epi32(count, _mm256_add_epi32(lane, _mm256_set1_epi32(8))))};
}
static inline f32x16 load_masked(mask16 m, const float* p) {
  return {_mm256_maskload_ps(p, _mm256_castps_si256(m.lo)), _mm256_maskload_ps(p + 8, _mm256_castps_si256(m.hi))};
}
static inline void store_masked(mask16 m, float* p, f32x16 a) {
  _mm256_maskstore_ps(p, _mm256_castps_si256(m.lo), a.lo);
  _mm256_maskstore_ps(p + 8, _mm256_castps_si256(m.hi), a.hi);
}
static inline uint32_t mask_bits(mask16 m) {
  return static_cast<uint32_t>(_mm256_movemask_ps(m.lo) | _mm256_movemask_ps(m.hi) << 8);
}

static inline __m256i load_half(const void* p) { return _mm256_loadu_si256(static_cast<const __m256i*>(p)); }
static inline i32x16 iload(const int32_t* p) { return {load_half(p), load_half(p + 8)}; }
static inline void istore(int32_t* p, i32x16 a) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), a.lo);
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p + 8), a.hi);
}
static inline i32x16 ibroadcast(int32_t x) { return {_mm256_set1_epi32(x), _mm256_set1_epi32(x)}; }
static inline i32x16 iadd(i32x16 a, i32x16 b) { return {_mm256_add_epi32(a.lo, b.lo), _mm256_add_epi32(a.hi, b.hi)}; }
static inline i32x16 isub(i32x16 a, i32x16 b) { return {_mm256_sub_epi32(a.lo, b.lo), _mm256_sub_epi32(a.hi, b.hi)}; }
static inline i32x16 imul(i32x16 a, i32x16 b) { return {_mm256_mullo_epi32(a.lo, b.lo), _mm256_mullo_epi32(a.hi, b.hi)}; }
static inline i32x16 iand(i32x16 a, i32x16 b) { return {_mm256_and_si256(a.lo, b.lo), _mm256_and_si256(a.hi, b.hi)}; }
static inline i32x16 ior(i32x16 a, i32x16 b) { return {_mm256_or_si256(a.lo, b.lo), _mm256_or_si256(a.hi, b.hi)}; }
static inline i32x16 ixor(i32x16 a, i32x16 b) {
  return {_mm256_xor_si256(a.lo, b.lo), _mm256_xor_si256(a.hi, b.hi)};
}
static inline i32x16 ixor3(i32x16 a, i32x16 b, i32x16 c) { return ixor(ixor(a, b), c); }
static inline i32x16 umul_even(i32x16 a, uint32_t factor) {
  const __m256i f = _mm256_set1_epi64x(factor);
  return {_mm256_mul_epu32(a.lo, f), _mm256_mul_epu32(a.hi, f)};
}
static inline i32x16 odd_to_even(i32x16 a) { return {_mm256_srli_epi64(a.lo, 32), _mm256_srli_epi64(a.hi, 32)}; }
static inline i32x16 join_even(i32x16 a, i32x16 b) {
  return {_mm256_blend_epi32(a.lo, _mm256_slli_epi64(b.lo, 32), 0xaa),
          _mm256_blend_epi32(a.hi, _mm256_slli_epi64(b.hi, 32), 0xaa)};
}
static inline i32x16 imax(i32x16 a, i32x16 b) { return {_mm256_max_epi32(a.lo, b.lo), _mm256_max_epi32(a.hi, b.hi)}; }
static inline i32x16 imin(i32x16 a, i32x16 b) { return {_mm256_min_epi32(a.lo, b.lo), _mm256_min_epi32(a.hi, b.hi)}; }
static inline i32x16 ishl(i32x16 a, int n) {
  const __m128i count = _mm_cvtsi32_si128(n);
  return {_mm256_sll_epi32(a.lo, count), _mm256_sll_epi32(a.hi, count)};
}
static inline i32x16 ishr_arith(i32x16 a, int n) {
  const __m128i count = _mm_cvtsi32_si128(n);
  return {_mm256_sra_epi32(a.lo, count), _mm256_sra_epi32(a.hi, count)};
}
static inline i32x16 ishr_logic(i32x16 a, int n) {
  const __m128i count = _mm_cvtsi32_si128(n);
  return {_mm256_srl_epi32(a.lo, count), _mm256_srl_epi32(a.hi, count)};
}
static inline i32x16 to_int(f32x16 a) { return {_mm256_cvtps_epi32(a.lo), _mm256_cvtps_epi32(a.hi)}; }
static inline f32x16 to_float(i32x16 a) { return {_mm256_cvtepi32_ps(a.lo), _mm256_cvtepi32_ps(a.hi)}; }
static inline i32x16 as_int(f32x16 a) { return {_mm256_castps_si256(a.lo), _mm256_castps_si256(a.hi)}; }
static inline f32x16 as_float(i32x16 a) { return {_mm256_castsi256_ps(a.lo), _mm256_castsi256_ps(a.hi)}; }

static inline __m128i load_quarter(const void* p) { return _mm_loadu_si128(static_cast<const __m128i*>(p)); }
static inline i32x16 load_i8(const int8_t* p) {
  const __m128i x = load_quarter(p);
  return {_mm256_cvtepi8_epi32(x), _mm256_cvtepi8_epi32(_mm_srli_si128(x, 8))};
}
static inline i32x16 load_u8(const uint8_t* p) {
  const __m128i x = load_quarter(p);
  return {_mm256_cvtepu8_epi32(x), _mm256_cvtepu8_epi32(_mm_srli_si128(x, 8))};
}
// Lanes must lie in [-128, 127].
static inline void store_i8(int8_t* p, i32x16 a) {
  const __m256i words = _mm256_permute4x64_epi64(_mm256_packs_epi32(a.lo, a.hi), 0xd8);  // lanes in order
  const __m128i bytes = _mm_packs_epi16(_mm256_castsi256_si128(words), _mm256_extracti128_si256(words, 1));
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p), bytes);
}

static inline f32x16 load_f16(const uint16_t* p) {
  return {_mm256_cvtph_ps(load_quarter(p)), _mm256_cvtph_ps(load_quarter(p + 8))};
}
static inline void store_f16(uint16_t* p, f32x16 a) {
  const f32x16 clamped = min(max(a, broadcast(-65504.0f)), broadcast(65504.0f));
  const f32x16 x = select(lt(abs(a), broadcast(__builtin_inff())), clamped, a);
  constexpr int nearest = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC;
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm256_cvtps_ph(x.lo, nearest));
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p + 8), _mm256_cvtps_ph(x.hi, nearest));
}
static inline f32x16 load_bf16(const uint16_t* p) {
  return {_mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(load_quarter(p)), 16)),
          _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(load_quarter(p + 8)), 16))};
}

static inline float reduce_add(f32x16 a) {
  const __m256 a8 = _mm256_add_ps(a.lo, a.hi);
  const __m128 a4 = _mm_add_ps(_mm256_castps256_ps128(a8), _mm256_extractf128_ps(a8, 1));
  const __m128 a2 = _mm_add_ps(a4, _mm_movehl_ps(a4, a4));
  return _mm_cvtss_f32(_mm_add_ss(a2, _mm_movehdup_ps(a2)));
}
static inline float reduce_max(f32x16 a) {
  const __m256 a8 = _mm256_max_ps(a.lo, a.hi);
  const __m128 a4 = _mm_max_ps(_mm256_castps256_ps128(a8), _mm256_extractf128_ps(a8, 1));
  const __m128 a2 = _mm_max_ps(a4, _mm_movehl_ps(a4, a4));
  return _mm_cvtss_f32(_mm_max_ss(a2, _mm_movehdup_ps(a2)));
}
static inline int32_t ireduce_add(i32x16 a) {
  const __m256i a8 = _mm256_add_epi32(a.lo, a.hi);
  const __m128i a4 = _mm_add_epi32(_mm256_castsi256_si128(a8), _mm256_extracti128_si256(a8, 1));
  const __m128i a2 = _mm_add_epi32(a4, _mm_shuffle_epi32(a4, 0x4e));
  return _mm_cvtsi128_si32(_mm_add_epi32(a2, _mm_shuffle_epi32(a2, 0xb1)));
}
static inline int32_t ireduce_max(i32x16 a) {
  const __m256i a8 = _mm256_max_epi32(a.lo, a.hi);
  const __m128i a4 = _mm_max_epi32(_mm256_castsi256_si128(a8), _mm256_extracti128_si256(a8, 1));
  const __m128i a2 = _mm_max_epi32(a4, _mm_shuffle_epi32(a4, 0x4e));
  return _mm_cvtsi128_si32(_mm_max_epi32(a2, _mm_shuffle_epi32(a2, 0xb1)));
}
// Of two at once: they share a vector from the second step on.
static inline Two ireduce_max(i32x16 a, i32x16 b) {
  const __m256i a8 = _mm256_max_epi32(a.lo, a.hi), b8 = _mm256_max_epi32(b.lo, b.hi);
  const __m256i c8 = _mm256_max_epi32(_mm256_unpacklo_epi32(a8, b8), _mm256_unpackhi_epi32(a8, b8));
  const __m128i c4 = _mm_max_epi32(_mm256_castsi256_si128(c8), _mm256_extracti128_si256(c8, 1));
  const __m128i c2 = _mm_max_epi32(c4, _mm_unpackhi_epi64(c4, c4));
  return {_mm_cvtsi128_si32(c2), _mm_extract_epi32(c2, 1)};
}

}  // namespace insitu::INSITU_NS
