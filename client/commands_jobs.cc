// get, list, pause, resume, cancel.
#include <algorithm>
#include <memory>
#include <set>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/clock.h"
#include "client/cli.h"
#include "client/exit_codes.h"
#include "client/interrupt.h"
#include "client/job_file.h"
#include "client/job_schema.h"
#include "client/units.h"
#include "client/views.h"
#include "engine/base/status_macros.h"

namespace soup::client {
namespace {

using soup::v1::Job;
using soup::v1::JobState;

const std::vector<OutputFormat> kAllForms = {OutputFormat::kTable, OutputFormat::kJson,
                                             OutputFormat::kYaml, OutputFormat::kName};

absl::Status RunGet(Cli* cli, const std::string& name, bool as_job_file) {
  SOUP_ASSIGN_OR_RETURN(const OutputFormat format, cli->Format(OutputFormat::kTable, kAllForms));
  if (as_job_file && !cli->output_format.empty()) {
    return UsageError("--job-file is a form of its own, without -o");
  }
  SOUP_ASSIGN_OR_RETURN(Api * api, cli->GetApi());
  SOUP_ASSIGN_OR_RETURN(const Job job, api->Get(name));
  if (as_job_file) {
    cli->terminal.Print(RenderJobFile(job.spec()));
  } else {
    cli->PrintJob(job, format);
  }
  return absl::OkStatus();
}

struct ListFlags {
  std::vector<std::string> states;
  std::string prefix;
  bool all_users = false;
  int64_t limit = 100;
};

absl::StatusOr<JobState> ParseState(const std::string& text) {
  JobState state;
  if (soup::v1::JobState_Parse(absl::AsciiStrToUpper(text), &state) &&
      state != soup::v1::JOB_STATE_UNSPECIFIED) {
    return state;
  }
  std::vector<std::string> names;
  for (int i = 1; i < soup::v1::JobState_ARRAYSIZE; ++i) {
    names.push_back(JobState_Name(static_cast<JobState>(i)));
  }
  const std::string near = Nearest(text, names);
  return UsageError(absl::StrCat("--state ", text, ": there is no such state; ",
                                 near.empty()
                                     ? absl::StrCat("they are ", absl::StrJoin(names, ", "))
                                     : absl::StrCat("did you mean ", near, "?")));
}

absl::Status RunList(Cli* cli, const ListFlags& flags) {
  SOUP_ASSIGN_OR_RETURN(const OutputFormat format, cli->Format(OutputFormat::kTable, kAllForms));
  soup::v1::ListRequest request;
  request.set_name_prefix(flags.prefix);
  request.set_all_users(flags.all_users);
  for (const std::string& text : flags.states) {
    SOUP_ASSIGN_OR_RETURN(const JobState state, ParseState(text));
    request.add_states(state);
  }
  SOUP_ASSIGN_OR_RETURN(Api * api, cli->GetApi());
  bool more = false;
  SOUP_ASSIGN_OR_RETURN(std::vector<Job> jobs, api->List(request, flags.limit, &more));
  if (more) {
    cli->terminal.Say(
        absl::StrCat("the newest ", jobs.size(), " are shown; --limit 0 shows all of them"));
  }
  if (format == OutputFormat::kTable) {
    if (jobs.empty()) {
      cli->terminal.Say("no jobs");
    } else {
      cli->terminal.Print(JobTable(jobs, cli->NowUnixMs(), cli->terminal.out_has_color()));
    }
  } else if (format == OutputFormat::kName) {
    for (const Job& job : jobs) cli->PrintJob(job, format);
  } else {
    soup::v1::ListReply reply;
    for (Job& job : jobs) *reply.add_jobs() = std::move(job);
    cli->PrintMessage(reply, format);
  }
  return absl::OkStatus();
}

struct ActFlags {
  std::string job;
  bool wait = false;
  std::string timeout = "10m";
};
// A verb that acts on a job, and the states that --wait waits in.
struct Act {
  absl::StatusOr<Job> (Api::*call)(const std::string&);
  std::set<JobState> on_the_way;
  const char* wait_help;
};

absl::StatusOr<Job> AwaitAct(Api* api, Job job, const Act& act, const std::string& timeout) {
  const auto seconds = ParseDuration(timeout);
  if (!seconds.ok()) return UsageError(absl::StrCat("--timeout: ", seconds.status().message()));
  const absl::Time deadline = absl::Now() + absl::Seconds(*seconds);
  while (act.on_the_way.count(job.state()) > 0) {
    if (absl::Now() >= deadline) {
      return ErrorWithExitCode(ExitCode::kWaitTimeout,
                               absl::StrCat("job ", job.id(), " is still ",
                                            JobState_Name(job.state()), " after ", timeout));
    }
    if (!SleepUnlessInterrupted(absl::Milliseconds(200))) {
      return InterruptedError(PendingSignal(),
                              absl::StrCat("job ", job.id(), " is ", JobState_Name(job.state())));
    }
    SOUP_ASSIGN_OR_RETURN(job, api->Get(job.id()));
  }
  return job;
}

absl::Status RunAct(Cli* cli, const Act& act, const ActFlags& flags) {
  SOUP_ASSIGN_OR_RETURN(const OutputFormat format, cli->Format(OutputFormat::kTable, kAllForms));
  SOUP_ASSIGN_OR_RETURN(Api * api, cli->GetApi());
  // By id from here on: a newer job may take the name at any time.
  SOUP_ASSIGN_OR_RETURN(Job job, api->Get(flags.job));
  SOUP_ASSIGN_OR_RETURN(job, (api->*act.call)(job.id()));
  if (flags.wait) {
    SOUP_ASSIGN_OR_RETURN(job, AwaitAct(api, std::move(job), act, flags.timeout));
  }
  cli->terminal.Say(absl::StrCat(Printable(job.spec().name()), " (", job.id(), ") is ",
                                 JobState_Name(job.state())));
  if (!cli->output_format.empty()) cli->PrintJob(job, format);
  // A resumed job may have failed, or stand still again, instead of running.
  const bool resumed = act.call == &Api::Resume;
  if (!flags.wait || !resumed || job.state() == soup::v1::RUNNING ||
      job.state() == soup::v1::FINALIZING) {
    return absl::OkStatus();
  }
  return JobOutcome(job);
}

void AddAct(CLI::App* app, Cli* cli, const char* name, const char* help, const Act& act) {
  auto flags = std::make_shared<ActFlags>();
  CLI::App* verb =
      AddVerb(app, cli, name, help, [cli, act, flags] { return RunAct(cli, act, *flags); });
  verb->add_option("job", flags->job, "Id, or name of your newest job of that name")->required();
  CLI::Option* wait = verb->add_flag("--wait", flags->wait, act.wait_help);
  verb->add_option("--timeout", flags->timeout, "With --wait: at most so long (exit code 6)")
      ->capture_default_str()
      ->needs(wait);
}

}  // namespace

void AddJobCommands(CLI::App* app, Cli* cli) {
  struct GetFlags {
    std::string job;
    bool job_file = false;
  };
  auto get = std::make_shared<GetFlags>();
  CLI::App* verb = AddVerb(app, cli, "get", "Show one job",
                           [cli, get] { return RunGet(cli, get->job, get->job_file); });
  verb->add_option("job", get->job, "Id, or name of your newest job of that name")->required();
  verb->add_flag("--job-file", get->job_file, "Print the job file that submits this job again");

  auto list = std::make_shared<ListFlags>();
  verb = AddVerb(app, cli, "list", "List jobs, newest first",
                 [cli, list] { return RunList(cli, *list); });
  verb->add_option("--state", list->states, "Only jobs in this state (may be repeated)")
      ->allow_extra_args(false);
  verb->add_option("--name", list->prefix, "Only jobs whose name begins so");
  verb->add_flag("--all-users", list->all_users, "Jobs of everybody (admins)");
  verb->add_option("--limit", list->limit, "At most so many; 0: all")
      ->capture_default_str()
      ->check(CLI::NonNegativeNumber);

  constexpr char kUntilStep[] = "Until the step in flight is done";
  const std::set<JobState> stopping = {soup::v1::PAUSING, soup::v1::CANCELLING};
  AddAct(app, cli, "pause", "Stop a job after the step in flight, keeping its state",
         {&Api::Pause, stopping, kUntilStep});
  AddAct(app, cli, "resume", "Put a paused job back in the queue",
         {&Api::Resume, {soup::v1::QUEUED, soup::v1::PREPARING}, "Until it runs, or has ended"});
  AddAct(app, cli, "cancel", "End a job after the step in flight",
         {&Api::Cancel, stopping, kUntilStep});
}

}  // namespace soup::client
