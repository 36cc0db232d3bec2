// Measured facts about this host and device that plans are made with. Written by a worker at start
// (engine/device/machine_measure.h fills the rates), exchanged and kept as text. Plain values; any
// thread.
//
// A rate of 0, or an empty curve, was not measured.
#ifndef SOUP_ENGINE_BASE_MACHINE_PROFILE_H_
#define SOUP_ENGINE_BASE_MACHINE_PROFILE_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace soup::engine {

// What the device reaches at one size: a point of a measured curve.
struct MeasuredRate {
  int64_t size = 0;
  double flops = 0;  // a second
};

// The rate at `size` on a curve of ascending sizes: linear in log(size) between its points, the
// nearest point's beyond its ends. 0 for an empty curve.
double RateAt(const std::vector<MeasuredRate>& curve, int64_t size);

struct MachineProfile {
  std::string backend = "cpu";  // cpu | cuda
  std::string device_name;
  int64_t device_memory_bytes = 0;  // cpu: the host's memory
  int64_t overhead_bytes = 0;       // context and modules; 0 on the CPU
  // Copies at slab size, the host's side registered.
  double copy_bytes_per_second = 0;            // host store -> slot, alone
  double copy_to_host_bytes_per_second = 0;    // device -> host, alone
  double copy_both_ways_bytes_per_second = 0;  // each of the two directions while both run
  // Elementwise traffic on the device: bytes read and bytes written, of a copy of large buffers.
  double device_copy_bytes_per_second = 0;
  double gemm_flops = 0;                // at the job's shapes, mean over gemm_rates
  double dequant_bytes_per_second = 0;  // NF4, output bytes
  double launch_seconds = 0;            // of one small op, when many are queued
  // size: rows (tokens); the layer's GEMMs weighted by their FLOP.
  std::vector<MeasuredRate> gemm_rates;
  // size: tokens of one sequence, causal. FLOP counted: forward 2 S^2 Hq D, backward 2.5 times it.
  std::vector<MeasuredRate> attention_forward_rates;
  std::vector<MeasuredRate> attention_backward_rates;
  int32_t cpu_threads = 1;  // decide times, not bits
  std::string blas_core;    // OpenBLAS core type, e.g. "SkylakeX": decides bits
  // From how many rows on the gate of an MLP is computed within its products (Backend); 0: never.
  int64_t fused_gate_rows = 0;
  // "cudnn-9.14.0" where the backend has it on this device; empty: our own attention kernels alone.
  std::string attention_library;

  std::string ToText() const;  // JSON, one line, keys sorted
  // Reads its own version only: a profile is measured anew sooner than it is converted. Errors:
  // InvalidArgument.
  static absl::StatusOr<MachineProfile> FromText(absl::string_view text);
};

}  // namespace soup::engine

#endif  // SOUP_ENGINE_BASE_MACHINE_PROFILE_H_
