#include "client/views.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "client/format.h"
#include "client/units.h"

namespace soup::client {
namespace {

using namespace soup::v1;  // NOLINT: every line here speaks of its messages

// What is not finite is told as JSON tells it; "-" is for what is not there.
std::string Number(double value, int digits) {
  if (std::isnan(value)) return "NaN";
  if (std::isinf(value)) return value < 0 ? "-Infinity" : "Infinity";
  return absl::StrFormat("%.*f", digits, value);
}

std::string LossText(double loss) { return Number(loss, 4); }

std::string StepsText(int64_t done, int64_t total) {
  return total > 0 ? absl::StrCat(done, "/", total) : absl::StrCat(done);
}

std::string SizeOrDash(int64_t bytes) {
  return bytes == 0 ? "-" : HumanSize(static_cast<double>(bytes));
}

std::string BaseText(const BaseSpec& base) {
  return absl::StrCat(Printable(base.path()), " (", base.format(),
                      base.double_quant() ? ", double_quant" : "", ")");
}

// "key:  value" lines, keys as wide as the widest.
class Lines {
 public:
  explicit Lines(bool color) : color_(color) {}
  void Add(const std::string& key, const std::string& value) {
    if (!value.empty()) rows_.push_back({key, value});
  }
  std::string Render() const {
    size_t width = 0;
    for (const auto& row : rows_) width = std::max(width, row.first.size());
    std::string out;
    for (const auto& [key, value] : rows_) {
      absl::StrAppend(&out, color_ ? Colored(Color::kBold, key) : key, key.empty() ? " " : ":",
                      std::string(width - key.size() + 2, ' '), value, "\n");
    }
    return out;
  }

 private:
  const bool color_;
  std::vector<std::pair<std::string, std::string>> rows_;
};

std::string StateText(const Job& job, bool color) {
  std::string text = JobState_Name(job.state());
  if (job.state() == QUEUED && job.queue_position() > 0) {
    absl::StrAppend(&text, " #", job.queue_position());
  }
  return color ? Colored(ColorOf(job.state()), text) : text;
}

std::string LastLossText(const Job& job) {
  return job.steps_done() > 0 ? LossText(job.last_loss()) : "-";
}

}  // namespace

Color ColorOf(JobState state) {
  switch (state) {
    case RUNNING:
    case FINALIZING:
    case PREPARING:
      return Color::kBlue;
    case SUCCEEDED:
      return Color::kGreen;
    case FAILED:
      return Color::kRed;
    case PAUSING:
    case PAUSED:
    case CANCELLING:
    case CANCELLED:
      return Color::kYellow;
    default:
      return Color::kNone;
  }
}

std::string JobTable(const std::vector<Job>& jobs, int64_t now_unix_ms, bool color) {
  Table table({"ID", "NAME", "STATE", ">STEP", ">LOSS", "USER", ">AGE", "MESSAGE"});
  for (const Job& job : jobs) {
    std::string message = Printable(job.message());
    if (DisplayWidth(message) > 60) message = absl::StrCat(CutToWidth(message, 59), "…");
    table.Add({job.id(), Printable(job.spec().name()), StateText(job, color),
               StepsText(job.steps_done(), job.steps_total()), LastLossText(job),
               Printable(job.user()), HumanAge(job.created_unix_ms(), now_unix_ms), message});
  }
  return table.Render(color);
}

std::string DatasetLines(const DatasetReport& report) {
  std::string out = absl::StrCat(report.records(), " records, ", report.tokens(), " tokens, ",
                                 report.supervised_tokens(), " supervised, longest ",
                                 report.longest_record_tokens());
  if (report.validation_records() > 0) {
    absl::StrAppend(&out, ", ", report.validation_records(), " for validation");
  }
  if (report.truncated_records() > 0) {
    absl::StrAppend(&out, ", ", report.truncated_records(), " cut to max_length");
  }
  if (report.split_records() > 0) {
    absl::StrAppend(&out, ", ", report.split_records(), " split");
  }
  if (report.skipped_records() > 0) {
    absl::StrAppend(&out, ", ", report.skipped_records(), " not used");
    std::vector<std::string> why;
    if (report.error_records() > 0) why.push_back(absl::StrCat(report.error_records(), " bad"));
    if (report.dropped_records() > 0)
      why.push_back(absl::StrCat(report.dropped_records(), " too long"));
    if (!why.empty()) absl::StrAppend(&out, " (", absl::StrJoin(why, ", "), ")");
  }
  if (!report.format().empty()) {
    absl::StrAppend(&out, "; format ", Printable(report.format()));
    if (!report.format_reason().empty()) {
      absl::StrAppend(&out, " (", Printable(report.format_reason()), ")");
    }
  }
  return out;
}

std::string JobDetails(const Job& job, bool color) {
  Lines lines(color);
  const JobSpec& spec = job.spec();
  lines.Add("id", job.id());
  lines.Add("name", Printable(spec.name()));
  std::string state = StateText(job, color);
  if (job.reason() != REASON_UNSPECIFIED) {
    absl::StrAppend(&state, " (", Reason_Name(job.reason()), ")");
  }
  lines.Add("state", state);
  lines.Add("message", Printable(job.message()));
  lines.Add("user", Printable(job.user()));
  lines.Add("base", BaseText(spec.base()));
  lines.Add("fingerprint", job.base_fingerprint());
  std::vector<std::string> sources;
  if (spec.data().has_train()) sources.push_back(spec.data().train().name());
  for (const auto& source : spec.data().sources()) sources.push_back(source.file().name());
  lines.Add("data", Printable(absl::StrJoin(sources, ", ")));
  if (job.has_dataset()) lines.Add("dataset", DatasetLines(job.dataset()));
  lines.Add("lora", absl::StrCat("r ", spec.lora().r(), ", alpha ", ExactReal(spec.lora().alpha()),
                                 ", ", Printable(absl::StrJoin(spec.lora().targets(), " "))));
  lines.Add("steps", StepsText(job.steps_done(), job.steps_total()));
  if (job.steps_done() > 0) lines.Add("loss", LossText(job.last_loss()));
  if (job.planned_arena_bytes() > 0) lines.Add("arena", SizeOrDash(job.planned_arena_bytes()));
  lines.Add("created", HumanTime(job.created_unix_ms()));
  lines.Add("started", HumanTime(job.started_unix_ms()));
  lines.Add("finished", HumanTime(job.finished_unix_ms()));
  if (job.attempts() > 1) lines.Add("attempts", absl::StrCat(job.attempts()));
  lines.Add("output", Printable(spec.output()));
  for (const std::string& warning : job.warnings()) lines.Add("warning", Printable(warning));
  const auto& told = job.warnings();  // most of the dataset's are there, too
  for (const std::string& w : job.dataset().warnings()) {
    if (std::find(told.begin(), told.end(), w) == told.end()) lines.Add("warning", Printable(w));
  }
  return lines.Render();
}

// What the next useful bytes would buy.
std::string NextBudgetText(const PlanReply& plan) {
  if (plan.next_budget_bytes() == 0) return "no budget makes a step 1 % shorter";
  const double now = plan.predicted_step_seconds();
  const double more = static_cast<double>(plan.next_budget_bytes() - plan.budget_bytes());
  return absl::StrCat(
      "with ", HumanSize(more), " more (", HumanSize(static_cast<double>(plan.next_budget_bytes())),
      ") a step takes ", HumanDuration(plan.next_step_seconds()), ", ",
      absl::StrFormat("%.1f", 100 * (1 - plan.next_step_seconds() / now)), " % less");
}

std::string PlanTable(const PlanReply& plan, bool color) {
  const std::string verdict = Printable(plan.verdict());
  std::string out = absl::StrCat(
      color ? Colored(plan.fits() ? Color::kGreen : Color::kRed, verdict) : verdict, "\n\n");
  // Sizes are those of the fullest moment, in which the rows of the device add up to the arena (and
  // the page tables of pinned memory, which lie beside it).
  Table table({"WHAT", "WHERE", ">BYTES", ">SIZE", ">OWN PEAK"});
  for (const PlanRow& row : plan.rows()) {
    table.Add({Printable(row.what()), Printable(row.where()), absl::StrCat(row.bytes()),
               HumanSize(static_cast<double>(row.bytes())),
               row.peak_bytes() > 0 ? HumanSize(static_cast<double>(row.peak_bytes())) : "-"});
  }
  absl::StrAppend(&out, table.Render(color), "\n");
  Lines lines(color);
  lines.Add("fits", plan.fits() ? "yes" : "no");
  lines.Add("arena",
            absl::StrCat(HumanSize(static_cast<double>(plan.arena_bytes())), " of ",
                         HumanSize(static_cast<double>(plan.budget_bytes())), ", least possible ",
                         HumanSize(static_cast<double>(plan.minimum_bytes()))));
  lines.Add("host store", SizeOrDash(plan.host_store_bytes()));
  lines.Add("slots", absl::StrCat(plan.slots(), ", resident layers ", plan.resident_layers()));
  if (!plan.precision().empty()) {
    lines.Add("precision", absl::StrCat(Printable(plan.precision()), " activations (",
                                        Printable(plan.precision_reason()), ")"));
  }
  lines.Add("retention", Printable(plan.retention()));
  lines.Add("placement", Printable(plan.placement()));
  if (plan.pass_host_bytes() > 0) {
    lines.Add("kept on the host",
              absl::StrCat(HumanSize(static_cast<double>(plan.pass_host_bytes())), ", ",
                           HumanSize(static_cast<double>(plan.predicted_offload_bytes())),
                           " a step there and back"));
  }
  lines.Add("steps", absl::StrCat(plan.steps_total(), ", micro-batches ", plan.micro_batches()));
  if (plan.predicted_step_seconds() > 0) {
    lines.Add("a step", absl::StrCat(HumanDuration(plan.predicted_step_seconds()), " (copies ",
                                     HumanDuration(plan.predicted_copy_seconds()), ", stall ",
                                     HumanDuration(plan.predicted_stall_seconds()), "), ",
                                     HumanCount(plan.predicted_tokens_per_second()), " tok/s"));
    lines.Add("more memory", NextBudgetText(plan));
    lines.Add("in all", HumanDuration(plan.predicted_step_seconds() *
                                      static_cast<double>(plan.steps_total())));
  }
  if (plan.has_dataset()) lines.Add("dataset", DatasetLines(plan.dataset()));
  for (const std::string& w : plan.dataset().warnings()) lines.Add("warning", Printable(w));
  return out + lines.Render();
}

std::string StepTable(const std::vector<StepRecord>& steps, bool color) {
  Table table({">STEP", ">LOSS", ">VALIDATION", ">GRAD", ">LR", ">TOKENS", ">TOK/S", ">STALL",
               ">SECONDS", "NOTE"});
  for (const StepRecord& s : steps) {
    table.Add({absl::StrCat(s.step()), LossText(s.loss()),
               s.has_validation_loss() ? LossText(s.validation_loss()) : "-",
               Number(s.grad_norm(), 4), absl::StrFormat("%.3e", s.learning_rate()),
               absl::StrCat(s.tokens()), HumanCount(TokensPerSecond(s)),
               absl::StrFormat("%.1f%%", StallPercent(s)),
               absl::StrFormat("%.3f", s.step_seconds()),
               s.skipped() ? "skipped: gradient not finite" : ""});
  }
  return table.Render(color);
}

std::string CacheTable(const ListCacheReply& cache, int64_t now_unix_ms, bool color) {
  Table table({"FINGERPRINT", "FORMAT", ">SIZE", ">USED", "WHERE", "SOURCE"});
  for (const CacheEntry& e : cache.entries()) {
    table.Add({e.fingerprint(), e.format(), HumanSize(static_cast<double>(e.bytes())),
               HumanAge(e.last_used_unix_ms(), now_unix_ms),
               absl::StrCat(e.in_host_store() ? "disk, host store" : "disk",
                            e.in_use() ? ", in use" : ""),
               Printable(e.source_path())});
  }
  return absl::StrCat(table.Render(color), "total ",
                      HumanSize(static_cast<double>(cache.total_bytes())),
                      cache.cap_bytes() > 0
                          ? absl::StrCat(" of ", HumanSize(static_cast<double>(cache.cap_bytes())))
                          : "",
                      "\n");
}

namespace {

// The measured rates; empty: none was measured.
std::string DeviceRates(const Device& d) {
  std::vector<std::string> rates;
  if (d.copy_bytes_per_second() > 0)
    rates.push_back(absl::StrCat("copies ", HumanSize(d.copy_bytes_per_second()), "/s"));
  if (d.gemm_flops() > 0)
    rates.push_back(absl::StrFormat("GEMM %.3g TFLOP/s", d.gemm_flops() / 1e12));
  if (d.dequant_bytes_per_second() > 0)
    rates.push_back(absl::StrCat("NF4 ", HumanSize(d.dequant_bytes_per_second()), "/s"));
  return absl::StrJoin(rates, ", ");
}

}  // namespace

std::string NodeDetails(const Node& node, bool color) {
  Lines lines(color);
  lines.Add("host", Printable(node.hostname()));
  lines.Add("soupd", Printable(node.version()));
  lines.Add("you", absl::StrCat(Printable(node.user()), node.admin() ? " (admin)" : ""));
  lines.Add("cores", absl::StrCat(node.cpu_cores()));
  lines.Add("memory", absl::StrCat(HumanSize(static_cast<double>(node.memory_available_bytes())),
                                   " available of ",
                                   HumanSize(static_cast<double>(node.memory_total_bytes()))));
  for (const Device& d : node.devices()) {
    lines.Add("device",
              absl::StrCat(d.index(), " ", Printable(d.name()), " (", Printable(d.backend()), "), ",
                           HumanSize(static_cast<double>(d.free_bytes())), " free of ",
                           HumanSize(static_cast<double>(d.memory_bytes())), "; the worker holds ",
                           HumanSize(static_cast<double>(d.overhead_bytes())), " and an arena of ",
                           HumanSize(static_cast<double>(d.arena_bytes()))));
    if (const std::string rates = DeviceRates(d); !rates.empty()) lines.Add("  rates", rates);
    if (!d.backend_reason().empty()) lines.Add("  backend", Printable(d.backend_reason()));
    if (d.host_memory_pageable())
      lines.Add("  host memory", "PAGEABLE: it could not be pinned, copies to the device are slow");
  }
  for (const WorkerInfo& w : node.workers()) {
    lines.Add("worker", absl::StrCat("pid ", w.pid(), " ", Printable(w.state()), " on ",
                                     Printable(w.device()), ", restarts ", w.restarts(), ", heard ",
                                     w.heartbeat_age_ms(), " ms ago"));
  }
  for (const HostBase& b : node.bases()) {
    lines.Add("base", absl::StrCat(b.fingerprint(), "/", b.format(), " ",
                                   HumanSize(static_cast<double>(b.bytes())), ", tier ",
                                   Printable(b.tier()), ", jobs ", b.jobs()));
  }
  lines.Add("model roots", Printable(absl::StrJoin(node.model_roots(), " ")));
  lines.Add("state",
            absl::StrCat(Printable(node.state_dir()), ", ",
                         HumanSize(static_cast<double>(node.state_dir_free_bytes())), " free"));
  lines.Add("cache",
            absl::StrCat(
                HumanSize(static_cast<double>(node.cache_bytes())),
                node.cache_cap_bytes() > 0
                    ? absl::StrCat(" of ", HumanSize(static_cast<double>(node.cache_cap_bytes())))
                    : ", no cap"));
  const std::string storage =
      node.storage_healthy() ? "healthy"
                             : absl::StrCat("NOT HEALTHY: ", Printable(node.storage_message()));
  lines.Add("storage", color && !node.storage_healthy() ? Colored(Color::kRed, storage) : storage);
  return lines.Render();
}

namespace {

// A line a file, where there are several.
std::string SourcesTable(const DatasetReport& report, bool color) {
  if (report.sources_size() < 2) return "";
  Table table({"FILE", "KIND", "FORMAT", ">WEIGHT", ">READ", ">BAD", ">TRAINED ON", ">HELD OUT",
               ">TOKENS"});
  for (const auto& s : report.sources()) {
    table.Add({Printable(s.name()), s.kind(), s.format().empty() ? "-" : s.format(),
               ExactReal(s.weight()), absl::StrCat(s.read_records()),
               absl::StrCat(s.error_records()), absl::StrCat(s.records()),
               absl::StrCat(s.validation_records()), absl::StrCat(s.tokens())});
  }
  return absl::StrCat("\n", table.Render(color));
}

std::string PackingText(const PreviewDataReply& preview) {
  const auto& p = preview.packing();
  if (p.steps() == 0) return "";
  const int64_t rows = p.tokens() + p.bucket_tail_tokens() + p.between_record_tokens();
  const auto percent = [](int64_t part, int64_t whole) {
    return whole > 0 ? 100.0 * static_cast<double>(part) / static_cast<double>(whole) : 0.0;
  };
  return absl::StrFormat(
      "\npacking: %d records in %d micro-batches of %s%d steps; %.1f%% of the rows are tokens "
      "(padding between records %d, bucket tails %.1f%%)\nsupervised: %.1f%% of the tokens\n",
      p.records(), p.micro_batches(), p.steps() < p.steps_total() ? "the first " : "", p.steps(),
      percent(p.tokens(), rows), p.between_record_tokens(), percent(p.bucket_tail_tokens(), rows),
      percent(preview.report().supervised_tokens(), preview.report().tokens()));
}

}  // namespace

std::string PreviewText(const PreviewDataReply& preview, bool color) {
  std::string out = absl::StrCat(DatasetLines(preview.report()), "\n");
  for (const std::string& w : preview.report().warnings()) {
    absl::StrAppend(&out, "warning: ", Printable(w), "\n");
  }
  for (const PreviewRecord& record : preview.records()) {
    int64_t supervised = 0;
    for (const PreviewToken& token : record.tokens()) supervised += token.supervised() ? 1 : 0;
    absl::StrAppend(
        &out, "\n", Printable(record.source()), record.source().empty() ? "" : " ", "line ",
        record.line(), ": ", record.tokens_size(), " tokens, ", supervised, " supervised",
        record.truncated() ? ", cut to max_length" : "",
        record.pieces() > 1 ? absl::StrCat(", the first of ", record.pieces(), " pieces") : "",
        "\n  ");
    bool inside = false;
    for (const PreviewToken& token : record.tokens()) {
      if (token.supervised() != inside && !color) absl::StrAppend(&out, inside ? "」" : "「");
      inside = token.supervised();
      const std::string text =
          Printable(absl::StrReplaceAll(token.text(), {{"\n", "↵"}, {"\t", "⇥"}}));
      absl::StrAppend(&out, color && inside ? Colored(Color::kGreen, text) : text);
    }
    absl::StrAppend(&out, inside && !color ? "」" : "", "\n");
  }
  if (preview.length_histogram_size() > 0) {
    Table table({">TOKENS", ">RECORDS", ""});
    const int64_t most =
        *std::max_element(preview.length_histogram().begin(), preview.length_histogram().end());
    for (int i = 0; i < preview.length_histogram_size() && i < 62; ++i) {
      const int64_t n = preview.length_histogram(i);
      const auto bar = static_cast<size_t>(most > 0 ? 40 * n / most : 0);
      table.Add({absl::StrCat(int64_t{1} << i, "-", (int64_t{2} << i) - 1), absl::StrCat(n),
                 std::string(std::min<size_t>(bar, 40), '#')});
    }
    absl::StrAppend(&out, "\n", table.Render(color));
  }
  absl::StrAppend(&out, SourcesTable(preview.report(), color), PackingText(preview));
  return out;
}

double TokensPerSecond(const StepRecord& step) {
  return step.step_seconds() > 0 ? static_cast<double>(step.tokens()) / step.step_seconds() : 0;
}

double StallPercent(const StepRecord& step) {
  return step.step_seconds() > 0 ? 100 * step.stall_seconds() / step.step_seconds() : 0;
}

std::string StepLine(const StepRecord& step, int64_t steps_total, double eta_seconds) {
  std::string out =
      absl::StrCat("step ", StepsText(step.step(), steps_total), "  loss ", LossText(step.loss()));
  if (step.has_validation_loss()) {
    absl::StrAppend(&out, "  val ", LossText(step.validation_loss()));
  }
  absl::StrAppend(&out, "  grad ", Number(step.grad_norm(), 3),
                  absl::StrFormat("  lr %.2e", step.learning_rate()), "  ",
                  HumanCount(TokensPerSecond(step)), " tok/s  stall ",
                  absl::StrFormat("%.1f%%", StallPercent(step)), "  ",
                  HumanDuration(step.step_seconds()));
  if (eta_seconds >= 0) absl::StrAppend(&out, "  ETA ", HumanDuration(eta_seconds));
  if (step.skipped()) absl::StrAppend(&out, "  SKIPPED: gradient not finite");
  return out;
}

std::string ProgressText(const Progress& progress) {
  std::string out = Printable(progress.stage());
  const auto done = static_cast<double>(progress.done());
  const auto total = static_cast<double>(progress.total());
  if (progress.total() > 0) {
    absl::StrAppend(&out, absl::StrFormat(" %3.0f%% ", 100 * done / total),
                    ProgressBar(done / total, 22));
  }
  if (progress.unit() == "bytes") {
    absl::StrAppend(&out, " ", HumanSize(done),
                    progress.total() > 0 ? absl::StrCat(" of ", HumanSize(total)) : "");
  } else {
    absl::StrAppend(&out, " ", progress.done(),
                    progress.total() > 0 ? absl::StrCat(" of ", progress.total()) : "", " ",
                    Printable(progress.unit()));
  }
  if (!progress.message().empty()) absl::StrAppend(&out, "  ", Printable(progress.message()));
  return out;
}

}  // namespace soup::client
