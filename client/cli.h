// What every verb of soupctl shares: the global flags, the terminal, the connection, and printing a
// message in the form that was asked for. Each commands_*.cc adds its verbs to the parser; a verb
// that was chosen leaves its work in `action`, which main runs after parsing.
// One a process; used by one thread.
#ifndef SOUP_CLIENT_CLI_H_
#define SOUP_CLIENT_CLI_H_

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "CLI/CLI.hpp"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "client/api.h"
#include "client/connection.h"
#include "client/format.h"
#include "client/terminal.h"

namespace soup::client {

struct Cli {
  // Global flags.
  ConnectionFlags connection;
  std::string output_format;  // -o; empty: the verb's default
  std::string request_timeout = "30s";
  bool quiet = false;

  Terminal terminal{stdout, stderr};
  std::function<absl::Status()> action;

  // Connects on first use.
  absl::StatusOr<Api*> GetApi();

  // The form asked for; UsageError when the verb does not have it.
  absl::StatusOr<OutputFormat> Format(OutputFormat verb_default,
                                      std::vector<OutputFormat> supported) const;
  // json and yaml.
  void PrintMessage(const google::protobuf::Message& message, OutputFormat format);
  // A job in any form.
  void PrintJob(const soup::v1::Job& job, OutputFormat format);
  int64_t NowUnixMs() const;
  std::string CurrentDirectory() const;

 private:
  std::unique_ptr<Api> api_;
};

// A verb: a subcommand whose callback stores `run`.
CLI::App* AddVerb(CLI::App* parent, Cli* cli, const std::string& name, const std::string& help,
                  std::function<absl::Status()> run);

void AddSubmitCommands(CLI::App* app, Cli* cli);     // submit, plan, data preview
void AddFollowCommands(CLI::App* app, Cli* cli);     // watch, wait, fetch
void AddJobCommands(CLI::App* app, Cli* cli);        // get, list, pause, resume, cancel
void AddRecordCommands(CLI::App* app, Cli* cli);     // logs, metrics
void AddCacheCommands(CLI::App* app, Cli* cli);      // cache ls|prefetch|evict
void AddNodeCommands(CLI::App* app, Cli* cli);       // node, top, version
void AddDoctorCommand(CLI::App* app, Cli* cli);      // doctor
void AddContextCommands(CLI::App* app, Cli* cli);    // context add|use|list|remove|show
void AddCompletionCommand(CLI::App* app, Cli* cli);  // completion bash|zsh|fish

// All of them, with the global flags.
void BuildApp(CLI::App* app, Cli* cli);
// Parses, runs, prints an error; the exit code.
int RunCli(int argc, const char* const* argv);

}  // namespace soup::client

#endif  // SOUP_CLIENT_CLI_H_
