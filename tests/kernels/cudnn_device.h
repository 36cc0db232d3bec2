// CudaDevice with attention by cuDNN, every sequence of every length; neighbours of one length that
// fill their class share a call. `own`: by our kernels for sm_90a that take its place in the engine
// (kernels/cuda/hopper_attention.h). Cases that it does not take, and machines without the library,
// set unsupported().
#ifndef SOUP_TESTS_KERNELS_CUDNN_DEVICE_H_
#define SOUP_TESTS_KERNELS_CUDNN_DEVICE_H_

#include <memory>
#include <string>
#include <vector>

#include "engine/base/attention_library.h"
#include "kernels/cuda/cudnn_attention.h"
#include "kernels/cuda/hopper_attention.h"
#include "tests/kernels/cuda_device.h"

namespace soup::kernels {

class CudnnDevice : public CudaDevice {
 public:
  explicit CudnnDevice(bool own = false) : own_(own), library_(Opened(&error_)) {}
  bool present() const { return library_ != nullptr; }
  const std::string& error() const { return error_; }
  cuda::CudnnAttention* library() const { return library_; }

  using CudaDevice::Run;
  void Run(const AttentionForwardArgs& a) override {
    if (!Takes(a)) return;
    const std::vector<int32_t> cu = HostBoundaries(a.cu_seqlens, a.S);
    ZeroRows(a.out, cu.back(), a.T, a.Hq * a.D, a.Hq * a.D);
    for (const engine::AttentionCall& block : Blocks(cu)) {
      if (own_) {
        OwnForward(a, {cu[block.first], block.length, block.count});
        continue;
      }
      const auto shape = Shape(a.Hq, a.Hkv, a.D, a.row_stride, block);
      int64_t workspace = 0;
      if (!Prepare(shape, &workspace)) return;
      Check(library_->Forward(a, shape, {cu[block.first], block.length}), "cuDNN forward");
    }
    TransposeLse(a.lse, a.Hq, a.T, cu.back(), /*to_heads_first=*/false);
  }
  void Run(const AttentionBackwardArgs& a) override {
    if (!Takes(a)) return;
    const std::vector<int32_t> cu = HostBoundaries(a.cu_seqlens, a.S);
    TransposeLse(const_cast<float*>(a.lse), a.Hq, a.T, a.T, /*to_heads_first=*/true);
    ZeroRows(a.dq, cu.back(), a.T, a.Hq * a.D, a.grad_row_stride);
    ZeroRows(a.dk, cu.back(), a.T, a.Hkv * a.D, a.grad_row_stride);
    ZeroRows(a.dv, cu.back(), a.T, a.Hkv * a.D, a.grad_row_stride);
    for (const engine::AttentionCall& block : Blocks(cu)) {
      if (own_) {
        OwnBackward(a, {cu[block.first], block.length, block.count, /*groups=*/1});
        continue;
      }
      const auto shape = Shape(a.Hq, a.Hkv, a.D, a.row_stride, block);
      int64_t workspace = 0;
      if (!Prepare(shape, &workspace)) return;
      char* scratch = static_cast<char*>(Allocate(static_cast<size_t>(workspace) + 256, 16)) + 240;
      Check(library_->Backward(a, shape, {cu[block.first], block.length}, scratch, workspace),
            "cuDNN backward");
    }
  }

  // By few CTAs, so that each has several blocks of queries.
  void OwnForward(const AttentionForwardArgs& a, const cuda::HopperAttentionBlock& block) {
    Check(cuda::HopperAttentionForward(a, block, /*sms=*/5, nullptr), "forward");
  }
  // The workspace holds NaNs before: only what was written may be read.
  void OwnBackward(const AttentionBackwardArgs& a, const cuda::HopperAttentionBlock& block,
                   const RopeArgs* turn = nullptr) {
    const int64_t bytes = cuda::HopperAttentionWorkspace(a.Hq, a.Hkv, block);
    void* workspace = Allocate(static_cast<size_t>(bytes), 16);
    Must(cudaMemset(workspace, 0xff, static_cast<size_t>(bytes)), "cudaMemset");
    Check(cuda::HopperAttentionBackward(a, block, turn, workspace, bytes, nullptr), "backward");
  }

 private:
  template <typename Args>
  bool Takes(const Args& a) {
    if (own_ && !(cuda::HasHopperAttention() && a.D == cuda::kHopperAttentionHeadDim)) {
      unsupported_ = "our attention by warpgroups: another device or head dimension";
      return false;
    }
    if (a.soft_cap == 0 && (a.window == 0 || a.window >= a.T)) return true;
    unsupported_ = "cuDNN: windows and soft caps are our own kernels'";
    return false;
  }
  static std::vector<engine::AttentionCall> Blocks(const std::vector<int32_t>& cu) {
    const auto sequences = static_cast<int64_t>(cu.size()) - 1;
    int64_t batched = 0;
    for (int64_t s = 0; s + 1 < sequences; ++s) {
      const int64_t length = cu[s + 1] - cu[s];
      if (length > 0 && engine::FillsItsClass(length) && cu[s + 2] - cu[s + 1] == length) {
        batched = length;
      }
    }
    std::vector<engine::AttentionCall> blocks;
    for (const auto& block : engine::AttentionCalls(cu.data(), sequences, batched)) {
      if (block.length > 0) blocks.push_back(block);
    }
    return blocks;
  }
  static cuda::CudnnAttentionShape Shape(int64_t Hq, int64_t Hkv, int64_t D, int64_t row_stride,
                                         const engine::AttentionCall& block) {
    // One key-value head a backward call, so that the loop over them is met.
    return {engine::AttentionLengthClass(block.length),
            engine::FillsItsClass(block.length),
            Hq,
            Hkv,
            D,
            row_stride,
            1,
            block.count};
  }
  // One for all devices: the first plan of a library takes a second.
  static cuda::CudnnAttention* Opened(std::string* error) {
    static std::string why;
    static const std::unique_ptr<cuda::CudnnAttention> library = [] {
      const int64_t bytes = cuda::CudnnAttention::ScratchBytes(int64_t{1} << 20);
      void* scratch = nullptr;
      Must(cudaMalloc(&scratch, static_cast<size_t>(bytes) + 1), "cudaMalloc");
      return cuda::CudnnAttention::Create(scratch, bytes, nullptr, &why);
    }();
    *error = why;
    return library.get();
  }
  bool Prepare(const cuda::CudnnAttentionShape& shape, int64_t* workspace) {
    if (library_ != nullptr && library_->Prepare(shape, workspace, &error_)) return true;
    unsupported_ = "cuDNN: " + error_;
    return false;
  }
  void ZeroRows(void* rows, int64_t first, int64_t T, int64_t width, int64_t stride) {
    if (first >= T) return;
    Must(cudaMemset2D(static_cast<char*>(rows) + first * stride * 2, stride * 2, 0, width * 2,
                      static_cast<size_t>(T - first)),
         "cudaMemset2D");
  }

  const bool own_;
  std::string error_;
  cuda::CudnnAttention* library_;
};

}  // namespace soup::kernels

#endif  // SOUP_TESTS_KERNELS_CUDNN_DEVICE_H_
