#include "kernels/cuda/cudnn_library.h"

#include <dlfcn.h>

namespace soup::kernels::cuda {
namespace {

constexpr char kLibraryName[] = "libcudnn.so.9";

template <typename Function>
void Find(void* library, const char* name, Function* to, std::string* error) {
  *to = reinterpret_cast<Function>(dlsym(library, name));
  if (*to == nullptr && error->empty()) *error = std::string(kLibraryName) + " has no " + name;
}

}  // namespace

const CudnnLibrary* CudnnLibrary::Open(std::string* error) {
  static std::string why;
  static const CudnnLibrary* const opened = []() -> const CudnnLibrary* {
    void* const library = dlopen(kLibraryName, RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr) {
      why = dlerror();
      return nullptr;
    }
    static CudnnLibrary api;
    Find(library, "cudnnCreate", &api.Create, &why);
    Find(library, "cudnnDestroy", &api.Destroy, &why);
    Find(library, "cudnnSetStream", &api.SetStream, &why);
    Find(library, "cudnnGetVersion", &api.GetVersion, &why);
    Find(library, "cudnnGetLastErrorString", &api.GetLastErrorString, &why);
    Find(library, "cudnnBackendCreateDescriptor", &api.CreateDescriptor, &why);
    Find(library, "cudnnBackendDestroyDescriptor", &api.DestroyDescriptor, &why);
    Find(library, "cudnnBackendSetAttribute", &api.SetAttribute, &why);
    Find(library, "cudnnBackendGetAttribute", &api.GetAttribute, &why);
    Find(library, "cudnnBackendFinalize", &api.Finalize, &why);
    Find(library, "cudnnBackendExecute", &api.Execute, &why);
    return why.empty() ? &api : nullptr;
  }();
  if (opened == nullptr) *error = why;
  return opened;
}

std::string CudnnLibrary::LastError() const {
  char text[512] = "";
  GetLastErrorString(text, sizeof text);
  return text;
}

void CudnnGraph::Told(cudnnStatus_t status) {
  if (status == CUDNN_STATUS_SUCCESS || !error_.empty()) return;
  error_ = api_->LastError();
  if (error_.empty()) error_ = "status " + std::to_string(static_cast<int>(status));
}

cudnnBackendDescriptor_t CudnnGraph::New(cudnnBackendDescriptorType_t type) {
  cudnnBackendDescriptor_t d = nullptr;
  Told(api_->CreateDescriptor(type, &d));
  owned_.emplace_back(api_, d);
  return d;
}

void CudnnGraph::Set(cudnnBackendDescriptor_t d, cudnnBackendAttributeName_t name,
                     cudnnBackendAttributeType_t type, int64_t count, const void* value) {
  if (error_.empty()) Told(api_->SetAttribute(d, name, type, count, value));
}

void CudnnGraph::Finish(cudnnBackendDescriptor_t d) {
  if (error_.empty()) Told(api_->Finalize(d));
}

CudnnTensor CudnnGraph::Make(const Dims& dims, cudnnDataType_t type, bool is_virtual, bool by_value,
                             const CudnnTensor* ragged) {
  constexpr int64_t kAlignment = 16;
  CudnnTensor t;
  t.id = next_id_++;
  t.d = New(CUDNN_BACKEND_TENSOR_DESCRIPTOR);
  Set(t.d, CUDNN_ATTR_TENSOR_DATA_TYPE, CUDNN_TYPE_DATA_TYPE, 1, &type);
  Set(t.d, CUDNN_ATTR_TENSOR_DIMENSIONS, CUDNN_TYPE_INT64, 4, dims.n);
  Set(t.d, CUDNN_ATTR_TENSOR_STRIDES, CUDNN_TYPE_INT64, 4, dims.strides);
  Set(t.d, CUDNN_ATTR_TENSOR_UNIQUE_ID, CUDNN_TYPE_INT64, 1, &t.id);
  Set(t.d, CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT, CUDNN_TYPE_INT64, 1, &kAlignment);
  if (is_virtual) Set(t.d, CUDNN_ATTR_TENSOR_IS_VIRTUAL, CUDNN_TYPE_BOOLEAN, 1, &is_virtual);
  if (by_value) Set(t.d, CUDNN_ATTR_TENSOR_IS_BY_VALUE, CUDNN_TYPE_BOOLEAN, 1, &by_value);
  if (ragged != nullptr) SetOther(t.d, CUDNN_ATTR_TENSOR_RAGGED_OFFSET_DESC, ragged->d);
  Finish(t.d);
  return t;
}

void CudnnGraph::Pointwise(cudnnPointwiseMode_t mode, const CudnnTensor& x, const CudnnTensor* b,
                           const CudnnTensor& y, cudnnDataType_t compute, const CudnnTensor* select,
                           int64_t axis) {
  const auto how = New(CUDNN_BACKEND_POINTWISE_DESCRIPTOR);
  Set(how, CUDNN_ATTR_POINTWISE_MODE, CUDNN_TYPE_POINTWISE_MODE, 1, &mode);
  Set(how, CUDNN_ATTR_POINTWISE_MATH_PREC, CUDNN_TYPE_DATA_TYPE, 1, &compute);
  if (axis >= 0) Set(how, CUDNN_ATTR_POINTWISE_AXIS, CUDNN_TYPE_INT64, 1, &axis);
  Finish(how);
  const auto op = New(CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR);
  SetOther(op, CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR, how);
  SetOther(op, CUDNN_ATTR_OPERATION_POINTWISE_XDESC, x.d);
  if (b != nullptr) SetOther(op, CUDNN_ATTR_OPERATION_POINTWISE_BDESC, b->d);
  if (select != nullptr) SetOther(op, CUDNN_ATTR_OPERATION_POINTWISE_TDESC, select->d);
  SetOther(op, CUDNN_ATTR_OPERATION_POINTWISE_YDESC, y.d);
  Finish(op);
  operations_.push_back(op);
}

void CudnnGraph::Product(const CudnnTensor& a, const CudnnTensor& b, const CudnnTensor& c,
                         const CudnnTensor* m, const CudnnTensor* n, const CudnnTensor* k,
                         bool zero_padding) {
  const cudnnDataType_t compute = CUDNN_DATA_FLOAT;
  const double zero = 0;
  const auto how = New(CUDNN_BACKEND_MATMUL_DESCRIPTOR);
  Set(how, CUDNN_ATTR_MATMUL_COMP_TYPE, CUDNN_TYPE_DATA_TYPE, 1, &compute);
  if (zero_padding) Set(how, CUDNN_ATTR_MATMUL_PADDING_VALUE, CUDNN_TYPE_DOUBLE, 1, &zero);
  Finish(how);
  const auto op = New(CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR);
  SetOther(op, CUDNN_ATTR_OPERATION_MATMUL_DESC, how);
  SetOther(op, CUDNN_ATTR_OPERATION_MATMUL_ADESC, a.d);
  SetOther(op, CUDNN_ATTR_OPERATION_MATMUL_BDESC, b.d);
  SetOther(op, CUDNN_ATTR_OPERATION_MATMUL_CDESC, c.d);
  if (m != nullptr) SetOther(op, CUDNN_ATTR_OPERATION_MATMUL_GEMM_M_OVERRIDE_DESC, m->d);
  if (n != nullptr) SetOther(op, CUDNN_ATTR_OPERATION_MATMUL_GEMM_N_OVERRIDE_DESC, n->d);
  if (k != nullptr) SetOther(op, CUDNN_ATTR_OPERATION_MATMUL_GEMM_K_OVERRIDE_DESC, k->d);
  Finish(op);
  operations_.push_back(op);
}

void CudnnGraph::Reduce(cudnnReduceTensorOp_t reduce, const CudnnTensor& x, const CudnnTensor& y) {
  const cudnnDataType_t compute = CUDNN_DATA_FLOAT;
  const auto how = New(CUDNN_BACKEND_REDUCTION_DESCRIPTOR);
  Set(how, CUDNN_ATTR_REDUCTION_OPERATOR, CUDNN_TYPE_REDUCTION_OPERATOR_TYPE, 1, &reduce);
  Set(how, CUDNN_ATTR_REDUCTION_COMP_TYPE, CUDNN_TYPE_DATA_TYPE, 1, &compute);
  Finish(how);
  const auto op = New(CUDNN_BACKEND_OPERATION_REDUCTION_DESCRIPTOR);
  SetOther(op, CUDNN_ATTR_OPERATION_REDUCTION_DESC, how);
  SetOther(op, CUDNN_ATTR_OPERATION_REDUCTION_XDESC, x.d);
  SetOther(op, CUDNN_ATTR_OPERATION_REDUCTION_YDESC, y.d);
  Finish(op);
  operations_.push_back(op);
}

void CudnnGraph::Reshape(const CudnnTensor& x, const CudnnTensor& y) {
  const auto op = New(CUDNN_BACKEND_OPERATION_RESHAPE_DESCRIPTOR);
  SetOther(op, CUDNN_ATTR_OPERATION_RESHAPE_XDESC, x.d);
  SetOther(op, CUDNN_ATTR_OPERATION_RESHAPE_YDESC, y.d);
  Finish(op);
  operations_.push_back(op);
}

// Engines tell what they cannot promise.
bool CudnnGraph::Deterministic(cudnnBackendDescriptor_t config) {
  const auto engine = New(CUDNN_BACKEND_ENGINE_DESCRIPTOR);
  cudnnBackendDescriptor_t into = engine;
  int64_t count = 0;
  if (api_->GetAttribute(config, CUDNN_ATTR_ENGINECFG_ENGINE, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1,
                         &count, &into) != CUDNN_STATUS_SUCCESS) {
    return false;
  }
  cudnnBackendNumericalNote_t notes[CUDNN_NUMERICAL_NOTE_TYPE_COUNT];
  if (api_->GetAttribute(engine, CUDNN_ATTR_ENGINE_NUMERICAL_NOTE, CUDNN_TYPE_NUMERICAL_NOTE,
                         CUDNN_NUMERICAL_NOTE_TYPE_COUNT, &count, notes) != CUDNN_STATUS_SUCCESS) {
    return false;
  }
  for (int64_t i = 0; i < count; ++i) {
    if (notes[i] == CUDNN_NUMERICAL_NOTE_NONDETERMINISTIC) return false;
  }
  return true;
}

bool CudnnGraph::Build(CudnnDescriptor* plan, int64_t* workspace_bytes, std::string* error) {
  const auto graph = New(CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR);
  Set(graph, CUDNN_ATTR_OPERATIONGRAPH_OPS, CUDNN_TYPE_BACKEND_DESCRIPTOR,
      static_cast<int64_t>(operations_.size()), operations_.data());
  Set(graph, CUDNN_ATTR_OPERATIONGRAPH_HANDLE, CUDNN_TYPE_HANDLE, 1, &handle_);
  Finish(graph);
  const auto choice = New(CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR);
  const cudnnBackendHeurMode_t mode = CUDNN_HEUR_MODE_A;
  SetOther(choice, CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH, graph);
  Set(choice, CUDNN_ATTR_ENGINEHEUR_MODE, CUDNN_TYPE_HEUR_MODE, 1, &mode);
  Finish(choice);
  int64_t count = 0;
  if (error_.empty()) {
    Told(api_->GetAttribute(choice, CUDNN_ATTR_ENGINEHEUR_RESULTS, CUDNN_TYPE_BACKEND_DESCRIPTOR, 0,
                            &count, nullptr));
  }
  std::vector<cudnnBackendDescriptor_t> configs;
  for (int64_t i = 0; i < count && error_.empty(); ++i) {
    configs.push_back(New(CUDNN_BACKEND_ENGINECFG_DESCRIPTOR));
  }
  if (!configs.empty()) {
    Told(api_->GetAttribute(choice, CUDNN_ATTR_ENGINEHEUR_RESULTS, CUDNN_TYPE_BACKEND_DESCRIPTOR,
                            count, &count, configs.data()));
  }
  std::string refused = "no engine";
  for (int64_t i = 0; i < count && error_.empty(); ++i) {
    if (!Deterministic(configs[static_cast<size_t>(i)])) {
      refused = "its engine is not deterministic";
      continue;
    }
    cudnnBackendDescriptor_t d = nullptr;
    Told(api_->CreateDescriptor(CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR, &d));
    CudnnDescriptor made(api_, d);
    SetOther(d, CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG, configs[static_cast<size_t>(i)]);
    Set(d, CUDNN_ATTR_EXECUTION_PLAN_HANDLE, CUDNN_TYPE_HANDLE, 1, &handle_);
    if (!error_.empty()) break;
    int64_t got = 0;
    if (api_->Finalize(d) == CUDNN_STATUS_SUCCESS &&
        api_->GetAttribute(d, CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE, CUDNN_TYPE_INT64, 1, &got,
                           workspace_bytes) == CUDNN_STATUS_SUCCESS) {
      *plan = std::move(made);
      return true;
    }
    refused = api_->LastError();
  }
  *error = error_.empty() ? refused : error_;
  return false;
}

}  // namespace soup::kernels::cuda
