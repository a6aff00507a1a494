// Operators that work on one row: norms, rotary embedding, activations, factors, sum.
// Not here: which rows, or on which thread. Needs simd.h and math.h of the same instruction set.
// Truth: kernels/reference.py. Always true: a row's bits depend on that row alone.
#pragma once
#include <cstddef>

#include "kernels.h"
#include "math.h"
#include "matmul_dot.h"
#include "simd.h"

namespace insitu::INSITU_NS {

// y = (x * 1/sqrt(mean(x^2) + eps)) * weight; squares summed in 16 lanes, then a fixed tree.
static void rms_norm_row(const float* x, const float* weight, int width, float eps, float* out) {
  const int whole = width & ~15;
  const mask16 tail = first_lanes(width - whole);
  f32x16 squares = broadcast(0.0f);
  for (int i = 0; i < whole; i += 16) {
    const f32x16 v = loadu(x + i);
    squares = fma(v, v, squares);
  }
  if (whole < width) {
    const f32x16 v = load_masked(tail, x + whole);
    squares = fma(v, v, squares);
  }
  const float mean = reduce_add(squares) / static_cast<float>(width);
  const f32x16 scale = div(broadcast(1.0f), sqrt(broadcast(mean + eps)));
  for (int i = 0; i < whole; i += 16) storeu(out + i, mul(mul(loadu(x + i), scale), loadu(weight + i)));
  if (whole < width)
    store_masked(tail, out + whole, mul(mul(load_masked(tail, x + whole), scale), load_masked(tail, weight + whole)));
}

// y = (x - mean) * 1/sqrt(mean((x - mean)^2) + eps) * weight + offset; both sums in 16 lanes, then a fixed tree.
static void layer_norm_row(const float* x, const float* weight, int width, float eps, float* out) {
  const int whole = width & ~15;
  const mask16 tail = first_lanes(width - whole);
  f32x16 sums = broadcast(0.0f);
  for (int i = 0; i < whole; i += 16) sums = add(sums, loadu(x + i));
  if (whole < width) sums = add(sums, load_masked(tail, x + whole));
  const f32x16 mean = broadcast(reduce_add(sums) / static_cast<float>(width));
  f32x16 squares = broadcast(0.0f);
  for (int i = 0; i < whole; i += 16) {
    const f32x16 v = sub(loadu(x + i), mean);
    squares = fma(v, v, squares);
  }
  if (whole < width) {
    const f32x16 v = select(tail, sub(load_masked(tail, x + whole), mean), broadcast(0.0f));
    squares = fma(v, v, squares);
  }
  const float variance = reduce_add(squares) / static_cast<float>(width);
  const f32x16 scale = div(broadcast(1.0f), sqrt(broadcast(variance + eps)));
  const float* offset = weight + width;
  for (int i = 0; i < whole; i += 16)
    storeu(out + i, fma(mul(sub(loadu(x + i), mean), scale), loadu(weight + i), loadu(offset + i)));
  if (whole < width)
    store_masked(tail, out + whole, fma(mul(sub(load_masked(tail, x + whole), mean), scale),
                                        load_masked(tail, weight + whole), load_masked(tail, offset + whole)));
}

// theta^(-2i / dim), in double.
static void rope_frequencies(double theta, int dim, double* out) {
  const double log_theta = log_d(theta);
  for (int i = 0; i < dim / 2; i++) out[i] = exp_d(-(2.0 * i / dim) * log_theta);
}

// [dim]: cosines, then sines, both times `magnitude`.
static void rope_angles_row(double position, const double* frequencies, int dim, double magnitude, float* out) {
  const int half = dim / 2;
  for (int i = 0; i < half; i++) {
    double s, c;
    sincos_d(position * frequencies[i], &s, &c);
    out[i] = static_cast<float>(c * magnitude);
    out[half + i] = static_cast<float>(s * magnitude);
  }
}

static inline void rotate(float& a, float& b, float c, float s) {
  const float x = a, y = b;
  a = x * c - y * s;
  b = x * s + y * c;
}

// Rotates the first `dim` of every head: pairs (2i, 2i + 1), or (i, i + dim / 2).
static void rope_row(float* x, const float* angles, int num_heads, int head_dim, int dim, bool is_adjacent) {
  const int half = dim / 2;
  const float *c = angles, *s = angles + half;
  for (int h = 0; h < num_heads; h++, x += head_dim) {
    if (is_adjacent) {
      for (int i = 0; i < half; i++) rotate(x[2 * i], x[2 * i + 1], c[i], s[i]);
      continue;
    }
    int i = 0;
    for (; i + 16 <= half; i += 16) {
      const f32x16 a = loadu(x + i), b = loadu(x + half + i), vc = loadu(c + i), vs = loadu(s + i);
      storeu(x + i, sub(mul(a, vc), mul(b, vs)));
      storeu(x + half + i, add(mul(a, vs), mul(b, vc)));
    }
    for (; i < half; i++) rotate(x[i], x[half + i], c[i], s[i]);
  }
}

static inline f32x16 silu(f32x16 x) {
  const f32x16 one = broadcast(1.0f);
  return div(x, add(one, exp(sub(broadcast(0.0f), x))));
}

// 0.5 x (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3)))
static inline f32x16 gelu(f32x16 x) {
  const f32x16 one = broadcast(1.0f);
  const f32x16 inner = mul(mul(broadcast(0.797884561f), x), fma(mul(x, x), broadcast(0.044715f), one));
  return mul(mul(broadcast(0.5f), x), add(one, tanh(inner)));
}

// out[i .. i + 15] = f(how to load those of a row), for a row of any width.
template <class F>
static INSITU_INLINE void for_lanes(int width, float* out, const F& f) {
  int i = 0;
  for (; i + 16 <= width; i += 16) storeu(out + i, f([i](const float* p) { return loadu(p + i); }));
  if (i == width) return;
  const mask16 tail = first_lanes(width - i);
  store_masked(tail, out + i, f([i, tail](const float* p) { return load_masked(tail, p + i); }));
}

// Rows at a time: what is constant is loaded once.
static void gated_rows(const float* x, ptrdiff_t stride, int num_rows, int width, Activation activation, float* out,
                       ptrdiff_t out_stride) {
  if (activation == Activation::Silu)
    for (int row = 0; row < num_rows; row++, x += stride, out += out_stride)
      for_lanes(width, out, [=](auto at) { return mul(silu(at(x)), at(x + width)); });
  else
    for (int row = 0; row < num_rows; row++, x += stride, out += out_stride)
      for_lanes(width, out, [=](auto at) { return mul(gelu(at(x)), at(x + width)); });
}

static void activate_row(const float* x, int width, Activation activation, float* out) {
  if (activation == Activation::Silu) for_lanes(width, out, [=](auto at) { return silu(at(x)); });
  else for_lanes(width, out, [=](auto at) { return gelu(at(x)); });
}

static void scale_row(const float* x, int width, float factor, float* out) {
  for_lanes(width, out, [=](auto at) { return mul(at(x), broadcast(factor)); });
}

// cap * tanh(x / cap), the division being a factor of 1 / cap.
static void soft_cap_row(const float* x, int width, float cap, float* out) {
  const f32x16 inverse = broadcast(1.0f / cap);
  for_lanes(width, out, [=](auto at) { return mul(tanh(mul(at(x), inverse)), broadcast(cap)); });
}

static void add_row(const float* a, const float* b, int width, float* out) {
  int i = 0;
  for (; i + 16 <= width; i += 16) storeu(out + i, add(loadu(a + i), loadu(b + i)));
  for (; i < width; i++) out[i] = a[i] + b[i];
}

static void add_scaled_row(const float* x, float factor, int width, float* out) {
  for_lanes(width, out, [=](auto at) { return fma(at(x), broadcast(factor), at(out)); });
}

static void sigmoid_scaled_row(const float* x, float gate, int width, float* out) {
  const f32x16 one = broadcast(1.0f), factor = div(one, add(one, exp(broadcast(-gate))));
  for_lanes(width, out, [=](auto at) { return mul(at(x), factor); });
}

// Ties go to the lowest id. The sum is of all, in 16 lanes and a tree, or of the chosen, in order of id.
static void route_row(const float* logits, int n, int num_active, bool is_normalised, float* out) {
  bool is_chosen[kMaxExperts] = {};
  float highest = -__builtin_inff();
  for (int i = 0; i < n; i++) highest = logits[i] > highest ? logits[i] : highest;
  for_lanes(n, out, [=](auto at) { return exp(sub(at(logits), broadcast(highest))); });
  f32x16 sums = broadcast(0.0f);
  for (int i = 0; i < n; i += 16) sums = add(sums, load_masked(first_lanes(n - i), out + i));
  for (int k = 0; k < num_active; k++) {
    int best = -1;
    for (int i = 0; i < n; i++)
      if (!is_chosen[i] && (best < 0 || logits[i] > logits[best])) best = i;
    is_chosen[best] = true;
  }
  float total = is_normalised ? 0.0f : reduce_add(sums);
  for (int i = 0; i < n && is_normalised; i++) total = is_chosen[i] ? total + out[i] : total;
  for (int i = 0; i < n; i++) out[i] = is_chosen[i] ? out[i] / total : 0.0f;
}

}  // namespace insitu::INSITU_NS

// The entries of KernelTable that this file fills, in its order.
#define INSITU_ELEMENTWISE_ENTRIES                                                                          \
  .rms_norm_row = rms_norm_row, .layer_norm_row = layer_norm_row, .rope_frequencies = rope_frequencies,     \
  .rope_angles_row = rope_angles_row, .rope_row = rope_row, .gated_rows = gated_rows,                       \
  .activate_row = activate_row, .scale_row = scale_row, .soft_cap_row = soft_cap_row, .add_row = add_row,   \
  .add_scaled_row = add_scaled_row, .sigmoid_scaled_row = sigmoid_scaled_row, .route_row = route_row
