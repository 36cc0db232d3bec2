#include "engine/device/cuda_ops.h"

#include <algorithm>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "engine/base/attention_library.h"
#include "kernels/bf16.h"
#include "kernels/cuda/adapted_product.h"
#include "kernels/cuda/attention.h"
#include "kernels/cuda/attention_f32.h"
#include "kernels/cuda/elementwise.h"
#include "kernels/cuda/gate_products.h"
#include "kernels/cuda/hopper_attention.h"
#include "kernels/cuda/lora.h"
#include "kernels/cuda/loss.h"
#include "kernels/cuda/moe.h"
#include "kernels/cuda/nf4_dequant.h"
#include "kernels/cuda/norm.h"
#include "kernels/cuda/optimizer.h"
#include "kernels/cuda/qkv_finish.h"
#include "kernels/cuda/rope.h"
#include "kernels/lora_products.h"

namespace soup::engine {

namespace cuda = kernels::cuda;

namespace {

// A window that no sequence reaches is none: one schedule serves both.
template <typename Args>
cuda::AttentionVariant Variant(const Args& a) {
  cuda::AttentionVariant variant;
  variant.window = a.window < a.T ? static_cast<int32_t>(a.window) : 0;
  variant.soft_cap = a.soft_cap;
  return variant;
}

// What the library takes of an item's sequences.
struct LibraryPart {
  std::vector<AttentionCall> blocks;
  std::vector<uint8_t> taken;  // of each sequence; empty: none
};
template <typename Args>
LibraryPart PartOfLibrary(const Args& a, bool backward) {
  LibraryPart part;
  const TokenRange range = {a.library.least_tokens, a.library.most_tokens};
  if (range.most == 0) return part;
  const AttentionWidths widths = {a.Hq, a.Hkv, a.D};
  for (const AttentionCall& b : AttentionCalls(a.cu_seqlens, a.S, a.library.batched)) {
    const bool takes =
        backward ? LibraryTakesBackward(b.length, range, widths, a.library.workspace_limit, b.count)
                 : LibraryTakesForward(b.length, range, b.count);
    if (!takes) continue;
    part.blocks.push_back(b);
    part.taken.resize(static_cast<size_t>(a.S));
    std::fill_n(part.taken.begin() + b.first, b.count, uint8_t{1});
  }
  return part;
}

template <typename Args>
cuda::CudnnSequence FirstOf(const Args& a, const AttentionCall& b) {
  return {a.cu_seqlens[b.first], b.length};
}

cuda::CudnnAttentionShape ShapeOf(const kernels::AttentionForwardArgs& a, const AttentionCall& b) {
  return {AttentionLengthClass(b.length),
          FillsItsClass(b.length),
          a.Hq,
          a.Hkv,
          a.D,
          a.row_stride,
          /*groups=*/0,
          b.count};
}
cuda::CudnnAttentionShape ShapeOf(const kernels::AttentionBackwardArgs& a, const AttentionCall& b) {
  return {AttentionLengthClass(b.length),
          FillsItsClass(b.length),
          a.Hq,
          a.Hkv,
          a.D,
          a.row_stride,
          AttentionGroups(b.length, {a.Hq, a.Hkv, a.D}, a.library.workspace_limit, b.count),
          b.count};
}

static_assert(kOwnAttentionHeadDim == cuda::kHopperAttentionHeadDim, "the kernels' heads");

AttentionMakers MakersOf(int64_t head_dim, const AttentionCall& b, int64_t groups, bool library) {
  return AttentionMakersOf(head_dim, AttentionLengthClass(b.length), b.count, groups,
                           cuda::HasHopperAttention(), library);
}
cuda::HopperAttentionBlock BlockOf(const kernels::AttentionForwardArgs& a, const AttentionCall& b) {
  return {a.cu_seqlens[b.first], b.length, b.count};
}
cuda::HopperAttentionBlock BlockOf(const kernels::AttentionBackwardArgs& a,
                                   const AttentionCall& b) {
  return {a.cu_seqlens[b.first], b.length, b.count,
          AttentionGroups(b.length, {a.Hq, a.Hkv, a.D}, a.library.workspace_limit, b.count)};
}

}  // namespace

std::string CudaOps::AttentionLibrary() const {
  std::string name;
  if (cudnn_ != nullptr) name = absl::StrCat("cudnn-", cudnn_->version());
  if (cuda::HasHopperAttention()) absl::StrAppend(&name, name.empty() ? "" : "+", "sm_90a-1");
  return name;
}

absl::Status CudaOps::UseActivations(DType type, void* product_scratch) {
  if (type != DType::kBF16 && type != DType::kF32) {
    return absl::InvalidArgumentError(
        "the CUDA backend computes with bf16 or fp32 activations only");
  }
  act_ = type;
  product_scratch_ = product_scratch;
  return absl::OkStatus();
}

void CudaOps::GatherRows(const kernels::GatherRowsArgs& a) {
  if (a.T == 0) return;
  if (reads_pinned_ && registrations_.Pinned(a.table)) {
    Told(cuda::GatherRows(a, compute_.get(), act()), "GatherRows");
  } else {
    GatherOnHost(a);
  }
}
void CudaOps::Widen(const kernels::WidenArgs&) {
  Keep(absl::InternalError("Widen: bf16 weights are used in place on CUDA")).IgnoreError();
}
void CudaOps::Nf4Dequant(const kernels::Nf4DequantArgs& a) {
  Told(cuda::Nf4Dequant(a, compute_.get()), "Nf4Dequant");
}
void CudaOps::RmsNormForward(const kernels::RmsNormForwardArgs& a) {
  Told(cuda::RmsNormForward(a, compute_.get(), act()), "RmsNormForward");
}
void CudaOps::RmsNormBackward(const kernels::RmsNormBackwardArgs& a) {
  Told(cuda::RmsNormBackward(a, compute_.get(), act()), "RmsNormBackward");
}
void CudaOps::HeadNormForward(const kernels::HeadNormForwardArgs& a) {
  Told(cuda::HeadNormForward(a, compute_.get(), act()), "HeadNormForward");
}
void CudaOps::HeadNormBackward(const kernels::HeadNormBackwardArgs& a) {
  Told(cuda::HeadNormBackward(a, compute_.get(), act()), "HeadNormBackward");
}
void CudaOps::AddBias(const kernels::AddBiasArgs& a) {
  Told(cuda::AddBias(a, compute_.get(), act()), "AddBias");
}
void CudaOps::Rope(const kernels::RopeArgs& a) {
  Told(cuda::Rope(a, compute_.get(), act()), "Rope");
}
void CudaOps::AttentionForward(const kernels::AttentionForwardArgs& a) {
  if (f32()) {
    const auto found =
        tiles_.FindF32(a.cu_seqlens, a.S, a.Hq, a.Hkv, a.D, Variant(a).window, compute_.get());
    if (!Keep(found.status()).ok()) return;
    return Told(cuda::AttentionF32Forward(a, Variant(a), *found, compute_.get()),
                "AttentionForward");
  }
  const LibraryPart part = PartOfLibrary(a, /*backward=*/false);
  const auto tiles = tiles_.Find(a.cu_seqlens, a.S, a.Hq, a.Hkv, a.D, Variant(a).window, part.taken,
                                 compute_.get());
  if (!Keep(tiles.status()).ok()) return;
  // Our own first: it clears the tail.
  Told(cuda::AttentionForward(a, Variant(a), *tiles, attention_, compute_.get()),
       "AttentionForward");
  for (const AttentionCall& block : part.blocks) {
    if (MakersOf(a.D, block, /*groups=*/0, cudnn_ != nullptr).own_forward) {
      Told(cuda::HopperAttentionForward(a, BlockOf(a, block), attention_.sms, compute_.get()),
           "AttentionForward by warpgroups");
      continue;
    }
    ByLibrary(cudnn_ == nullptr ? cudaErrorNotReady
                                : cudnn_->Forward(a, ShapeOf(a, block), FirstOf(a, block)),
              "AttentionForward");
  }
}
void CudaOps::AttentionBackward(const kernels::AttentionBackwardArgs& a,
                                const AttentionScratch& scratch) {
  RunAttentionBackward(a, scratch, nullptr);
}
void CudaOps::AttentionBackwardTurned(const kernels::AttentionBackwardArgs& a,
                                      const AttentionScratch& scratch,
                                      const kernels::RopeArgs& turn) {
  if (f32() || (turn.rotary != 0 && turn.rotary != a.D)) {
    return Backend::AttentionBackwardTurned(a, scratch, turn);
  }
  RunAttentionBackward(a, scratch, &turn);
}
void CudaOps::RunAttentionBackward(const kernels::AttentionBackwardArgs& a,
                                   const AttentionScratch& scratch, const kernels::RopeArgs* turn) {
  if (f32()) {
    const auto found_f32 =
        tiles_.FindF32(a.cu_seqlens, a.S, a.Hq, a.Hkv, a.D, Variant(a).window, compute_.get());
    if (!Keep(found_f32.status()).ok()) return;
    return Told(cuda::AttentionF32Backward(a, Variant(a), *found_f32, compute_.get()),
                "AttentionBackward");
  }
  const LibraryPart part = PartOfLibrary(a, /*backward=*/true);
  const auto found = tiles_.Find(a.cu_seqlens, a.S, a.Hq, a.Hkv, a.D, Variant(a).window, part.taken,
                                 compute_.get());
  if (!Keep(found.status()).ok()) return;
  cuda::AttentionTiles tiles = *found;
  const int64_t group = a.Hq / a.Hkv;
  // No more blocks than the plan has room for, and none of them without a head.
  int64_t split = std::min<int64_t>(tiles.kv_split, scratch.most_split);
  while (split > 1 && (group + split - 1) / split * (split - 1) >= group) --split;
  tiles.kv_split = static_cast<int32_t>(split);
  tiles.partials = scratch.partials;
  // Our own first: it clears the tail, and where heads are split it writes all rows of dk and dv.
  Told(cuda::AttentionBackward(a, Variant(a), tiles, attention_, compute_.get()),
       "AttentionBackward");
  int64_t turned = 0;  // rows, from the first
  const auto turn_until = [&](int64_t end) {
    if (turn == nullptr || end <= turned) return;
    kernels::RopeArgs rows = *turn;
    rows.x = static_cast<std::byte*>(rows.x) + turned * rows.row_stride * DTypeBytes(act_);
    rows.positions += turned;
    rows.T = end - turned;
    Rope(rows);
  };
  for (const AttentionCall& block : part.blocks) {
    const cuda::HopperAttentionBlock own = BlockOf(a, block);
    if (MakersOf(a.D, block, own.groups, cudnn_ != nullptr).own_backward) {
      Told(cuda::HopperAttentionBackward(a, own, turn, a.library.workspace,
                                         a.library.workspace_bytes, compute_.get()),
           "AttentionBackward by warpgroups");
      turn_until(own.first);
      turned = own.first + own.sequences * own.length;
      continue;
    }
    ByLibrary(cudnn_ == nullptr ? cudaErrorNotReady
                                : cudnn_->Backward(a, ShapeOf(a, block), FirstOf(a, block),
                                                   a.library.workspace, a.library.workspace_bytes),
              "AttentionBackward");
  }
  turn_until(a.T);
}
void CudaOps::ByLibrary(cudaError_t error, absl::string_view what) {
  if (error == cudaSuccess) return;
  if (error == cudaErrorNotReady) {
    Keep(absl::InternalError(absl::StrCat(what, " by cuDNN was not prepared before the run")))
        .IgnoreError();
    return;
  }
  Told(error, absl::StrCat(what, " by cuDNN: ", cudnn_->last_error()));
}
// `groups`: key-value heads of its backward calls, 0: forward only. The workspace becomes what they
// take.
absl::Status CudaOps::PrepareLibrary(absl::string_view library, const AttentionPreparation& p,
                                     int64_t groups, int64_t* workspace) {
  MakeRoomForLibraryCode();
  std::string error;
  int64_t taken = 0;
  if (!cudnn_->Prepare({p.length_class, p.exact, p.heads, p.kv_heads, p.head_dim, p.row_stride,
                        groups, p.sequences},
                       &taken, &error)) {
    return absl::InternalError(absl::StrCat(library, " refuses attention over ", p.sequences, " x ",
                                            p.length_class, " tokens, ", p.heads, "/", p.kv_heads,
                                            " heads of ", p.head_dim, ": ", error,
                                            "; without it on the library path jobs are planned "
                                            "for our own kernels"));
  }
  if (groups > 0) *workspace = taken;
  return absl::OkStatus();
}
absl::Status CudaOps::PrepareAttention(absl::string_view library,
                                       absl::Span<const AttentionPreparation> sequences) {
  const std::string have = AttentionLibrary();
  if (have != library) {
    return absl::FailedPreconditionError(
        absl::StrCat("attention was planned for ", library, " and this worker has ",
                     have.empty() ? "no such library" : have,
                     ": other bits would come out. Run the job where it was planned, or submit it "
                     "again"));
  }
  for (const AttentionPreparation& p : sequences) {
    const AttentionMakers makers =
        AttentionMakersOf(p.head_dim, p.length_class, p.sequences, p.groups,
                          cuda::HasHopperAttention(), cudnn_ != nullptr);
    int64_t workspace = 0;
    if (makers.own_backward) {
      workspace = cuda::HopperAttentionWorkspace(p.heads, p.kv_heads,
                                                 {0, p.length_class, p.sequences, p.groups});
    }
    if (NeedsLibrary(makers, p.groups)) {
      SOUP_RETURN_IF_ERROR(
          PrepareLibrary(library, p, makers.own_backward ? 0 : p.groups, &workspace));
    }
    if (workspace > p.workspace_bytes) {
      return absl::InternalError(
          absl::StrCat(library, " wants a workspace of ", workspace, " bytes for attention over ",
                       p.sequences, " x ", p.length_class, " tokens, ", p.groups, " of ",
                       p.kv_heads, " key-value heads; the plan gives ", p.workspace_bytes));
    }
  }
  return absl::OkStatus();
}
void CudaOps::SwigluForward(const kernels::SwigluForwardArgs& a) {
  Told(cuda::SwigluForward(a, compute_.get(), act()), "SwigluForward");
}
void CudaOps::SwigluBackward(const kernels::SwigluBackwardArgs& a) {
  Told(cuda::SwigluBackward(a, compute_.get(), act()), "SwigluBackward");
}
void CudaOps::Gemm(const kernels::GemmArgs& a) {
  if (f32() && product_scratch_ == nullptr) {
    Keep(absl::InternalError("a product of fp32 activations without its scratch")).IgnoreError();
    return;
  }
  const cudaError_t error = f32() ? gemms_->GemmF32(a, product_scratch_, compute_.get())
                            : cuda::SkinnyTakes(a) ? cuda::SkinnyGemm(a, compute_.get())
                                                   : gemms_->Gemm(a, compute_.get());
  if (error == cudaSuccess) return;
  if (error == cudaErrorNotReady) {
    Keep(absl::InternalError(absl::StrCat("the product ", cuda::GemmKeyText(a),
                                          " was not prepared before the run")))
        .IgnoreError();
    return;
  }
  Told(error, absl::StrCat("Gemm ", cuda::GemmKeyText(a)));
}
void CudaOps::GateUp(const kernels::GateUpArgs& a) {
  if (f32() || !kernels::GateProductsTaken(fused_gate_rows_, a.T, a.H, a.I)) {
    return Backend::GateUp(a);
  }
  Told(cuda::GateUp(a, compute_.get()), "GateUp");
}
void CudaOps::DownBackward(const kernels::DownBackwardArgs& a) {
  if (f32() || !kernels::GateProductsTaken(fused_gate_rows_, a.T, a.H, a.I)) {
    return Backend::DownBackward(a);
  }
  Told(cuda::DownBackward(a, compute_.get()), "DownBackward");
}
void CudaOps::AdaptedProduct(const kernels::AdaptedProductArgs& a) {
  if (f32() || !kernels::AdaptedProductTaken(fused_gate_rows_, a.M, a.N, a.K, a.R)) {
    return Backend::AdaptedProduct(a);
  }
  Told(cuda::AdaptedProduct(a, compute_.get()), "AdaptedProduct");
}
void CudaOps::TurnedProduct(const kernels::TurnedProductArgs& a) {
  if (f32() || !kernels::TurnedProductTaken(fused_gate_rows_, a)) return Backend::TurnedProduct(a);
  Told(cuda::TurnedProduct(a, compute_.get()), "TurnedProduct");
}
template <typename Args>
void CudaOps::Products(const Args& a) {
  kernels::ForEachProduct(a, DTypeBytes(act_), [this](const kernels::GemmArgs& g) { Gemm(g); });
}
void CudaOps::LoraUp(const kernels::LoraUpArgs& a) {
  if (!f32() && kernels::LoraUpKernelsTake(a.linears, a.r, a.ldy)) {
    return Told(cuda::LoraUp(a, compute_.get()), "LoraUp");
  }
  if (!kernels::LoraAddendFits(a)) return Told(cudaErrorInvalidValue, "LoraUp");
  if (kernels::LoraAddendFirst(a)) Axpy(kernels::AddendOf(a));
  Products(a);
}
void CudaOps::LoraUpRope(const kernels::LoraUpRopeArgs& a) {
  if (f32() || !kernels::LoraUpRopeTaken(a)) return Backend::LoraUpRope(a);
  Told(cuda::LoraUpRope(a, compute_.get()), "LoraUpRope");
}
void CudaOps::QkvFinish(const kernels::QkvFinishArgs& a) {
  if (f32()) return Backend::QkvFinish(a);
  Told(cuda::QkvFinish(a, compute_.get()), "QkvFinish");
}
void CudaOps::LoraBack(const kernels::LoraBackArgs& a) {
  if (f32() || !kernels::LoraKernelsTake(a.linears, a.r, a.ldy)) return Products(a);
  Told(cuda::LoraBack(a, compute_.get()), "LoraBack");
}
void CudaOps::LoraGrad(const kernels::LoraGradArgs& a) {
  if (f32() || !kernels::LoraKernelsTake(a.linears, a.r, a.ldy)) return Products(a);
  Told(cuda::LoraGrad(a, compute_.get()), "LoraGrad");
}
void CudaOps::LoraNormedGrad(const kernels::LoraNormedGradArgs& a) {
  if (f32() || !kernels::LoraNormedGradTaken(a)) return Backend::LoraNormedGrad(a);
  Told(cuda::LoraNormedGrad(a, compute_.get()), "LoraNormedGrad");
}
absl::StatusOr<GemmPreparation> CudaOps::PrepareGemms(
    absl::Span<const kernels::GemmArgs> products, const std::function<absl::Status()>& make_room) {
  absl::StatusOr<GemmPreparation> prepared =
      gemms_->Prepare(products, act_, make_room, compute_.get());
  // An allocation that failed must not be told as the error of a later launch.
  if (!prepared.ok()) cudaGetLastError();
  return prepared;
}
void CudaOps::Axpy(const kernels::AxpyArgs& a) {
  Told(cuda::Axpy(a, compute_.get(), act()), "Axpy");
}
void CudaOps::Dropout(const kernels::DropoutArgs& a) {
  Told(cuda::Dropout(a, compute_.get(), act()), "Dropout");
}
void CudaOps::GatherActRows(const kernels::GatherActRowsArgs& a) {
  Told(cuda::GatherActRows(a, compute_.get(), act()), "GatherActRows");
}
void CudaOps::ScatterActRows(const kernels::ScatterActRowsArgs& a) {
  Told(cuda::ScatterActRows(a, compute_.get(), act()), "ScatterActRows");
}
void CudaOps::LossSlice(const kernels::LossSliceArgs& a) {
  Told(cuda::LossSlice(a, compute_.get(), act()), "LossSlice");
}
void CudaOps::LossTargetRows(const kernels::LossTargetRowsArgs& a) {
  Told(cuda::LossTargetRows(a, compute_.get()), "LossTargetRows");
}
void CudaOps::LossFinish(const kernels::LossFinishArgs& a) {
  Told(cuda::LossFinish(a, compute_.get(), act()), "LossFinish");
}
void CudaOps::Route(const kernels::RouteArgs& a) { Told(cuda::Route(a, compute_.get()), "Route"); }
void CudaOps::RouteBackward(const kernels::RouteBackwardArgs& a) {
  Told(cuda::RouteBackward(a, compute_.get(), act()), "RouteBackward");
}
void CudaOps::ListExperts(const kernels::ListExpertsArgs& a) {
  Told(cuda::ListExperts(a, compute_.get()), "ListExperts");
}
void CudaOps::GatherEntries(const kernels::GatherEntriesArgs& a) {
  Told(cuda::GatherEntries(a, compute_.get(), act()), "GatherEntries");
}
void CudaOps::ScatterEntries(const kernels::ScatterEntriesArgs& a) {
  Told(cuda::ScatterEntries(a, compute_.get(), act()), "ScatterEntries");
}
void CudaOps::EntryGrad(const kernels::EntryGradArgs& a) {
  Told(cuda::EntryGrad(a, compute_.get(), act()), "EntryGrad");
}
void CudaOps::AddF32(const kernels::AddF32Args& a) {
  Told(cuda::AddF32(a, compute_.get(), act()), "AddF32");
}
void CudaOps::SumSquares(const kernels::SumSquaresArgs& a) {
  Told(cuda::SumSquares(a, partial_sums_, compute_.get()), "SumSquares");
}
void CudaOps::AdamW(const kernels::AdamWArgs& a) { Told(cuda::AdamW(a, compute_.get()), "AdamW"); }
void CudaOps::NarrowToBf16(const float* src, void* dst, int64_t n) {
  Told(cuda::NarrowToBf16(src, dst, n, compute_.get()), "NarrowToBf16");
}

// For a table that the device cannot read: waits for the ids, gathers here, copies the rows.
void CudaOps::GatherOnHost(const kernels::GatherRowsArgs& a) {
  std::vector<int32_t> ids(static_cast<size_t>(a.T));
  if (!Check(cudaMemcpyAsync(ids.data(), a.ids, ids.size() * sizeof(int32_t),
                             cudaMemcpyDeviceToHost, compute_.get()),
             "GatherRows")
           .ok() ||
      !Check(cudaStreamSynchronize(compute_.get()), "GatherRows").ok()) {
    return;
  }
  std::vector<uint16_t> rows(static_cast<size_t>(a.T * a.H));
  for (int64_t t = 0; t < a.T; ++t) {
    std::copy_n(a.table + ids[static_cast<size_t>(t)] * a.H, a.H, rows.begin() + t * a.H);
  }
  std::vector<float> wide;
  if (f32()) {
    wide.reserve(rows.size());
    for (const uint16_t x : rows) wide.push_back(kernels::Bf16ToF32(x));
  }
  const void* from = f32() ? static_cast<const void*>(wide.data()) : rows.data();
  Told(cudaMemcpyAsync(a.y, from, rows.size() * static_cast<size_t>(DTypeBytes(act_)),
                       cudaMemcpyHostToDevice, compute_.get()),
       "GatherRows");
  Told(cudaStreamSynchronize(compute_.get()), "GatherRows");  // the rows die here
}

}  // namespace soup::engine
