// One group of 32 inputs of a wide tile's rows at once: what is found of a row becomes a lane.
// Not here: records (quantize.h), rows with shifts. Needs AVX-512. Truth: quantize.h.
// Always true: the bytes of a row are those that quantize_groups_32 writes for it alone.
#pragma once
#include "quantize.h"

namespace insitu::INSITU_NS {

struct Greater {
  INSITU_INLINE __m512i operator()(__m512i a, __m512i b) const { return _mm512_max_epi32(a, b); }
};
struct Sum {
  INSITU_INLINE __m512i operator()(__m512i a, __m512i b) const { return _mm512_add_epi32(a, b); }
};

// Lane r: all lanes of v[r] together, by `op`, whose order must not matter.
template <class Op>
static INSITU_INLINE i32x16 reduce_each(const i32x16 (&v)[16], Op op) {
  __m512i pairs[8], fours[4], eights[2];
  INSITU_UNROLL for (int i = 0; i < 8; i++)
    pairs[i] = op(_mm512_unpacklo_epi32(v[2 * i].v, v[2 * i + 1].v), _mm512_unpackhi_epi32(v[2 * i].v, v[2 * i + 1].v));
  INSITU_UNROLL for (int i = 0; i < 4; i++)
    fours[i] = op(_mm512_unpacklo_epi64(pairs[2 * i], pairs[2 * i + 1]),
                  _mm512_unpackhi_epi64(pairs[2 * i], pairs[2 * i + 1]));
  INSITU_UNROLL for (int i = 0; i < 2; i++)
    eights[i] = op(_mm512_shuffle_i32x4(fours[2 * i], fours[2 * i + 1], 0x44),
                   _mm512_shuffle_i32x4(fours[2 * i], fours[2 * i + 1], 0xee));
  return {op(_mm512_shuffle_i32x4(eights[0], eights[1], 0x88), _mm512_shuffle_i32x4(eights[0], eights[1], 0xdd))};
}

// False, and nothing is written, where a row's integers are all zero (zeros, NaN, Inf): rows one by one, then.
static bool quantize_tile_column_32(const float* x, ptrdiff_t row_stride, int rows, uint8_t* out) {
  const i32x16 magnitude = ibroadcast(0x7fffffff);
  const auto row_of = [=](int r) INSITU_INLINE_LAMBDA { return x + (r < rows ? r : rows - 1) * row_stride; };
  i32x16 v[16];
  INSITU_UNROLL for (int r = 0; r < 16; r++) {
    const float* row = row_of(r);
    v[r] = imax(iand(as_int(loadu(row)), magnitude), iand(as_int(loadu(row + 16)), magnitude));
  }
  const f32x16 largest = as_float(reduce_each(v, Greater{})), most = broadcast(127.0f);
  const f32x16 scale = div(largest, most), inverse = div(most, largest), infinity = broadcast(__builtin_inff());
  if ((mask_bits(lt(scale, infinity)) & mask_bits(lt(inverse, infinity))) != 0xffff) return false;
  alignas(64) float inverses[16];
  store(inverses, inverse);
  INSITU_UNROLL for (int r = 0; r < 16; r++) {
    const float* row = row_of(r);
    const f32x16 factor = broadcast(inverses[r]);
    const i32x16 first = to_int(mul(loadu(row), factor)), second = to_int(mul(loadu(row + 16), factor));
    v[r] = iadd(first, second);
    if (r >= rows) continue;
    store_i8(reinterpret_cast<int8_t*>(out + 32 * r), first);
    store_i8(reinterpret_cast<int8_t*>(out + 32 * r + 16), second);
  }
  const i32x16 sums = reduce_each(v, Sum{});
  const mask16 kept = first_lanes(rows);
  float* tail = reinterpret_cast<float*>(out + 32 * rows);
  store_masked(kept, tail, scale);
  store_masked(kept, tail + rows, as_float(imul(sums, ibroadcast(-8))));
  store_masked(kept, tail + 2 * rows, as_float(imul(sums, ibroadcast(-128))));
  _mm_mask_storeu_epi8(tail + 3 * rows, kept.v, _mm_setzero_si128());
  store_masked(kept, tail + 4 * rows, mul(scale, to_float(sums)));
  return true;
}

}  // namespace insitu::INSITU_NS
