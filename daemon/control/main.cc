// soupd: the composition root. Builds the real clock, store, orchestrator and endpoints, hands them
// down, and waits for a signal.
#include <errno.h>
#include <malloc.h>
#include <pthread.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <systemd/sd-daemon.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <memory>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "daemon/control/api_server.h"
#include "daemon/control/auth.h"
#include "daemon/control/checkpoint_collector.h"
#include "daemon/control/config.h"
#include "daemon/control/make_orchestrator.h"
#include "daemon/control/metrics_endpoint.h"
#include "daemon/control/sha256.h"
#include "daemon/control/state_lock.h"
#include "daemon/control/storage_watch.h"
#include "daemon/control/store_listener.h"
#include "engine/base/file_system.h"
#include "engine/base/log.h"
#include "engine/base/status_macros.h"

namespace soup::daemon {
namespace {

constexpr int64_t kPartialUploadAgeSeconds = 24 * 3600;
constexpr absl::Duration kCollectPeriod = absl::Hours(1);
constexpr absl::Duration kStoragePeriod = absl::Seconds(5);

void RaiseDescriptorLimit() {
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
  limit.rlim_cur = limit.rlim_max;
  if (setrlimit(RLIMIT_NOFILE, &limit) != 0) {
    SOUP_LOG(kWarn, "main") << "cannot raise the limit of open files";
  }
}

pthread_t g_main_thread;

// Runs in threads that block nothing, which libraries start before main does: the signal goes where
// it is waited for.
void PassToMainThread(int signal_number) {
  const int kept = errno;
  pthread_kill(g_main_thread, signal_number);
  errno = kept;
}

// Signals that end soupd are waited for in main, so every thread is started with them blocked.
// Workers are spawned with the mask put back (spawn.h).
sigset_t BlockSignals() {
  g_main_thread = pthread_self();
  sigset_t set;
  sigemptyset(&set);
  struct sigaction action = {};
  action.sa_handler = PassToMainThread;
  action.sa_flags = SA_RESTART;
  for (const int stops : {SIGTERM, SIGINT, SIGHUP}) sigaddset(&set, stops);
  pthread_sigmask(SIG_BLOCK, &set, nullptr);
  for (const int stops : {SIGTERM, SIGINT, SIGHUP}) sigaction(stops, &action, nullptr);
  signal(SIGPIPE, SIG_IGN);
  signal(SIGXFSZ, SIG_IGN);  // a limit on files' sizes is an error of the write: EFBIG
  return set;
}

// Feeds systemd's watchdog, but only when the orchestrator moved and the API's pool answered since.
class Watchdog {
 public:
  Watchdog(const Orchestrator& orchestrator, ThreadPool& pool)
      : orchestrator_(orchestrator), pool_(pool) {
    uint64_t usec = 0;
    if (sd_watchdog_enabled(0, &usec) > 0) period_ = absl::Microseconds(usec) / 3;
  }

  absl::Duration period() const { return period_; }

  void Feed() {
    if (period_ == absl::InfiniteDuration()) return;
    const uint64_t tick = orchestrator_.ProgressTick();
    if (tick == last_tick_ || ping_out_.exchange(true)) return;
    last_tick_ = tick;
    const bool taken = pool_.TrySubmit([this] {
      sd_notify(0, "WATCHDOG=1");
      ping_out_ = false;
    });
    if (!taken) ping_out_ = false;
  }

 private:
  const Orchestrator& orchestrator_;
  ThreadPool& pool_;
  absl::Duration period_ = absl::InfiniteDuration();
  uint64_t last_tick_ = UINT64_MAX;
  std::atomic<bool> ping_out_{false};
};

// Everything that serves, in the order of construction; destroyed backwards.
class Daemon {
 public:
  explicit Daemon(const Config& config)
      : config_(config),
        steps_(config.JobsDir()),
        storage_(&engine::RealFileSystem(), {config.state_dir, config.cache_dir}),
        admins_(config.admin_uids) {}

  absl::Status Start() {
    SOUP_ASSIGN_OR_RETURN(lock_, StateLock::Take(config_.state_dir));
    engine::FileSystem& fs = engine::RealFileSystem();
    for (const char* folder : {"/jobs", "/mirror", "/artifacts"}) {
      SOUP_RETURN_IF_ERROR(fs.CreateDirectories(config_.state_dir + folder));
    }
    SOUP_RETURN_IF_ERROR(fs.CreateDirectories(config_.cache_dir));
    JobStoreOptions options;
    options.path = config_.DatabasePath();
    SOUP_ASSIGN_OR_RETURN(store_, OpenJobStore(options, clock_));
    SOUP_ASSIGN_OR_RETURN(
        uploads_, Uploads::Open(config_.FilesDir(), config_.max_upload_bytes, store_.get()));
    listener_ = std::make_unique<StoreListener>(store_.get(), &hub_, &metrics_, &steps_);
    SOUP_RETURN_IF_ERROR(listener_->Attach());
    SOUP_ASSIGN_OR_RETURN(orchestrator_, MakeOrchestrator({.config = &config_,
                                                           .store = store_.get(),
                                                           .steps = &steps_,
                                                           .hub = &hub_,
                                                           .metrics = &metrics_,
                                                           .storage = &storage_,
                                                           .clock = &clock_}));
    SOUP_RETURN_IF_ERROR(orchestrator_->Start());
    return OpenEndpoints();
  }

  // Until a signal of `signals`; its number.
  int Serve(const sigset_t& signals) {
    absl::Time next_look = absl::InfinitePast();
    absl::Time next_collect = absl::InfinitePast();
    const absl::Duration period = std::min(watchdog_->period(), absl::Seconds(1));
    const timespec wait = absl::ToTimespec(period);
    while (true) {
      const int signal = sigtimedwait(&signals, nullptr, &wait);
      if (signal > 0) return signal;
      watchdog_->Feed();
      if (absl::Now() >= next_look) {
        ShowHealth();
        next_look = absl::Now() + kStoragePeriod;
      }
      if (absl::Now() >= next_collect) {
        Collect();
        next_collect = absl::Now() + kCollectPeriod;
      }
    }
  }

  void Stop() {
    const absl::Time deadline = absl::Now() + absl::Seconds(config_.drain_seconds);
    server_->BeginDrain();
    orchestrator_->Drain(deadline - absl::Milliseconds(500));
    server_->Shutdown(std::max(absl::Now() + absl::Milliseconds(200),
                               std::min(deadline, absl::Now() + absl::Seconds(2))));
    for (const char* name : {"tcp.addr", "metrics.addr"}) TellAddress(name, "");
  }

 private:
  absl::Status OpenEndpoints() {
    if (!config_.token_file.empty()) {
      SOUP_ASSIGN_OR_RETURN(tokens_, TokenFile::Open(config_.token_file));
    }
    pool_ = std::make_unique<ThreadPool>(4, 4096);
    slow_pool_ = std::make_unique<ThreadPool>(16, 256);
    watchdog_ = std::make_unique<Watchdog>(*orchestrator_, *pool_);
    api_.reset(new ApiContext{config_, clock_, *store_, steps_, hub_, *uploads_, *orchestrator_,
                              peers_, admins_, tokens_.get(), *pool_, *slow_pool_});
    SOUP_ASSIGN_OR_RETURN(server_, ApiServer::Start(api_.get(), &peers_));
    SOUP_LOG(kInfo, "main") << "serving on " << config_.listen;
    if (!server_->tcp_address().empty()) {
      SOUP_LOG(kInfo, "main") << "serving on " << server_->tcp_address() << " with TLS";
    }
    TellAddress("tcp.addr", server_->tcp_address());
    TellAddress("metrics.addr", "");  // an earlier soupd's
    if (config_.metrics_listen == "off") return absl::OkStatus();
    SOUP_ASSIGN_OR_RETURN(metrics_endpoint_,
                          MetricsEndpoint::Start(config_.metrics_listen, metrics_, [this] {
                            if (api_->draining) return absl::UnavailableError("stopping");
                            return Storage(Node());
                          }));
    SOUP_LOG(kInfo, "main") << "metrics on http://" << metrics_endpoint_->address() << "/metrics";
    TellAddress("metrics.addr", metrics_endpoint_->address());
    return absl::OkStatus();
  }

  // What nobody needs any more.
  void Collect() {
    const int64_t now_ms = clock_.UnixNs() / 1'000'000;
    uploads_->CollectOld(now_ms, kPartialUploadAgeSeconds);
    if (config_.keep_days == 0) return;
    const int64_t age_seconds = int64_t{config_.keep_days} * 24 * 3600;
    uploads_->CollectUnused(now_ms, age_seconds);
    CollectCheckpoints(config_, *store_, now_ms, age_seconds);
  }

  // A file in the state directory with the address that was taken (port 0), or no file. A help to
  // whoever looks for it: a full disk must not keep soupd from serving.
  void TellAddress(const std::string& name, const std::string& address) {
    engine::FileSystem& fs = engine::RealFileSystem();
    const std::string path = absl::StrCat(config_.state_dir, "/", name);
    absl::Status told = fs.Remove(path);
    if (!address.empty()) told = engine::WriteFileAtomically(fs, path, address + "\n");
    if (told.ok()) return;
    SOUP_LOG(kWarn, "main") << "the address is not told in a file: " << told.message();
    if (absl::IsResourceExhausted(told)) storage_.Failed(told.message());
  }

  soup::v1::Node Node() const {
    soup::v1::Node node;
    node.set_storage_healthy(true);
    orchestrator_->FillNode(&node);
    return node;
  }

  absl::Status Storage(const soup::v1::Node& node) const {
    SOUP_RETURN_IF_ERROR(store_->StorageStatus());
    return node.storage_healthy() ? absl::OkStatus()
                                  : absl::UnavailableError(node.storage_message());
  }

  void ShowHealth() {
    storage_.Probe();
    const soup::v1::Node node = Node();
    const bool healthy = Storage(node).ok();
    metrics_.SetStorageHealthy(healthy);
    server_->SetStorageHealthy(healthy);
    bool workers = true;
    for (const soup::v1::WorkerInfo& worker : node.workers()) workers = workers && worker.up();
    server_->SetWorkerHealthy(workers);
  }

  const Config& config_;
  const engine::Clock& clock_ = engine::RealClock();
  std::unique_ptr<StateLock> lock_;
  EventHub hub_;
  Metrics metrics_;
  StepLogs steps_;
  StorageWatch storage_;
  std::unique_ptr<StoreListener> listener_;
  std::unique_ptr<JobStore> store_;
  std::unique_ptr<Uploads> uploads_;
  std::unique_ptr<Orchestrator> orchestrator_;
  PeerTable peers_;
  const Admins admins_;
  std::unique_ptr<TokenFile> tokens_;
  // Before the pools, whose last tasks use them.
  std::unique_ptr<ApiContext> api_;
  std::unique_ptr<Watchdog> watchdog_;
  std::unique_ptr<ThreadPool> pool_;
  std::unique_ptr<ThreadPool> slow_pool_;
  std::unique_ptr<ApiServer> server_;
  std::unique_ptr<MetricsEndpoint> metrics_endpoint_;
};

int Serve(const Config& config) {
  umask(077);
  mallopt(M_ARENA_MAX, 4);  // many threads, little memory each: arenas of their own only fragment
  RaiseDescriptorLimit();
  const sigset_t signals = BlockSignals();
  if (config.model_roots.empty()) {
    SOUP_LOG(kWarn, "main") << "no --model-root: no base model can be used";
  }
  Daemon daemon(config);
  const absl::Status started = daemon.Start();
  if (!started.ok()) {
    std::fprintf(stderr, "soupd: %s\n", std::string(started.message()).c_str());
    return 1;
  }
  sd_notify(0, "READY=1");
  const int signal = daemon.Serve(signals);
  SOUP_LOG(kInfo, "main") << "signal " << signal << ": stopping within " << config.drain_seconds
                          << " s";
  sd_notify(0, "STOPPING=1");
  daemon.Stop();
  return 0;
}

int PrintNewToken(const CommandLine& line) {
  if (!IsUserName(line.token_user)) {
    std::fprintf(stderr, "soupd: a user has 1 to 64 letters, digits and . _ : @ -\n");
    return 2;
  }
  const std::string token = NewToken();
  // The line for the token file is the output; the token itself is for a pair of eyes.
  std::printf("sha256:%s %s%s\n", Sha256Hex(token).c_str(), line.token_user.c_str(),
              line.token_admin ? " admin" : "");
  std::fprintf(stderr, "token of %s, shown once: %s\n", line.token_user.c_str(), token.c_str());
  return 0;
}

int Main(int argc, char** argv) {
  const absl::StatusOr<CommandLine> line = ParseCommandLine(argc, argv);
  if (!line.ok()) {
    std::fprintf(stderr, "soupd: %s\n", std::string(line.status().message()).c_str());
    return 2;
  }
  switch (line->action) {
    case CommandLine::Action::kPrintAndExit:
      std::fputs(line->text.c_str(), stdout);
      return line->exit_code;
    case CommandLine::Action::kNewToken:
      return PrintNewToken(*line);
    case CommandLine::Action::kServe:
      return Serve(line->config);
  }
  return 2;
}

}  // namespace
}  // namespace soup::daemon

int main(int argc, char** argv) { return soup::daemon::Main(argc, argv); }
