// Exponentials, logarithms, sines and noise: ours, so that their bits depend on no libm and no processor.
// Not here: anything that walks a row. Only IEEE +, *, / and explicit fma, in a fixed order.
// Always true: the same bits on every instruction set; NaN gives NaN.
#pragma once
#include <cstdint>

#include "simd.h"

namespace insitu::INSITU_NS {

// e^x within 2 ulp for x in [-87, 88.37]; below it stays at e^-87. Above: exp. Several at a time: one is
// a chain of 17 operations that each wait for the last.
template <int N>
static INSITU_INLINE void exp_in_range(f32x16 (&x)[N]) {
  constexpr float kTerms[] = {1.3981999507e-3f, 8.3334519073e-3f, 4.1665795894e-2f, 1.6666665459e-1f, 5.0000001201e-1f};
  i32x16 power[N];
  f32x16 r[N], p[N];
  INSITU_UNROLL for (int i = 0; i < N; i++) x[i] = max(broadcast(-87.0f), x[i]);
  INSITU_UNROLL for (int i = 0; i < N; i++) power[i] = to_int(mul(x[i], broadcast(1.44269504f)));
  // ln 2 in two parts, the first with few bits
  INSITU_UNROLL for (int i = 0; i < N; i++) r[i] = fnma(to_float(power[i]), broadcast(0.693359375f), x[i]);
  INSITU_UNROLL for (int i = 0; i < N; i++) r[i] = fnma(to_float(power[i]), broadcast(-2.12194440e-4f), r[i]);
  INSITU_UNROLL for (int i = 0; i < N; i++) p[i] = broadcast(1.9875691500e-4f);  // minimax on [-ln 2 / 2, ln 2 / 2]
  INSITU_UNROLL for (const float term : kTerms)
    INSITU_UNROLL for (int i = 0; i < N; i++) p[i] = fma(p[i], r[i], broadcast(term));
  INSITU_UNROLL for (int i = 0; i < N; i++) p[i] = add(fma(mul(r[i], r[i]), p[i], r[i]), broadcast(1.0f));
  INSITU_UNROLL for (int i = 0; i < N; i++) x[i] = as_float(iadd(as_int(p[i]), ishl(power[i], 23)));
}

static inline f32x16 exp_in_range(f32x16 x) {
  f32x16 one[1] = {x};
  exp_in_range(one);
  return one[0];
}

// The same, and infinite above.
static inline f32x16 exp(f32x16 x) {
  const f32x16 high = broadcast(88.37f);
  const mask16 is_over = gt(x, high);
  return select(is_over, broadcast(__builtin_inff()), exp_in_range(select(is_over, high, x)));
}

// tanh x within 3 ulp: an odd polynomial near zero, 1 - 2 / (e^2|x| + 1) beyond.
static inline f32x16 tanh(f32x16 x) {
  const f32x16 magnitude = abs(x), square = mul(x, x), one = broadcast(1.0f);
  f32x16 p = broadcast(-5.70498872745e-3f);
  p = fma(p, square, broadcast(2.06390887954e-2f));
  p = fma(p, square, broadcast(-5.37397155531e-2f));
  p = fma(p, square, broadcast(1.33314422036e-1f));
  p = fma(p, square, broadcast(-3.33332819422e-1f));
  const f32x16 near = fma(mul(p, square), x, x);
  const f32x16 e = exp(add(magnitude, magnitude));
  const f32x16 far = sub(one, div(broadcast(2.0f), add(e, one)));
  const f32x16 is_signed = select(lt(x, broadcast(0.0f)), sub(broadcast(0.0f), far), far);
  return select(lt(magnitude, broadcast(0.625f)), near, is_signed);
}

static inline uint64_t bits_of(double x) {
  uint64_t u;
  __builtin_memcpy(&u, &x, sizeof u);
  return u;
}
static inline double double_of(uint64_t u) {
  double x;
  __builtin_memcpy(&x, &u, sizeof x);
  return x;
}

// Adding 1.5 * 2^52 rounds to the nearest integer (ties to even) and leaves it in the low bits.
constexpr double kRoundingShift = 6755399441055744.0;
constexpr double kLn2High = 0x1.62e42fefa39efp-1, kLn2Low = 0x1.abc9e3b39803fp-56;

// e^x within 2 ulp, to zero and infinity at the ends. Branch-free.
static inline double exp_d(double x) {
  x = x < -750.0 ? -750.0 : x;
  x = x > 710.0 ? 710.0 : x;
  const double shifted = __builtin_fma(x, 0x1.71547652b82fep+0, kRoundingShift);
  const double n = shifted - kRoundingShift;
  double r = __builtin_fma(-n, kLn2High, x);
  r = __builtin_fma(-n, kLn2Low, r);
  double p = 1.0 / 6227020800.0;  // Taylor to r^13: |r| <= ln 2 / 2
  p = __builtin_fma(p, r, 1.0 / 479001600.0);
  p = __builtin_fma(p, r, 1.0 / 39916800.0);
  p = __builtin_fma(p, r, 1.0 / 3628800.0);
  p = __builtin_fma(p, r, 1.0 / 362880.0);
  p = __builtin_fma(p, r, 1.0 / 40320.0);
  p = __builtin_fma(p, r, 1.0 / 5040.0);
  p = __builtin_fma(p, r, 1.0 / 720.0);
  p = __builtin_fma(p, r, 1.0 / 120.0);
  p = __builtin_fma(p, r, 1.0 / 24.0);
  p = __builtin_fma(p, r, 1.0 / 6.0);
  p = __builtin_fma(p, r, 0.5);
  p = __builtin_fma(p, r, 1.0);
  p = __builtin_fma(p, r, 1.0);
  // 2^n in two factors, so that results near the ends round once, at the last product.
  const int64_t power = static_cast<int64_t>(bits_of(shifted) - bits_of(kRoundingShift));
  const int64_t half = power >> 1;
  const double first = double_of(static_cast<uint64_t>(half + 1023) << 52);
  const double second = double_of(static_cast<uint64_t>(power - half + 1023) << 52);
  return p * first * second;
}

// ln x within 2 ulp; log 0 = -infinity, negative x gives NaN. Branch-free.
static inline double log_d(double x) {
  const bool is_small = x < 0x1p-1022;
  const uint64_t bits = bits_of(is_small ? x * 0x1p54 : x);
  // x = 2^e * m, m in [sqrt(1/2), sqrt(2))
  const int64_t e = static_cast<int64_t>(bits - 0x3fe6a09e667f3bcdull) >> 52;
  const double m = double_of(bits - (static_cast<uint64_t>(e) << 52));
  const double s = (m - 1.0) / (m + 1.0), s2 = s * s;  // ln m = 2 atanh s, |s| <= 0.172
  double p = 1.0 / 23.0;
  p = __builtin_fma(p, s2, 1.0 / 21.0);
  p = __builtin_fma(p, s2, 1.0 / 19.0);
  p = __builtin_fma(p, s2, 1.0 / 17.0);
  p = __builtin_fma(p, s2, 1.0 / 15.0);
  p = __builtin_fma(p, s2, 1.0 / 13.0);
  p = __builtin_fma(p, s2, 1.0 / 11.0);
  p = __builtin_fma(p, s2, 1.0 / 9.0);
  p = __builtin_fma(p, s2, 1.0 / 7.0);
  p = __builtin_fma(p, s2, 1.0 / 5.0);
  p = __builtin_fma(p, s2, 1.0 / 3.0);
  const double power = static_cast<double>(static_cast<int32_t>(e)) - (is_small ? 54.0 : 0.0);
  const double tail = __builtin_fma(2.0 * s * s2, p, power * kLn2Low);
  const double y = __builtin_fma(power, kLn2High, 2.0 * s + tail);
  const double at_ends = x == 0.0 ? -__builtin_inf() : x > 0.0 ? x : __builtin_nan("");
  return x > 0.0 && x < __builtin_inf() ? y : at_ends;
}

// Sine and cosine, absolute error below 2^-52 for |x| up to 2^30 (positions of any model).
static inline void sincos_d(double x, double* sine, double* cosine) {
  const double shifted = __builtin_fma(x, 0x1.45f306dc9c883p-1, kRoundingShift);
  const double n = shifted - kRoundingShift;
  const uint64_t quadrant = bits_of(shifted) & 3;
  double r = __builtin_fma(-n, 0x1.921fb54442d18p+0, x);  // pi / 2 in three parts
  r = __builtin_fma(-n, 0x1.1a62633145c07p-54, r);
  r = __builtin_fma(-n, -0x1.f1976b7ed8fbcp-110, r);
  const double r2 = r * r;
  double s = 1.0 / 355687428096000.0;  // Taylor: |r| <= pi / 4
  s = __builtin_fma(s, r2, -1.0 / 1307674368000.0);
  s = __builtin_fma(s, r2, 1.0 / 6227020800.0);
  s = __builtin_fma(s, r2, -1.0 / 39916800.0);
  s = __builtin_fma(s, r2, 1.0 / 362880.0);
  s = __builtin_fma(s, r2, -1.0 / 5040.0);
  s = __builtin_fma(s, r2, 1.0 / 120.0);
  s = __builtin_fma(s, r2, -1.0 / 6.0);
  s = __builtin_fma(s * r2, r, r);
  double c = -1.0 / 6402373705728000.0;
  c = __builtin_fma(c, r2, 1.0 / 20922789888000.0);
  c = __builtin_fma(c, r2, -1.0 / 87178291200.0);
  c = __builtin_fma(c, r2, 1.0 / 479001600.0);
  c = __builtin_fma(c, r2, -1.0 / 3628800.0);
  c = __builtin_fma(c, r2, 1.0 / 40320.0);
  c = __builtin_fma(c, r2, -1.0 / 720.0);
  c = __builtin_fma(c, r2, 1.0 / 24.0);
  c = __builtin_fma(c, r2, -0.5);
  c = __builtin_fma(c, r2, 1.0);
  const double at = quadrant & 1 ? c : s, across = quadrant & 1 ? s : c;
  *sine = quadrant & 2 ? -at : at;
  *cosine = (quadrant + 1) & 2 ? -across : across;
}

struct PhiloxWords { uint32_t word[4]; };

// Philox4x32-10: a counter and a key give 128 random bits, with no state.
static inline PhiloxWords philox(uint64_t key, uint32_t c0, uint32_t c1, uint32_t c2, uint32_t c3) {
  uint32_t k0 = static_cast<uint32_t>(key), k1 = static_cast<uint32_t>(key >> 32);
  for (int round = 0; round < 10; round++) {
    const uint64_t a = uint64_t{0xD2511F53u} * c0, b = uint64_t{0xCD9E8D57u} * c2;
    c0 = static_cast<uint32_t>(b >> 32) ^ c1 ^ k0;
    c1 = static_cast<uint32_t>(b);
    c2 = static_cast<uint32_t>(a >> 32) ^ c3 ^ k1;
    c3 = static_cast<uint32_t>(a);
    k0 += 0x9E3779B9u;
    k1 += 0xBB67AE85u;
  }
  return {{c0, c1, c2, c3}};
}

}  // namespace insitu::INSITU_NS
