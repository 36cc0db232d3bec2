// Anonymous host memory of a backend: on huge pages where they can be had, checked against what the
// host can give. Move-only. Internal to engine/device.
#ifndef SOUP_ENGINE_DEVICE_HOST_MAPPING_H_
#define SOUP_ENGINE_DEVICE_HOST_MAPPING_H_

#include <cstddef>
#include <cstdint>
#include <utility>

#include "absl/status/statusor.h"

namespace soup::engine {

class HostMapping {
 public:
  // Aligned to a page; zero. `populate`: takes the pages now, in several threads. Errors:
  // ResourceExhausted, with the bytes asked for, those available and what bounds them.
  static absl::StatusOr<HostMapping> Create(int64_t bytes, bool populate);
  HostMapping() = default;
  HostMapping(HostMapping&& other) noexcept { *this = std::move(other); }
  HostMapping& operator=(HostMapping&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(mapped_, other.mapped_);
    return *this;
  }
  ~HostMapping();

  std::byte* data() const { return data_; }
  int64_t mapped_bytes() const { return mapped_; }

 private:
  std::byte* data_ = nullptr;
  int64_t mapped_ = 0;
};

}  // namespace soup::engine

#endif  // SOUP_ENGINE_DEVICE_HOST_MAPPING_H_
