#include "engine/device/cpu_backend.h"

#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <cstring>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "engine/base/file_system.h"
#include "engine/base/log.h"
#include "engine/base/status_macros.h"
#include "engine/device/cpu_copy_stream.h"
#include "engine/device/host_mapping.h"
#include "kernels/cpu/attention.h"
#include "kernels/cpu/context.h"
#include "kernels/cpu/elementwise.h"
#include "kernels/cpu/gemm.h"
#include "kernels/cpu/loss.h"
#include "kernels/cpu/moe.h"
#include "kernels/cpu/nf4_dequant.h"
#include "kernels/cpu/norm.h"
#include "kernels/cpu/optimizer.h"
#include "kernels/cpu/rope.h"
#include "kernels/lora_products.h"

namespace soup::engine {
namespace {

namespace cpu = kernels::cpu;

int64_t HostMemoryBytes() {
  return static_cast<int64_t>(sysconf(_SC_PHYS_PAGES)) * sysconf(_SC_PAGESIZE);
}

std::shared_ptr<CpuEventRep> Rep(const Event& event) {
  SOUP_CHECK(event.rep() != nullptr);
  return std::static_pointer_cast<CpuEventRep>(event.rep());
}

class CpuBackend final : public Backend {
 public:
  explicit CpuBackend(const CpuBackendOptions& options)
      : options_(options), context_({.threads = options.cpu_threads}), copies_(options) {}

  const char* name() const override { return "cpu"; }
  DType activation_type() const override { return DType::kF32; }
  absl::Status UseActivations(DType type, void*) override {
    if (type == DType::kF32) return absl::OkStatus();
    return absl::InvalidArgumentError("the CPU backend computes with fp32 activations only");
  }
  DType weight_type() const override { return DType::kF32; }

  absl::StatusOr<std::unique_ptr<Arena>> CreateArena(int64_t bytes) override {
    // Anonymous memory of any size is granted and the out-of-memory killer comes later.
    if (bytes < 0 || bytes > HostMemoryBytes()) {
      return absl::ResourceExhaustedError(absl::StrCat(
          "an arena of ", bytes, " bytes does not fit ", "the host's ", HostMemoryBytes()));
    }
    if (options_.free_bytes) {
      const int64_t free = options_.free_bytes() - arena_bytes_;
      if (bytes > free) {
        return absl::ResourceExhaustedError(
            absl::StrCat(bytes, " bytes do not fit on the device: ", free, " bytes are free; end ",
                         "other programs on it, or lower the budget"));
      }
    }
    const size_t mapped = static_cast<size_t>(ArenaRoundUp(bytes < 1 ? 1 : bytes));
    void* base = mmap(nullptr, mapped, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (base == MAP_FAILED) {
      return absl::ResourceExhaustedError(
          absl::StrCat("no memory for an arena of ", bytes, " bytes: ", std::strerror(errno)));
    }
    madvise(base, mapped, MADV_HUGEPAGE);  // Advice only.
    std::function<void(std::byte*, int64_t)> poison;
    if (options_.poison_arena) {
      poison = [](std::byte* p, int64_t n) { std::memset(p, 0xff, static_cast<size_t>(n)); };
    }
    arena_bytes_ += bytes;
    return std::make_unique<Arena>(
        static_cast<std::byte*>(base), bytes,
        [this, base, mapped, bytes] {
          munmap(base, mapped);
          arena_bytes_ -= bytes;
        },
        std::move(poison));
  }

  absl::StatusOr<std::unique_ptr<Arena>> CreateHostArena(int64_t bytes) override {
    SOUP_ASSIGN_OR_RETURN(HostMapping made, HostMapping::Create(bytes, /*populate=*/false));
    auto mapping = std::make_shared<HostMapping>(std::move(made));
    return std::make_unique<Arena>(mapping->data(), bytes,
                                   [mapping]() mutable { mapping.reset(); });
  }
  void RegisterHostMemory(const void*, int64_t) override {}
  void UnregisterHostMemory() override {}

  StreamView compute_stream() override { return {StreamKind::kCompute, nullptr}; }
  StreamView copy_stream() override { return {StreamKind::kCopy, nullptr}; }
  StreamView offload_stream() override { return {StreamKind::kOffload, nullptr}; }
  Event MakeEvent() override { return Event(std::make_shared<CpuEventRep>()); }
  // Every event here remembers its time: a clock's reading beside a mutex is not worth two kinds.
  Event MakeTimedEvent() override { return MakeEvent(); }
  absl::StatusOr<double> SecondsBetween(const Event& begin, const Event& end) override {
    return copies_.SecondsBetween(Rep(begin), Rep(end));
  }

  absl::Status Record(Event& event, StreamView stream) override {
    if (stream.kind() != StreamKind::kCompute) return copies_.Record(Rep(event));
    copies_.RecordByCaller(Rep(event));
    return absl::OkStatus();
  }
  absl::Status Wait(StreamView stream, const Event& event) override {
    // What the caller recorded is done; what the copy stream recorded lies before in its queue.
    if (stream.kind() != StreamKind::kCompute) return absl::OkStatus();
    return copies_.CallerWaits(Rep(event), options_.wait_limit, /*stall=*/true);
  }
  absl::Status HostWait(const Event& event, absl::Duration timeout) override {
    return copies_.CallerWaits(Rep(event), timeout, /*stall=*/false);
  }
  absl::Status Synchronize(absl::Duration timeout) override { return copies_.Drain(timeout); }
  absl::Status status() const override { return absl::OkStatus(); }  // Nothing here can fail.
  BackendCounters counters() const override {
    BackendCounters counters = copies_.counters();
    counters.arena_bytes = arena_bytes_;
    return counters;
  }

  absl::Status CopyToDeviceAsync(void* dst, const void* src, int64_t bytes,
                                 StreamView stream) override {
    if (stream.kind() != StreamKind::kCompute) {
      return copies_.Copy(dst, src, bytes,
                          stream.kind() == StreamKind::kOffload ? &BackendCounters::offload_in_bytes
                                                                : &BackendCounters::copy_bytes);
    }
    std::memcpy(dst, src, static_cast<size_t>(bytes));
    return absl::OkStatus();
  }
  absl::Status CopyToHostAsync(void* dst, const void* src, int64_t bytes) override {
    std::memcpy(dst, src, static_cast<size_t>(bytes));
    return absl::OkStatus();
  }
  absl::Status OffloadAsync(void* dst, const void* src, int64_t bytes) override {
    return copies_.Copy(dst, src, bytes, &BackendCounters::offload_out_bytes);
  }
  void CopyOnDevice(void* dst, const void* src, int64_t bytes) override {
    std::memcpy(dst, src, static_cast<size_t>(bytes));
  }
  void FillZero(void* dst, int64_t bytes) override {
    std::memset(dst, 0, static_cast<size_t>(bytes));
  }

  void GatherRows(const kernels::GatherRowsArgs& a) override { cpu::GatherRows(a, context_); }
  void Widen(const kernels::WidenArgs& a) override { cpu::Widen(a, context_); }
  void Nf4Dequant(const kernels::Nf4DequantArgs& a) override { cpu::Nf4Dequant(a, context_); }
  void RmsNormForward(const kernels::RmsNormForwardArgs& a) override {
    cpu::RmsNormForward(a, context_);
  }
  void RmsNormBackward(const kernels::RmsNormBackwardArgs& a) override {
    cpu::RmsNormBackward(a, context_);
  }
  void HeadNormForward(const kernels::HeadNormForwardArgs& a) override {
    cpu::HeadNormForward(a, context_);
  }
  void HeadNormBackward(const kernels::HeadNormBackwardArgs& a) override {
    cpu::HeadNormBackward(a, context_);
  }
  void AddBias(const kernels::AddBiasArgs& a) override { cpu::AddBias(a, context_); }
  void Rope(const kernels::RopeArgs& a) override { cpu::Rope(a, context_); }
  void AttentionForward(const kernels::AttentionForwardArgs& a) override {
    cpu::AttentionForward(a, context_);
  }
  void AttentionBackward(const kernels::AttentionBackwardArgs& a,
                         const AttentionScratch&) override {
    cpu::AttentionBackward(a, context_);
  }
  void SwigluForward(const kernels::SwigluForwardArgs& a) override {
    cpu::SwigluForward(a, context_);
  }
  void SwigluBackward(const kernels::SwigluBackwardArgs& a) override {
    cpu::SwigluBackward(a, context_);
  }
  void Gemm(const kernels::GemmArgs& a) override { cpu::Gemm(a, context_); }
  void LoraUp(const kernels::LoraUpArgs& a) override {
    SOUP_KERNEL_CHECK(kernels::LoraAddendFits(a));
    if (kernels::LoraAddendFirst(a)) Axpy(kernels::AddendOf(a));
    Products(a);
  }
  void LoraBack(const kernels::LoraBackArgs& a) override { Products(a); }
  void LoraGrad(const kernels::LoraGradArgs& a) override { Products(a); }
  bool chooses_gemms() const override { return false; }
  absl::StatusOr<GemmPreparation> PrepareGemms(absl::Span<const kernels::GemmArgs>,
                                               const std::function<absl::Status()>&) override {
    return GemmPreparation();
  }
  absl::Status PrepareAttention(absl::string_view library,
                                absl::Span<const AttentionPreparation>) override {
    return absl::FailedPreconditionError(
        absl::StrCat("attention was planned for ", library, "; the CPU backend has its own alone"));
  }
  void Axpy(const kernels::AxpyArgs& a) override { cpu::Axpy(a, context_); }
  void Dropout(const kernels::DropoutArgs& a) override { cpu::Dropout(a, context_); }
  void GatherActRows(const kernels::GatherActRowsArgs& a) override {
    cpu::GatherActRows(a, context_);
  }
  void ScatterActRows(const kernels::ScatterActRowsArgs& a) override {
    cpu::ScatterActRows(a, context_);
  }
  void LossSlice(const kernels::LossSliceArgs& a) override { cpu::LossSlice(a, context_); }
  void LossTargetRows(const kernels::LossTargetRowsArgs& a) override {
    cpu::LossTargetRows(a, context_);
  }
  void LossFinish(const kernels::LossFinishArgs& a) override { cpu::LossFinish(a, context_); }
  void Route(const kernels::RouteArgs& a) override { cpu::Route(a, context_); }
  void RouteBackward(const kernels::RouteBackwardArgs& a) override {
    cpu::RouteBackward(a, context_);
  }
  void ListExperts(const kernels::ListExpertsArgs& a) override { cpu::ListExperts(a, context_); }
  void GatherEntries(const kernels::GatherEntriesArgs& a) override {
    cpu::GatherEntries(a, context_);
  }
  void ScatterEntries(const kernels::ScatterEntriesArgs& a) override {
    cpu::ScatterEntries(a, context_);
  }
  void EntryGrad(const kernels::EntryGradArgs& a) override { cpu::EntryGrad(a, context_); }
  void AddF32(const kernels::AddF32Args& a) override { cpu::AddF32(a, context_); }
  void SumSquares(const kernels::SumSquaresArgs& a) override { cpu::SumSquares(a, context_); }
  void AdamW(const kernels::AdamWArgs& a) override { cpu::AdamW(a, context_); }
  void NarrowToBf16(const float* src, void* dst, int64_t n) override {
    for (int64_t i = 0; i < n; ++i) static_cast<uint16_t*>(dst)[i] = F32ToBf16(src[i]);
  }

 private:
  template <typename Args>
  void Products(const Args& a) {
    kernels::ForEachProduct(a, sizeof(float),
                            [this](const kernels::GemmArgs& g) { cpu::Gemm(g, context_); });
  }

  const CpuBackendOptions options_;
  cpu::CpuContext context_;
  CpuCopyStream copies_;
  std::atomic<int64_t> arena_bytes_{0};
};

}  // namespace

int64_t CpuBackendOverheadBytes(int cpu_threads) {
  return cpu_threads * cpu::CpuContext::kScratchFloats * static_cast<int64_t>(sizeof(float)) +
         cpu::CpuContext::kPartials * static_cast<int64_t>(sizeof(double));
}

std::unique_ptr<Backend> MakeCpuBackend(const CpuBackendOptions& options) {
  return std::make_unique<CpuBackend>(options);
}

}  // namespace soup::engine
