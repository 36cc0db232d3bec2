// A tiny adapter and states of it whose every number is a function of the step.
#ifndef SOUP_TESTS_ENGINE_TRAIN_STATE_FIXTURE_H_
#define SOUP_TESTS_ENGINE_TRAIN_STATE_FIXTURE_H_

#include <string>

#include "engine/train/adapter.h"
#include "engine/train/adapter_state.h"

namespace soup::engine {

inline ModelSpec TinyModel() {
  ModelSpec m;
  m.family = "llama";
  m.hidden = 8;
  m.intermediate = 12;
  m.layers = 2;
  m.heads = 2;
  m.kv_heads = 1;
  m.head_dim = 4;
  m.vocab = 16;
  m.max_position = 32;
  return m;
}

inline LoraShape TinyLora() {
  return {.r = 2, .dropout = false, .targets = {Module::kQ, Module::kV, Module::kDown}};
}

inline AdapterLayout TinyLayout() { return *AdapterLayout::Create(TinyModel(), TinyLora()); }

inline AdapterState StateOfStep(int64_t step, int64_t elements) {
  AdapterState s;
  for (int64_t i = 0; i < elements; ++i) {
    s.weights.push_back(static_cast<float>(step) + static_cast<float>(i) * 0.5f);
    s.exp_avg.push_back(static_cast<float>(step * 3 - i));
    s.exp_avg_sq.push_back(static_cast<float>(step * 7 + i));
  }
  s.step = step;
  s.optimizer_steps = step - step / 5;
  s.skipped = step / 5;
  s.plan_hash = 0x1234567890abcdefull;
  s.stats = "stats of step " + std::to_string(step);
  return s;
}

inline bool SameState(const AdapterState& a, const AdapterState& b) {
  return a.weights == b.weights && a.exp_avg == b.exp_avg && a.exp_avg_sq == b.exp_avg_sq &&
         a.step == b.step && a.optimizer_steps == b.optimizer_steps && a.skipped == b.skipped &&
         a.plan_hash == b.plan_hash && a.stats == b.stats;
}

}  // namespace soup::engine

#endif  // SOUP_TESTS_ENGINE_TRAIN_STATE_FIXTURE_H_
