// Fingerprint of a checkpoint: XXH3-128 over the contents of its weight files, in order of their
// names, and of config.json. A copy has the same one; any changed byte another.
//
// Each file's digest is remembered by (device, inode, size, mtime, ctime), so that an unchanged
// file is read once. A file that changes while it is read is refused (Aborted) and not remembered.
// Files are read in parallel, with pread. Errors: those of the reader, Cancelled, Aborted. Any
// thread.
#ifndef SOUP_CACHE_FINGERPRINT_H_
#define SOUP_CACHE_FINGERPRINT_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "cache/task_control.h"
#include "engine/io/confined_file.h"

namespace soup::cache {

// Where digests are remembered. Thread-safe. Forgetting is always allowed.
class DigestMemory {
 public:
  virtual ~DigestMemory() = default;
  virtual std::optional<std::string> Recall(const engine::FileStamp& stamp) = 0;
  virtual void Remember(const engine::FileStamp& stamp, const std::string& digest) = 0;
};

struct Fingerprint {
  std::string hex;           // kFingerprintChars
  int64_t bytes_total = 0;   // of all files
  int64_t bytes_hashed = 0;  // read now; the rest was remembered

  struct File {
    std::string path;
    engine::FileStamp stamp;
  };
  std::vector<File> files;  // what was hashed: weight files by name, then config.json; or a .gguf
};

// `folder`: a checkpoint as checkpoint.h opens it (of a .gguf, the file alone is hashed). `memory`
// may be null.
absl::StatusOr<Fingerprint> FingerprintCheckpoint(const std::string& folder,
                                                  const engine::AllowedRoots& roots,
                                                  DigestMemory* memory, const TaskControl& control);

// OK while every file is still the one that was hashed; Aborted names one that is not. What was
// read between FingerprintCheckpoint and an OK from here is what the fingerprint says.
absl::Status CheckUnchanged(const Fingerprint& fingerprint, const engine::AllowedRoots& roots);

}  // namespace soup::cache

#endif  // SOUP_CACHE_FINGERPRINT_H_
