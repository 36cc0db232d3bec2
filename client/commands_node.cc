// node, top, version.
#include <memory>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "client/cli.h"
#include "client/exit_codes.h"
#include "client/interrupt.h"
#include "client/units.h"
#include "client/views.h"
#include "engine/base/status_macros.h"
#include "nlohmann/json.hpp"

namespace soup::client {
namespace {

using soup::v1::Job;
using soup::v1::Node;

const std::vector<OutputFormat> kMessageForms = {OutputFormat::kTable, OutputFormat::kJson,
                                                 OutputFormat::kYaml};
constexpr int kTopJobs = 200;

absl::Status RunNode(Cli* cli) {
  SOUP_ASSIGN_OR_RETURN(
      const OutputFormat format,
      cli->Format(OutputFormat::kTable, {OutputFormat::kTable, OutputFormat::kJson,
                                         OutputFormat::kYaml, OutputFormat::kName}));
  SOUP_ASSIGN_OR_RETURN(Api * api, cli->GetApi());
  SOUP_ASSIGN_OR_RETURN(const Node node, api->GetNode());
  if (format == OutputFormat::kTable) {
    cli->terminal.Print(NodeDetails(node, cli->terminal.out_has_color()));
  } else if (format == OutputFormat::kName) {
    cli->terminal.Print(absl::StrCat(Printable(node.hostname()), "\n"));
  } else {
    cli->PrintMessage(node, format);
  }
  return absl::OkStatus();
}

struct TopFlags {
  std::string interval = "2s";
  bool once = false;
  bool all_users = false;
};

// Node and the jobs that have not ended, on one screen.
absl::StatusOr<std::string> TopScreen(Cli* cli, Api* api, const TopFlags& flags) {
  SOUP_ASSIGN_OR_RETURN(const Node node, api->GetNode());
  soup::v1::ListRequest request;
  request.set_all_users(flags.all_users);
  for (const auto state :
       {soup::v1::QUEUED, soup::v1::PREPARING, soup::v1::RUNNING, soup::v1::PAUSING,
        soup::v1::PAUSED, soup::v1::CANCELLING, soup::v1::FINALIZING}) {
    request.add_states(state);
  }
  bool more = false;
  SOUP_ASSIGN_OR_RETURN(const std::vector<Job> jobs, api->List(request, kTopJobs, &more));
  std::string out = absl::StrCat(
      cli->terminal.Out(Color::kBold, Printable(node.hostname())), "  ",
      absl::FormatTime("%H:%M:%S", absl::Now(), absl::LocalTimeZone()), "  memory ",
      HumanSize(static_cast<double>(node.memory_available_bytes())), " free of ",
      HumanSize(static_cast<double>(node.memory_total_bytes())), "  cache ",
      HumanSize(static_cast<double>(node.cache_bytes())), "  disk ",
      HumanSize(static_cast<double>(node.state_dir_free_bytes())), " free",
      node.storage_healthy() ? "" : cli->terminal.Out(Color::kRed, "  STORAGE NOT HEALTHY"), "\n");
  for (const auto& w : node.workers()) {
    absl::StrAppend(&out, "worker ", w.pid(), " ", Printable(w.state()), " on ",
                    Printable(w.device()), ", restarts ", w.restarts(), "\n");
  }
  absl::StrAppend(&out, "\n",
                  jobs.empty() ? "no jobs that have not ended\n"
                               : JobTable(jobs, cli->NowUnixMs(), cli->terminal.out_has_color()));
  if (more) absl::StrAppend(&out, "… and more; see: soupctl list --limit 0\n");
  return out;
}

// Cut to the window, so that the screen never scrolls.
std::string Fit(const std::string& screen, int rows, int columns) {
  std::string out;
  int row = 0;
  for (const absl::string_view line : absl::StrSplit(screen, '\n')) {
    if (++row >= rows) break;
    absl::StrAppend(&out, CutToWidth(line, static_cast<size_t>(columns)), "\x1b[0m\x1b[K\n");
  }
  return out;
}

absl::Status RunTop(Cli* cli, const TopFlags& flags) {
  SOUP_ASSIGN_OR_RETURN(const OutputFormat format,
                        cli->Format(OutputFormat::kTable, {OutputFormat::kTable}));
  static_cast<void>(format);
  const auto interval = ParseDuration(flags.interval);
  if (!interval.ok()) return UsageError(absl::StrCat("--interval: ", interval.status().message()));
  SOUP_ASSIGN_OR_RETURN(Api * api, cli->GetApi());
  // Not on a terminal: one look, so that a pipe or a log gets something finite.
  const bool live = cli->terminal.out_is_terminal() && !flags.once;
  bool first = true;
  for (;;) {
    const absl::StatusOr<std::string> screen = TopScreen(cli, api, flags);
    if (!screen.ok() && (first || !IsRetriable(screen.status()))) return screen.status();
    if (!live) {
      cli->terminal.Print(*screen);
      return absl::OkStatus();
    }
    const std::string text = screen.ok() ? *screen : std::string(screen.status().message());
    cli->terminal.Print(absl::StrCat(first ? "\x1b[2J" : "", "\x1b[H",
                                     Fit(text, cli->terminal.rows(), cli->terminal.columns()),
                                     "\x1b[J"));
    first = false;
    // Ctrl-C is how a live view is left, no error.
    if (!SleepUnlessInterrupted(absl::Seconds(*interval))) return absl::OkStatus();
  }
}

absl::Status RunVersion(Cli* cli, bool server) {
  SOUP_ASSIGN_OR_RETURN(const OutputFormat format,
                        cli->Format(OutputFormat::kTable, kMessageForms));
  nlohmann::ordered_json versions = {{"soupctl", SOUP_VERSION}};
  if (server) {
    SOUP_ASSIGN_OR_RETURN(Api * api, cli->GetApi());
    SOUP_ASSIGN_OR_RETURN(const Node node, api->GetNode());
    versions["soupd"] = node.version();
  }
  const std::string json = versions.dump(1);
  if (format == OutputFormat::kJson) {
    cli->terminal.Print(json + "\n");
  } else if (format == OutputFormat::kYaml) {
    cli->terminal.Print(JsonToYaml(json));
  } else {
    for (const auto& [program, version] : versions.items()) {
      cli->terminal.Print(absl::StrCat(program, " ", Printable(version.get<std::string>()), "\n"));
    }
  }
  return absl::OkStatus();
}

}  // namespace

void AddNodeCommands(CLI::App* app, Cli* cli) {
  AddVerb(app, cli, "node", "Show soupd's host: devices, memory, bases, workers, storage",
          [cli] { return RunNode(cli); });

  auto top = std::make_shared<TopFlags>();
  CLI::App* verb = AddVerb(app, cli, "top", "Live view of the node and its jobs; Ctrl-C leaves it",
                           [cli, top] { return RunTop(cli, *top); });
  verb->add_option("--interval", top->interval, "Time between looks")->capture_default_str();
  verb->add_flag("--once", top->once, "One look, as when the output is no terminal");
  verb->add_flag("--all-users", top->all_users, "Jobs of everybody (admins)");

  auto server = std::make_shared<bool>(false);
  verb = AddVerb(app, cli, "version", "Print the version",
                 [cli, server] { return RunVersion(cli, *server); });
  verb->add_flag("--server", *server, "soupd's, too");
}

}  // namespace soup::client
