// The CPU ops as a TestDevice: fp32, chosen thread count and instruction set, addresses aligned no
// better than asked.
#ifndef SOUP_TESTS_KERNELS_CPU_DEVICE_H_
#define SOUP_TESTS_KERNELS_CPU_DEVICE_H_

#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "kernels/cpu/attention.h"
#include "kernels/cpu/elementwise.h"
#include "kernels/cpu/gemm.h"
#include "kernels/cpu/loss.h"
#include "kernels/cpu/moe.h"
#include "kernels/cpu/nf4_dequant.h"
#include "kernels/cpu/norm.h"
#include "kernels/cpu/optimizer.h"
#include "kernels/cpu/rope.h"
#include "kernels/gate_ops.h"
#include "kernels/lora_products.h"
#include "kernels/qkv_ops.h"
#include "tests/kernels/device.h"

namespace soup::kernels {

class CpuDevice : public TestDevice {
 public:
  explicit CpuDevice(const cpu::CpuContextOptions& options) : context_(options) {}

  const char* name() const override { return "cpu"; }
  Element act() const override { return Element::kF32; }
  Element wt() const override { return Element::kF32; }
  double epsilon() const override { return 0x1p-24; }

  void* Allocate(size_t bytes, size_t align_bytes) override {
    // 64-byte aligned plus one step of the promised alignment; filled with a pattern that is NaN in
    // every float type, so that reading what was never written shows.
    blocks_.push_back(std::make_unique<std::byte[]>(bytes + 128));
    void* start = blocks_.back().get();
    size_t space = bytes + 128;
    auto* aligned = static_cast<std::byte*>(std::align(64, bytes, start, space));
    std::memset(aligned, 0xff, bytes + align_bytes);
    return aligned + align_bytes;
  }
  void Upload(void* dst, const void* src, size_t bytes) override {
    if (bytes > 0) std::memcpy(dst, src, bytes);
  }
  void Download(void* dst, const void* src, size_t bytes) override {
    if (bytes > 0) std::memcpy(dst, src, bytes);
  }

  void Run(const GatherRowsArgs& args) override { cpu::GatherRows(args, context_); }
  void Run(const WidenArgs& args) override { cpu::Widen(args, context_); }
  void Run(const Nf4DequantArgs& args) override { cpu::Nf4Dequant(args, context_); }
  void Run(const RmsNormForwardArgs& args) override { cpu::RmsNormForward(args, context_); }
  void Run(const RmsNormBackwardArgs& args) override { cpu::RmsNormBackward(args, context_); }
  void Run(const HeadNormForwardArgs& args) override { cpu::HeadNormForward(args, context_); }
  void Run(const HeadNormBackwardArgs& args) override { cpu::HeadNormBackward(args, context_); }
  void Run(const AddBiasArgs& args) override { cpu::AddBias(args, context_); }
  void Run(const RopeArgs& args) override { cpu::Rope(args, context_); }
  void Run(const AttentionForwardArgs& args) override { cpu::AttentionForward(args, context_); }
  void Run(const AttentionBackwardArgs& args) override { cpu::AttentionBackward(args, context_); }
  void Run(const SwigluForwardArgs& args) override { cpu::SwigluForward(args, context_); }
  void Run(const SwigluBackwardArgs& args) override { cpu::SwigluBackward(args, context_); }
  void Run(const GemmArgs& args) override { cpu::Gemm(args, context_); }
  void Run(const GateUpArgs& args) override {
    ForEachOp(args, [this](const auto& op) { Run(op); });
  }
  void Run(const DownBackwardArgs& args) override {
    ForEachOp(args, [this](const auto& op) { Run(op); });
  }
  void Run(const AdaptedProductArgs& args) override {
    ForEachOp(args, [this](const auto& op) { Run(op); });
  }
  void Run(const TurnedProductArgs& args) override {
    ForEachOp(args, [this](const auto& op) { Run(op); });
  }
  void Run(const LoraUpArgs& args) override {
    SOUP_KERNEL_CHECK(LoraAddendFits(args));
    if (LoraAddendFirst(args)) cpu::Axpy(AddendOf(args), context_);
    Products(args);
  }
  void Run(const LoraUpRopeArgs& args) override {
    Run(args.up);
    cpu::Rope(args.rope, context_);
  }
  void Run(const QkvFinishArgs& args) override {
    ForEachOp(args, [this](const auto& op) { Run(op); });
  }
  void Run(const LoraBackArgs& args) override { Products(args); }
  void Run(const LoraGradArgs& args) override { Products(args); }
  void Run(const LoraNormedGradArgs& args) override {
    cpu::RmsNormForward(NormOf(args), context_);
    cpu::Gemm(ProductOf(args), context_);
  }
  void Run(const AxpyArgs& args) override { cpu::Axpy(args, context_); }
  void Run(const DropoutArgs& args) override { cpu::Dropout(args, context_); }
  void Run(const GatherActRowsArgs& args) override { cpu::GatherActRows(args, context_); }
  void Run(const ScatterActRowsArgs& args) override { cpu::ScatterActRows(args, context_); }
  void Run(const LossSliceArgs& args) override { cpu::LossSlice(args, context_); }
  void Run(const LossTargetRowsArgs& args) override { cpu::LossTargetRows(args, context_); }
  void Run(const LossFinishArgs& args) override { cpu::LossFinish(args, context_); }
  void Run(const RouteArgs& args) override { cpu::Route(args, context_); }
  void Run(const RouteBackwardArgs& args) override { cpu::RouteBackward(args, context_); }
  void Run(const ListExpertsArgs& args) override { cpu::ListExperts(args, context_); }
  void Run(const GatherEntriesArgs& args) override { cpu::GatherEntries(args, context_); }
  void Run(const ScatterEntriesArgs& args) override { cpu::ScatterEntries(args, context_); }
  void Run(const EntryGradArgs& args) override { cpu::EntryGrad(args, context_); }
  void Run(const AddF32Args& args) override { cpu::AddF32(args, context_); }
  void Run(const SumSquaresArgs& args) override { cpu::SumSquares(args, context_); }
  void Run(const AdamWArgs& args) override { cpu::AdamW(args, context_); }

  cpu::CpuContext& context() { return context_; }

 private:
  // As the CPU backend.
  template <typename Args>
  void Products(const Args& args) {
    ForEachProduct(args, sizeof(float), [this](const GemmArgs& g) { cpu::Gemm(g, context_); });
  }

  cpu::CpuContext context_;
  std::vector<std::unique_ptr<std::byte[]>> blocks_;
};

}  // namespace soup::kernels

#endif  // SOUP_TESTS_KERNELS_CPU_DEVICE_H_
