// Sixteen virtual lanes: the one vector type every kernel is written in.
// Not here: integer dot products (matmul_dot.h), transcendental functions (math.h).
// An isa_*.cpp defines INSITU_NS (its namespace) and INSITU_SIMD_BITS (0, 128, 256 or 512) before it includes
// any kernel header. Everything is `static` inside that namespace, so that no function compiled
// for one instruction set can be picked by the linker for another.
// Always true: every operation gives the same bits on every instruction set (NaN payloads apart).
//
//   fma(a,b,c) = a*b + c   fnma(a,b,c) = c - a*b   (one rounding)
//   max(a,b) = a > b ? a : b   min(a,b) = a < b ? a : b   (b where either is NaN)
//   select(m,a,b) = m ? a : b   to_int: to nearest even; out of range and NaN: INT32_MIN
//   reduce_*: lanes (i)+(i+8), then +4, +2, +1
//   load_f16, load_bf16: exact   store_f16: to nearest even, finite values saturate at +-65504
#pragma once
#include <cstddef>
#include <cstdint>

#ifndef INSITU_NS
#error "define INSITU_NS and INSITU_SIMD_BITS first: see isa_generic.cpp"
#endif

// Small arrays of vectors stay in registers only where the loops over them are unrolled early.
#define INSITU_UNROLL _Pragma("GCC unroll 16")
#define INSITU_INLINE __attribute__((always_inline)) inline
#define INSITU_INLINE_LAMBDA __attribute__((always_inline))

namespace insitu {
struct Two { int32_t a, b; };  // a reduction of two vectors at once
}

#if INSITU_SIMD_BITS == 512
#include "simd_avx512.h"
#elif INSITU_SIMD_BITS == 256
#include "simd_avx2.h"
#elif INSITU_SIMD_BITS == 128
#include "simd_neon.h"
#else
#include "simd_generic.h"
#endif
