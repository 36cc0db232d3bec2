// The matrix products of the CUDA backend: cuBLASLt with algorithms that are chosen before a run
// and kept in a file. Internal to engine/device. Not thread-safe, but for what says so.
#ifndef SOUP_ENGINE_DEVICE_CUDA_GEMMS_H_
#define SOUP_ENGINE_DEVICE_CUDA_GEMMS_H_

#include <cuda_runtime.h>

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "engine/base/dtype.h"
#include "engine/device/backend.h"
#include "engine/device/gemm_profile.h"
#include "kernels/cuda/gemm.h"

namespace soup::engine {

class CudaGemms {
 public:
  struct Options {
    std::string profile_path;    // empty: choices live as long as this object
    std::string device;          // what the card is, in the file's scope
    bool use_heuristic = false;  // never tunes, takes the library's first choice
  };
  // `workspace`: device memory, used in stream order. Errors: those of the library.
  static absl::StatusOr<std::unique_ptr<CudaGemms>> Create(void* workspace, int64_t workspace_bytes,
                                                           const Options& options);

  cudaError_t Gemm(const kernels::GemmArgs& args, cudaStream_t stream) {
    return library_->Gemm(args, stream);
  }
  // Of fp32 activations, through the scratch (kernels/cuda/gemm_split.h).
  cudaError_t GemmF32(const kernels::GemmArgs& args, void* scratch, cudaStream_t stream);
  // Backend::PrepareGemms, of products with activations of `type`.
  absl::StatusOr<GemmPreparation> Prepare(absl::Span<const kernels::GemmArgs> products, DType type,
                                          const std::function<absl::Status()>& make_room,
                                          cudaStream_t stream);
  bool chooses() const { return !use_heuristic_; }
  // BackendCounters::product_code_bytes. Any thread.
  int64_t code_bytes() const { return code_bytes_.load(std::memory_order_relaxed); }

 private:
  using Products = std::map<std::string, kernels::GemmArgs>;  // by GemmKeyText

  CudaGemms(std::unique_ptr<kernels::cuda::GemmLibrary> library, GemmProfile profile,
            bool use_heuristic)
      : library_(std::move(library)), profile_(std::move(profile)), use_heuristic_(use_heuristic) {}

  // The library's products of these, by key.
  static absl::StatusOr<Products> LibraryProducts(absl::Span<const kernels::GemmArgs> products,
                                                  DType type);
  absl::Status AdoptKept(const Products& products);
  absl::Status TuneMissing(const Products& products, cudaStream_t stream,
                           GemmPreparation& preparation);
  absl::Status LoadCode(const Products& products, cudaStream_t stream);

  std::unique_ptr<kernels::cuda::GemmLibrary> library_;
  GemmProfile profile_;
  const bool use_heuristic_;
  std::set<std::string> loaded_;  // whose code this process has on the device
  std::atomic<int64_t> code_bytes_{0};
};

}  // namespace soup::engine

#endif  // SOUP_ENGINE_DEVICE_CUDA_GEMMS_H_
