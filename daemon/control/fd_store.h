// FdStore: the host store's segments, kept by systemd over a restart of soupd (FDSTORE).
//
// A base's segments are handed over once it is filled, under the name
// soup-base.<fingerprint>.<format>.<segment>, and taken out when it is dropped. At start, systemd
// passes back what it holds (LISTEN_FDS). Without systemd (no NOTIFY_SOCKET) nothing happens.
// Thread-safe.
#ifndef SOUP_DAEMON_CONTROL_FD_STORE_H_
#define SOUP_DAEMON_CONTROL_FD_STORE_H_

#include <map>
#include <set>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "cache/host_store.h"
#include "engine/base/unique_fd.h"

namespace soup::daemon {

// Base key ("fingerprint/format") -> segments in order.
using AttachedSegments = std::map<std::string, std::vector<engine::UniqueFd>>;

// The segments among `names` and `fds` (as systemd passes them); others are left alone. A base of
// which a segment is missing is closed and left out.
AttachedSegments SortSegments(const std::vector<std::string>& names, const std::vector<int>& fds);
// What systemd passed to this process. Called once, early.
AttachedSegments TakeAttachedSegments();

std::string SegmentName(const std::string& base_key, int segment);

class FdStore {
 public:
  FdStore();
  // Hands over a base's segments; once a base.
  void Keep(const cache::HostBase& base);
  // systemd holds this base already (it was attached).
  void Kept(const std::string& base_key, int segments);
  void Remove(const std::string& base_key);

 private:
  const bool enabled_;
  absl::Mutex mu_;
  std::map<std::string, int> kept_ ABSL_GUARDED_BY(mu_);  // segments
};

}  // namespace soup::daemon

#endif  // SOUP_DAEMON_CONTROL_FD_STORE_H_
