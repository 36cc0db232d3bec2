// A directory that appears whole: files are written into a hidden one beside it, which is fsynced
// and renamed at the end.
//
//   SOUP_ASSIGN_OR_RETURN(auto staged, StagedDirectory::Create(fs, "…/step-120"));
//   SOUP_RETURN_IF_ERROR(staged->WriteFile("state.json", bytes));
//   SOUP_RETURN_IF_ERROR(staged->Publish());
//
// What was under the final name before is moved away first and removed after, so that a reader
// sees the old files, or for an instant none, or the new, never a mixture. An unpublished one is
// removed when it dies; what a killed process leaves is put right by the next Create of the same
// name, or by CleanUpLeftovers. Errors: FileSystem's. Not thread-safe; one writer a final name.
#ifndef SOUP_ENGINE_TRAIN_STAGED_DIRECTORY_H_
#define SOUP_ENGINE_TRAIN_STAGED_DIRECTORY_H_

#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "engine/base/file_system.h"

namespace soup::engine {

class StagedDirectory {
 public:
  static absl::StatusOr<std::unique_ptr<StagedDirectory>> Create(FileSystem& fs,
                                                                 const std::string& final_path);
  ~StagedDirectory();
  StagedDirectory(const StagedDirectory&) = delete;
  StagedDirectory& operator=(const StagedDirectory&) = delete;

  // Whole and fsynced on return.
  absl::Status WriteFile(absl::string_view name, absl::string_view data);
  absl::Status Publish();

 private:
  StagedDirectory(FileSystem& fs, std::string final_path);
  FileSystem& fs_;
  const std::string final_path_;
  const std::string staged_path_;    // .staged.<name>
  const std::string replaced_path_;  // .replaced.<name>
  bool published_ = false;
};

// Removes a published directory; absent is OK. It leaves its name in one rename, so that a reader
// sees it whole or not at all.
absl::Status RemovePublishedDirectory(FileSystem& fs, const std::string& path);

// Ends what a process that was killed inside one of the above left in `parent`: half-written and
// half-removed directories go, one that was moved away for a replacement gets its name back.
absl::Status CleanUpLeftovers(FileSystem& fs, const std::string& parent);

}  // namespace soup::engine

#endif  // SOUP_ENGINE_TRAIN_STAGED_DIRECTORY_H_
