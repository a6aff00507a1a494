// Which table this processor and its operating system can run.
// Always true: a table is only ever handed out if every instruction it was compiled for is there.
#include <cstring>

#if defined(__aarch64__) && defined(__linux__)
#include <sys/auxv.h>
#endif

#include "kernels.h"

namespace insitu {

namespace generic { extern const KernelTable table; }

#if defined(__x86_64__)
namespace avx2 { extern const KernelTable table; }
namespace avx512 { extern const KernelTable table; }
namespace avx512vnni { extern const KernelTable table; }

namespace {

// These builtins also ask whether the operating system saves the registers.
bool has_avx2() {
  return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c");
}
bool has_avx512() {
  return has_avx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
}
bool has_vnni() { return has_avx512() && __builtin_cpu_supports("avx512vnni"); }

const KernelTable* x86_table(const char* isa) {
  const auto is = [isa](const char* name) { return std::strcmp(isa, name) == 0; };
  __builtin_cpu_init();
  if (is("avx2")) return has_avx2() ? &avx2::table : nullptr;
  if (is("avx512")) return has_vnni() ? &avx512vnni::table : has_avx512() ? &avx512::table : nullptr;
  // For tests: the two that "avx512" chooses from.
  if (is("avx512vnni")) return has_vnni() ? &avx512vnni::table : nullptr;
  if (is("avx512base")) return has_avx512() ? &avx512::table : nullptr;
  return nullptr;
}

}  // namespace
#elif defined(__aarch64__)
namespace neon { extern const KernelTable table; }
namespace neondot { extern const KernelTable table; }

namespace {

bool has_dotprod() {
#if defined(__linux__)
  constexpr unsigned long kDotProd = 1ul << 20;  // HWCAP_ASIMDDP
  return getauxval(AT_HWCAP) & kDotProd;
#else
  return true;  // macOS runs on nothing older
#endif
}

const KernelTable* arm_table(const char* isa) {
  if (std::strcmp(isa, "neon") == 0) return &neon::table;
  if (std::strcmp(isa, "neon-dotprod") == 0) return has_dotprod() ? &neondot::table : nullptr;
  return nullptr;
}

}  // namespace
#endif

// nullptr where it cannot run here.
const KernelTable* kernel_table(const char* isa) {
  if (std::strcmp(isa, "generic") == 0) return &generic::table;
#if defined(__x86_64__)
  return x86_table(isa);
#elif defined(__aarch64__)
  return arm_table(isa);
#else
  return nullptr;
#endif
}

}  // namespace insitu
