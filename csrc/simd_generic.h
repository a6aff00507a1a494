// simd.h in plain C++: for processors without the extensions of the other files, and their check.
#pragma once

namespace insitu::INSITU_NS {

struct alignas(64) f32x16 { float v[16]; };
struct alignas(64) i32x16 { int32_t v[16]; };
struct mask16 { uint32_t v; };  // bit i: lane i

template <class F>
static inline f32x16 each(F f) {
  f32x16 r;
  for (int i = 0; i < 16; i++) r.v[i] = f(i);
  return r;
}
template <class F>
static inline i32x16 ieach(F f) {
  i32x16 r;
  for (int i = 0; i < 16; i++) r.v[i] = static_cast<int32_t>(f(i));
  return r;
}
template <class F>
static inline mask16 which(F f) {
  mask16 m{0};
  for (int i = 0; i < 16; i++) m.v |= static_cast<uint32_t>(f(i)) << i;
  return m;
}
template <class To, class From>
static inline To bits_as(From x) {
  static_assert(sizeof(To) == sizeof(From));
  To y;
  __builtin_memcpy(&y, &x, sizeof y);
  return y;
}

static inline f32x16 loadu(const float* p) {
  f32x16 r;
  __builtin_memcpy(r.v, p, sizeof r.v);
  return r;
}
static inline f32x16 load(const float* p) { return loadu(p); }
static inline void storeu(float* p, f32x16 a) { __builtin_memcpy(p, a.v, sizeof a.v); }
static inline void store(float* p, f32x16 a) { storeu(p, a); }
static inline f32x16 broadcast(float x) {
  return each([&](int) { return x; });
}
static inline f32x16 add(f32x16 a, f32x16 b) {
  return each([&](int i) { return a.v[i] + b.v[i]; });
}
static inline f32x16 sub(f32x16 a, f32x16 b) {
  return each([&](int i) { return a.v[i] - b.v[i]; });
}
static inline f32x16 mul(f32x16 a, f32x16 b) {
  return each([&](int i) { return a.v[i] * b.v[i]; });
}
static inline f32x16 div(f32x16 a, f32x16 b) {
  return each([&](int i) { return a.v[i] / b.v[i]; });
}
static inline f32x16 sqrt(f32x16 a) {
  return each([&](int i) { return __builtin_sqrtf(a.v[i]); });
}
static inline f32x16 fma(f32x16 a, f32x16 b, f32x16 c) {
  return each([&](int i) { return __builtin_fmaf(a.v[i], b.v[i], c.v[i]); });
}
static inline f32x16 fnma(f32x16 a, f32x16 b, f32x16 c) {
  return each([&](int i) { return __builtin_fmaf(-a.v[i], b.v[i], c.v[i]); });
}
static inline f32x16 max(f32x16 a, f32x16 b) {
  return each([&](int i) { return a.v[i] > b.v[i] ? a.v[i] : b.v[i]; });
}
static inline f32x16 min(f32x16 a, f32x16 b) {
  return each([&](int i) { return a.v[i] < b.v[i] ? a.v[i] : b.v[i]; });
}
static inline f32x16 abs(f32x16 a) {
  return each([&](int i) { return __builtin_fabsf(a.v[i]); });
}

static inline mask16 lt(f32x16 a, f32x16 b) {
  return which([&](int i) { return a.v[i] < b.v[i]; });
}
static inline mask16 gt(f32x16 a, f32x16 b) {
  return which([&](int i) { return a.v[i] > b.v[i]; });
}
static inline mask16 eq(f32x16 a, f32x16 b) {
  return which([&](int i) { return a.v[i] == b.v[i]; });
}
static inline f32x16 select(mask16 m, f32x16 a, f32x16 b) {
  return each([&](int i) { return m.v >> i & 1 ? a.v[i] : b.v[i]; });
}
static inline i32x16 iselect(mask16 m, i32x16 a, i32x16 b) {
  return ieach([&](int i) { return m.v >> i & 1 ? a.v[i] : b.v[i]; });
}
static inline mask16 first_lanes(int n) { return {n >= 16 ? 0xffffu : n <= 0 ? 0u : (1u << n) - 1u}; }
static inline f32x16 load_masked(mask16 m, const float* p) {
  return each([&](int i) { return m.v >> i & 1 ? p[i] : 0.0f; });
}
static inline void store_masked(mask16 m, float* p, f32x16 a) {
  for (int i = 0; i < 16; i++)
    if (m.v >> i & 1) p[i] = a.v[i];
}
static inline uint32_t mask_bits(mask16 m) { return m.v; }

static inline i32x16 iload(const int32_t* p) {
  i32x16 r;
  __builtin_memcpy(r.v, p, sizeof r.v);
  return r;
}
static inline void istore(int32_t* p, i32x16 a) { __builtin_memcpy(p, a.v, sizeof a.v); }
static inline uint32_t word(int32_t x) { return static_cast<uint32_t>(x); }  // wraps instead of overflowing
static inline i32x16 ibroadcast(int32_t x) {
  return ieach([&](int i) { return (static_cast<void>(i), x); });
}
static inline i32x16 iadd(i32x16 a, i32x16 b) {
  return ieach([&](int i) { return word(a.v[i]) + word(b.v[i]); });
}
static inline i32x16 isub(i32x16 a, i32x16 b) {
  return ieach([&](int i) { return word(a.v[i]) - word(b.v[i]); });
}
static inline i32x16 imul(i32x16 a, i32x16 b) {
  return ieach([&](int i) { return word(a.v[i]) * word(b.v[i]); });
}
static inline i32x16 ixor(i32x16 a, i32x16 b) {
  return ieach([&](int i) { return word(a.v[i]) ^ word(b.v[i]); });
}
static inline i32x16 ixor3(i32x16 a, i32x16 b, i32x16 c) { return ixor(ixor(a, b), c); }
static inline i32x16 umul_even(i32x16 a, uint32_t factor) {
  return ieach([&](int i) {
    const uint64_t product = uint64_t{word(a.v[i & ~1])} * factor;
    return static_cast<uint32_t>(i & 1 ? product >> 32 : product);
  });
}
static inline i32x16 odd_to_even(i32x16 a) {
  return ieach([&](int i) { return i & 1 ? 0 : a.v[i | 1]; });
}
static inline i32x16 join_even(i32x16 a, i32x16 b) {
  return ieach([&](int i) { return i & 1 ? b.v[i & ~1] : a.v[i]; });
}
static inline i32x16 iand(i32x16 a, i32x16 b) {
  return ieach([&](int i) { return a.v[i] & b.v[i]; });
}
static inline i32x16 ior(i32x16 a, i32x16 b) {
  return ieach([&](int i) { return a.v[i] | b.v[i]; });
}
static inline i32x16 imax(i32x16 a, i32x16 b) {
  return ieach([&](int i) { return a.v[i] > b.v[i] ? a.v[i] : b.v[i]; });
}
static inline i32x16 imin(i32x16 a, i32x16 b) {
  return ieach([&](int i) { return a.v[i] < b.v[i] ? a.v[i] : b.v[i]; });
}
static inline i32x16 ishl(i32x16 a, int n) {
  return ieach([&](int i) { return word(a.v[i]) << n; });
}
static inline i32x16 ishr_arith(i32x16 a, int n) {
  return ieach([&](int i) { return a.v[i] >> n; });
}
static inline i32x16 ishr_logic(i32x16 a, int n) {
  return ieach([&](int i) { return word(a.v[i]) >> n; });
}

static inline int32_t nearest_int(float x) {
  const float magnitude = __builtin_fabsf(x);
  if (!(magnitude < 2147483648.0f)) return INT32_MIN;
  // Adding and taking away 2^23 rounds to an integer, to nearest even.
  const float whole = magnitude < 8388608.0f ? (magnitude + 8388608.0f) - 8388608.0f : magnitude;
  // Negated as an integer: gcc 12 would make float(int(-0.25f)) a truncation, which keeps -0.
  const auto integer = static_cast<int32_t>(whole);
  return x < 0 ? -integer : integer;
}
static inline i32x16 to_int(f32x16 a) {
  return ieach([&](int i) { return nearest_int(a.v[i]); });
}
static inline f32x16 to_float(i32x16 a) {
  return each([&](int i) { return static_cast<float>(a.v[i]); });
}
static inline i32x16 as_int(f32x16 a) {
  return ieach([&](int i) { return bits_as<int32_t>(a.v[i]); });
}
static inline f32x16 as_float(i32x16 a) {
  return each([&](int i) { return bits_as<float>(a.v[i]); });
}

static inline i32x16 load_i8(const int8_t* p) {
  return ieach([&](int i) { return p[i]; });
}
static inline i32x16 load_u8(const uint8_t* p) {
  return ieach([&](int i) { return p[i]; });
}
// Lanes must lie in [-128, 127].
static inline void store_i8(int8_t* p, i32x16 a) {
  for (int i = 0; i < 16; i++) p[i] = static_cast<int8_t>(a.v[i]);
}

static inline float from_f16(uint16_t h) {
  const uint32_t sign = (h & 0x8000u) << 16, exponent = h >> 10 & 31, fraction = h & 0x3ffu;
  if (exponent == 0) {  // zero or subnormal: fraction * 2^-24, exact
    const float magnitude = static_cast<float>(fraction) * 0x1p-24f;
    return sign ? -magnitude : magnitude;
  }
  if (exponent == 31) return bits_as<float>(sign | 0x7f800000u | fraction << 13 | (fraction ? 0x400000u : 0u));
  return bits_as<float>(sign | (exponent + 112) << 23 | fraction << 13);
}
static inline uint16_t to_f16(float x) {
  const uint32_t bits = bits_as<uint32_t>(x), sign = bits >> 16 & 0x8000u, magnitude = bits & 0x7fffffffu;
  if (magnitude > 0x7f800000u) return static_cast<uint16_t>(sign | 0x7e00u | (magnitude >> 13 & 0x3ffu));
  if (magnitude == 0x7f800000u) return static_cast<uint16_t>(sign | 0x7c00u);
  if (magnitude >= 0x477fe000u) return static_cast<uint16_t>(sign | 0x7bffu);
  if (magnitude < 0x38800000u) {  // subnormal: count units of 2^-24, rounded by adding 2^23
    const float units = (bits_as<float>(magnitude) * 0x1p24f + 8388608.0f) - 8388608.0f;
    return static_cast<uint16_t>(sign | static_cast<uint32_t>(units));
  }
  const uint32_t rounded = magnitude + 0xfffu + (magnitude >> 13 & 1) - 0x38000000u;
  return static_cast<uint16_t>(sign | rounded >> 13);
}

static inline f32x16 load_f16(const uint16_t* p) {
  return each([&](int i) { return from_f16(p[i]); });
}
static inline void store_f16(uint16_t* p, f32x16 a) {
  for (int i = 0; i < 16; i++) p[i] = to_f16(a.v[i]);
}
static inline f32x16 load_bf16(const uint16_t* p) {
  return each([&](int i) { return bits_as<float>(static_cast<uint32_t>(p[i]) << 16); });
}
static inline float reduce_add(f32x16 a) {
  for (int width = 8; width > 0; width /= 2)
    for (int i = 0; i < width; i++) a.v[i] = a.v[i] + a.v[i + width];
  return a.v[0];
}
static inline float reduce_max(f32x16 a) {
  for (int width = 8; width > 0; width /= 2)
    for (int i = 0; i < width; i++) a.v[i] = a.v[i] > a.v[i + width] ? a.v[i] : a.v[i + width];
  return a.v[0];
}
static inline int32_t ireduce_add(i32x16 a) {
  for (int width = 8; width > 0; width /= 2)
    for (int i = 0; i < width; i++) a.v[i] = static_cast<int32_t>(word(a.v[i]) + word(a.v[i + width]));
  return a.v[0];
}
static inline int32_t ireduce_max(i32x16 a) {
  for (int width = 8; width > 0; width /= 2)
    for (int i = 0; i < width; i++) a.v[i] = a.v[i] > a.v[i + width] ? a.v[i] : a.v[i + width];
  return a.v[0];
}
static inline Two ireduce_max(i32x16 a, i32x16 b) { return {ireduce_max(a), ireduce_max(b)}; }

}  // namespace insitu::INSITU_NS
