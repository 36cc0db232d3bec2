#include "daemon/control/event_hub.h"

#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"

namespace soup::daemon {

struct EventHub::Watcher {
  std::string job_id;
  std::function<void()> wake;
  // Held while `wake` runs, so that Unsubscribe can wait for it.
  absl::Mutex running;
  bool gone ABSL_GUARDED_BY(running) = false;

  void Wake() {
    absl::MutexLock lock(&running);
    if (!gone) wake();
  }
};

void EventHub::Notify(const std::string& job_id) {
  std::vector<std::shared_ptr<Watcher>> to_wake;
  {
    absl::MutexLock lock(&mutex_);
    const auto it = by_job_.find(job_id);
    if (it == by_job_.end()) return;
    for (const auto& [id, watcher] : it->second) to_wake.push_back(watcher);
  }
  for (const auto& watcher : to_wake) watcher->Wake();
}

void EventHub::SetProgress(const std::string& job_id, const soup::v1::Progress& progress) {
  {
    absl::MutexLock lock(&mutex_);
    progress_[job_id] = VersionedProgress{next_version_++, progress};
  }
  Notify(job_id);
}

void EventHub::ClearProgress(const std::string& job_id) {
  absl::MutexLock lock(&mutex_);
  progress_.erase(job_id);
}

std::optional<EventHub::VersionedProgress> EventHub::LatestProgress(
    const std::string& job_id) const {
  absl::MutexLock lock(&mutex_);
  const auto it = progress_.find(job_id);
  if (it == progress_.end()) return std::nullopt;
  return it->second;
}

absl::StatusOr<int64_t> EventHub::Subscribe(const std::string& job_id, std::function<void()> wake) {
  absl::MutexLock lock(&mutex_);
  if (static_cast<int>(watchers_.size()) >= max_watchers_) {
    return absl::ResourceExhaustedError(absl::StrCat(
        "soupd serves ", watchers_.size(), " watches already, the most it allows; end some"));
  }
  auto watcher = std::make_shared<Watcher>();
  watcher->job_id = job_id;
  watcher->wake = std::move(wake);
  const int64_t id = next_subscription_++;
  watchers_[id] = watcher;
  by_job_[job_id][id] = std::move(watcher);
  return id;
}

void EventHub::Unsubscribe(int64_t subscription) {
  std::shared_ptr<Watcher> watcher;
  {
    absl::MutexLock lock(&mutex_);
    const auto it = watchers_.find(subscription);
    if (it == watchers_.end()) return;
    watcher = std::move(it->second);
    watchers_.erase(it);
    const auto job = by_job_.find(watcher->job_id);
    if (job != by_job_.end()) {
      job->second.erase(subscription);
      if (job->second.empty()) by_job_.erase(job);
    }
  }
  absl::MutexLock lock(&watcher->running);
  watcher->gone = true;
}

void EventHub::NotifyAll() {
  std::vector<std::shared_ptr<Watcher>> to_wake;
  {
    absl::MutexLock lock(&mutex_);
    for (const auto& [id, watcher] : watchers_) to_wake.push_back(watcher);
  }
  for (const auto& watcher : to_wake) watcher->Wake();
}

int EventHub::watchers() const {
  absl::MutexLock lock(&mutex_);
  return static_cast<int>(watchers_.size());
}

}  // namespace soup::daemon
