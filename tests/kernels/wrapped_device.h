// A TestDevice around another. It keeps every byte downloaded, so that two runs of a case can be
// compared bit by bit, and an op can be replaced, to show that a case notices a wrong one.
#ifndef SOUP_TESTS_KERNELS_WRAPPED_DEVICE_H_
#define SOUP_TESTS_KERNELS_WRAPPED_DEVICE_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <tuple>
#include <utility>
#include <vector>

#include "tests/kernels/device.h"

namespace soup::kernels {

class WrappedDevice : public TestDevice {
 public:
  explicit WrappedDevice(std::unique_ptr<TestDevice> inner) : inner_(std::move(inner)) {}

  const std::vector<uint8_t>& downloads() const { return downloads_; }

  // Runs `op` in place of the launcher of Args; it gets the wrapped device.
  template <typename Args>
  using Replacement = std::function<void(TestDevice& inner, Args args)>;
  template <typename Args>
  void Replace(Replacement<Args> op) {
    std::get<Replacement<Args>>(replacements_) = std::move(op);
  }

  const char* name() const override { return inner_->name(); }
  Element act() const override { return inner_->act(); }
  Element wt() const override { return inner_->wt(); }
  double epsilon() const override { return inner_->epsilon(); }
  double act_product_epsilon() const override { return inner_->act_product_epsilon(); }
  void* Allocate(size_t bytes, size_t align_bytes) override {
    return inner_->Allocate(bytes, align_bytes);
  }
  void Upload(void* dst, const void* src, size_t bytes) override {
    inner_->Upload(dst, src, bytes);
  }
  void Download(void* dst, const void* src, size_t bytes) override {
    inner_->Download(dst, src, bytes);
    const auto* begin = static_cast<const uint8_t*>(dst);
    downloads_.insert(downloads_.end(), begin, begin + bytes);
  }
  void Run(const GatherRowsArgs& args) override { RunOrReplace(args); }
  void Run(const WidenArgs& args) override { RunOrReplace(args); }
  void Run(const Nf4DequantArgs& args) override { RunOrReplace(args); }
  void Run(const RmsNormForwardArgs& args) override { RunOrReplace(args); }
  void Run(const RmsNormBackwardArgs& args) override { RunOrReplace(args); }
  void Run(const HeadNormForwardArgs& args) override { RunOrReplace(args); }
  void Run(const HeadNormBackwardArgs& args) override { RunOrReplace(args); }
  void Run(const AddBiasArgs& args) override { RunOrReplace(args); }
  void Run(const RopeArgs& args) override { RunOrReplace(args); }
  void Run(const AttentionForwardArgs& args) override { RunOrReplace(args); }
  void Run(const AttentionBackwardArgs& args) override { RunOrReplace(args); }
  void Run(const SwigluForwardArgs& args) override { RunOrReplace(args); }
  void Run(const SwigluBackwardArgs& args) override { RunOrReplace(args); }
  void Run(const GemmArgs& args) override { RunOrReplace(args); }
  void Run(const GateUpArgs& args) override { RunOrReplace(args); }
  void Run(const DownBackwardArgs& args) override { RunOrReplace(args); }
  void Run(const AdaptedProductArgs& args) override { RunOrReplace(args); }
  void Run(const TurnedProductArgs& args) override { RunOrReplace(args); }
  void Run(const LoraUpArgs& args) override { RunOrReplace(args); }
  void Run(const LoraUpRopeArgs& args) override { RunOrReplace(args); }
  void Run(const QkvFinishArgs& args) override { RunOrReplace(args); }
  void Run(const LoraBackArgs& args) override { RunOrReplace(args); }
  void Run(const LoraGradArgs& args) override { RunOrReplace(args); }
  void Run(const LoraNormedGradArgs& args) override { RunOrReplace(args); }
  void Run(const AxpyArgs& args) override { RunOrReplace(args); }
  void Run(const DropoutArgs& args) override { RunOrReplace(args); }
  void Run(const GatherActRowsArgs& args) override { RunOrReplace(args); }
  void Run(const ScatterActRowsArgs& args) override { RunOrReplace(args); }
  void Run(const LossSliceArgs& args) override { RunOrReplace(args); }
  void Run(const LossTargetRowsArgs& args) override { RunOrReplace(args); }
  void Run(const LossFinishArgs& args) override { RunOrReplace(args); }
  void Run(const RouteArgs& args) override { RunOrReplace(args); }
  void Run(const RouteBackwardArgs& args) override { RunOrReplace(args); }
  void Run(const ListExpertsArgs& args) override { RunOrReplace(args); }
  void Run(const GatherEntriesArgs& args) override { RunOrReplace(args); }
  void Run(const ScatterEntriesArgs& args) override { RunOrReplace(args); }
  void Run(const EntryGradArgs& args) override { RunOrReplace(args); }
  void Run(const AddF32Args& args) override { RunOrReplace(args); }
  void Run(const SumSquaresArgs& args) override { RunOrReplace(args); }
  void Run(const AdamWArgs& args) override { RunOrReplace(args); }

 private:
  template <typename Args>
  void RunOrReplace(const Args& args) {
    const Replacement<Args>& op = std::get<Replacement<Args>>(replacements_);
    if (op) {
      op(*inner_, args);
    } else {
      inner_->Run(args);
    }
  }

  std::tuple<
      Replacement<GatherRowsArgs>, Replacement<WidenArgs>, Replacement<Nf4DequantArgs>,
      Replacement<RmsNormForwardArgs>, Replacement<RmsNormBackwardArgs>,
      Replacement<HeadNormForwardArgs>, Replacement<HeadNormBackwardArgs>, Replacement<AddBiasArgs>,
      Replacement<RopeArgs>, Replacement<AttentionForwardArgs>, Replacement<AttentionBackwardArgs>,
      Replacement<SwigluForwardArgs>, Replacement<SwigluBackwardArgs>, Replacement<GemmArgs>,
      Replacement<GateUpArgs>, Replacement<DownBackwardArgs>, Replacement<AdaptedProductArgs>,
      Replacement<TurnedProductArgs>, Replacement<LoraUpArgs>, Replacement<LoraUpRopeArgs>,
      Replacement<QkvFinishArgs>, Replacement<LoraBackArgs>, Replacement<LoraGradArgs>,
      Replacement<LoraNormedGradArgs>, Replacement<AxpyArgs>, Replacement<DropoutArgs>,
      Replacement<GatherActRowsArgs>, Replacement<ScatterActRowsArgs>, Replacement<LossSliceArgs>,
      Replacement<LossTargetRowsArgs>, Replacement<LossFinishArgs>, Replacement<RouteArgs>,
      Replacement<RouteBackwardArgs>, Replacement<ListExpertsArgs>, Replacement<GatherEntriesArgs>,
      Replacement<ScatterEntriesArgs>, Replacement<EntryGradArgs>, Replacement<AddF32Args>,
      Replacement<SumSquaresArgs>, Replacement<AdamWArgs>>
      replacements_;
  std::unique_ptr<TestDevice> inner_;
  std::vector<uint8_t> downloads_;
};

}  // namespace soup::kernels

#endif  // SOUP_TESTS_KERNELS_WRAPPED_DEVICE_H_
