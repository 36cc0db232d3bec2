// The caller's folder for an adapter: checked before a job is submitted, filled when it is done,
// always with the caller's own permissions (soupd writes only under its state directory).
//
// Filling is all or nothing for a file: it is downloaded to a temporary name in the folder, checked
// against soupd's SHA-256, synced and renamed. The two files of an adapter are renamed together at
// the end, and an older adapter's config is taken away before its weights are replaced, so that a
// crash in between leaves a folder that does not load rather than one that loads a mixture.
// Functions without state; calls for different folders may run at once.
#ifndef SOUP_CLIENT_OUTPUT_FOLDER_H_
#define SOUP_CLIENT_OUTPUT_FOLDER_H_

#include <functional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/api.h"

namespace soup::client {

// OK when `folder` (absolute) is a folder in which the caller can create files, or can be created:
// tried on the nearest parent that exists, and taken back. The error says which part is in the way.
absl::Status CheckOutputFolder(const std::string& folder);

struct FetchResult {
  int64_t files = 0;
  int64_t bytes = 0;       // of the whole adapter
  int64_t downloaded = 0;  // bytes; 0 when the folder already had every file
  bool replaced = false;   // another adapter stood there
};

using FetchProgress = std::function<void(const std::string& name, int64_t done, int64_t total)>;

// Downloads the artifacts of a job into `folder` (created with its parents). A broken connection is
// taken up again where it stopped, a bounded number of times. ResourceExhausted names the folder,
// the bytes needed and the bytes free. Whatever the error: no temporary file is left, no folder
// that was made for it, and nothing in the folder is half written.
absl::StatusOr<FetchResult> FetchAdapter(Api* api, const std::string& job_id,
                                         const std::string& folder, const FetchProgress& progress);

}  // namespace soup::client

#endif  // SOUP_CLIENT_OUTPUT_FOLDER_H_
