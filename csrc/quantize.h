// Activations as int8 with one scale per group of 32 or 256 inputs, of one row alone: x is about scale * (q + shift).
// A shift is 0 but in a group of 32 that lies to one side of zero and outweighs its row's others: there the integers
// q + shift reach from the least value to the greatest, so that the side on which little lies takes few of them.
// Not here: weights. Truth: quantize_inputs in kernels/reference_math.py.
// Always true: a row's integers and scales depend on that row alone; a group that holds NaN or Inf
// has a NaN or Inf scale and zero integers, so that every output it feeds becomes NaN.
//
// Rows are cut into near-equal tiles of at most 6 (what the registers hold), or, where a matrix unit takes
// many rows, of at most 16. A tile of R rows:
//   group 32:  per group  { int8 q[R][32]; float scale[R]; int32 -8*sum[R]; -128*sum[R];
//                           int8 shift[R]; 3 R bytes of nothing; float scale*(sum + 32*shift)[R] }
//   group 256: per group  { int8 q[R][256]; float scale[R]; int16 sum of 32 [R][8];
//                           int32 -32 * sum of 16 [R][16] }
#pragma once
#include "kernels.h"
#include "simd.h"

namespace insitu::INSITU_NS {

constexpr int kRegisterRows = 6;
#if defined(INSITU_AMX)
constexpr int kWideRows = 16;
constexpr int fewest_wide_rows(int group) { return group == 32 ? 12 : 24; }  // measured: below, registers win
#else
constexpr int kWideRows = kRegisterRows;
constexpr int fewest_wide_rows(int) { return 0x7fffffff; }
#endif
constexpr int kRecord32 = 32 + 5 * 4;           // bytes a row takes per group
constexpr int kRecord256 = 256 + 4 + 16 + 64;

struct RowTile { int first, rows; };

// The first `num_rows % tiles` tiles have one more: a loop over tiles divides once.
static inline RowTile near_equal(int num_rows, int tiles, int tile) {
  const int each = num_rows / tiles, longer = num_rows % tiles;
  return {tile * each + (tile < longer ? tile : longer), each + (tile < longer)};
}

// The part that `row` is in.
static inline RowTile near_equal_around(int num_rows, int tiles, int row) {
  const int each = num_rows / tiles, longer = num_rows % tiles, in_longer = longer * (each + 1);
  return near_equal(num_rows, tiles, row < in_longer ? row / (each + 1) : longer + (row - in_longer) / each);
}

static inline bool is_wide(int num_rows, int group) { return num_rows >= fewest_wide_rows(group); }

static int num_row_tiles(int num_rows, int group) {
  const int most = is_wide(num_rows, group) ? kWideRows : kRegisterRows;
  return (num_rows + most - 1) / most;
}

static inline RowTile row_tile(int num_rows, int group, int tile) {
  return near_equal(num_rows, num_row_tiles(num_rows, group), tile);
}

static inline size_t quantized_row_bytes(int k, int group) {
  return static_cast<size_t>(k / group) * (group == 32 ? kRecord32 : kRecord256);
}

static size_t quantized_bytes(int num_rows, int k, int group) { return num_rows * quantized_row_bytes(k, group); }

struct GroupScale { float scale, inverse; };

static inline GroupScale scale_of(float largest) {
  const float scale = largest / 127.0f, inverse = largest > 0 ? 127.0f / largest : 0.0f;
  const bool is_finite = scale < __builtin_inff() && inverse < __builtin_inff();  // false for NaN
  return {scale, is_finite ? inverse : 0.0f};
}

static inline float float_of_bits(int32_t bits) {
  float x;
  __builtin_memcpy(&x, &bits, sizeof x);
  return x;
}

// Found on bit patterns, where NaN > Inf > finite, in any order.
static inline float largest_magnitude(const float* x, int group) {
  const i32x16 magnitude = ibroadcast(0x7fffffff);
  i32x16 largest = ibroadcast(0);
  for (int i = 0; i < group; i += 16) largest = imax(largest, iand(as_int(loadu(x + i)), magnitude));
  return float_of_bits(ireduce_max(largest));
}

static inline GroupScale group_scale(const float* x, int group) { return scale_of(largest_magnitude(x, group)); }

struct ShiftedScale { GroupScale scale; int32_t shift; };

// Squared, what a shift must save of a group's largest magnitude, in parts of the row's sum of such squares.
constexpr float kWorthShift = 0.05f;
constexpr float kMostSaved = 0.76f;  // of a group's largest magnitude, squared: 0.75 and what rounding adds

// Of 32 inputs. Bits of what is above zero are found as they are, of what is below with the sign turned.
static inline ShiftedScale shifted_scale(const float* x, float least) {
  const i32x16 sign = ibroadcast(INT32_MIN), a = as_int(loadu(x)), b = as_int(loadu(x + 16));
  const Two most = ireduce_max(imax(a, b), imax(ixor(a, sign), ixor(b, sign)));
  const int32_t above = most.a > 0 ? most.a : 0, below = most.b > 0 ? most.b : 0;
  const float large = float_of_bits(above > below ? above : below), small = float_of_bits(above > below ? below : above);
  const float span = large + small, half = 0.5f * span;
  if (large * large - half * half > least) [[unlikely]] {  // false for NaN
    const float inverse = 254.0f / span;
    if (span < __builtin_inff() && inverse < __builtin_inff()) {
      constexpr float kRound = 12582912.0f;  // 1.5 * 2^23: what is added to it becomes an integer, nearest even
      const int32_t beyond = static_cast<int32_t>((small * inverse + kRound) - kRound), shift = 127 - beyond;
      return {{span / 254.0f, inverse}, above > below ? shift : -shift};
    }
  }
  return {scale_of(large), 0};
}

// Sixteen inputs, whose integers it returns. |x * inverse| <= 127 (1 + 2^-23): no clamp is needed.
static inline i32x16 quantize_lanes(const float* x, float inverse, int8_t* q) {
  // Inf * 0 and NaN * 0 become INT32_MIN: take zero instead.
  const i32x16 integers = inverse > 0 ? to_int(mul(loadu(x), broadcast(inverse))) : ibroadcast(0);
  store_i8(q, integers);
  return integers;
}

static inline int32_t quantize_16(const float* x, float inverse, int8_t* q) {
  return ireduce_add(quantize_lanes(x, inverse, q));
}

// The same where there may be a shift: the farther end may round to one integer too many.
static inline i32x16 quantize_lanes(const float* x, const ShiftedScale& s, int8_t* q) {
  if (s.shift == 0) return quantize_lanes(x, s.scale.inverse, q);
  const i32x16 integers = to_int(mul(loadu(x), broadcast(s.scale.inverse))), most = ibroadcast(127);
  const i32x16 kept = imax(imin(isub(integers, ibroadcast(s.shift)), most), ibroadcast(-127));
  store_i8(q, kept);
  return kept;
}

template <class T>
static inline void put(uint8_t* at, T value) { __builtin_memcpy(at, &value, sizeof value); }

// Group by group: `scale_of_group(inputs, record's tail)`, where a row's scale lies first.
template <class Scale>
static INSITU_INLINE void quantize_groups_32(const float* x, int k, int row, int rows, uint8_t* out,
                                             const Scale& scale_of_group) {
  for (int g = 0; g < k / 32; g++, x += 32, out += static_cast<size_t>(rows) * kRecord32) {
    uint8_t* tail = out + 32 * rows + 4 * row;
    const ShiftedScale s = scale_of_group(x, tail);
    int8_t* q = reinterpret_cast<int8_t*>(out + 32 * row);
    const i32x16 first = quantize_lanes(x, s, q);
    const int32_t sum = ireduce_add(iadd(first, quantize_lanes(x + 16, s, q + 16)));
    put(tail, s.scale.scale);
    put(tail + 4 * rows, -8 * sum);
    put(tail + 8 * rows, -128 * sum);
    put(tail + 16 * rows, s.scale.scale * static_cast<float>(sum + 32 * s.shift));
    put(out + 44 * rows + row, static_cast<int8_t>(s.shift));
  }
}

// Largest magnitudes wait where scales will lie; NaN among them asks for no shift.
static void quantize_row_32(const float* x, int k, int row, int rows, uint8_t* out) {
  float total = 0;
  uint8_t* tail = out + 32 * rows + 4 * row;
  for (int i = 0; i < k; i += 32, tail += static_cast<size_t>(rows) * kRecord32) {
    const float large = largest_magnitude(x + i, 32);
    put(tail, large);
    total += large * large;
  }
  const float least = kWorthShift * total;
  quantize_groups_32(x, k, row, rows, out, [least](const float* group, const uint8_t* at) {
    float large;
    __builtin_memcpy(&large, at, sizeof large);
    return kMostSaved * large * large > least ? shifted_scale(group, least) : ShiftedScale{scale_of(large), 0};
  });
}

static void quantize_row_256(const float* x, int k, int row, int rows, uint8_t* out) {
  for (int g = 0; g < k / 256; g++, x += 256, out += static_cast<size_t>(rows) * kRecord256) {
    const GroupScale s = group_scale(x, 256);
    int8_t* q = reinterpret_cast<int8_t*>(out + 256 * row);
    uint8_t *scale = out + 256 * rows, *sums32 = scale + 4 * rows, *sums16 = sums32 + 16 * rows;
    put(scale + 4 * row, s.scale);
    for (int j = 0; j < 8; j++) {
      const int32_t a = quantize_16(x + 32 * j, s.inverse, q + 32 * j);
      const int32_t b = quantize_16(x + 32 * j + 16, s.inverse, q + 32 * j + 16);
      put(sums32 + 16 * row + 2 * j, static_cast<int16_t>(a + b));
      put(sums16 + 64 * row + 8 * j, -32 * a);
      put(sums16 + 64 * row + 8 * j + 4, -32 * b);
    }
  }
}

#if defined(INSITU_AMX)
}  // namespace insitu::INSITU_NS
#include "quantize_tile.h"
namespace insitu::INSITU_NS {
#else
static bool quantize_tile_column_32(const float*, ptrdiff_t, int, uint8_t*) { return false; }
#endif

// One group of every row, none of them shifted; x holds just those inputs, rows `row_stride` apart.
static void quantize_column(const float* x, ptrdiff_t row_stride, int num_rows, int k, int group, int column,
                            uint8_t* out) {
  const auto record = static_cast<size_t>(group == 32 ? kRecord32 : kRecord256);
  for (int tile = 0; tile < num_row_tiles(num_rows, group); tile++) {
    const RowTile t = row_tile(num_rows, group, tile);
    uint8_t* at = out + t.first * quantized_row_bytes(k, group) + column * record * static_cast<size_t>(t.rows);
    if (group == 32 && t.rows > kRegisterRows && quantize_tile_column_32(x, row_stride, t.rows, at)) {
      x += t.rows * row_stride;
      continue;
    }
    for (int r = 0; r < t.rows; r++, x += row_stride) {
      if (group == 32)
        quantize_groups_32(x, 32, r, t.rows, at,
                           [](const float* in, const uint8_t*) { return ShiftedScale{group_scale(in, 32), 0}; });
      else quantize_row_256(x, 256, r, t.rows, at);
    }
  }
}

// One row of `num_rows`.
static void quantize_row(const float* x, int num_rows, int k, int group, int row, uint8_t* out) {
  const RowTile t = near_equal_around(num_rows, num_row_tiles(num_rows, group), row);
  out += t.first * quantized_row_bytes(k, group);
  if (group == 32) quantize_row_32(x, k, row - t.first, t.rows, out);
  else quantize_row_256(x, k, row - t.first, t.rows, out);
}

// Whether any of R rows' integers are shifted. What follows them in a record may be read.
template <int R>
static inline bool is_shifted(const uint8_t* shifts) {
  uint64_t any = 0;
  for (int r = 0; r < R; r += 8) {
    uint64_t eight;
    __builtin_memcpy(&eight, shifts + r, sizeof eight);
    any |= R - r >= 8 ? eight : eight << (64 - 8 * (R - r));
  }
  return any != 0;
}

}  // namespace insitu::INSITU_NS
