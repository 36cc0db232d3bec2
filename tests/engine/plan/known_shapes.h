// Models and machines that tests of the planner share: shapes that users run, and the rates of one
// NVIDIA H200 as soup-bench or a worker measured them.
#ifndef SOUP_TESTS_ENGINE_PLAN_KNOWN_SHAPES_H_
#define SOUP_TESTS_ENGINE_PLAN_KNOWN_SHAPES_H_

#include "engine/base/machine_profile.h"
#include "engine/plan/job_plan.h"

namespace soup::engine {

inline ModelSpec SmallModel() {
  ModelSpec m;
  m.family = "llama";
  m.hidden = 576;
  m.intermediate = 1536;
  m.layers = 12;
  m.heads = 9;
  m.kv_heads = 3;
  m.head_dim = 64;
  m.vocab = 49152;
  m.max_position = 8192;
  return m;
}

inline ModelSpec Llama8b() {
  ModelSpec m;
  m.family = "llama";
  m.hidden = 4096;
  m.intermediate = 14336;
  m.layers = 32;
  m.heads = 32;
  m.kv_heads = 8;
  m.head_dim = 128;
  m.vocab = 128256;
  m.max_position = 131072;
  return m;
}

inline ModelSpec Llama70b() {
  ModelSpec m = Llama8b();
  m.hidden = 8192;
  m.intermediate = 28672;
  m.layers = 80;
  m.heads = 64;
  return m;
}

// NVIDIA H200 as soup-bench measured it (docs/benchmarks/2026-11-30-h200-soup-bench.json).
inline MachineProfile H200() {
  MachineProfile p;
  p.backend = "cuda";
  p.device_memory_bytes = 150'109'880'320;
  p.attention_library = "cudnn-9.14.0";
  p.copy_bytes_per_second = 55.24e9;
  p.copy_to_host_bytes_per_second = 55.17e9;
  p.copy_both_ways_bytes_per_second = 50.56e9;
  p.device_copy_bytes_per_second = 4194e9;
  p.dequant_bytes_per_second = 2913e9;
  p.launch_seconds = 4.4e-6;
  p.gemm_flops = 686e12;
  p.gemm_rates = {{512, 627e12},  {1024, 780e12}, {2048, 745e12},
                  {4096, 686e12}, {8192, 686e12}, {16384, 672e12}};
  p.attention_forward_rates = {{512, 298e12}, {2048, 416e12}, {4096, 538e12}, {16384, 624e12}};
  p.attention_backward_rates = {{512, 191e12}, {2048, 290e12}, {4096, 341e12}, {16384, 411e12}};
  return p;
}

// The same card another day, with gates within products
// (docs/benchmarks/2026-11-30-h200-soup-bench-8ad1398.json).
inline MachineProfile H200WithGates() {
  MachineProfile p = H200();
  p.fused_gate_rows = 1024;
  p.copy_bytes_per_second = 55.33e9;
  p.copy_to_host_bytes_per_second = 55.21e9;
  p.copy_both_ways_bytes_per_second = 50.28e9;
  p.device_copy_bytes_per_second = 4192e9;
  p.dequant_bytes_per_second = 2919e9;
  p.launch_seconds = 3.59e-6;
  p.gemm_flops = 700e12;
  p.gemm_rates = {{512, 650.8e12},  {1024, 771.5e12}, {2048, 709.3e12},
                  {4096, 707.6e12}, {8192, 687e12},   {16384, 675.7e12}};
  p.attention_forward_rates = {
      {512, 294.5e12}, {2048, 415.3e12}, {4096, 542.6e12}, {16384, 650.9e12}};
  p.attention_backward_rates = {
      {512, 191.1e12}, {2048, 289e12}, {4096, 340.6e12}, {16384, 418.7e12}};
  return p;
}

// The same kind of card, measured as a worker does at its start, with own attention
// (docs/benchmarks/2026-11-30-h200-fp32-and-experts.txt).
inline MachineProfile H200Quick() {
  MachineProfile p = H200WithGates();
  p.attention_library.clear();
  p.copy_bytes_per_second = 54.81e9;
  p.copy_to_host_bytes_per_second = 55.11e9;
  p.copy_both_ways_bytes_per_second = 51.86e9;
  p.launch_seconds = 4.04e-6;
  p.gemm_flops = 696e12;
  p.gemm_rates = {{512, 633.3e12}, {2048, 753.8e12}, {8192, 696.3e12}};
  p.attention_forward_rates = {{512, 226.3e12}, {4096, 407.5e12}, {16384, 449.2e12}};
  p.attention_backward_rates = {{512, 184.8e12}, {4096, 278.5e12}, {16384, 278.9e12}};
  return p;
}

}  // namespace soup::engine

#endif  // SOUP_TESTS_ENGINE_PLAN_KNOWN_SHAPES_H_
