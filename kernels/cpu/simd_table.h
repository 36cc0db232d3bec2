// The inner loops of the CPU ops, compiled once an instruction set from kernels/cpu/isa/*.cc, and
// the choice between them. Internal to kernels/cpu and its tests.
//
// Every set does the same fp32 operations in the same order (vectors are 16 lanes wide in the code
// and are cut to what the machine has; no fused multiply-add), so the choice decides no bits.
#ifndef SOUP_KERNELS_CPU_SIMD_TABLE_H_
#define SOUP_KERNELS_CPU_SIMD_TABLE_H_

#include <cstdint>

#include "kernels/ops.h"

namespace soup::kernels::cpu {

// Experts that a router's row may have.
inline constexpr int64_t kMaxExperts = 4096;

// Functions work on rows or elements [begin, end), or on one task, of an op's args.
struct SimdTable {
  const char* name;

  void (*widen)(const WidenArgs&, int64_t begin, int64_t end);
  void (*gather_rows)(const GatherRowsArgs&, int64_t begin, int64_t end);
  void (*rms_norm_forward)(const RmsNormForwardArgs&, int64_t begin, int64_t end);
  void (*rms_norm_backward)(const RmsNormBackwardArgs&, int64_t begin, int64_t end);
  void (*head_norm_forward)(const HeadNormForwardArgs&, int64_t begin, int64_t end);
  void (*head_norm_backward)(const HeadNormBackwardArgs&, int64_t begin, int64_t end);
  void (*add_bias)(const AddBiasArgs&, int64_t begin, int64_t end);
  void (*rope)(const RopeArgs&, int64_t begin, int64_t end, float* scratch);
  void (*attention_forward)(const AttentionForwardArgs&, int64_t sequence, int64_t head,
                            float* scratch);
  void (*attention_delta)(const AttentionBackwardArgs&, int64_t begin, int64_t end);
  void (*attention_backward)(const AttentionBackwardArgs&, int64_t sequence, int64_t kv_head,
                             float* scratch);
  void (*swiglu_forward)(const SwigluForwardArgs&, int64_t begin, int64_t end);
  void (*swiglu_backward)(const SwigluBackwardArgs&, int64_t begin, int64_t end);
  void (*axpy)(const AxpyArgs&, int64_t begin, int64_t end);
  void (*loss_slice)(const LossSliceArgs&, int64_t begin, int64_t end);
  void (*loss_finish)(const LossFinishArgs&, int64_t begin, int64_t end);
  void (*route)(const RouteArgs&, int64_t begin, int64_t end);
  void (*route_backward)(const RouteBackwardArgs&, int64_t begin, int64_t end);
  void (*entry_grad)(const EntryGradArgs&, int64_t begin, int64_t end);
  // Sum of squares of x[0, n), n at most 1024.
  double (*sum_squares_block)(const float* x, int64_t n);
  struct AdamWScalars {
    float decay, beta1, one_minus_beta1, beta2, one_minus_beta2, eps, grad_scale, step_size,
        sqrt_bias2;
  };
  void (*adamw)(const AdamWArgs&, const AdamWScalars&, int64_t begin, int64_t end);
  void (*nf4_dequant)(const Nf4DequantArgs&, const float* nested_code, int64_t block_begin,
                      int64_t block_end);
  // One whole block of 64 finite weights or fewer (n): codes to packed[(n + 1) / 2]; returns
  // absmax, or a negative number when a weight is not finite. Exactly one source is not null.
  float (*nf4_quantize_block)(const uint16_t* bf16, const float* f32, int64_t n, uint8_t* packed);
};

// The best one this machine runs. Never null.
const SimdTable* BestSimdTable();
// By name ("base", "avx2", "avx512"); null when the machine (or this build) does not have it.
const SimdTable* FindSimdTable(const char* name);

}  // namespace soup::kernels::cpu

#endif  // SOUP_KERNELS_CPU_SIMD_TABLE_H_
