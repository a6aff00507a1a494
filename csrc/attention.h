// Causal attention over the paged KV cache: scores, softmax and weighted values of one chunk at a time.
// Not here: how keys and values are stored (kv_store.h), which tile or chunk runs on which thread
// (attend.cpp), or range checks (batch.cpp). Truth: kernels/reference_attention.py.
//
// Always true: a row's bits depend on its query and the stored positions it attends to, never on the tile,
// the block size or who else is in the batch. Positions are cut into chunks of 256; in a chunk: all scores
// (even dims, odd dims, one add), one maximum, exponentials summed in 16 lanes by position, then V in
// position order; chunks are folded in order, and one that is wholly masked for a row is left out. Masked
// positions are selected away, never multiplied: a recycled block may hold NaN.
//
// A tile of many rows widens the chunk once to float32 (exact) and runs over that, a register tile at a
// time; one of few reads the cache as it is. Software prefetch runs at two distances: half a chunk ahead
// from memory to the second-level cache (values while keys are scored, the next keys while values are
// weighed), and a page or two ahead from there to the first.
#pragma once
#include <cstddef>
#include <cstdint>

#include "kernels.h"
#include "kv_store.h"
#include "math.h"
#include "simd.h"

namespace insitu::INSITU_NS {

#if defined(__AVX512F__)
constexpr int kRegisterTile = 6;   // with two pages: 24 accumulators of 32 registers
constexpr int kLargestTile = 8;    // with one page: still cheaper than widening the keys twice
constexpr int kOutputVectors = 4;
#else
constexpr int kRegisterTile = 3, kLargestTile = 3, kOutputVectors = 2;
#endif
constexpr int kWidenedRows = 2 * kRegisterTile + 1;  // from here on widening once costs less
constexpr int kPages = kChunkPositions / 16;

static inline int clamp_to_chunk(int position) {
  return position < 0 ? 0 : position > kChunkPositions ? kChunkPositions : position;
}

// Where the 16 positions of each page of a chunk lie: keys [dim][16], values [16][dim].
template <class T>
struct ChunkPages {
  const T* keys[kPages];
  const T* values[kPages];
  const float* key_scales[kPages];    // where is_scaled
  const float* value_scales[kPages];
  int num = 0;
  bool is_scaled = false;             // int8 only

  void find(const KvLayer& kv, const KvChunk& at) {
    num = at.num_pages;
    is_scaled = kv.type == KvType::I8;
    for (int p = 0; p < num; p++) {
      const int position = at.chunk * kChunkPositions + p * 16, offset = position % kv.block_size;
      const HeadBlock<T> head = head_block<T>(kv, at.block_table[position / kv.block_size], at.kv_head);
      keys[p] = head.keys + static_cast<size_t>(offset) * kv.head_dim;
      values[p] = head.values + static_cast<size_t>(offset) * kv.head_dim;
      key_scales[p] = head.key_scales + offset;
      value_scales[p] = head.value_scales + offset;
    }
  }
};

// `from` in float32, laid out the same way.
template <class E>
static void widen(const ChunkPages<typename E::type>& from, int first_page, int dim, float* panel,
                  ChunkPages<float>& to) {
  const ptrdiff_t page = ptrdiff_t{16} * dim;
  to.num = from.num;
  to.is_scaled = from.is_scaled;
  for (int p = first_page; p < from.num; p++, panel += 2 * page) {
    for (ptrdiff_t i = 0; i < page; i += 16) storeu(panel + i, E::load(from.keys[p] + i));
    for (ptrdiff_t i = 0; i < page; i += 16) storeu(panel + page + i, E::load(from.values[p] + i));
    to.keys[p] = panel;
    to.values[p] = panel + page;
    to.key_scales[p] = from.key_scales[p];
    to.value_scales[p] = from.value_scales[p];
  }
}

// A register tile over one chunk; row i keeps positions [first[i], last[i]) of it.
template <class E, int Rows>
struct ChunkKernel {
  using T = typename E::type;
  static constexpr int kLine = 64 / sizeof(T);       // elements
  static constexpr bool kIsNarrow = sizeof(T) < 4;   // else a widened chunk, in L2 already
  static constexpr int kTogether = Rows <= kRegisterTile && kRegisterTile > 3 ? 2 : 1;

  const ChunkPages<T>& pages;
  const ChunkPages<T>& ahead;   // whose keys are fetched while values are weighed; may be empty
  int dim;
  float soft_cap;
  const float* q;               // [Rows][dim], scaled
  float* scores;                // [Rows][kChunkPositions]
  int first[Rows], last[Rows];
  int first_page = 0, num_pages = 0;

  void set_rows(const AttentionTile& tile, int row, int chunk) {
    int least = kChunkPositions, most = 0;
    for (int i = 0; i < Rows; i++) {
      first[i] = clamp_to_chunk(tile.first_key[row + i] - chunk * kChunkPositions);
      last[i] = clamp_to_chunk(tile.num_keys[row + i] - chunk * kChunkPositions);
      if (first[i] >= last[i]) first[i] = last[i] = 0;
      if (first[i] < last[i] && first[i] < least) least = first[i];
      if (last[i] > most) most = last[i];
    }
    first_page = least / 16;
    num_pages = (most + 15) / 16;
  }

  // Lanes of page p that row i keeps, of `kept`; the others become `masked`.
  f32x16 keep(int i, int p, f32x16 kept, f32x16 masked) const {
    const int begin = first[i] - p * 16, end = last[i] - p * 16;
    if (end < 16) kept = select(first_lanes(end < 0 ? 0 : end), kept, masked);
    if (begin > 0) kept = select(first_lanes(begin > 16 ? 16 : begin), masked, kept);
    return kept;
  }

  template <int Pages>
  void score_pages(int p) {
    f32x16 even[Rows][Pages], odd[Rows][Pages];
    for (int i = 0; i < Rows; i++)
      for (int u = 0; u < Pages; u++) even[i][u] = odd[i][u] = broadcast(0.0f);
    const T *k[Pages], *far[Pages], *near[Pages];
    for (int u = 0; u < Pages; u++) {
      k[u] = pages.keys[p + u];
      far[u] = pages.values[p + u];
      near[u] = p + Pages + u < num_pages ? pages.keys[p + Pages + u] : pages.values[first_page];
    }
    for (int d = 0; d < dim; d += 2) {
      f32x16 k0[Pages], k1[Pages];
      for (int u = 0; u < Pages; u++) {
        k0[u] = E::load(k[u] + d * 16);
        k1[u] = E::load(k[u] + d * 16 + 16);
        if (kIsNarrow) __builtin_prefetch(far[u] + d * 16, 0, 2);
        for (int line = 0; line < 32; line += kLine) __builtin_prefetch(near[u] + d * 16 + line);
      }
      for (int i = 0; i < Rows; i++) {
        const f32x16 q0 = broadcast(q[i * dim + d]), q1 = broadcast(q[i * dim + d + 1]);
        for (int u = 0; u < Pages; u++) even[i][u] = fma(k0[u], q0, even[i][u]);
        for (int u = 0; u < Pages; u++) odd[i][u] = fma(k1[u], q1, odd[i][u]);
      }
    }
    for (int i = 0; i < Rows; i++)
      for (int u = 0; u < Pages; u++) finish_scores(i, p + u, add(even[i][u], odd[i][u]));
  }

  void finish_scores(int i, int p, f32x16 s) {
    if (pages.is_scaled) s = mul(s, loadu(pages.key_scales[p]));
    if (soft_cap > 0) s = mul(tanh(mul(s, broadcast(1.0f / soft_cap))), broadcast(soft_cap));
    storeu(scores + i * kChunkPositions + p * 16, keep(i, p, s, broadcast(-__builtin_inff())));
  }

  void score() {
    int p = first_page;
    for (; p + kTogether <= num_pages; p += kTogether) score_pages<kTogether>(p);
    for (; p < num_pages; p++) score_pages<1>(p);
  }

  // Scores become weights, exp(score - maximum); {maximum, their sum} go to out[0], out[1].
  void normalise(int i, float* out) {
    float* s = scores + i * kChunkPositions;
    f32x16 most = broadcast(-__builtin_inff());
    for (int p = first_page; p < num_pages; p++) most = max(loadu(s + p * 16), most);
    const float maximum = reduce_max(most);
    const f32x16 m = broadcast(maximum), zero = broadcast(0.0f);
    f32x16 sum = zero;
    for (int p = first_page; p < num_pages; p++) {
      const f32x16 e = keep(i, p, exp(sub(loadu(s + p * 16), m)), zero);
      sum = add(sum, e);
      storeu(s + p * 16, pages.is_scaled ? mul(e, loadu(pages.value_scales[p])) : e);
    }
    out[0] = maximum;
    out[1] = reduce_add(sum);
  }

  // Positions [begin, end) of page p, that every row keeps or that only `row` does.
  template <int Vectors>
  void weigh_page(int p, int d, int begin, int end, f32x16 (&acc)[Rows][Vectors]) const {
    const T* v = pages.values[p] + d;
    const T* far = p < ahead.num ? ahead.keys[p] + d : v;
    const T* near = p + 1 < num_pages ? pages.values[p + 1] + d : v;
    const float* weights = scores + p * 16;
    for (int t = begin; t < end; t++) {
      for (int j = 0; j < Vectors; j += kLine / 16) {
        if (kIsNarrow) __builtin_prefetch(far + static_cast<ptrdiff_t>(t) * dim + 16 * j, 0, 2);
        __builtin_prefetch(near + static_cast<ptrdiff_t>(t) * dim + 16 * j);
      }
      for (int j = 0; j < Vectors; j++) {
        const f32x16 x = E::load(v + static_cast<ptrdiff_t>(t) * dim + 16 * j);
        for (int i = 0; i < Rows; i++) acc[i][j] = fma(x, broadcast(weights[i * kChunkPositions + t]), acc[i][j]);
      }
    }
  }

  template <int Vectors>
  void weigh_edge(int p, int d, int begin, int end, f32x16 (&acc)[Rows][Vectors]) const {
    for (int t = begin; t < end; t++) {
      const T* v = pages.values[p] + static_cast<ptrdiff_t>(t) * dim + d;
      for (int i = 0; i < Rows; i++) {
        if (p * 16 + t < first[i] || p * 16 + t >= last[i]) continue;
        const f32x16 weight = broadcast(scores[i * kChunkPositions + p * 16 + t]);
        for (int j = 0; j < Vectors; j++) acc[i][j] = fma(E::load(v + 16 * j), weight, acc[i][j]);
      }
    }
  }

  // out[i] = sum over positions of weight * V, columns [d, d + 16 * Vectors).
  template <int Vectors>
  void weigh(int d, float* out) const {
    f32x16 acc[Rows][Vectors];
    for (int i = 0; i < Rows; i++)
      for (int j = 0; j < Vectors; j++) acc[i][j] = broadcast(0.0f);
    int shared_first = 0, shared_last = kChunkPositions;  // positions that every row keeps
    for (int i = 0; i < Rows; i++) {
      if (first[i] > shared_first) shared_first = first[i];
      if (last[i] < shared_last) shared_last = last[i];
    }
    for (int p = first_page; p < num_pages; p++) {
      int begin = shared_first - p * 16, end = shared_last - p * 16;
      begin = begin < 0 ? 0 : begin > 16 ? 16 : begin;
      end = end < begin ? begin : end > 16 ? 16 : end;
      for (int edge = 0; edge < 2; edge++) {  // a loop, for the compiler's sake: one copy of what is rare
        weigh_edge<Vectors>(p, d, edge ? end : 0, edge ? 16 : begin, acc);
        if (!edge) weigh_page<Vectors>(p, d, begin, end, acc);
      }
    }
    for (int i = 0; i < Rows; i++)
      for (int j = 0; j < Vectors; j++) storeu(out + i * (kPartialHeader + dim) + d + 16 * j, acc[i][j]);
  }

  void run(float* partials) {
    score();
    for (int i = 0; i < Rows; i++) normalise(i, partials + i * (kPartialHeader + dim));
    int d = 0;
    for (; d + 16 * kOutputVectors <= dim; d += 16 * kOutputVectors) weigh<kOutputVectors>(d, partials + kPartialHeader);
    for (; d < dim; d += 16) weigh<1>(d, partials + kPartialHeader);
  }
};

// Adds a chunk's partial to a state, rescaling the one with the lower maximum.
static void fold_chunk(float* state, const float* partial, int head_dim) {
  float *o = state + kPartialHeader;
  const float* added = partial + kPartialHeader;
  if (state[1] == 0.0f) {
    state[0] = partial[0];
    state[1] = partial[1];
    for (int d = 0; d < head_dim; d += 16) storeu(o + d, loadu(added + d));
    return;
  }
  const bool is_higher = partial[0] > state[0];
  const float *high = is_higher ? partial : state, *low = is_higher ? state : partial;
  const float maximum = high[0];
  alignas(64) float lanes[16];
  const f32x16 weight = exp(broadcast(low[0] - maximum));
  storeu(lanes, weight);
  state[1] = __builtin_fmaf(low[1], lanes[0], high[1]);
  for (int d = kPartialHeader; d < kPartialHeader + head_dim; d += 16)
    storeu(state + d, fma(loadu(low + d), weight, loadu(high + d)));
  state[0] = maximum;
}

static void take_output(const float* state, int head_dim, float* out) {
  const f32x16 inverse = broadcast(1.0f / state[1]);
  for (int d = 0; d < head_dim; d += 16) storeu(out + d, mul(loadu(state + kPartialHeader + d), inverse));
}

// A tile's rows over one chunk, a register tile after the other.
struct ChunkRun {
  const AttentionTile& tile;
  int chunk;
  const float* scaled;          // [num_rows][head_dim]
  float* scores;
  float* partials;              // [kScoreRows]: of one register tile
  float* out;
  bool is_folded;

  template <class E, int Rows>
  void rows(const ChunkPages<typename E::type>& pages, const ChunkPages<typename E::type>& ahead, int row) const {
    const ptrdiff_t stride = kPartialHeader + tile.kv.head_dim;
    ChunkKernel<E, Rows> kernel{pages, ahead, tile.kv.head_dim, tile.soft_cap,
                                          scaled + static_cast<ptrdiff_t>(row) * tile.kv.head_dim, scores, {}, {}};
    kernel.set_rows(tile, row, chunk);
    if (kernel.num_pages == 0) return;  // wholly masked
    if (!is_folded) return kernel.run(out + row * stride);
    kernel.run(partials);
    for (int i = 0; i < Rows; i++)
      if (kernel.first[i] < kernel.last[i]) fold_chunk(out + (row + i) * stride, partials + i * stride, tile.kv.head_dim);
  }

  template <class E>
  void all(const ChunkPages<typename E::type>& pages, const ChunkPages<typename E::type>& ahead, int largest) const {
    ChunkPages<typename E::type> nothing;
    const int n = tile.num_rows, tiles = (n + largest - 1) / largest;
    for (int t = 0; t < tiles; t++) {
      const int row = n * t / tiles;
      some<E>(pages, t == 0 ? ahead : nothing, row, n * (t + 1) / tiles - row);
    }
  }

  template <class E>
  void some(const ChunkPages<typename E::type>& pages, const ChunkPages<typename E::type>& ahead, int row,
            int num_rows) const {
    switch (num_rows) {
      case 1:
        return rows<E, 1>(pages, ahead, row);
      case 2:
        return rows<E, 2>(pages, ahead, row);
      case 3:
        return rows<E, 3>(pages, ahead, row);
#if defined(__AVX512F__)
      case 4:
        return rows<E, 4>(pages, ahead, row);
      case 5:
        return rows<E, 5>(pages, ahead, row);
      case 6:
        return rows<E, 6>(pages, ahead, row);
      case 7:
        return rows<E, 7>(pages, ahead, row);
      case 8:
        return rows<E, 8>(pages, ahead, row);
#endif
    }
  }
};

template <class E>
static void attend_as(const AttentionTile& tile, int first, int last, float* out, ptrdiff_t chunk_stride,
                      float* scratch) {
  using T = typename E::type;
  const int dim = tile.kv.head_dim;
  float* scaled = scratch;
  float* scores = scaled + static_cast<ptrdiff_t>(kMaxTileRows) * dim;
  float* partials = scores + kScoreRows * kChunkPositions;
  float* panel = partials + kScoreRows * (kPartialHeader + dim);
  int num_keys = 0, first_key = tile.first_key[0];
  for (int i = 0; i < tile.num_rows; i++) {
    for (int d = 0; d < dim; d += 16)
      storeu(scaled + static_cast<ptrdiff_t>(i) * dim + d, mul(loadu(tile.q[i] + d), broadcast(tile.scale)));
    if (tile.num_keys[i] > num_keys) num_keys = tile.num_keys[i];
    if (tile.first_key[i] < first_key) first_key = tile.first_key[i];
  }
  const auto at = [&](int chunk) {
    const int keys = clamp_to_chunk(num_keys - chunk * kChunkPositions);
    return KvChunk{tile.block_table, tile.kv_head, chunk, (keys + 15) / 16};
  };
  ChunkPages<T> found[2];
  found[first & 1].find(tile.kv, at(first));
  for (int chunk = first; chunk < last; chunk++) {
    const ChunkPages<T>& pages = found[chunk & 1];
    ChunkPages<T>& ahead = found[~chunk & 1];
    ahead.find(tile.kv, chunk + 1 < last ? at(chunk + 1) : tile.next);
    const ChunkRun run{tile, chunk, scaled, scores, partials, out + (chunk - first) * chunk_stride, chunk_stride == 0};
    if (tile.num_rows < kWidenedRows) {
      run.template all<E>(pages, ahead, tile.num_rows <= kLargestTile ? kLargestTile : kRegisterTile);
      continue;
    }
    ChunkPages<float> widened;
    widen<E>(pages, clamp_to_chunk(first_key - chunk * kChunkPositions) / 16, dim, panel, widened);
    run.template all<F32Element>(widened, ChunkPages<float>{}, kRegisterTile);
  }
}

static void attend_chunks(const AttentionTile& tile, int first, int last, float* out, ptrdiff_t chunk_stride,
                          float* scratch) {
  switch (tile.kv.type) {
    case KvType::F32:
      return attend_as<F32Element>(tile, first, last, out, chunk_stride, scratch);
    case KvType::F16:
      return attend_as<F16Element>(tile, first, last, out, chunk_stride, scratch);
    case KvType::BF16:
      return attend_as<BF16Element>(tile, first, last, out, chunk_stride, scratch);
    case KvType::I8:
      return attend_as<I8Element>(tile, first, last, out, chunk_stride, scratch);
  }
}

}  // namespace insitu::INSITU_NS
