// How much of a device's memory is in use, told by the driver's management library: unlike CUDA it
// can be asked before there is a context, so the context's own bytes can be measured. The library
// is opened when it is there; without it GrownBy() is 0. Other processes that come or go in between
// are counted. Internal to engine/device.
#ifndef SOUP_ENGINE_DEVICE_CUDA_DEVICE_USE_H_
#define SOUP_ENGINE_DEVICE_CUDA_DEVICE_USE_H_

#include <cstdint>

namespace soup::engine {

class CudaDeviceUse {
 public:
  // Reads what is in use now. `device`: CUDA's number.
  explicit CudaDeviceUse(int device);
  ~CudaDeviceUse();
  CudaDeviceUse(const CudaDeviceUse&) = delete;
  CudaDeviceUse& operator=(const CudaDeviceUse&) = delete;

  // Bytes in use now beyond those at construction; 0 when they cannot be told.
  int64_t GrownBy() const;

 private:
  int64_t Used() const;  // < 0: cannot be told

  void* library_ = nullptr;
  void* device_ = nullptr;
  int64_t before_ = -1;
};

}  // namespace soup::engine

#endif  // SOUP_ENGINE_DEVICE_CUDA_DEVICE_USE_H_
