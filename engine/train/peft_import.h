// An adapter in PEFT's form that a job goes on from (lora.init_from). Of adapter_config.json:
// whether the job means the same by the tensors; every key is one that is compared, one that
// touches no maths, or refused by name unless its value leaves the feature off.
//
// Errors: InvalidArgument, naming the key or tensor, its value and the remedy; those of files.
// Keeps nothing; any thread.
#ifndef SOUP_ENGINE_TRAIN_PEFT_IMPORT_H_
#define SOUP_ENGINE_TRAIN_PEFT_IMPORT_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "engine/base/file_system.h"
#include "engine/train/adapter.h"

namespace soup::engine {

// What a job's own adapter is: its rank and what scales B A x.
struct LoraScale {
  int32_t r = 0;
  double alpha = 0;
  bool rslora = false;

  double value() const;  // alpha / r, or alpha / sqrt(r)
};

absl::Status CheckPeftConfig(absl::string_view adapter_config_json, const LoraScale& job);

// Messages name the files as users know them, not where they were uploaded to.
struct InitAdapterFiles {
  std::string weights_path;
  std::string config_path;  // empty: not compared, and the weights go by their path
};

// The weights, as a vector of the layout.
absl::StatusOr<std::vector<float>> LoadInitAdapter(FileSystem& fs, const InitAdapterFiles& files,
                                                   const LoraScale& job,
                                                   const AdapterLayout& layout);
// The same errors, without the memory that the weights take.
absl::Status CheckInitAdapter(FileSystem& fs, const InitAdapterFiles& files, const LoraScale& job,
                              const AdapterLayout& layout);

}  // namespace soup::engine

#endif  // SOUP_ENGINE_TRAIN_PEFT_IMPORT_H_
