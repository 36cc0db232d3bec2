#include "engine/device/cuda_backend.h"

#include <cuda_runtime.h>
#include <sched.h>

#include <algorithm>
#include <cstring>
#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "engine/base/attention_library.h"
#include "engine/base/log.h"
#include "engine/base/status_macros.h"
#include "engine/device/cuda_device_use.h"
#include "engine/device/cuda_ops.h"
#include "engine/device/cuda_stopwatch.h"
#include "engine/device/host_mapping.h"
#include "kernels/cuda/gate_products.h"
#include "kernels/cuda/gemm.h"
#include "kernels/cuda/hopper_attention.h"
#include "kernels/cuda/nf4_dequant.h"
#include "kernels/cuda/optimizer.h"

namespace soup::engine {
namespace {

namespace cuda = kernels::cuda;

// The fixed block: part sizes, each a multiple of kArenaAlignment.
constexpr int64_t kGemmWorkspaceBytes = 32 << 20;  // what the library's guide gives sm_90
constexpr int64_t kPartialSumBytes = cuda::kSumSquaresPartials * sizeof(double);
constexpr int64_t kTilePoolBytes = 2 << 20;
// Pinned, for small results on their way to the host: larger ones are copied at once.
constexpr int64_t kResultPoolBytes = 4 << 20;
// Where cuDNN's deterministic backward has been measured, and is faster than our own.
constexpr int kCudnnMajor = 9;
// Code of its plans, about 0.6 MiB each: of some ten length classes.
constexpr int64_t kLibraryCodeBytes = 12 << 20;

struct CudaEventRep final : public EventRep {
  CudaEvent event;
  int64_t results = 0;  // results queued before the last record on the compute stream
};

std::string DeviceText(const cudaDeviceProp& p) {
  return absl::StrCat(absl::StrReplaceAll(p.name, {{"|", "/"}}), " sm_", p.major, p.minor, ", ",
                      p.multiProcessorCount, " SMs");
}

CudaEventRep& Rep(const Event& event) {
  SOUP_CHECK(event.rep() != nullptr);
  return static_cast<CudaEventRep&>(*event.rep());
}

// Waits until `query` stops answering "not ready": spins for what a step's kernels take, then
// sleeps between looks.
absl::Status WaitUntil(const std::function<cudaError_t()>& query, absl::Duration timeout,
                       absl::string_view what) {
  const absl::Time start = absl::Now();
  for (;;) {
    const cudaError_t reached = query();
    if (reached != cudaErrorNotReady) return CudaStatus(reached, what);
    const absl::Duration waited = absl::Now() - start;
    if (waited > timeout) {
      return absl::DeadlineExceededError(
          absl::StrCat(what, ": not done within ", absl::FormatDuration(timeout)));
    }
    if (waited < absl::Milliseconds(5)) {
      sched_yield();
    } else {
      absl::SleepFor(absl::Microseconds(50));
    }
  }
}

class Cuda final : public CudaOps {
 public:
  explicit Cuda(const CudaBackendOptions& options) : options_(options) {}

  ~Cuda() override {
    Synchronize(options_.wait_limit).IgnoreError();
    registrations_.Clear();
    cudnn_.reset();  // before its block and stream
  }

  absl::Status Start(const cudaDeviceProp& properties) {
    SOUP_ASSIGN_OR_RETURN(compute_, CudaStream::Create());
    SOUP_ASSIGN_OR_RETURN(copy_, CudaStream::Create());
    SOUP_ASSIGN_OR_RETURN(offload_, CudaStream::Create());
    SOUP_RETURN_IF_ERROR(CheckCode(properties));
    SOUP_ASSIGN_OR_RETURN(
        block_, CudaBlock::OnDevice(kGemmWorkspaceBytes + kPartialSumBytes + kTilePoolBytes));
    SOUP_ASSIGN_OR_RETURN(pinned_, CudaBlock::Pinned(kResultPoolBytes + kTilePoolBytes));
    partial_sums_ = reinterpret_cast<double*>(block_.data() + kGemmWorkspaceBytes);
    tiles_ = CudaAttentionTiles(attention_, block_.data() + kGemmWorkspaceBytes + kPartialSumBytes,
                                pinned_.data() + kResultPoolBytes, kTilePoolBytes);
    CudaGemms::Options gemms;
    gemms.profile_path = options_.gemm_profile_path;
    gemms.device = DeviceText(properties);
    gemms.use_heuristic = options_.heuristic_gemms;
    SOUP_ASSIGN_OR_RETURN(gemms_, CudaGemms::Create(block_.data(), kGemmWorkspaceBytes, gemms));
    if (properties.major == kCudnnMajor) SOUP_RETURN_IF_ERROR(OpenCudnn());
    if (cuda::HasGateProducts()) {
      fused_gate_rows_ = options_.fused_gate_rows.value_or(cuda::kFusedGateRows);
      if (const cudaError_t set = cuda::SetCacheAside(); set != cudaSuccess) {
        SOUP_LOG(kInfo, "cuda") << "no part of the L2 cache can be set aside: "
                                << cudaGetErrorString(set);
      }
    }
    int value = 0;
    cudaDeviceGetAttribute(&value, cudaDevAttrHostRegisterReadOnlySupported, options_.device);
    read_only_pins_ = value != 0;
    cudaDeviceGetAttribute(&value, cudaDevAttrCanUseHostPointerForRegisteredMem, options_.device);
    reads_pinned_ = value != 0;
    return Synchronize(options_.wait_limit);
  }

  const char* name() const override { return "cuda"; }
  DType weight_type() const override { return DType::kBF16; }

  absl::StatusOr<std::unique_ptr<Arena>> CreateArena(int64_t bytes) override {
    if (bytes < 0) return absl::InvalidArgumentError("an arena of negative size");
    SOUP_ASSIGN_OR_RETURN(CudaBlock made, CudaBlock::OnDevice(bytes));
    auto block = std::make_shared<CudaBlock>(std::move(made));
    Count(&BackendCounters::arena_bytes, bytes);
    std::function<void(std::byte*, int64_t)> poison;
    if (options_.poison_arena) {
      // Waits: the next user may be on either stream.
      poison = [this](std::byte* p, int64_t n) {
        Told(cudaDeviceSynchronize(), "poison");
        Told(cudaMemset(p, 0xff, static_cast<size_t>(n)), "poison");
        Told(cudaDeviceSynchronize(), "poison");
      };
    }
    return std::make_unique<Arena>(
        block->data(), bytes,
        [this, block, bytes]() mutable {
          // Work that is still queued may read it.
          Synchronize(options_.wait_limit).IgnoreError();
          block.reset();
          Count(&BackendCounters::arena_bytes, -bytes);
        },
        std::move(poison));
  }

  absl::StatusOr<std::unique_ptr<Arena>> CreateHostArena(int64_t bytes) override {
    SOUP_ASSIGN_OR_RETURN(HostMapping made, HostMapping::Create(bytes, /*populate=*/true));
    auto mapping = std::make_shared<HostMapping>(std::move(made));
    const cudaError_t pinned =
        options_.pin_host_memory
            ? cudaHostRegister(mapping->data(), static_cast<size_t>(mapping->mapped_bytes()),
                               cudaHostRegisterPortable)
            : cudaErrorNotSupported;
    if (pinned != cudaSuccess) {
      cudaGetLastError();
      SOUP_LOG(kWarn, "cuda") << bytes << " bytes of host memory cannot be pinned ("
                              << cudaGetErrorString(pinned)
                              << "): copies of what a pass keeps there will be slow. Raise the "
                                 "limit of locked memory (ulimit -l) of the worker";
    }
    return std::make_unique<Arena>(mapping->data(), bytes, [this, mapping, pinned]() mutable {
      Synchronize(options_.wait_limit).IgnoreError();  // copies may be under way
      if (pinned == cudaSuccess) cudaHostUnregister(mapping->data());
      mapping.reset();
    });
  }
  void RegisterHostMemory(const void* data, int64_t bytes) override {
    if (!options_.pin_host_memory) return Count(&BackendCounters::pageable_bytes, bytes);
    const absl::Status pinned = registrations_.Register(data, bytes, read_only_pins_);
    if (pinned.ok()) return;
    Count(&BackendCounters::pageable_bytes, bytes);
    if (warned_) return;
    warned_ = true;
    SOUP_LOG(kWarn, "cuda") << "host memory cannot be pinned (" << pinned.message()
                            << "): copies to the device will be slow. Raise the limit of locked "
                               "memory (ulimit -l) of the worker";
  }
  void UnregisterHostMemory() override {
    Synchronize(options_.wait_limit).IgnoreError();
    registrations_.Clear();
    absl::MutexLock lock(&mutex_);
    counters_.pageable_bytes = 0;
  }

  StreamView compute_stream() override { return {StreamKind::kCompute, compute_.get()}; }
  StreamView copy_stream() override { return {StreamKind::kCopy, copy_.get()}; }
  StreamView offload_stream() override { return {StreamKind::kOffload, offload_.get()}; }

  Event MakeEvent() override { return NewEvent(/*timing=*/false); }
  Event MakeTimedEvent() override { return NewEvent(/*timing=*/true); }
  absl::StatusOr<double> SecondsBetween(const Event& begin, const Event& end) override {
    float ms = 0;
    const cudaError_t told =
        cudaEventElapsedTime(&ms, Rep(begin).event.get(), Rep(end).event.get());
    if (told == cudaSuccess) return static_cast<double>(ms) * 1e-3;
    cudaGetLastError();
    return absl::FailedPreconditionError(
        absl::StrCat("two events cannot be compared: ", cudaGetErrorString(told)));
  }
  absl::Status Record(Event& event, StreamView stream) override {
    CudaEventRep& rep = Rep(event);
    if (stream.kind() == StreamKind::kCompute) rep.results = results_queued_;
    return Check(cudaEventRecord(rep.event.get(), Native(stream)), "cudaEventRecord");
  }
  absl::Status Wait(StreamView stream, const Event& event) override {
    const CudaEventRep& rep = Rep(event);
    // What is complete already stalls nobody; the wait is queued all the same, for the order of
    // memory.
    const bool timed = stream.kind() == StreamKind::kCompute &&
                       cudaEventQuery(rep.event.get()) == cudaErrorNotReady;
    if (timed) SOUP_RETURN_IF_ERROR(Keep(stalls_.Start(compute_.get())));
    SOUP_RETURN_IF_ERROR(
        Check(cudaStreamWaitEvent(Native(stream), rep.event.get(), 0), "cudaStreamWaitEvent"));
    if (timed) SOUP_RETURN_IF_ERROR(Keep(stalls_.Stop(compute_.get())));
    if (stalls_.full()) HarvestTimes();
    return absl::OkStatus();
  }
  absl::Status HostWait(const Event& event, absl::Duration timeout) override {
    const CudaEventRep& rep = Rep(event);
    SOUP_RETURN_IF_ERROR(
        Keep(WaitUntil([&rep] { return cudaEventQuery(rep.event.get()); }, timeout, "an event")));
    DeliverResults(rep.results);
    return status_;
  }
  absl::Status Synchronize(absl::Duration timeout) override {
    for (const CudaStream* stream : {&copy_, &offload_, &compute_}) {
      SOUP_RETURN_IF_ERROR(Keep(WaitUntil([stream] { return cudaStreamQuery(stream->get()); },
                                          timeout, stream == &compute_ ? "compute" : "copies")));
    }
    HarvestTimes();
    DeliverResults(results_queued_);
    return status_;
  }
  absl::Status status() const override { return status_; }
  BackendCounters counters() const override {
    absl::MutexLock lock(&mutex_);
    BackendCounters counters = counters_;
    counters.product_code_bytes = gemms_ == nullptr ? 0 : gemms_->code_bytes();
    return counters;
  }

  absl::Status CopyToDeviceAsync(void* dst, const void* src, int64_t bytes,
                                 StreamView stream) override {
    if (stream.kind() == StreamKind::kOffload)
      return Offload(dst, src, bytes, cudaMemcpyHostToDevice);
    const bool on_copy_stream = stream.kind() == StreamKind::kCopy;
    if (on_copy_stream) SOUP_RETURN_IF_ERROR(Keep(copies_.Start(copy_.get())));
    for (int64_t done = 0; done < bytes;) {
      const std::byte* from = static_cast<const std::byte*>(src) + done;
      const int64_t piece = registrations_.CopyBytes(from, bytes - done);
      SOUP_RETURN_IF_ERROR(
          Check(cudaMemcpyAsync(static_cast<std::byte*>(dst) + done, from,
                                static_cast<size_t>(piece), cudaMemcpyHostToDevice, Native(stream)),
                "copy to the device"));
      done += piece;
    }
    if (!on_copy_stream) return absl::OkStatus();
    SOUP_RETURN_IF_ERROR(Keep(copies_.Stop(copy_.get())));
    if (copies_.full()) HarvestTimes();
    absl::MutexLock lock(&mutex_);
    counters_.copy_bytes += bytes;
    return absl::OkStatus();
  }

  absl::Status CopyToHostAsync(void* dst, const void* src, int64_t bytes) override {
    if (bytes <= 0) return absl::OkStatus();
    if (results_.empty()) result_bytes_ = 0;
    if (result_bytes_ + bytes > kResultPoolBytes) {
      // Into memory that is not pinned: returns when it is done.
      return Check(cudaMemcpyAsync(dst, src, static_cast<size_t>(bytes), cudaMemcpyDeviceToHost,
                                   compute_.get()),
                   "copy to the host");
    }
    std::byte* staged = pinned_.data() + result_bytes_;
    result_bytes_ += ArenaRoundUp(bytes);
    results_.push_back({++results_queued_, dst, staged, bytes});
    return Check(cudaMemcpyAsync(staged, src, static_cast<size_t>(bytes), cudaMemcpyDeviceToHost,
                                 compute_.get()),
                 "copy to the host");
  }
  absl::Status OffloadAsync(void* dst, const void* src, int64_t bytes) override {
    return Offload(dst, src, bytes, cudaMemcpyDeviceToHost);
  }
  void CopyOnDevice(void* dst, const void* src, int64_t bytes) override {
    Told(cudaMemcpyAsync(dst, src, static_cast<size_t>(bytes), cudaMemcpyDeviceToDevice,
                         compute_.get()),
         "copy on the device");
  }
  void FillZero(void* dst, int64_t bytes) override {
    Told(cudaMemsetAsync(dst, 0, static_cast<size_t>(bytes), compute_.get()), "FillZero");
  }

 private:
  // A result on its way to the host.
  struct Result {
    int64_t number;
    void* dst;
    const std::byte* staged;
    int64_t bytes;
  };

  Event NewEvent(bool timing) {
    auto rep = std::make_shared<CudaEventRep>();
    absl::StatusOr<CudaEvent> event = CudaEvent::Create(timing);
    if (event.ok()) {
      rep->event = *std::move(event);
    } else {
      Keep(event.status()).IgnoreError();
    }
    return Event(std::move(rep));
  }

  // A machine without it runs our own kernels.
  absl::Status OpenCudnn() {
    const int64_t bytes = cuda::CudnnAttention::ScratchBytes(kAttentionLibraryMostRows);
    SOUP_ASSIGN_OR_RETURN(cudnn_block_, CudaBlock::OnDevice(bytes));
    std::string error;
    cudnn_ = cuda::CudnnAttention::Create(cudnn_block_.data(), bytes, compute_.get(), &error);
    if (cudnn_ != nullptr) {
      SOUP_ASSIGN_OR_RETURN(library_code_room_, CudaBlock::OnDevice(kLibraryCodeBytes));
      return absl::OkStatus();
    }
    cudnn_block_ = CudaBlock();
    SOUP_LOG(kInfo, "cuda") << "attention by our own kernels alone; cuDNN 9 would be faster from "
                            << (cuda::HasHopperAttention() ? kOwnForwardTokens + 1 : 2048)
                            << " tokens a sequence on: " << error;
    return absl::OkStatus();
  }

  void MakeRoomForLibraryCode() override { library_code_room_ = CudaBlock(); }

  static cudaStream_t Native(StreamView stream) {
    return static_cast<cudaStream_t>(stream.native());
  }
  // The first calls that need code for this card.
  absl::Status CheckCode(const cudaDeviceProp& properties) {
    cudaError_t loaded = cuda::QueryAttentionDevice(options_.device, &attention_);
    if (loaded == cudaSuccess) loaded = cuda::LoadNf4Tables();
    if (loaded == cudaSuccess) return absl::OkStatus();
    cudaGetLastError();
    return absl::FailedPreconditionError(absl::StrCat(
        "this build has no code for ", properties.name, " (sm_", properties.major, properties.minor,
        "): ", cudaGetErrorString(loaded),
        "; build with -DCMAKE_CUDA_ARCHITECTURES=", properties.major, properties.minor));
  }

  // The host's side lies in a host arena: pinned whole.
  absl::Status Offload(void* dst, const void* src, int64_t bytes, cudaMemcpyKind kind) {
    SOUP_RETURN_IF_ERROR(Keep(offloads_.Start(offload_.get())));
    SOUP_RETURN_IF_ERROR(Check(
        cudaMemcpyAsync(dst, src, static_cast<size_t>(bytes), kind, offload_.get()), "offload"));
    SOUP_RETURN_IF_ERROR(Keep(offloads_.Stop(offload_.get())));
    if (offloads_.full()) HarvestTimes();
    absl::MutexLock lock(&mutex_);
    (kind == cudaMemcpyDeviceToHost ? counters_.offload_out_bytes : counters_.offload_in_bytes) +=
        bytes;
    return absl::OkStatus();
  }

  void Count(int64_t BackendCounters::*what, int64_t bytes) {
    absl::MutexLock lock(&mutex_);
    counters_.*what += bytes;
  }

  void HarvestTimes() {
    const double stall = stalls_.Harvest(), busy = copies_.Harvest();
    const double offload = offloads_.Harvest();
    absl::MutexLock lock(&mutex_);
    counters_.stall_seconds += stall;
    counters_.copy_busy_seconds += busy;
    counters_.offload_busy_seconds += offload;
  }

  void DeliverResults(int64_t up_to) {
    while (!results_.empty() && results_.front().number <= up_to) {
      const Result& r = results_.front();
      std::memcpy(r.dst, r.staged, static_cast<size_t>(r.bytes));
      results_.pop_front();
    }
  }

  const CudaBackendOptions options_;
  CudaStream copy_;
  CudaStream offload_;
  CudaBlock block_;
  CudaBlock cudnn_block_;
  // Held while overhead is measured and given back before the first plans are made: their code is
  // overhead, and comes when a job does.
  CudaBlock library_code_room_;
  CudaBlock pinned_;
  bool read_only_pins_ = false;
  bool warned_ = false;
  std::deque<Result> results_;
  int64_t results_queued_ = 0;
  int64_t result_bytes_ = 0;
  CudaStopwatch stalls_;
  CudaStopwatch copies_;
  CudaStopwatch offloads_;
  mutable absl::Mutex mutex_;
  BackendCounters counters_ ABSL_GUARDED_BY(mutex_);
};

// CUDA says of a machine without a driver that its version is insufficient.
std::string WhyNone(cudaError_t error) {
  int driver = 0;
  if (error != cudaErrorInsufficientDriver) return cudaGetErrorString(error);
  if (cudaDriverGetVersion(&driver) != cudaSuccess || driver == 0) {
    cudaGetLastError();
    return "no NVIDIA driver is installed";
  }
  return absl::StrCat("the NVIDIA driver knows CUDA ", driver / 1000, ".", driver % 1000 / 10,
                      ", this build needs ", CUDART_VERSION / 1000, ".", CUDART_VERSION % 1000 / 10,
                      ": install a newer driver");
}

absl::Status NoDevice(absl::string_view why) {
  return absl::FailedPreconditionError(
      absl::StrCat("no CUDA device: ", why, "; use --backend cpu"));
}

}  // namespace

absl::StatusOr<CudaBackend> MakeCudaBackend(const CudaBackendOptions& options) {
  int count = 0;
  const cudaError_t counted = cudaGetDeviceCount(&count);
  if (counted != cudaSuccess) {
    cudaGetLastError();
    return NoDevice(WhyNone(counted));
  }
  if (options.device < 0 || options.device >= count) {
    return NoDevice(absl::StrCat("number ", options.device, " of ", count));
  }
  cudaDeviceProp properties;
  SOUP_RETURN_IF_ERROR(
      CudaStatus(cudaGetDeviceProperties(&properties, options.device), "cudaGetDeviceProperties"));
  SOUP_RETURN_IF_ERROR(CheckCudaCard(properties.name, properties.major, properties.minor));
  const CudaDeviceUse before(options.device);
  SOUP_RETURN_IF_ERROR(CudaStatus(cudaSetDevice(options.device), "cudaSetDevice"));
  auto backend = std::make_unique<Cuda>(options);
  SOUP_RETURN_IF_ERROR(backend->Start(properties));
  CudaBackend made;
  made.profile.backend = "cuda";
  made.profile.device_name = properties.name;
  made.profile.device_memory_bytes = static_cast<int64_t>(properties.totalGlobalMem);
  made.profile.overhead_bytes = before.GrownBy();
  made.profile.cpu_threads = 1;
  made.profile.blas_core =
      absl::StrCat("sm_", properties.major, properties.minor, ", ", properties.multiProcessorCount,
                   " SMs, cuBLASLt ", cuda::GemmLibrary::LibraryVersion());
  made.profile.fused_gate_rows = backend->fused_gate_rows();
  if (made.profile.fused_gate_rows > 0) {
    absl::StrAppend(&made.profile.blas_core, ", gates in products from ",
                    made.profile.fused_gate_rows, " rows");
  }
  made.profile.attention_library = backend->AttentionLibrary();
  made.backend = std::move(backend);
  return made;
}

absl::StatusOr<int64_t> CudaFreeDeviceBytes(int device) {
  size_t free = 0, total = 0;
  cudaError_t asked = cudaSetDevice(device);
  if (asked == cudaSuccess) asked = cudaMemGetInfo(&free, &total);
  if (asked != cudaSuccess) {
    cudaGetLastError();
    return NoDevice(cudaGetErrorString(asked));
  }
  return static_cast<int64_t>(free);
}

}  // namespace soup::engine
