// Operators that work on one row: norm, rotary embedding, gated activation, sum.
// Not here: which rows, or on which thread. Needs simd.h and math.h of the same instruction set.
// Truth: kernels/reference.py. Always true: a row's bits depend on that row alone.
#pragma once
#include <cstddef>

#include "math.h"
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

// theta^(-2i / dim), in double.
static void rope_frequencies(double theta, int dim, double* out) {
  const double log_theta = log_d(theta);
  for (int i = 0; i < dim / 2; i++) out[i] = exp_d(-(2.0 * i / dim) * log_theta);
}

// [dim]: cosines, then sines.
static void rope_angles_row(double position, const double* frequencies, int dim, float* out) {
  const int half = dim / 2;
  for (int i = 0; i < half; i++) {
    double s, c;
    sincos_d(position * frequencies[i], &s, &c);
    out[i] = static_cast<float>(c);
    out[half + i] = static_cast<float>(s);
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

static void silu_gated_row(const float* x, int width, float* out) {
  const float* up = x + width;
  int i = 0;
  for (; i + 16 <= width; i += 16) storeu(out + i, mul(silu(loadu(x + i)), loadu(up + i)));
  if (i < width) {
    const mask16 tail = first_lanes(width - i);
    store_masked(tail, out + i, mul(silu(load_masked(tail, x + i)), load_masked(tail, up + i)));
  }
}

static void add_row(const float* a, const float* b, int width, float* out) {
  int i = 0;
  for (; i + 16 <= width; i += 16) storeu(out + i, add(loadu(a + i), loadu(b + i)));
  for (; i < width; i++) out[i] = a[i] + b[i];
}

}  // namespace insitu::INSITU_NS
