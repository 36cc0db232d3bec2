#include "engine/device/cuda_device_use.h"

#include <cuda_runtime.h>
#include <dlfcn.h>

#include <algorithm>

#include "engine/base/log.h"

namespace soup::engine {
namespace {

// The part of NVML's interface that is used, as its documentation gives it; 0 is success.
struct NvmlMemory {
  unsigned long long total, free, used;
};
using NvmlInit = int (*)();
using NvmlShutdown = int (*)();
using NvmlHandleByPciBusId = int (*)(const char*, void**);
using NvmlMemoryInfo = int (*)(void*, NvmlMemory*);

template <typename Function>
Function Symbol(void* library, const char* name) {
  return library == nullptr ? nullptr : reinterpret_cast<Function>(dlsym(library, name));
}

}  // namespace

CudaDeviceUse::CudaDeviceUse(int device) {
  char bus[32] = {};
  library_ = dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL);
  const auto init = Symbol<NvmlInit>(library_, "nvmlInit_v2");
  const auto find = Symbol<NvmlHandleByPciBusId>(library_, "nvmlDeviceGetHandleByPciBusId_v2");
  const bool found = init != nullptr && find != nullptr && init() == 0 &&
                     cudaDeviceGetPCIBusId(bus, sizeof bus, device) == cudaSuccess &&
                     find(bus, &device_) == 0;
  if (!found) device_ = nullptr;
  before_ = Used();
  if (before_ < 0) {
    SOUP_LOG(kWarn, "cuda") << "the driver's management library does not answer: the bytes of the "
                               "CUDA context are not known";
  }
}

CudaDeviceUse::~CudaDeviceUse() {
  if (const auto shutdown = Symbol<NvmlShutdown>(library_, "nvmlShutdown")) shutdown();
  if (library_ != nullptr) dlclose(library_);
}

int64_t CudaDeviceUse::Used() const {
  const auto info = Symbol<NvmlMemoryInfo>(library_, "nvmlDeviceGetMemoryInfo");
  NvmlMemory memory = {};
  if (device_ == nullptr || info == nullptr || info(device_, &memory) != 0) return -1;
  return static_cast<int64_t>(memory.total - memory.free);
}

int64_t CudaDeviceUse::GrownBy() const {
  const int64_t now = Used();
  return before_ < 0 || now < 0 ? 0 : std::max<int64_t>(0, now - before_);
}

}  // namespace soup::engine
