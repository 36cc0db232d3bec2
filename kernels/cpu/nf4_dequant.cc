#include "kernels/cpu/nf4_dequant.h"

#include "kernels/cpu/partition.h"
#include "kernels/cpu/simd_table.h"
#include "kernels/nf4.h"

namespace soup::kernels::cpu {

void Nf4Dequant(const Nf4DequantArgs& args, CpuContext& ctx) {
  SOUP_KERNEL_CHECK((args.absmax != nullptr) != (args.absmax_q != nullptr));
  const float* nested_code = Nf4NestedCode().data();
  ctx.ParallelRange(Nf4Blocks(args.n), kElementsPerPart / kNf4BlockSize,
                    [&](int64_t begin, int64_t end, int) {
                      ctx.simd().nf4_dequant(args, nested_code, begin, end);
                    });
}

}  // namespace soup::kernels::cpu
