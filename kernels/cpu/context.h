// CpuContext: what CPU ops run on. A persistent pool of threads and scratch of fixed size a thread,
// made once; ops allocate nothing. OpenBLAS runs on one thread, in whichever thread of the pool
// calls it: that count is the process's.
//
// Ops of one context must not run at the same time: the engine's compute thread owns it.
// Construction and destruction on any thread.
//
// No op's result depends on the pool's size or on which thread takes which item.
#ifndef SOUP_KERNELS_CPU_CONTEXT_H_
#define SOUP_KERNELS_CPU_CONTEXT_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

namespace soup::kernels::cpu {

// Largest head dimension that attention and rope accept; scratch is sized by it.
inline constexpr int64_t kMaxHeadDim = 256;

struct CpuContextOptions {
  int threads = 0;  // pool size, the caller's thread included; 0: hardware concurrency
  // Instruction set of the ops' loops: null for the best one here, else "base", "avx2" or "avx512"
  // (tests and benchmarks; the same bits on each). The best one too when this machine lacks it.
  const char* simd = nullptr;
};

struct SimdTable;

class CpuContext {
 public:
  explicit CpuContext(const CpuContextOptions& options = {});
  ~CpuContext();
  CpuContext(const CpuContext&) = delete;
  CpuContext& operator=(const CpuContext&) = delete;

  int threads() const;

  // For the ops' own use.

  // fn(begin, end, thread) over [0, n) cut into `threads()` contiguous parts whose lengths are
  // multiples of `grain` (all but the last). Runs on the caller alone when n <= grain.
  template <typename Fn>
  void ParallelRange(int64_t n, int64_t grain, const Fn& fn) {
    RunRange(n, grain, &CallRange<Fn>, &fn);
  }
  // fn(task, thread) for every task in [0, n), taken one by one by whichever thread is free.
  template <typename Fn>
  void ParallelTasks(int64_t n, const Fn& fn) {
    RunTasks(n, &CallTask<Fn>, &fn);
  }
  const SimdTable& simd() const;
  // 64-byte aligned, kScratchFloats long; one a thread.
  float* scratch(int thread);
  // Partial sums of reductions, kPartials long.
  double* partials();

  static constexpr int64_t kScratchFloats = 48 * 1024;
  static constexpr int64_t kPartials = 1024;

 private:
  using RangeFn = void (*)(const void* fn, int64_t begin, int64_t end, int thread);
  using TaskFn = void (*)(const void* fn, int64_t task, int thread);
  template <typename Fn>
  static void CallRange(const void* fn, int64_t begin, int64_t end, int thread) {
    (*static_cast<const Fn*>(fn))(begin, end, thread);
  }
  template <typename Fn>
  static void CallTask(const void* fn, int64_t task, int thread) {
    (*static_cast<const Fn*>(fn))(task, thread);
  }
  void RunRange(int64_t n, int64_t grain, RangeFn call, const void* fn);
  void RunTasks(int64_t n, TaskFn call, const void* fn);

  struct Impl;
  std::unique_ptr<Impl> impl_;
};

// OpenBLAS's core type ("Haswell", "SkylakeX", "Zen", ...): it decides Gemm's bits. Chosen once a
// process from the CPU, or by $OPENBLAS_CORETYPE.
std::string BlasCoreName();

// Widest vector instructions the ops use here: "avx512", "avx2" or "base". Decides no bits (the ops
// do the same operations in the same order on each); for `soupctl node` and benchmarks.
const char* SimdName();

// Ends the process with a message when a launcher's args break its contract: a bug of ours, never
// a user's input.
#define SOUP_KERNEL_CHECK(condition) \
  ((condition) ? void() : ::soup::kernels::cpu::KernelCheckFailed(#condition, __FILE__, __LINE__))
[[noreturn]] void KernelCheckFailed(const char* condition, const char* file, int line);

}  // namespace soup::kernels::cpu

#endif  // SOUP_KERNELS_CPU_CONTEXT_H_
