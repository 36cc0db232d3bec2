// The CUDA ops as a TestDevice: activations of either type, bf16 weights, addresses aligned to 16
// bytes (the contract of kernels/cuda). A case whose shape the kernels refuse sets unsupported().
#ifndef SOUP_TESTS_KERNELS_CUDA_DEVICE_H_
#define SOUP_TESTS_KERNELS_CUDA_DEVICE_H_

#include <cuda_runtime.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

#include "kernels/cuda/act_type.h"
#include "kernels/cuda/adapted_product.h"
#include "kernels/cuda/attention.h"
#include "kernels/cuda/attention_f32.h"
#include "kernels/cuda/elementwise.h"
#include "kernels/cuda/gate_products.h"
#include "kernels/cuda/gemm.h"
#include "kernels/cuda/lora.h"
#include "kernels/cuda/loss.h"
#include "kernels/cuda/moe.h"
#include "kernels/cuda/nf4_dequant.h"
#include "kernels/cuda/norm.h"
#include "kernels/cuda/optimizer.h"
#include "kernels/cuda/qkv_finish.h"
#include "kernels/cuda/rope.h"
#include "kernels/gate_ops.h"
#include "kernels/lora_products.h"
#include "kernels/qkv_ops.h"
#include "tests/kernels/device.h"

namespace soup::kernels {

class CudaDevice : public TestDevice {
 public:
  explicit CudaDevice(cuda::ActType act = cuda::ActType::kBf16) : act_(act) {
    Must(cuda::LoadNf4Tables(), "LoadNf4Tables");
    Must(cuda::QueryAttentionDevice(0, &attention_), "QueryAttentionDevice");
    // The tiles of a smaller card: 1 or 2, in a build with SOUP_ATTENTION_ALL_CLASSES. Where they
    // are not compiled, attention cases are unsupported.
    if (const char* tile_class = std::getenv("SOUP_TEST_TILE_CLASS"))
      attention_.tile_class = std::max(attention_.tile_class, std::atoi(tile_class));
    constexpr size_t kWorkspace = 32 << 20;
    void* workspace = static_cast<char*>(Allocate(kWorkspace + 256, 16)) + 240;  // 256-byte aligned
    Must(cuda::GemmLibrary::Create(workspace, kWorkspace, cuda::GemmLibrary::Fallback::kHeuristic,
                                   &gemm_),
         "GemmLibrary");
    if (f32()) split_scratch_ = Allocate(kSplitScratch, 16);
    partials_ = static_cast<double*>(Allocate(cuda::kSumSquaresPartials * sizeof(double), 16));
  }
  ~CudaDevice() override {
    for (void* block : blocks_) cudaFree(block);
  }
  CudaDevice(const CudaDevice&) = delete;
  CudaDevice& operator=(const CudaDevice&) = delete;

  // What refused the last case, or empty.
  const std::string& unsupported() const { return unsupported_; }
  const std::string& failure() const { return failure_; }

  const char* name() const override { return "cuda"; }
  Element act() const override { return f32() ? Element::kF32 : Element::kBf16; }
  Element wt() const override { return Element::kBf16; }
  // fp32: 4e-6. Products see 16 bits of an activation; __expf and rsqrtf are good to a few ulp.
  double epsilon() const override { return f32() ? 0x1p-18 : 0x1p-9; }
  double act_product_epsilon() const override { return f32() ? epsilon() : 0; }

  void* Allocate(size_t bytes, size_t) override {
    void* block = nullptr;
    Must(cudaMalloc(&block, bytes + 32), "cudaMalloc");
    Must(cudaMemset(block, 0xff, bytes + 32), "cudaMemset");  // NaN in every float type
    blocks_.push_back(block);
    return static_cast<char*>(block) + 16;
  }
  void Upload(void* dst, const void* src, size_t bytes) override {
    if (bytes > 0) Must(cudaMemcpy(dst, src, bytes, cudaMemcpyHostToDevice), "upload");
  }
  void Download(void* dst, const void* src, size_t bytes) override {
    if (bytes > 0) Must(cudaMemcpy(dst, src, bytes, cudaMemcpyDeviceToHost), "download");
  }

  void Run(const GatherRowsArgs& a) override {
    Check(cuda::GatherRows(a, nullptr, act_), "GatherRows");
  }
  void Run(const WidenArgs&) override { unsupported_ = "Widen: bf16 weights are used in place"; }
  void Run(const Nf4DequantArgs& a) override { Check(cuda::Nf4Dequant(a, nullptr), "Nf4Dequant"); }
  void Run(const RmsNormForwardArgs& a) override {
    Check(cuda::RmsNormForward(a, nullptr, act_), "RmsNormForward");
  }
  void Run(const RmsNormBackwardArgs& a) override {
    Check(cuda::RmsNormBackward(a, nullptr, act_), "RmsNormBackward");
  }
  void Run(const HeadNormForwardArgs& a) override {
    Check(cuda::HeadNormForward(a, nullptr, act_), "HeadNormForward");
  }
  void Run(const HeadNormBackwardArgs& a) override {
    Check(cuda::HeadNormBackward(a, nullptr, act_), "HeadNormBackward");
  }
  void Run(const AddBiasArgs& a) override { Check(cuda::AddBias(a, nullptr, act_), "AddBias"); }
  void Run(const RopeArgs& a) override { Check(cuda::Rope(a, nullptr, act_), "Rope"); }
  void Run(const AttentionForwardArgs& a) override {
    AttentionForwardArgs args = a;
    std::vector<int32_t> cu = HostBoundaries(a.cu_seqlens, a.S);
    args.cu_seqlens = cu.data();
    cuda::AttentionTiles tiles;
    if (!MakeTiles(cu, a.S, a.T, a.Hq, a.Hkv, a.D, Variant(a), &tiles)) return;
    Check(f32() ? cuda::AttentionF32Forward(args, Variant(a), tiles, nullptr)
                : cuda::AttentionForward(args, Variant(a), tiles, attention_, nullptr),
          "AttentionForward");
    // The kernels leave lse of the bucket tail alone; the contract of the cases wants zeros.
    TransposeLse(a.lse, a.Hq, a.T, cu.back(), /*to_heads_first=*/false);
  }
  void Run(const AttentionBackwardArgs& a) override {
    AttentionBackwardArgs args = a;
    std::vector<int32_t> cu = HostBoundaries(a.cu_seqlens, a.S);
    args.cu_seqlens = cu.data();
    cuda::AttentionTiles tiles;
    if (!MakeTiles(cu, a.S, a.T, a.Hq, a.Hkv, a.D, Variant(a), &tiles)) return;
    TransposeLse(const_cast<float*>(a.lse), a.Hq, a.T, a.T, /*to_heads_first=*/true);
    Check(f32() ? cuda::AttentionF32Backward(args, Variant(a), tiles, nullptr)
                : cuda::AttentionBackward(args, Variant(a), tiles, attention_, nullptr),
          "AttentionBackward");
  }
  void Run(const SwigluForwardArgs& a) override {
    Check(cuda::SwigluForward(a, nullptr, act_), "SwigluForward");
  }
  void Run(const SwigluBackwardArgs& a) override {
    Check(cuda::SwigluBackward(a, nullptr, act_), "SwigluBackward");
  }
  void Run(const GemmArgs& a) override {
    if (f32()) {
      Check(gemm_->GemmF32(a, split_scratch_, kSplitScratch, nullptr), "GemmF32");
      return;
    }
    Check(cuda::SkinnyTakes(a) ? cuda::SkinnyGemm(a, nullptr) : gemm_->Gemm(a, nullptr), "Gemm");
  }
  // Kernels of their own at any number of rows, where the card has them.
  void Run(const GateUpArgs& a) override {
    if (f32() || !cuda::HasGateProducts()) return Ops(a);
    Check(cuda::GateUp(a, nullptr), "GateUp");
  }
  void Run(const DownBackwardArgs& a) override {
    if (f32() || !cuda::HasGateProducts()) return Ops(a);
    Check(cuda::DownBackward(a, nullptr), "DownBackward");
  }
  void Run(const AdaptedProductArgs& a) override {
    if (f32() || !cuda::HasGateProducts() || a.R % 8 != 0) return Ops(a);
    Check(cuda::AdaptedProduct(a, nullptr), "AdaptedProduct");
  }
  void Run(const TurnedProductArgs& a) override {
    if (f32() || !cuda::HasGateProducts() || !TurnedProductTaken(1, a)) return Ops(a);
    Check(cuda::TurnedProduct(a, nullptr), "TurnedProduct");
  }
  void Run(const LoraUpArgs& a) override {
    if (!f32() && LoraUpKernelsTake(a.linears, a.r, a.ldy)) {
      Check(cuda::LoraUp(a, nullptr), "LoraUp");
      return;
    }
    if (!LoraAddendFits(a)) return Check(cudaErrorInvalidValue, "LoraUp");
    if (LoraAddendFirst(a)) Run(AddendOf(a));
    Products(a);
  }
  void Run(const LoraUpRopeArgs& a) override {
    if (!f32() && LoraUpRopeTaken(a)) {
      Check(cuda::LoraUpRope(a, nullptr), "LoraUpRope");
      return;
    }
    Run(a.up);
    Run(a.rope);
  }
  void Run(const QkvFinishArgs& a) override {
    if (f32()) return Ops(a);
    Check(cuda::QkvFinish(a, nullptr), "QkvFinish");
  }
  void Run(const LoraBackArgs& a) override {
    if (f32() || !LoraKernelsTake(a.linears, a.r, a.ldy)) return Products(a);
    Check(cuda::LoraBack(a, nullptr), "LoraBack");
  }
  void Run(const LoraGradArgs& a) override {
    if (f32() || !LoraKernelsTake(a.linears, a.r, a.ldy)) return Products(a);
    Check(cuda::LoraGrad(a, nullptr), "LoraGrad");
  }
  void Run(const LoraNormedGradArgs& a) override {
    if (!f32() && LoraNormedGradTaken(a)) {
      Check(cuda::LoraNormedGrad(a, nullptr), "LoraNormedGrad");
      return;
    }
    Run(NormOf(a));
    Run(ProductOf(a));
  }
  void Run(const AxpyArgs& a) override { Check(cuda::Axpy(a, nullptr, act_), "Axpy"); }
  void Run(const DropoutArgs& a) override { Check(cuda::Dropout(a, nullptr, act_), "Dropout"); }
  void Run(const GatherActRowsArgs& a) override {
    Check(cuda::GatherActRows(a, nullptr, act_), "GatherActRows");
  }
  void Run(const ScatterActRowsArgs& a) override {
    Check(cuda::ScatterActRows(a, nullptr, act_), "ScatterActRows");
  }
  void Run(const LossSliceArgs& a) override {
    Check(cuda::LossSlice(a, nullptr, act_), "LossSlice");
  }
  void Run(const LossTargetRowsArgs& a) override {
    Check(cuda::LossTargetRows(a, nullptr), "LossTargetRows");
  }
  void Run(const LossFinishArgs& a) override {
    Check(cuda::LossFinish(a, nullptr, act_), "LossFinish");
  }
  void Run(const RouteArgs& a) override { Check(cuda::Route(a, nullptr), "Route"); }
  void Run(const RouteBackwardArgs& a) override {
    Check(cuda::RouteBackward(a, nullptr, act_), "RouteBackward");
  }
  void Run(const ListExpertsArgs& a) override {
    Check(cuda::ListExperts(a, nullptr), "ListExperts");
  }
  void Run(const GatherEntriesArgs& a) override {
    Check(cuda::GatherEntries(a, nullptr, act_), "GatherEntries");
  }
  void Run(const ScatterEntriesArgs& a) override {
    Check(cuda::ScatterEntries(a, nullptr, act_), "ScatterEntries");
  }
  void Run(const EntryGradArgs& a) override {
    Check(cuda::EntryGrad(a, nullptr, act_), "EntryGrad");
  }
  void Run(const AddF32Args& a) override { Check(cuda::AddF32(a, nullptr, act_), "AddF32"); }
  void Run(const SumSquaresArgs& a) override {
    Check(cuda::SumSquares(a, partials_, nullptr), "SumSquares");
  }
  void Run(const AdamWArgs& a) override { Check(cuda::AdamW(a, nullptr), "AdamW"); }

 protected:
  // Small, so that the larger cases go in chunks.
  static constexpr int64_t kSplitScratch = 96 << 10;
  bool f32() const { return act_ == cuda::ActType::kF32; }

  template <typename Args>
  static cuda::AttentionVariant Variant(const Args& a) {
    return {static_cast<int32_t>(a.window), a.soft_cap};
  }
  template <typename Args>
  void Ops(const Args& args) {
    ForEachOp(args, [this](const auto& op) { Run(op); });
  }
  // As the CUDA backend where LoRA's kernels do not take a shape.
  template <typename Args>
  void Products(const Args& args) {
    ForEachProduct(args, cuda::ActBytes(act_), [this](const GemmArgs& g) { Run(g); });
  }

  static void Must(cudaError_t status, const char* what) {
    if (status == cudaSuccess) return;
    std::fprintf(stderr, "%s: %s\n", what, cudaGetErrorString(status));
    std::abort();
  }
  void Check(cudaError_t status, const char* what) {
    if (status == cudaErrorInvalidValue || status == cudaErrorNotSupported) {
      unsupported_ = std::string(what) + ": " + cudaGetErrorString(status);
      cudaGetLastError();
      return;
    }
    if (status == cudaSuccess) status = cudaDeviceSynchronize();
    if (status != cudaSuccess) failure_ = std::string(what) + ": " + cudaGetErrorString(status);
  }
  // The cases speak of lse as [T, Hq]; the kernels of [Hq, T].
  void TransposeLse(float* lse, int64_t Hq, int64_t T, int64_t covered, bool to_heads_first) {
    std::vector<float> from(static_cast<size_t>(Hq * T)), to(from.size(), 0.f);
    Download(from.data(), lse, from.size() * sizeof(float));
    for (int64_t t = 0; t < covered; ++t) {
      for (int64_t h = 0; h < Hq; ++h) {
        if (to_heads_first) {
          to[h * T + t] = from[t * Hq + h];
        } else {
          to[t * Hq + h] = from[h * T + t];
        }
      }
    }
    Upload(lse, to.data(), to.size() * sizeof(float));
  }
  std::vector<int32_t> HostBoundaries(const int32_t* device, int64_t sequences) {
    std::vector<int32_t> cu(static_cast<size_t>(sequences) + 1, 0);
    Download(cu.data(), device, cu.size() * sizeof(int32_t));
    return cu;
  }
  bool MakeTiles(const std::vector<int32_t>& cu, int64_t S, int64_t T, int64_t Hq, int64_t Hkv,
                 int64_t D, const cuda::AttentionVariant& variant, cuda::AttentionTiles* tiles) {
    cuda::AttentionSchedule schedule;
    const cudaError_t made =
        f32()
            ? cuda::MakeAttentionF32Schedule(cu.data(), S, Hq, Hkv, D, variant, &schedule)
            : cuda::MakeAttentionSchedule(attention_, cu.data(), S, Hq, Hkv, D, variant, &schedule);
    if (made != cudaSuccess) {
      Check(made, "MakeAttentionSchedule");
      return false;
    }
    const auto upload = [this](const std::vector<cuda::AttentionTile>& list) {
      void* device = Allocate(list.size() * sizeof(cuda::AttentionTile) + 16, 16);
      Upload(device, list.data(), list.size() * sizeof(cuda::AttentionTile));
      return static_cast<const cuda::AttentionTile*>(device);
    };
    tiles->forward = upload(schedule.forward);
    tiles->backward_q = upload(schedule.backward_q);
    tiles->backward_kv = upload(schedule.backward_kv);
    tiles->forward_count = static_cast<int32_t>(schedule.forward.size());
    tiles->backward_q_count = static_cast<int32_t>(schedule.backward_q.size());
    tiles->backward_kv_count = static_cast<int32_t>(schedule.backward_kv.size());
    tiles->kv_split = schedule.kv_split;
    const int64_t partials = cuda::AttentionPartialsBytes(schedule.kv_split, T, Hkv, D);
    tiles->partials =
        partials > 0 ? static_cast<float*>(Allocate(static_cast<size_t>(partials), 16)) : nullptr;
    return true;
  }

  const cuda::ActType act_;
  void* split_scratch_ = nullptr;
  cuda::AttentionDevice attention_;
  std::unique_ptr<cuda::GemmLibrary> gemm_;
  double* partials_ = nullptr;
  std::vector<void*> blocks_;
  std::string unsupported_, failure_;
};

}  // namespace soup::kernels

#endif  // SOUP_TESTS_KERNELS_CUDA_DEVICE_H_
