#include "engine/base/available_memory.h"

#include <algorithm>
#include <optional>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "engine/base/file_system.h"
#include "engine/base/status_macros.h"

namespace soup::engine {
namespace {

// The number after `key` in lines of "key value" or "key: value kB"; nullopt: no such line.
std::optional<int64_t> FindNumber(const std::string& text, absl::string_view key) {
  for (absl::string_view line : absl::StrSplit(text, '\n')) {
    const std::vector<absl::string_view> words =
        absl::StrSplit(line, absl::ByAnyChar(" :\t"), absl::SkipEmpty());
    int64_t value;
    if (words.size() >= 2 && words[0] == key && absl::SimpleAtoi(words[1], &value)) {
      return words.size() >= 3 && words[2] == "kB" ? value * 1024 : value;
    }
  }
  return std::nullopt;
}

// A file that holds one number; nullopt: absent, or "max".
std::optional<int64_t> ReadNumber(const std::string& path) {
  const auto text = RealFileSystem().ReadFile(path);
  if (!text.ok()) return std::nullopt;
  uint64_t value;
  if (!absl::SimpleAtoi(absl::StripAsciiWhitespace(*text), &value)) return std::nullopt;
  return static_cast<int64_t>(std::min<uint64_t>(value, INT64_MAX));
}

// The files of one cgroup version that bound memory.
struct CgroupFiles {
  std::vector<const char*> limits;
  const char* usage;
  std::vector<const char*> reclaimable;  // keys of memory.stat: page cache that can be given back
};
const CgroupFiles kVersion1 = {{"memory.limit_in_bytes"},
                               "memory.usage_in_bytes",
                               {"total_inactive_file", "total_active_file"}};
const CgroupFiles kVersion2 = {
    {"memory.max", "memory.high"}, "memory.current", {"inactive_file", "active_file"}};

void BoundByGroup(const std::string& folder, const std::string& shown, const CgroupFiles& files,
                  AvailableMemory& available) {
  const std::optional<int64_t> usage = ReadNumber(JoinPath(folder, files.usage));
  if (!usage) return;
  int64_t used = *usage;
  const auto stat = RealFileSystem().ReadFile(JoinPath(folder, "memory.stat"));
  if (stat.ok()) {
    for (const char* key : files.reclaimable) used -= FindNumber(*stat, key).value_or(0);
  }
  used = std::max<int64_t>(used, 0);
  for (const char* limit_file : files.limits) {
    const std::optional<int64_t> limit = ReadNumber(JoinPath(folder, limit_file));
    if (!limit) continue;
    available.total_bytes = std::min(available.total_bytes, *limit);
    if (*limit - used >= available.bytes) continue;
    available.bytes = std::max<int64_t>(*limit - used, 0);
    available.bound_by = absl::StrCat("cgroup ", shown, " (", limit_file, " ", *limit, ")");
  }
}

// Where the memory controller is mounted, and which part of the tree that mount shows.
struct CgroupMount {
  std::string folder;
  std::string shown_root;
};

// mountinfo: id parent major:minor root mount-point options ... - type source super-options
std::optional<CgroupMount> FindMount(const std::string& mountinfo, bool version2) {
  for (absl::string_view line : absl::StrSplit(mountinfo, '\n')) {
    const std::vector<absl::string_view> halves = absl::StrSplit(line, absl::MaxSplits(" - ", 1));
    if (halves.size() != 2) continue;
    const std::vector<absl::string_view> left = absl::StrSplit(halves[0], ' ');
    const std::vector<absl::string_view> right = absl::StrSplit(halves[1], ' ');
    if (left.size() < 5 || right.size() < 3) continue;
    if (right[0] != (version2 ? "cgroup2" : "cgroup")) continue;
    const std::vector<absl::string_view> options = absl::StrSplit(right[2], ',');
    if (!version2 && std::find(options.begin(), options.end(), "memory") == options.end()) continue;
    return CgroupMount{std::string(left[4]), std::string(left[3])};
  }
  return std::nullopt;
}

// Our own group and all above it, each of which may be the tightest.
void BoundByGroups(const std::string& root, const CgroupMount& mount, absl::string_view path,
                   const CgroupFiles& files, AvailableMemory& available) {
  // A container may see the mount's root as "/": what lies outside cannot be read, and is skipped.
  if (mount.shown_root != "/") path = absl::StripPrefix(path, mount.shown_root);
  std::string group(path);
  for (;;) {
    BoundByGroup(JoinPath(absl::StrCat(root, mount.folder), group), group.empty() ? "/" : group,
                 files, available);
    const size_t slash = group.rfind('/');
    if (group.empty() || slash == std::string::npos) return;
    group.resize(slash);
  }
}

}  // namespace

absl::StatusOr<AvailableMemory> ReadAvailableMemory(const std::string& root) {
  const auto& fs = RealFileSystem();
  SOUP_ASSIGN_OR_RETURN(const std::string meminfo, fs.ReadFile(root + "/proc/meminfo"));
  const std::optional<int64_t> available = FindNumber(meminfo, "MemAvailable");
  if (!available) return absl::UnavailableError("/proc/meminfo has no MemAvailable");
  AvailableMemory out{*available, "MemAvailable", FindNumber(meminfo, "MemTotal").value_or(0)};

  const auto groups = fs.ReadFile(root + "/proc/self/cgroup");
  const auto mounts = fs.ReadFile(root + "/proc/self/mountinfo");
  if (!groups.ok() || !mounts.ok()) return out;  // no cgroups here
  for (absl::string_view line : absl::StrSplit(*groups, '\n', absl::SkipEmpty())) {
    // hierarchy:controllers:path; version 2 is hierarchy 0 without controllers
    const std::vector<absl::string_view> parts = absl::StrSplit(line, absl::MaxSplits(':', 2));
    if (parts.size() != 3) continue;
    const std::vector<absl::string_view> controllers = absl::StrSplit(parts[1], ',');
    const bool version2 = parts[0] == "0" && parts[1].empty();
    if (!version2 &&
        std::find(controllers.begin(), controllers.end(), "memory") == controllers.end()) {
      continue;
    }
    const std::optional<CgroupMount> mount = FindMount(*mounts, version2);
    if (mount) BoundByGroups(root, *mount, parts[2], version2 ? kVersion2 : kVersion1, out);
  }
  return out;
}

}  // namespace soup::engine
