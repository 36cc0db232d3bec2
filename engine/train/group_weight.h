// The weight operand of a group's GEMM, made once a visit for all work items: bf16 is widened to
// the scratch on the CPU and used in place where bf16 is the operand's type; nf4 is dequantised
// matrix by matrix into its rows of the scratch.
#ifndef SOUP_ENGINE_TRAIN_GROUP_WEIGHT_H_
#define SOUP_ENGINE_TRAIN_GROUP_WEIGHT_H_

#include <cstddef>

#include "engine/train/pass_item.h"

namespace soup::engine {

// A stacked matrix [rows, cols] of wt, row after row. Valid until the next is made.
struct GroupWeight {
  const void* data = nullptr;
  int64_t rows = 0;
  int64_t cols = 0;
};

// `slab`: the layer on the device. `scratch`: wt, as large as the largest group.
GroupWeight MakeGroupWeight(const PassEnv& env, int64_t layer, const std::byte* slab, Group group,
                            void* scratch);

// The same of one expert of a sparse layer: kGateUp or kDown.
GroupWeight MakeExpertWeight(const PassEnv& env, int64_t layer, const std::byte* slab,
                             int64_t expert, Group group, void* scratch);

// `rows` x `cols` of bf16 as a weight operand (the head's slices).
GroupWeight MakeBf16Weight(const PassEnv& env, const std::byte* bf16, int64_t rows, int64_t cols,
                           void* scratch);

// y [T, rows] = x [T, cols] W^T (+ residual, null: none); rows of y and of the residual are `ldy`
// apart. The two may be one; on CUDA the product is then rounded before it is added: a caller
// always has one, or always two. y_type: kAct, or kF32 without a residual.
void LinearForward(const PassEnv& env, const void* x, int64_t T, const GroupWeight& w, void* y,
                   int64_t ldy, const void* residual,
                   kernels::Operand y_type = kernels::Operand::kAct);
// dx [T, cols] = dy [T, rows] W; rows of dy are w.rows apart.
void LinearBackward(const PassEnv& env, const void* dy, int64_t T, const GroupWeight& w, void* dx,
                    bool accumulate = false);

}  // namespace soup::engine

#endif  // SOUP_ENGINE_TRAIN_GROUP_WEIGHT_H_
