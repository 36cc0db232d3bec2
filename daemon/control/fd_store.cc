#include "daemon/control/fd_store.h"

#include <fcntl.h>
#include <systemd/sd-daemon.h>

#include <cstdlib>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "engine/base/log.h"

namespace soup::daemon {
namespace {

constexpr char kPrefix[] = "soup-base";
constexpr int kMaxSegments = 4096;

}  // namespace

std::string SegmentName(const std::string& base_key, int segment) {
  const std::vector<std::string> parts = absl::StrSplit(base_key, '/');
  return absl::StrCat(kPrefix, ".", absl::StrJoin(parts, "."), ".", segment);
}

AttachedSegments SortSegments(const std::vector<std::string>& names, const std::vector<int>& fds) {
  std::map<std::string, std::map<int, engine::UniqueFd>> found;
  for (size_t i = 0; i < fds.size() && i < names.size(); ++i) {
    const std::vector<std::string> parts = absl::StrSplit(names[i], '.');
    int segment = -1;
    if (parts.size() != 4 || parts[0] != kPrefix || !absl::SimpleAtoi(parts[3], &segment) ||
        segment < 0 || segment >= kMaxSegments)
      continue;
    ::fcntl(fds[i], F_SETFD, FD_CLOEXEC);
    found[absl::StrCat(parts[1], "/", parts[2])][segment] = engine::UniqueFd(fds[i]);
  }
  AttachedSegments whole;
  for (auto& [key, segments] : found) {
    const int last = segments.rbegin()->first;
    if (last + 1 != static_cast<int>(segments.size())) continue;
    for (auto& [index, fd] : segments) whole[key].push_back(std::move(fd));
  }
  return whole;
}

AttachedSegments TakeAttachedSegments() {
  char** raw = nullptr;
  const int n = ::sd_listen_fds_with_names(/*unset_environment=*/0, &raw);
  std::vector<std::string> names;
  std::vector<int> fds;
  for (int i = 0; i < n; ++i) {
    names.push_back(raw[i]);
    fds.push_back(SD_LISTEN_FDS_START + i);
  }
  if (raw != nullptr) {
    for (char** p = raw; *p != nullptr; ++p) std::free(*p);
    std::free(raw);
  }
  return SortSegments(names, fds);
}

FdStore::FdStore() : enabled_(std::getenv("NOTIFY_SOCKET") != nullptr) {}

void FdStore::Keep(const cache::HostBase& base) {
  if (!enabled_) return;
  const std::string key = base.key_text();
  absl::MutexLock lock(&mu_);
  if (!kept_.emplace(key, base.segments()).second) return;
  for (int i = 0; i < base.segments(); ++i) {
    const std::string state = absl::StrCat("FDSTORE=1\nFDPOLL=0\nFDNAME=", SegmentName(key, i));
    const int fd = base.segment_fd(i);
    const int rc = ::sd_pid_notify_with_fds(0, 0, state.c_str(), &fd, 1);
    if (rc < 0) {
      SOUP_LOG(kWarn, "fdstore") << "systemd did not take segment " << i << " of " << key
                                 << " (error " << -rc << "); it will be filled from the cache";
    }
  }
}

void FdStore::Kept(const std::string& base_key, int segments) {
  absl::MutexLock lock(&mu_);
  kept_[base_key] = segments;
}

void FdStore::Remove(const std::string& base_key) {
  if (!enabled_) return;
  absl::MutexLock lock(&mu_);
  auto it = kept_.find(base_key);
  if (it == kept_.end()) return;
  for (int i = 0; i < it->second; ++i)
    ::sd_notify(0, absl::StrCat("FDSTOREREMOVE=1\nFDNAME=", SegmentName(base_key, i)).c_str());
  kept_.erase(it);
}

}  // namespace soup::daemon
