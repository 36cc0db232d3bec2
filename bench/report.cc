#include "bench/report.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"

namespace soup::bench {
namespace {

using nlohmann::json;

json Curve(const std::vector<engine::MeasuredRate>& curve, const char* size_name) {
  json points = json::array();
  for (const engine::MeasuredRate& p : curve) {
    points.push_back({{size_name, p.size}, {"tflops", p.flops * 1e-12}});
  }
  return points;
}

json Ceilings(const engine::MachineProfile& p) {
  return {{"copy_to_device_gb_s", p.copy_bytes_per_second * 1e-9},
          {"copy_to_host_gb_s", p.copy_to_host_bytes_per_second * 1e-9},
          {"copy_both_ways_gb_s", p.copy_both_ways_bytes_per_second * 1e-9},
          {"device_copy_gb_s", p.device_copy_bytes_per_second * 1e-9},
          {"dequant_output_gb_s", p.dequant_bytes_per_second * 1e-9},
          {"launch_us", p.launch_seconds * 1e6},
          {"gemm", Curve(p.gemm_rates, "rows")},
          {"attention_forward", Curve(p.attention_forward_rates, "tokens")},
          {"attention_backward", Curve(p.attention_backward_rates, "tokens")}};
}

json Ms(const Breakdown& b) {
  json ms = json::object();
  for (int c = 0; c < kOpClasses; ++c) {
    ms[OpClassName(static_cast<OpClass>(c))] = {{"ms", b.seconds[static_cast<size_t>(c)] * 1e3},
                                                {"calls", b.calls[static_cast<size_t>(c)]}};
  }
  ms["idle"] = {{"ms", b.idle_seconds() * 1e3}};
  ms["span"] = {{"ms", b.span_seconds * 1e3}};
  return ms;
}

std::string Command(const std::string& command, const RowResult& row) {
  return absl::StrCat(command,
                      row.ablation.any() ? absl::StrCat(" --ablate ", row.ablation.Name()) : "",
                      " --row \"", row.spec.ToText(), "\"");
}

int64_t PlannedBytes(const RowResult& r) { return r.planned_bytes + r.table_bytes; }
int64_t UnplannedBytes(const RowResult& r, int64_t overhead_bytes) {
  if (r.device_bytes <= 0) return 0;
  return r.device_bytes - overhead_bytes - PlannedBytes(r);
}

json Row(const std::string& command, const RowResult& r, int64_t overhead_bytes) {
  std::vector<std::string> targets;
  for (const engine::Module m : r.spec.targets) targets.emplace_back(engine::ModuleName(m));
  json row = {{"base", r.spec.base},
              {"format", engine::BaseFormatName(r.spec.format)},
              {"lora", {{"r", r.spec.lora_r}, {"targets", targets}}},
              {"batch", r.spec.batch},
              {"seq", r.spec.seq},
              {"budget_bytes", r.spec.budget_bytes},
              {"slots", r.placement.slots},
              {"resident_layers", r.placement.resident_layers},
              {"retention", engine::RetentionText(r.placement)},
              {"tok_s", r.tokens_per_second()},
              {"step_s", r.step_seconds},
              {"stall_fraction", r.stall_fraction()},
              {"copy_gb_s", r.copy_bytes_per_second() * 1e-9},
              {"arena_bytes", r.arena_bytes},
              {"device_bytes", r.device_bytes},
              {"planned_bytes", PlannedBytes(r)},
              {"predicted_step_s", r.predicted_step_seconds},
              {"ideal_share", r.ideal_share()},
              {"command", Command(command, r)},
              {"detail",
               {{"head", engine::HeadText(r.placement)},
                {"values", WeightValuesName(r.spec.values)},
                {"precision", engine::PrecisionName(r.precision)},
                {"shortest", r.spec.shortest},
                {"tokens_a_step", r.tokens_a_step},
                {"steps", r.spec.steps},
                {"fastest_step_s", r.fastest_seconds},
                {"slowest_step_s", r.slowest_seconds},
                {"copy_bytes", r.copy_bytes},
                {"copy_busy_gb_s",
                 r.copy_busy_seconds > 0 ? r.copy_bytes / r.copy_busy_seconds * 1e-9 : 0.0},
                {"gemm_tflop", r.work.gemm_flops * 1e-12},
                {"attention_tflop", r.work.attention_flops * 1e-12},
                {"ideal_s", r.work.ideal_seconds},
                {"host_bytes", r.host_bytes},
                {"pinned_bytes", r.host_bytes + r.base_bytes},
                {"planned_arena_bytes", r.planned_bytes},
                {"page_table_bytes", r.table_bytes},
                {"unplanned_bytes", UnplannedBytes(r, overhead_bytes)},
                {"product_code_bytes", r.product_code_bytes},
                {"gemms_tuned", r.gemms_tuned},
                {"gemm_tuning_s", r.gemm_tuning_seconds},
                {"loss", r.loss}}}};
  if (r.ablation.any()) {
    row["ablation"] = r.ablation.Name();
    row["timing_only"] = true;
  }
  if (r.breakdown.has_value()) row["breakdown"] = Ms(*r.breakdown);
  return row;
}

std::string CurveLine(const char* name, const std::vector<engine::MeasuredRate>& curve) {
  std::vector<std::string> points;
  for (const engine::MeasuredRate& p : curve) {
    points.push_back(absl::StrFormat("%d: %.4g", p.size, p.flops * 1e-12));
  }
  return absl::StrFormat("%-34s %s TFLOPS\n", name, absl::StrJoin(points, "  "));
}

std::string Note(const RowResult& r) {
  std::vector<std::string> notes;
  if (r.spec.shortest > 0) notes.push_back(absl::StrCat("lengths from ", r.spec.shortest));
  if (r.ablation.any()) {
    notes.push_back(absl::StrCat("ABLATED, timing only: ", r.ablation.Name()));
  }
  return absl::StrJoin(notes, "; ");
}

std::string Gigabytes(int64_t bytes) {
  return absl::StrFormat("%.2f", static_cast<double>(bytes) * 1e-9);
}

}  // namespace

std::string ToJson(const Report& report) {
  const engine::MachineProfile& p = report.profile;
  json out;
  out["machine"] = {{"backend", p.backend},
                    {"device_name", p.device_name},
                    {"device_memory_bytes", p.device_memory_bytes},
                    {"overhead_bytes", p.overhead_bytes},
                    {"library", p.blas_core},
                    {"attention_library", p.attention_library},
                    {"cpu_threads", p.cpu_threads},
                    {"host_threads", report.host_threads}};
  out["ceilings"] = Ceilings(p);
  out["rows"] = json::array();
  for (const RowResult& r : report.rows)
    out["rows"].push_back(Row(report.command, r, p.overhead_bytes));
  if (report.sweeps.empty()) return out.dump(1);
  out["sweeps"] = json::array();
  for (const Sweep& sweep : report.sweeps) {
    json rows = json::array();
    for (const RowResult& r : sweep.rows) rows.push_back(Row(report.command, r, p.overhead_bytes));
    out["sweeps"].push_back({{"fixed_s", sweep.fit.fixed},
                             {"per_token_s", sweep.fit.slope},
                             {"worst_residual_s", sweep.fit.worst_residual},
                             {"rows", rows}});
  }
  return out.dump(1);
}

std::string CeilingsTable(const engine::MachineProfile& p) {
  std::string text = absl::StrFormat("# %s (%s), %s, overhead %.0f MiB\n", p.device_name, p.backend,
                                     p.blas_core, static_cast<double>(p.overhead_bytes) / 1048576);
  absl::StrAppendFormat(&text, "%-34s %.4g GB/s; to the host %.4g; both ways %.4g\n",
                        "copy to the device", p.copy_bytes_per_second * 1e-9,
                        p.copy_to_host_bytes_per_second * 1e-9,
                        p.copy_both_ways_bytes_per_second * 1e-9);
  absl::StrAppendFormat(&text, "%-34s %.4g GB/s (read + written)\n", "device copy",
                        p.device_copy_bytes_per_second * 1e-9);
  absl::StrAppendFormat(&text, "%-34s %.4g GB/s\n", "NF4 dequantisation, output",
                        p.dequant_bytes_per_second * 1e-9);
  absl::StrAppendFormat(&text, "%-34s %.3g us\n", "launch", p.launch_seconds * 1e6);
  text += CurveLine("GEMM, a layer's, by rows", p.gemm_rates);
  text += CurveLine("attention forward, by tokens", p.attention_forward_rates);
  text += CurveLine("attention backward, by tokens", p.attention_backward_rates);
  return text;
}

std::string RowHeader() {
  return absl::StrFormat(
      "%-11s %-6s %4s %6s %7s | %5s %4s %-9s %-8s | %9s %10s %10s %6s %6s | %7s %7s %7s %6s | %s\n",
      "base", "format", "b", "S", "budget", "slots", "res", "retention", "head", "tok/s", "step ms",
      "predict ms", "stall%", "GB/s", "arena", "planned", "device", "ideal%", "note");
}

std::string RowLine(const RowResult& r) {
  const size_t slash = r.spec.base.rfind('/');
  const std::string base = slash == std::string::npos ? r.spec.base : r.spec.base.substr(slash + 1);
  return absl::StrFormat(
      "%-11s %-6s %4d %6d %7s | %5d %4d %-9s %-8s | %9.0f %10.2f %10.2f %6.2f %6.2f | %7s %7s %7s "
      "%6.1f | %s\n",
      base, engine::BaseFormatName(r.spec.format), r.spec.batch, r.spec.seq,
      r.spec.budget_bytes > 0 ? Gigabytes(r.spec.budget_bytes) : "-", r.placement.slots,
      r.placement.resident_layers, engine::RetentionText(r.placement),
      engine::HeadText(r.placement), r.tokens_per_second(), r.step_seconds * 1e3,
      r.predicted_step_seconds * 1e3, r.stall_fraction() * 100, r.copy_bytes_per_second() * 1e-9,
      Gigabytes(r.arena_bytes), Gigabytes(PlannedBytes(r)), Gigabytes(r.device_bytes),
      r.ideal_share() * 100, Note(r));
}

std::string BreakdownLine(const RowResult& r) {
  const Breakdown& b = *r.breakdown;
  std::string text = absl::StrFormat("  of %.2f ms:", b.span_seconds * 1e3);
  for (int c = 0; c < kOpClasses; ++c) {
    absl::StrAppendFormat(&text, " %s %.2f (%d)", OpClassName(static_cast<OpClass>(c)),
                          b.seconds[static_cast<size_t>(c)] * 1e3, b.calls[static_cast<size_t>(c)]);
  }
  absl::StrAppendFormat(&text, " idle %.2f\n", b.idle_seconds() * 1e3);
  return text;
}

std::string SweepLine(const Sweep& sweep) {
  return absl::StrFormat(
      "  sweep: step = %.4f s + %.4f ms/token (worst residual %.2f ms over %d points)\n",
      sweep.fit.fixed, sweep.fit.slope * 1e3, sweep.fit.worst_residual * 1e3, sweep.rows.size());
}

}  // namespace soup::bench
