#include "kernels/cuda/cudnn_attention.h"

#include <iterator>
#include <map>
#include <tuple>
#include <utility>
#include <vector>

#include "kernels/cuda/cudnn_lengths.h"
#include "kernels/cuda/cudnn_library.h"

namespace soup::kernels::cuda {
namespace {

// The library makes plans for more, whose results are not attention's (9.14, backward, 256).
constexpr int64_t kMostHeadDim = 128;
constexpr size_t kOldestVersion = 91400;
constexpr int64_t kLengthBytes = 256;
constexpr int64_t kForwardWorkspaceBytes = int64_t{1} << 20;
// What a masked score becomes: exp of it is 0 after any row's statistics are taken off.
constexpr float kMasked = -1e30f;

int64_t RoundUp256(int64_t n) { return (n + 255) / 256 * 256; }

// A graph's plan, and the ids of the tensors that are bound for a run, in the order of binding.
struct Plan {
  CudnnDescriptor plan;
  int64_t workspace_bytes = 0;
  std::vector<int64_t> ids;
};

// Tensors of one call: `n` sequences of at most `s` tokens, `hq` query heads on `hk` key-value
// heads.
class AttentionGraph {
 public:
  AttentionGraph(const CudnnLibrary* api, cudnnHandle_t handle, const CudnnAttentionShape& shape,
                 int64_t hk)
      : graph_(api, handle),
        hk_(hk),
        hq_(hk * (shape.Hq / shape.Hkv)),
        hq_all_(shape.Hq),
        n_(shape.sequences),
        s_(shape.length_class),
        d_(shape.D),
        qkv_(shape.row_stride),
        out_(shape.Hq * shape.D),
        exact_(shape.exact) {
    if (exact_) return;
    offsets_qkv_ = Offsets();
    offsets_out_ = Offsets();
    length_ = Bound(graph_.Real({{1, 1, 1, 1}, {1, 1, 1, 1}}, CUDNN_DATA_INT32));
  }

  // Bound in order: (both offsets, length, unless exact) scale, masked, q, k, v, out, lse.
  bool Forward(Plan* plan, std::string* error) {
    const CudnnTensor scale = Bound(graph_.Scalar());
    const CudnnTensor masked = Bound(graph_.Scalar());
    const CudnnTensor q = Rows(hq_, qkv_, OffsetsQkv()), kt = RowsTransposed(qkv_);
    const CudnnTensor v = Rows(hk_, qkv_, OffsetsQkv()), out = Rows(hq_, out_, OffsetsOut());
    const CudnnTensor lse = Bound(graph_.Real(RowDims(hq_all_), CUDNN_DATA_FLOAT));
    CudnnTensor scores = Scores(q, kt, scale, masked, /*zero_padding=*/true);
    const CudnnTensor most = Row(), sum = Row(), log = Row();
    const CudnnTensor shifted = Square(), e = Square(), p = Square(CUDNN_DATA_BFLOAT16);
    graph_.Reduce(CUDNN_REDUCE_TENSOR_MAX, scores, most);
    graph_.Pointwise(CUDNN_POINTWISE_SUB, scores, &most, shifted);
    graph_.Pointwise(CUDNN_POINTWISE_EXP, shifted, nullptr, e);
    graph_.Reduce(CUDNN_REDUCE_TENSOR_ADD, e, sum);
    graph_.Pointwise(CUDNN_POINTWISE_LOG, sum, nullptr, log);
    graph_.Pointwise(CUDNN_POINTWISE_ADD, most, &log, lse);
    graph_.Pointwise(CUDNN_POINTWISE_DIV, e, &sum, p);
    graph_.Product(p, v, out, Length(), nullptr, Length());
    return Build(plan, error);
  }

  // Bound in order: (the same) scale, masked, one, q, k, v, out, dout, lse, dq, dk, dv.
  bool Backward(Plan* plan, std::string* error) {
    const CudnnTensor scale = Bound(graph_.Scalar());
    const CudnnTensor masked = Bound(graph_.Scalar());
    const CudnnTensor one = Bound(graph_.Scalar());
    const CudnnTensor q = Rows(hq_, qkv_, OffsetsQkv()), kt = RowsTransposed(qkv_);
    const CudnnTensor vt = RowsTransposed(qkv_), out = Rows(hq_, out_, OffsetsOut());
    const CudnnTensor dout = Rows(hq_, out_, OffsetsOut());
    const CudnnTensor lse = Bound(graph_.Real(RowDims(hq_all_), CUDNN_DATA_FLOAT));
    const CudnnTensor dq = Rows(hq_, qkv_, OffsetsQkv()), dk = Rows(hk_, qkv_, OffsetsQkv());
    const CudnnTensor dv = Rows(hk_, qkv_, OffsetsQkv());

    // delta = rowsum(dout * out)
    const CudnnTensor products = graph_.Virtual(RowsDims(hq_, hq_ * d_), CUDNN_DATA_FLOAT);
    const CudnnTensor rowsum = Row(), delta = Row();
    graph_.Pointwise(CUDNN_POINTWISE_MUL, dout, &out, products);
    graph_.Reduce(CUDNN_REDUCE_TENSOR_ADD, products, rowsum);
    graph_.Pointwise(CUDNN_POINTWISE_MUL, rowsum, &one, delta);

    // P = exp(scores - lse); dV = P^T dout
    const CudnnTensor scores = Scores(q, kt, scale, masked, /*zero_padding=*/false);
    const CudnnTensor shifted = Square(), p = Square();
    graph_.Pointwise(CUDNN_POINTWISE_SUB, scores, &lse, shifted);
    // Rows beyond the length have no lse.
    graph_.Pointwise(CUDNN_POINTWISE_EXP, MaskPadding(shifted, masked), nullptr, p);
    OverHeads(Transposed(p), dout, dv);

    // dS = P * (dout V^T - delta) * scale; dK = dS^T q; dQ = dS K. No accumulator of dQ between
    // calls of the library's blocks: dS goes through the workspace, which is what makes it
    // deterministic.
    const CudnnTensor dp = Square(), unmasked = Square(), centred = Square(), weighted = Square();
    const CudnnTensor ds = Square();
    graph_.Product(dout, vt, dp, Length(), Length(), nullptr);
    graph_.Pointwise(CUDNN_POINTWISE_MUL, dp, &one, unmasked);
    graph_.Pointwise(CUDNN_POINTWISE_SUB, unmasked, &delta, centred);
    graph_.Pointwise(CUDNN_POINTWISE_MUL, centred, &p, weighted);
    graph_.Pointwise(CUDNN_POINTWISE_MUL, weighted, &scale, ds);
    OverHeads(Transposed(ds), q, dk);
    const CudnnTensor k = graph_.Virtual(RowsDims(hk_, qkv_), CUDNN_DATA_BFLOAT16, OffsetsQkv());
    graph_.Reshape(kt, k);
    graph_.Product(ds, k, dq, Length(), nullptr, Length());
    return Build(plan, error);
  }

 private:
  using Dims = CudnnGraph::Dims;

  CudnnTensor Bound(const CudnnTensor& t) {
    ids_.push_back(t.id);
    return t;
  }
  const CudnnTensor* OffsetsQkv() const { return exact_ ? nullptr : &offsets_qkv_; }
  const CudnnTensor* OffsetsOut() const { return exact_ ? nullptr : &offsets_out_; }
  const CudnnTensor* Length() const { return exact_ ? nullptr : &length_; }
  CudnnTensor Offsets() {
    return Bound(graph_.Real({{2, 1, 1, 1}, {1, 1, 1, 1}}, CUDNN_DATA_INT32));
  }
  // [n, heads, s, d] in rows of `stride` elements; transposed: [n, hk, d, s].
  Dims RowsDims(int64_t heads, int64_t stride) const {
    return {{n_, heads, s_, d_}, {s_ * stride, d_, stride, 1}};
  }
  CudnnTensor Rows(int64_t heads, int64_t stride, const CudnnTensor* offsets) {
    return Bound(graph_.Real(RowsDims(heads, stride), CUDNN_DATA_BFLOAT16, offsets));
  }
  CudnnTensor RowsTransposed(int64_t stride) {
    return Bound(graph_.Real({{n_, hk_, d_, s_}, {s_ * stride, d_, 1, stride}}, CUDNN_DATA_BFLOAT16,
                             OffsetsQkv()));
  }
  // Of each row one number; `held`: heads of a sequence in memory, of which the call sees hq.
  Dims RowDims(int64_t held) const { return {{n_, hq_, s_, 1}, {held * s_, s_, 1, 1}}; }
  CudnnTensor Row() { return graph_.Virtual(RowDims(hq_), CUDNN_DATA_FLOAT); }
  CudnnTensor Square(cudnnDataType_t type = CUDNN_DATA_FLOAT) {
    return graph_.Virtual({{n_, hq_, s_, s_}, {hq_ * s_ * s_, s_ * s_, s_, 1}}, type);
  }
  CudnnTensor Index(const CudnnTensor& like, int64_t axis) {
    const CudnnTensor index = Square(CUDNN_DATA_INT32);
    graph_.Pointwise(CUDNN_POINTWISE_GEN_INDEX, like, nullptr, index, CUDNN_DATA_INT32, nullptr,
                     axis);
    return index;
  }
  CudnnTensor Select(const CudnnTensor& x, const CudnnTensor& other, const CudnnTensor& where) {
    const CudnnTensor y = Square();
    graph_.Pointwise(CUDNN_POINTWISE_BINARY_SELECT, x, &other, y, CUDNN_DATA_FLOAT, &where);
    return y;
  }
  // x where row and column lie within the length, else `masked`.
  CudnnTensor MaskPadding(const CudnnTensor& x, const CudnnTensor& masked) {
    if (exact_) return x;
    const CudnnTensor row = Index(x, 2), column = Index(x, 3);
    const CudnnTensor rows = Square(CUDNN_DATA_BOOLEAN), columns = Square(CUDNN_DATA_BOOLEAN);
    const CudnnTensor both = Square(CUDNN_DATA_BOOLEAN);
    graph_.Pointwise(CUDNN_POINTWISE_CMP_LT, row, &length_, rows, CUDNN_DATA_BOOLEAN);
    graph_.Pointwise(CUDNN_POINTWISE_CMP_LT, column, &length_, columns, CUDNN_DATA_BOOLEAN);
    graph_.Pointwise(CUDNN_POINTWISE_LOGICAL_AND, rows, &columns, both, CUDNN_DATA_BOOLEAN);
    return Select(x, masked, both);
  }
  CudnnTensor Scores(const CudnnTensor& q, const CudnnTensor& kt, const CudnnTensor& scale,
                     const CudnnTensor& masked, bool zero_padding) {
    const CudnnTensor raw = Square(), scaled = Square();
    graph_.Product(q, kt, raw, Length(), Length(), nullptr, zero_padding);
    graph_.Pointwise(CUDNN_POINTWISE_MUL, raw, &scale, scaled);
    const CudnnTensor inside = MaskPadding(scaled, masked);
    const CudnnTensor row = Index(inside, 2), column = Index(inside, 3);
    const CudnnTensor sees = Square(CUDNN_DATA_BOOLEAN);
    graph_.Pointwise(CUDNN_POINTWISE_CMP_GE, row, &column, sees, CUDNN_DATA_BOOLEAN);
    return Select(inside, masked, sees);
  }
  CudnnTensor Transposed(const CudnnTensor& x) {
    const CudnnTensor t =
        graph_.Virtual({{n_, hq_, s_, s_}, {hq_ * s_ * s_, s_ * s_, 1, s_}}, CUDNN_DATA_BFLOAT16);
    graph_.Reshape(x, t);
    return t;
  }
  // y [n, hk, s, d] = xt [n, hq, s, s] times rows, query heads of one key-value head summed.
  void OverHeads(const CudnnTensor& xt, const CudnnTensor& rows, const CudnnTensor& y) {
    if (hq_ == hk_) {
      graph_.Product(xt, rows, y, Length(), nullptr, Length());
      return;
    }
    const CudnnTensor each =
        graph_.Virtual({{n_, hq_, s_, d_}, {hq_ * s_ * d_, s_ * d_, d_, 1}}, CUDNN_DATA_BFLOAT16);
    graph_.Product(xt, rows, each, Length(), nullptr, Length());
    graph_.Reduce(CUDNN_REDUCE_TENSOR_ADD, each, y);
  }
  bool Build(Plan* plan, std::string* error) {
    plan->ids = ids_;
    return graph_.Build(&plan->plan, &plan->workspace_bytes, error);
  }

  CudnnGraph graph_;
  const int64_t hk_, hq_, hq_all_, n_, s_, d_, qkv_, out_;
  const bool exact_;
  CudnnTensor offsets_qkv_, offsets_out_, length_;
  std::vector<int64_t> ids_;
};

class Library final : public CudnnAttention {
 public:
  Library(const CudnnLibrary* api, void* scratch, int64_t scratch_bytes, cudaStream_t stream)
      : api_(api),
        scratch_(static_cast<char*>(scratch)),
        scratch_bytes_(scratch_bytes),
        stream_(stream) {}
  ~Library() override {
    plans_.clear();
    if (handle_ != nullptr) api_->Destroy(handle_);
  }

  bool Start(std::string* error) {
    if (api_->GetVersion() < kOldestVersion) {
      *error = "cuDNN " + version() + " is older than 9.14, the first that was tried";
      return false;
    }
    if (api_->Create(&handle_) == CUDNN_STATUS_SUCCESS &&
        api_->SetStream(handle_, stream_) == CUDNN_STATUS_SUCCESS) {
      return true;
    }
    *error = api_->LastError();
    return false;
  }

  std::string version() const override {
    const size_t v = api_->GetVersion();  // 9.14.0: 91400
    return std::to_string(v / 10000) + "." + std::to_string(v / 100 % 100) + "." +
           std::to_string(v % 100);
  }

  bool Prepare(const CudnnAttentionShape& shape, int64_t* workspace_bytes,
               std::string* error) override {
    if (shape.sequences < 1 || (shape.sequences > 1 && !shape.exact)) {
      *error = std::to_string(shape.sequences) + " sequences a call that do not fill their class";
      return false;
    }
    if (ScratchBytes(shape.sequences * shape.Hq * shape.length_class) > scratch_bytes_) {
      *error = "more rows of heads than the scratch holds";
      return false;
    }
    if (shape.D > kMostHeadDim) {
      *error = "head dimension " + std::to_string(shape.D);
      return false;
    }
    Plan* const forward = Make(shape, true, error);
    if (forward == nullptr) return false;
    if (forward->workspace_bytes > kForwardWorkspaceBytes) {
      *error = "its forward wants a workspace of " + std::to_string(forward->workspace_bytes);
      return false;
    }
    *workspace_bytes = 0;
    if (shape.groups == 0) return true;
    Plan* const backward = Make(shape, false, error);
    if (backward == nullptr) return false;
    *workspace_bytes = backward->workspace_bytes;
    return true;
  }

  cudaError_t Forward(const AttentionForwardArgs& a, const CudnnAttentionShape& shape,
                      const CudnnSequence& s) override {
    const Plan* plan = Find(shape, true);
    if (plan == nullptr) return cudaErrorNotReady;
    if (!Takes(a, s)) return cudaErrorInvalidValue;
    cudaError_t status = WriteLengths(shape, s);
    if (status != cudaSuccess) return status;
    float scale = a.scale, masked = kMasked;
    const int64_t at = s.first * a.row_stride;
    status = Run(shape, *plan,
                 {&scale, &masked, Bf16(a.q, at), Bf16(a.k, at), Bf16(a.v, at),
                  Bf16(a.out, s.first * shape.Hq * shape.D), rows()},
                 forward_workspace(shape));
    if (status != cudaSuccess) return status;
    return StatisticsFromLibrary(Statistics(a.lse, a.T, shape, s), stream_);
  }

  cudaError_t Backward(const AttentionBackwardArgs& a, const CudnnAttentionShape& shape,
                       const CudnnSequence& s, void* workspace, int64_t workspace_bytes) override {
    const Plan* plan = Find(shape, false);
    if (plan == nullptr) return cudaErrorNotReady;
    if (!Takes(a, s) || plan->workspace_bytes > workspace_bytes ||
        a.grad_row_stride != a.row_stride) {
      return cudaErrorInvalidValue;
    }
    cudaError_t status = WriteLengths(shape, s);
    if (status != cudaSuccess) return status;
    status = StatisticsToLibrary(Statistics(const_cast<float*>(a.lse), a.T, shape, s), stream_);
    if (status != cudaSuccess) return status;
    float scale = a.scale, masked = kMasked, one = 1.f;
    const int64_t per_kv = shape.Hq / shape.Hkv;
    for (int64_t kv = 0; kv < shape.Hkv; kv += shape.groups) {
      const int64_t q = s.first * a.row_stride + kv * per_kv * shape.D;
      const int64_t k = s.first * a.row_stride + kv * shape.D;
      const int64_t o = s.first * shape.Hq * shape.D + kv * per_kv * shape.D;
      status = Run(shape, *plan,
                   {&scale, &masked, &one, Bf16(a.q, q), Bf16(a.k, k), Bf16(a.v, k), Bf16(a.out, o),
                    Bf16(a.dout, o), rows() + kv * per_kv * shape.length_class, Bf16(a.dq, q),
                    Bf16(a.dk, k), Bf16(a.dv, k)},
                   workspace);
      if (status != cudaSuccess) return status;
    }
    return cudaSuccess;
  }

  const std::string& last_error() const override { return last_error_; }

 private:
  using Key = std::tuple<bool, bool, int64_t, int64_t, int64_t, int64_t, int64_t, int64_t, int64_t>;

  static Key KeyOf(const CudnnAttentionShape& s, bool forward) {
    return {forward,    s.exact, s.length_class, s.Hq,
            s.Hkv,      s.D,     s.row_stride,   forward ? s.Hkv : s.groups,
            s.sequences};
  }
  const Plan* Find(const CudnnAttentionShape& shape, bool forward) const {
    const auto it = plans_.find(KeyOf(shape, forward));
    return it == plans_.end() ? nullptr : &it->second;
  }
  Plan* Make(const CudnnAttentionShape& shape, bool forward, std::string* error) {
    const Key key = KeyOf(shape, forward);
    if (const auto it = plans_.find(key); it != plans_.end()) return &it->second;
    AttentionGraph graph(api_, handle_, shape, forward ? shape.Hkv : shape.groups);
    Plan plan;
    if (!(forward ? graph.Forward(&plan, error) : graph.Backward(&plan, error))) return nullptr;
    return &plans_.emplace(key, std::move(plan)).first->second;
  }

  static void* Bf16(const void* base, int64_t elements) {
    return static_cast<char*>(const_cast<void*>(base)) + elements * 2;
  }
  // Scratch: offsets and length, [sequences, Hq, class] of lse, the forward's workspace.
  float* rows() const { return reinterpret_cast<float*>(scratch_ + kLengthBytes); }
  void* forward_workspace(const CudnnAttentionShape& s) const {
    return scratch_ + kLengthBytes + RoundUp256(s.sequences * s.Hq * s.length_class * 4);
  }
  CudnnStatistics Statistics(float* lse, int64_t T, const CudnnAttentionShape& shape,
                             const CudnnSequence& s) const {
    return {lse + s.first, rows(), T, shape.sequences, shape.Hq, s.length, shape.length_class};
  }
  template <typename Args>
  static bool Takes(const Args& a, const CudnnSequence& s) {
    return (a.window == 0 || a.window >= s.length) && a.soft_cap == 0.f;
  }

  cudaError_t WriteLengths(const CudnnAttentionShape& shape, const CudnnSequence& s) {
    if (s.length > shape.length_class || (shape.exact && s.length != shape.length_class)) {
      return cudaErrorInvalidValue;
    }
    if (shape.exact) return cudaSuccess;
    return WriteCudnnLengths(scratch_, s.length, shape.row_stride, shape.Hq * shape.D, stream_);
  }
  cudaError_t Run(const CudnnAttentionShape& shape, const Plan& plan, std::vector<void*> pointers,
                  void* workspace) {
    if (!shape.exact) {
      void* const lengths[] = {scratch_ + kCudnnOffsetsQkv, scratch_ + kCudnnOffsetsOut,
                               scratch_ + kCudnnLength};
      pointers.insert(pointers.begin(), std::begin(lengths), std::end(lengths));
    }
    cudnnBackendDescriptor_t d = nullptr;
    cudnnStatus_t status = api_->CreateDescriptor(CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR, &d);
    const CudnnDescriptor pack(api_, d);
    const auto set = [&](cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type,
                         int64_t count, const void* value) {
      if (status == CUDNN_STATUS_SUCCESS) status = api_->SetAttribute(d, name, type, count, value);
    };
    const int64_t count = static_cast<int64_t>(pointers.size());
    set(CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS, CUDNN_TYPE_INT64, count, plan.ids.data());
    set(CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS, CUDNN_TYPE_VOID_PTR, count, pointers.data());
    set(CUDNN_ATTR_VARIANT_PACK_WORKSPACE, CUDNN_TYPE_VOID_PTR, 1, &workspace);
    if (status == CUDNN_STATUS_SUCCESS) status = api_->Finalize(d);
    if (status == CUDNN_STATUS_SUCCESS) status = api_->Execute(handle_, plan.plan.get(), d);
    if (status == CUDNN_STATUS_SUCCESS) return cudaSuccess;
    last_error_ = api_->LastError();
    return cudaErrorLaunchFailure;
  }

  const CudnnLibrary* const api_;
  cudnnHandle_t handle_ = nullptr;
  char* const scratch_;
  const int64_t scratch_bytes_;
  const cudaStream_t stream_;
  std::map<Key, Plan> plans_;
  std::string last_error_;
};

}  // namespace

int64_t CudnnAttention::ScratchBytes(int64_t rows) {
  return kLengthBytes + RoundUp256(rows * 4) + kForwardWorkspaceBytes;
}

std::unique_ptr<CudnnAttention> CudnnAttention::Create(void* scratch, int64_t scratch_bytes,
                                                       cudaStream_t stream, std::string* error) {
  const CudnnLibrary* api = CudnnLibrary::Open(error);
  if (api == nullptr) return nullptr;
  auto made = std::make_unique<Library>(api, scratch, scratch_bytes, stream);
  return made->Start(error) ? std::move(made) : nullptr;
}

}  // namespace soup::kernels::cuda
