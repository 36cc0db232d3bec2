// What a run of the bench says: a table for people, and JSON (docs/benchmarks/):
//   {machine, ceilings, rows: [{base, format, lora, batch, seq, budget_bytes, slots,
//    resident_layers, retention, tok_s, step_s, stall_fraction, copy_gb_s, arena_bytes,
//    device_bytes, planned_bytes, predicted_step_s, ideal_share, command, detail}], sweeps}
// Rows with work left out carry "ablation" and "timing_only": true besides. copy_gb_s is what the
// copy stream moved over the whole step; detail has its rate while it moved. planned_bytes is the
// arena and the page tables of pinned host memory (detail has each); what the device holds beyond
// overhead and plan is detail's unplanned_bytes, code of products that this process has timed so
// far (product_code_bytes) with it. Pure; any thread.
#ifndef SOUP_BENCH_REPORT_H_
#define SOUP_BENCH_REPORT_H_

#include <string>
#include <vector>

#include "bench/line_fit.h"
#include "bench/row_runner.h"
#include "engine/base/machine_profile.h"

namespace soup::bench {

// A token sweep: rows that differ in their batch, and step = fixed + per_token * tokens over them.
struct Sweep {
  std::vector<RowResult> rows;
  LineFit fit;
};

struct Report {
  engine::MachineProfile profile;
  int host_threads = 0;
  std::string command;  // without its rows: "soup-bench --backend cuda"
  std::vector<RowResult> rows;
  std::vector<Sweep> sweeps;
};

std::string ToJson(const Report& report);
std::string CeilingsTable(const engine::MachineProfile& profile);
std::string RowHeader();
std::string RowLine(const RowResult& row);
std::string BreakdownLine(const RowResult& row);  // row.breakdown is there
std::string SweepLine(const Sweep& sweep);

}  // namespace soup::bench

#endif  // SOUP_BENCH_REPORT_H_
