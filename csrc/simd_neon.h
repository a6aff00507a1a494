// simd.h for AArch64: four registers of four lanes, in order.
#pragma once
#include <arm_neon.h>

namespace insitu::INSITU_NS {

struct f32x16 { float32x4_t v[4]; };
struct i32x16 { int32x4_t v[4]; };
struct mask16 { uint32x4_t v[4]; };  // all ones or all zeros a lane

template <class Result, class F>
static inline Result quarters(F f) {
  return {{f(0), f(1), f(2), f(3)}};
}

static inline f32x16 loadu(const float* p) {
  return quarters<f32x16>([&](int i) { return vld1q_f32(p + 4 * i); });
}
static inline f32x16 load(const float* p) { return loadu(p); }
static inline void storeu(float* p, f32x16 a) {
  for (int i = 0; i < 4; i++) vst1q_f32(p + 4 * i, a.v[i]);
}
static inline void store(float* p, f32x16 a) { storeu(p, a); }
static inline f32x16 broadcast(float x) {
  const float32x4_t v = vdupq_n_f32(x);
  return {{v, v, v, v}};
}
static inline f32x16 add(f32x16 a, f32x16 b) {
  return quarters<f32x16>([&](int i) { return vaddq_f32(a.v[i], b.v[i]); });
}
static inline f32x16 sub(f32x16 a, f32x16 b) {
  return quarters<f32x16>([&](int i) { return vsubq_f32(a.v[i], b.v[i]); });
}
static inline f32x16 mul(f32x16 a, f32x16 b) {
  return quarters<f32x16>([&](int i) { return vmulq_f32(a.v[i], b.v[i]); });
}
static inline f32x16 div(f32x16 a, f32x16 b) {
  return quarters<f32x16>([&](int i) { return vdivq_f32(a.v[i], b.v[i]); });
}
static inline f32x16 sqrt(f32x16 a) {
  return quarters<f32x16>([&](int i) { return vsqrtq_f32(a.v[i]); });
}
static inline f32x16 fma(f32x16 a, f32x16 b, f32x16 c) {
  return quarters<f32x16>([&](int i) { return vfmaq_f32(c.v[i], a.v[i], b.v[i]); });
}
static inline f32x16 fnma(f32x16 a, f32x16 b, f32x16 c) {
  return quarters<f32x16>([&](int i) { return vfmsq_f32(c.v[i], a.v[i], b.v[i]); });
}
// Not vmaxq: that gives NaN where either is, and +0 of two zeros.
static inline float32x4_t max4(float32x4_t a, float32x4_t b) { return vbslq_f32(vcgtq_f32(a, b), a, b); }
static inline f32x16 max(f32x16 a, f32x16 b) {
  return quarters<f32x16>([&](int i) { return max4(a.v[i], b.v[i]); });
}
static inline f32x16 min(f32x16 a, f32x16 b) {
  return quarters<f32x16>([&](int i) { return vbslq_f32(vcltq_f32(a.v[i], b.v[i]), a.v[i], b.v[i]); });
}
static inline f32x16 abs(f32x16 a) {
  return quarters<f32x16>([&](int i) { return vabsq_f32(a.v[i]); });
}

static inline mask16 lt(f32x16 a, f32x16 b) {
  return quarters<mask16>([&](int i) { return vcltq_f32(a.v[i], b.v[i]); });
}
static inline mask16 gt(f32x16 a, f32x16 b) {
  return quarters<mask16>([&](int i) { return vcgtq_f32(a.v[i], b.v[i]); });
}
static inline mask16 eq(f32x16 a, f32x16 b) {
  return quarters<mask16>([&](int i) { return vceqq_f32(a.v[i], b.v[i]); });
}
static inline f32x16 select(mask16 m, f32x16 a, f32x16 b) {
  return quarters<f32x16>([&](int i) { return vbslq_f32(m.v[i], a.v[i], b.v[i]); });
}
static inline i32x16 iselect(mask16 m, i32x16 a, i32x16 b) {
  return quarters<i32x16>([&](int i) { return vbslq_s32(m.v[i], a.v[i], b.v[i]); });
}
static inline mask16 first_lanes(int n) {
  static constexpr int32_t lanes[16] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
  const int32x4_t count = vdupq_n_s32(n);
  return quarters<mask16>([&](int i) { return vcgtq_s32(count, vld1q_s32(lanes + 4 * i)); });
}
static inline uint32_t mask_bits(mask16 m) {
  static constexpr uint32_t bits[16] = {1,   2,   4,    8,    16,   32,   64,    128,
                                        256, 512, 1024, 2048, 4096, 8192, 16384, 32768};
  uint32_t all = 0;
  for (int i = 0; i < 4; i++) all |= vaddvq_u32(vandq_u32(m.v[i], vld1q_u32(bits + 4 * i)));
  return all;
}
// Lanes that are off touch no memory.
static inline f32x16 load_masked(mask16 m, const float* p) {
  float lanes[16] = {};
  const uint32_t bits = mask_bits(m);
  for (int i = 0; i < 16; i++)
    if (bits >> i & 1) lanes[i] = p[i];
  return loadu(lanes);
}
static inline void store_masked(mask16 m, float* p, f32x16 a) {
  float lanes[16];
  storeu(lanes, a);
  const uint32_t bits = mask_bits(m);
  for (int i = 0; i < 16; i++)
    if (bits >> i & 1) p[i] = lanes[i];
}

static inline i32x16 iload(const int32_t* p) {
  return quarters<i32x16>([&](int i) { return vld1q_s32(p + 4 * i); });
}
static inline void istore(int32_t* p, i32x16 a) {
  for (int i = 0; i < 4; i++) vst1q_s32(p + 4 * i, a.v[i]);
}
static inline i32x16 ibroadcast(int32_t x) {
  const int32x4_t v = vdupq_n_s32(x);
  return {{v, v, v, v}};
}
static inline i32x16 iadd(i32x16 a, i32x16 b) {
  return quarters<i32x16>([&](int i) { return vaddq_s32(a.v[i], b.v[i]); });
}
static inline i32x16 isub(i32x16 a, i32x16 b) {
  return quarters<i32x16>([&](int i) { return vsubq_s32(a.v[i], b.v[i]); });
}
static inline i32x16 imul(i32x16 a, i32x16 b) {
  return quarters<i32x16>([&](int i) { return vmulq_s32(a.v[i], b.v[i]); });
}
static inline i32x16 ixor(i32x16 a, i32x16 b) {
  return quarters<i32x16>([&](int i) { return veorq_s32(a.v[i], b.v[i]); });
}
static inline i32x16 ixor3(i32x16 a, i32x16 b, i32x16 c) { return ixor(ixor(a, b), c); }
static inline uint64x2_t as_pairs(int32x4_t a) { return vreinterpretq_u64_s32(a); }
static inline i32x16 umul_even(i32x16 a, uint32_t factor) {
  return quarters<i32x16>(
      [&](int i) { return vreinterpretq_s32_u64(vmull_n_u32(vmovn_u64(as_pairs(a.v[i])), factor)); });
}
static inline i32x16 odd_to_even(i32x16 a) {
  return quarters<i32x16>([&](int i) { return vreinterpretq_s32_u64(vshrq_n_u64(as_pairs(a.v[i]), 32)); });
}
static inline i32x16 join_even(i32x16 a, i32x16 b) {
  return quarters<i32x16>(
      [&](int i) { return vreinterpretq_s32_u64(vsliq_n_u64(as_pairs(a.v[i]), as_pairs(b.v[i]), 32)); });
}
static inline i32x16 iand(i32x16 a, i32x16 b) {
  return quarters<i32x16>([&](int i) { return vandq_s32(a.v[i], b.v[i]); });
}
static inline i32x16 ior(i32x16 a, i32x16 b) {
  return quarters<i32x16>([&](int i) { return vorrq_s32(a.v[i], b.v[i]); });
}
static inline i32x16 imax(i32x16 a, i32x16 b) {
  return quarters<i32x16>([&](int i) { return vmaxq_s32(a.v[i], b.v[i]); });
}
static inline i32x16 imin(i32x16 a, i32x16 b) {
  return quarters<i32x16>([&](int i) { return vminq_s32(a.v[i], b.v[i]); });
}
static inline i32x16 ishl(i32x16 a, int n) {
  return quarters<i32x16>([&](int i) { return vshlq_s32(a.v[i], vdupq_n_s32(n)); });
}
static inline i32x16 ishr_arith(i32x16 a, int n) {
  return quarters<i32x16>([&](int i) { return vshlq_s32(a.v[i], vdupq_n_s32(-n)); });
}
static inline i32x16 ishr_logic(i32x16 a, int n) {
  return quarters<i32x16>([&](int i) {
    return vreinterpretq_s32_u32(vshlq_u32(vreinterpretq_u32_s32(a.v[i]), vdupq_n_s32(-n)));
  });
}
// vcvtnq saturates and takes NaN to 0.
static inline i32x16 to_int(f32x16 a) {
  const float32x4_t limit = vdupq_n_f32(2147483648.0f);
  const int32x4_t least = vdupq_n_s32(INT32_MIN);
  return quarters<i32x16>([&](int i) { return vbslq_s32(vcaltq_f32(a.v[i], limit), vcvtnq_s32_f32(a.v[i]), least); });
}
static inline f32x16 to_float(i32x16 a) {
  return quarters<f32x16>([&](int i) { return vcvtq_f32_s32(a.v[i]); });
}
static inline i32x16 as_int(f32x16 a) {
  return quarters<i32x16>([&](int i) { return vreinterpretq_s32_f32(a.v[i]); });
}
static inline f32x16 as_float(i32x16 a) {
  return quarters<f32x16>([&](int i) { return vreinterpretq_f32_s32(a.v[i]); });
}

static inline i32x16 load_i8(const int8_t* p) {
  const int8x16_t x = vld1q_s8(p);
  const int16x8_t low = vmovl_s8(vget_low_s8(x)), high = vmovl_s8(vget_high_s8(x));
  return {{vmovl_s16(vget_low_s16(low)), vmovl_s16(vget_high_s16(low)), vmovl_s16(vget_low_s16(high)),
           vmovl_s16(vget_high_s16(high))}};
}
static inline i32x16 load_u8(const uint8_t* p) {
  const uint8x16_t x = vld1q_u8(p);
  const uint16x8_t low = vmovl_u8(vget_low_u8(x)), high = vmovl_u8(vget_high_u8(x));
  const auto wide = [](uint16x4_t y) { return vreinterpretq_s32_u32(vmovl_u16(y)); };
  return {{wide(vget_low_u16(low)), wide(vget_high_u16(low)), wide(vget_low_u16(high)), wide(vget_high_u16(high))}};
}
// Lanes must lie in [-128, 127].
static inline void store_i8(int8_t* p, i32x16 a) {
  const int16x8_t low = vcombine_s16(vmovn_s32(a.v[0]), vmovn_s32(a.v[1]));
  const int16x8_t high = vcombine_s16(vmovn_s32(a.v[2]), vmovn_s32(a.v[3]));
  vst1q_s8(p, vcombine_s8(vmovn_s16(low), vmovn_s16(high)));
}

static inline f32x16 load_f16(const uint16_t* p) {
  return quarters<f32x16>([&](int i) { return vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(p + 4 * i))); });
}
static inline void store_f16(uint16_t* p, f32x16 a) {
  const f32x16 clamped = min(max(a, broadcast(-65504.0f)), broadcast(65504.0f));
  const f32x16 x = select(lt(abs(a), broadcast(__builtin_inff())), clamped, a);
  for (int i = 0; i < 4; i++) vst1_u16(p + 4 * i, vreinterpret_u16_f16(vcvt_f16_f32(x.v[i])));
}
static inline f32x16 load_bf16(const uint16_t* p) {
  return quarters<f32x16>([&](int i) { return vreinterpretq_f32_u32(vshll_n_u16(vld1_u16(p + 4 * i), 16)); });
}

static inline float reduce_add(f32x16 a) {
  const float32x4_t a4 = vaddq_f32(vaddq_f32(a.v[0], a.v[2]), vaddq_f32(a.v[1], a.v[3]));
  const float32x2_t a2 = vadd_f32(vget_low_f32(a4), vget_high_f32(a4));
  return vget_lane_f32(a2, 0) + vget_lane_f32(a2, 1);
}
static inline float reduce_max(f32x16 a) {
  const float32x4_t a4 = max4(max4(a.v[0], a.v[2]), max4(a.v[1], a.v[3]));
  const float32x4_t a2 = max4(a4, vextq_f32(a4, a4, 2));
  return vgetq_lane_f32(max4(a2, vextq_f32(a2, a2, 1)), 0);
}
static inline int32_t ireduce_add(i32x16 a) {
  return vaddvq_s32(vaddq_s32(vaddq_s32(a.v[0], a.v[1]), vaddq_s32(a.v[2], a.v[3])));
}
static inline int32_t ireduce_max(i32x16 a) {
  return vmaxvq_s32(vmaxq_s32(vmaxq_s32(a.v[0], a.v[1]), vmaxq_s32(a.v[2], a.v[3])));
}
static inline Two ireduce_max(i32x16 a, i32x16 b) { return {ireduce_max(a), ireduce_max(b)}; }

}  // namespace insitu::INSITU_NS
