// A pointer of Git LFS: the few lines that a clone without git-lfs has in place of a large file.
// https://github.com/git-lfs/git-lfs/blob/main/docs/spec.md
#ifndef SOUP_ENGINE_BASE_LFS_POINTER_H_
#define SOUP_ENGINE_BASE_LFS_POINTER_H_

#include "absl/strings/match.h"
#include "absl/strings/string_view.h"

namespace soup::engine {

constexpr absl::string_view kLfsPointerStart = "version https://git-lfs";

// For the end of a message about a file that begins so: ": this is a pointer ...", else empty.
inline absl::string_view LfsPointerHint(absl::string_view start) {
  if (!absl::StartsWith(start, kLfsPointerStart.substr(0, start.size())) || start.size() < 8)
    return "";
  return ": this is a pointer of Git LFS, not the file itself; get it with git lfs pull";
}

}  // namespace soup::engine

#endif  // SOUP_ENGINE_BASE_LFS_POINTER_H_
