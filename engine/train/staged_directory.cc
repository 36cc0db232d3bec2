#include "engine/train/staged_directory.h"

#include <utility>

#include "absl/memory/memory.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "engine/base/log.h"
#include "engine/base/status_macros.h"

namespace soup::engine {
namespace {

constexpr absl::string_view kRemovedPrefix = ".removed.";

// "/a/b/" + prefix + "name" of "/a/b/name".
std::string Hidden(const std::string& path, absl::string_view prefix) {
  const size_t slash = path.rfind('/');
  const size_t name = slash == std::string::npos ? 0 : slash + 1;
  return absl::StrCat(path.substr(0, name), prefix, path.substr(name));
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
      staged_path_(Hidden(final_path_, ".staged.")),
      replaced_path_(Hidden(final_path_, ".replaced.")) {}

absl::StatusOr<std::unique_ptr<StagedDirectory>> StagedDirectory::Create(
    FileSystem& fs, const std::string& final_path) {
  SOUP_CHECK(!final_path.empty() && final_path.back() != '/');
  auto staged = absl::WrapUnique(new StagedDirectory(fs, final_path));
  SOUP_RETURN_IF_ERROR(fs.CreateDirectories(ParentOf(final_path)));
  SOUP_RETURN_IF_ERROR(fs.RemoveTree(staged->staged_path_));
  if (fs.Exists(staged->replaced_path_)) {
    // A process died while it replaced: what it had moved away is the newest there is, unless the
    // new one made it to its name.
    if (fs.Exists(final_path)) {
      SOUP_RETURN_IF_ERROR(fs.RemoveTree(staged->replaced_path_));
    } else {
      SOUP_RETURN_IF_ERROR(fs.RenameSynced(staged->replaced_path_, final_path));
    }
  }
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
  if (replaces) SOUP_RETURN_IF_ERROR(fs_.RenameSynced(final_path_, replaced_path_));
  const absl::Status status = fs_.RenameSynced(staged_path_, final_path_);
  if (!status.ok()) {
    // Back to how it was. When the rename was done and only the directory's fsync failed, the new
    // files are whole under their name; they stay.
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

absl::Status RemoveLeftovers(FileSystem& fs, const std::string& parent) {
  SOUP_ASSIGN_OR_RETURN(const std::vector<std::string> names, fs.ListDirectory(parent));
  absl::Status first;
  for (const std::string& name : names) {
    if (absl::StartsWith(name, kRemovedPrefix)) first.Update(fs.RemoveTree(JoinPath(parent, name)));
  }
  return first;
}

}  // namespace soup::engine
