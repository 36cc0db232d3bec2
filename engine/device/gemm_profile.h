// The file that keeps which algorithm a matrix product runs by: text, a line an entry,
//
//   soup gemm algorithms 1
//   <scope>|<key>|<algorithm>
//
// scope: what the choice is valid for (device, library version, workspace). An entry never changes
// once it is there, so a product has the same bits in every later run, whoever tuned it first.
// Entries of other scopes stay untouched. Several processes may share one file: merges take turns
// on a lock beside it, and readers see whole files.
//
// Thread-safe: it has no state but its names.
#ifndef SOUP_ENGINE_DEVICE_GEMM_PROFILE_H_
#define SOUP_ENGINE_DEVICE_GEMM_PROFILE_H_

#include <map>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace soup::engine {

class GemmProfile {
 public:
  using Entries = std::map<std::string, std::string>;  // key -> algorithm

  // `scope` without '|' and line ends. An empty path keeps nothing: Read is empty, Merge gives back
  // what it is given.
  GemmProfile(std::string path, std::string scope)
      : path_(std::move(path)), scope_(std::move(scope)) {}

  // The scope's entries; none when there is no file. Errors: DataLoss (not such a file, a broken
  // line; says what to do), and those of files.
  absl::StatusOr<Entries> Read() const;
  // Adds what the file lacks and gives back all entries of the scope: where the file had one, its
  // own. Errors: as Read.
  absl::StatusOr<Entries> Merge(const Entries& added) const;

  const std::string& path() const { return path_; }

 private:
  const std::string path_;
  const std::string scope_;
};

}  // namespace soup::engine

#endif  // SOUP_ENGINE_DEVICE_GEMM_PROFILE_H_
