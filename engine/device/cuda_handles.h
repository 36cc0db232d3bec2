// Owners of CUDA's streams and events, and its errors as absl::Status. Move-only; a moved-from or
// default one holds nothing. Internal to engine/device.
#ifndef SOUP_ENGINE_DEVICE_CUDA_HANDLES_H_
#define SOUP_ENGINE_DEVICE_CUDA_HANDLES_H_

#include <cuda_runtime.h>

#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"

namespace soup::engine {

// OK, ResourceExhausted (out of memory) or Internal; "what: CUDA's own text".
inline absl::Status CudaStatus(cudaError_t error, absl::string_view what) {
  if (error == cudaSuccess) return absl::OkStatus();
  const std::string text = absl::StrCat(what, ": ", cudaGetErrorString(error));
  if (error == cudaErrorMemoryAllocation) return absl::ResourceExhaustedError(text);
  return absl::InternalError(text);
}

class CudaStream {
 public:
  // Does not wait for the default stream. Errors: those of CUDA.
  static absl::StatusOr<CudaStream> Create() {
    CudaStream stream;
    const cudaError_t made = cudaStreamCreateWithFlags(&stream.stream_, cudaStreamNonBlocking);
    if (made != cudaSuccess) return CudaStatus(made, "cudaStreamCreate");
    return stream;
  }
  CudaStream() = default;
  CudaStream(CudaStream&& other) noexcept : stream_(std::exchange(other.stream_, nullptr)) {}
  CudaStream& operator=(CudaStream&& other) noexcept {
    std::swap(stream_, other.stream_);
    return *this;
  }
  ~CudaStream() {
    if (stream_ != nullptr) cudaStreamDestroy(stream_);
  }
  cudaStream_t get() const { return stream_; }

 private:
  cudaStream_t stream_ = nullptr;
};

class CudaEvent {
 public:
  static absl::StatusOr<CudaEvent> Create(bool timing) {
    CudaEvent event;
    const cudaError_t made =
        cudaEventCreateWithFlags(&event.event_, timing ? cudaEventDefault : cudaEventDisableTiming);
    if (made != cudaSuccess) return CudaStatus(made, "cudaEventCreate");
    return event;
  }
  CudaEvent() = default;
  CudaEvent(CudaEvent&& other) noexcept : event_(std::exchange(other.event_, nullptr)) {}
  CudaEvent& operator=(CudaEvent&& other) noexcept {
    std::swap(event_, other.event_);
    return *this;
  }
  ~CudaEvent() {
    if (event_ != nullptr) cudaEventDestroy(event_);
  }
  cudaEvent_t get() const { return event_; }

 private:
  cudaEvent_t event_ = nullptr;
};

}  // namespace soup::engine

#endif  // SOUP_ENGINE_DEVICE_CUDA_HANDLES_H_
