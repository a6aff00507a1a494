// simd.h for AVX-512 (F, BW, DQ, VL): one register holds the sixteen lanes.
#pragma once
#include <immintrin.h>

namespace insitu::INSITU_NS {

struct f32x16 { __m512 v; };
struct i32x16 { __m512i v; };
struct mask16 { __mmask16 v; };

static inline f32x16 load(const float* p) { return {_mm512_load_ps(p)}; }
static inline f32x16 loadu(const float* p) { return {_mm512_loadu_ps(p)}; }
static inline void store(float* p, f32x16 a) { _mm512_store_ps(p, a.v); }
static inline void storeu(float* p, f32x16 a) { _mm512_storeu_ps(p, a.v); }
static inline f32x16 broadcast(float x) { return {_mm512_set1_ps(x)}; }
static inline f32x16 add(f32x16 a, f32x16 b) { return {_mm512_add_ps(a.v, b.v)}; }
static inline f32x16 sub(f32x16 a, f32x16 b) { return {_mm512_sub_ps(a.v, b.v)}; }
static inline f32x16 mul(f32x16 a, f32x16 b) { return {_mm512_mul_ps(a.v, b.v)}; }
static inline f32x16 div(f32x16 a, f32x16 b) { return {_mm512_div_ps(a.v, b.v)}; }
static inline f32x16 sqrt(f32x16 a) { return {_mm512_sqrt_ps(a.v)}; }
static inline f32x16 fma(f32x16 a, f32x16 b, f32x16 c) { return {_mm512_fmadd_ps(a.v, b.v, c.v)}; }
static inline f32x16 fnma(f32x16 a, f32x16 b, f32x16 c) { return {_mm512_fnmadd_ps(a.v, b.v, c.v)}; }
static inline f32x16 max(f32x16 a, f32x16 b) { return {_mm512_max_ps(a.v, b.v)}; }
static inline f32x16 min(f32x16 a, f32x16 b) { return {_mm512_min_ps(a.v, b.v)}; }
static inline f32x16 abs(f32x16 a) { return {_mm512_abs_ps(a.v)}; }

static inline mask16 lt(f32x16 a, f32x16 b) { return {_mm512_cmp_ps_mask(a.v, b.v, _CMP_LT_OQ)}; }
static inline mask16 gt(f32x16 a, f32x16 b) { return {_mm512_cmp_ps_mask(a.v, b.v, _CMP_GT_OQ)}; }
static inline mask16 eq(f32x16 a, f32x16 b) { return {_mm512_cmp_ps_mask(a.v, b.v, _CMP_EQ_OQ)}; }
static inline f32x16 select(mask16 m, f32x16 a, f32x16 b) { return {_mm512_mask_blend_ps(m.v, b.v, a.v)}; }
static inline i32x16 iselect(mask16 m, i32x16 a, i32x16 b) { return {_mm512_mask_blend_epi32(m.v, b.v, a.v)}; }
static inline mask16 first_lanes(int n) {
  return {static_cast<__mmask16>(n >= 16 ? 0xffffu : n <= 0 ? 0u : (1u << n) - 1u)};
}
static inline f32x16 load_masked(mask16 m, const float* p) { return {_mm512_maskz_loadu_ps(m.v, p)}; }
static inline void store_masked(mask16 m, float* p, f32x16 a) { _mm512_mask_storeu_ps(p, m.v, a.v); }
static inline uint32_t mask_bits(mask16 m) { return m.v; }

static inline i32x16 iload(const int32_t* p) { return {_mm512_loadu_si512(p)}; }
static inline void istore(int32_t* p, i32x16 a) { _mm512_storeu_si512(p, a.v); }
static inline i32x16 ibroadcast(int32_t x) { return {_mm512_set1_epi32(x)}; }
static inline i32x16 iadd(i32x16 a, i32x16 b) { return {_mm512_add_epi32(a.v, b.v)}; }
static inline i32x16 isub(i32x16 a, i32x16 b) { return {_mm512_sub_epi32(a.v, b.v)}; }
static inline i32x16 imul(i32x16 a, i32x16 b) { return {_mm512_mullo_epi32(a.v, b.v)}; }
static inline i32x16 iand(i32x16 a, i32x16 b) { return {_mm512_and_si512(a.v, b.v)}; }
static inline i32x16 ior(i32x16 a, i32x16 b) { return {_mm512_or_si512(a.v, b.v)}; }
static inline i32x16 ixor(i32x16 a, i32x16 b) { return {_mm512_xor_si512(a.v, b.v)}; }
static inline i32x16 ixor3(i32x16 a, i32x16 b, i32x16 c) { return {_mm512_ternarylogic_epi32(a.v, b.v, c.v, 0x96)}; }
static inline i32x16 umul_even(i32x16 a, uint32_t factor) { return {_mm512_mul_epu32(a.v, _mm512_set1_epi64(factor))}; }
static inline i32x16 odd_to_even(i32x16 a) { return {_mm512_srli_epi64(a.v, 32)}; }
static inline i32x16 join_even(i32x16 a, i32x16 b) {
  return {_mm512_mask_blend_epi32(0xaaaa, a.v, _mm512_slli_epi64(b.v, 32))};
}
static inline i32x16 imax(i32x16 a, i32x16 b) { return {_mm512_max_epi32(a.v, b.v)}; }
static inline i32x16 imin(i32x16 a, i32x16 b) { return {_mm512_min_epi32(a.v, b.v)}; }
static inline i32x16 ishl(i32x16 a, int n) { return {_mm512_sll_epi32(a.v, _mm_cvtsi32_si128(n))}; }
static inline i32x16 ishr_arith(i32x16 a, int n) { return {_mm512_sra_epi32(a.v, _mm_cvtsi32_si128(n))}; }
static inline i32x16 ishr_logic(i32x16 a, int n) { return {_mm512_srl_epi32(a.v, _mm_cvtsi32_si128(n))}; }
static inline i32x16 to_int(f32x16 a) { return {_mm512_cvtps_epi32(a.v)}; }
static inline f32x16 to_float(i32x16 a) { return {_mm512_cvtepi32_ps(a.v)}; }
static inline i32x16 as_int(f32x16 a) { return {_mm512_castps_si512(a.v)}; }
static inline f32x16 as_float(i32x16 a) { return {_mm512_castsi512_ps(a.v)}; }

static inline i32x16 load_i8(const int8_t* p) {
  return {_mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)))};
}
static inline i32x16 load_u8(const uint8_t* p) {
  return {_mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)))};
}
// Lanes must lie in [-128, 127].
static inline void store_i8(int8_t* p, i32x16 a) {
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm512_cvtepi32_epi8(a.v));
}

static inline f32x16 load_f16(const uint16_t* p) {
  return {_mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)))};
}
static inline void store_f16(uint16_t* p, f32x16 a) {
  const f32x16 clamped = min(max(a, broadcast(-65504.0f)), broadcast(65504.0f));
  const f32x16 x = select(lt(abs(a), broadcast(__builtin_inff())), clamped, a);
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p),
                      _mm512_cvtps_ph(x.v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
}
static inline f32x16 load_bf16(const uint16_t* p) {
  const __m512i wide = _mm512_cvtepu16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
  return {_mm512_castsi512_ps(_mm512_slli_epi32(wide, 16))};
}

static inline float reduce_add(f32x16 a) {
  const __m256 a8 = _mm256_add_ps(_mm512_castps512_ps256(a.v), _mm512_extractf32x8_ps(a.v, 1));
  const __m128 a4 = _mm_add_ps(_mm256_castps256_ps128(a8), _mm256_extractf128_ps(a8, 1));
  const __m128 a2 = _mm_add_ps(a4, _mm_movehl_ps(a4, a4));
  return _mm_cvtss_f32(_mm_add_ss(a2, _mm_movehdup_ps(a2)));
}
static inline float reduce_max(f32x16 a) {
  const __m256 a8 = _mm256_max_ps(_mm512_castps512_ps256(a.v), _mm512_extractf32x8_ps(a.v, 1));
  const __m128 a4 = _mm_max_ps(_mm256_castps256_ps128(a8), _mm256_extractf128_ps(a8, 1));
  const __m128 a2 = _mm_max_ps(a4, _mm_movehl_ps(a4, a4));
  return _mm_cvtss_f32(_mm_max_ss(a2, _mm_movehdup_ps(a2)));
}
static inline int32_t ireduce_add(i32x16 a) {  // gcc's own adds the last lanes as int, which may not wrap
  const __m256i a8 = _mm256_add_epi32(_mm512_castsi512_si256(a.v), _mm512_extracti64x4_epi64(a.v, 1));
  const __m128i a4 = _mm_add_epi32(_mm256_castsi256_si128(a8), _mm256_extracti128_si256(a8, 1));
  const __m128i a2 = _mm_add_epi32(a4, _mm_shuffle_epi32(a4, 0x4e));
  return _mm_cvtsi128_si32(_mm_add_epi32(a2, _mm_shuffle_epi32(a2, 0xb1)));
}
static inline int32_t ireduce_max(i32x16 a) { return _mm512_reduce_max_epi32(a.v); }
// Of two at once: they share a vector from the first step on.
static inline Two ireduce_max(i32x16 a, i32x16 b) {
  const __m512i turns = _mm512_max_epi32(_mm512_unpacklo_epi32(a.v, b.v), _mm512_unpackhi_epi32(a.v, b.v));
  const __m256i c8 = _mm256_max_epi32(_mm512_castsi512_si256(turns), _mm512_extracti64x4_epi64(turns, 1));
  const __m128i c4 = _mm_max_epi32(_mm256_castsi256_si128(c8), _mm256_extracti128_si256(c8, 1));
  const __m128i c2 = _mm_max_epi32(c4, _mm_unpackhi_epi64(c4, c4));
  return {_mm_cvtsi128_si32(c2), _mm_extract_epi32(c2, 1)};
}

}  // namespace insitu::INSITU_NS
