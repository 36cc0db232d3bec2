// A frozen base of random weights in host memory, made directly as slabs: no checkpoint is read and
// nothing is quantised, so that a 70B base takes seconds. Weights have the scale of a freshly
// initialised model (standard deviation 1 / sqrt(inputs)), norms are 1; values are a function of
// shape, format and seed alone.
//
// Memory is anonymous, huge pages where they can be had, touched by every thread before use.
// Immutable once made: any thread. Trainers borrow its slabs.
#ifndef SOUP_BENCH_SYNTHETIC_BASE_H_
#define SOUP_BENCH_SYNTHETIC_BASE_H_

#include <cstddef>
#include <cstdint>
#include <memory>

#include "absl/status/statusor.h"
#include "engine/train/model_base.h"

namespace soup::bench {

class SyntheticBase {
 public:
  // `threads` > 0. Errors: ResourceExhausted (the host has no memory for it; says how much it is).
  static absl::StatusOr<std::unique_ptr<SyntheticBase>> Make(const engine::ModelSpec& spec,
                                                             engine::BaseFormat format, int threads,
                                                             uint64_t seed = 7);
  ~SyntheticBase();
  SyntheticBase(const SyntheticBase&) = delete;
  SyntheticBase& operator=(const SyntheticBase&) = delete;

  const engine::ModelBase& base() const { return base_; }
  const std::byte* data() const { return data_; }
  int64_t bytes() const { return bytes_; }  // all slabs, one after another

 private:
  SyntheticBase() = default;
  engine::ModelBase base_;
  std::byte* data_ = nullptr;
  int64_t bytes_ = 0;
};

}  // namespace soup::bench

#endif  // SOUP_BENCH_SYNTHETIC_BASE_H_
