// A Backend that leaves work out, to see what a step would take without it. For timing only: what
// is computed is wrong, and every report of it says so.
//
// The first time, the work is done all the same: slots and weight scratch must hold plausible
// weights, for products of zeros or NaNs run at another speed.
#ifndef SOUP_BENCH_ABLATED_BACKEND_H_
#define SOUP_BENCH_ABLATED_BACKEND_H_

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "bench/forwarding_backend.h"

namespace soup::bench {

struct Ablation {
  bool no_copies = false;   // slabs and head slices stay on the host after each slot's first copy
  bool no_dequant = false;  // weights stay as they were first dequantised
  bool any() const { return no_copies || no_dequant; }
  // "", "no-copies", "no-dequant", "no-copies,no-dequant".
  std::string Name() const;
};

// "no-copies,no-dequant": the whole run, each left out alone, and both. Errors: InvalidArgument (a
// name that is not known; lists those that are).
absl::StatusOr<std::vector<Ablation>> ParseAblations(absl::string_view names);

class AblatedBackend final : public ForwardingBackend {
 public:
  AblatedBackend(engine::Backend* next, const Ablation& ablation)
      : ForwardingBackend(next), ablation_(ablation) {}

  absl::Status CopyToDeviceAsync(void* dst, const void* src, int64_t bytes,
                                 engine::StreamView stream) override;
  void Nf4Dequant(const kernels::Nf4DequantArgs& args) override;

 private:
  // True when `dst` was written with at least `bytes` before; else remembers it.
  static bool Done(std::map<const void*, int64_t>& done, const void* dst, int64_t bytes);

  const Ablation ablation_;
  std::map<const void*, int64_t> copied_;
  std::map<const void*, int64_t> dequantised_;
};

}  // namespace soup::bench

#endif  // SOUP_BENCH_ABLATED_BACKEND_H_
