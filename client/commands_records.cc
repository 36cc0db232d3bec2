// logs, metrics.
#include <memory>

#include "absl/strings/str_cat.h"
#include "client/cli.h"
#include "client/exit_codes.h"
#include "client/interrupt.h"
#include "client/views.h"
#include "engine/base/status_macros.h"

namespace soup::client {
namespace {

using soup::v1::GetLogsRequest;
using soup::v1::GetMetricsReply;
using soup::v1::GetMetricsRequest;
using soup::v1::Job;
using soup::v1::LogChunk;

constexpr int kMetricsPage = 5000;
constexpr size_t kMaxTailBytes = 16 << 20;  // kept to find the last lines in

struct LogFlags {
  std::string job;
  bool follow = false;
  int64_t tail = -1;
};

// The last `lines` lines of `text`.
absl::string_view Tail(absl::string_view text, int64_t lines) {
  if (lines == 0) return "";
  size_t at = text.size();
  if (at > 0 && text[at - 1] == '\n') --at;
  while (lines-- > 0) {
    at = at == 0 ? absl::string_view::npos : text.rfind('\n', at - 1);
    if (at == absl::string_view::npos) return text;
  }
  return text.substr(at + 1);
}

// What the log has from *offset on, given to `take`; *offset moves on.
template <typename Fn>
absl::Status ReadLog(Api* api, const std::string& job_id, int64_t* offset, Fn take) {
  GetLogsRequest request;
  request.set_job_id(job_id);
  request.set_offset(*offset);
  ReplyStream<LogChunk> stream(api->stub(), &Api::Stub::AsyncGetLogs, request);
  const std::string doing = absl::StrCat("logs of ", job_id);
  for (;;) {
    using Next = ReplyStream<LogChunk>::Next;
    switch (stream.Read(absl::Seconds(60))) {
      case Next::kReply:
        *offset += static_cast<int64_t>(stream.reply().data().size());
        take(stream.reply().data());
        break;
      case Next::kEnd:
        return api->Explain(stream.Finish(), doing);
      case Next::kIdle:
        stream.Finish();
        return api->Explain(GivenUp(WaitResult::kTimeout), doing);
      case Next::kInterrupted:
        return InterruptedError(PendingSignal(), "");
    }
  }
}

absl::Status RunLogs(Cli* cli, const LogFlags& flags) {
  if (!cli->output_format.empty()) return UsageError("logs are text; -o has no form for them");
  SOUP_ASSIGN_OR_RETURN(Api * api, cli->GetApi());
  SOUP_ASSIGN_OR_RETURN(Job job, api->Get(flags.job));
  int64_t offset = 0;
  // To a file or a pipe as it is; a terminal would obey what a record holds.
  const auto print = [cli](absl::string_view data) {
    if (cli->terminal.out_is_terminal()) return cli->terminal.Print(PrintableLines(data));
    cli->terminal.Print(data);
  };
  if (flags.tail >= 0) {
    std::string text;
    SOUP_RETURN_IF_ERROR(ReadLog(api, job.id(), &offset, [&](const std::string& data) {
      text += data;
      if (text.size() > 2 * kMaxTailBytes) text.erase(0, text.size() - kMaxTailBytes);
    }));
    print(Tail(text, flags.tail));
  } else {
    SOUP_RETURN_IF_ERROR(ReadLog(api, job.id(), &offset, print));
  }
  while (flags.follow) {
    // The state first: what is written before the end is then read after it was seen.
    SOUP_ASSIGN_OR_RETURN(job, api->Get(job.id()));
    SOUP_RETURN_IF_ERROR(ReadLog(api, job.id(), &offset, print));
    if (IsTerminal(job.state())) break;
    if (!SleepUnlessInterrupted(absl::Seconds(1))) return InterruptedError(PendingSignal(), "");
  }
  return absl::OkStatus();
}

struct MetricFlags {
  std::string job;
  int64_t after_step = 0;
  int64_t limit = 0;
};

absl::Status RunMetrics(Cli* cli, const MetricFlags& flags) {
  SOUP_ASSIGN_OR_RETURN(
      const OutputFormat format,
      cli->Format(OutputFormat::kTable,
                  {OutputFormat::kTable, OutputFormat::kJson, OutputFormat::kYaml}));
  SOUP_ASSIGN_OR_RETURN(Api * api, cli->GetApi());
  SOUP_ASSIGN_OR_RETURN(const Job job, api->Get(flags.job));
  GetMetricsRequest request;
  request.set_job_id(job.id());
  request.set_after_step(flags.after_step);
  GetMetricsReply all;
  for (;;) {
    const int64_t left = flags.limit == 0 ? kMetricsPage : flags.limit - all.steps_size();
    request.set_limit(static_cast<int32_t>(std::min<int64_t>(left, kMetricsPage)));
    SOUP_ASSIGN_OR_RETURN(const GetMetricsReply page, api->GetMetrics(request));
    all.mutable_steps()->MergeFrom(page.steps());
    all.set_more(page.more());
    if (!page.more() || page.steps().empty()) break;
    if (flags.limit > 0 && all.steps_size() >= flags.limit) break;
    const int64_t last = page.steps(page.steps_size() - 1).step();
    if (last <= request.after_step()) {
      return absl::InternalError("metrics: soupd gave the same page twice");
    }
    request.set_after_step(last);
  }
  if (format == OutputFormat::kTable) {
    cli->terminal.Print(
        StepTable({all.steps().begin(), all.steps().end()}, cli->terminal.out_has_color()));
  } else {
    cli->PrintMessage(all, format);
  }
  return absl::OkStatus();
}

}  // namespace

void AddRecordCommands(CLI::App* app, Cli* cli) {
  auto logs = std::make_shared<LogFlags>();
  CLI::App* verb =
      AddVerb(app, cli, "logs", "Print a job's log", [cli, logs] { return RunLogs(cli, *logs); });
  verb->add_option("job", logs->job, "Id, or name of your newest job of that name")->required();
  verb->add_flag("-f,--follow", logs->follow, "Go on until the job ends");
  verb->add_option("--tail", logs->tail, "Only the last n lines of what there is")
      ->check(CLI::NonNegativeNumber);

  auto metrics = std::make_shared<MetricFlags>();
  verb = AddVerb(app, cli, "metrics", "Print a job's steps: loss, rates, times",
                 [cli, metrics] { return RunMetrics(cli, *metrics); });
  verb->add_option("job", metrics->job, "Id, or name of your newest job of that name")->required();
  verb->add_option("--after-step", metrics->after_step, "Begin after this step")
      ->check(CLI::NonNegativeNumber);
  verb->add_option("--limit", metrics->limit, "At most so many steps; 0: all")
      ->capture_default_str()
      ->check(CLI::NonNegativeNumber);
}

}  // namespace soup::client
