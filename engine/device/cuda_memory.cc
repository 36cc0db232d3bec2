#include "engine/device/cuda_memory.h"

#include <cuda_runtime.h>
#include <unistd.h>

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "engine/device/cuda_handles.h"

namespace soup::engine {
namespace {

// Registration of a large store in one call would hold the driver's lock for seconds.
constexpr uintptr_t kChunk = uintptr_t{1} << 30;

// The entry that holds `at`, or end().
template <typename Map>
auto Holding(const Map& map, uintptr_t at) {
  auto it = map.upper_bound(at);
  if (it == map.begin()) return map.end();
  --it;
  return it->second > at ? it : map.end();
}

}  // namespace

absl::StatusOr<CudaBlock> CudaBlock::OnDevice(int64_t bytes) {
  CudaBlock block;
  void* data = nullptr;
  const cudaError_t made = cudaMalloc(&data, static_cast<size_t>(std::max<int64_t>(bytes, 1)));
  if (made != cudaSuccess) {
    cudaGetLastError();
    size_t free = 0, total = 0;
    cudaMemGetInfo(&free, &total);
    return absl::ResourceExhaustedError(absl::StrCat(
        bytes, " bytes do not fit on the device: ", free, " of ", total, " bytes are free (",
        cudaGetErrorString(made), "); end other programs on it, or lower the budget"));
  }
  block.data_ = static_cast<std::byte*>(data);
  block.bytes_ = bytes;
  return block;
}

absl::StatusOr<CudaBlock> CudaBlock::Pinned(int64_t bytes) {
  CudaBlock block;
  void* data = nullptr;
  const cudaError_t made =
      cudaHostAlloc(&data, static_cast<size_t>(std::max<int64_t>(bytes, 1)), cudaHostAllocPortable);
  if (made != cudaSuccess) {
    cudaGetLastError();
    return CudaStatus(made, absl::StrCat("pinned host memory of ", bytes, " bytes"));
  }
  block.data_ = static_cast<std::byte*>(data);
  block.bytes_ = bytes;
  block.on_device_ = false;
  return block;
}

CudaBlock::~CudaBlock() {
  if (data_ == nullptr) return;
  if (on_device_) {
    cudaFree(data_);
  } else {
    cudaFreeHost(data_);
  }
}

absl::Status CudaHostRegistrations::Register(const void* data, int64_t bytes, bool read_only) {
  if (bytes <= 0) return absl::OkStatus();
  const uintptr_t page = static_cast<uintptr_t>(sysconf(_SC_PAGESIZE));
  const uintptr_t first = reinterpret_cast<uintptr_t>(data);
  const uintptr_t begin = first / page * page;
  const uintptr_t end = (first + static_cast<uintptr_t>(bytes) + page - 1) / page * page;
  const unsigned flags = cudaHostRegisterPortable | cudaHostRegisterMapped |
                         (read_only ? cudaHostRegisterReadOnly : 0u);
  for (uintptr_t at = begin; at < end;) {
    if (const auto held = Holding(chunks_, at); held != chunks_.end()) {
      at = held->second;
      continue;
    }
    const auto next = chunks_.lower_bound(at);
    uintptr_t stop = std::min(end, at + kChunk);
    if (next != chunks_.end()) stop = std::min(stop, next->first);
    const cudaError_t pinned = cudaHostRegister(reinterpret_cast<void*>(at), stop - at, flags);
    if (pinned != cudaSuccess) {
      cudaGetLastError();
      return CudaStatus(pinned, absl::StrCat("pinning ", stop - at, " bytes of host memory"));
    }
    chunks_.emplace(at, stop);
    at = stop;
  }
  uintptr_t& known = ranges_[first];
  known = std::max(known, first + static_cast<uintptr_t>(bytes));
  return absl::OkStatus();
}

void CudaHostRegistrations::Clear() {
  for (const auto& [begin, end] : chunks_) cudaHostUnregister(reinterpret_cast<void*>(begin));
  chunks_.clear();
  ranges_.clear();
}

bool CudaHostRegistrations::Pinned(const void* data) const {
  return Holding(ranges_, reinterpret_cast<uintptr_t>(data)) != ranges_.end();
}

int64_t CudaHostRegistrations::CopyBytes(const void* data, int64_t bytes) const {
  const uintptr_t at = reinterpret_cast<uintptr_t>(data);
  uintptr_t stop = at + static_cast<uintptr_t>(bytes);
  if (const auto held = Holding(chunks_, at); held != chunks_.end()) {
    stop = std::min(stop, held->second);
  } else if (const auto next = chunks_.lower_bound(at); next != chunks_.end()) {
    stop = std::min(stop, next->first);
  }
  return static_cast<int64_t>(stop - at);
}

}  // namespace soup::engine
