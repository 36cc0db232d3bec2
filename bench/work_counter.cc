#include "bench/work_counter.h"

namespace soup::bench {
namespace {
// Five products where the forward has two (engine/base/machine_profile.h).
constexpr double kBackwardFactor = 2.5;
}  // namespace

void WorkCounter::Gemm(const kernels::GemmArgs& args) {
  const double flops =
      2.0 * static_cast<double>(args.M) * static_cast<double>(args.N) * static_cast<double>(args.K);
  // The rows of a product are its tokens: they are summed over where A is transposed.
  const int64_t tokens = args.transpose_a ? args.K : args.M;
  Product(flops, tokens);
  next().Gemm(args);
}

void WorkCounter::GateUp(const kernels::GateUpArgs& args) {
  Product(4.0 * static_cast<double>(args.T) * static_cast<double>(args.H * args.I), args.T);
  next().GateUp(args);
}

void WorkCounter::DownBackward(const kernels::DownBackwardArgs& args) {
  Product(2.0 * static_cast<double>(args.T) * static_cast<double>(args.H * args.I), args.T);
  next().DownBackward(args);
}

void WorkCounter::AdaptedProduct(const kernels::AdaptedProductArgs& args) {
  Product(2.0 * static_cast<double>(args.M) * static_cast<double>(args.N * args.K), args.M);
  next().AdaptedProduct(args);
}

void WorkCounter::TurnedProduct(const kernels::TurnedProductArgs& args) {
  const int64_t tokens = args.turned.up.T;
  Product(2.0 * static_cast<double>(tokens) * static_cast<double>(args.N * args.K), tokens);
  next().TurnedProduct(args);
}

void WorkCounter::Product(double flops, int64_t tokens) {
  const double rate = engine::RateAt(profile_.gemm_rates, tokens);
  work_.gemm_flops += flops;
  if (rate > 0) work_.ideal_seconds += flops / rate;
}

void WorkCounter::AttentionForward(const kernels::AttentionForwardArgs& args) {
  Attention(args.cu_seqlens, args.S, args.Hq * args.D, 1.0, profile_.attention_forward_rates);
  next().AttentionForward(args);
}

void WorkCounter::AttentionBackward(const kernels::AttentionBackwardArgs& args,
                                    const engine::AttentionScratch& scratch) {
  Attention(args.cu_seqlens, args.S, args.Hq * args.D, kBackwardFactor,
            profile_.attention_backward_rates);
  next().AttentionBackward(args, scratch);
}

void WorkCounter::AttentionBackwardTurned(const kernels::AttentionBackwardArgs& args,
                                          const engine::AttentionScratch& scratch,
                                          const kernels::RopeArgs& turn) {
  Attention(args.cu_seqlens, args.S, args.Hq * args.D, kBackwardFactor,
            profile_.attention_backward_rates);
  next().AttentionBackwardTurned(args, scratch, turn);
}

void WorkCounter::Attention(const int32_t* cu_seqlens, int64_t sequences, int64_t query_width,
                            double factor, const std::vector<engine::MeasuredRate>& curve) {
  for (int64_t s = 0; s < sequences; ++s) {
    const int64_t length = cu_seqlens[s + 1] - cu_seqlens[s];
    const double tokens = static_cast<double>(length);
    const double flops = factor * 2.0 * tokens * tokens * static_cast<double>(query_width);
    const double rate = engine::RateAt(curve, length);
    work_.attention_flops += flops;
    if (rate > 0) work_.ideal_seconds += flops / rate;
  }
}

}  // namespace soup::bench
