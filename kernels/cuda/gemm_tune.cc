// The choice of an algorithm by timing.
#include <algorithm>
#include <functional>
#include <utility>
#include <vector>

#include "kernels/cuda/gemm.h"
#include "kernels/cuda/gemm_rep.h"
#include "kernels/cuda/random_fill.h"

namespace soup::kernels::cuda {
namespace {

constexpr float kHopeless = 1.3f;  // slower than the fastest by this in one run: not timed further
constexpr float kTie = 1.01f;      // a difference that another run would not show again
// A product that runs for so long, and its like around it, draws all the power that the card may:
// its clock then follows from what each algorithm draws, which a short timing does not see. There
// the library's order has been the better guide (docs/NUMERICS.md, "GEMM algorithms").
constexpr float kPowerBoundMs = 0.1f;
constexpr float kPowerTie = 1.08f;
constexpr float kRoundsMs = 12.f;  // how long the contenders are timed
constexpr int kLeastRounds = 3, kMostRounds = 9;
constexpr float kShortMs = 0.05f;       // what is shorter runs several times a timing
constexpr int64_t kSpinCycles = 12000;  // of a launch and its events on the host, on a fast device

class Events {
 public:
  explicit Events(size_t n) {
    events_.reserve(n);
    for (size_t i = 0; i < n && error_ == cudaSuccess; ++i) {
      cudaEvent_t event = nullptr;
      error_ = cudaEventCreate(&event);
      if (error_ == cudaSuccess) events_.push_back(event);
    }
  }
  ~Events() {
    for (cudaEvent_t event : events_) cudaEventDestroy(event);
  }
  Events(const Events&) = delete;
  Events& operator=(const Events&) = delete;
  cudaError_t error() const { return error_; }
  cudaEvent_t operator[](size_t i) const { return events_[i]; }
  float Ms(size_t begin, size_t end) const {
    float ms = 0.f;
    return cudaEventElapsedTime(&ms, events_[begin], events_[end]) == cudaSuccess ? ms : -1.f;
  }

 private:
  cudaError_t error_ = cudaSuccess;
  std::vector<cudaEvent_t> events_;
};

struct Contender {
  cublasLtMatmulAlgo_t algorithm;
  float ms = 0.f;
};

// One product's candidates, from the library's list to the fastest that repeats itself.
class Tuner {
 public:
  Tuner(const GemmArgs& args, cudaStream_t stream,
        std::function<cublasStatus_t(const cublasLtMatmulAlgo_t&)> run, void* scratch)
      : args_(args), stream_(stream), run_(std::move(run)), scratch_(scratch) {}

  // Drops what does not run and what is far behind. The first run of each loads its code.
  cudaError_t FirstLook(const std::vector<cublasLtMatmulHeuristicResult_t>& found) {
    const Events events(2);
    if (events.error() != cudaSuccess) return events.error();
    for (const cublasLtMatmulHeuristicResult_t& candidate : found) {
      if (run_(candidate.algo) != CUBLAS_STATUS_SUCCESS) continue;
      cudaEventRecord(events[0], stream_);
      if (run_(candidate.algo) != CUBLAS_STATUS_SUCCESS) continue;
      cudaEventRecord(events[1], stream_);
      const cudaError_t error = cudaStreamSynchronize(stream_);
      if (error != cudaSuccess) return error;
      contenders_.push_back({candidate.algo, events.Ms(0, 1)});
    }
    if (contenders_.empty()) return cudaErrorNotSupported;
    const float limit = Fastest() * kHopeless;
    contenders_.erase(std::remove_if(contenders_.begin(), contenders_.end(),
                                     [limit](const Contender& c) { return c.ms > limit; }),
                      contenders_.end());
    return cudaSuccess;
  }

  // In turns, so that a clock that drifts meets all of them: the median of the rounds.
  cudaError_t Rounds() {
    float one_round = 0.f;
    for (const Contender& c : contenders_) one_round += c.ms;
    const int runs = Fastest() < kShortMs ? 4 : 1;
    const int rounds = std::clamp(static_cast<int>(kRoundsMs / std::max(one_round * runs, 1e-3f)),
                                  kLeastRounds, kMostRounds);
    const size_t n = contenders_.size();
    const Events events(2 * n * rounds);
    if (events.error() != cudaSuccess) return events.error();
    cudaError_t error = Spin(kSpinCycles * static_cast<int64_t>(n) * rounds * (runs + 2), stream_);
    for (int round = 0; round < rounds && error == cudaSuccess; ++round) {
      for (size_t i = 0; i < n && error == cudaSuccess; ++i) {
        const size_t at = 2 * (round * n + i);
        cudaEventRecord(events[at], stream_);
        for (int r = 0; r < runs; ++r) error = FromCublas(run_(contenders_[i].algorithm));
        cudaEventRecord(events[at + 1], stream_);
      }
    }
    if (error == cudaSuccess) error = cudaStreamSynchronize(stream_);
    if (error != cudaSuccess) return error;
    for (size_t i = 0; i < n; ++i) {
      std::vector<float> times;
      for (int round = 0; round < rounds; ++round) {
        const size_t at = 2 * (round * n + i);
        times.push_back(events.Ms(at, at + 1));
      }
      std::nth_element(times.begin(), times.begin() + rounds / 2, times.end());
      contenders_[i].ms = times[rounds / 2] / static_cast<float>(runs);
    }
    return cudaSuccess;
  }

  // The first, in the library's order, that is as fast as the fastest and repeats its bits.
  cudaError_t Choose(cublasLtMatmulAlgo_t* out) {
    while (!contenders_.empty()) {
      const float fastest = Fastest();
      const float limit = fastest * (fastest < kPowerBoundMs ? kTie : kPowerTie);
      const auto best = std::find_if(contenders_.begin(), contenders_.end(),
                                     [limit](const Contender& c) { return c.ms <= limit; });
      bool repeats = false;
      const cudaError_t error = Repeats(best->algorithm, &repeats);
      if (error != cudaSuccess) return error;
      if (repeats) {
        *out = best->algorithm;
        return cudaSuccess;
      }
      contenders_.erase(best);
    }
    return cudaErrorNotSupported;
  }

 private:
  float Fastest() const {
    float least = contenders_.front().ms;
    for (const Contender& c : contenders_) least = std::min(least, c.ms);
    return least;
  }

  cudaError_t Repeats(const cublasLtMatmulAlgo_t& algorithm, bool* out) {
    unsigned long long sums[2] = {};
    for (unsigned long long& sum : sums) {
      const int64_t n = (args_.M - 1) * args_.ldc + args_.N;
      const bool f32 = args_.c_type == Operand::kF32;
      cudaError_t error = f32 ? FillRandomF32(static_cast<float*>(args_.C), n, 7, stream_)
                              : FillRandomBf16(args_.C, n, 7, stream_);
      if (error == cudaSuccess) error = FromCublas(run_(algorithm));
      // The workspace is free again.
      auto* result = static_cast<unsigned long long*>(scratch_);
      if (error == cudaSuccess) error = SumOfBits(args_.C, n * (f32 ? 4 : 2), result, stream_);
      if (error == cudaSuccess) {
        error = cudaMemcpyAsync(&sum, result, sizeof sum, cudaMemcpyDeviceToHost, stream_);
      }
      if (error == cudaSuccess) error = cudaStreamSynchronize(stream_);
      if (error != cudaSuccess) return error;
    }
    *out = sums[0] == sums[1];
    return cudaSuccess;
  }

  const GemmArgs& args_;
  const cudaStream_t stream_;
  const std::function<cublasStatus_t(const cublasLtMatmulAlgo_t&)> run_;
  void* const scratch_;
  std::vector<Contender> contenders_;
};

}  // namespace

cudaError_t GemmLibrary::Tune(const GemmArgs& args, int candidates, cudaStream_t stream) {
  if (!GemmSupported(args)) return cudaErrorNotSupported;
  if (args.M == 0 || args.N == 0 || args.K == 0) return cudaSuccess;
  const GemmKey key(args);
  if (rep_->table.count(key) > 0) return cudaSuccess;
  ChosenGemm chosen;
  chosen.problem = std::make_unique<GemmProblem>(args);
  const GemmProblem& problem = *chosen.problem;
  if (problem.status() != CUBLAS_STATUS_SUCCESS) return FromCublas(problem.status());
  std::vector<cublasLtMatmulHeuristicResult_t> found;
  const cublasStatus_t status = rep_->Candidates(problem, candidates, &found);
  if (status != CUBLAS_STATUS_SUCCESS) return FromCublas(status);
  Tuner tuner(
      args, stream,
      [&](const cublasLtMatmulAlgo_t& algorithm) {
        return rep_->Run(problem, algorithm, args, stream);
      },
      rep_->workspace);
  cudaError_t error = tuner.FirstLook(found);
  if (error == cudaSuccess) error = tuner.Rounds();
  if (error == cudaSuccess) error = tuner.Choose(&chosen.algorithm);
  if (error != cudaSuccess) return error;
  rep_->table.emplace(key, std::move(chosen));
  return cudaSuccess;
}

}  // namespace soup::kernels::cuda
