// Mixture of experts on the CPU, fp32; contracts in kernels/ops.h. Parallel over tokens or rows;
// bitwise repeatable for any thread count. E at most kMaxExperts.
#ifndef SOUP_KERNELS_CPU_MOE_H_
#define SOUP_KERNELS_CPU_MOE_H_

#include "kernels/cpu/context.h"
#include "kernels/ops.h"

namespace soup::kernels::cpu {

void Route(const RouteArgs& args, CpuContext& ctx);
void RouteBackward(const RouteBackwardArgs& args, CpuContext& ctx);
void ListExperts(const ListExpertsArgs& args, CpuContext& ctx);
void GatherEntries(const GatherEntriesArgs& args, CpuContext& ctx);
void ScatterEntries(const ScatterEntriesArgs& args, CpuContext& ctx);
void EntryGrad(const EntryGradArgs& args, CpuContext& ctx);
void AddF32(const AddF32Args& args, CpuContext& ctx);

}  // namespace soup::kernels::cpu

#endif  // SOUP_KERNELS_CPU_MOE_H_
