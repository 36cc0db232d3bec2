// A decorator of the CPU backend that rounds where the CUDA backend stores: what an op writes as an
// activation becomes the nearest bf16 value. Sums within an op are fp32 on both. Not seen from
// outside an op, and so not rounded: attention's probabilities and their gradients. Tells, without
// a GPU, what the precision of CUDA's buffers does to golden_check's figures; their bits are
// others. Thread-safety: as the other backend's.
#ifndef SOUP_TESTS_ENGINE_TRAIN_ROUNDING_BACKEND_H_
#define SOUP_TESTS_ENGINE_TRAIN_ROUNDING_BACKEND_H_

#include <cstdint>
#include <vector>

#include "bench/forwarding_backend.h"
#include "kernels/bf16.h"
#include "kernels/lora_products.h"

namespace soup::engine {

class RoundingBackend : public bench::ForwardingBackend {
 public:
  using ForwardingBackend::ForwardingBackend;

  void RmsNormForward(const kernels::RmsNormForwardArgs& a) override {
    next().RmsNormForward(a);
    Round(a.y, a.T, a.H, a.H);
  }
  void RmsNormBackward(const kernels::RmsNormBackwardArgs& a) override {
    next().RmsNormBackward(a);
    Round(a.dx, a.T, a.H, a.H);
  }
  void HeadNormForward(const kernels::HeadNormForwardArgs& a) override {
    next().HeadNormForward(a);
    Round(a.x, a.T, a.heads * a.D, a.row_stride);
  }
  void HeadNormBackward(const kernels::HeadNormBackwardArgs& a) override {
    next().HeadNormBackward(a);
    Round(a.dx, a.T, a.heads * a.D, a.grad_row_stride);
  }
  void AddBias(const kernels::AddBiasArgs& a) override {
    next().AddBias(a);
    Round(a.y, a.T, a.N, a.row_stride);
  }
  void Rope(const kernels::RopeArgs& a) override {
    next().Rope(a);
    Round(a.x, a.T, a.heads * a.D, a.row_stride);
  }
  void AttentionForward(const kernels::AttentionForwardArgs& a) override {
    next().AttentionForward(a);
    Round(a.out, a.T, a.Hq * a.D, a.Hq * a.D);
  }
  void AttentionBackward(const kernels::AttentionBackwardArgs& a,
                         const AttentionScratch& scratch) override {
    next().AttentionBackward(a, scratch);
    Round(a.dq, a.T, a.Hq * a.D, a.grad_row_stride);
    Round(a.dk, a.T, a.Hkv * a.D, a.grad_row_stride);
    Round(a.dv, a.T, a.Hkv * a.D, a.grad_row_stride);
  }
  void SwigluForward(const kernels::SwigluForwardArgs& a) override {
    next().SwigluForward(a);
    Round(a.y, a.T, a.I, a.I);
  }
  void SwigluBackward(const kernels::SwigluBackwardArgs& a) override {
    next().SwigluBackward(a);
    Round(a.d_gate_up, a.T, 2 * a.I, 2 * a.I);
  }
  void Gemm(const kernels::GemmArgs& a) override {
    const bool act = a.c_type == kernels::Operand::kAct;
    const bool in_place = a.beta != 0 && (a.addend == nullptr || a.addend == a.C);
    if (act && in_place) {
      // As cuBLASLt on sm_90: the product is rounded before C is added.
      std::vector<float> before(static_cast<size_t>(a.M * a.N));
      float* c = static_cast<float*>(a.C);
      for (int64_t i = 0; i < a.M; ++i) std::copy_n(c + i * a.ldc, a.N, &before[i * a.N]);
      kernels::GemmArgs alone = a;
      alone.beta = 0;
      alone.addend = nullptr;
      next().Gemm(alone);
      Round(a.C, a.M, a.N, a.ldc);
      for (int64_t i = 0; i < a.M; ++i) {
        for (int64_t j = 0; j < a.N; ++j) c[i * a.ldc + j] += before[i * a.N + j];
      }
    } else {
      next().Gemm(a);
    }
    if (act) Round(a.C, a.M, a.N, a.ldc);
  }
  // As their ops: what is rounded between them is rounded within a kernel too.
  void GateUp(const kernels::GateUpArgs& a) override { Backend::GateUp(a); }
  void DownBackward(const kernels::DownBackwardArgs& a) override { Backend::DownBackward(a); }
  void QkvFinish(const kernels::QkvFinishArgs& a) override {
    next().QkvFinish(a);
    Round(a.y, a.T, (a.Hq + 2 * a.Hkv) * a.D, a.row_stride);
    if (a.q_norm != nullptr) Round(a.saved, a.T, (a.Hq + a.Hkv) * a.D, a.row_stride);
  }
  // With an addend too: rounded once.
  void LoraUp(const kernels::LoraUpArgs& a) override {
    next().LoraUp(a);
    RoundLinears(a);
  }
  void LoraUpRope(const kernels::LoraUpRopeArgs& a) override {
    next().LoraUpRope(a);
    RoundLinears(a.up);
    Round(a.rope.x, a.rope.T, a.rope.heads * a.rope.D, a.rope.row_stride);
  }
  void LoraBack(const kernels::LoraBackArgs& a) override {
    next().LoraBack(a);
    const int64_t n = a.linears.count * kernels::LoraColumns(a.r);
    Round(a.du, a.T, n, n);
  }
  void LoraNormedGrad(const kernels::LoraNormedGradArgs& a) override {
    Backend::LoraNormedGrad(a);  // the norm's output is rounded
  }
  void Axpy(const kernels::AxpyArgs& a) override {
    next().Axpy(a);
    Round(a.y, 1, a.n, a.n);
  }
  void Dropout(const kernels::DropoutArgs& a) override {
    next().Dropout(a);
    Round(a.y, 1, a.n, a.n);
  }
  void LossSlice(const kernels::LossSliceArgs& a) override {
    next().LossSlice(a);
    Round(a.logits, a.n, a.Vs, a.Vs);  // p, an operand
  }
  void LossFinish(const kernels::LossFinishArgs& a) override {
    next().LossFinish(a);
    if (a.dh != nullptr) Round(a.dh, a.n, a.H, a.H);
  }
  void RouteBackward(const kernels::RouteBackwardArgs& a) override {
    next().RouteBackward(a);
    Round(a.d_logits, a.T, a.lde, a.lde);
  }
  void EntryGrad(const kernels::EntryGradArgs& a) override {
    next().EntryGrad(a);
    Round(a.d_act, a.n, a.I, a.I);
  }
  void AddF32(const kernels::AddF32Args& a) override {
    next().AddF32(a);
    Round(a.y, 1, a.n, a.n);
  }
  void NarrowToBf16(const float* src, void* dst, int64_t n) override {
    next().NarrowToBf16(src, dst, n);
    Round(dst, 1, n, n);
  }

 private:
  static void RoundLinears(const kernels::LoraUpArgs& a) {
    for (int32_t m = 0; m < a.linears.count; ++m) {
      Round(static_cast<float*>(a.y) + a.linears.column[m], a.T, a.linears.width[m], a.ldy);
    }
  }
  static void Round(void* y, int64_t rows, int64_t columns, int64_t stride) {
    float* at = static_cast<float*>(y);
    for (int64_t i = 0; i < rows; ++i, at += stride) {
      for (int64_t j = 0; j < columns; ++j) at[j] = kernels::Bf16ToF32(kernels::F32ToBf16(at[j]));
    }
  }
};

}  // namespace soup::engine

#endif  // SOUP_TESTS_ENGINE_TRAIN_ROUNDING_BACKEND_H_
