// First weights of an adapter: A uniform in (-1/sqrt(in), 1/sqrt(in)), B zero, as PEFT's default
// (kaiming_uniform_ with a = sqrt(5); Hu et al., arXiv 2106.09685, section 4.1).
//
// A's elements are drawn from Philox4x32-10 at (seed, layer, module, element): a function of these
// alone, so neither the other targets nor the order of drawing matter. Pure; any thread.
#ifndef SOUP_ENGINE_TRAIN_LORA_INIT_H_
#define SOUP_ENGINE_TRAIN_LORA_INIT_H_

#include <cstdint>
#include <vector>

#include "engine/train/adapter.h"

namespace soup::engine {

// A vector of the layout.
std::vector<float> InitLoraWeights(const AdapterLayout& layout, uint64_t seed);

}  // namespace soup::engine

#endif  // SOUP_ENGINE_TRAIN_LORA_INIT_H_
