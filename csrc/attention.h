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
// A tile of many rows widens a few pages at a time to float32 (exact), into a panel in the first-level cache,
// and all register tiles run over that; scores and outputs wait in memory meanwhile. One of few rows reads
// the cache as it is. Software prefetch runs at two distances: half a chunk ahead from memory to the
// second-level cache (values while keys are scored, then the next keys; FarFetch), and, where nothing is
// widened, a page or two ahead from there to the first.
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
constexpr int kOutputColumns = 16 * kOutputVectors;
constexpr int kPanelPages = 4;                       // of values, kOutputColumns of them
// Of keys; never fewer than a register tile takes together.
static inline int panel_pages(int dim) { return dim <= 64 ? 4 : 2; }

static inline int clamp_to_chunk(int position) {
  return position < 0 ? 0 : position > kChunkPositions ? kChunkPositions : position;
}

struct PageRange {
  int begin, end;
  PageRange within(const PageRange& other) const {
    return {begin > other.begin ? begin : other.begin, end < other.end ? end : other.end};
  }
};

// A tile's rows over one chunk: row i keeps positions [first[i], last[i]) of it.
struct ChunkRows {
  int num, dim;
  float soft_cap;
  const float* q;               // [num][dim], scaled
  float* scores;                // [num][kChunkPositions]
  float* out;                   // [num]{partial}
  int first[kMaxTileRows], last[kMaxTileRows];

  void keep(const AttentionTile& tile, int chunk) {
    for (int i = 0; i < num; i++) {
      first[i] = clamp_to_chunk(tile.first_key[i] - chunk * kChunkPositions);
      last[i] = clamp_to_chunk(tile.num_keys[i] - chunk * kChunkPositions);
      if (first[i] >= last[i]) first[i] = last[i] = 0;
    }
  }
  // What any of the rows keeps.
  PageRange pages_of(int row, int count) const {
    int least = kChunkPositions, most = 0;
    for (int i = row; i < row + count; i++) {
      if (first[i] < last[i] && first[i] < least) least = first[i];
      if (last[i] > most) most = last[i];
    }
    return {least / 16, (most + 15) / 16};
  }
  // What all of them keep whole.
  PageRange pages_kept(int row, int count) const {
    int most = 0, least = kChunkPositions;
    for (int i = row; i < row + count; i++) {
      if (first[i] > most) most = first[i];
      if (last[i] < least) least = last[i];
    }
    return {(most + 15) / 16, least / 16};
  }
  float* partial(int row) const { return out + static_cast<ptrdiff_t>(row) * (kPartialHeader + dim); }
};

// Lanes of page p that lie in [first, last), of `kept`; the others become `masked`.
static inline f32x16 keep_lanes(int first, int last, int p, f32x16 kept, f32x16 masked) {
  return select(first_lanes(first - p * 16), masked, select(first_lanes(last - p * 16), kept, masked));
}

// A page's scores times the keys' scales, soft-capped, where there are any.
template <class T>
static inline f32x16 finish_scores(const ChunkRows& rows, const ChunkPages<T>& pages, int p, f32x16 s) {
  if (pages.is_scaled) s = mul(s, loadu(pages.key_scales[p]));
  if (rows.soft_cap > 0) s = mul(tanh(mul(s, broadcast(1.0f / rows.soft_cap))), broadcast(rows.soft_cap));
  return s;
}

// Scores of rows [row, row + Rows) become weights, exp(score - maximum), times the value's scale; {maximum,
// their sum} go to the partials. Several rows at a time, as each is a chain of operations that wait.
template <int Rows, class T>
static void normalise_rows(const ChunkRows& rows, int row, const ChunkPages<T>& pages, FarFetch<T>* far) {
  const int *first = rows.first + row, *last = rows.last + row;
  const PageRange range = rows.pages_of(row, Rows), kept = rows.pages_kept(row, Rows);
  const bool is_unfinished = pages.is_scaled || rows.soft_cap > 0;
  float* scores = rows.scores + row * kChunkPositions;
  const f32x16 lowest = broadcast(-__builtin_inff()), zero = broadcast(0.0f);
  f32x16 most[Rows], sum[Rows];
  INSITU_UNROLL for (int i = 0; i < Rows; i++) most[i] = lowest, sum[i] = zero;
  for (int p = range.begin; p < range.end; p++) {
    const bool is_kept = p >= kept.begin && p < kept.end;
    INSITU_UNROLL for (int i = 0; i < Rows; i++) {
      float* at = scores + i * kChunkPositions + p * 16;
      f32x16 s = loadu(at);
      if (is_unfinished) storeu(at, s = finish_scores(rows, pages, p, s));
      most[i] = max(is_kept ? s : keep_lanes(first[i], last[i], p, s, lowest), most[i]);
    }
  }
  INSITU_UNROLL for (int i = 0; i < Rows; i++) {
    const float maximum = reduce_max(most[i]);
    rows.partial(row + i)[0] = maximum;
    most[i] = broadcast(maximum);
  }
  for (int p = range.begin; p < range.end; p++) {
    const bool is_kept = p >= kept.begin && p < kept.end;
    float* s = scores + p * 16;
    f32x16 e[Rows];
    for (int i = 0; far && i < 2 * Rows; i++) far->next();  // else memory would wait meanwhile
    INSITU_UNROLL for (int i = 0; i < Rows; i++) e[i] = sub(loadu(s + i * kChunkPositions), most[i]);
    exp_in_range(e);
    INSITU_UNROLL for (int i = 0; i < Rows; i++) {
      if (!is_kept) e[i] = keep_lanes(first[i], last[i], p, e[i], zero);
      sum[i] = add(sum[i], e[i]);
      storeu(s + i * kChunkPositions, pages.is_scaled ? mul(e[i], loadu(pages.value_scales[p])) : e[i]);
    }
  }
  INSITU_UNROLL for (int i = 0; i < Rows; i++) rows.partial(row + i)[1] = reduce_add(sum[i]);
}

template <class T>
static void normalise(const ChunkRows& rows, const ChunkPages<T>& pages, FarFetch<T>* far) {
  int row = 0;
  for (; row + 4 <= rows.num; row += 4) normalise_rows<4>(rows, row, pages, far);
  if (rows.num - row == 3) normalise_rows<3>(rows, row, pages, far);
  if (rows.num - row == 2) normalise_rows<2>(rows, row, pages, far);
  if (rows.num - row == 1) normalise_rows<1>(rows, row, pages, far);
}

// A register tile, rows [row, row + Rows), over some pages of a chunk.
template <class E, int Rows>
struct RegisterTile {
  using T = typename E::type;
  static constexpr int kLine = 64 / sizeof(T);       // elements
  static constexpr int kTogether = Rows <= kRegisterTile && kRegisterTile > 3 ? 2 : 1;

  const ChunkPages<T>& pages;
  FarFetch<T>* far;             // nullptr: all lies in the first cache
  const ChunkRows& rows;
  int row;
  PageRange range;

  template <int Pages>
  void score_pages(int p) const {
    const int dim = rows.dim;
    const float* q = rows.q + static_cast<ptrdiff_t>(row) * dim;
    f32x16 even[Rows][Pages], odd[Rows][Pages];
    INSITU_UNROLL for (int i = 0; i < Rows; i++)
      INSITU_UNROLL for (int u = 0; u < Pages; u++) even[i][u] = odd[i][u] = broadcast(0.0f);
    const T *k[Pages], *near[Pages];
    FarFetch<T> fetch = far ? *far : FarFetch<T>{};
    INSITU_UNROLL for (int u = 0; u < Pages; u++) {
      k[u] = pages.keys[p + u];
      if (!far) continue;
      near[u] = p + Pages + u < range.end ? pages.keys[p + Pages + u] : pages.values[range.begin];
    }
    for (int d = 0; d < dim; d += 2) {
      f32x16 k0[Pages], k1[Pages];
      INSITU_UNROLL for (int u = 0; u < Pages; u++) {
        k0[u] = E::load(k[u] + d * 16);
        k1[u] = E::load(k[u] + d * 16 + 16);
        for (int line = 0; far && line < 32; line += kLine) {
          fetch.next();
          __builtin_prefetch(near[u] + d * 16 + line);
        }
      }
      INSITU_UNROLL for (int i = 0; i < Rows; i++) {
        const f32x16 q0 = broadcast(q[i * dim + d]), q1 = broadcast(q[i * dim + d + 1]);
        INSITU_UNROLL for (int u = 0; u < Pages; u++) even[i][u] = fma(k0[u], q0, even[i][u]);
        INSITU_UNROLL for (int u = 0; u < Pages; u++) odd[i][u] = fma(k1[u], q1, odd[i][u]);
      }
    }
    if (far) *far = fetch;
    float* scores = rows.scores + row * kChunkPositions + p * 16;
    INSITU_UNROLL for (int i = 0; i < Rows; i++)
      INSITU_UNROLL for (int u = 0; u < Pages; u++)
        storeu(scores + i * kChunkPositions + u * 16, add(even[i][u], odd[i][u]));
  }

  void score() const {
    int p = range.begin;
    for (; p + kTogether <= range.end; p += kTogether) score_pages<kTogether>(p);
    for (; p < range.end; p++) score_pages<1>(p);
  }

  // Adds weight * V to the rows' outputs, columns [d, d + 16 * Vectors), which begin at `column` of the values;
  // positions that only some rows keep come row by row, before and after those that all do.
  template <int Vectors>
  void weigh(int d, int column) const {
    const int begin = range.begin * 16, end = range.end * 16;
    int first = begin, last = end;
    for (int i = row; i < row + Rows; i++) {
      if (rows.first[i] > first) first = rows.first[i];
      if (rows.last[i] < last) last = rows.last[i];
    }
    if (first > last) first = last = end < first ? end : first;
    weigh_edge<Vectors>(d, column, begin, first);
    weigh_positions<Vectors>(d, column, first, last);
    weigh_edge<Vectors>(d, column, last, end);
  }

  template <int Vectors>
  void weigh_edge(int d, int column, int begin, int end) const {
    for (int i = row; begin < end && i < row + Rows; i++) {
      const int first = rows.first[i] > begin ? rows.first[i] : begin, last = rows.last[i] < end ? rows.last[i] : end;
      if (first >= last) continue;
      RegisterTile<E, 1>{pages, nullptr, rows, i, range}.template weigh_positions<Vectors>(d, column, first, last);
    }
  }

  template <int Vectors>
  void weigh_positions(int d, int column, int first, int last) const {
    const ptrdiff_t stride = pages.value_stride, out_stride = kPartialHeader + rows.dim;
    float* out = rows.partial(row) + kPartialHeader + d;
    FarFetch<T> fetch = far ? *far : FarFetch<T>{};
    f32x16 acc[Rows][Vectors];
    INSITU_UNROLL for (int i = 0; i < Rows; i++)
      INSITU_UNROLL for (int j = 0; j < Vectors; j++) acc[i][j] = loadu(out + i * out_stride + 16 * j);
    for (int p = first / 16; p * 16 < last; p++) {
      const int begin = first > p * 16 ? first - p * 16 : 0, end = last < p * 16 + 16 ? last - p * 16 : 16;
      const T* v = pages.values[p] + column;
      const T* near = far && p + 1 < range.end ? pages.values[p + 1] + column : v;
      const float* weights = rows.scores + row * kChunkPositions + p * 16;
      for (int t = begin; t < end; t++) {
        for (int j = 0; far && j < Vectors; j += kLine / 16) {
          fetch.next();
          __builtin_prefetch(near + t * stride + 16 * j);
        }
        INSITU_UNROLL for (int j = 0; j < Vectors; j++) {
          const f32x16 x = E::load(v + t * stride + 16 * j);
          INSITU_UNROLL for (int i = 0; i < Rows; i++)
            acc[i][j] = fma(x, broadcast(weights[i * kChunkPositions + t]), acc[i][j]);
        }
      }
    }
    if (far) *far = fetch;
    INSITU_UNROLL for (int i = 0; i < Rows; i++)
      INSITU_UNROLL for (int j = 0; j < Vectors; j++) storeu(out + i * out_stride + 16 * j, acc[i][j]);
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

// One chunk for all rows of a tile: partials to rows.out.
template <class E>
struct ChunkRun {
  using T = typename E::type;
  static constexpr int kLine = 64 / sizeof(T);       // elements
  const ChunkRows& rows;
  const ChunkPages<T>& pages;
  const ChunkPages<T>& ahead;

  // body.operator()<Rows>(row, pages) for register tiles of near-equal heights.
  template <class Body>
  void register_tiles(const PageRange& range, int largest, Body&& body) const {
    const int n = rows.num, tiles = (n + largest - 1) / largest;
    for (int t = 0; t < tiles; t++) {
      const int row = n * t / tiles, count = n * (t + 1) / tiles - row;
      const PageRange wanted = rows.pages_of(row, count).within(range);
      if (wanted.begin < wanted.end) sized(count, row, wanted, body);
    }
  }

  template <class Body>
  static void sized(int count, int row, const PageRange& range, Body& body) {
    switch (count) {
      case 1:
        return body.template operator()<1>(row, range);
      case 2:
        return body.template operator()<2>(row, range);
      case 3:
        return body.template operator()<3>(row, range);
#if defined(__AVX512F__)
      case 4:
        return body.template operator()<4>(row, range);
      case 5:
        return body.template operator()<5>(row, range);
      case 6:
        return body.template operator()<6>(row, range);
      case 7:
        return body.template operator()<7>(row, range);
      case 8:
        return body.template operator()<8>(row, range);
#endif
    }
  }

  void begin() const {
    for (int i = 0; i < rows.num; i++)
      for (int d = 0; d < rows.dim; d += 16) storeu(rows.partial(i) + kPartialHeader + d, broadcast(0.0f));
  }

  // Reads the cache as it is.
  void narrow() const {
    const int largest = rows.num <= kLargestTile ? kLargestTile : kRegisterTile;
    const PageRange whole{0, pages.num};
    FarFetch<T> values{pages.values, pages.num, 16 * rows.dim};
    register_tiles(whole, largest, [&]<int Rows>(int row, const PageRange& range) {
      RegisterTile<E, Rows>{pages, &values, rows, row, range}.score();
    });
    FarFetch<T> keys{ahead.keys, ahead.num, 16 * rows.dim};
    normalise(rows, pages, &keys);
    register_tiles(whole, largest, [&]<int Rows>(int row, const PageRange& range) {
      const RegisterTile<E, Rows> tile{pages, &keys, rows, row, range};
      int d = 0;
      for (; d + kOutputColumns <= rows.dim; d += kOutputColumns) tile.template weigh<kOutputVectors>(d, d);
      for (; d < rows.dim; d += 16) tile.template weigh<1>(d, d);
    });
  }

  // Widens some pages to float32 (exact) at a time, into a panel that stays in the first-level cache.
  void wide(float* panel) const {
    const PageRange whole = rows.pages_of(0, rows.num);
    ChunkPages<float> widened;
    widened.is_scaled = pages.is_scaled;
    const int step = panel_pages(rows.dim);
    for (int p = whole.begin; p < whole.end; p += step) {
      const PageRange some = PageRange{p, p + step}.within(whole);
      widen_keys(some, panel, widened);
      register_tiles(some, kRegisterTile, [&]<int Rows>(int row, const PageRange& range) {
        if constexpr (Rows <= kRegisterTile) RegisterTile<F32Element, Rows>{widened, nullptr, rows, row, range}.score();
      });
    }
    normalise<T>(rows, pages, nullptr);
    for (int p = whole.begin; p < whole.end; p += kPanelPages) {
      const PageRange some = PageRange{p, p + kPanelPages}.within(whole);
      int d = 0;
      for (; d + kOutputColumns <= rows.dim; d += kOutputColumns) weigh_wide<kOutputVectors>(some, d, panel, widened);
      for (; d < rows.dim; d += 16) weigh_wide<1>(some, d, panel, widened);
    }
  }

  void widen_keys(const PageRange& range, float* panel, ChunkPages<float>& widened) const {
    const int size = 16 * rows.dim;
    for (int p = range.begin; p < range.end; p++, panel += size) {
      widened.keys[p] = panel;
      widened.key_scales[p] = pages.key_scales[p];
      const T *keys = pages.keys[p], *far = pages.values[p];
      for (int i = 0; i < size; i += 32) {
        for (int j = 0; j < 32; j += kLine) __builtin_prefetch(far + i + j, 0, 2);
        storeu(panel + i, E::load(keys + i));
        storeu(panel + i + 16, E::load(keys + i + 16));
      }
    }
  }

  template <int Vectors>
  void weigh_wide(const PageRange& some, int d, float* panel, ChunkPages<float>& widened) const {
    widened.value_stride = 16 * Vectors;
    const ptrdiff_t dim = rows.dim;
    for (int p = some.begin; p < some.end; p++, panel += 256 * Vectors) {
      widened.values[p] = panel;
      const T* values = pages.values[p] + d;
      const T* far = p < ahead.num ? ahead.keys[p] + d : values;
      for (ptrdiff_t t = 0; t < 16; t++)
        for (int j = 0; j < Vectors; j++) {
          if (j % (kLine / 16) == 0) __builtin_prefetch(far + t * dim + 16 * j, 0, 2);
          storeu(panel + 16 * (t * Vectors + j), E::load(values + t * dim + 16 * j));
        }
    }
    register_tiles(some, kRegisterTile, [&]<int Rows>(int row, const PageRange& range) {
      if constexpr (Rows <= kRegisterTile)
        RegisterTile<F32Element, Rows>{widened, nullptr, rows, row, range}.template weigh<Vectors>(d, 0);
    });
  }
};

template <class E>
static void attend_as(const AttentionTile& tile, int first, int last, float* partials, float* scratch) {
  using T = typename E::type;
  const int dim = tile.kv.head_dim;
  const ptrdiff_t partial = kPartialHeader + dim;
  float* scaled = scratch;
  float* scores = scaled + static_cast<ptrdiff_t>(kMaxTileRows) * dim;
  float* states = scores + kMaxTileRows * kChunkPositions;
  float* added = states + kMaxTileRows * partial;
  float* panel = added + kMaxTileRows * partial;
  int num_keys = 0;
  for (int i = 0; i < tile.num_rows; i++) {
    for (int d = 0; d < dim; d += 16)
      storeu(scaled + static_cast<ptrdiff_t>(i) * dim + d, mul(loadu(tile.q[i] + d), broadcast(tile.scale)));
    if (tile.num_keys[i] > num_keys) num_keys = tile.num_keys[i];
  }
  const auto at = [&](int chunk) {
    const int keys = clamp_to_chunk(num_keys - chunk * kChunkPositions);
    return KvChunk{tile.block_table, tile.kv_head, chunk, (keys + 15) / 16};
  };
  ChunkRows rows{tile.num_rows, dim, tile.soft_cap, scaled, scores, states, {}, {}};
  ChunkPages<T> found[2];
  found[first & 1].find(tile.kv, at(first));
  for (int chunk = first; chunk < last; chunk++) {
    ChunkPages<T>& ahead = found[~chunk & 1];
    ahead.find(tile.kv, chunk + 1 < last ? at(chunk + 1) : tile.next);
    rows.keep(tile, chunk);
    rows.out = partials ? partials + (chunk - first) * tile.num_rows * partial : chunk == first ? states : added;
    const ChunkRun<E> run{rows, found[chunk & 1], ahead};
    run.begin();
    if (tile.num_rows < kWidenedRows) run.narrow();
    else run.wide(panel);
    for (int i = 0; rows.out == added && i < tile.num_rows; i++)
      if (rows.first[i] < rows.last[i]) fold_chunk(states + i * partial, rows.partial(i), dim);
  }
  for (int i = 0; !partials && i < tile.num_rows; i++) take_output(states + i * partial, dim, tile.out[i]);
}

static void attend_chunks(const AttentionTile& tile, int first, int last, float* partials, float* scratch) {
  switch (tile.kv.type) {
    case KvType::F32:
      return attend_as<F32Element>(tile, first, last, partials, scratch);
    case KvType::F16:
      return attend_as<F16Element>(tile, first, last, partials, scratch);
    case KvType::BF16:
      return attend_as<BF16Element>(tile, first, last, partials, scratch);
    case KvType::I8:
      return attend_as<I8Element>(tile, first, last, partials, scratch);
  }
}

}  // namespace insitu::INSITU_NS
