#include "client/follow.h"

#include <cmath>
#include <filesystem>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "client/exit_codes.h"
#include "client/output_folder.h"
#include "client/units.h"
#include "client/views.h"
#include "client/watcher.h"
#include "engine/base/status_macros.h"

namespace soup::client {
namespace {

using soup::v1::Heartbeat;
using soup::v1::Job;
using soup::v1::JobEvent;
using soup::v1::JobState_Name;
using soup::v1::Progress;
using soup::v1::StepRecord;

// Step seconds, smoothed over about the last ten steps, for the time that is left.
class Eta {
 public:
  void Add(double step_seconds) {
    if (step_seconds <= 0) return;
    average_ = average_ == 0 ? step_seconds : 0.9 * average_ + 0.1 * step_seconds;
  }
  // Negative: not known.
  double Left(int64_t step, int64_t total) const {
    return total <= 0 || average_ == 0 ? -1 : average_ * static_cast<double>(total - step);
  }

 private:
  double average_ = 0;
};

// Shows a job's life: one redrawn line on a terminal, else a line a step on stdout and a line a
// change of state on stderr; with json, every item on a line of its own on stdout.
class FollowPrinter final : public WatchObserver {
 public:
  FollowPrinter(Cli* cli, Api* api, const Job& job, const FollowFlags& flags, bool json_lines)
      : terminal_(cli->terminal),
        api_(api),
        job_id_(job.id()),
        flags_(flags),
        json_lines_(json_lines) {
    steps_total_ = job.steps_total();
    state_ = job.state();
    live_ = terminal_.out_is_terminal() && terminal_.err_is_terminal();
    last_step_.set_step(job.steps_done());
  }

  int64_t last_step() const { return last_step_.step(); }

  void OnEvent(const JobEvent& event) override {
    state_ = event.state();
    progress_.Clear();
    if (json_lines_) return PrintItem([&](auto* item) { *item->mutable_event() = event; });
    if (state_ == soup::v1::RUNNING && steps_total_ == 0) {
      // Known once PREPARING is over; without it the line has no total and no time left, no more.
      const absl::StatusOr<Job> job = api_->Get(job_id_);
      if (job.ok()) steps_total_ = job->steps_total();
    }
    std::string line = terminal_.Err(ColorOf(event.state()), JobState_Name(event.state()));
    if (event.reason() != soup::v1::REASON_UNSPECIFIED) {
      absl::StrAppend(&line, " (", Reason_Name(event.reason()), ")");
    }
    if (!event.message().empty()) absl::StrAppend(&line, ": ", Printable(event.message()));
    terminal_.Say(line);
    if (event.state() == soup::v1::PAUSED) {
      terminal_.Say(absl::StrCat("waiting; to let it go on: soupctl resume ", job_id_));
    }
  }

  void OnStep(const StepRecord& step) override {
    eta_.Add(step.step_seconds());
    last_step_ = step;
    progress_.Clear();
    if (!flags_.show_steps) return Redraw();
    const bool due = flags_.every <= 1 || step.step() % flags_.every == 0 ||
                     step.step() == steps_total_ || step.skipped() || step.has_validation_loss();
    if (json_lines_) {
      if (due) PrintItem([&](auto* item) { *item->mutable_step() = step; });
    } else if (!live_) {
      if (due) {
        terminal_.Print(
            absl::StrCat(StepLine(step, steps_total_, eta_.Left(step.step(), steps_total_)), "\n"));
      }
    } else if (step.skipped()) {
      terminal_.Say(StepLine(step, steps_total_, -1));
    }
    Redraw();
  }

  void OnProgress(const Progress& progress) override {
    if (json_lines_) return PrintItem([&](auto* item) { *item->mutable_progress() = progress; });
    const bool new_stage = progress.stage() != progress_.stage();
    progress_ = progress;
    if (!terminal_.err_is_terminal() && new_stage) {
      terminal_.Say(absl::StrCat(
          "  ", Printable(progress.stage()),
          progress.message().empty() ? "" : absl::StrCat(": ", Printable(progress.message()))));
    }
    Redraw();
  }

  void OnHeartbeat(const Heartbeat& heartbeat) override {
    if (heartbeat.steps_total() > 0) steps_total_ = heartbeat.steps_total();
  }

  void OnDisconnected(const absl::Status& why, absl::Duration wait) override {
    if (!std::exchange(disconnected_, true)) {
      terminal_.Say(absl::StrCat("connection lost, trying again: ", why.message()));
    }
  }
  void OnReconnected() override {
    disconnected_ = false;
    terminal_.Say("connected again");
  }
  void OnTick() override { Redraw(); }

 private:
  template <typename Fn>
  void PrintItem(Fn fill) {
    soup::v1::WatchReply item;
    fill(&item);
    terminal_.Print(ToJsonLine(item));
  }

  void Redraw() {
    if (!terminal_.err_is_terminal() || json_lines_) return;
    if (flags_.show_steps && !live_) return;  // the steps go to a pipe, the terminal stays quiet
    std::string line = terminal_.Err(ColorOf(state_), JobState_Name(state_));
    if (!progress_.stage().empty()) {
      absl::StrAppend(&line, "  ", ProgressText(progress_));
    } else if (last_step_.step() > 0 && last_step_.step_seconds() > 0) {
      if (steps_total_ > 0) {
        absl::StrAppend(
            &line, " ",
            ProgressBar(static_cast<double>(last_step_.step()) / static_cast<double>(steps_total_),
                        18));
      }
      absl::StrAppend(
          &line, " ",
          StepLine(last_step_, steps_total_, eta_.Left(last_step_.step(), steps_total_)));
    }
    terminal_.Status(line);
  }

  Terminal& terminal_;
  Api* const api_;
  const std::string job_id_;
  const FollowFlags flags_;
  const bool json_lines_;
  bool live_ = false;
  bool disconnected_ = false;
  int64_t steps_total_ = 0;
  soup::v1::JobState state_;
  StepRecord last_step_;
  Progress progress_;
  Eta eta_;
};

std::string ResolveOutput(Cli* cli, const Job& job, const std::string& output) {
  if (output.empty()) return job.spec().output();
  return (std::filesystem::path(cli->CurrentDirectory()) / output).lexically_normal().string();
}

}  // namespace

void AddFollowFlags(CLI::App* verb, FollowFlags* flags, bool steps) {
  verb->add_option("--timeout", flags->timeout,
                   "Stop waiting after this long, e.g. 10m (exit code 6; the job goes on)");
  verb->add_option("--output", flags->output, "Put the adapter here instead of the job's output");
  verb->add_flag("--no-fetch", flags->no_fetch, "Leave the adapter with soupd");
  if (!steps) return;
  verb->add_option("--every", flags->every, "Print every n-th step (not on a terminal)")
      ->check(CLI::PositiveNumber);
  verb->add_option("--after-step", flags->after_step, "Begin after this step")
      ->check(CLI::NonNegativeNumber);
  verb->add_option("--after-sequence", flags->after_sequence,
                   "Begin after the event of this sequence number")
      ->check(CLI::NonNegativeNumber);
}

absl::Status FetchTo(Cli* cli, Api* api, const Job& job, const std::string& output) {
  const std::string folder = ResolveOutput(cli, job, output);
  if (folder.empty()) {
    return UsageError(absl::StrCat("job ", job.id(),
                                   " has no `output`; say where to: soupctl fetch ", job.id(),
                                   " --output DIR"));
  }
  const auto result = FetchAdapter(
      api, job.id(), folder, [&](const std::string& name, int64_t done, int64_t total) {
        const double part = total > 0 ? static_cast<double>(done) / static_cast<double>(total) : 1;
        cli->terminal.Status(absl::StrCat("fetching ", Printable(name), " ", ProgressBar(part, 22),
                                          " ", HumanSize(static_cast<double>(done)), " of ",
                                          HumanSize(static_cast<double>(total))));
      });
  cli->terminal.ClearStatus();
  if (!result.ok()) {
    absl::Status status = result.status();
    if (PendingSignal() != 0) return status;
    cli->terminal.Say(absl::StrCat("the adapter is still with soupd; to get it: soupctl fetch ",
                                   job.id(), " --output DIR"));
    return status;
  }
  const std::string size = HumanSize(static_cast<double>(result->bytes));
  cli->terminal.Say(
      result->downloaded == 0
          ? absl::StrCat("adapter already in ", folder, " (", result->files, " files, ", size, ")")
          : absl::StrCat(result->replaced ? "adapter replaced in " : "adapter in ", folder, " (",
                         result->files, " files, ", size, ")"));
  return absl::OkStatus();
}

absl::Status Follow(Cli* cli, Api* api, const Job& job, const FollowFlags& flags) {
  WatchOptions options;
  options.after_step = flags.after_step;
  options.after_sequence = flags.after_sequence;
  // On a terminal somebody sees the pause and can act; a script would stand still for ever.
  options.stop_when_paused = !flags.show_steps || !cli->terminal.out_is_terminal();
  if (!flags.timeout.empty()) {
    const auto seconds = ParseDuration(flags.timeout);
    if (!seconds.ok()) return UsageError(absl::StrCat("--timeout: ", seconds.status().message()));
    options.deadline = absl::Now() + absl::Seconds(*seconds);
  }
  // For a watch, json is a stream of items; for a wait, the job at its end in any form.
  const std::vector<OutputFormat> forms =
      flags.show_steps ? std::vector<OutputFormat>{OutputFormat::kTable, OutputFormat::kJson}
                       : std::vector<OutputFormat>{OutputFormat::kTable, OutputFormat::kJson,
                                                   OutputFormat::kYaml, OutputFormat::kName};
  SOUP_ASSIGN_OR_RETURN(const OutputFormat format, cli->Format(OutputFormat::kTable, forms));
  FollowPrinter printer(cli, api, job, flags, flags.show_steps && format == OutputFormat::kJson);
  const absl::StatusOr<Job> ended = WatchJob(api, job.id(), options, &printer);
  cli->terminal.ClearStatus();
  if (!ended.ok()) {
    if (PendingSignal() != 0) {
      cli->terminal.Say(absl::StrCat(
          "detached; job ", job.id(), " goes on. To come back: soupctl watch ", job.id(),
          printer.last_step() > 0 ? absl::StrCat(" --after-step ", printer.last_step()) : "",
          "   To stop it: soupctl cancel ", job.id()));
    }
    return ended.status();
  }
  if (!flags.show_steps && !cli->output_format.empty()) cli->PrintJob(*ended, format);
  for (const std::string& warning : ended->warnings()) {
    cli->terminal.Say(absl::StrCat("warning: ", Printable(warning)));
  }
  SOUP_RETURN_IF_ERROR(JobOutcome(*ended));
  if (flags.no_fetch) return absl::OkStatus();
  if (ended->spec().output().empty() && flags.output.empty()) {
    cli->terminal.Say(absl::StrCat("the job has no `output`; to get the adapter: soupctl fetch ",
                                   job.id(), " --output DIR"));
    return absl::OkStatus();
  }
  return FetchTo(cli, api, *ended, flags.output);
}

}  // namespace soup::client
