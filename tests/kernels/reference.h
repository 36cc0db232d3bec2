// The ops in plain float64, written from their formulas with no thought of speed: what every
// backend's results are compared with. Layouts as in kernels/ops.h.
#ifndef SOUP_TESTS_KERNELS_REFERENCE_H_
#define SOUP_TESTS_KERNELS_REFERENCE_H_

#include <cstdint>
#include <vector>

namespace soup::kernels::reference {

using Values = std::vector<double>;

struct RmsNormResult {
  Values y;     // [T, H]
  Values rstd;  // [T]
};
RmsNormResult RmsNorm(const Values& x, const Values& weight, int64_t T, int64_t H, double eps);
// dL/dx, from x and weight alone.
Values RmsNormGrad(const Values& dy, const Values& x, const Values& weight, int64_t T, int64_t H,
                   double eps);

// The angle is position * inv_freq rounded to fp32, as the contract says.
void Rope(Values* x, const std::vector<int32_t>& positions, const std::vector<float>& inv_freq,
          int64_t heads, int64_t D, int64_t row_stride, bool inverse, int64_t rotary = 0,
          double scale = 1);

struct AttentionShape {
  std::vector<int32_t> cu_seqlens;  // [S + 1]
  int64_t T, Hq, Hkv, D;
  double scale;
  int64_t window = 0;
  double soft_cap = 0;
  bool operator==(const AttentionShape&) const = default;
};
struct AttentionResult {
  Values out;  // [T, Hq * D]
  Values lse;  // [T, Hq]
};
// q [T, Hq * D], k and v [T, Hkv * D], contiguous.
AttentionResult Attention(const AttentionShape& shape, const Values& q, const Values& k,
                          const Values& v);
struct AttentionGrads {
  Values dq, dk, dv;
};
AttentionGrads AttentionGrad(const AttentionShape& shape, const Values& q, const Values& k,
                             const Values& v, const Values& dout);

// gelu: the gate's activation is gelu by tanh, else silu.
Values Swiglu(const Values& gate_up, int64_t T, int64_t I, bool gelu = false);
Values SwigluGrad(const Values& gate_up, const Values& dy, int64_t T, int64_t I, bool gelu = false);

// op(A) [M, K] * op(B) [K, N], into C [M, N] with ldc.
struct GemmShape {
  bool transpose_a, transpose_b;
  int64_t M, N, K, lda, ldb, ldc;
  double alpha, beta;
  bool operator==(const GemmShape&) const = default;
};
void Gemm(const GemmShape& shape, const Values& a, const Values& b, Values* c);

// Cross entropy of hidden [n, H] through head W [V, H]: losses [n] and scale * dLoss/dhidden [n,
// H].
struct CrossEntropyResult {
  Values loss;
  Values dh;
};
CrossEntropyResult CrossEntropy(const Values& hidden, const Values& weight,
                                const std::vector<int32_t>& targets, int64_t n, int64_t H,
                                int64_t V, double scale, double soft_cap = 0);

struct AdamWState {
  Values w, m, v;
};
struct AdamWParams {
  double lr, beta1, beta2, eps, weight_decay, grad_scale;
  int64_t t;
};
void AdamW(AdamWState* state, const Values& g, const AdamWParams& params);

}  // namespace soup::kernels::reference

#endif  // SOUP_TESTS_KERNELS_REFERENCE_H_
