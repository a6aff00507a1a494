// Random raw rows of every block type, the same on every machine; what the programs here share.
// Not here: any check. Always true: no libm, so that two architectures draw the same bits.
#pragma once
#include <cstdint>
#include <cstring>
#include <vector>

#include "kernels.h"
#include "pack.h"

namespace insitu {

struct Random {
  uint64_t state = 7;
  uint32_t word() {
    state = state * 6364136223846793005ull + 1442695040888963407ull;
    return static_cast<uint32_t>(state >> 33);
  }
  int below(int n) { return static_cast<int>(word() % static_cast<uint32_t>(n)); }
  float unit() { return static_cast<float>(word() & 0xffffff) / 8388608.0f - 1.0f; }  // [-1, 1)
  // Magnitude 2^(exponent - 15), four binades of it; sometimes subnormal or zero.
  uint16_t half(uint32_t exponent) {
    const uint32_t r = word(), e = r % 16 == 0 ? 0 : exponent + (r >> 4 & 3);
    return static_cast<uint16_t>((r >> 8 & 1) << 15 | e << 10 | (r >> 9 & 1023));
  }
};

inline int block_inputs(BlockType type) {
  switch (type) {
    case BlockType::F32:
    case BlockType::F16:
    case BlockType::BF16: return 1;
    case BlockType::Q2_K:
    case BlockType::Q4_K:
    case BlockType::Q5_K:
    case BlockType::Q6_K:
    case BlockType::Q8_K16: return 256;
    default: return 32;
  }
}

inline std::vector<uint8_t> random_rows(Random& random, BlockType type, int n, int k) {
  std::vector<uint8_t> raw(block_row_bytes(type, k) * n);
  for (auto& b : raw) b = static_cast<uint8_t>(random.word() >> 7);
  const auto put = [&](size_t i, uint32_t exponent) {
    const uint16_t h = random.half(exponent);
    std::memcpy(&raw[i], &h, 2);
  };
  for (size_t i = 0; i < raw.size(); i += block_row_bytes(type, block_inputs(type)))
    switch (type) {
      case BlockType::F32: {
        const float x = random.unit();
        std::memcpy(&raw[i], &x, 4);
        break;
      }
      case BlockType::F16: put(i, 7); break;
      case BlockType::BF16: {
        const auto x = static_cast<uint16_t>(0x3c00 | (random.word() & 0x83ff));
        std::memcpy(&raw[i], &x, 2);
        break;
      }
      case BlockType::Q4_1:
      case BlockType::Q5_1: put(i, 7), put(i + 2, 7); break;
      case BlockType::Q2_K: put(i + 80, 3), put(i + 82, 3); break;
      case BlockType::Q4_K:
      case BlockType::Q5_K: put(i, 3), put(i + 2, 3); break;
      case BlockType::Q8_K16: {
        const float x = random.unit() / 4096;
        std::memcpy(&raw[i], &x, 4);
        break;
      }
      case BlockType::Q6_K: put(i + 208, 3); break;
      default: put(i, 7);
    }
  return raw;
}

// FNV-1a over the bits of floats, any NaN as good as another, and of integers.
struct Digest {
  uint64_t value = 14695981039346656037ull;
  void add(uint32_t bits) {
    for (int i = 0; i < 32; i += 8) value = (value ^ (bits >> i & 255)) * 1099511628211ull;
  }
  void add(float x) {
    uint32_t bits;
    std::memcpy(&bits, &x, 4);
    add(x == x ? bits : 0x7fc00000u);
  }
  void add(int32_t x) { add(static_cast<uint32_t>(x)); }
};

}  // namespace insitu
