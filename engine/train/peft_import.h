// adapter_config.json of an adapter in PEFT's form that a job goes on from (lora.init_from):
// whether the job means the same by the tensors. Every key is one that is compared, one that
// touches no maths, or refused by name unless its value leaves the feature off.
//
// Errors: InvalidArgument, naming the key, its value and the remedy. Pure; any thread.
#ifndef SOUP_ENGINE_TRAIN_PEFT_IMPORT_H_
#define SOUP_ENGINE_TRAIN_PEFT_IMPORT_H_

#include <cstdint>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace soup::engine {

// What a job's own adapter is: its rank and what scales B A x.
struct LoraScale {
  int32_t r = 0;
  double alpha = 0;
  bool rslora = false;

  double value() const;  // alpha / r, or alpha / sqrt(r)
};

absl::Status CheckPeftConfig(absl::string_view adapter_config_json, const LoraScale& job);

}  // namespace soup::engine

#endif  // SOUP_ENGINE_TRAIN_PEFT_IMPORT_H_
