// How fine work is cut for the pool: parts worth the few microseconds that waking a thread costs.
// Internal to kernels/cpu. The cut decides no bits.
#ifndef SOUP_KERNELS_CPU_PARTITION_H_
#define SOUP_KERNELS_CPU_PARTITION_H_

#include <cstdint>

namespace soup::kernels::cpu {

inline constexpr int64_t kElementsPerPart = 16 * 1024;

constexpr int64_t RowsPerPart(int64_t row_elements) {
  return row_elements >= kElementsPerPart
             ? 1
             : kElementsPerPart / (row_elements < 1 ? 1 : row_elements);
}

}  // namespace soup::kernels::cpu

#endif  // SOUP_KERNELS_CPU_PARTITION_H_
