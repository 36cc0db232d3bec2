// Field by field checks of a JobSpec, before anything is looked up or loaded. Every refusal names
// the field as the job file spells it, the value and the remedy. Pure but for ResolveBasePath; any
// thread.
#ifndef SOUP_DAEMON_CONTROL_SPEC_VALIDATOR_H_
#define SOUP_DAEMON_CONTROL_SPEC_VALIDATOR_H_

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "soup/v1/job.pb.h"

namespace soup::daemon {

constexpr size_t kMaxNameBytes = 128;
constexpr size_t kMaxPathBytes = 4096;

// InvalidArgument. Fields that this soupd does not know (a newer client) are refused too.
absl::Status ValidateSpec(const soup::v1::JobSpec& spec);
// The part of it that Prefetch needs.
absl::Status ValidateBase(const soup::v1::BaseSpec& base);

// The real path of a model folder or a .gguf file; every link in it is followed, and the end must
// lie under one of the roots (real paths). InvalidArgument (not absolute, no config.json, no GGUF),
// NotFound, PermissionDenied (outside the roots; the message names them).
absl::StatusOr<std::string> ResolveBasePath(const std::string& path,
                                            const std::vector<std::string>& model_roots);

}  // namespace soup::daemon

#endif  // SOUP_DAEMON_CONTROL_SPEC_VALIDATOR_H_
