#include "bench/cli.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <fstream>
#include <map>
#include <memory>
#include <thread>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "bench/machine.h"
#include "bench/named_base.h"
#include "bench/report.h"
#include "bench/row_runner.h"
#include "engine/base/status_macros.h"

namespace soup::bench {
namespace {

struct Options {
  MachineOptions machine;
  std::map<std::string, std::string> settings;  // key -> value, of the command line
  std::vector<std::string> rows;
  std::string rows_file;
  std::string json_file;
  std::string mirror_dir;
  std::string ablate;
  std::string sweep_batches = "1,2,4,8";
  bool token_sweep = false;
  bool breakdown = false;
  bool quick = false;
  bool keep_going = false;
};

std::unique_ptr<CLI::App> MakeApp(Options& o) {
  auto app = std::make_unique<CLI::App>(
      "soup-bench: the ceilings of this machine, then real training steps on a synthetic base");
  app->add_option("--backend", o.machine.backend, "cpu or cuda")->required();
  app->add_option("--device", o.machine.device, "CUDA's number of the device");
  app->add_option("--gemm-profile", o.machine.gemm_profile_path,
                  "cuda: file of the GEMM algorithms, read and added to");
  app->add_option("--threads", o.machine.cpu_threads, "of the CPU backend; 0: the host's");
  for (const Setting& s : Settings()) {
    app->add_option_function<std::string>(
        s.flag, [&o, key = s.key](const std::string& v) { o.settings[key] = v; }, s.help);
  }
  app->add_flag_callback(
      "--head-resident", [&o] { o.settings["head"] = "resident"; }, "the same as --head resident");
  app->add_option("--row", o.rows,
                  "a row, e.g. \"batch=8 seq=512 budget=9.9GB\"; what it does not say is as on the "
                  "command line. May be repeated")
      ->expected(1)
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
  app->add_option("--rows", o.rows_file, "a file with a row a line; # begins a comment");
  app->add_option("--json", o.json_file, "write the report there too");
  app->add_option(
      "--mirror-dir", o.mirror_dir,
      "commit each step to a mirror in this folder, as soupd has it; else steps are not "
      "durable");
  app->add_option("--ablate", o.ablate,
                  "also run each row without its no-copies, no-dequant: timing only");
  app->add_flag("--token-sweep", o.token_sweep,
                "run each row at several batches under one placement and fit its step");
  app->add_option("--sweep-batches", o.sweep_batches, "batches of the sweep");
  app->add_flag("--breakdown", o.breakdown, "where a step's time goes, by class of op");
  app->add_flag("--quick-ceilings", o.quick, "measure the ceilings as a worker does at its start");
  app->add_flag("--keep-going", o.keep_going, "a row that fails does not end the run");
  return app;
}

absl::StatusOr<std::vector<RowSpec>> MakeRows(const Options& o) {
  RowSpec defaults;
  for (const auto& [key, value] : o.settings) {
    SOUP_RETURN_IF_ERROR(ApplySetting(key, value, defaults));
  }
  std::vector<std::string> texts = o.rows;
  if (!o.rows_file.empty()) {
    std::ifstream in(o.rows_file);
    if (!in.is_open()) {
      return absl::InvalidArgumentError(absl::StrCat("--rows ", o.rows_file, ": cannot be read"));
    }
    for (std::string line; std::getline(in, line);) {
      line = line.substr(0, line.find('#'));
      if (line.find_first_not_of(" \t\r") != std::string::npos) texts.push_back(line);
    }
  }
  std::vector<RowSpec> rows;
  if (texts.empty()) rows.push_back(defaults);
  for (const std::string& text : texts) {
    SOUP_ASSIGN_OR_RETURN(RowSpec row, ParseRow(text, defaults));
    rows.push_back(std::move(row));
  }
  for (const RowSpec& row : rows) {
    SOUP_RETURN_IF_ERROR(CheckRow(row));
    SOUP_RETURN_IF_ERROR(FindBase(row.base).status());
  }
  return rows;
}

absl::StatusOr<std::vector<int32_t>> SweepBatches(const Options& o) {
  std::vector<int32_t> batches;
  if (!o.token_sweep) return batches;
  for (const absl::string_view text : absl::StrSplit(o.sweep_batches, ',')) {
    RowSpec row;
    SOUP_RETURN_IF_ERROR(ApplySetting("batch", text, row));
    batches.push_back(row.batch);
  }
  return batches;
}

class Bench {
 public:
  Bench(RowRunner* runner, Report* report, std::string json_file)
      : runner_(*runner), report_(*report), json_file_(std::move(json_file)) {}

  absl::Status Row(const RowSpec& spec, const std::vector<Ablation>& ablations) {
    for (const Ablation& ablation : ablations) {
      SOUP_ASSIGN_OR_RETURN(RowResult row, runner_.Run(spec, ablation));
      Print(row);
      report_.rows.push_back(std::move(row));
      SOUP_RETURN_IF_ERROR(WriteJson());
    }
    return absl::OkStatus();
  }

  // All batches under the placement of the largest.
  absl::Status TokenSweep(RowSpec spec, const std::vector<int32_t>& batches) {
    spec.batch = *std::max_element(batches.begin(), batches.end());
    SOUP_ASSIGN_OR_RETURN(spec.placement, runner_.Place(spec));
    spec.placed = true;
    spec.budget_bytes = 0;
    Sweep sweep;
    std::vector<std::pair<double, double>> points;
    for (const int32_t batch : batches) {
      spec.batch = batch;
      SOUP_ASSIGN_OR_RETURN(RowResult row, runner_.Run(spec));
      Print(row);
      points.emplace_back(row.tokens_a_step, row.step_seconds);
      sweep.rows.push_back(std::move(row));
    }
    SOUP_ASSIGN_OR_RETURN(sweep.fit, FitLine(points));
    std::printf("%s", SweepLine(sweep).c_str());
    report_.sweeps.push_back(std::move(sweep));
    return WriteJson();
  }

  // After every row: what was measured is kept, whatever happens to the run.
  absl::Status WriteJson() const {
    if (json_file_.empty()) return absl::OkStatus();
    std::ofstream out(json_file_);
    out << ToJson(report_) << "\n";
    out.close();
    if (out.good()) return absl::OkStatus();
    return absl::UnavailableError(absl::StrCat("--json ", json_file_, ": cannot be written"));
  }

 private:
  void Print(const RowResult& row) {
    const std::string note = runner_.TakeBaseNote();
    if (!note.empty()) std::printf("# %s\n", note.c_str());
    std::printf("%s", RowLine(row).c_str());
    if (row.breakdown.has_value()) std::printf("%s", BreakdownLine(row).c_str());
    std::fflush(stdout);
  }

  RowRunner& runner_;
  Report& report_;
  const std::string json_file_;
};

int Told(const absl::Status& status, int exit_code) {
  std::fprintf(stderr, "soup-bench: %s\n", std::string(status.message()).c_str());
  return exit_code;
}

int RunBench(const Options& o, const std::vector<RowSpec>& rows,
             const std::vector<Ablation>& ablations, const std::vector<int32_t>& batches) {
  auto machine = OpenMachine(o.machine);
  if (!machine.ok()) return Told(machine.status(), 2);
  // Rates are taken at the first row's shapes.
  const absl::Time start = absl::Now();
  const absl::Status measured = MeasureCeilings(*FindBase(rows[0].base), o.quick, *machine);
  if (!measured.ok()) return Told(measured, 1);
  const absl::Duration taken = absl::Now() - start;
  Report report;
  report.profile = machine->profile;
  report.host_threads = static_cast<int>(std::max(1u, std::thread::hardware_concurrency()));
  report.command =
      absl::StrCat("soup-bench --backend ", o.machine.backend, o.breakdown ? " --breakdown" : "",
                   o.mirror_dir.empty() ? "" : " --mirror-dir DIR");
  RunnerOptions options;
  options.threads = report.host_threads;
  options.breakdown = o.breakdown;
  options.mirror_dir = o.mirror_dir;
  options.device_bytes = machine->device_bytes;
  RowRunner runner(machine->backend.get(), machine->profile, options);
  std::printf("%s# ceilings took %.2f s\n\n%s", CeilingsTable(report.profile).c_str(),
              absl::ToDoubleSeconds(taken), RowHeader().c_str());
  std::fflush(stdout);
  Bench bench(&runner, &report, o.json_file);
  if (const absl::Status written = bench.WriteJson(); !written.ok()) return Told(written, 2);
  int exit_code = 0;
  for (const RowSpec& row : rows) {
    const absl::Status ran =
        batches.empty() ? bench.Row(row, ablations) : bench.TokenSweep(row, batches);
    if (ran.ok()) continue;
    exit_code = Told(ran, 1);
    if (!o.keep_going) break;
  }
  return exit_code;
}

}  // namespace

int RunCli(const std::vector<std::string>& arguments) {
  Options o;
  const std::unique_ptr<CLI::App> app = MakeApp(o);
  try {
    app->parse(std::vector<std::string>(arguments.rbegin(), arguments.rend()));
  } catch (const CLI::ParseError& e) {
    return app->exit(e) == 0 ? 0 : 2;
  }
  const auto rows = MakeRows(o);
  if (!rows.ok()) return Told(rows.status(), 2);
  const auto ablations = ParseAblations(o.ablate);
  if (!ablations.ok()) return Told(ablations.status(), 2);
  const auto batches = SweepBatches(o);
  if (!batches.ok()) return Told(batches.status(), 2);
  if (!batches->empty() && ablations->size() > 1) {
    return Told(absl::InvalidArgumentError("--token-sweep and --ablate: one at a time"), 2);
  }
  return RunBench(o, *rows, *ablations, *batches);
}

}  // namespace soup::bench
