#include "engine/train/loss.h"

#include <algorithm>

#include "engine/base/status_macros.h"
#include "engine/plan/pass_buffers.h"

namespace soup::engine {
namespace {
constexpr int64_t kF32Bytes = 4;
}

absl::Status Loss::TakeRows(const PassItemState& item, Rows& rows) {
  const int64_t t = item.T, h = env_.spec.hidden;
  const auto take = [&](const char* what, int64_t bytes) -> absl::StatusOr<std::byte*> {
    SOUP_ASSIGN_OR_RETURN(ArenaBuffer buffer,
                          env_.arena->Take(ItemBuffer(item.index, what), bytes));
    rows.owners.push_back(std::move(buffer));
    return rows.owners.back().data();
  };
  SOUP_ASSIGN_OR_RETURN(rows.hidden, take(kItemHeadHidden, t * h * env_.act_bytes));
  SOUP_ASSIGN_OR_RETURN(std::byte * stats, take(kItemHeadStats, 5 * t * kF32Bytes));
  rows.max = reinterpret_cast<float*>(stats);
  rows.sum = rows.max + t;
  rows.target_logit = rows.sum + t;
  rows.loss = rows.target_logit + t;
  rows.rstd = rows.loss + t;
  if (!item.train) return absl::OkStatus();
  SOUP_ASSIGN_OR_RETURN(std::byte * grad, take(kItemHeadGrad, t * h * kF32Bytes));
  rows.grad = reinterpret_cast<float*>(grad);
  SOUP_ASSIGN_OR_RETURN(rows.target, take(kItemTargetRow, t * h * env_.wt_bytes));
  return absl::OkStatus();
}

void Loss::Gather(const PassItemState& item, std::byte* gathered) {
  env_.backend->GatherActRows(
      {item.last, item.rows, gathered, item.supervised(), env_.spec.hidden});
}

absl::Status Loss::Run(const LogitsHook& hook) {
  int64_t tokens = 0;
  rows_.clear();
  rows_.resize(items_.size());
  for (size_t i = 0; i < items_.size(); ++i) {
    tokens = std::max(tokens, items_[i].T);
    SOUP_RETURN_IF_ERROR(TakeRows(items_[i], rows_[i]));
  }
  SOUP_ASSIGN_OR_RETURN(
      ArenaBuffer gathered,
      env_.arena->Take(kLossGathered, tokens * env_.spec.hidden * env_.act_bytes));
  for (size_t i = 0; i < items_.size(); ++i) {
    const PassItemState& item = items_[i];
    if (item.supervised() == 0) continue;
    Gather(item, gathered.data());
    env_.backend->RmsNormForward({gathered.data(), reinterpret_cast<const uint16_t*>(final_norm_),
                                  rows_[i].hidden, rows_[i].rstd, item.supervised(),
                                  env_.spec.hidden, static_cast<float>(env_.spec.rms_eps),
                                  static_cast<float>(env_.spec.norm_offset)});
    ZeroTail(item, rows_[i]);
  }
  {
    SOUP_ASSIGN_OR_RETURN(ArenaBuffer logits,
                          env_.arena->Take(kLossLogits, tokens * slice_rows_ * kF32Bytes));
    for (int32_t s = 0; s < head_.slices(); ++s) {
      SOUP_RETURN_IF_ERROR(Slice(s, logits.as<float>(), hook));
    }
  }
  for (size_t i = 0; i < items_.size(); ++i) {
    SOUP_RETURN_IF_ERROR(Finish(items_[i], rows_[i], gathered.data()));
  }
  rows_.clear();
  return absl::OkStatus();
}

// The head's products take whole buckets of rows. Rows of zeros have logits of zero, which nothing
// turns into probabilities, so they add nothing to anything.
void Loss::ZeroTail(const PassItemState& item, const Rows& rows) {
  const int64_t n = item.supervised(), tail = item.head_rows - n, h = env_.spec.hidden;
  if (tail == 0) return;
  env_.backend->FillZero(At(rows.hidden, n * h, env_.act_bytes), tail * h * env_.act_bytes);
  if (item.train) env_.backend->FillZero(rows.grad + n * h, tail * h * kF32Bytes);
}

absl::Status Loss::Slice(int32_t slice, float* logits, const LogitsHook& hook) {
  const int64_t h = env_.spec.hidden, first = head_.first_row(slice), columns = head_.rows(slice);
  SOUP_ASSIGN_OR_RETURN(const std::byte* bf16, head_.Acquire(slice));
  const GroupWeight w = MakeBf16Weight(env_, bf16, columns, h, weight_scratch_);
  const bool in_scratch = w.data == weight_scratch_;
  if (in_scratch) SOUP_RETURN_IF_ERROR(head_.Release(slice));
  for (size_t i = 0; i < items_.size(); ++i) {
    const PassItemState& item = items_[i];
    const Rows& rows = rows_[i];
    const int64_t n = item.supervised();
    if (n == 0) continue;
    kernels::GemmArgs g;  // logits [head rows, columns] = hidden [head rows, H] W^T
    g.transpose_a = false;
    g.transpose_b = true;
    g.M = item.head_rows;
    g.N = columns;
    g.K = h;
    g.alpha = 1;
    g.beta = 0;
    g.A = rows.hidden;
    g.lda = h;
    g.B = w.data;
    g.ldb = h;
    g.C = logits;
    g.ldc = columns;
    g.a_type = kernels::Operand::kAct;
    g.b_type = kernels::Operand::kWt;
    g.c_type = kernels::Operand::kF32;
    env_.backend->Gemm(g);
    if (hook) SOUP_RETURN_IF_ERROR(hook({item.index, n, first, columns, logits}));
    env_.backend->LossSlice({logits, item.targets, rows.max, rows.sum, rows.target_logit, rows.grad,
                             n, h, first, columns, slice == 0, item.train,
                             static_cast<float>(env_.spec.final_soft_cap)});
    if (!item.train) continue;
    g.transpose_b = false;  // grad [head rows, H] += p [head rows, columns] W
    g.N = h;
    g.K = columns;
    g.beta = 1;
    g.A = logits;
    // p is act and row i starts where row i of the fp32 logits does (kernels/ops.h).
    g.lda = columns * (kF32Bytes / env_.act_bytes);
    g.C = rows.grad;
    g.ldc = h;
    g.a_type = kernels::Operand::kAct;
    env_.backend->Gemm(g);
    env_.backend->LossTargetRows({w.data, item.targets, rows.target, n, h, first, columns});
  }
  return in_scratch ? absl::OkStatus() : head_.Release(slice);
}

absl::Status Loss::Finish(PassItemState& item, Rows& rows, std::byte* gathered) {
  const int64_t n = item.supervised(), h = env_.spec.hidden;
  item.row_loss.resize(n);
  if (n == 0) {
    if (item.train) env_.backend->FillZero(item.grad, item.T * h * env_.act_bytes);
    return absl::OkStatus();
  }
  env_.backend->LossFinish({rows.max, rows.sum, rows.target_logit, rows.grad, rows.target,
                            rows.loss, item.train ? rows.hidden : nullptr, n, h, item.loss_scale,
                            static_cast<float>(env_.spec.final_soft_cap)});
  SOUP_RETURN_IF_ERROR(
      env_.backend->CopyToHostAsync(item.row_loss.data(), rows.loss, n * kF32Bytes));
  if (!item.train) return absl::OkStatus();
  Gather(item, gathered);
  kernels::RmsNormBackwardArgs norm;
  norm.dy = rows.hidden;
  norm.x = gathered;
  norm.weight = reinterpret_cast<const uint16_t*>(final_norm_);
  norm.rstd = rows.rstd;
  norm.dx = rows.grad;  // its sums are spent: the rows' gradient lies here now, as act
  norm.T = n;
  norm.H = h;
  norm.accumulate = false;
  norm.weight_offset = static_cast<float>(env_.spec.norm_offset);
  env_.backend->RmsNormBackward(norm);
  env_.backend->ScatterActRows({rows.grad, item.rows, item.grad, n, item.T, h});
  return absl::OkStatus();
}

}  // namespace soup::engine
