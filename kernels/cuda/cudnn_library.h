// cuDNN's backend C API, opened at run time: no program links against it. Internal to kernels/cuda.
// A machine without libcudnn.so.9 runs our own kernels. One library a process; any thread.
#ifndef SOUP_KERNELS_CUDA_CUDNN_LIBRARY_H_
#define SOUP_KERNELS_CUDA_CUDNN_LIBRARY_H_

#include <cudnn.h>

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace soup::kernels::cuda {

// The entry points, by the library's own names.
struct CudnnLibrary {
  decltype(&cudnnCreate) Create = nullptr;
  decltype(&cudnnDestroy) Destroy = nullptr;
  decltype(&cudnnSetStream) SetStream = nullptr;
  decltype(&cudnnGetVersion) GetVersion = nullptr;
  decltype(&cudnnGetLastErrorString) GetLastErrorString = nullptr;
  decltype(&cudnnBackendCreateDescriptor) CreateDescriptor = nullptr;
  decltype(&cudnnBackendDestroyDescriptor) DestroyDescriptor = nullptr;
  decltype(&cudnnBackendSetAttribute) SetAttribute = nullptr;
  decltype(&cudnnBackendGetAttribute) GetAttribute = nullptr;
  decltype(&cudnnBackendFinalize) Finalize = nullptr;
  decltype(&cudnnBackendExecute) Execute = nullptr;

  // Null, and why in `error`, when the library or one of the entry points is not there. Never
  // closed: its code may be running on the device at exit.
  static const CudnnLibrary* Open(std::string* error);
  std::string LastError() const;
};

// Owns a backend descriptor. Move-only.
class CudnnDescriptor {
 public:
  CudnnDescriptor() = default;
  CudnnDescriptor(const CudnnLibrary* api, cudnnBackendDescriptor_t d) : api_(api), d_(d) {}
  CudnnDescriptor(CudnnDescriptor&& other) noexcept
      : api_(other.api_), d_(std::exchange(other.d_, nullptr)) {}
  CudnnDescriptor& operator=(CudnnDescriptor&& other) noexcept {
    std::swap(api_, other.api_);
    std::swap(d_, other.d_);
    return *this;
  }
  ~CudnnDescriptor() {
    if (d_ != nullptr) api_->DestroyDescriptor(d_);
  }
  cudnnBackendDescriptor_t get() const { return d_; }

 private:
  const CudnnLibrary* api_ = nullptr;
  cudnnBackendDescriptor_t d_ = nullptr;
};

// A tensor of a graph: its descriptor (owned by the graph) and the id by which data is bound.
struct CudnnTensor {
  cudnnBackendDescriptor_t d = nullptr;
  int64_t id = 0;
};

// An operation graph under construction: 4-d tensors and the few operations that attention is made
// of. The first error sticks; Build tells it.
class CudnnGraph {
 public:
  struct Dims {
    int64_t n[4];
    int64_t strides[4];
  };
  CudnnGraph(const CudnnLibrary* api, cudnnHandle_t handle) : api_(api), handle_(handle) {}

  // `ragged`: offsets in elements at which each sequence begins, and the end.
  CudnnTensor Real(const Dims& dims, cudnnDataType_t type, const CudnnTensor* ragged = nullptr) {
    return Make(dims, type, false, false, ragged);
  }
  CudnnTensor Virtual(const Dims& dims, cudnnDataType_t type, const CudnnTensor* ragged = nullptr) {
    return Make(dims, type, true, false, ragged);
  }
  // A float that is bound by a host pointer.
  CudnnTensor Scalar() {
    return Make({{1, 1, 1, 1}, {1, 1, 1, 1}}, CUDNN_DATA_FLOAT, false, true, nullptr);
  }

  // y = op(x, b); `select` is the third operand of BINARY_SELECT, `axis` that of GEN_INDEX.
  void Pointwise(cudnnPointwiseMode_t mode, const CudnnTensor& x, const CudnnTensor* b,
                 const CudnnTensor& y, cudnnDataType_t compute = CUDNN_DATA_FLOAT,
                 const CudnnTensor* select = nullptr, int64_t axis = -1);
  // c = a b; the overrides hold the true sizes of M, N, K of each sequence.
  void Product(const CudnnTensor& a, const CudnnTensor& b, const CudnnTensor& c,
               const CudnnTensor* m, const CudnnTensor* n, const CudnnTensor* k,
               bool zero_padding = false);
  void Reduce(cudnnReduceTensorOp_t op, const CudnnTensor& x, const CudnnTensor& y);
  void Reshape(const CudnnTensor& x, const CudnnTensor& y);

  // The execution plan of the library's first choice that is deterministic and that it can build.
  // Takes 100 ms or so. False, and why in `error`, when there is none.
  bool Build(CudnnDescriptor* plan, int64_t* workspace_bytes, std::string* error);

 private:
  CudnnTensor Make(const Dims& dims, cudnnDataType_t type, bool is_virtual, bool by_value,
                   const CudnnTensor* ragged);
  cudnnBackendDescriptor_t New(cudnnBackendDescriptorType_t type);
  void Set(cudnnBackendDescriptor_t d, cudnnBackendAttributeName_t name,
           cudnnBackendAttributeType_t type, int64_t count, const void* value);
  void SetOther(cudnnBackendDescriptor_t d, cudnnBackendAttributeName_t name,
                cudnnBackendDescriptor_t other) {
    Set(d, name, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &other);
  }
  void Finish(cudnnBackendDescriptor_t d);
  void Told(cudnnStatus_t status);
  bool Deterministic(cudnnBackendDescriptor_t config);

  const CudnnLibrary* api_;
  cudnnHandle_t handle_;
  int64_t next_id_ = 1;
  std::string error_;
  std::vector<CudnnDescriptor> owned_;
  std::vector<cudnnBackendDescriptor_t> operations_;
};

}  // namespace soup::kernels::cuda

#endif  // SOUP_KERNELS_CUDA_CUDNN_LIBRARY_H_
