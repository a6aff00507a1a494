// Which tables this processor and its operating system can run.
// Always true: a table is only ever handed out if every instruction it was compiled for is there.
#include <cstring>

#if defined(__x86_64__)
#include <cpuid.h>
#if defined(__linux__)
#include <sys/syscall.h>
#include <unistd.h>
#endif
#elif defined(__aarch64__) && defined(__linux__)
#include <sys/auxv.h>
#endif

#include "kernels.h"

namespace insitu {

namespace generic { extern const KernelTable table; }
#if defined(__x86_64__)
namespace avx2 { extern const KernelTable table; }
namespace avx2vnni { extern const KernelTable table; }
namespace avx512 { extern const KernelTable table; }
namespace avx512vnni { extern const KernelTable table; }
namespace avx512amx { extern const KernelTable table; }
#elif defined(__aarch64__)
namespace neon { extern const KernelTable table; }
namespace neondot { extern const KernelTable table; }
#endif

namespace {

bool always() { return true; }

#if defined(__x86_64__)

struct CpuId { unsigned a, b, c, d; };
CpuId cpu_id(unsigned leaf, unsigned subleaf) {
  CpuId r{};
  return __get_cpuid_count(leaf, subleaf, &r.a, &r.b, &r.c, &r.d) ? r : CpuId{};
}

// The builtins also ask whether the operating system saves the registers; clang 14 lacks one for f16c.
bool has_avx2() {
  constexpr unsigned kF16c = 1u << 29;
  return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && (cpu_id(1, 0).c & kF16c);
}
bool has_avx2vnni() {
  constexpr unsigned kAvxVnni = 1u << 4;
  return has_avx2() && (cpu_id(7, 1).a & kAvxVnni);
}
bool has_avx512() {
  return has_avx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
}
bool has_avx512vnni() { return has_avx512() && __builtin_cpu_supports("avx512vnni"); }
// Tile registers are given to a process that asks (and to its threads), once and for all.
bool has_avx512amx() {
#if defined(__linux__)
  constexpr unsigned kTile = 1u << 24, kInt8 = 1u << 25;
  constexpr long kRequestPermission = 0x1023, kTileData = 18;  // of arch_prctl
  unsigned a = 0, b = 0, c = 0, d = 0;
  if (!has_avx512vnni() || !__get_cpuid_count(7, 0, &a, &b, &c, &d) || !(d & kTile) || !(d & kInt8)) return false;
  static const bool is_granted = syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
  return is_granted;
#else
  return false;
#endif
}

#elif defined(__aarch64__)

bool has_dotprod() {
#if defined(__linux__)
  constexpr unsigned long kDotProd = 1ul << 20;  // HWCAP_ASIMDDP
  return getauxval(AT_HWCAP) & kDotProd;
#else
  return true;  // macOS runs on nothing older
#endif
}

#endif

// A table of byte products with everything else of the instruction set that it extends.
KernelTable completed(const KernelTable& products, const KernelTable& base) {
  KernelTable table = base;
  table.name = products.name;
  table.quantized_bytes = products.quantized_bytes;
  table.quantize_row = products.quantize_row;
  table.quantize_column = products.quantize_column;
  table.matmul_block = products.matmul_block;
  table.end_matmul = products.end_matmul;
  table.embed_row = products.embed_row;
  return table;
}

struct Candidate {
  KernelTable table;
  bool (*runs_here)();
};

const auto& candidates() {
  static const Candidate all[] = {
      {generic::table, always},
#if defined(__x86_64__)
      {avx2::table, has_avx2},
      {completed(avx2vnni::table, avx2::table), has_avx2vnni},
      {avx512::table, has_avx512},
      {completed(avx512vnni::table, avx512::table), has_avx512vnni},
      {completed(avx512amx::table, avx512::table), has_avx512amx},
#elif defined(__aarch64__)
      {neon::table, always},
      {completed(neondot::table, neon::table), has_dotprod},
#endif
  };
  return all;
}

}  // namespace

const KernelTable* kernel_table(const char* isa) {
#if defined(__x86_64__)
  __builtin_cpu_init();
#endif
  for (const Candidate& candidate : candidates())
    if (std::strcmp(candidate.table.name, isa) == 0) return candidate.runs_here() ? &candidate.table : nullptr;
  return nullptr;
}

}  // namespace insitu
