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

// Values of a bf16 base's linears, each of the same standard deviation. A GPU's products draw
// different power over them, and with it take different time.
enum class WeightValues {
  kNormal,  // as a model is initialised, and about as a trained one is
  kEven,    // over a range
  kNf4,     // what an NF4 base of random codes dequantises to: sixteen levels to 64 elements
};
const char* WeightValuesName(WeightValues values);  // as rows name them

class SyntheticBase {
 public:
  // `threads` > 0. `values`: bf16 only; an NF4 base holds codes. Errors: ResourceExhausted (the
  // host has no memory for it; says how much it is).
  static absl::StatusOr<std::unique_ptr<SyntheticBase>> Make(
      const engine::ModelSpec& spec, engine::BaseFormat format, int threads,
      WeightValues values = WeightValues::kNormal, uint64_t seed = 7);
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
