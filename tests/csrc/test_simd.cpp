// Every operation of simd.h against its definition in plain C++, on the values where they differ.
// Build: scripts/native-tests, once for each instruction set (INSITU_NS, INSITU_SIMD_BITS, INSITU_TABLE_NAME).
// Always true: exits 0 if all held, or if this processor cannot run them.
#include <cmath>
#include <cstdio>
#include <cstring>

#include "kernels.h"
#include "simd.h"

namespace insitu::INSITU_NS {
namespace {

int failures = 0, checks = 0;

constexpr float kInf = __builtin_inff();
const float kFloats[] = {0.0f, -0.0f, 1.0f, -1.0f, 0.5f, 1.5f, 2.5f, -0.5f, -1.5f, -2.5f, 3.0f, 1e-40f, -1e-40f,
                         1.17549435e-38f, 3.40282347e38f, -3.40282347e38f, kInf, -kInf, NAN, 65504.0f, 65519.99f,
                         65520.0f, -65520.0f, 1e6f, 6.1035156e-5f, 5.9604645e-8f, 2.9802322e-8f, 2.9802326e-8f, 1e-9f,
                         2049.0f, 2051.0f, 8388609.0f, 8388607.5f, 2147483520.0f, 2147483648.0f, -2147483648.0f,
                         -2147483904.0f, 4294967296.0f, 0.1f, -123.456f};
constexpr int kNumFloats = sizeof kFloats / sizeof kFloats[0];
const int32_t kInts[] = {0, 1, -1, 127, -128, 255, 65535, -65536, 0x7fffffff, INT32_MIN, 0x0f0f0f0f, 12345678, -98765};
constexpr int kNumInts = sizeof kInts / sizeof kInts[0];

uint32_t bits_of(float x) {
  uint32_t u;
  std::memcpy(&u, &x, 4);
  return u;
}
float float_of(uint32_t u) {
  float x;
  std::memcpy(&x, &u, 4);
  return x;
}
bool same(float a, float b) { return bits_of(a) == bits_of(b) || (std::isnan(a) && std::isnan(b)); }
bool same(int32_t a, int32_t b) { return a == b; }

template <class T>
void check(const char* what, T got, T wanted) {
  checks++;
  if (!same(got, wanted) && failures++ < 40)
    std::printf("FAIL %s: %.9g, not %.9g\n", what, static_cast<double>(got), static_cast<double>(wanted));
}

struct Floats { float at[16]; };
struct Ints { int32_t at[16]; };
Floats lanes(f32x16 a) {
  Floats r;
  storeu(r.at, a);
  return r;
}
Ints lanes(i32x16 a) {
  Ints r;
  istore(r.at, a);
  return r;
}
// Sixteen values of the list from `start` on, so that every pair of them meets in some lane.
Floats floats(int start) {
  Floats r;
  for (int i = 0; i < 16; i++) r.at[i] = kFloats[(start + i) % kNumFloats];
  return r;
}
Ints ints(int start) {
  Ints r;
  for (int i = 0; i < 16; i++) r.at[i] = kInts[(start + i) % kNumInts];
  return r;
}

// Negated as an integer: gcc 12 makes float(int(x)) a truncation that keeps -0.
int32_t nearest(float x) {
  const auto magnitude = static_cast<int64_t>(std::nearbyint(std::fabs(x) < 2147483648.0f ? std::fabs(x) : 0x1p31f));
  return static_cast<int32_t>(x < 0 || magnitude == INT64_C(1) << 31 ? -magnitude : magnitude);
}
int32_t wrapped(uint32_t x) { return static_cast<int32_t>(x); }

void check_floats(int s, int t) {
  const Floats x = floats(s), y = floats(t), z = floats(s + 2 * t + 5);
  const f32x16 a = loadu(x.at), b = loadu(y.at), c = loadu(z.at);
  const Floats sums = lanes(add(a, b)), differences = lanes(sub(a, b)), products = lanes(mul(a, b)),
               quotients = lanes(div(a, b)), most = lanes(max(a, b)), least = lanes(min(a, b)),
               fused = lanes(fma(a, b, c)), negated = lanes(fnma(a, b, c)), chosen = lanes(select(lt(a, b), a, c));
  const uint32_t below = mask_bits(lt(a, b)), above = mask_bits(gt(a, b)), equal = mask_bits(eq(a, b));
  for (int i = 0; i < 16; i++) {
    const float p = x.at[i], q = y.at[i], r = z.at[i];
    check("add", sums.at[i], p + q);
    check("sub", differences.at[i], p - q);
    check("mul", products.at[i], p * q);
    check("div", quotients.at[i], p / q);
    check("max", most.at[i], p > q ? p : q);
    check("min", least.at[i], p < q ? p : q);
    check("fma", fused.at[i], std::fma(p, q, r));
    check("fnma", negated.at[i], std::fma(-p, q, r));
    check("select", chosen.at[i], p < q ? p : r);
    check("lt", static_cast<int32_t>(below >> i & 1), p < q ? 1 : 0);
    check("gt", static_cast<int32_t>(above >> i & 1), p > q ? 1 : 0);
    check("eq", static_cast<int32_t>(equal >> i & 1), p == q ? 1 : 0);
  }
}

void check_one_float(int s) {
  Floats x = floats(s);
  const f32x16 a = loadu(x.at);
  const Floats roots = lanes(sqrt(a)), magnitudes = lanes(abs(a)), back = lanes(to_float(to_int(a)));
  const Ints integers = lanes(to_int(a)), bits = lanes(as_int(a));
  for (int i = 0; i < 16; i++) {
    check("sqrt", roots.at[i], std::sqrt(x.at[i]));
    check("abs", magnitudes.at[i], std::fabs(x.at[i]));
    check("to_int", integers.at[i], nearest(x.at[i]));
    check("to_float", back.at[i], static_cast<float>(nearest(x.at[i])));
    check("as_int", bits.at[i], static_cast<int32_t>(bits_of(x.at[i])));
  }
  for (int width = 8; width > 0; width /= 2)
    for (int i = 0; i < width; i++) x.at[i] = x.at[i] + x.at[i + width];
  check("reduce_add", reduce_add(a), x.at[0]);
  x = floats(s);
  for (int width = 8; width > 0; width /= 2)
    for (int i = 0; i < width; i++) x.at[i] = x.at[i] > x.at[i + width] ? x.at[i] : x.at[i + width];
  check("reduce_max", reduce_max(a), x.at[0]);
}

void check_masked(int n) {
  const Floats x = floats(3), y = floats(17);
  const mask16 m = first_lanes(n);
  Floats stored = y;
  store_masked(m, stored.at, loadu(x.at));
  const Floats loaded = lanes(load_masked(m, x.at));
  const Ints chosen = lanes(iselect(m, ibroadcast(1), ibroadcast(2)));
  for (int i = 0; i < 16; i++) {
    check("store_masked", stored.at[i], i < n ? x.at[i] : y.at[i]);
    check("load_masked", loaded.at[i], i < n ? x.at[i] : 0.0f);
    check("iselect", chosen.at[i], i < n ? 1 : 2);
  }
}

void check_ints(int s, int t) {
  const Ints x = ints(s), y = ints(t);
  const i32x16 a = iload(x.at), b = iload(y.at);
  const Ints sums = lanes(iadd(a, b)), differences = lanes(isub(a, b)), products = lanes(imul(a, b)),
             ands = lanes(iand(a, b)), ors = lanes(ior(a, b)), most = lanes(imax(a, b)), least = lanes(imin(a, b)),
             left = lanes(ishl(a, t % 32)), right = lanes(ishr_arith(a, t % 32)), down = lanes(ishr_logic(a, t % 32));
  const Ints all = lanes(ixor3(a, b, iload(ints(s + t).at))), wide = lanes(umul_even(a, 0xD2511F53)),
             odd = lanes(odd_to_even(a)), joined = lanes(join_even(a, b));
  for (int i = 0; i < 16; i += 2) {
    const uint64_t product = uint64_t{static_cast<uint32_t>(x.at[i])} * 0xD2511F53;
    check("umul_even", wide.at[i], wrapped(static_cast<uint32_t>(product)));
    check("umul_even", wide.at[i + 1], wrapped(static_cast<uint32_t>(product >> 32)));
    check("odd_to_even", odd.at[i], x.at[i + 1]);
    check("join_even", joined.at[i], x.at[i]);
    check("join_even", joined.at[i + 1], y.at[i]);
  }
  uint32_t total = 0;
  int32_t maximum = INT32_MIN;
  for (int i = 0; i < 16; i++) {
    const int32_t p = x.at[i], q = y.at[i];
    const auto u = static_cast<uint32_t>(p), v = static_cast<uint32_t>(q);
    check("iadd", sums.at[i], wrapped(u + v));
    check("isub", differences.at[i], wrapped(u - v));
    check("imul", products.at[i], wrapped(u * v));
    check("ixor3", all.at[i], p ^ q ^ ints(s + t).at[i]);
    check("iand", ands.at[i], p & q);
    check("ior", ors.at[i], p | q);
    check("imax", most.at[i], p > q ? p : q);
    check("imin", least.at[i], p < q ? p : q);
    check("ishl", left.at[i], wrapped(u << (t % 32)));
    check("ishr_arith", right.at[i], p >> (t % 32));
    check("ishr_logic", down.at[i], wrapped(u >> (t % 32)));
    total += u;
    maximum = p > maximum ? p : maximum;
  }
  check("ireduce_add", ireduce_add(a), wrapped(total));
  check("ireduce_max", ireduce_max(a), maximum);
  check("ireduce_max of two", ireduce_max(a, ibroadcast(-7)).a, maximum);
  check("ireduce_max of two", ireduce_max(ibroadcast(7), a).b, maximum);
}

void check_bytes() {
  int8_t signed_bytes[256], stored[16];
  uint8_t bytes[256];
  for (int i = 0; i < 256; i++) signed_bytes[i] = static_cast<int8_t>(i - 128), bytes[i] = static_cast<uint8_t>(i);
  for (int at = 0; at <= 240; at++) {
    const Ints a = lanes(load_i8(signed_bytes + at)), b = lanes(load_u8(bytes + at));
    store_i8(stored, load_i8(signed_bytes + at));
    for (int i = 0; i < 16; i++) {
      check("load_i8", a.at[i], at + i - 128);
      check("load_u8", b.at[i], at + i);
      check("store_i8", int32_t{stored[i]}, at + i - 128);
    }
  }
}

float half(uint32_t h) {
  const int e = h >> 10 & 31, f = h & 1023;
  const float m = e == 31 ? (f ? NAN : kInf) : e ? std::ldexp(1024.0f + f, e - 25) : std::ldexp(float(f), -24);
  return h & 0x8000 ? -m : m;
}

// All halves are read; all are stored again; between two of them the nearer, or the even one, is stored.
void check_halves() {
  for (uint32_t h = 0; h < 0x10000; h += 16) {
    uint16_t in[16], out[16];
    for (uint32_t i = 0; i < 16; i++) in[i] = static_cast<uint16_t>(h + i);
    const Floats read = lanes(load_f16(in)), high = lanes(load_bf16(in));
    store_f16(out, load_f16(in));
    for (uint32_t i = 0; i < 16; i++) {
      check("load_f16", read.at[i], half(h + i));
      check("load_bf16", high.at[i], float_of((h + i) << 16));
      check("store_f16", half(out[i]), half(h + i));
      const uint32_t low = (h + i) & 0x7fff;
      if (low >= 0x7bff) continue;
      const float middle = (half(low) + half(low + 1)) / 2;  // exact
      const float near[3] = {std::nextafter(middle, 0.0f), middle, std::nextafter(middle, kInf)};
      const uint32_t wanted[3] = {low, low + (low & 1), low + 1};
      for (int j = 0; j < 3; j++) {
        uint16_t rounded[16];
        store_f16(rounded, broadcast(near[j]));
        check("store_f16 rounds", int32_t{rounded[j]}, static_cast<int32_t>(wanted[j]));
      }
    }
  }
  for (float x : kFloats) {
    uint16_t out[16];
    store_f16(out, broadcast(x));
    if (std::fabs(x) > 65504.0f && std::fabs(x) < kInf) check("store_f16 saturates", half(out[3]), std::copysign(65504.0f, x));
    if (!(std::fabs(x) < kInf)) check("store_f16 keeps", half(out[3]), x);
  }
}

int run() {
  if (!kernel_table(INSITU_TABLE_NAME)) return std::printf("%s cannot run here\n", INSITU_TABLE_NAME), 0;
  for (int s = 0; s < kNumFloats; s++) {
    check_one_float(s);
    for (int t = 0; t < kNumFloats; t++) check_floats(s, t);
  }
  for (int s = 0; s < kNumInts; s++)
    for (int t = 0; t < 32; t++) check_ints(s, t);
  for (int n = -1; n <= 17; n++) check_masked(n);
  check_bytes();
  check_halves();
  std::printf("%s ran\n%d checks, %d failed\n", INSITU_TABLE_NAME, checks, failures);
  return failures != 0;
}

}  // namespace
}  // namespace insitu::INSITU_NS

int main() { return insitu::INSITU_NS::run(); }
