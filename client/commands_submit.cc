// submit, plan, data preview.
#include <filesystem>
#include <memory>

#include "absl/strings/str_cat.h"
#include "client/cli.h"
#include "client/exit_codes.h"
#include "client/follow.h"
#include "client/job_file.h"
#include "client/output_folder.h"
#include "client/units.h"
#include "client/upload.h"
#include "client/views.h"
#include "engine/base/status_macros.h"

namespace soup::client {
namespace {

struct SubmitFlags {
  std::string path;
  std::string name;
  std::vector<std::string> overrides;
  std::string request_id;
  bool wait = false;
  bool watch = false;
  int records = 3;
  FollowFlags follow;
};

// Uploads as a bar on a terminal, else a line a file.
class UploadPrinter final : public UploadObserver {
 public:
  explicit UploadPrinter(Terminal* terminal) : terminal_(*terminal) {}

  void Hashing(const std::string& name, int64_t done, int64_t total) override {
    Bar("hashing", name, done, total);
  }
  void Sending(const std::string& name, int64_t done, int64_t total) override {
    if (sending_ != name) {
      sending_ = name;
      if (!terminal_.err_is_terminal()) {
        terminal_.Say(absl::StrCat("uploading ", Printable(name), " (",
                                   HumanSize(static_cast<double>(total)), ")"));
      }
    }
    Bar("uploading", name, done, total);
  }
  void AlreadyThere(const std::string& name, int64_t total) override {
    terminal_.Say(absl::StrCat(Printable(name), " (", HumanSize(static_cast<double>(total)),
                               ") was uploaded before"));
  }
  void Sent(const std::string& name, int64_t total) override {
    terminal_.Say(absl::StrCat("uploaded ", Printable(name), " (",
                               HumanSize(static_cast<double>(total)), ")"));
  }
  void Retrying(const std::string& name, const absl::Status& why) override {
    terminal_.Say(
        absl::StrCat("upload of ", Printable(name), " broke off, trying again: ", why.message()));
  }

 private:
  void Bar(const char* what, const std::string& name, int64_t done, int64_t total) {
    const double part = total > 0 ? static_cast<double>(done) / static_cast<double>(total) : 1;
    terminal_.Status(absl::StrCat(what, " ", Printable(name), " ", ProgressBar(part, 22), " ",
                                  HumanSize(static_cast<double>(done)), " of ",
                                  HumanSize(static_cast<double>(total))));
  }

  Terminal& terminal_;
  std::string sending_;
};

absl::StatusOr<JobFile> Read(Cli* cli, const SubmitFlags& flags) {
  SOUP_ASSIGN_OR_RETURN(JobFile job, ReadJobFile(flags.path, {.name = flags.name,
                                                              .overrides = flags.overrides,
                                                              .cwd = cli->CurrentDirectory()}));
  SOUP_RETURN_IF_ERROR(CheckLocalFiles(job));
  return job;
}

absl::Status Upload(Cli* cli, Api* api, JobFile* job) {
  UploadPrinter printer(&cli->terminal);
  const absl::Status status = UploadFiles(api, job, &printer);
  cli->terminal.ClearStatus();
  return status;
}

absl::Status CheckOutput(Cli* cli, JobFile* job, const SubmitFlags& flags) {
  std::string folder = job->spec.output();
  if (!flags.follow.output.empty()) {
    folder = (std::filesystem::path(cli->CurrentDirectory()) / flags.follow.output)
                 .lexically_normal()
                 .string();
    job->spec.set_output(folder);
  }
  if (folder.empty()) return absl::OkStatus();
  SOUP_RETURN_IF_ERROR(CheckOutputFolder(folder));
  std::error_code ec;
  if (std::filesystem::exists(folder + "/adapter_model.safetensors", ec)) {
    cli->terminal.Say(
        absl::StrCat("note: ", folder, " holds an adapter; this job's will replace it"));
  }
  return absl::OkStatus();
}

absl::Status RunSubmit(Cli* cli, const SubmitFlags& flags) {
  const bool follows = flags.wait || flags.watch;
  FollowFlags follow = flags.follow;
  follow.show_steps = flags.watch;
  if (!follows && (!follow.timeout.empty() || follow.no_fetch || follow.every != 1)) {
    return UsageError("--timeout, --no-fetch and --every need --wait or --watch");
  }
  SOUP_ASSIGN_OR_RETURN(
      const OutputFormat format,
      cli->Format(OutputFormat::kName, {OutputFormat::kTable, OutputFormat::kJson,
                                        OutputFormat::kYaml, OutputFormat::kName}));
  SOUP_ASSIGN_OR_RETURN(JobFile job_file, Read(cli, flags));
  SOUP_RETURN_IF_ERROR(CheckOutput(cli, &job_file, flags));
  SOUP_ASSIGN_OR_RETURN(Api * api, cli->GetApi());
  SOUP_RETURN_IF_ERROR(Upload(cli, api, &job_file));
  SOUP_ASSIGN_OR_RETURN(
      const soup::v1::Job job,
      api->Submit(job_file.spec, flags.request_id.empty() ? NewRequestId() : flags.request_id));
  cli->terminal.Say(
      absl::StrCat("submitted ", Printable(job.spec().name()), " as ", job.id(),
                   follows ? "" : absl::StrCat("; to follow it: soupctl watch ", job.id())));
  for (const std::string& warning : job.warnings()) {
    cli->terminal.Say(absl::StrCat("warning: ", Printable(warning)));
  }
  // With -o and a follow, the follow prints; the id alone is printed at once, for scripts.
  if (!follows || cli->output_format.empty() || format == OutputFormat::kName) {
    cli->PrintJob(job, format);
  }
  if (!follows) return absl::OkStatus();
  // What went to stdout already is not printed again at the end.
  if (format == OutputFormat::kName) cli->output_format.clear();
  return Follow(cli, api, job, follow);
}

absl::Status RunPlan(Cli* cli, const SubmitFlags& flags) {
  SOUP_ASSIGN_OR_RETURN(
      const OutputFormat format,
      cli->Format(OutputFormat::kTable,
                  {OutputFormat::kTable, OutputFormat::kJson, OutputFormat::kYaml}));
  SOUP_ASSIGN_OR_RETURN(JobFile job, Read(cli, flags));
  SOUP_ASSIGN_OR_RETURN(Api * api, cli->GetApi());
  SOUP_RETURN_IF_ERROR(Upload(cli, api, &job));
  SOUP_ASSIGN_OR_RETURN(const soup::v1::PlanReply plan, api->Plan(job.spec));
  if (format == OutputFormat::kTable) {
    cli->terminal.Print(PlanTable(plan, cli->terminal.out_has_color()));
  } else {
    cli->PrintMessage(plan, format);
  }
  if (plan.fits()) return absl::OkStatus();
  return ErrorWithExitCode(ExitCode::kError, plan.verdict());
}

absl::Status RunPreview(Cli* cli, const SubmitFlags& flags) {
  SOUP_ASSIGN_OR_RETURN(
      const OutputFormat format,
      cli->Format(OutputFormat::kTable,
                  {OutputFormat::kTable, OutputFormat::kJson, OutputFormat::kYaml}));
  SOUP_ASSIGN_OR_RETURN(JobFile job, Read(cli, flags));
  SOUP_ASSIGN_OR_RETURN(Api * api, cli->GetApi());
  SOUP_RETURN_IF_ERROR(Upload(cli, api, &job));
  soup::v1::PreviewDataRequest request;
  *request.mutable_spec() = job.spec;
  request.set_records(flags.records);
  SOUP_ASSIGN_OR_RETURN(const soup::v1::PreviewDataReply preview, api->PreviewData(request));
  if (format == OutputFormat::kTable) {
    cli->terminal.Print(PreviewText(preview, cli->terminal.out_has_color()));
  } else {
    cli->PrintMessage(preview, format);
  }
  return absl::OkStatus();
}

void AddJobFileFlags(CLI::App* verb, SubmitFlags* flags) {
  verb->add_option("job_file", flags->path, "The job in YAML, or - for standard input")->required();
  verb->add_option("--name", flags->name, "The job's name, instead of the file's");
  verb->add_option("--set", flags->overrides,
                   "Override a key, e.g. --set training.epochs=3 (may be repeated)")
      ->allow_extra_args(false);
}

}  // namespace

void AddSubmitCommands(CLI::App* app, Cli* cli) {
  auto submit = std::make_shared<SubmitFlags>();
  CLI::App* verb = AddVerb(app, cli, "submit", "Upload a job's data and put the job in the queue",
                           [cli, submit] { return RunSubmit(cli, *submit); });
  AddJobFileFlags(verb, submit.get());
  CLI::Option* wait = verb->add_flag("--wait", submit->wait, "Wait until it ends, then fetch");
  verb->add_flag("--watch", submit->watch, "Show it step by step until it ends, then fetch")
      ->excludes(wait);
  verb->add_option("--request-id", submit->request_id,
                   "Makes a repeat of this very submit harmless; random when not given");
  AddFollowFlags(verb, &submit->follow, /*steps=*/false);
  verb->add_option("--every", submit->follow.every, "With --watch: print every n-th step")
      ->check(CLI::PositiveNumber);

  auto plan = std::make_shared<SubmitFlags>();
  verb = AddVerb(app, cli, "plan", "Show memory and time of a job without submitting it",
                 [cli, plan] { return RunPlan(cli, *plan); });
  AddJobFileFlags(verb, plan.get());

  CLI::App* data = app->add_subcommand("data", "Look at training data");
  data->require_subcommand(1);
  auto preview = std::make_shared<SubmitFlags>();
  verb = AddVerb(data, cli, "preview", "Show records as tokens, with those that count in the loss",
                 [cli, preview] { return RunPreview(cli, *preview); });
  AddJobFileFlags(verb, preview.get());
  verb->add_option("--records", preview->records, "How many records")
      ->capture_default_str()
      ->check(CLI::Range(0, 1000));
}

}  // namespace soup::client
