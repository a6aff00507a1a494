// The tables that a test tries, by name, and how it ends: which of them this processor ran.
#pragma once
#include <cstdio>

#include "kernels.h"

namespace insitu {

constexpr const char* kIsas[] = {"generic",    "neon",       "neon-dotprod", "avx2",
                                   "avx2vnni",   "avx512base", "avx512vnni", "avx512amx"};

inline int report(int checks, int failures) {
  for (const char* isa : kIsas) std::printf("%s %s\n", isa, kernel_table(isa) ? "ran" : "cannot run here");
  std::printf("%d checks, %d failed\n", checks, failures);
  return failures != 0;
}

}  // namespace insitu
