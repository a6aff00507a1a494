// Paged KV cache: how a key, a value and their scales are stored, found, fetched and widened again.
// Not here: which slot a token has (the engine), or attention over what is stored (attention.h).
//
// A block of one KV head: { K: [block_size / 16][head_dim][16 positions]; V: [block_size][head_dim];
// int8 only: float32 scales of K: [block_size], then of V: [block_size] }. 16 positions are the lanes of a
// score, 16 dims those of an output. Keys come right before values: one run of memory a block and head.
//
// Always true: what is stored of a token depends on that token alone; widening is exact. int8 has one scale
// per token and KV head, the largest magnitude over 127; a token that holds NaN or Inf gets a NaN or Inf
// scale and zero integers, so that whoever attends to it becomes NaN.
#pragma once
#include <cstddef>
#include <cstdint>

#include "kernels.h"
#include "quantize.h"
#include "simd.h"

namespace insitu::INSITU_NS {

struct F32Element {
  using type = float;
  static f32x16 load(const type* p) { return loadu(p); }
  static void store(type* p, f32x16 x) { storeu(p, x); }
};
struct F16Element {
  using type = uint16_t;
  static f32x16 load(const type* p) { return load_f16(p); }
  static void store(type* p, f32x16 x) { store_f16(p, x); }
};
struct BF16Element {
  using type = uint16_t;
  static f32x16 load(const type* p) { return load_bf16(p); }
  // To nearest even by integer steps; every NaN becomes a quiet one.
  static void store(type* p, f32x16 x) {
    const i32x16 bits = as_int(x), odd = iand(ishr_logic(bits, 16), ibroadcast(1));
    const i32x16 rounded = iadd(bits, iadd(odd, ibroadcast(0x7fff)));
    const i32x16 quiet = ior(bits, ibroadcast(0x400000));
    int32_t words[16];
    istore(words, ishr_logic(iselect(eq(x, x), rounded, quiet), 16));
    for (int i = 0; i < 16; i++) p[i] = static_cast<type>(words[i]);
  }
};
struct I8Element {
  using type = int8_t;
  static f32x16 load(const type* p) { return to_float(load_i8(p)); }
};

template <class T>
struct HeadBlock {
  T *keys, *values;
  float *key_scales, *value_scales;  // int8 only
};

// One KV head of a block.
template <class T>
static inline HeadBlock<T> head_block(const KvLayer& kv, int32_t block, int kv_head) {
  const size_t at = static_cast<size_t>(block) * kv.block_bytes;
  const size_t elements = static_cast<size_t>(kv.block_size) * kv.head_dim;
  T* keys = reinterpret_cast<T*>(kv.data + at + kv_head * kv_head_bytes(kv.type, kv.block_size, kv.head_dim));
  float* scales = reinterpret_cast<float*>(keys + 2 * elements);
  return {keys, keys + elements, scales, scales + kv.block_size};
}

constexpr int kPages = kChunkPositions / 16;

// Where the 16 positions of each page of a chunk lie: keys [dim][16], values [16][value_stride].
template <class T>
struct ChunkPages {
  const T* keys[kPages];
  const T* values[kPages];
  const float* key_scales[kPages];    // where is_scaled
  const float* value_scales[kPages];
  int num = 0, value_stride = 0;
  bool is_scaled = false;             // int8 only

  void find(const KvLayer& kv, const KvChunk& at) {
    num = at.num_pages;
    value_stride = kv.head_dim;
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

// Fetches a chunk's keys or values from memory to the second-level cache, a line a call: of every second page in
// turn, then of those between. Memory is read faster in several places at once, and two pages are often neighbours.
template <class T>
struct FarFetch {
  static constexpr int kLine = 64 / sizeof(T);       // elements
  const T* const* pages;
  int num, page_size;                 // elements
  int page = 0, at = 0, parity = 0;

  INSITU_INLINE void next() {
    if (page >= num) return;
    __builtin_prefetch(pages[page] + at, 0, 2);
    page += 2;
    if (page < num) return;
    at += kLine;
    if (at == page_size) at = 0, parity++;
    page = parity < 2 ? parity : num;
  }
};

template <class E, class T = typename E::type>
static void write_elements(const KvLayer& kv, int32_t slot, const float* k, const float* v) {
  const int offset = slot % kv.block_size, dim = kv.head_dim;
  for (int h = 0; h < kv.num_kv_heads; h++, k += dim, v += dim) {
    const HeadBlock<T> head = head_block<T>(kv, slot / kv.block_size, h);
    T* column = head.keys + static_cast<size_t>(offset / 16) * dim * 16 + offset % 16;
    for (int d = 0; d < dim; d += 16) {
      T stored[16];
      E::store(stored, loadu(k + d));
      for (int i = 0; i < 16; i++) column[(d + i) * 16] = stored[i];
      E::store(head.values + static_cast<size_t>(offset) * dim + d, loadu(v + d));
    }
  }
}

static void write_int8(const KvLayer& kv, int32_t slot, const float* k, const float* v) {
  const int offset = slot % kv.block_size, dim = kv.head_dim;
  for (int h = 0; h < kv.num_kv_heads; h++, k += dim, v += dim) {
    const HeadBlock<int8_t> head = head_block<int8_t>(kv, slot / kv.block_size, h);
    const GroupScale key = group_scale(k, dim), value = group_scale(v, dim);
    head.key_scales[offset] = key.scale;
    head.value_scales[offset] = value.scale;
    int8_t* column = head.keys + static_cast<size_t>(offset / 16) * dim * 16 + offset % 16;
    for (int d = 0; d < dim; d += 16) {
      int8_t stored[16];
      quantize_16(k + d, key.inverse, stored);
      for (int i = 0; i < 16; i++) column[(d + i) * 16] = stored[i];
      quantize_16(v + d, value.inverse, head.values + static_cast<size_t>(offset) * dim + d);
    }
  }
}

static void write_kv(const KvLayer& kv, int32_t slot, const float* k, const float* v) {
  switch (kv.type) {
    case KvType::F32:
      return write_elements<F32Element>(kv, slot, k, v);
    case KvType::F16:
      return write_elements<F16Element>(kv, slot, k, v);
    case KvType::BF16:
      return write_elements<BF16Element>(kv, slot, k, v);
    case KvType::I8:
      return write_int8(kv, slot, k, v);
  }
}

}  // namespace insitu::INSITU_NS
