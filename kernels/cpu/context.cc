#include "kernels/cpu/context.h"

#include <cblas.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <mutex>
#include <new>
#include <thread>
#include <vector>

#include "kernels/cpu/simd_table.h"

namespace soup::kernels::cpu {
namespace {

int ResolveThreads(int asked) {
  if (asked > 0) return asked;
  return std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
}

const SimdTable* ResolveSimd(const char* name) {
  const SimdTable* table = name == nullptr ? nullptr : FindSimdTable(name);
  return table != nullptr ? table : BestSimdTable();
}

struct AlignedDelete {
  void operator()(float* p) const { ::operator delete (p, std::align_val_t{64}); }
};
using AlignedFloats = std::unique_ptr<float, AlignedDelete>;

AlignedFloats NewAlignedFloats(size_t n) {
  return AlignedFloats(
      static_cast<float*>(::operator new (n * sizeof(float), std::align_val_t{64})));
}

// How often a thread looks again before it sleeps: some ten microseconds, about what waking one
// costs. No yield: where other programs run it gives a whole time slice away.
constexpr int kLooks = 400;

void Pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

}  // namespace

// One job at a time. The caller publishes it by raising `generation`; each worker runs its part and
// lowers `running`; the caller runs part 0 and waits for `running` to reach 0.
struct CpuContext::Impl {
  int threads = 1;
  const SimdTable* simd = nullptr;
  AlignedFloats scratch;
  std::unique_ptr<double[]> partials;

  // The job. Written by the caller before `generation` rises, read by workers after.
  RangeFn range_call = nullptr;
  TaskFn task_call = nullptr;
  const void* fn = nullptr;
  int64_t n = 0;
  int64_t part = 0;  // length of a range part
  std::atomic<int64_t> next_task{0};

  std::atomic<uint32_t> generation{0};
  std::atomic<int> running{0};
  bool stopping = false;
  // Of those who sleep. (atomic::wait yields before it does.)
  std::mutex mutex;
  std::condition_variable started, ended;
  std::vector<std::thread> workers;

  void RunPart(int thread) {
    if (range_call != nullptr) {
      const int64_t begin = std::min(n, part * thread);
      const int64_t end = std::min(n, begin + part);
      if (begin < end) range_call(fn, begin, end, thread);
      return;
    }
    for (;;) {
      const int64_t task = next_task.fetch_add(1, std::memory_order_relaxed);
      if (task >= n) return;
      task_call(fn, task, thread);
    }
  }

  void WorkerLoop(int thread) {
    uint32_t seen = 0;
    for (;;) {
      const auto begun = [&] { return generation.load(std::memory_order_acquire) != seen; };
      if (!LookFor(begun)) {
        std::unique_lock lock(mutex);
        started.wait(lock, begun);
      }
      ++seen;
      if (stopping) return;
      RunPart(thread);
      if (running.fetch_sub(1, std::memory_order_acq_rel) != 1) continue;
      { const std::lock_guard lock(mutex); }  // the caller looks under it
      ended.notify_one();
    }
  }

  void RunOnAll() {
    running.store(threads - 1, std::memory_order_relaxed);
    Begin();
    RunPart(0);
    const auto done = [&] { return running.load(std::memory_order_acquire) == 0; };
    if (LookFor(done)) return;
    std::unique_lock lock(mutex);
    ended.wait(lock, done);
  }

  void Begin() {
    {
      const std::lock_guard lock(mutex);
      generation.fetch_add(1, std::memory_order_release);
    }
    started.notify_all();
  }

  template <typename Condition>
  static bool LookFor(const Condition& condition) {
    for (int i = 0; i < kLooks; ++i) {
      if (condition()) return true;
      Pause();
    }
    return false;
  }

  void Stop() {
    stopping = true;
    Begin();
    for (std::thread& worker : workers) worker.join();
    workers.clear();
  }
};

CpuContext::CpuContext(const CpuContextOptions& options) : impl_(new Impl) {
  impl_->threads = ResolveThreads(options.threads);
  impl_->simd = ResolveSimd(options.simd);
  impl_->scratch = NewAlignedFloats(static_cast<size_t>(impl_->threads) * kScratchFloats);
  impl_->partials.reset(new double[kPartials]);
  openblas_set_num_threads(1);
  try {
    for (int i = 1; i < impl_->threads; ++i) {
      impl_->workers.emplace_back([impl = impl_.get(), i] { impl->WorkerLoop(i); });
    }
  } catch (...) {
    impl_->Stop();  // the threads that did start
    throw;
  }
}

CpuContext::~CpuContext() { impl_->Stop(); }

int CpuContext::threads() const { return impl_->threads; }
const SimdTable& CpuContext::simd() const { return *impl_->simd; }
float* CpuContext::scratch(int thread) { return impl_->scratch.get() + thread * kScratchFloats; }
double* CpuContext::partials() { return impl_->partials.get(); }

void CpuContext::RunRange(int64_t n, int64_t grain, RangeFn call, const void* fn) {
  if (n <= 0) return;
  const int64_t threads = impl_->threads;
  if (threads == 1 || n <= grain) return call(fn, 0, n, 0);
  const int64_t grains = (n + grain - 1) / grain;
  impl_->range_call = call;
  impl_->fn = fn;
  impl_->n = n;
  impl_->part = (grains + threads - 1) / threads * grain;
  impl_->RunOnAll();
}

void CpuContext::RunTasks(int64_t n, TaskFn call, const void* fn) {
  if (n <= 0) return;
  if (impl_->threads == 1 || n == 1) {
    for (int64_t task = 0; task < n; ++task) call(fn, task, 0);
    return;
  }
  impl_->range_call = nullptr;
  impl_->task_call = call;
  impl_->fn = fn;
  impl_->n = n;
  impl_->next_task.store(0, std::memory_order_relaxed);
  impl_->RunOnAll();
}

std::string BlasCoreName() { return openblas_get_corename(); }

const char* SimdName() { return BestSimdTable()->name; }

void KernelCheckFailed(const char* condition, const char* file, int line) {
  std::fprintf(stderr, "%s:%d: kernel contract broken: %s\n", file, line, condition);
  std::abort();
}

}  // namespace soup::kernels::cpu
