// Checkpoints of a job: directories step-<n> under one directory, each whole or not there.
//
//   step-120/state.safetensors   weights (PEFT names), exp_avg.<name>, exp_avg_sq.<name>; fp32
//   step-120/state.json          step, optimizer steps, skipped, plan hash, stats, and the size and
//                                XXH3-64 of state.safetensors; a checksum of itself
//
// Save writes into a hidden directory, fsyncs both files and the directory, then renames it and
// fsyncs its parent: a reader sees a whole checkpoint under the final name or none, and any failure
// leaves the ones before as they were. Older ones are deleted only after that. Errors: FileSystem's
// (ResourceExhausted names path, bytes needed and free). One writer a job; not thread-safe.
#ifndef SOUP_ENGINE_TRAIN_CHECKPOINT_H_
#define SOUP_ENGINE_TRAIN_CHECKPOINT_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/base/file_system.h"
#include "engine/train/adapter.h"
#include "engine/train/adapter_state.h"

namespace soup::engine {

class CheckpointStore {
 public:
  // Keeps the newest `keep_last` (at least 1). `fs` and `layout` must outlive the store.
  CheckpointStore(FileSystem* fs, std::string directory, const AdapterLayout* layout,
                  int32_t keep_last);

  // Writes step-<state.step> and returns its path. A whole checkpoint of that step already there is
  // replaced in one rename. Errors: FileSystem's; FailedPrecondition (a tensor is not finite;
  // named: such a state is never written).
  absl::StatusOr<std::string> Save(const AdapterStateView& state);

  struct Loaded {
    std::optional<AdapterState> state;  // nullopt: no whole checkpoint
    std::string path;
    std::vector<std::string> warnings;  // a broken checkpoint each, and what is wrong with it
  };
  // The newest whole checkpoint: checksums and shapes are verified, broken ones are skipped and
  // told. Errors: those of listing the directory (absent is no error).
  absl::StatusOr<Loaded> LatestWhole() const;

  // Steps that have a directory, ascending.
  absl::StatusOr<std::vector<int64_t>> Steps() const;

 private:
  absl::StatusOr<AdapterState> Load(int64_t step) const;
  void Prune(int64_t newest_step);

  FileSystem* const fs_;
  const std::string directory_;
  const AdapterLayout* const layout_;
  const int32_t keep_last_;
};

}  // namespace soup::engine

#endif  // SOUP_ENGINE_TRAIN_CHECKPOINT_H_
