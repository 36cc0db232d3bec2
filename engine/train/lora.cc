#include "engine/train/lora.h"

#include "engine/base/log.h"
#include "kernels/lora_products.h"

namespace soup::engine {

static_assert(LowRankColumns(1) == kernels::LoraColumns(1) &&
                  LowRankColumns(13) == kernels::LoraColumns(13),
              "the plan's columns are the ops'");

bool LoraDrops(const PassItemState& item) { return item.train && item.lora->dropout > 0; }

namespace {

using kernels::GemmArgs;
using kernels::Operand;

// The counter's upper half: the step. Lower half: micro-batch, layer, module.
uint64_t StreamLow(const PassItemState& item, int64_t layer, Module m) {
  return static_cast<uint64_t>(item.micro_batch) << 32 | static_cast<uint64_t>(layer) << 8 |
         static_cast<uint64_t>(m);
}

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

// Calls run(first, count, input) for runs of linears that are one product: all of them, or one
// after another where each has a masked input (dropout), or columns of x A^T that stand apart (r no
// multiple of 8).
template <typename Run>
void ForEachInput(const PassEnv& env, const PassItemState& item, int64_t layer,
                  const LoraSite& site, const std::byte* x, const LoraScratch& scratch,
                  const Run& run) {
  const bool drops = LoraDrops(item);
  if (!drops && item.lora->columns() == item.lora->r) return run(0, site.linears.count, x);
  for (int32_t i = 0; i < site.linears.count; ++i) {
    if (drops) Drop(env, item, layer, site.modules[i], x, scratch.dropped, site.in);
    run(i, 1, drops ? scratch.dropped : x);
  }
}

// Columns that only fill a linear's up are never written; products read whole vectors, and zero
// times what memory happens to hold need not be zero.
void ZeroFill(const PassEnv& env, const PassItemState& item, int64_t width, std::byte* u) {
  if (item.lora->columns() == item.lora->r) return;
  env.backend->FillZero(u, item.T * width * env.act_bytes);
}

GemmArgs Product(int64_t m, int64_t n, int64_t k) {
  GemmArgs g{};
  g.M = m;
  g.N = n;
  g.K = k;
  g.alpha = 1;
  g.a_type = Operand::kAct;
  g.b_type = Operand::kAct;  // an adapter's operands are of act's type
  g.c_type = Operand::kAct;
  return g;
}

}  // namespace

std::byte* LowRankOf(const PassEnv& env, const PassItemState& item, Group g, std::byte* low_rank) {
  if (!item.lora->adapts(g)) return nullptr;
  int64_t first = item.lora->site(0, g).first_target;
  if (IsMlpGroup(g)) first -= item.lora->attention_targets;
  return At(low_rank, first * item.T * item.lora->columns(), env.act_bytes);
}

void LoraLowRank(const PassEnv& env, const PassItemState& item, int64_t layer, Group group,
                 const std::byte* x, std::byte* u, const LoraScratch& scratch) {
  if (!item.lora->adapts(group)) return;
  const LoraSite& site = item.lora->site(layer, group);
  const int64_t r = item.lora->r, columns = item.lora->columns();
  const int64_t width = site.linears.count * columns;
  ZeroFill(env, item, width, u);
  ForEachInput(env, item, layer, site, x, scratch,
               [&](int32_t first, int32_t count, const std::byte* input) {
                 GemmArgs g = Product(item.T, count * r, site.in);  // [T, count r] = input A^T
                 g.transpose_b = true;
                 g.A = input;
                 g.lda = site.in;
                 g.B = At(site.a, first * r * site.in, env.act_bytes);
                 g.ldb = site.in;
                 g.C = At(u, first * columns, env.act_bytes);
                 g.ldc = width;
                 env.backend->Gemm(g);
               });
}

namespace {

kernels::LoraUpArgs UpArgs(const PassItemState& item, int64_t layer, Group group,
                           const std::byte* u, std::byte* y, int64_t ldy) {
  const LoraSite& site = item.lora->site(layer, group);
  return {site.linears, u, site.b, y, item.T, item.lora->r, ldy, item.lora->scale};
}

}  // namespace

void LoraForward(const PassEnv& env, const PassItemState& item, int64_t layer, Group group,
                 const std::byte* x, std::byte* u, std::byte* y, int64_t ldy,
                 const LoraScratch& scratch) {
  if (!item.lora->adapts(group)) return;
  LoraLowRank(env, item, layer, group, x, u, scratch);
  env.backend->LoraUp(UpArgs(item, layer, group, u, y, ldy));
}

bool LoraTakesResidual(const PassEnv& env, const PassItemState& item, int64_t layer, Group group) {
  return item.lora->adapts(group) &&
         kernels::LoraUpKernelsTake(item.lora->site(layer, group).linears, item.lora->r,
                                    env.spec.hidden);
}

void LoraForwardOnResidual(const PassEnv& env, const PassItemState& item, int64_t layer,
                           Group group, const std::byte* x, std::byte* u, std::byte* y,
                           const std::byte* residual, const LoraScratch& scratch) {
  LoraLowRank(env, item, layer, group, x, u, scratch);
  kernels::LoraUpArgs args = UpArgs(item, layer, group, u, y, env.spec.hidden);
  args.addend = residual;
  env.backend->LoraUp(args);
}

void LoraForwardAlone(const PassEnv& env, const PassItemState& item, int64_t layer, Group group,
                      const std::byte* x, std::byte* u, std::byte* y, const LoraScratch& scratch) {
  LoraLowRank(env, item, layer, group, x, u, scratch);
  kernels::LoraUpArgs args = UpArgs(item, layer, group, u, y, env.spec.hidden);
  args.accumulate = false;
  env.backend->LoraUp(args);
}

kernels::LoraUpRopeArgs LoraUpTurned(const PassItemState& item, int64_t layer, Group group,
                                     const std::byte* u, const kernels::RopeArgs& rope) {
  const kernels::LoraUpRopeArgs args = {
      UpArgs(item, layer, group, u, static_cast<std::byte*>(rope.x), rope.row_stride), rope};
  SOUP_CHECK(kernels::LoraUpRopeTaken(args));  // what AdaptersTurn promises
  return args;
}

void LoraBackwardUp(const PassEnv& env, const PassItemState& item, int64_t layer, Group group,
                    const std::byte* dy, int64_t ldy, const std::byte* u,
                    const LoraScratch& scratch) {
  if (!item.lora->adapts(group)) return;
  const LoraSite& site = item.lora->site(layer, group);
  const int64_t r = item.lora->r;
  std::byte* du = scratch.d_low_rank;
  ZeroFill(env, item, site.linears.count * item.lora->columns(), du);
  env.backend->LoraBack({site.linears, dy, site.b, du, item.T, r, ldy, item.lora->scale});
  env.backend->LoraGrad({site.linears, dy, u, site.grad_b, item.T, r, ldy, item.lora->scale});
}

void LoraBackwardDown(const PassEnv& env, const PassItemState& item, int64_t layer, Group group,
                      const std::byte* x, const LoraScratch& scratch) {
  if (!item.lora->adapts(group)) return;
  const LoraSite& site = item.lora->site(layer, group);
  const int64_t r = item.lora->r, columns = item.lora->columns();
  const int64_t width = site.linears.count * columns;
  const std::byte* du = scratch.d_low_rank;
  ForEachInput(env, item, layer, site, x, scratch,
               [&](int32_t first, int32_t count, const std::byte* input) {
                 GemmArgs g = Product(count * r, site.in, item.T);  // dA += du^T input
                 g.transpose_a = true;
                 g.beta = 1;
                 g.A = At(du, first * columns, env.act_bytes);
                 g.lda = width;
                 g.B = input;
                 g.ldb = site.in;
                 g.C = site.grad_a + first * r * site.in;
                 g.c_type = Operand::kF32;
                 g.ldc = site.in;
                 env.backend->Gemm(g);
               });
}

void LoraBackwardDown(const PassEnv& env, const PassItemState& item, int64_t layer, Group group,
                      const LoraNorm& norm, const float* rstd, const LoraScratch& scratch) {
  if (!item.lora->adapts(group)) return;
  SOUP_CHECK(!LoraDrops(item));
  const LoraSite& site = item.lora->site(layer, group);
  const int64_t r = item.lora->r, columns = item.lora->columns();
  ForEachInput(env, item, layer, site, norm.normed, scratch,
               [&](int32_t first, int32_t count, const std::byte*) {
                 kernels::LoraNormedGradArgs a{};
                 a.du = At(scratch.d_low_rank, first * columns, env.act_bytes);
                 a.x = norm.x;
                 a.weight = reinterpret_cast<const uint16_t*>(norm.weight);
                 a.rstd = rstd;
                 a.normed = norm.normed;
                 a.grad_a = site.grad_a + first * r * site.in;
                 a.T = item.T;
                 a.R = count * r;
                 a.H = site.in;
                 a.ldu = site.linears.count * columns;
                 a.eps = static_cast<float>(env.spec.rms_eps);
                 a.weight_offset = static_cast<float>(env.spec.norm_offset);
                 env.backend->LoraNormedGrad(a);
               });
}

void LoraBackwardInput(const PassEnv& env, const PassItemState& item, int64_t layer, Group group,
                       bool accumulate, std::byte* dx, const LoraScratch& scratch) {
  if (!item.lora->adapts(group)) return;
  const LoraSite& site = item.lora->site(layer, group);
  const int64_t r = item.lora->r, columns = item.lora->columns();
  const int64_t width = site.linears.count * columns;
  const std::byte* du = scratch.d_low_rank;
  if (!LoraDrops(item)) {
    ForEachInput(env, item, layer, site, nullptr, scratch,
                 [&](int32_t first, int32_t count, const std::byte*) {
                   GemmArgs g = Product(item.T, site.in, count * r);  // dx (+)= du A
                   g.beta = accumulate || first > 0 ? 1 : 0;
                   g.A = At(du, first * columns, env.act_bytes);
                   g.lda = width;
                   g.B = At(site.a, first * r * site.in, env.act_bytes);
                   g.ldb = site.in;
                   g.C = dx;
                   g.ldc = site.in;
                   env.backend->Gemm(g);
                 });
    return;
  }
  SOUP_CHECK(accumulate);
  for (int32_t i = 0; i < site.linears.count; ++i) {
    GemmArgs g = Product(item.T, site.in, r);  // d dropped = du A of one linear
    g.A = At(du, i * columns, env.act_bytes);
    g.lda = width;
    g.B = At(site.a, i * r * site.in, env.act_bytes);
    g.ldb = site.in;
    g.C = scratch.d_dropped;
    g.ldc = site.in;
    env.backend->Gemm(g);
    Drop(env, item, layer, site.modules[i], scratch.d_dropped, scratch.d_dropped, site.in);
    env.backend->Axpy({scratch.d_dropped, dx, item.T * site.in, 1.0f, true});
  }
}

void LoraBackward(const PassEnv& env, const PassItemState& item, int64_t layer, Group group,
                  const std::byte* dy, int64_t ldy, const std::byte* x, const std::byte* u,
                  std::byte* dx, const LoraScratch& scratch) {
  LoraBackwardUp(env, item, layer, group, dy, ldy, u, scratch);
  LoraBackwardDown(env, item, layer, group, x, scratch);
  LoraBackwardInput(env, item, layer, group, /*accumulate=*/true, dx, scratch);
}

}  // namespace soup::engine
