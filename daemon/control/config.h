// soupd's configuration: built-in defaults, under an optional YAML file (--config), under flags.
// Unknown flags and unknown keys are refused. Plain values once parsed.
#ifndef SOUP_DAEMON_CONTROL_CONFIG_H_
#define SOUP_DAEMON_CONTROL_CONFIG_H_

#include <sys/types.h>

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace soup::daemon {

struct Config {
  // ---- where things lie (absolute after parsing) ----
  std::string
      state_dir;  // --state-dir; $SOUP_STATE_DIR; $XDG_STATE_HOME/soupd; ~/.local/state/soupd
  std::string cache_dir;                 // --cache-dir; default <state-dir>/cache
  std::vector<std::string> model_roots;  // --model-root, several; real paths
  std::string worker_binary;             // --worker-binary; default: soup-worker beside soupd

  // ---- endpoints ----
  std::string listen;           // --listen unix:PATH; default unix:<state-dir>/soupd.sock
  uint32_t socket_mode = 0666;  // --socket-mode; the peer's uid is the authentication
  std::string listen_tcp;       // --listen-tcp HOST:PORT; empty: off
  std::string tls_cert, tls_key, tls_client_ca;
  std::string token_file;
  std::string metrics_listen = "127.0.0.1:9464";  // --metrics-listen; "off": none; port 0: any
  std::vector<uid_t> admin_uids;  // --admin-uid; root and soupd's own are admins always

  // ---- devices and workers ----
  std::string backend = "auto";  // --backend: auto | cpu | cuda; auto: cuda where a card is found
  int32_t device = 0;            // --device: CUDA's number of the card
  int32_t cpu_threads = 0;       // --cpu-threads of a worker; 0: as many as cores
  int64_t device_memory_limit_bytes =
      0;  // --device-memory-limit: arena + overhead; 0: the device's free memory
  int64_t device_reserve_bytes =
      0;  // --device-reserve: left to others on a card; 0: 1 %, 64 MiB to 512 MiB
  int64_t host_store_limit_bytes = 0;  // --host-store-limit: pinned bytes; 0: from MemAvailable
  int64_t host_reserve_bytes = 0;  // --host-reserve: kept free for others; 0: 5 % at least 512 MiB
  int64_t cache_cap_bytes = 0;     // --cache-cap; 0: none
  int64_t prepare_memory_bytes = int64_t{4}
                                 << 30;  // --prepare-memory: RLIMIT_AS of a --prepare worker
  int64_t prepare_cpu_seconds = 600;     // --prepare-cpu-seconds
  int32_t max_prepares = 2;              // --max-prepares at once
  int32_t worker_heartbeat_timeout_seconds = 60;  // --worker-timeout: silent for so long is dead
  int32_t max_jobs_a_pass = 8;                    // --max-jobs-a-pass

  // ---- limits a user; 0: none ----
  int64_t quota_running = 0;                     // --quota-running
  int64_t quota_queued = 1000;                   // --quota-queued: jobs that have not ended
  int64_t quota_pinned_bytes = 0;                // --quota-pinned
  int64_t max_upload_bytes = int64_t{64} << 30;  // --max-upload

  // ---- what ended jobs leave behind ----
  int32_t keep_days = 7;  // --keep-days: uploads without a job, checkpoints of ended jobs; 0: ever

  int32_t drain_seconds = 30;  // --drain-seconds: SIGTERM to exit at most

  // ---- derived paths ----
  std::string DatabasePath() const { return state_dir + "/soupd.db"; }
  std::string FilesDir() const { return state_dir + "/files"; }
  std::string JobsDir() const { return state_dir + "/jobs"; }
  std::string JobDir(const std::string& id) const { return JobsDir() + "/" + id; }
  std::string MirrorDir(const std::string& id) const { return state_dir + "/mirror/" + id; }
  std::string ArtifactDir(const std::string& id) const { return state_dir + "/artifacts/" + id; }
  std::string FilePath(const std::string& sha256) const { return FilesDir() + "/" + sha256; }
  std::string ProfileDir() const { return state_dir + "/profile"; }
  std::string JobLogPath(const std::string& id) const { return JobDir(id) + "/log.txt"; }
};

// What the command line asks for: serve, or print something and exit.
struct CommandLine {
  enum class Action { kServe, kPrintAndExit, kNewToken };
  Action action = Action::kServe;
  std::string text;  // kPrintAndExit: help or version
  int exit_code = 0;
  std::string token_user;  // kNewToken: soupd token new USER [--admin]
  bool token_admin = false;
  Config config;
};
absl::StatusOr<CommandLine> ParseCommandLine(int argc, const char* const* argv);

}  // namespace soup::daemon

#endif  // SOUP_DAEMON_CONTROL_CONFIG_H_
