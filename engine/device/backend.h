// Backend: what a pass runs on. One executor drives it, on the CPU and on CUDA alike.
//
// A backend has one compute stream, on which every launcher below runs in call order, one copy
// stream, on which slabs move from the host store into slots, and one offload stream, on which what
// a pass keeps in host memory goes there and comes back. The CPU backend computes inline in the
// calling thread (its compute stream *is* the caller) and copies in a thread of its own, the
// offload stream's copies too.
//
// Launchers forward an args struct of kernels/ops.h and return nothing: an error of a launch or of
// the device sticks and is told by status() (cheap, asked once a layer) and by Synchronize().
// Pointers in args are device pointers of the arena (host pointers on the CPU) unless ops.h says
// otherwise; attention's cu_seqlens are host memory on every backend.
//
// Implementations: cpu_backend, cuda_backend, gemm_recorder.h, and the decorators' base
// bench/forwarding_backend.h: a new virtual belongs in all four (and in bench/op_timer.h, where
// step times are told by class of op).
//
// Thread-safety: one thread drives a backend; counters() may be read from any thread. Events and
// the arena must not outlive it.
#ifndef SOUP_ENGINE_DEVICE_BACKEND_H_
#define SOUP_ENGINE_DEVICE_BACKEND_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "engine/base/dtype.h"
#include "engine/device/arena.h"
#include "engine/device/event.h"
#include "kernels/gate_ops.h"
#include "kernels/lora_products.h"
#include "kernels/ops.h"
#include "kernels/qkv_ops.h"

namespace soup::engine {

// What a device's attention backward needs beyond its args: fp32 scratch for partial dk and dv, and
// the most blocks that may share the query heads of one key-value head (it decides bits, and is a
// function of the item). None on the CPU.
struct AttentionScratch {
  float* partials = nullptr;
  int64_t most_split = 1;
};

// Sequences of one length class, as many a call, as an attention library must be ready for them.
// `groups`: key-value heads a backward call, 0: forward only; `workspace_bytes`: what the plan
// gives such a call.
struct AttentionPreparation {
  int64_t length_class = 0;
  bool exact = false;  // of just that length
  int64_t heads = 0, kv_heads = 0, head_dim = 0, row_stride = 0;
  int64_t groups = 0;
  int64_t workspace_bytes = 0;
  int64_t sequences = 1;  // a call
};

// Sums since the backend was made (a pass's share is a difference of two readings), and what it
// holds now.
struct BackendCounters {
  int64_t copy_bytes = 0;         // host -> device on the copy stream
  double copy_busy_seconds = 0;   // time in which the copy stream moved bytes
  double stall_seconds = 0;       // time in which compute waited for a copy
  int64_t offload_out_bytes = 0;  // to host memory on the offload stream
  int64_t offload_in_bytes = 0;   // and back
  double offload_busy_seconds = 0;
  int64_t arena_bytes = 0;     // now: of the arenas that live
  int64_t pageable_bytes = 0;  // now: told of by RegisterHostMemory, and could not be pinned
  // Code of products that PrepareGemms has put on the device, of candidates that it timed and did
  // not take too: it stays until the process ends. What others took meanwhile counts in.
  int64_t product_code_bytes = 0;
};

// What PrepareGemms has done.
struct GemmPreparation {
  int64_t shapes = 0;       // different ones among those asked for
  int64_t tuned = 0;        // of these, timed now; the others were known
  double seconds = 0;       // of timing
  std::string fingerprint;  // of the algorithms of all of them; empty where there is no choice
};

class Backend {
 public:
  virtual ~Backend() = default;

  virtual const char* name() const = 0;  // "cpu" | "cuda", as in NumericPlan::backend
  // Type of activations ("act") and of a GEMM's weight operand ("wt") of kernels/ops.h.
  virtual DType activation_type() const = 0;
  virtual DType weight_type() const = 0;
  // What "act" is from now on, for PrepareGemms too: a property of the pass, since one backend
  // serves the passes of several models. At first it is weight_type(). `product_scratch`: device
  // memory of ProductScratchBytes (engine/plan/pass_buffers.h) of that type, used by products in
  // stream order; null where that is 0, or where no product will be launched. Errors:
  // InvalidArgument (a type that this backend has not).
  virtual absl::Status UseActivations(DType type, void* product_scratch) = 0;

  // Memory
  // ----------------------------------------------------------------------------------------- The
  // process's one device allocation. Errors: ResourceExhausted, with the bytes asked for.
  virtual absl::StatusOr<std::unique_ptr<Arena>> CreateArena(int64_t bytes) = 0;
  // Tells of host memory that copies and GatherRows will read, so that a device can pin it; it must
  // stay mapped until Unregister. Never fails: memory that cannot be pinned is read more slowly,
  // and a warning says so. Nothing on the CPU.
  virtual void RegisterHostMemory(const void* data, int64_t bytes) = 0;
  virtual void UnregisterHostMemory() = 0;  // all of it
  // Host memory of the backend's own, read and written by copies: pinned where there is a device
  // (with a warning where that fails). Errors: ResourceExhausted, with the bytes asked for and
  // those available.
  virtual absl::StatusOr<std::unique_ptr<Arena>> CreateHostArena(int64_t bytes) = 0;

  // Streams and events
  // -----------------------------------------------------------------------------
  virtual StreamView compute_stream() = 0;
  virtual StreamView copy_stream() = 0;
  virtual StreamView offload_stream() = 0;
  virtual Event MakeEvent() = 0;
  // An event that remembers when it was reached: for measuring, where plain ones are cheaper.
  virtual Event MakeTimedEvent() = 0;
  // Seconds from `begin` to `end`, both timed and reached. Errors: FailedPrecondition (they are
  // not).
  virtual absl::StatusOr<double> SecondsBetween(const Event& begin, const Event& end) = 0;
  // Marks the stream's present end. Errors: DeadlineExceeded (the copy queue stays full).
  virtual absl::Status Record(Event& event, StreamView stream) = 0;
  // What `stream` is given from now on waits for the event's last record. On the compute stream
  // the time waited counts as stall; on the CPU the caller waits here. Errors: DeadlineExceeded
  // when the wait limit of the backend runs out.
  virtual absl::Status Wait(StreamView stream, const Event& event) = 0;
  // The caller waits. Errors: DeadlineExceeded.
  virtual absl::Status HostWait(const Event& event, absl::Duration timeout) = 0;
  // Waits until all streams are idle and tells the sticky error, if any.
  virtual absl::Status Synchronize(absl::Duration timeout) = 0;
  virtual absl::Status status() const = 0;
  virtual BackendCounters counters() const = 0;

  // Copies
  // ----------------------------------------------------------------------------------------- `src`
  // is host memory and must stay unchanged until the copy is done. On the compute stream the copy
  // is ordered with the launchers. Errors: DeadlineExceeded (the copy queue stays full).
  virtual absl::Status CopyToDeviceAsync(void* dst, const void* src, int64_t bytes,
                                         StreamView stream) = 0;
  // Compute stream. Done when a later Synchronize or HostWait returns.
  virtual absl::Status CopyToHostAsync(void* dst, const void* src, int64_t bytes) = 0;
  // Offload stream; `dst` lies in a host arena. Errors: DeadlineExceeded (the queue stays full).
  virtual absl::Status OffloadAsync(void* dst, const void* src, int64_t bytes) = 0;
  virtual void CopyOnDevice(void* dst, const void* src, int64_t bytes) = 0;
  virtual void FillZero(void* dst, int64_t bytes) = 0;

  // Ops (kernels/ops.h)
  // ----------------------------------------------------------------------------
  virtual void GatherRows(const kernels::GatherRowsArgs& args) = 0;
  virtual void Widen(const kernels::WidenArgs& args) = 0;
  virtual void Nf4Dequant(const kernels::Nf4DequantArgs& args) = 0;
  virtual void RmsNormForward(const kernels::RmsNormForwardArgs& args) = 0;
  virtual void RmsNormBackward(const kernels::RmsNormBackwardArgs& args) = 0;
  virtual void HeadNormForward(const kernels::HeadNormForwardArgs& args) = 0;
  virtual void HeadNormBackward(const kernels::HeadNormBackwardArgs& args) = 0;
  virtual void AddBias(const kernels::AddBiasArgs& args) = 0;
  virtual void Rope(const kernels::RopeArgs& args) = 0;
  virtual void AttentionForward(const kernels::AttentionForwardArgs& args) = 0;
  virtual void AttentionBackward(const kernels::AttentionBackwardArgs& args,
                                 const AttentionScratch& scratch) = 0;
  // The same, then Rope on dq and dk (`turn`: over them, all rows, inverse), in one pass where a
  // backend can.
  virtual void AttentionBackwardTurned(const kernels::AttentionBackwardArgs& args,
                                       const AttentionScratch& scratch,
                                       const kernels::RopeArgs& turn) {
    AttentionBackward(args, scratch);
    Rope(turn);
  }
  virtual void SwigluForward(const kernels::SwigluForwardArgs& args) = 0;
  virtual void SwigluBackward(const kernels::SwigluBackwardArgs& args) = 0;
  virtual void Gemm(const kernels::GemmArgs& args) = 0;
  // One op after the other where a backend has nothing better.
  virtual void GateUp(const kernels::GateUpArgs& args) {
    kernels::ForEachOp(args, [this](const auto& op) { Launch(op); });
  }
  virtual void DownBackward(const kernels::DownBackwardArgs& args) {
    kernels::ForEachOp(args, [this](const auto& op) { Launch(op); });
  }
  virtual void AdaptedProduct(const kernels::AdaptedProductArgs& args) {
    kernels::ForEachOp(args, [this](const auto& op) { Launch(op); });
  }
  virtual void TurnedProduct(const kernels::TurnedProductArgs& args) {
    kernels::ForEachOp(args, [this](const auto& op) { Launch(op); });
  }
  // From how many rows on those four may be kernels of their own, which ask for no Gemm
  // (kernels::GateProductsTaken, AdaptedProductTaken, TurnedProductTaken; act bf16); 0: never.
  virtual int64_t fused_gate_rows() const { return 0; }
  // False for a backend that runs nothing: what it copies to the host is not written.
  virtual bool computes() const { return true; }
  // Whether products run by algorithms that PrepareGemms must have chosen.
  virtual bool chooses_gemms() const = 0;
  // Before a run: makes sure that each of these products (pointers and alpha do not matter) has an
  // algorithm, timing what has none, so that Gemm never chooses. Operands take device memory for
  // the call's length, about what a pass of these products takes: `make_room` is called before;
  // null: the memory is free, and then the code of every product is loaded too. Waits for the
  // device. Nothing to do where chooses_gemms() is false. Errors: ResourceExhausted (no memory for
  // operands), FailedPrecondition (a kept choice that the library refuses), those of the file that
  // keeps the choices, and of `make_room`.
  virtual absl::StatusOr<GemmPreparation> PrepareGemms(
      absl::Span<const kernels::GemmArgs> products,
      const std::function<absl::Status()>& make_room) = 0;
  virtual void LoraUp(const kernels::LoraUpArgs& args) = 0;
  // One after the other where a backend has nothing better.
  virtual void LoraUpRope(const kernels::LoraUpRopeArgs& args) {
    LoraUp(args.up);
    Rope(args.rope);
  }
  // As the ops it is made of where act is fp32; a backend with other activations has its own.
  virtual void QkvFinish(const kernels::QkvFinishArgs& args) {
    kernels::ForEachOp(args, [this](const auto& op) { Launch(op); });
  }
  virtual void LoraBack(const kernels::LoraBackArgs& args) = 0;
  virtual void LoraGrad(const kernels::LoraGradArgs& args) = 0;
  // As a norm and a product where a backend has nothing better.
  virtual void LoraNormedGrad(const kernels::LoraNormedGradArgs& args) {
    RmsNormForward(kernels::NormOf(args));
    Gemm(kernels::ProductOf(args));
  }
  // Before a run: makes the library's execution plans for these sequences, so that attention never
  // makes one. Errors: FailedPrecondition (the backend has not that library), Internal (it refuses
  // a shape, or wants more workspace than the plan gives).
  virtual absl::Status PrepareAttention(absl::string_view library,
                                        absl::Span<const AttentionPreparation> sequences) = 0;
  virtual void Axpy(const kernels::AxpyArgs& args) = 0;
  virtual void Dropout(const kernels::DropoutArgs& args) = 0;
  virtual void GatherActRows(const kernels::GatherActRowsArgs& args) = 0;
  virtual void ScatterActRows(const kernels::ScatterActRowsArgs& args) = 0;
  virtual void LossSlice(const kernels::LossSliceArgs& args) = 0;
  virtual void LossTargetRows(const kernels::LossTargetRowsArgs& args) = 0;
  virtual void LossFinish(const kernels::LossFinishArgs& args) = 0;
  virtual void Route(const kernels::RouteArgs& args) = 0;
  virtual void RouteBackward(const kernels::RouteBackwardArgs& args) = 0;
  virtual void ListExperts(const kernels::ListExpertsArgs& args) = 0;
  virtual void GatherEntries(const kernels::GatherEntriesArgs& args) = 0;
  virtual void ScatterEntries(const kernels::ScatterEntriesArgs& args) = 0;
  virtual void EntryGrad(const kernels::EntryGradArgs& args) = 0;
  virtual void AddF32(const kernels::AddF32Args& args) = 0;
  virtual void SumSquares(const kernels::SumSquaresArgs& args) = 0;
  virtual void AdamW(const kernels::AdamWArgs& args) = 0;
  // dst[i] = src[i] rounded to bf16, to nearest even: the operand copy of fp32 weights where
  // activations are bf16.
  virtual void NarrowToBf16(const float* src, void* dst, int64_t n) = 0;

 private:
  void Launch(const kernels::AddBiasArgs& args) { AddBias(args); }
  void Launch(const kernels::GemmArgs& args) { Gemm(args); }
  void Launch(const kernels::SwigluForwardArgs& args) { SwigluForward(args); }
  void Launch(const kernels::SwigluBackwardArgs& args) { SwigluBackward(args); }
  void Launch(const kernels::LoraUpArgs& args) { LoraUp(args); }
  void Launch(const kernels::LoraUpRopeArgs& args) { LoraUpRope(args); }
  void Launch(const kernels::HeadNormForwardArgs& args) { HeadNormForward(args); }
  void Launch(const kernels::RopeArgs& args) { Rope(args); }
};

}  // namespace soup::engine

#endif  // SOUP_ENGINE_DEVICE_BACKEND_H_
