// Memory as the CUDA backend holds it: blocks on the device (the only calls of cudaMalloc), pinned
// host blocks, and registrations of host memory that others own. Internal to engine/device. Not
// thread-safe.
#ifndef SOUP_ENGINE_DEVICE_CUDA_MEMORY_H_
#define SOUP_ENGINE_DEVICE_CUDA_MEMORY_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace soup::engine {

// Device or pinned host memory; move-only.
class CudaBlock {
 public:
  // Errors: ResourceExhausted, with the bytes asked for and those free on the device.
  static absl::StatusOr<CudaBlock> OnDevice(int64_t bytes);
  static absl::StatusOr<CudaBlock> Pinned(int64_t bytes);
  CudaBlock() = default;
  CudaBlock(CudaBlock&& other) noexcept { *this = std::move(other); }
  CudaBlock& operator=(CudaBlock&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(bytes_, other.bytes_);
    std::swap(on_device_, other.on_device_);
    return *this;
  }
  ~CudaBlock();

  std::byte* data() const { return data_; }
  int64_t bytes() const { return bytes_; }

 private:
  std::byte* data_ = nullptr;
  int64_t bytes_ = 0;
  bool on_device_ = true;
};

// Pins ranges of host memory, page by page and in chunks; pages that lie in two ranges are pinned
// once.
class CudaHostRegistrations {
 public:
  CudaHostRegistrations() = default;
  CudaHostRegistrations(const CudaHostRegistrations&) = delete;
  CudaHostRegistrations& operator=(const CudaHostRegistrations&) = delete;
  ~CudaHostRegistrations() { Clear(); }

  // `read_only`: the device supports pinning of memory that is mapped so. Errors: those of CUDA;
  // what was pinned until then stays pinned.
  absl::Status Register(const void* data, int64_t bytes, bool read_only);
  void Clear();
  // Whether `data` lies in a range that was pinned whole.
  bool Pinned(const void* data) const;
  // Most bytes from `data` on that one copy may take: a copy must not leave its chunk.
  int64_t CopyBytes(const void* data, int64_t bytes) const;

 private:
  std::map<uintptr_t, uintptr_t> chunks_;  // begin -> end, of what CUDA knows
  std::map<uintptr_t, uintptr_t> ranges_;  // begin -> end, pinned whole
};

}  // namespace soup::engine

#endif  // SOUP_ENGINE_DEVICE_CUDA_MEMORY_H_
