// Packing, quantising and multiplying against their plain definitions, on every instruction set.
// Build: scripts/native-tests; `test_matmul bench` measures.
// Always true: exits 0 only if every comparison held; sums are compared by their bits. Prints digests of
// them, which another architecture must print too.
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "isas.h"
#include "kernels.h"
#include "pack.h"
#include "random_weights.h"

using namespace insitu;

namespace {

struct Named { BlockType type; const char* name; int group; };
constexpr Named kTypes[] = {{BlockType::F32, "F32", 0},    {BlockType::F16, "F16", 0},    {BlockType::BF16, "BF16", 0},
                            {BlockType::Q8_0, "Q8_0", 32}, {BlockType::Q4_0, "Q4_0", 32}, {BlockType::Q4_1, "Q4_1", 32},
                            {BlockType::Q5_0, "Q5_0", 32}, {BlockType::Q4_K, "Q4_K", 256}, {BlockType::Q6_K, "Q6_K", 256},
                            {BlockType::Q5_1, "Q5_1", 32}, {BlockType::Q2_K, "Q2_K", 256}, {BlockType::Q5_K, "Q5_K", 256},
                            {BlockType::Q8_K16, "Q8_K16", 256}};

int failures = 0, checks = 0;
void check(bool holds, const std::string& what) {
  checks++;
  if (!holds && failures++ < 40) std::printf("FAIL %s\n", what.c_str());
}

Random rng;

template <class T> T at(const uint8_t* p) { T x; std::memcpy(&x, p, sizeof x); return x; }

float half(uint16_t h) {
  const int e = h >> 10 & 31, f = h & 1023;
  const float m = e == 31 ? (f ? NAN : INFINITY) : e ? std::ldexp(1024.0f + f, e - 25) : std::ldexp(float(f), -24);
  return h & 0x8000 ? -m : m;
}

// One weight of the file format: integer q, sub-scale, sub-min; scale d and minimum m.
struct Weight { int q, sc, mn; float d, m, value; };
Weight weight(BlockType type, const uint8_t* row, int k) {
  const int i = k % 32, i256 = k % 256;
  switch (type) {
    case BlockType::F32: return {0, 0, 0, 0, 0, at<float>(row + 4 * k)};
    case BlockType::F16: return {0, 0, 0, 0, 0, half(at<uint16_t>(row + 2 * k))};
    case BlockType::BF16: { uint32_t u = uint32_t{at<uint16_t>(row + 2 * k)} << 16; float x; std::memcpy(&x, &u, 4); return {0, 0, 0, 0, 0, x}; }
    case BlockType::Q8_0: { auto b = row + k / 32 * 34; const int q = int8_t(b[2 + i]); const float d = half(at<uint16_t>(b)); return {q, 0, 0, d, 0, q * d}; }
    case BlockType::Q4_0: { auto b = row + k / 32 * 18; const int q = (i < 16 ? b[2 + i] & 15 : b[2 + i - 16] >> 4) - 8; const float d = half(at<uint16_t>(b)); return {q, 0, 0, d, 0, q * d}; }
    case BlockType::Q4_1: { auto b = row + k / 32 * 20; const int q = i < 16 ? b[4 + i] & 15 : b[4 + i - 16] >> 4; const float d = half(at<uint16_t>(b)), m = half(at<uint16_t>(b + 2)); return {q, 0, 0, d, m, q * d + m}; }
    case BlockType::Q5_0: { auto b = row + k / 32 * 22; const int q = ((i < 16 ? b[6 + i] & 15 : b[6 + i - 16] >> 4) | (at<uint32_t>(b + 2) >> i & 1) << 4) - 16; const float d = half(at<uint16_t>(b)); return {q, 0, 0, d, 0, q * d}; }
    case BlockType::Q5_1: { auto b = row + k / 32 * 24; const int q = (i < 16 ? b[8 + i] & 15 : b[8 + i - 16] >> 4) | (at<uint32_t>(b + 4) >> i & 1) << 4; const float d = half(at<uint16_t>(b)), m = half(at<uint16_t>(b + 2)); return {q, 0, 0, d, m, q * d + m}; }
    case BlockType::Q2_K: { auto b = row + k / 256 * 84; const int q = b[16 + 32 * (i256 / 128) + i] >> (2 * (i256 % 128 / 32)) & 3, s = b[i256 / 16], sc = s & 15, mn = s >> 4;
      const float d = half(at<uint16_t>(b + 80)), m = half(at<uint16_t>(b + 82)), ds = d * sc, ms = m * mn; return {q, sc, mn, d, m, ds * q - ms}; }
    case BlockType::Q5_K: { auto b = row + k / 256 * 176; auto s = b + 4; const int j = i256 / 32, c = i256 / 64;
      const int low = j % 2 ? b[48 + 32 * c + i] >> 4 : b[48 + 32 * c + i] & 15, q = low | (b[16 + i] >> j & 1) << 4;
      const int sc = j < 4 ? s[j] & 63 : (s[j + 4] & 15) | (s[j - 4] >> 6) << 4, mn = j < 4 ? s[j + 4] & 63 : s[j + 4] >> 4 | (s[j] >> 6) << 4;
      const float d = half(at<uint16_t>(b)), m = half(at<uint16_t>(b + 2)), ds = d * sc, ms = m * mn; return {q, sc, mn, d, m, ds * q - ms}; }
    case BlockType::Q8_K16: { auto b = row + k / 256 * 276; const int q = int8_t(b[20 + i256]), sc = int8_t(b[4 + i256 / 16]);
      const float d = at<float>(b), ds = d * sc; return {q, sc, 0, d, 0, ds * q}; }
    case BlockType::Q4_K: { auto b = row + k / 256 * 144; auto s = b + 4; const int j = i256 / 32, c = i256 / 64;
      const int q = j % 2 ? b[16 + 32 * c + i] >> 4 : b[16 + 32 * c + i] & 15;
      const int sc = j < 4 ? s[j] & 63 : (s[j + 4] & 15) | (s[j - 4] >> 6) << 4, mn = j < 4 ? s[j + 4] & 63 : s[j + 4] >> 4 | (s[j] >> 6) << 4;
      const float d = half(at<uint16_t>(b)), m = half(at<uint16_t>(b + 2)), ds = d * sc, ms = m * mn; return {q, sc, mn, d, m, ds * q - ms}; }
    case BlockType::Q6_K: { auto b = row + k / 256 * 210; const int h = i256 / 128, part = i256 % 128 / 32;
      const int low = b[64 * h + i + 32 * (part % 2)], high = b[128 + 32 * h + i] >> (2 * part) & 3;
      const int q = ((part < 2 ? low & 15 : low >> 4) | high << 4) - 32, sc = int8_t(b[192 + i256 / 16]);
      const float d = half(at<uint16_t>(b + 208)), ds = d * sc; return {q, sc, 0, d, 0, ds * q}; }
  }
  return {};
}

struct Quantized { std::vector<int> q; std::vector<float> scale; int num_shifted = 0; };
float largest_of(const float* x, int n) {  // by bits: NaN is more than anything
  uint32_t most = 0;
  for (int i = 0; i < n; i++) most = std::max(most, at<uint32_t>(reinterpret_cast<const uint8_t*>(x + i)) & 0x7fffffffu);
  return at<float>(reinterpret_cast<uint8_t*>(&most));
}

Quantized quantize(const float* x, int k, int group) {
  Quantized r;
  float total = 0;
  for (int g = 0; g < k; g += group) {
    const float amax = largest_of(x + g, group);
    total += amax * amax;
  }
  for (int g = 0; g < k; g += group) {
    const float amax = largest_of(x + g, group), scale = amax / 127.0f, inv = amax > 0 ? 127.0f / amax : 0.0f;
    float above = 0, below = 0;
    for (int i = 0; i < group; i++) above = std::max(above, x[g + i]), below = std::max(below, -x[g + i]);
    const float small = std::min(above, below), span = amax + small, half = 0.5f * span, inv254 = 254.0f / span;
    if (group == 32 && amax * amax - half * half > 0.05f * total && std::isfinite(span) && std::isfinite(inv254)) {
      const int farthest = 254 - int(std::nearbyint(small * inv254));
      r.num_shifted++;
      r.scale.push_back(span / 254.0f);
      for (int i = 0; i < group; i++) r.q.push_back(std::clamp(int(std::nearbyint(x[g + i] * inv254)), -farthest, farthest));
      continue;
    }
    r.scale.push_back(scale);
    for (int i = 0; i < group; i++) r.q.push_back(std::isfinite(scale) && std::isfinite(inv) ? int(std::nearbyint(x[g + i] * inv)) : 0);
  }
  return r;
}

// The definition of one output: the chain of the numeric rules, in plain C++.
float define(BlockType type, const uint8_t* row, const float* x, const Quantized& a, int k) {
  float acc = 0;
  if (a.q.empty()) {
    for (int i = 0; i < k; i++) acc = std::fma(weight(type, row, i).value, x[i], acc);
    return acc;
  }
  const int group = block_inputs(type);
  for (int g = 0; g < k; g += group) {
    int dot = 0, mins = 0, sum = 0;
    Weight w{};
    for (int i = g; i < g + group; i++) {
      w = weight(type, row, i);
      dot += group == 256 ? w.sc * w.q * a.q[i] : w.q * a.q[i];
      mins += w.mn * a.q[i];
      sum += a.q[i];
    }
    const float as = a.scale[g / group];
    acc = std::fma(float(dot), w.d * as, acc);
    if (type == BlockType::Q4_1 || type == BlockType::Q5_1) acc = std::fma(w.m, as * float(sum), acc);
    if (type == BlockType::Q4_K || type == BlockType::Q5_K || type == BlockType::Q2_K) acc = std::fma(-float(mins), w.m * as, acc);
  }
  return acc;
}

struct Aligned {
  uint8_t* p;
  explicit Aligned(size_t n) : p(static_cast<uint8_t*>(std::aligned_alloc(64, (n + 63) / 64 * 64))) {}
  ~Aligned() { std::free(p); }
};

std::vector<float> multiply(const KernelTable& t, const PackedSegment& w, const float* x, int m, int group, const Epilogue& e, bool by_columns = false) {
  Aligned q(t.quantized_bytes(m, w.k, group ? group : 32) + 64);
  if (group && by_columns) for (int c = w.k / group; c-- > 0;) t.quantize_column(x + c * group, w.k, m, w.k, group, c, q.p);
  else if (group) for (int i = m; i-- > 0;) t.quantize_row(x + size_t(i) * w.k, m, w.k, group, i, q.p);
  const Activations a{m, w.k, group, group ? nullptr : x, w.k, group ? q.p : nullptr};
  std::vector<float> out(size_t(m) * w.n, -1.0f);
  for (int b = 0; b < (w.n + 31) / 32; b++) t.matmul_block(w, b, a, e, out.data(), w.n);
  t.end_matmul();
  return out;
}

bool same_bits(const float* a, const float* b, size_t n) {
  for (size_t i = 0; i < n; i++)  // any NaN is as good as another
    if (std::memcmp(a + i, b + i, 4) != 0 && !(std::isnan(a[i]) && std::isnan(b[i]))) return false;
  return true;
}

void check_type(const Named& type, int n, int k) {
  const std::string what = std::string(type.name) + " " + std::to_string(n) + "x" + std::to_string(k);
  const auto raw = random_rows(rng, type.type, n, k);
  const size_t bytes = packed_block_bytes(type.type, k), row = block_row_bytes(type.type, k);
  Aligned packed(bytes * ((n + 31) / 32));
  for (int b = 0; b < (n + 31) / 32; b++) pack_block(type.type, raw.data(), n, k, b, packed.p + b * bytes);
  const PackedSegment w{type.type, n, k, packed.p, bytes};
  constexpr int rows = 67;
  std::vector<float> x(size_t(rows) * k), bias(n), residual(size_t(rows) * n), want(size_t(rows) * n);
  for (auto& v : x) {
    v = rng.unit();
    v = std::ldexp(v, rng.below(9) - 4);
  }
  for (auto& v : bias) v = rng.unit();
  for (auto& v : residual) v = rng.unit();
  for (int i = 0; i < k; i++) x[3 * size_t(k) + i] = 0;                       // a zero row
  for (int i = 0; i < k; i++) x[4 * size_t(k) + i] *= 1e-38f;                 // a subnormal one
  for (int m = 8; m < 48; m++) {  // of some rows one group in three, of others all, of others none are one-sided
    const float sign = m % 2 ? -1.0f : 1.0f, other = 0.002f * float(m % 5);
    for (int i = 0; i < k; i++)
      if (m % 3 == 0 || (m % 3 == 1 && i / 32 % 3 == 1)) x[m * size_t(k) + i] = sign * std::fabs(x[m * size_t(k) + i]) * (i % 4 ? 1 : -other);
  }
  for (int i = 0; i < k; i++) x[7 * size_t(k) + i] = i % 32 == 5 ? -3e38f : 2e38f * (i % 32 == 9);  // a span too wide
  x[5 * size_t(k) + 1] = INFINITY, x[6 * size_t(k) + k - 1] = NAN;
  x[15 * size_t(k) + 1] = -INFINITY, x[18 * size_t(k) + k - 1] = NAN;
  int num_shifted = 0;
  for (int m = 0; m < rows; m++) {
    const auto a = type.group ? quantize(&x[size_t(m) * k], k, type.group) : Quantized{};
    num_shifted += a.num_shifted;
    for (int o = 0; o < n; o++) want[size_t(m) * n + o] = define(type.type, &raw[o * row], &x[size_t(m) * k], a, k) + bias[o] + residual[size_t(m) * n + o];
  }
  check((type.group == 32) == (num_shifted >= 5), what + " has shifted groups");
  Digest digest;
  for (float y : want) digest.add(y);
  std::printf("digest matmul %s %016llx\n", what.c_str(), static_cast<unsigned long long>(digest.value));
  for (const char* isa : kIsas) {
    const KernelTable* t = kernel_table(isa);
    if (!t) continue;
    for (int m : {1, 2, 3, 4, 5, 6, 7, 8, 13, 16, 32, 61, 67}) for (int from : {0, 6}) {
      if (from + m > rows) continue;
      const Epilogue e{bias.data(), residual.data() + size_t(from) * n, n};
      const auto y = multiply(*t, w, &x[size_t(from) * k], m, type.group, e);
      check(same_bits(y.data(), &want[size_t(from) * n], y.size()), what + " " + isa + " rows " + std::to_string(m) + " from " + std::to_string(from));
    }
    for (int m : {1, 6, 7, 12, 13, 16, 33, 67}) {  // no column is shifted: against plain C++, rows of zeros, Inf and NaN too
      const auto y = multiply(*t, w, x.data(), m, type.group, {}, true), plain = multiply(*kernel_table("generic"), w, x.data(), m, type.group, {}, true);
      check(same_bits(y.data(), plain.data(), y.size()), what + " " + isa + " by columns, rows " + std::to_string(m));
    }
    for (int m = 0; m < rows; m += 7) {
      const auto y = multiply(*t, w, &x[size_t(m) * k], 1, type.group, {bias.data(), residual.data() + size_t(m) * n, n});
      check(same_bits(y.data(), &want[size_t(m) * n], n), what + " " + isa + " row alone " + std::to_string(m));
    }
    check(std::isnan(multiply(*t, w, &x[6 * size_t(k)], 1, type.group, {nullptr, nullptr, 0})[0]), what + " NaN must spread");
    std::vector<float> e(k);
    for (int o = 0; o < n; o += 5) {
      t->embed_row(w, o, e.data());
      bool equal = true;
      for (int i = 0; i < k; i++) equal &= e[i] == weight(type.type, &raw[o * row], i).value;
      check(equal, what + " " + isa + " embed row " + std::to_string(o));
    }
  }
}

double seconds(auto&& f) {
  double best = 1e9;
  for (int i = 0; i < 7; i++) {
    const auto start = std::chrono::steady_clock::now();
    f();
    best = std::min(best, std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
  }
  return best;
}

void bench(const Named& type, const char* isa, int n, int k) {
  const KernelTable* t = kernel_table(isa);
  if (!t) return;
  const auto raw = random_rows(rng, type.type, 32, k);
  const size_t bytes = packed_block_bytes(type.type, k);
  const int blocks = n / 32;
  Aligned packed(bytes * blocks);
  for (int b = 0; b < blocks; b++) pack_block(type.type, raw.data(), 32, k, 0, packed.p + b * bytes);
  const PackedSegment w{type.type, n, k, packed.p, bytes};
  std::vector<float> x(size_t(512) * k), y(size_t(512) * n);
  for (auto& v : x) v = rng.unit();
  std::printf("%-5s %-10s %dx%d:", type.name, isa, n, k);
  for (int m : {1, 8, 512}) {
    Aligned q(t->quantized_bytes(m, k, type.group ? type.group : 32));
    if (type.group) for (int i = 0; i < m; i++) t->quantize_row(x.data() + size_t(i) * k, m, k, type.group, i, q.p);
    const Activations a{m, k, type.group, x.data(), k, q.p};
    const auto half_of = [&](int part) { for (int b = blocks * part / 2; b < blocks * (part + 1) / 2; b++) t->matmul_block(w, b, a, {}, y.data(), n); t->end_matmul(); };
    const double s = seconds([&] { std::thread other(half_of, 1); half_of(0); other.join(); });
    std::printf("  M=%d %.0f GOPS %.1f GB/s", m, 2e-9 * m * n * k / s, 1e-9 * bytes * blocks / s);
  }
  std::printf("\n");
}

void bench_packing(const Named& type) {
  const int k = 1536, n = 65536;
  std::vector<uint8_t> raw(block_row_bytes(type.type, k) * n);
  const size_t bytes = packed_block_bytes(type.type, k);
  Aligned out(bytes * (n / 32));
  std::memset(out.p, 1, bytes * (n / 32));
  const double s = seconds([&] { for (int b = 0; b < n / 32; b++) pack_block(type.type, raw.data(), n, k, b, out.p + b * bytes); });
  std::printf("pack %-5s %.2f GB/s of raw, one thread\n", type.name, 1e-9 * raw.size() / s);
}

}  // namespace

int main(int argc, char**) {
  for (const Named& type : kTypes) {
    const bool is_k = type.group == 256;
    check_type(type, 40, is_k ? 512 : 96);
    check_type(type, 1, is_k ? 256 : 32);
    check_type(type, 32, is_k ? 768 : 576);
    if (type.group == 0) check_type(type, 35, 37);
  }
  if (argc > 1) {
    for (const Named& type : kTypes) bench_packing(type);
    for (const Named& type : kTypes) for (const char* isa : kIsas) if (std::strcmp(isa, "generic") != 0) bench(type, isa, 8960, 1536);
    for (const char* isa : kIsas) bench(kTypes[4], isa, 1536, 576);
  }
  return report(checks, failures);
}
