// Speed of the CPU ops at SmolLM2-135M's shapes (hidden 576, 9 / 3 heads of 64, intermediate 1536).
// Not run by default: ctest -C bench -L bench, or build/<dir>/tests/kernels_bench.
#include <benchmark/benchmark.h>

#include <cstdint>
#include <vector>

#include "kernels/cpu/attention.h"
#include "kernels/cpu/elementwise.h"
#include "kernels/cpu/gemm.h"
#include "kernels/cpu/loss.h"
#include "kernels/cpu/nf4_dequant.h"
#include "kernels/cpu/nf4_quantize.h"
#include "kernels/cpu/norm.h"
#include "kernels/cpu/optimizer.h"
#include "kernels/cpu/rope.h"
#include "kernels/nf4.h"
#include "tests/kernels/cases.h"

namespace soup::kernels::cpu {
namespace {

constexpr int64_t kHidden = 576, kInner = 1536, kHq = 9, kHkv = 3, kD = 64;
constexpr int64_t kQkv = (kHq + 2 * kHkv) * kD;

CpuContext& Context() {
  static CpuContext context;
  return context;
}

std::vector<float> Floats(int64_t n) {
  Random random(7);
  std::vector<float> values(n);
  for (float& v : values) v = static_cast<float>(random.Uniform() - 0.5);
  return values;
}

void SetFlops(benchmark::State& state, double flops) {
  state.counters["GFLOPS"] =
      benchmark::Counter(flops * 1e-9, benchmark::Counter::kIsIterationInvariantRate);
}
void SetBytes(benchmark::State& state, double bytes) {
  state.counters["GB/s"] =
      benchmark::Counter(bytes * 1e-9, benchmark::Counter::kIsIterationInvariantRate);
}

void GemmForward(benchmark::State& state) {
  const int64_t M = state.range(0), N = state.range(1), K = state.range(2);
  const auto a = Floats(M * K), b = Floats(N * K);
  std::vector<float> c(M * N);
  for (auto _ : state) {
    Gemm({.transpose_b = true,
          .M = M,
          .N = N,
          .K = K,
          .alpha = 1,
          .beta = 0,
          .A = a.data(),
          .lda = K,
          .B = b.data(),
          .ldb = K,
          .C = c.data(),
          .ldc = N},
         Context());
  }
  SetFlops(state, 2.0 * M * N * K);
}
BENCHMARK(GemmForward)
    ->Args({512, 960, 576})
    ->Args({512, 3072, 576})
    ->Args({512, 576, 1536})
    ->Args({512, 16, 576})
    ->UseRealTime();

struct Pack {
  explicit Pack(int64_t T, int64_t sequences)
      : T(T),
        qkv(Floats(T * kQkv)),
        grad(T * kQkv),
        out(T * kHq * kD),
        dout(Floats(T * kHq * kD)),
        lse(T * kHq),
        delta(T * kHq) {
    for (int64_t s = 0; s <= sequences; ++s) cu.push_back(static_cast<int32_t>(T * s / sequences));
  }
  AttentionForwardArgs Forward() {
    return {.q = qkv.data(),
            .k = qkv.data() + kHq * kD,
            .v = qkv.data() + (kHq + kHkv) * kD,
            .row_stride = kQkv,
            .out = out.data(),
            .lse = lse.data(),
            .cu_seqlens = cu.data(),
            .S = static_cast<int64_t>(cu.size()) - 1,
            .T = T,
            .Hq = kHq,
            .Hkv = kHkv,
            .D = kD,
            .scale = 0.125f};
  }
  // Multiply-adds of one product over the causal triangle, all heads.
  double Triangle() const {
    double pairs = 0;
    for (size_t s = 0; s + 1 < cu.size(); ++s) {
      const double length = cu[s + 1] - cu[s];
      pairs += length * (length + 1) / 2;
    }
    return pairs * kHq * kD;
  }
  int64_t T;
  std::vector<float> qkv, grad, out, dout, lse, delta;
  std::vector<int32_t> cu;
};

void AttentionForwardBench(benchmark::State& state) {
  Pack pack(state.range(0), state.range(1));
  for (auto _ : state) AttentionForward(pack.Forward(), Context());
  SetFlops(state, 2 * 2 * pack.Triangle());
}
BENCHMARK(AttentionForwardBench)->Args({512, 1})->Args({512, 8})->Args({2048, 1})->UseRealTime();

void AttentionBackwardBench(benchmark::State& state) {
  Pack pack(state.range(0), state.range(1));
  AttentionForward(pack.Forward(), Context());
  const AttentionForwardArgs f = pack.Forward();
  const AttentionBackwardArgs args = {.q = f.q,
                                      .k = f.k,
                                      .v = f.v,
                                      .row_stride = kQkv,
                                      .out = f.out,
                                      .dout = pack.dout.data(),
                                      .lse = f.lse,
                                      .delta = pack.delta.data(),
                                      .dq = pack.grad.data(),
                                      .dk = pack.grad.data() + kHq * kD,
                                      .dv = pack.grad.data() + (kHq + kHkv) * kD,
                                      .grad_row_stride = kQkv,
                                      .cu_seqlens = f.cu_seqlens,
                                      .S = f.S,
                                      .T = f.T,
                                      .Hq = kHq,
                                      .Hkv = kHkv,
                                      .D = kD,
                                      .scale = f.scale};
  for (auto _ : state) AttentionBackward(args, Context());
  SetFlops(state, 2 * 5 * pack.Triangle());
}
BENCHMARK(AttentionBackwardBench)->Args({512, 1})->Args({512, 8})->Args({2048, 1})->UseRealTime();

void RopeBench(benchmark::State& state) {
  const int64_t T = 512;
  auto x = Floats(T * kQkv);
  std::vector<int32_t> positions(T);
  for (int64_t t = 0; t < T; ++t) positions[t] = static_cast<int32_t>(t);
  const auto freq = Floats(kD / 2);
  for (auto _ : state) {
    Rope({.x = x.data(),
          .positions = positions.data(),
          .inv_freq = freq.data(),
          .T = T,
          .heads = kHq + kHkv,
          .D = kD,
          .row_stride = kQkv,
          .inverse = false},
         Context());
  }
  SetBytes(state, 8.0 * T * (kHq + kHkv) * kD);
}
BENCHMARK(RopeBench)->UseRealTime();

void RmsNormBench(benchmark::State& state) {
  const int64_t T = 512;
  const auto x = Floats(T * kHidden), dy = Floats(T * kHidden);
  std::vector<float> y(T * kHidden), rstd(T);
  const std::vector<uint16_t> w(kHidden, 0x3f80);
  for (auto _ : state) {
    RmsNormForward({.x = x.data(),
                    .weight = w.data(),
                    .y = y.data(),
                    .rstd = rstd.data(),
                    .T = T,
                    .H = kHidden,
                    .eps = 1e-5f},
                   Context());
    if (state.range(0) == 0) continue;
    RmsNormBackward({.dy = dy.data(),
                     .x = x.data(),
                     .weight = w.data(),
                     .rstd = rstd.data(),
                     .dx = y.data(),
                     .T = T,
                     .H = kHidden,
                     .accumulate = true},
                    Context());
  }
  SetBytes(state, 8.0 * T * kHidden * (1 + 2 * state.range(0)));
}
BENCHMARK(RmsNormBench)->Arg(0)->Arg(1)->UseRealTime();

void SwigluBench(benchmark::State& state) {
  const int64_t T = 512;
  auto x = Floats(T * 2 * kInner);
  std::vector<float> y(T * kInner, 0.5f), grad(T * 2 * kInner);
  for (auto _ : state) {
    if (state.range(0) == 0) {
      SwigluForward({.gate_up = x.data(), .y = y.data(), .T = T, .I = kInner}, Context());
    } else {
      SwigluBackward(
          {.gate_up = x.data(), .dy = y.data(), .d_gate_up = grad.data(), .T = T, .I = kInner},
          Context());
    }
  }
  SetBytes(state, (state.range(0) == 0 ? 12.0 : 20.0) * T * kInner);
}
BENCHMARK(SwigluBench)->Arg(0)->Arg(1)->UseRealTime();

void LossSliceBench(benchmark::State& state) {
  const int64_t n = 256, Vs = 4096;
  const auto start = Floats(n * Vs);
  auto logits = start;
  const std::vector<int32_t> targets(n, 1);
  std::vector<float> m(n), l(n), target(n), grad(n * kHidden);
  for (auto _ : state) {
    LossSlice({.logits = logits.data(),
               .targets = targets.data(),
               .m = m.data(),
               .l = l.data(),
               .target_logit = target.data(),
               .grad = grad.data(),
               .n = n,
               .H = kHidden,
               .v0 = 0,
               .Vs = Vs,
               .first = true,
               .with_grad = true},
              Context());
  }
  SetBytes(state, 8.0 * n * Vs);
}
BENCHMARK(LossSliceBench)->UseRealTime();

void AdamWBench(benchmark::State& state) {
  const int64_t n = 4 << 20;
  auto w = Floats(n), m = Floats(n), g = Floats(n);
  std::vector<float> v(n, 0.01f);
  for (auto _ : state) {
    AdamW({.w = w.data(),
           .m = m.data(),
           .v = v.data(),
           .g = g.data(),
           .n = n,
           .lr = 1e-4f,
           .beta1 = 0.9f,
           .beta2 = 0.999f,
           .eps = 1e-8f,
           .weight_decay = 0.01f,
           .grad_scale = 1,
           .t = 10},
          Context());
  }
  SetBytes(state, 28.0 * n);
}
BENCHMARK(AdamWBench)->UseRealTime();

void DropoutBench(benchmark::State& state) {
  const int64_t n = 512 * kHidden;
  auto x = Floats(n), y = x;
  for (auto _ : state) {
    Dropout({.x = x.data(), .y = y.data(), .n = n, .p = 0.1f, .seed = 1}, Context());
  }
  SetBytes(state, 8.0 * n);
}
BENCHMARK(DropoutBench)->UseRealTime();

// One layer's 3.5 M weights. Bytes of fp32 written, and of bf16 read.
void Nf4DequantBench(benchmark::State& state) {
  const int64_t n = 3538944;
  const std::vector<uint8_t> packed(n / 2, 0x5A), q(Nf4Blocks(n), 100);
  const std::vector<float> nested(Nf4NestedBlocks(Nf4Blocks(n)), 0.01f), offset(1, 0.02f);
  std::vector<float> dst(n);
  for (auto _ : state) {
    Nf4Dequant({.packed = packed.data(),
                .absmax_q = q.data(),
                .nested_absmax = nested.data(),
                .nested_offset = offset.data(),
                .dst = dst.data(),
                .n = n},
               Context());
  }
  SetBytes(state, 4.0 * n);
}
BENCHMARK(Nf4DequantBench)->UseRealTime();

void WidenBench(benchmark::State& state) {
  const int64_t n = 3538944;
  const std::vector<uint16_t> src(n, 0x3f80);
  std::vector<float> dst(n);
  for (auto _ : state) Widen({.src = src.data(), .dst = dst.data(), .n = n}, Context());
  SetBytes(state, 4.0 * n);
}
BENCHMARK(WidenBench)->UseRealTime();

void Nf4QuantizeBench(benchmark::State& state) {
  const int64_t n = 1 << 20;
  std::vector<uint16_t> weights(n);
  Random random(1);
  for (uint16_t& w : weights) w = static_cast<uint16_t>(0x3c00 + random.Below(256));
  std::vector<uint8_t> packed(n / 2);
  std::vector<float> absmax(Nf4Blocks(n));
  const Nf4QuantizeArgs args = {
      .src_bf16 = weights.data(), .n = n, .packed = packed.data(), .absmax = absmax.data()};
  for (auto _ : state) benchmark::DoNotOptimize(Nf4QuantizeBlocks(args, 0, Nf4Blocks(n)));
  SetBytes(state, 2.0 * n);
}
BENCHMARK(Nf4QuantizeBench)->UseRealTime();  // one thread

}  // namespace
}  // namespace soup::kernels::cpu

BENCHMARK_MAIN();
