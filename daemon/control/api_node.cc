// The shard cache and the node.
#include <sys/utsname.h>
#include <unistd.h>

#include <optional>
#include <sstream>
#include <thread>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "daemon/control/api_reactors.h"
#include "daemon/control/api_service.h"
#include "daemon/control/sha256.h"
#include "daemon/control/spec_validator.h"
#include "engine/base/file_system.h"
#include "engine/base/status_macros.h"

namespace soup::daemon {
namespace {

using soup::v1::PrefetchReply;

// The import runs on the slow pool and leaves its latest progress here; the stream sends it.
class PrefetchStream final : public PumpedStream<PrefetchReply> {
 public:
  PrefetchStream(const ApiContext& api, const Principal& who,
                 const soup::v1::PrefetchCacheRequest& request, const CallLimits& limits)
      : PumpedStream(api.pool), api_(api), who_(who), request_(request), limits_(limits) {}

 private:
  struct Shared {
    absl::Mutex mutex;
    std::optional<soup::v1::Progress> progress ABSL_GUARDED_BY(mutex);
    std::optional<absl::StatusOr<soup::v1::CacheEntry>> result ABSL_GUARDED_BY(mutex);
  };

  absl::StatusOr<Step> Next(PrefetchReply* reply) override {
    if (!started_) {
      SOUP_RETURN_IF_ERROR(Start());
      started_ = true;
    }
    if (done_) return Step::kEnd;
    absl::MutexLock lock(&shared_.mutex);
    if (shared_.result.has_value()) {
      SOUP_ASSIGN_OR_RETURN(*reply->mutable_done(), std::move(*shared_.result));
      done_ = true;
      return Step::kWrite;
    }
    if (!shared_.progress.has_value()) return Step::kWait;
    *reply->mutable_progress() = *std::exchange(shared_.progress, std::nullopt);
    return Step::kWrite;
  }

  absl::Status Start() {
    SOUP_RETURN_IF_ERROR(api_.CheckServing());
    SOUP_RETURN_IF_ERROR(ValidateBase(request_.base()));
    SOUP_ASSIGN_OR_RETURN(const std::string base,
                          ResolveBasePath(request_.base().path(), api_.config.model_roots));
    if (!request_.request_id().empty()) {
      SOUP_RETURN_IF_ERROR(api_.store.RememberRequest(
          who_.user, request_.request_id(),
          Sha256Hex("prefetch\n" + request_.base().SerializeAsString())));
    }
    // The task keeps the stream alive until it has left its result.
    auto keep = this->shared_from_this();
    if (!api_.slow_pool.TrySubmit([this, keep, base] { Import(base); })) return BusyError();
    return absl::OkStatus();
  }

  void Import(const std::string& base) {
    CallLimits limits;
    limits.deadline = limits_.deadline;
    limits.cancelled = [this] { return cancelled(); };
    const auto on_progress = [this](const soup::v1::Progress& progress) {
      {
        absl::MutexLock lock(&shared_.mutex);
        shared_.progress = progress;
      }
      Wake();
    };
    absl::StatusOr<soup::v1::CacheEntry> result =
        api_.orchestrator.Prefetch(request_.base(), base, on_progress, limits);
    {
      absl::MutexLock lock(&shared_.mutex);
      shared_.result = std::move(result);
    }
    Wake();
  }

  const ApiContext& api_;
  const Principal who_;
  const soup::v1::PrefetchCacheRequest request_;
  const CallLimits limits_;
  Shared shared_;
  bool started_ = false;
  bool done_ = false;
};

// "MemTotal:  123 kB" of /proc/meminfo; 0 when it is not there.
int64_t MemoryInfoBytes(absl::string_view text, absl::string_view key) {
  for (const absl::string_view line : absl::StrSplit(text, '\n')) {
    const std::vector<absl::string_view> words =
        absl::StrSplit(line, absl::ByAnyChar(": "), absl::SkipEmpty());
    int64_t kib = 0;
    if (words.size() >= 2 && words[0] == key && absl::SimpleAtoi(words[1], &kib)) return kib << 10;
  }
  return 0;
}

void FillHost(const ApiContext& api, soup::v1::Node* node) {
  node->set_version(SOUP_VERSION);
  utsname name{};
  if (uname(&name) == 0) node->set_hostname(name.nodename);
  node->set_cpu_cores(static_cast<int32_t>(std::thread::hardware_concurrency()));
  engine::FileSystem& fs = engine::RealFileSystem();
  const absl::StatusOr<std::string> memory = fs.ReadFile("/proc/meminfo");
  if (memory.ok()) {
    node->set_memory_total_bytes(MemoryInfoBytes(*memory, "MemTotal"));
    node->set_memory_available_bytes(MemoryInfoBytes(*memory, "MemAvailable"));
  }
  for (const std::string& root : api.config.model_roots) node->add_model_roots(root);
  node->set_state_dir(api.config.state_dir);
  const absl::StatusOr<int64_t> free = fs.FreeBytes(api.config.state_dir);
  if (free.ok()) node->set_state_dir_free_bytes(*free);
}

}  // namespace

grpc::ServerUnaryReactor* SoupService::ListCache(grpc::CallbackServerContext* call,
                                                 const soup::v1::ListCacheRequest*,
                                                 soup::v1::ListCacheReply* reply) {
  return RunUnary(api_, call, api_.slow_pool, [=, this](const Principal&) -> absl::Status {
    SOUP_ASSIGN_OR_RETURN(*reply, api_.orchestrator.ListCache());
    return absl::OkStatus();
  });
}

grpc::ServerWriteReactor<PrefetchReply>* SoupService::PrefetchCache(
    grpc::CallbackServerContext* call, const soup::v1::PrefetchCacheRequest* request) {
  const absl::StatusOr<Principal> who = api_.Authenticate(*call);
  if (!who.ok()) return RefuseStream<PrefetchReply>(who.status());
  return PumpedStream<PrefetchReply>::Begin(
      std::make_shared<PrefetchStream>(api_, *who, *request, LimitsOf(*call)));
}

grpc::ServerUnaryReactor* SoupService::EvictCache(grpc::CallbackServerContext* call,
                                                  const soup::v1::EvictCacheRequest* request,
                                                  soup::v1::EvictCacheReply* reply) {
  return RunUnary(api_, call, api_.slow_pool, [=, this](const Principal& who) -> absl::Status {
    SOUP_RETURN_IF_ERROR(api_.CheckServing());
    if (!who.admin) {
      return absl::PermissionDeniedError(
          "evicting is for admins: the cache is shared by all users");
    }
    if (request->fingerprint().empty()) {
      return absl::InvalidArgumentError(
          "fingerprint is missing: give one that the cache's list shows");
    }
    if (!request->request_id().empty()) {
      SOUP_RETURN_IF_ERROR(api_.store.RememberRequest(
          who.user, request->request_id(),
          Sha256Hex(absl::StrCat("evict\n", request->fingerprint(), "\n", request->format()))));
    }
    SOUP_ASSIGN_OR_RETURN(const int64_t freed,
                          api_.orchestrator.Evict(request->fingerprint(), request->format()));
    reply->set_freed_bytes(freed);
    return absl::OkStatus();
  });
}

grpc::ServerUnaryReactor* SoupService::GetNode(grpc::CallbackServerContext* call,
                                               const soup::v1::GetNodeRequest*,
                                               soup::v1::Node* reply) {
  return RunUnary(api_, call, api_.pool, [=, this](const Principal& who) -> absl::Status {
    FillHost(api_, reply);
    reply->set_storage_healthy(true);
    api_.orchestrator.FillNode(reply);
    const absl::Status storage = api_.store.StorageStatus();
    if (!storage.ok()) {
      reply->set_storage_healthy(false);
      reply->set_storage_message(std::string(storage.message()));
    }
    reply->set_user(who.user);
    reply->set_admin(who.admin);
    return absl::OkStatus();
  });
}

}  // namespace soup::daemon
