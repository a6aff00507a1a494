// Paged KV cache: storing one token's keys and values, and causal attention over what is stored.
// Not here: which tile or chunk runs on which thread (program.cpp), or range checks (bindings).
//
// A layer's pool is [num_blocks][num_kv_heads]{ K: [block_size / 16][head_dim][16 positions];
// V: [block_size][head_dim] }, float16 or float32: 16 positions are the lanes of a score, 16 dims
// those of an output. Every key and value is read back as stored, the token's own included.
//
// Always true: a row's bits depend on its query and the stored positions before it, never on the
// tile, the block size or who else is in the batch. Positions are cut into chunks of 256; in a
// chunk: all scores (even dims, odd dims, one add), one maximum, exponentials summed in 16 lanes
// by position, then V in position order. Masked positions are selected away, never multiplied:
// a recycled block may hold NaN.
#pragma once
#include <cstddef>
#include <cstdint>

#include "kernels.h"
#include "math.h"
#include "simd.h"

namespace insitu::INSITU_NS {

#if defined(__AVX512F__)
constexpr int kAttentionRows = 6;  // with two pages: 24 accumulators of 32 registers
#else
constexpr int kAttentionRows = 3;
#endif

template <bool IsF16>
struct Element;
template <>
struct Element<true> {
  using type = uint16_t;
  static f32x16 load(const type* p) { return load_f16(p); }
  static void store(type* p, f32x16 v) { store_f16(p, v); }
};
template <>
struct Element<false> {
  using type = float;
  static f32x16 load(const type* p) { return loadu(p); }
  static void store(type* p, f32x16 v) { storeu(p, v); }
};

// Elements from the start of a layer to a KV head of a block; keys come first, then values.
static inline size_t head_offset(const KvLayer& kv, int32_t block, int kv_head) {
  return (static_cast<size_t>(block) * kv.num_kv_heads + kv_head) * 2 * kv.block_size * kv.head_dim;
}

template <bool IsF16>
static void write_kv_as(const KvLayer& kv, int32_t slot, const float* k, const float* v) {
  using E = Element<IsF16>;
  using T = typename E::type;
  const int offset = slot % kv.block_size, dim = kv.head_dim;
  for (int h = 0; h < kv.num_kv_heads; h++, k += dim, v += dim) {
    T* keys = reinterpret_cast<T*>(kv.data) + head_offset(kv, slot / kv.block_size, h);
    T* values = keys + static_cast<size_t>(kv.block_size) * dim;
    T* column = keys + static_cast<size_t>(offset / 16) * dim * 16 + offset % 16;
    for (int d = 0; d < dim; d += 16) {
      T stored[16];
      E::store(stored, loadu(k + d));
      for (int i = 0; i < 16; i++) column[(d + i) * 16] = stored[i];
      E::store(values + static_cast<size_t>(offset) * dim + d, loadu(v + d));
    }
  }
}

static void write_kv(const KvLayer& kv, int32_t slot, const float* k, const float* v) {
  kv.is_f16 ? write_kv_as<true>(kv, slot, k, v) : write_kv_as<false>(kv, slot, k, v);
}

// One tile over one chunk. A page is 16 positions; `num_keys[i]` counts row i's keys in the chunk.
template <bool IsF16, int Rows>
struct ChunkKernel {
  using E = Element<IsF16>;
  using T = typename E::type;
  static constexpr int kPages = kChunkPositions / 16;

  const T* keys[kPages];    // [dim][16] of each page
  const T* values[kPages];  // [16][dim]
  const float* q[Rows];     // scaled
  float* scores[Rows];      // [kChunkPositions]
  int num_keys[Rows];
  int dim, num_pages, shared_keys;  // positions every row attends to

  void set_up(const AttentionTile& tile, int chunk, const float* scaled, float* score_rows) {
    dim = tile.kv.head_dim;
    int most = 0;
    shared_keys = kChunkPositions;
    for (int i = 0; i < Rows; i++) {
      const int n = tile.num_keys[i] - chunk * kChunkPositions;
      num_keys[i] = n < 0 ? 0 : n > kChunkPositions ? kChunkPositions : n;
      most = num_keys[i] > most ? num_keys[i] : most;
      shared_keys = num_keys[i] < shared_keys ? num_keys[i] : shared_keys;
      q[i] = scaled + static_cast<ptrdiff_t>(i) * dim;
      scores[i] = score_rows + i * kChunkPositions;
    }
    num_pages = (most + 15) / 16;
    const int block_size = tile.kv.block_size;
    for (int p = 0; p < num_pages; p++) {
      const int position = chunk * kChunkPositions + p * 16, offset = position % block_size;
      const T* head = reinterpret_cast<const T*>(tile.kv.data) +
                      head_offset(tile.kv, tile.block_table[position / block_size], tile.kv_head);
      keys[p] = head + static_cast<size_t>(offset) * dim;
      values[p] = head + static_cast<size_t>(block_size + offset) * dim;
    }
  }

  template <int Pages>
  void score_pages(int p) {
    f32x16 even[Rows][Pages], odd[Rows][Pages];
    for (int i = 0; i < Rows; i++)
      for (int u = 0; u < Pages; u++) even[i][u] = odd[i][u] = broadcast(0.0f);
    const T* next = p + Pages < num_pages ? keys[p + Pages] : values[0];
    for (int d = 0; d < dim; d += 2) {
      f32x16 k0[Pages], k1[Pages];
      for (int u = 0; u < Pages; u++) {
        k0[u] = E::load(keys[p + u] + d * 16);
        k1[u] = E::load(keys[p + u] + d * 16 + 16);
        __builtin_prefetch(next + (d + u) * 16 * Pages);
      }
      for (int i = 0; i < Rows; i++) {
        const f32x16 q0 = broadcast(q[i][d]), q1 = broadcast(q[i][d + 1]);
        for (int u = 0; u < Pages; u++) even[i][u] = fma(k0[u], q0, even[i][u]);
        for (int u = 0; u < Pages; u++) odd[i][u] = fma(k1[u], q1, odd[i][u]);
      }
    }
    const f32x16 masked = broadcast(-__builtin_inff());
    for (int i = 0; i < Rows; i++)
      for (int u = 0; u < Pages; u++) {
        const int left = num_keys[i] - (p + u) * 16;
        const f32x16 s = add(even[i][u], odd[i][u]);
        storeu(scores[i] + (p + u) * 16, left >= 16 ? s : select(first_lanes(left < 0 ? 0 : left), s, masked));
      }
  }

  void score() {
    constexpr int kTogether = Rows <= kAttentionRows && kAttentionRows > 3 ? 2 : 1;
    int p = 0;
    for (; p + kTogether <= num_pages; p += kTogether) score_pages<kTogether>(p);
    for (; p < num_pages; p++) score_pages<1>(p);
  }

  // Scores become exp(score - maximum); returns {maximum, their sum} in out[0], out[1].
  void normalise(int row, float* out) {
    float* s = scores[row];
    const int n = num_keys[row], pages = (n + 15) / 16;
    f32x16 most = broadcast(-__builtin_inff());
    for (int p = 0; p < pages; p++) most = max(loadu(s + p * 16), most);
    const float maximum = reduce_max(most);
    const f32x16 m = broadcast(maximum), zero = broadcast(0.0f);
    f32x16 sum = zero;
    for (int p = 0; p < pages; p++) {
      const f32x16 e = exp(sub(loadu(s + p * 16), m));
      const f32x16 kept = n - p * 16 >= 16 ? e : select(first_lanes(n - p * 16), e, zero);
      sum = add(sum, kept);
      storeu(s + p * 16, kept);
    }
    out[0] = maximum;
    out[1] = reduce_add(sum);
  }

  // out[i] = sum over positions of weight * V, columns [d, d + 16 * Vectors).
  template <int Vectors>
  void weigh(int d, float* const* out) {
    f32x16 acc[Rows][Vectors];
    for (int i = 0; i < Rows; i++)
      for (int j = 0; j < Vectors; j++) acc[i][j] = broadcast(0.0f);
    for (int p = 0; p < num_pages; p++) {
      const T* v = values[p] + d;
      const T* next = p + 1 < num_pages ? values[p + 1] + d : v;
      const int shared = shared_keys - p * 16 < 16 ? shared_keys - p * 16 : 16;
      int t = 0;
      for (; t < shared; t++) {
        __builtin_prefetch(next + static_cast<ptrdiff_t>(t) * dim);
        for (int j = 0; j < Vectors; j++) {
          const f32x16 x = E::load(v + static_cast<ptrdiff_t>(t) * dim + 16 * j);
          for (int i = 0; i < Rows; i++) acc[i][j] = fma(x, broadcast(scores[i][p * 16 + t]), acc[i][j]);
        }
      }
      for (; t < 16; t++)  // positions that only some rows attend to
        for (int i = 0; i < Rows; i++)
          if (p * 16 + t < num_keys[i])
            for (int j = 0; j < Vectors; j++)
              acc[i][j] = fma(E::load(v + static_cast<ptrdiff_t>(t) * dim + 16 * j),
                              broadcast(scores[i][p * 16 + t]), acc[i][j]);
    }
    for (int i = 0; i < Rows; i++)
      for (int j = 0; j < Vectors; j++) storeu(out[i] + d + 16 * j, acc[i][j]);
  }

  void run(float* partials) {
    const ptrdiff_t stride = kPartialHeader + dim;
    score();
    float* out[Rows];
    for (int i = 0; i < Rows; i++) {
      normalise(i, partials + i * stride);
      out[i] = partials + i * stride + kPartialHeader;
    }
    constexpr int kVectors = kAttentionRows <= 3 ? 2 : Rows <= 6 ? 4 : 2;
    int d = 0;
    for (; d + 16 * kVectors <= dim; d += 16 * kVectors) weigh<kVectors>(d, out);
    for (; d < dim; d += 16) weigh<1>(d, out);
  }
};

template <bool IsF16, int Rows>
static void attend_rows(const AttentionTile& tile, int first, int last, float* partials, float* scores) {
  const int dim = tile.kv.head_dim;
  const f32x16 scale = broadcast(tile.scale);
  float* scaled = scores + kMaxTileRows * kChunkPositions;
  for (int i = 0; i < Rows; i++)
    for (int d = 0; d < dim; d += 16) storeu(scaled + i * dim + d, mul(loadu(tile.q[i] + d), scale));
  ChunkKernel<IsF16, Rows> kernel;
  for (int chunk = first; chunk < last; chunk++) {
    kernel.set_up(tile, chunk, scaled, scores);
    kernel.run(partials + static_cast<ptrdiff_t>(chunk - first) * Rows * (kPartialHeader + dim));
  }
}

// `partials` is [chunk - first][row]{m, l, .., o[head_dim]}; `scores` has room for
// kMaxTileRows * (kChunkPositions + head_dim) floats. What a row wholly masked in a chunk gets is
// meaningless: merge only the chunks that hold its keys.
static void attend_chunks(const AttentionTile& tile, int first, int last, float* partials, float* scores) {
  using Attend = void (*)(const AttentionTile&, int, int, float*, float*);
  static constexpr Attend f16[] = {attend_rows<true, 1>, attend_rows<true, 2>, attend_rows<true, 3>,
                                   attend_rows<true, 4>, attend_rows<true, 5>, attend_rows<true, 6>,
                                   attend_rows<true, 7>, attend_rows<true, 8>};
  static constexpr Attend f32[] = {attend_rows<false, 1>, attend_rows<false, 2>, attend_rows<false, 3>,
                                   attend_rows<false, 4>, attend_rows<false, 5>, attend_rows<false, 6>,
                                   attend_rows<false, 7>, attend_rows<false, 8>};
  (tile.kv.is_f16 ? f16 : f32)[tile.num_rows - 1](tile, first, last, partials, scores);
}

// One row's chunks, in order: out = sum(w_c * o_c) / sum(w_c * l_c), w_c = exp(m_c - max m).
static void merge_chunks(const float* partials, ptrdiff_t chunk_stride, int num_chunks, int head_dim, float* out) {
  if (num_chunks == 1) {
    const f32x16 inverse = broadcast(1.0f / partials[1]);
    for (int d = 0; d < head_dim; d += 16) storeu(out + d, mul(loadu(partials + kPartialHeader + d), inverse));
    return;
  }
  float most = partials[0];
  for (int c = 1; c < num_chunks; c++) {
    const float m = partials[c * chunk_stride];
    most = m > most ? m : most;
  }
  float total = 0.0f;
  for (int d = 0; d < head_dim; d += 16) storeu(out + d, broadcast(0.0f));
  for (int c = 0; c < num_chunks; c++) {
    const float* partial = partials + c * chunk_stride;
    const f32x16 weight = exp(broadcast(partial[0] - most));
    alignas(64) float lanes[16];
    storeu(lanes, weight);
    total = __builtin_fmaf(partial[1], lanes[0], total);
    for (int d = 0; d < head_dim; d += 16)
      storeu(out + d, fma(loadu(partial + kPartialHeader + d), weight, loadu(out + d)));
  }
  const f32x16 inverse = broadcast(1.0f / total);
  for (int d = 0; d < head_dim; d += 16) storeu(out + d, mul(loadu(out + d), inverse));
}

}  // namespace insitu::INSITU_NS
