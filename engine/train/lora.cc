#include "engine/train/lora.h"

namespace soup::engine {
namespace {

using kernels::GemmArgs;
using kernels::Operand;

// The counter's upper half: the step. Lower half: micro-batch, layer, module.
uint64_t StreamLow(const PassItemState& item, int64_t layer, Module m) {
  return static_cast<uint64_t>(item.micro_batch) << 32 | static_cast<uint64_t>(layer) << 8 |
         static_cast<uint64_t>(m);
}

bool Drops(const PassItemState& item) { return item.train && item.lora->dropout > 0; }

void Drop(const PassEnv& env, const PassItemState& item, int64_t layer, Module m,
          const std::byte* x, std::byte* y, int64_t width) {
  kernels::DropoutArgs args;
  args.x = x;
  args.y = y;
  args.n = item.T * width;
  args.p = item.lora->dropout;
  args.seed = item.lora->seed;
  args.stream_hi = static_cast<uint64_t>(item.step);
  args.stream_lo = StreamLow(item, layer, m);
  env.backend->Dropout(args);
}

const std::byte* MaskedInput(const PassEnv& env, const PassItemState& item, int64_t layer, Module m,
                             const std::byte* x, int64_t width, const LoraScratch& scratch) {
  if (!Drops(item)) return x;
  Drop(env, item, layer, m, x, scratch.dropped, width);
  return scratch.dropped;
}

}  // namespace

std::byte* LowRankOf(const PassEnv& env, const PassItemState& item, Module m, std::byte* low_rank) {
  int64_t target = item.lora->target_index[static_cast<int>(m)];
  if (target >= item.lora->attention_targets) target -= item.lora->attention_targets;
  return target < 0 ? nullptr : At(low_rank, target * item.T * item.lora->r, env.act_bytes);
}

void LoraLowRank(const PassEnv& env, const PassItemState& item, int64_t layer, Module m,
                 const std::byte* x, std::byte* u, const LoraScratch& scratch) {
  const LoraSite& site = item.lora->site(layer, m);
  const std::byte* masked = MaskedInput(env, item, layer, m, x, site.in, scratch);
  GemmArgs g;  // u [T, r] = x [T, in] A^T
  g.transpose_a = false;
  g.transpose_b = true;
  g.M = item.T;
  g.N = item.lora->r;
  g.K = site.in;
  g.alpha = 1;
  g.beta = 0;
  g.A = masked;
  g.lda = site.in;
  g.B = site.a;
  g.ldb = site.in;
  g.C = u;
  g.ldc = item.lora->r;
  g.a_type = Operand::kAct;
  g.b_type = Operand::kWt;
  g.c_type = Operand::kAct;
  env.backend->Gemm(g);
}

void LoraForward(const PassEnv& env, const PassItemState& item, int64_t layer, Module m,
                 const std::byte* x, std::byte* u, std::byte* y, int64_t ldy,
                 const LoraScratch& scratch) {
  if (!item.lora->adapts(m)) return;
  LoraLowRank(env, item, layer, m, x, u, scratch);
  const LoraSite& site = item.lora->site(layer, m);
  GemmArgs g;  // y [T, out] += s * u [T, r] B^T
  g.transpose_a = false;
  g.transpose_b = true;
  g.M = item.T;
  g.N = site.out;
  g.K = item.lora->r;
  g.alpha = item.lora->scale;
  g.beta = 1;
  g.A = u;
  g.lda = item.lora->r;
  g.B = site.b;
  g.ldb = item.lora->r;
  g.C = y;
  g.ldc = ldy;
  g.a_type = Operand::kAct;
  g.b_type = Operand::kWt;
  g.c_type = Operand::kAct;
  env.backend->Gemm(g);
}

void LoraBackward(const PassEnv& env, const PassItemState& item, int64_t layer, Module m,
                  const std::byte* dy, int64_t ldy, const std::byte* x, const std::byte* u,
                  std::byte* dx, const LoraScratch& scratch) {
  if (!item.lora->adapts(m)) return;
  const LoraSite& site = item.lora->site(layer, m);
  const int64_t r = item.lora->r;
  GemmArgs g;  // du [T, r] = s * dy [T, out] B
  g.transpose_a = false;
  g.transpose_b = false;
  g.M = item.T;
  g.N = r;
  g.K = site.out;
  g.alpha = item.lora->scale;
  g.beta = 0;
  g.A = dy;
  g.lda = ldy;
  g.B = site.b;
  g.ldb = r;
  g.C = scratch.d_low_rank;
  g.ldc = r;
  g.a_type = Operand::kAct;
  g.b_type = Operand::kWt;
  g.c_type = Operand::kAct;
  env.backend->Gemm(g);

  g.transpose_a = true;  // dB [out, r] += s * dy^T u
  g.M = site.out;
  g.N = r;
  g.K = item.T;
  g.beta = 1;
  g.B = u;
  g.ldb = r;
  g.C = site.grad_b;
  g.ldc = r;
  g.b_type = Operand::kAct;
  g.c_type = Operand::kF32;
  env.backend->Gemm(g);

  g.M = r;  // dA [r, in] += du^T drop(x)
  g.N = site.in;
  g.alpha = 1;
  g.A = scratch.d_low_rank;
  g.lda = r;
  g.B = MaskedInput(env, item, layer, m, x, site.in, scratch);
  g.ldb = site.in;
  g.C = site.grad_a;
  g.ldc = site.in;
  env.backend->Gemm(g);

  if (dx == nullptr) return;
  const bool drops = Drops(item);
  g.transpose_a = false;  // dx [T, in] += drop(du A)
  g.M = item.T;
  g.N = site.in;
  g.K = r;
  g.beta = drops ? 0 : 1;
  g.B = site.a;
  g.ldb = site.in;
  g.C = drops ? scratch.d_dropped : dx;
  g.ldc = site.in;
  g.b_type = Operand::kWt;
  g.c_type = Operand::kAct;
  env.backend->Gemm(g);
  if (!drops) return;
  Drop(env, item, layer, m, scratch.d_dropped, scratch.d_dropped, site.in);
  env.backend->Axpy({scratch.d_dropped, dx, item.T * site.in, 1.0f, true});
}

}  // namespace soup::engine
