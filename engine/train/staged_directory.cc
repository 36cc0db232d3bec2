#include "engine/train/staged_directory.h"

#include <utility>

#include "absl/memory/memory.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "engine/base/log.h"
#include "engine/base/status_macros.h"

namespace soup::engine {
namespace {

constexpr absl::string_view kStagedPrefix = ".staged.";
constexpr absl::string_view kReplacedPrefix = ".replaced.";
constexpr absl::string_view kRemovedPrefix = ".removed.";

// "/a/b/" + prefix + "name" of "/a/b/name".
std::string Hidden(const std::string& path, absl::string_view prefix) {
  const size_t slash = path.rfind('/');
  const size_t name = slash == std::string::npos ? 0 : slash + 1;
  return absl::StrCat(path.substr(0, name), prefix, path.substr(name));
}

// A process died while it replaced `final_path`: what it had moved away is the newest there is,
// unless the new one made it to its name.
absl::Status Restore(FileSystem& fs, const std::string& replaced, const std::string& final_path) {
  if (!fs.Exists(replaced)) return absl::OkStatus();
  if (fs.Exists(final_path)) return fs.RemoveTree(replaced);
  return fs.RenameSynced(replaced, final_path);
}

std::string ParentOf(const std::string& path) {
  const size_t slash = path.rfind('/');
  if (slash == std::string::npos) return ".";
  return slash == 0 ? "/" : path.substr(0, slash);
}

}  // namespace

StagedDirectory::StagedDirectory(FileSystem& fs, std::string final_path)
    : fs_(fs),
      final_path_(std::move(final_path)),
      staged_path_(Hidden(final_path_, kStagedPrefix)),
      replaced_path_(Hidden(final_path_, kReplacedPrefix)) {}

absl::StatusOr<std::unique_ptr<StagedDirectory>> StagedDirectory::Create(
    FileSystem& fs, const std::string& final_path) {
  SOUP_CHECK(!final_path.empty() && final_path.back() != '/');
  auto staged = absl::WrapUnique(new StagedDirectory(fs, final_path));
  SOUP_RETURN_IF_ERROR(fs.CreateDirectories(ParentOf(final_path)));
  SOUP_RETURN_IF_ERROR(fs.RemoveTree(staged->staged_path_));
  SOUP_RETURN_IF_ERROR(Restore(fs, staged->replaced_path_, final_path));
  SOUP_RETURN_IF_ERROR(fs.CreateDirectories(staged->staged_path_));
  return staged;
}

StagedDirectory::~StagedDirectory() {
  if (!published_) fs_.RemoveTree(staged_path_).IgnoreError();
}

absl::Status StagedDirectory::WriteFile(absl::string_view name, absl::string_view data) {
  return fs_.WriteFileSynced(JoinPath(staged_path_, name), data);
}

absl::Status StagedDirectory::Publish() {
  SOUP_RETURN_IF_ERROR(fs_.SyncDirectory(staged_path_));
  const bool replaces = fs_.Exists(final_path_);
  absl::Status status;
  if (replaces) status = fs_.RenameSynced(final_path_, replaced_path_);
  if (status.ok()) status = fs_.RenameSynced(staged_path_, final_path_);
  if (!status.ok()) {
    // Back to how it was. When a rename was done and only the directory's fsync failed, what has
    // the final name is whole; it stays.
    if (replaces && !fs_.Exists(final_path_)) {
      fs_.RenameSynced(replaced_path_, final_path_).IgnoreError();
    }
    return status;
  }
  published_ = true;
  if (replaces) {
    if (absl::Status removed = fs_.RemoveTree(replaced_path_); !removed.ok()) {
      SOUP_LOG(kWarn, "train") << "an old directory is left: " << removed.message();
    }
  }
  return absl::OkStatus();
}

absl::Status RemovePublishedDirectory(FileSystem& fs, const std::string& path) {
  if (!fs.Exists(path)) return absl::OkStatus();
  const std::string hidden = Hidden(path, kRemovedPrefix);
  SOUP_RETURN_IF_ERROR(fs.RemoveTree(hidden));
  SOUP_RETURN_IF_ERROR(fs.RenameSynced(path, hidden));
  return fs.RemoveTree(hidden);
}

absl::Status CleanUpLeftovers(FileSystem& fs, const std::string& parent) {
  if (!fs.Exists(parent)) return absl::OkStatus();
  SOUP_ASSIGN_OR_RETURN(const std::vector<std::string> names, fs.ListDirectory(parent));
  absl::Status first;
  for (const std::string& name : names) {
    const std::string path = JoinPath(parent, name);
    if (absl::StartsWith(name, kRemovedPrefix) || absl::StartsWith(name, kStagedPrefix)) {
      first.Update(fs.RemoveTree(path));
    } else if (absl::StartsWith(name, kReplacedPrefix)) {
      first.Update(Restore(fs, path, JoinPath(parent, name.substr(kReplacedPrefix.size()))));
    }
  }
  return first;
}

}  // namespace soup::engine
