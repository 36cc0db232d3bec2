#include "client/cli.h"

#include <filesystem>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/clock.h"
#include "client/exit_codes.h"
#include "client/interrupt.h"
#include "client/job_schema.h"
#include "client/units.h"
#include "client/views.h"
#include "engine/base/status_macros.h"

namespace soup::client {
namespace {

// "unknown verb": the nearest one, when the first word is none.
std::string SuggestVerb(const CLI::App& app, int argc, const char* const* argv) {
  const CLI::App* level = &app;
  for (int i = 1; i < argc; ++i) {
    const std::string word = argv[i];
    if (word.empty() || word[0] == '-') return "";
    std::vector<std::string> verbs;
    for (const CLI::App* verb : level->get_subcommands(nullptr)) verbs.push_back(verb->get_name());
    if (verbs.empty()) return "";
    const CLI::App* next = nullptr;
    for (const CLI::App* verb : level->get_subcommands(nullptr)) {
      if (verb->get_name() == word) next = verb;
    }
    if (next == nullptr) {
      const std::string near = Nearest(word, verbs);
      return absl::StrCat("unknown verb \"", word, "\"",
                          near.empty() ? "" : absl::StrCat("; did you mean \"", near, "\"?"));
    }
    level = next;
  }
  return "";
}

// As typed: the parser's own message has them backwards.
std::string Unexpected(const CLI::App& app) {
  const std::vector<std::string> words = app.remaining(/*recurse=*/true);
  return absl::StrCat(
      words.size() > 1 ? "these arguments were not expected: " : "this argument was not expected: ",
      absl::StrJoin(words, " "));
}

}  // namespace

absl::StatusOr<Api*> Cli::GetApi() {
  if (api_ == nullptr) {
    const auto seconds = ParseDuration(request_timeout);
    if (!seconds.ok()) {
      return UsageError(absl::StrCat("--request-timeout: ", seconds.status().message()));
    }
    SOUP_ASSIGN_OR_RETURN(api_, Api::Create(connection, absl::Seconds(*seconds)));
  }
  return api_.get();
}

absl::StatusOr<OutputFormat> Cli::Format(OutputFormat verb_default,
                                         std::vector<OutputFormat> supported) const {
  if (output_format.empty()) return verb_default;
  SOUP_ASSIGN_OR_RETURN(const OutputFormat format, ParseOutputFormat(output_format));
  if (std::find(supported.begin(), supported.end(), format) == supported.end()) {
    return UsageError(absl::StrCat("-o ", output_format, " is not a form of this verb's output"));
  }
  return format;
}

void Cli::PrintMessage(const google::protobuf::Message& message, OutputFormat format) {
  terminal.Print(format == OutputFormat::kYaml ? ToYaml(message) : ToJson(message));
}

void Cli::PrintJob(const soup::v1::Job& job, OutputFormat format) {
  switch (format) {
    case OutputFormat::kName:
      return terminal.Print(absl::StrCat(job.id(), "\n"));
    case OutputFormat::kTable:
      return terminal.Print(JobDetails(job, terminal.out_has_color()));
    default:
      return PrintMessage(job, format);
  }
}

int64_t Cli::NowUnixMs() const { return absl::ToUnixMillis(absl::Now()); }

std::string Cli::CurrentDirectory() const {
  std::error_code ec;
  return std::filesystem::current_path(ec).string();
}

CLI::App* AddVerb(CLI::App* parent, Cli* cli, const std::string& name, const std::string& help,
                  std::function<absl::Status()> run) {
  CLI::App* verb = parent->add_subcommand(name, help);
  verb->callback([cli, run = std::move(run)] { cli->action = run; });
  return verb;
}

void BuildApp(CLI::App* app, Cli* cli) {
  app->fallthrough();  // global flags are understood after the verb, too
  app->require_subcommand(1);
  app->add_option("--endpoint", cli->connection.endpoint,
                  "unix:PATH or HOST:PORT (TLS) of soupd [SOUP_ENDPOINT]");
  app->add_option("--context", cli->connection.context,
                  "A named endpoint, see `soupctl context` [SOUP_CONTEXT]");
  app->add_option("--token-file", cli->connection.token_file,
                  "File with the bearer token of a TLS endpoint [SOUP_TOKEN holds a token]");
  app->add_option("--ca", cli->connection.ca,
                  "PEM file of the CA that signed soupd's certificate [SOUP_CA]");
  app->add_option("--server-name", cli->connection.server_name,
                  "Name that soupd's certificate must have, when it is not the endpoint's host");
  app->add_option("-o,--output-format", cli->output_format, "table, json, yaml or name");
  app->add_option("--request-timeout", cli->request_timeout, "Deadline of one request, e.g. 30s")
      ->capture_default_str();
  app->add_flag("-q,--quiet", cli->quiet, "No chatter on stderr, only errors");

  AddSubmitCommands(app, cli);
  AddFollowCommands(app, cli);
  AddJobCommands(app, cli);
  AddRecordCommands(app, cli);
  AddCacheCommands(app, cli);
  AddNodeCommands(app, cli);
  AddDoctorCommand(app, cli);
  AddContextCommands(app, cli);
  AddCompletionCommand(app, cli);
}

int RunCli(int argc, const char* const* argv) {
  Cli cli;
  CLI::App app("Submits LoRA jobs to soupd, follows them and fetches their adapters.", "soupctl");
  BuildApp(&app, &cli);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& e) {
    if (e.get_exit_code() == 0) return app.exit(e);  // --help: prints it on stdout
    std::string why = SuggestVerb(app, argc, argv);
    if (why.empty()) {
      const bool extras = dynamic_cast<const CLI::ExtrasError*>(&e) != nullptr;
      why = extras ? Unexpected(app) : e.what();
    }
    cli.terminal.Error(absl::StrCat("soupctl: ", why, "\nsee: soupctl --help"));
    return static_cast<int>(ExitCode::kUsage);
  }
  cli.terminal.set_quiet(cli.quiet);
  const absl::Status status = cli.action();
  if (!status.ok() && !status.message().empty()) {
    // Messages of jobs, names of files and words of job files are in it.
    cli.terminal.Error(
        absl::StrCat(cli.terminal.Err(Color::kRed, "soupctl: "), PrintableLines(status.message())));
  }
  if (!cli.terminal.Flush() && status.ok()) {
    cli.terminal.Error("soupctl: standard output could not be written");
    return static_cast<int>(ExitCode::kError);
  }
  return static_cast<int>(ExitCodeOf(status));
}

}  // namespace soup::client
