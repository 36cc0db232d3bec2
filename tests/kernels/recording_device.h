// A TestDevice around another that keeps every byte downloaded from it, so that two runs of a case
// can be compared bit by bit; and the base of devices that change an op on purpose.
#ifndef SOUP_TESTS_KERNELS_RECORDING_DEVICE_H_
#define SOUP_TESTS_KERNELS_RECORDING_DEVICE_H_

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "tests/kernels/device.h"

namespace soup::kernels {

class RecordingDevice : public TestDevice {
 public:
  explicit RecordingDevice(std::unique_ptr<TestDevice> inner) : inner_(std::move(inner)) {}

  const std::vector<uint8_t>& downloads() const { return downloads_; }

  const char* name() const override { return inner_->name(); }
  Element act() const override { return inner_->act(); }
  Element wt() const override { return inner_->wt(); }
  double epsilon() const override { return inner_->epsilon(); }
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
  void Run(const GatherRowsArgs& args) override { inner_->Run(args); }
  void Run(const WidenArgs& args) override { inner_->Run(args); }
  void Run(const Nf4DequantArgs& args) override { inner_->Run(args); }
  void Run(const RmsNormForwardArgs& args) override { inner_->Run(args); }
  void Run(const RmsNormBackwardArgs& args) override { inner_->Run(args); }
  void Run(const RopeArgs& args) override { inner_->Run(args); }
  void Run(const AttentionForwardArgs& args) override { inner_->Run(args); }
  void Run(const AttentionBackwardArgs& args) override { inner_->Run(args); }
  void Run(const SwigluForwardArgs& args) override { inner_->Run(args); }
  void Run(const SwigluBackwardArgs& args) override { inner_->Run(args); }
  void Run(const GemmArgs& args) override { inner_->Run(args); }
  void Run(const AxpyArgs& args) override { inner_->Run(args); }
  void Run(const DropoutArgs& args) override { inner_->Run(args); }
  void Run(const GatherActRowsArgs& args) override { inner_->Run(args); }
  void Run(const ScatterActRowsArgs& args) override { inner_->Run(args); }
  void Run(const LossSliceArgs& args) override { inner_->Run(args); }
  void Run(const LossTargetRowsArgs& args) override { inner_->Run(args); }
  void Run(const LossFinishArgs& args) override { inner_->Run(args); }
  void Run(const SumSquaresArgs& args) override { inner_->Run(args); }
  void Run(const AdamWArgs& args) override { inner_->Run(args); }

 private:
  std::unique_ptr<TestDevice> inner_;
  std::vector<uint8_t> downloads_;
};

}  // namespace soup::kernels

#endif  // SOUP_TESTS_KERNELS_RECORDING_DEVICE_H_
