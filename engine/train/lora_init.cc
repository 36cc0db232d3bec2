#include "engine/train/lora_init.h"

#include <cmath>

#include "engine/base/philox.h"

namespace soup::engine {
namespace {

// Streams of a seed are told apart by their upper word; this one is LoRA's first weights.
constexpr uint64_t kInitStream = uint64_t{0x6c6f7261} << 32;  // "lora"

}  // namespace

std::vector<float> InitLoraWeights(const AdapterLayout& layout, uint64_t seed) {
  std::vector<float> weights(static_cast<size_t>(layout.elements()), 0.0f);
  for (const AdapterTensor& t : layout.tensors()) {
    if (t.part == LoraPart::kB) continue;
    const auto site = static_cast<uint64_t>(t.layer * kModules + static_cast<int64_t>(t.module));
    const PhiloxStream draws(seed, kInitStream | site);
    const double bound = 1.0 / std::sqrt(static_cast<double>(t.cols));
    float* out = weights.data() + t.offset;
    for (int64_t i = 0; i < t.elements(); i += 4) {
      const PhiloxBlock block = draws.Block(static_cast<uint64_t>(i / 4));
      for (int64_t lane = 0; lane < 4 && i + lane < t.elements(); ++lane) {
        // The middle of one of 2^24 equal parts: symmetric, and never an end.
        const double u =
            (static_cast<double>(block[static_cast<size_t>(lane)] >> 8) + 0.5) * 0x1.0p-24;
        out[i + lane] = static_cast<float>((2.0 * u - 1.0) * bound);
      }
    }
  }
  return weights;
}

}  // namespace soup::engine
