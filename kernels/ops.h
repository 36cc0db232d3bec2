// The ops of the engine: an args struct and a launcher each. kernels/cpu implements them in fp32
// (the oracle), kernels/cuda in bf16 with fp32 accumulation, or in fp32 where a pass asks for it.
//
// Rules for every op, on both sides:
//   - row-major; T = packed tokens of one work item (bucket tail included), H hidden, I
//   intermediate, D head_dim,
//     Hq / Hkv query / key-value heads, R LoRA rank, V vocabulary.
//   - "act" is the activation type: fp32 on the CPU; on CUDA bf16, or fp32 for models with experts
//   (a property of the pass). "wt" is the type of a GEMM's weight operand: fp32 on the CPU
//     (widened from bf16), bf16 on CUDA. Pointers to them are void*.
//   - no allocation, no synchronisation, no global state; bitwise repeatable: the result depends on
//     the args' values and shapes only, never on addresses, thread timing or thread count.
//   - buffers do not overlap unless an arg says "in place".
//   - std only here: this header is seen by every compiler of the project.
#ifndef SOUP_KERNELS_OPS_H_
#define SOUP_KERNELS_OPS_H_

#include <cstdint>

namespace soup::kernels {

// y[i, :] = table[ids[i], :].  table bf16 [rows, H] (pinned host memory on CUDA), y act [T, H]. ids
// in range: checked by the caller.
struct GatherRowsArgs {
  const uint16_t* table;
  const int32_t* ids;  // [T]
  void* y;
  int64_t T, H;
};

// wt[i] = src[i] widened from bf16. CPU only does work; on CUDA bf16 weights are used in place.
struct WidenArgs {
  const uint16_t* src;
  float* dst;
  int64_t n;
};

// NF4 dequantisation of one matrix of n weights: w = bf16(code[nibble] * absmax[block]), block 64,
// high nibble first (Dettmers et al., QLoRA, arXiv 2305.14314; bytes as bitsandbytes writes them).
// Under double quantisation absmax[b] = nested_code[q[b]] * nested_absmax[b / 256] + offset, in
// fp32 in that order (one rounding each). Result rounded to bf16 and stored as wt.
struct Nf4DequantArgs {
  const uint8_t* packed;       // [(n + 1) / 2]
  const float* absmax;         // single: [blocks]; else null
  const uint8_t* absmax_q;     // double: [blocks]; else null
  const float* nested_absmax;  // double: [nested blocks]
  const float* nested_offset;  // double: [1]
  void* dst;                   // wt [n]
  int64_t n;
};

// RMSNorm (Zhang & Sennrich, arXiv 1910.07467): y = x * rstd * (w + weight_offset), rstd = 1 /
// sqrt(mean(x^2) + eps). accumulate: y += (the output's norm of a family that has one, added to the
// residual), else y =.
struct RmsNormForwardArgs {
  const void* x;           // act [T, H]
  const uint16_t* weight;  // bf16 [H]
  void* y;                 // act [T, H]
  float* rstd;             // [T]; null: not wanted
  int64_t T, H;
  float eps;
  float weight_offset = 0;  // 1: the family's weights are around zero
  bool accumulate = false;
};
// dx (+)= dL/dx. The weight is frozen: no weight gradient. accumulate: dx += (residual branch),
// else dx =.
struct RmsNormBackwardArgs {
  const void* dy;          // act [T, H]
  const void* x;           // act [T, H]
  const uint16_t* weight;  // bf16 [H]
  const float* rstd;       // [T]; null: made again from x and eps
  void* dx;                // act [T, H]
  int64_t T, H;
  bool accumulate;
  float weight_offset = 0;
  float eps = 0;              // read when rstd is null
  float* rstd_out = nullptr;  // [T]: gets rstd; null: not wanted
};

// Rope behind a norm, in the same op, so that nothing is rounded between: as RopeArgs; positions
// null: none.
struct HeadRope {
  const int32_t* positions = nullptr;  // [T]
  const float* inv_freq = nullptr;     // [rotary / 2]
  int64_t rotary = 0;
  float scale = 1;
};
// RMSNorm of each head by itself, in place on `heads` consecutive heads of each row (the q and k
// norms), then rope. saved: the heads as they were, for the backward; rows lie row_stride apart as
// x's do.
struct HeadNormForwardArgs {
  void* x;  // act; row t starts at x + t * row_stride
  void* saved;
  const uint16_t* weight;  // bf16 [D]
  int64_t T, heads, D, row_stride;
  float eps;
  float weight_offset = 0;
  HeadRope rope;
};
// dx in place of dy: back through rope, then through the norm.
struct HeadNormBackwardArgs {
  void* dx;       // act; rows grad_row_stride apart
  const void* x;  // act: `saved` of the forward; rows row_stride apart
  const uint16_t* weight;
  int64_t T, heads, D, row_stride, grad_row_stride;
  float eps;
  float weight_offset = 0;
  HeadRope rope;
};

// y[t, :] += bias for t < T; rows lie row_stride apart.
struct AddBiasArgs {
  void* y;               // act
  const uint16_t* bias;  // bf16 [N]
  int64_t T, N, row_stride;
};

// Rotary embedding in place on `heads` consecutive heads of each row (Su et al., arXiv 2104.09864;
// halves layout, as Hugging Face): with h = rotary / 2, for i < h, (a, b) = (x[i], x[i + h]) -> (a
// cos - b sin, b cos + a sin) * scale, angle = position * inv_freq[i]. inverse: the transpose (the
// backward).
struct RopeArgs {
  void* x;                          // act; row t starts at x + t * row_stride
  const int32_t* positions;         // [T]
  const float* inv_freq;            // [rotary / 2]
  int64_t T, heads, D, row_stride;  // row_stride in elements
  bool inverse;
  int64_t rotary = 0;  // leading elements of a head that turn; 0: all D
  float scale = 1;
};

// CUDA: which sequences of an item cuDNN takes instead of our own kernel, those of
// [least_tokens, most_tokens] tokens (none where most is 0) and neighbours of `batched`, and the
// memory that its backward may have: engine/base/attention_library.h says what follows. It decides
// bits. The CPU ignores it.
struct AttentionLibraryArgs {
  int64_t least_tokens = 0;
  int64_t most_tokens = 0;
  int64_t workspace_limit = 0;  // backward: bytes a call
  void* workspace = nullptr;    // backward
  int64_t workspace_bytes = 0;
  int64_t batched = 0;
};

// Causal attention over packed sequences: sequence s covers rows [cu[s], cu[s+1]); rows at and
// after cu[S] are bucket tail: out = 0, lse = 0. GQA: query head h reads kv head h / (Hq / Hkv).
// scale = 1 / sqrt(D) unless the family says otherwise. window: query i sees key j when 0 <= i - j
// < window; 0: no bound. soft_cap: scaled scores s become cap * tanh(s / cap); 0: they do not. q,
// k, v are column ranges of one buffer: row stride in elements.
struct AttentionForwardArgs {
  const void* q;  // act [T, Hq * D]
  const void* k;  // act [T, Hkv * D]
  const void* v;
  int64_t row_stride;  // of q, k, v
  void* out;           // act [T, Hq * D], contiguous
  // Natural-log sum of exponentials of the scaled scores: [T, Hq] on the CPU, [Hq, T] on CUDA. Only
  // the backward reads it, so a backend keeps the order that suits it.
  float* lse;
  const int32_t* cu_seqlens;  // [S + 1], host memory on every backend
  int64_t S, T, Hq, Hkv, D;
  float scale;
  int64_t window = 0;
  float soft_cap = 0;
  AttentionLibraryArgs library = {};
};
// Backward of the above; probabilities are recomputed from lse (Dao et al., arXiv 2205.14135). dq,
// dk, dv are written whole (tail rows: 0) with `grad_row_stride`. delta: scratch fp32 [T * Hq],
// row sums of dout * out.
struct AttentionBackwardArgs {
  const void* q;
  const void* k;
  const void* v;
  int64_t row_stride;
  const void* out;
  const void* dout;  // act [T, Hq * D], contiguous
  const float* lse;
  float* delta;
  void* dq;
  void* dk;
  void* dv;
  int64_t grad_row_stride;
  const int32_t* cu_seqlens;
  int64_t S, T, Hq, Hkv, D;
  float scale;
  int64_t window = 0;
  float soft_cap = 0;
  AttentionLibraryArgs library = {};
};

// y = f(gate) * up, gate_up act [T, 2 I] with gate in columns [0, I) (Shazeer, arXiv 2002.05202).
// f: silu, or gelu by tanh: x / 2 * (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3))).
enum class GateActivation : uint8_t { kSilu, kGeluTanh };
struct SwigluForwardArgs {
  const void* gate_up;
  void* y;  // act [T, I]
  int64_t T, I;
  GateActivation gate = GateActivation::kSilu;
};
// d_gate_up from dy; may run in place over gate_up (d_gate_up == gate_up).
struct SwigluBackwardArgs {
  const void* gate_up;
  const void* dy;  // act [T, I]
  void* d_gate_up;
  int64_t T, I;
  GateActivation gate = GateActivation::kSilu;
};

// Gate and up of a gated MLP and what follows them: gate_up = x W^T, rounded to act, then y =
// f(gate) * up as SwigluForward. gate_up is memory that the op may use; `wanted`: and holds what
// its name says afterwards. The bits of either do not depend on whether the other is asked for.
struct GateUpArgs {
  const void* x;  // act [T, H]
  const void* w;  // wt [2 I, H], gate's rows first
  void* gate_up;  // act [T, 2 I]
  void* y;        // act [T, I]; null: gate and up alone (wanted)
  int64_t T, H, I;
  GateActivation gate = GateActivation::kSilu;
  bool wanted = true;
};
// The backward of the down projection and of the gate before it: d_act = dy W, rounded to act, then
// SwigluBackward in place over gate_up; d_act is memory that the op may use. gate_up null: d_act
// alone; the bits that SwigluBackward then makes of it are the same.
struct DownBackwardArgs {
  const void* dy;  // act [T, H]
  const void* w;   // wt [H, I]
  void* d_act;     // act [T, I]
  void* gate_up;   // act [T, 2 I]
  int64_t T, H, I;
  GateActivation gate = GateActivation::kSilu;
};

// C = alpha * op(A) * op(B) + beta * C, row-major with leading dimensions (elements).
// op(A) is [M, K], op(B) is [K, N]. beta is 0, or 1 to accumulate; with beta 0 C's old bytes are
// not read. With an addend (beta 1 only), beta's term is that matrix instead of C's old value: a
// residual without a copy.
enum class Operand : uint8_t { kAct, kWt, kF32 };  // element types: see the rules above
struct GemmArgs {
  bool transpose_a, transpose_b;
  int64_t M, N, K;
  float alpha, beta;
  const void* A;
  int64_t lda;
  const void* B;
  int64_t ldb;
  void* C;
  int64_t ldc;
  Operand a_type, b_type, c_type;
  const void* addend = nullptr;  // [M, N] of c_type, rows ldc apart; null: C itself
};

// The linears of one stacked product that a LoRA adapts (Hu et al., arXiv 2106.09685), in column
// order: linear m makes columns [column[m], column[m] + width[m]) of y. Its B is width[m] rows of
// b; its x A^T is r columns of u from m c on, c = LoraColumns(r) of lora_products.h: r up to whole
// 8s.
struct LoraLinears {
  int32_t count;  // 1 .. 3
  int64_t column[3], width[3];
};
// y[t, column of m + j] += scale * sum_i u[t, m c + i] * b[row of m + j, i]; without accumulate =,
// and what y held is not read. Columns of no linear are left alone.
//
// With an addend it is added too, before what y holds is rounded: y = (accumulate ? y : 0) + addend
// + scale * u b^T in one pass. Then there is one linear, its columns start at 0, and what lies
// behind them up to ldy is nobody's, in y and in the addend: it may be written. Rounded once, but
// where CUDA leaves a shape to products (LoraUpKernelsTake of lora_products.h): under accumulate y
// + addend is rounded there too, and a product in place may round what it adds.
struct LoraUpArgs {
  LoraLinears linears;
  const void* u;  // act [T, count * c]
  const void* b;  // act [sum of widths, r]
  void* y;        // act; rows ldy apart
  int64_t T, r, ldy;
  float scale;
  bool accumulate = true;
  const void* addend = nullptr;  // act; rows ldy apart
};
// A linear with its adapters, and a residual: y = x W^T + scale * u b^T + addend, W wt [N, K], b
// act [N, R]; or the gradient of its input: y = x W + u b, W wt [K, N], b act [R, N] (transpose_w
// false; scale 1, no addend). u act [M, R]. The product with its adapters is rounded to act once or
// apart, as the backend does it; then with the addend once more.
struct AdaptedProductArgs {
  bool transpose_w;
  const void* x;  // act [M, K]
  const void* w;
  void* y;  // act [M, N]; not x
  int64_t M, N, K;
  const void* u;
  const void* b;
  int64_t R;
  float scale = 1;
  const void* addend = nullptr;  // act [M, N]
};
// LoraUp added to y, then rope on the same rows (rope.x is up.y, up.accumulate), in one pass where
// a backend can: nothing is rounded between then.
struct LoraUpRopeArgs {
  LoraUpArgs up;
  RopeArgs rope;
};
// The product before it too: up.y = x W^T, then LoraUpRope. Product and adapters are rounded once
// or apart, as the backend does it; then the turned heads once more.
struct TurnedProductArgs {
  const void* x;  // act [T, K]
  const void* w;  // wt [N, K]
  int64_t N, K;
  LoraUpRopeArgs turned;  // up.y act [T, N], rows up.ldy apart
};
// q, k, v from their product, rounded once: y = rope(norm(x + bias + adapters)). Norm and rope are
// of the Hq query heads and the Hkv key heads, each where it is given; v's heads follow them.
// Adapted are whole heads.
struct QkvFinishArgs {
  const float* x;  // [T, (Hq + 2 Hkv) D], rows x_row_stride apart; where act is fp32: y itself
  void* y;         // act, rows row_stride apart
  void* saved;     // act, rows row_stride apart: q and k before their norm, where there is one
  const uint16_t* bias;  // bf16 [(Hq + 2 Hkv) D], of rows t < biased_rows; null: none
  LoraLinears linears;   // count 0: no adapters
  const void* u;         // act [T, count * c], as LoraUpArgs; b too
  const void* b;
  const uint16_t* q_norm;  // bf16 [D]; null: heads are not normed
  const uint16_t* k_norm;
  HeadRope rope;
  int64_t T, Hq, Hkv, D, x_row_stride, row_stride, biased_rows, r;
  float lora_scale, eps;
  float weight_offset = 0;
};
// du[t, m c + i] = scale * sum_j dy[t, column of m + j] * b[row of m + j, i].
struct LoraBackArgs {
  LoraLinears linears;
  const void* dy;  // act; rows ldy apart
  const void* b;   // act [sum of widths, r]
  void* du;        // act [T, count * c]
  int64_t T, r, ldy;
  float scale;
};
// grad_b[row of m + j, i] += scale * sum_t dy[t, column of m + j] * u[t, m c + i], in fixed order.
struct LoraGradArgs {
  LoraLinears linears;
  const void* dy;  // act; rows ldy apart
  const void* u;   // act [T, count * c]
  float* grad_b;   // [sum of widths, r]
  int64_t T, r, ldy;
  float scale;
};

// grad_a[i, :] += sum_t du[t, i] * n[t, :], n = RmsNorm(x) rounded to act, in fixed order: what a
// norm would write and a product read again. rstd is what RmsNormBackward has told of x. Where a
// backend has no such kernel, the norm goes into `normed` first (kernels/lora_products.h), and rstd
// is not read; it may lie there.
struct LoraNormedGradArgs {
  const void* du;          // act [T, R], rows ldu apart
  const void* x;           // act [T, H]
  const uint16_t* weight;  // bf16 [H]
  const float* rstd;       // [T]
  void* normed;            // act [T, H], scratch
  float* grad_a;           // [R, H]
  int64_t T, R, H, ldu;
  float eps;
  float weight_offset = 0;
};

// y = (accumulate ? y : 0) + scale * x, n elements of act; y may be x.
struct AxpyArgs {
  const void* x;
  void* y;
  int64_t n;
  float scale;
  bool accumulate;
};

// LoRA dropout (inverted: kept elements are scaled by 1 / (1 - p)). The mask is a function of the
// element's index alone: element i is kept when draw i of PhiloxStream(seed, stream_hi, stream_lo)
// of kernels/philox.h (Philox4x32-10, Salmon et al., SC 2011) is >= p * 2^32. p in [0, 1). The
// stream encodes (step, micro-batch, layer, module), so recompute, resume and co-tenants agree.
struct DropoutArgs {
  const void* x;
  void* y;  // may be x
  int64_t n;
  float p;
  uint64_t seed;
  uint64_t stream_hi, stream_lo;
};

// y[i, :] = x[rows[i], :]: supervised rows before the final norm.
struct GatherActRowsArgs {
  const void* x;
  const int32_t* rows;  // [n]
  void* y;              // act [n, H]
  int64_t n, H;
};
// dx = 0 [T, H], then dx[rows[i], :] = dy[i, :]. rows are distinct.
struct ScatterActRowsArgs {
  const void* dy;  // act [n, H]
  const int32_t* rows;
  void* dx;  // act [T, H]
  int64_t n, T, H;
};

// One vocabulary slice [v0, v0 + Vs) of the online cross entropy. In: logits fp32 [n, Vs] of the
// slice. Per row i:
//   m' = max(m, max(logits)); f = exp(m - m') (0 on the first slice); p = exp(logits - m') (written
//   over logits as act, row i from where row i of logits starts: the GEMM's A operand, whose
//   leading dimension is Vs floats); l = l * f + sum(p); grad[i, :] *= f; if the target lies
//   here, target_logit[i] = its logit.
// The caller then does grad += p * W_slice (Gemm, beta 1). Milakov & Gimelshein, arXiv 1805.02867.
// first: m, l and target_logit are initialised here and grad is set to 0. with_grad false: grad is
// not touched (score items). soft_cap: logits z become cap * tanh(z / cap) first, of which m, l and
// target_logit speak, and p is written times the slope 1 - (capped / cap)^2.
struct LossSliceArgs {
  float* logits;           // [n, Vs] in: logits; out: p
  const int32_t* targets;  // [n]
  float* m;                // [n]
  float* l;                // [n]
  float* target_logit;     // [n]
  float* grad;             // fp32 [n, H]
  int64_t n, H, v0, Vs;
  bool first;
  bool with_grad;
  float soft_cap = 0;
};
// target_row[i, :] = W[targets[i] - v0, :] for targets in the slice (others untouched). W wt [Vs,
// H].
struct LossTargetRowsArgs {
  const void* weight;
  const int32_t* targets;
  void* target_row;  // wt [n, H]
  int64_t n, H, v0, Vs;
};
// loss[i] = log(l) + m - target_logit; dh[i, :] = (grad[i, :] / l - target_row[i, :] * slope) *
// scale, with slope 1, or that of the soft cap at target_logit. dh act; null: loss only.
struct LossFinishArgs {
  const float* m;
  const float* l;
  const float* target_logit;
  const float* grad;
  const void* target_row;
  float* loss;  // [n]
  void* dh;     // act [n, H]
  int64_t n, H;
  float scale;
  float soft_cap = 0;
};

// Mixture of experts. A token's choices are entries t * k + j: its j-th expert.

// Softmax over E logits, then the k largest (of equals the lowest index) in descending order;
// divided by their sum when `normalise`.
struct RouteArgs {
  const float* logits;  // [T, lde], E columns of it
  int32_t* experts;     // [T, k]
  float* weights;       // [T, k]
  int64_t T, E, lde, k;
  bool normalise;
};
// d_logits act [T, lde] (columns from E on: 0) from d_weights; logits, experts and weights as
// above.
struct RouteBackwardArgs {
  const float* logits;
  const int32_t* experts;
  const float* weights;
  const float* d_weights;  // [T, k]
  void* d_logits;
  int64_t T, E, lde, k;
  bool normalise;
};
// Entries of each expert in ascending order: counts[e] of them from lists + e * T.
struct ListExpertsArgs {
  const int32_t* experts;  // [T, k], distinct in a row
  int32_t* lists;          // [E, T]
  int32_t* counts;         // [E]
  int64_t T, E, k;
};
// y[i, :] = x[entries[i] / k, :] for i < n; 0 for n <= i < rows.
struct GatherEntriesArgs {
  const void* x;           // act [T, H]
  const int32_t* entries;  // [n]
  void* y;                 // act [rows, H]
  int64_t n, rows, H, k;
};
// y[entries[i] / k, :] += weights[entries[i]] * x[i, :]; weights null: 1. Tokens are distinct.
struct ScatterEntriesArgs {
  const void* x;           // act [n, H]
  const int32_t* entries;  // [n]
  const float* weights;    // [T, k]
  float* y;                // fp32 [T, H]
  int64_t n, H, k;
};
// With a = f(gate) * up of row i: d_weights[entries[i]] = sum(d_act[i, :] * a), then d_act[i, :] *=
// weights[entries[i]]. What an entry's weight scales is the down projection's output, whose product
// with its gradient is that of the projection's input with d_act: no output is needed.
struct EntryGradArgs {
  const void* gate_up;  // act [n, 2 I]
  void* d_act;          // act [n, I]
  const int32_t* entries;
  const float* weights;  // [T, k]
  float* d_weights;      // [T, k]
  int64_t n, I;
  GateActivation gate = GateActivation::kSilu;
};
// y = (accumulate ? y : 0) + x, x fp32, y act.
struct AddF32Args {
  const float* x;
  void* y;
  int64_t n;
  bool accumulate;
};

// Sum of squares of n fp32 values in fixed order (blocks of 1024, partial sums in double, blocks
// summed in order); result[0] = sum. Not finite when any input is not finite.
struct SumSquaresArgs {
  const float* x;
  int64_t n;
  double* result;
};

// AdamW (Loshchilov & Hutter, arXiv 1711.05101) as torch.optim.AdamW: w *= 1 - lr * wd; m, v
// updated with g * grad_scale; w -= lr / bc1 * m / (sqrt(v) / sqrt(bc2) + eps), bc = 1 - beta^t, t
// from 1. All fp32 [n].
struct AdamWArgs {
  float* w;
  float* m;
  float* v;
  const float* g;
  int64_t n;
  float lr, beta1, beta2, eps, weight_decay;
  float grad_scale;  // clip coefficient
  int64_t t;
};

}  // namespace soup::kernels

#endif  // SOUP_KERNELS_OPS_H_
