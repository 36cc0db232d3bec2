// Watch: everything after two cursors, then live until the job has ended. The stream holds cursors,
// not events: each turn reads what lies after them. State events are read before steps, so a step
// that was published before an event is never told after it; and once more after them, so an event
// that was published before a step is never told after it either.
#include <deque>
#include <optional>
#include <vector>

#include "absl/strings/str_cat.h"
#include "daemon/control/api_reactors.h"
#include "daemon/control/api_service.h"
#include "engine/base/status_macros.h"

namespace soup::daemon {
namespace {

using soup::v1::JobEvent;
using soup::v1::StepRecord;
using soup::v1::WatchReply;

constexpr int kMaxEvents = 64;
constexpr int kMaxSteps = 256;

// Steps and events are told in the order of their times; within a millisecond, what begins comes
// before steps and what ends after them.
bool GoesBefore(const StepRecord& step, const JobEvent& event) {
  if (step.unix_ms() != event.unix_ms()) return step.unix_ms() < event.unix_ms();
  return event.state() != soup::v1::QUEUED && event.state() != soup::v1::PREPARING &&
         event.state() != soup::v1::RUNNING;
}

class WatchStream final : public PumpedStream<WatchReply> {
 public:
  WatchStream(const ApiContext& api, const Principal& who, const soup::v1::WatchRequest& request)
      : PumpedStream(api.pool),
        api_(api),
        who_(who),
        asked_(request.job_id()),
        after_sequence_(request.after_sequence()),
        after_step_(request.after_step()) {}

 private:
  absl::StatusOr<Step> Next(WatchReply* reply) override {
    if (job_id_.empty()) SOUP_RETURN_IF_ERROR(Open());
    if (ready_.empty()) {
      SOUP_RETURN_IF_ERROR(api_.CheckServing());
      SOUP_RETURN_IF_ERROR(Refill());
    }
    if (!ready_.empty()) {
      *reply = std::move(ready_.front());
      ready_.pop_front();
      last_write_ms_ = NowMs();
      return Step::kWrite;
    }
    if (all_told_) return Step::kEnd;
    if (TakeProgress(reply) || TakeHeartbeat(reply)) {
      last_write_ms_ = NowMs();
      return Step::kWrite;
    }
    return Step::kWait;
  }

  void Closed() override {
    if (subscription_.has_value()) api_.hub.Unsubscribe(*subscription_);
  }

  absl::Status Open() {
    if (after_sequence_ < 0 || after_step_ < 0) {
      return absl::InvalidArgumentError(
          "after_sequence and after_step are cursors: give 0 or what was told last");
    }
    SOUP_ASSIGN_OR_RETURN(const JobRecord job, api_.FindJob(who_, asked_));
    // Before the first read, so that nothing falls in between.
    SOUP_ASSIGN_OR_RETURN(subscription_, api_.hub.Subscribe(job.id, [this] { Wake(); }));
    job_id_ = job.id;
    return absl::OkStatus();
  }

  absl::Status Refill() {
    SOUP_ASSIGN_OR_RETURN(record_, api_.store.GetJob(job_id_));
    SOUP_ASSIGN_OR_RETURN(std::vector<JobEvent> events,
                          api_.store.EventsAfter(job_id_, after_sequence_, kMaxEvents));
    const int64_t before_steps = events.empty() ? after_sequence_ : events.back().sequence();
    SOUP_ASSIGN_OR_RETURN(const std::vector<StepRecord> steps,
                          api_.steps.Read(job_id_, after_step_, kMaxSteps));
    if (!steps.empty()) {
      SOUP_ASSIGN_OR_RETURN(events, api_.store.EventsAfter(job_id_, after_sequence_, kMaxEvents));
    }
    const bool more_steps = static_cast<int>(steps.size()) == kMaxSteps;
    const bool more_events = static_cast<int>(events.size()) == kMaxEvents;
    size_t e = 0;
    size_t s = 0;
    for (;;) {
      const bool step_left = s < steps.size(), event_left = e < events.size();
      if (step_left && (event_left ? GoesBefore(steps[s], events[e]) : !more_events)) {
        after_step_ = steps[s].step();
        *ready_.emplace_back().mutable_step() = steps[s++];
      } else if (event_left &&
                 (step_left || (!more_steps && events[e].sequence() <= before_steps))) {
        after_sequence_ = events[e].sequence();
        *ready_.emplace_back().mutable_event() = events[e++];
      } else {
        break;  // what was not read may come before what is left
      }
    }
    // record_ was read before the steps: when it had ended, no step can follow.
    all_told_ =
        ready_.empty() && HasEnded(record_.state) && after_sequence_ >= record_.last_sequence;
    return absl::OkStatus();
  }

  bool TakeProgress(WatchReply* reply) {
    const auto progress = api_.hub.LatestProgress(job_id_);
    if (!progress.has_value() || progress->version == progress_version_) return false;
    progress_version_ = progress->version;
    *reply->mutable_progress() = progress->progress;
    return true;
  }

  bool TakeHeartbeat(WatchReply* reply) {
    if (NowMs() - last_write_ms_ < api_.heartbeat_ms) return false;
    const absl::StatusOr<StepSummary> summary = api_.steps.Summary(job_id_);
    soup::v1::Heartbeat* heartbeat = reply->mutable_heartbeat();
    heartbeat->set_unix_ms(api_.clock.UnixNs() / 1'000'000);
    heartbeat->set_steps_done(summary.ok() ? summary->steps_done : 0);
    heartbeat->set_steps_total(record_.steps_total);
    heartbeat->set_state(record_.state);
    return true;
  }

  int64_t NowMs() const { return api_.clock.MonotonicNs() / 1'000'000; }

  const ApiContext& api_;
  const Principal who_;
  const std::string asked_;
  int64_t after_sequence_;
  int64_t after_step_;
  std::string job_id_;
  std::optional<int64_t> subscription_;
  JobRecord record_;
  std::deque<WatchReply> ready_;
  bool all_told_ = false;
  uint64_t progress_version_ = 0;
  int64_t last_write_ms_ = INT64_MIN / 2;  // a heartbeat comes first when there is nothing to tell
};

}  // namespace

grpc::ServerWriteReactor<WatchReply>* SoupService::Watch(grpc::CallbackServerContext* call,
                                                         const soup::v1::WatchRequest* request) {
  const absl::StatusOr<Principal> who = api_.Authenticate(*call);
  if (!who.ok()) return RefuseStream<WatchReply>(who.status());
  return PumpedStream<WatchReply>::Begin(std::make_shared<WatchStream>(api_, *who, *request));
}

}  // namespace soup::daemon
