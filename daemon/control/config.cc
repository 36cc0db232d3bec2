#include "daemon/control/config.h"

#include <limits.h>
#include <pwd.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>
#include <yaml-cpp/yaml.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <istream>
#include <set>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "daemon/control/metrics_endpoint.h"
#include "daemon/control/text.h"
#include "engine/base/status_macros.h"

namespace soup::daemon {
namespace {

// The YAML file as CLI11 wants it: the keys are the flags' names, dashes or underscores; unknown
// ones are refused by CLI11, repeated ones here.
class YamlConfig final : public CLI::Config {
 public:
  std::string to_config(const CLI::App*, bool, bool, std::string) const override { return ""; }

  std::vector<CLI::ConfigItem> from_config(std::istream& input) const override {
    YAML::Node root;
    try {
      root = YAML::Load(input);
    } catch (const YAML::Exception& e) {
      throw CLI::FileError(std::string("the configuration file is not YAML: ") + e.what(),
                           CLI::ExitCodes::FileError);
    }
    std::vector<CLI::ConfigItem> items;
    if (root.IsNull()) return items;
    if (!root.IsMap()) throw Error("the configuration file must be a map of flag names to values");
    std::set<std::string> seen;
    for (const auto& entry : root) {
      CLI::ConfigItem item;
      item.name = entry.first.as<std::string>();
      std::replace(item.name.begin(), item.name.end(), '_', '-');
      if (!seen.insert(item.name).second) throw Error("key " + item.name + " is there twice");
      if (entry.second.IsScalar()) {
        item.inputs.push_back(entry.second.as<std::string>());
      } else if (entry.second.IsSequence()) {
        for (const auto& value : entry.second) {
          if (!value.IsScalar()) throw Error("key " + item.name + " must be a list of values");
          item.inputs.push_back(value.as<std::string>());
        }
      } else {
        throw Error("key " + item.name + " must be a value or a list of values");
      }
      items.push_back(std::move(item));
    }
    return items;
  }

 private:
  static CLI::FileError Error(const std::string& text) {
    return CLI::FileError(text, CLI::ExitCodes::FileError);
  }
};

// Text that needs a second look after parsing.
struct RawOptions {
  std::string socket_mode;
};

void AddPlaces(CLI::App& app, Config& c) {
  app.add_option("--state-dir", c.state_dir,
                 "Jobs, uploads, mirrors, artifacts (default: $SOUP_STATE_DIR, "
                 "$XDG_STATE_HOME/soupd, ~/.local/state/soupd)");
  app.add_option("--cache-dir", c.cache_dir, "Shard cache (default: <state-dir>/cache)");
  app.add_option("--model-root", c.model_roots,
                 "Folder under which base models may lie; may be given several times");
  app.add_option("--worker-binary", c.worker_binary, "soup-worker (default: beside soupd)");
}

void AddEndpoints(CLI::App& app, Config& c, RawOptions& raw) {
  app.add_option("--listen", c.listen, "unix:PATH (default: unix:<state-dir>/soupd.sock)");
  app.add_option("--socket-mode", raw.socket_mode,
                 "Permissions of the socket, octal; the peer's uid is the authentication "
                 "(default: 0666)");
  app.add_option("--listen-tcp", c.listen_tcp, "HOST:PORT, with TLS only (default: off)");
  app.add_option("--tls-cert", c.tls_cert, "Certificate chain of the TCP endpoint, PEM");
  app.add_option("--tls-key", c.tls_key, "Its private key, PEM");
  app.add_option("--tls-client-ca", c.tls_client_ca,
                 "Ask clients for a certificate of this CA (mutual TLS), PEM");
  app.add_option("--token-file", c.token_file,
                 "Lines `token user [admin]`, mode 0600; see `soupd token new`");
  app.add_option("--metrics-listen", c.metrics_listen,
                 "HOST:PORT of /metrics and /healthz, port 0 for any, or off")
      ->capture_default_str();
  app.add_option("--admin-uid", c.admin_uids,
                 "User id that sees and touches all jobs; may be given several times (root and "
                 "soupd's own always do)");
}

void AddWorkers(CLI::App& app, Config& c) {
  const auto bytes = [&](const char* name, int64_t& value, const char* help) {
    app.add_option(name, value, help)->transform(CLI::AsSizeValue(true));
  };
  app.add_option("--backend", c.backend,
                 "What jobs run on: cuda, cpu, or auto: cuda where a card is found, else cpu")
      ->capture_default_str();
  app.add_option("--device", c.device, "CUDA's number of the card")
      ->check(CLI::Range(0, 255))
      ->capture_default_str();
  app.add_option("--cpu-threads", c.cpu_threads, "Threads of a worker (default: one a core)")
      ->check(CLI::Range(0, 4096));
  bytes("--device-memory-limit", c.device_memory_limit_bytes,
        "Most device memory of a worker's process, e.g. 8GiB (default: what is free on the card; "
        "on the CPU half of the memory that is available)");
  bytes("--device-reserve", c.device_reserve_bytes,
        "Memory of a card left to others (default: 1 %, 64 MiB to 512 MiB); not looked at on the "
        "CPU");
  bytes("--host-store-limit", c.host_store_limit_bytes,
        "Most host memory for base models (default: from what is available)");
  bytes("--host-reserve", c.host_reserve_bytes,
        "Host memory left to others (default: 5 %, at least 512 MiB)");
  bytes("--cache-cap", c.cache_cap_bytes, "Most bytes of the shard cache (default: no limit)");
  bytes("--prepare-memory", c.prepare_memory_bytes,
        "Address space of a process that tokenises users' data (default: 4GiB)");
  app.add_option("--prepare-cpu-seconds", c.prepare_cpu_seconds, "Its CPU time")
      ->check(CLI::Range(1, 1'000'000))
      ->capture_default_str();
  app.add_option("--max-prepares", c.max_prepares, "How many of these at once")
      ->check(CLI::Range(1, 64))
      ->capture_default_str();
  app.add_option("--worker-timeout", c.worker_heartbeat_timeout_seconds,
                 "Seconds after which a silent worker is dead (3 at least: it tells of itself each "
                 "second)")
      ->check(CLI::Range(3, 3600))
      ->capture_default_str();
  app.add_option("--max-jobs-a-pass", c.max_jobs_a_pass, "Most jobs that share a pass")
      ->check(CLI::Range(1, 1024))
      ->capture_default_str();
}

void AddLimits(CLI::App& app, Config& c) {
  constexpr int64_t kMost = int64_t{1} << 40;
  app.add_option("--quota-running", c.quota_running, "Running jobs of a user; 0: no limit")
      ->check(CLI::Range(int64_t{0}, kMost))
      ->capture_default_str();
  app.add_option("--quota-queued", c.quota_queued,
                 "Jobs of a user that have not ended; 0: no limit")
      ->check(CLI::Range(int64_t{0}, kMost))
      ->capture_default_str();
  app.add_option("--quota-pinned", c.quota_pinned_bytes,
                 "Bytes of base models that a user's jobs may hold; 0: no limit")
      ->transform(CLI::AsSizeValue(true));
  app.add_option("--max-upload", c.max_upload_bytes, "Largest file (default: 64GiB)")
      ->transform(CLI::AsSizeValue(true));
  app.add_option("--keep-days", c.keep_days,
                 "Days for which uploads that no job needs and checkpoints of ended jobs are kept; "
                 "0: for ever")
      ->check(CLI::Range(0, 36500))
      ->capture_default_str();
  app.add_option("--drain-seconds", c.drain_seconds, "From SIGTERM to exit at most")
      ->check(CLI::Range(1, 3600))
      ->capture_default_str();
}

std::string HomeDirectory() {
  if (const char* home = std::getenv("HOME"); home != nullptr && *home != '\0') return home;
  const passwd* entry = getpwuid(geteuid());
  return entry == nullptr ? "" : entry->pw_dir;
}

std::string DefaultStateDir() {
  if (const char* dir = std::getenv("SOUP_STATE_DIR"); dir != nullptr && *dir != '\0') return dir;
  if (const char* xdg = std::getenv("XDG_STATE_HOME"); xdg != nullptr && *xdg != '\0') {
    return absl::StrCat(xdg, "/soupd");
  }
  const std::string home = HomeDirectory();
  return home.empty() ? "" : absl::StrCat(home, "/.local/state/soupd");
}

std::string Absolute(const std::string& path) {
  std::error_code error;
  const std::filesystem::path absolute = std::filesystem::absolute(path, error).lexically_normal();
  std::string text = error ? path : absolute.string();
  while (text.size() > 1 && text.back() == '/') text.pop_back();
  return text;
}

absl::StatusOr<std::string> RealFolder(const std::string& path, const std::string& flag) {
  char real[PATH_MAX];
  struct stat st {};
  if (realpath(path.c_str(), real) == nullptr || stat(real, &st) != 0 || !S_ISDIR(st.st_mode)) {
    return absl::InvalidArgumentError(
        absl::StrCat(flag, " ", path,
                     " is not a folder that soupd can reach; make it or fix the "
                     "path"));
  }
  return std::string(real);
}

std::string ProgramFolder() {
  std::error_code error;
  return std::filesystem::read_symlink("/proc/self/exe", error).parent_path().string();
}

absl::Status ResolvePlaces(Config& c) {
  if (c.state_dir.empty()) c.state_dir = DefaultStateDir();
  if (c.state_dir.empty()) {
    return absl::InvalidArgumentError("no state directory: give --state-dir or set HOME");
  }
  c.state_dir = Absolute(c.state_dir);
  c.cache_dir = c.cache_dir.empty() ? c.state_dir + "/cache" : Absolute(c.cache_dir);
  if (c.worker_binary.empty()) c.worker_binary = ProgramFolder() + "/soup-worker";
  c.worker_binary = Absolute(c.worker_binary);
  if (access(c.worker_binary.c_str(), X_OK) != 0) {
    return absl::InvalidArgumentError(absl::StrCat(
        "no soup-worker at ", c.worker_binary, "; put it beside soupd or give --worker-binary"));
  }
  for (std::string& root : c.model_roots) {
    SOUP_ASSIGN_OR_RETURN(root, RealFolder(root, "--model-root"));
  }
  std::sort(c.model_roots.begin(), c.model_roots.end());
  c.model_roots.erase(std::unique(c.model_roots.begin(), c.model_roots.end()), c.model_roots.end());
  return absl::OkStatus();
}

absl::Status CheckEndpoints(Config& c, const RawOptions& raw) {
  if (c.listen.empty()) c.listen = absl::StrCat("unix:", c.state_dir, "/soupd.sock");
  if (!absl::StartsWith(c.listen, "unix:") || c.listen.size() == 5) {
    return absl::InvalidArgumentError(absl::StrCat(
        "--listen ", c.listen, " must be unix:PATH; for other hosts use --listen-tcp with TLS"));
  }
  const std::string path = Absolute(c.listen.substr(5));
  if (path.size() >= sizeof(sockaddr_un{}.sun_path)) {
    return absl::InvalidArgumentError(
        absl::StrCat("the socket's path ", path, " has ", path.size(), " bytes, at most ",
                     sizeof(sockaddr_un{}.sun_path) - 1, " work; give --listen unix:PATH"));
  }
  c.listen = "unix:" + path;
  if (!raw.socket_mode.empty()) {
    char* end = nullptr;
    const unsigned long mode = std::strtoul(raw.socket_mode.c_str(), &end, 8);
    if (*end != '\0' || mode > 0777 || (mode & 0600) != 0600) {
      return absl::InvalidArgumentError(
          absl::StrCat("--socket-mode ", raw.socket_mode, " must be octal, 0600 to 0777"));
    }
    c.socket_mode = static_cast<uint32_t>(mode);
  }
  if (c.metrics_listen != "off") {
    SOUP_RETURN_IF_ERROR(ParseHostPort(c.metrics_listen, "--metrics-listen").status());
  }
  const bool any_tls = !c.tls_cert.empty() || !c.tls_key.empty() || !c.tls_client_ca.empty() ||
                       !c.token_file.empty();
  if (c.listen_tcp.empty()) {
    return any_tls ? absl::InvalidArgumentError(
                         "--tls-cert, --tls-key, --tls-client-ca and --token-file belong to "
                         "--listen-tcp, which is not given")
                   : absl::OkStatus();
  }
  SOUP_RETURN_IF_ERROR(ParseHostPort(c.listen_tcp, "--listen-tcp").status());
  if (c.tls_cert.empty() || c.tls_key.empty()) {
    return absl::InvalidArgumentError(
        "--listen-tcp is refused without TLS: give --tls-cert and --tls-key");
  }
  if (c.token_file.empty() && c.tls_client_ca.empty()) {
    return absl::InvalidArgumentError(
        "--listen-tcp is refused without authentication: give --token-file (see `soupd token "
        "new`), --tls-client-ca, or both");
  }
  return absl::OkStatus();
}

absl::Status CheckSizes(const Config& c) {
  if (c.backend != "auto" && c.backend != "cpu" && c.backend != "cuda") {
    return absl::InvalidArgumentError(
        absl::StrCat("--backend ", Quoted(c.backend), " is not one of: auto, cpu, cuda"));
  }
  const std::pair<const char*, int64_t> sizes[] = {
      {"--device-memory-limit", c.device_memory_limit_bytes},
      {"--device-reserve", c.device_reserve_bytes},
      {"--host-store-limit", c.host_store_limit_bytes},
      {"--host-reserve", c.host_reserve_bytes},
      {"--cache-cap", c.cache_cap_bytes},
      {"--quota-pinned", c.quota_pinned_bytes}};
  for (const auto& [name, value] : sizes) {
    if (value < 0) return absl::InvalidArgumentError(absl::StrCat(name, " is negative"));
  }
  if (c.prepare_memory_bytes < (int64_t{64} << 20)) {
    return absl::InvalidArgumentError("--prepare-memory must be at least 64MiB");
  }
  if (c.max_upload_bytes <= 0) return absl::InvalidArgumentError("--max-upload must be positive");
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<CommandLine> ParseCommandLine(int argc, const char* const* argv) {
  CommandLine line;
  RawOptions raw;
  CLI::App app("soupd: keeps base models in memory and trains LoRA adapters on them", "soupd");
  app.set_version_flag("--version", std::string("soupd ") + SOUP_VERSION);
  app.set_config("--config", "", "YAML file with these flags as keys");
  app.config_formatter(std::make_shared<YamlConfig>());
  app.allow_config_extras(CLI::config_extras_mode::error);
  AddPlaces(app, line.config);
  AddEndpoints(app, line.config, raw);
  AddWorkers(app, line.config);
  AddLimits(app, line.config);
  CLI::App* token = app.add_subcommand("token", "Bearer tokens of the TCP endpoint");
  token->require_subcommand(1);
  CLI::App* token_new = token->add_subcommand(
      "new", "Shows a new token (stderr) and prints its line for --token-file");
  token_new->add_option("user", line.token_user, "The user that the token stands for")->required();
  token_new->add_flag("--admin", line.token_admin, "May see and touch all jobs");
  try {
    app.parse(argc, argv);
  } catch (const CLI::Success& e) {  // --help, --version
    std::ostringstream out, err;
    line.exit_code = app.exit(e, out, err);
    line.action = CommandLine::Action::kPrintAndExit;
    line.text = out.str();
    return line;
  } catch (const CLI::ParseError& e) {
    return absl::InvalidArgumentError(absl::StrCat(e.what(), " (soupd --help shows every flag)"));
  }
  if (token_new->parsed()) {
    line.action = CommandLine::Action::kNewToken;
    return line;
  }
  SOUP_RETURN_IF_ERROR(ResolvePlaces(line.config));
  SOUP_RETURN_IF_ERROR(CheckEndpoints(line.config, raw));
  SOUP_RETURN_IF_ERROR(CheckSizes(line.config));
  return line;
}

}  // namespace soup::daemon
