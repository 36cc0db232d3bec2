#include "cache/shortage.h"

#include <optional>

#include "absl/strings/cord.h"

namespace soup::cache {
namespace {

constexpr char kPayload[] = "soup/host-memory";
constexpr char kInUse[] = "in-use";
constexpr char kNever[] = "never";

}  // namespace

Shortage ShortageOf(const absl::Status& status) {
  if (!absl::IsResourceExhausted(status)) return Shortage::kNone;
  const auto payload = status.GetPayload(kPayload);
  if (!payload.has_value()) return Shortage::kDisk;
  return *payload == kInUse ? Shortage::kMemoryInUse : Shortage::kMemoryNever;
}

absl::Status MemoryShortage(absl::string_view message, bool bases_in_use) {
  absl::Status status = absl::ResourceExhaustedError(message);
  status.SetPayload(kPayload, absl::Cord(bases_in_use ? kInUse : kNever));
  return status;
}

}  // namespace soup::cache
