#include "engine/device/cuda_gemms.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "engine/base/arena_layout.h"
#include "engine/base/log.h"
#include "engine/base/status_macros.h"
#include "engine/device/cuda_handles.h"
#include "engine/device/cuda_memory.h"
#include "engine/plan/pass_buffers.h"
#include "kernels/cuda/gemm_split.h"
#include "kernels/cuda/lora.h"
#include "kernels/cuda/random_fill.h"

namespace soup::engine {
namespace {

namespace cuda = kernels::cuda;
using kernels::GemmArgs;
using kernels::Operand;

constexpr int kCandidates = 10;
constexpr int64_t kBf16Bytes = 2;
// A scratch that nothing is written to: products are told apart by their shapes.
constexpr uintptr_t kNowhere = 4096;

int64_t OutBytes(const GemmArgs& g) {
  return g.M * g.ldc * (g.c_type == Operand::kF32 ? 4 : kBf16Bytes);
}

// Random operands for any of the products: A, B, C and an addend, each as large as the largest. C
// has a place of its own, because results are no good operands.
class Operands {
 public:
  static absl::StatusOr<Operands> Make(const std::vector<GemmArgs>& products, cudaStream_t stream) {
    Operands o;
    int64_t addend = 0;
    for (const GemmArgs& g : products) {
      const int64_t a = (g.transpose_a ? g.K : g.M) * g.lda * kBf16Bytes;
      const int64_t b = (g.transpose_b ? g.N : g.K) * g.ldb * kBf16Bytes;
      o.a_bytes_ = std::max(o.a_bytes_, ArenaRoundUp(a));
      o.b_bytes_ = std::max(o.b_bytes_, ArenaRoundUp(b));
      o.c_bytes_ = std::max(o.c_bytes_, ArenaRoundUp(OutBytes(g)));
      if (g.addend != nullptr) addend = std::max(addend, ArenaRoundUp(OutBytes(g)));
    }
    const int64_t bytes = o.a_bytes_ + o.b_bytes_ + o.c_bytes_ + addend;
    SOUP_ASSIGN_OR_RETURN(o.block_, CudaBlock::OnDevice(bytes));
    SOUP_RETURN_IF_ERROR(CudaStatus(
        cuda::FillRandomBf16(o.block_.data(), bytes / kBf16Bytes, 1, stream), "random operands"));
    return o;
  }
  GemmArgs At(const GemmArgs& product) const {
    GemmArgs g = product;
    g.alpha = 1;
    g.A = block_.data();
    g.B = block_.data() + a_bytes_;
    g.C = block_.data() + a_bytes_ + b_bytes_;
    const bool apart = g.addend != nullptr && g.addend != product.C;
    g.addend = apart ? block_.data() + a_bytes_ + b_bytes_ + c_bytes_ : nullptr;
    return g;
  }

 private:
  CudaBlock block_;
  int64_t a_bytes_ = 0, b_bytes_ = 0, c_bytes_ = 0;
};

int64_t FreeDeviceBytes() {
  size_t free = 0, total = 0;
  return cudaMemGetInfo(&free, &total) == cudaSuccess ? static_cast<int64_t>(free) : 0;
}

uint64_t Fnv1a(absl::string_view text, uint64_t hash) {
  for (const char c : text) hash = (hash ^ static_cast<uint8_t>(c)) * 0x100000001b3ull;
  return hash;
}

}  // namespace

absl::StatusOr<std::unique_ptr<CudaGemms>> CudaGemms::Create(void* workspace,
                                                             int64_t workspace_bytes,
                                                             const Options& options) {
  std::unique_ptr<cuda::GemmLibrary> library;
  SOUP_RETURN_IF_ERROR(CudaStatus(
      cuda::GemmLibrary::Create(workspace, static_cast<size_t>(workspace_bytes),
                                options.use_heuristic ? cuda::GemmLibrary::Fallback::kHeuristic
                                                      : cuda::GemmLibrary::Fallback::kError,
                                &library),
      "cuBLASLt"));
  GemmProfile profile(options.profile_path,
                      absl::StrCat(options.device, ", cuBLASLt ",
                                   cuda::GemmLibrary::LibraryVersion(), ", ", workspace_bytes));
  SOUP_RETURN_IF_ERROR(profile.Read().status());  // a broken file is told at the start
  return std::unique_ptr<CudaGemms>(
      new CudaGemms(std::move(library), std::move(profile), options.use_heuristic));
}

absl::StatusOr<GemmPreparation> CudaGemms::Prepare(absl::Span<const GemmArgs> products, DType type,
                                                   const std::function<absl::Status()>& make_room,
                                                   cudaStream_t stream) {
  SOUP_ASSIGN_OR_RETURN(const Products by_key, LibraryProducts(products, type));
  GemmPreparation preparation;
  preparation.shapes = static_cast<int64_t>(by_key.size());
  if (use_heuristic_) return preparation;
  SOUP_RETURN_IF_ERROR(AdoptKept(by_key));
  const bool missing = std::any_of(by_key.begin(), by_key.end(), [this](const auto& p) {
    return library_->Algorithm(p.second).empty();
  });
  if (missing && make_room) SOUP_RETURN_IF_ERROR(make_room());
  const bool load = missing || !make_room;
  const int64_t free = load ? FreeDeviceBytes() : 0;
  if (missing) SOUP_RETURN_IF_ERROR(TuneMissing(by_key, stream, preparation));
  if (load) {
    SOUP_RETURN_IF_ERROR(LoadCode(by_key, stream));
    code_bytes_ += std::max<int64_t>(0, free - FreeDeviceBytes());
  }
  uint64_t hash = 0xcbf29ce484222325ull;
  for (const auto& [key, g] : by_key) {
    hash = Fnv1a(absl::StrCat(key, "|", library_->Algorithm(g), "\n"), hash);
  }
  preparation.fingerprint = absl::StrCat(absl::Hex(hash, absl::kZeroPad16));
  return preparation;
}

cudaError_t CudaGemms::GemmF32(const GemmArgs& args, void* scratch, cudaStream_t stream) {
  return library_->GemmF32(args, scratch, kProductScratchBytes, stream);
}

absl::StatusOr<CudaGemms::Products> CudaGemms::LibraryProducts(absl::Span<const GemmArgs> products,
                                                               DType type) {
  Products by_key;
  for (const GemmArgs& g : products) {
    if (g.M == 0 || g.N == 0 || g.K == 0) continue;
    if (type != DType::kF32) {
      // What has a kernel of its own is not the library's.
      if (!cuda::SkinnyTakes(g)) by_key.emplace(cuda::GemmKeyText(g), g);
      continue;
    }
    const cudaError_t split = cuda::ForEachSplitChunk(
        g, reinterpret_cast<void*>(kNowhere), kProductScratchBytes,
        [&](const cuda::SplitChunk& chunk) {
          for (int i = 0; i < chunk.count; ++i) {
            by_key.emplace(cuda::GemmKeyText(chunk.products[i]), chunk.products[i]);
          }
          return cudaSuccess;
        });
    if (split != cudaSuccess) {
      return absl::InternalError(
          absl::StrCat("the product ", cuda::GemmKeyText(g), " has no form with fp32 activations"));
    }
  }
  return by_key;
}

absl::Status CudaGemms::AdoptKept(const Products& products) {
  const bool all_known = std::all_of(products.begin(), products.end(), [this](const auto& p) {
    return !library_->Algorithm(p.second).empty();
  });
  if (all_known) return absl::OkStatus();
  SOUP_ASSIGN_OR_RETURN(const GemmProfile::Entries kept, profile_.Read());
  for (const auto& [key, g] : products) {
    const auto it = kept.find(key);
    if (it == kept.end() || !library_->Algorithm(g).empty()) continue;
    const cudaError_t adopted = library_->Adopt(g, it->second);
    if (adopted == cudaSuccess) continue;
    return absl::FailedPreconditionError(
        absl::StrCat(profile_.path(), " has an algorithm for the product ", key,
                     " that cuBLASLt refuses (", cudaGetErrorString(adopted),
                     "): remove the file to have it tuned anew; jobs under way must then be "
                     "submitted again"));
  }
  return absl::OkStatus();
}

absl::Status CudaGemms::TuneMissing(const Products& products, cudaStream_t stream,
                                    GemmPreparation& preparation) {
  std::vector<GemmArgs> missing;
  for (const auto& [key, g] : products) {
    if (library_->Algorithm(g).empty()) missing.push_back(g);
  }
  const absl::Time start = absl::Now();
  SOUP_ASSIGN_OR_RETURN(const Operands operands, Operands::Make(missing, stream));
  GemmProfile::Entries tuned;
  for (const GemmArgs& product : missing) {
    const GemmArgs g = operands.At(product);
    const std::string key = cuda::GemmKeyText(g);
    SOUP_RETURN_IF_ERROR(
        CudaStatus(library_->Tune(g, kCandidates, stream), absl::StrCat("tuning ", key)));
    tuned.emplace(key, library_->Algorithm(g));
    loaded_.insert(key);
  }
  SOUP_ASSIGN_OR_RETURN(const GemmProfile::Entries kept, profile_.Merge(tuned));
  for (const auto& [key, algorithm] : tuned) {
    const std::string& first = kept.at(key);
    if (first == algorithm) continue;  // else another process was faster: its choice stands
    SOUP_RETURN_IF_ERROR(CudaStatus(library_->Adopt(products.at(key), first), key));
    loaded_.erase(key);
  }
  preparation.tuned = static_cast<int64_t>(missing.size());
  preparation.seconds = absl::ToDoubleSeconds(absl::Now() - start);
  SOUP_LOG(kInfo, "cuda") << "timed algorithms for " << preparation.tuned << " matrix products in "
                          << preparation.seconds << " s";
  return absl::OkStatus();
}

// Runs once what has not run in this process, so that no code is loaded during a run.
absl::Status CudaGemms::LoadCode(const Products& products, cudaStream_t stream) {
  std::vector<GemmArgs> fresh;
  for (const auto& [key, g] : products) {
    if (loaded_.count(key) == 0) fresh.push_back(g);
  }
  if (fresh.empty()) return absl::OkStatus();
  SOUP_ASSIGN_OR_RETURN(const Operands operands, Operands::Make(fresh, stream));
  for (const GemmArgs& product : fresh) {
    const GemmArgs g = operands.At(product);
    const std::string key = cuda::GemmKeyText(g);
    SOUP_RETURN_IF_ERROR(CudaStatus(library_->Gemm(g, stream), key));
    loaded_.insert(key);
  }
  return CudaStatus(cudaStreamSynchronize(stream), "first products");
}

}  // namespace soup::engine
