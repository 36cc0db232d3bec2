// A frozen base of random weights in host memory, made directly as slabs: no checkpoint is read and
// nothing is quantised, so that a 70B base takes seconds. Weights have the scale of a freshly
// initialised model (standard deviation 1 / sqrt(inputs)), norms are 1; values are a function of
// shape, format, kind of values and seed alone.
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

// Values of a bf16 base's linears. Products of the two take different power on a GPU, and with it
// time: sixteen levels toggle fewer bits.
enum class WeightValues {
  kEven,  // over a range: every bit of the mantissa at random, as in a trained model
  kNf4,   // what an NF4 base of random codes dequantises to
};

class SyntheticBase {
 public:
  // `threads` > 0. `values`: bf16 only; an NF4 base holds codes. Errors: ResourceExhausted (the
  // host has no memory for it; says how much it is).
  static absl::StatusOr<std::unique_ptr<SyntheticBase>> Make(
      const engine::ModelSpec& spec, engine::BaseFormat format, int threads,
      WeightValues values = WeightValues::kEven, uint64_t seed = 7);
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
