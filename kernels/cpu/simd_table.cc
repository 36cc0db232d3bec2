#include "kernels/cpu/simd_table.h"

#include <cstring>
#include <initializer_list>

namespace soup::kernels::cpu {

namespace base {
extern const SimdTable kTable;
}
#if defined(__x86_64__)
namespace avx2 {
extern const SimdTable kTable;
}
namespace avx512 {
extern const SimdTable kTable;
}
#endif

const SimdTable* FindSimdTable(const char* name) {
#if defined(__x86_64__)
  if (std::strcmp(name, "avx512") == 0) {
    const bool has = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                     __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
    return has ? &avx512::kTable : nullptr;
  }
  if (std::strcmp(name, "avx2") == 0) {
    return __builtin_cpu_supports("avx2") ? &avx2::kTable : nullptr;
  }
#endif
  return std::strcmp(name, "base") == 0 ? &base::kTable : nullptr;
}

const SimdTable* BestSimdTable() {
  static const SimdTable* const best = [] {
    for (const char* name : {"avx512", "avx2"}) {
      if (const SimdTable* table = FindSimdTable(name)) return table;
    }
    return FindSimdTable("base");
  }();
  return best;
}

}  // namespace soup::kernels::cpu
