#include "engine/train/group_weight.h"

namespace soup::engine {
namespace {

using kernels::GemmArgs;
using kernels::Operand;

void Dequantise(const PassEnv& env, const std::byte* slab, const MatrixLayout& m, void* dst) {
  kernels::Nf4DequantArgs args = {};
  args.packed = reinterpret_cast<const uint8_t*>(slab + m.data_offset);
  if (env.format == BaseFormat::kNf4) {
    args.absmax = reinterpret_cast<const float*>(slab + m.absmax_offset);
  } else {
    args.absmax_q = reinterpret_cast<const uint8_t*>(slab + m.absmax_offset);
    args.nested_absmax = reinterpret_cast<const float*>(slab + m.nested_absmax_offset);
    args.nested_offset = reinterpret_cast<const float*>(slab + m.offset_offset);
  }
  args.dst = dst;
  args.n = m.rows * m.cols;
  env.backend->Nf4Dequant(args);
}

}  // namespace

GroupWeight MakeBf16Weight(const PassEnv& env, const std::byte* bf16, int64_t rows, int64_t cols,
                           void* scratch) {
  GroupWeight w;
  w.rows = rows;
  w.cols = cols;
  w.data = bf16;
  if (env.wt_bytes == DTypeBytes(DType::kBF16)) return w;
  env.backend->Widen(
      {reinterpret_cast<const uint16_t*>(bf16), static_cast<float*>(scratch), rows * cols});
  w.data = scratch;
  return w;
}

GroupWeight MakeGroupWeight(const PassEnv& env, int64_t layer, const std::byte* slab, Group group,
                            void* scratch) {
  const GroupShape shape = MakeGroupShape(env.spec, group);
  const std::byte* bf16 = nullptr;
  for (const MatrixLayout& m : env.layout(layer).matrices) {
    if (m.rows == 0 || m.group != group) continue;
    if (env.format != BaseFormat::kBf16) {
      Dequantise(env, slab, m, At(scratch, m.group_row * m.cols, env.wt_bytes));
    } else if (m.group_row == 0) {
      bf16 = slab + m.data_offset;  // the group lies row after row without a gap
    }
  }
  if (bf16 != nullptr) return MakeBf16Weight(env, bf16, shape.rows, shape.cols, scratch);
  GroupWeight w;
  w.rows = shape.rows;
  w.cols = shape.cols;
  w.data = scratch;
  return w;
}

GroupWeight MakeExpertWeight(const PassEnv& env, int64_t layer, const std::byte* slab,
                             int64_t expert, Group group, void* scratch) {
  const ExpertsLayout& experts = env.layout(layer).experts;
  const GroupShape shape = MakeExpertShape(env.spec, group);
  const std::byte* bf16 = nullptr;
  for (size_t part = 0; part < experts.first.size(); ++part) {
    if (experts.first[part].group != group) continue;
    const MatrixLayout m = experts.matrix(expert, static_cast<int>(part));
    if (env.format != BaseFormat::kBf16) {
      Dequantise(env, slab, m, At(scratch, m.group_row * m.cols, env.wt_bytes));
    } else if (m.group_row == 0) {
      bf16 = slab + m.data_offset;  // gate and up lie row after row without a gap
    }
  }
  if (bf16 != nullptr) return MakeBf16Weight(env, bf16, shape.rows, shape.cols, scratch);
  GroupWeight w;
  w.rows = shape.rows;
  w.cols = shape.cols;
  w.data = scratch;
  return w;
}

void LinearForward(const PassEnv& env, const void* x, int64_t T, const GroupWeight& w, void* y,
                   int64_t ldy, const void* residual, Operand y_type) {
  GemmArgs g;
  g.transpose_a = false;
  g.transpose_b = true;
  g.M = T;
  g.N = w.rows;
  g.K = w.cols;
  g.alpha = 1;
  g.beta = residual != nullptr ? 1 : 0;
  g.addend = residual;
  g.A = x;
  g.lda = w.cols;
  g.B = w.data;
  g.ldb = w.cols;
  g.C = y;
  g.ldc = ldy;
  g.a_type = Operand::kAct;
  g.b_type = Operand::kWt;
  g.c_type = y_type;
  env.backend->Gemm(g);
  env.progress->fetch_add(1, std::memory_order_relaxed);
}

void LinearBackward(const PassEnv& env, const void* dy, int64_t T, const GroupWeight& w, void* dx,
                    bool accumulate) {
  GemmArgs g;
  g.transpose_a = false;
  g.transpose_b = false;
  g.M = T;
  g.N = w.cols;
  g.K = w.rows;
  g.alpha = 1;
  g.beta = accumulate ? 1 : 0;
  g.A = dy;
  g.lda = w.rows;
  g.B = w.data;
  g.ldb = w.cols;
  g.C = dx;
  g.ldc = w.cols;
  g.a_type = Operand::kAct;
  g.b_type = Operand::kWt;
  g.c_type = Operand::kAct;
  env.backend->Gemm(g);
  env.progress->fetch_add(1, std::memory_order_relaxed);
}

}  // namespace soup::engine
