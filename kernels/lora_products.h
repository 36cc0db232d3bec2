// A LoRA op as plain matrix products, one a linear: what the CPU runs, and CUDA where its own
// kernels do not take the shape. Pure; any thread; std only.
#ifndef SOUP_KERNELS_LORA_PRODUCTS_H_
#define SOUP_KERNELS_LORA_PRODUCTS_H_

#include <cstdint>

#include "kernels/ops.h"

namespace soup::kernels {

namespace lora_products {

inline const void* At(const void* base, int64_t elements, int64_t element_bytes) {
  return static_cast<const char*>(base) + elements * element_bytes;
}
inline void* At(void* base, int64_t elements, int64_t element_bytes) {
  return static_cast<char*>(base) + elements * element_bytes;
}

}  // namespace lora_products

// Columns of u that one linear of rank r has: whole 16-byte vectors of bf16, because a product's
// operands start at multiples of them.
constexpr int64_t LoraColumns(int64_t r) { return (r + 7) / 8 * 8; }

// Whether the CUDA kernels (kernels/cuda/lora.h) take a LoRA op of this shape; where they do not,
// the products below run (LoraUp: where LoraUpKernelsTake says no either). By measurement on an
// H200 (docs/BENCHMARKS.md): larger ranks are what cuBLASLt is good at. Part of what decides bits.
inline bool LoraKernelRank(int64_t r) { return r == 8 || r == 16 || r == 24; }
inline bool LoraKernelsTake(const LoraLinears& linears, int64_t r, int64_t ldy) {
  if (!LoraKernelRank(r) || ldy % 8 != 0 || linears.count < 1) return false;
  for (int32_t m = 0; m < linears.count; ++m) {
    if (linears.width[m] % 64 != 0 || linears.column[m] % 8 != 0) return false;
  }
  return true;
}

// Whether CUDA's kernels take LoraUp: those above, and for small ranks one that takes any width,
// column and ldy, with or without an addend. A product in place would round u B^T before it adds it
// (cuBLASLt's kernels for sm_90 do). Part of what decides bits.
constexpr int64_t kLoraAnyRankMost = 16;
inline bool LoraUpKernelsTake(const LoraLinears& linears, int64_t r, int64_t ldy) {
  return LoraKernelsTake(linears, r, ldy) ||
         (r >= 1 && r <= kLoraAnyRankMost && linears.count >= 1);
}

// LoraUp's contract with an addend.
inline bool LoraAddendFits(const LoraUpArgs& a) {
  return a.addend == nullptr || (a.linears.count == 1 && a.linears.column[0] == 0);
}
// Where LoraUp runs as products: whether its addend goes to y first, by AddendOf. Without
// accumulate the product adds it.
inline bool LoraAddendFirst(const LoraUpArgs& a) {
  return a.addend != nullptr && a.accumulate && a.T > 0;
}
inline AxpyArgs AddendOf(const LoraUpArgs& a) {
  AxpyArgs x{};
  x.x = a.addend;
  x.y = a.y;
  x.n = (a.T - 1) * a.ldy + a.linears.width[0];
  x.scale = 1;
  x.accumulate = true;
  return x;
}

// Whole heads of 64, 128 or 256 turn, each adapted whole or not at all.
inline bool LoraUpRopeTaken(const LoraUpRopeArgs& a) {
  const LoraUpArgs& up = a.up;
  const int64_t D = a.rope.D;
  if (up.addend != nullptr) return false;
  if (!LoraKernelsTake(up.linears, up.r, up.ldy) || !up.accumulate || a.rope.inverse) return false;
  if (D % 64 != 0 || (a.rope.rotary != 0 && a.rope.rotary != D) || a.rope.row_stride != up.ldy)
    return false;
  for (int32_t m = 0; m < up.linears.count; ++m) {
    const bool turns = up.linears.column[m] < a.rope.heads * D;
    if (up.linears.column[m] % 64 != 0) return false;
    if (turns && (up.linears.column[m] % D != 0 || up.linears.width[m] % D != 0 ||
                  up.linears.column[m] + up.linears.width[m] > a.rope.heads * D)) {
      return false;
    }
  }
  return true;
}
inline bool LoraNormedGradTaken(const LoraNormedGradArgs& a) {
  return LoraKernelRank(a.R) && a.H % 64 == 0 && a.ldu % 8 == 0;
}

// LoraNormedGrad as a norm and a product.
inline RmsNormForwardArgs NormOf(const LoraNormedGradArgs& a) {
  RmsNormForwardArgs n{};
  n.x = a.x;
  n.weight = a.weight;
  n.y = a.normed;
  n.T = a.T;
  n.H = a.H;
  n.eps = a.eps;
  n.weight_offset = a.weight_offset;
  return n;
}
inline GemmArgs ProductOf(const LoraNormedGradArgs& a) {
  GemmArgs g{};
  g.transpose_a = true;
  g.M = a.R;
  g.N = a.H;
  g.K = a.T;
  g.alpha = 1;
  g.beta = 1;
  g.A = a.du;
  g.lda = a.ldu;
  g.B = a.normed;
  g.ldb = a.H;
  g.C = a.grad_a;
  g.ldc = a.H;
  g.a_type = Operand::kAct;
  g.b_type = Operand::kAct;
  g.c_type = Operand::kF32;
  return g;
}

// Calls run(GemmArgs) for each product, linear after linear. act_bytes: of an element of all but
// gradients. LoraUp: behind AddendOf where LoraAddendFirst.
template <typename Run>
void ForEachProduct(const LoraUpArgs& a, int64_t act_bytes, const Run& run) {
  const int64_t c = LoraColumns(a.r), columns = a.linears.count * c;
  for (int64_t m = 0, row = 0; m < a.linears.count; row += a.linears.width[m++]) {
    GemmArgs g{};
    g.transpose_b = true;
    g.M = a.T;
    g.N = a.linears.width[m];
    g.K = a.r;
    g.alpha = a.scale;
    g.beta = a.accumulate || a.addend != nullptr ? 1 : 0;
    if (!a.accumulate) g.addend = a.addend;  // at column 0
    g.A = lora_products::At(a.u, m * c, act_bytes);
    g.lda = columns;
    g.B = lora_products::At(a.b, row * a.r, act_bytes);
    g.ldb = a.r;
    g.C = lora_products::At(a.y, a.linears.column[m], act_bytes);
    g.ldc = a.ldy;
    g.a_type = Operand::kAct;
    g.b_type = Operand::kAct;
    g.c_type = Operand::kAct;
    run(g);
  }
}

template <typename Run>
void ForEachProduct(const LoraBackArgs& a, int64_t act_bytes, const Run& run) {
  const int64_t c = LoraColumns(a.r), columns = a.linears.count * c;
  for (int64_t m = 0, row = 0; m < a.linears.count; row += a.linears.width[m++]) {
    GemmArgs g{};
    g.M = a.T;
    g.N = a.r;
    g.K = a.linears.width[m];
    g.alpha = a.scale;
    g.beta = 0;
    g.A = lora_products::At(a.dy, a.linears.column[m], act_bytes);
    g.lda = a.ldy;
    g.B = lora_products::At(a.b, row * a.r, act_bytes);
    g.ldb = a.r;
    g.C = lora_products::At(a.du, m * c, act_bytes);
    g.ldc = columns;
    g.a_type = Operand::kAct;
    g.b_type = Operand::kAct;
    g.c_type = Operand::kAct;
    run(g);
  }
}

template <typename Run>
void ForEachProduct(const LoraGradArgs& a, int64_t act_bytes, const Run& run) {
  const int64_t c = LoraColumns(a.r), columns = a.linears.count * c;
  for (int64_t m = 0, row = 0; m < a.linears.count; row += a.linears.width[m++]) {
    GemmArgs g{};
    g.transpose_a = true;
    g.M = a.linears.width[m];
    g.N = a.r;
    g.K = a.T;
    g.alpha = a.scale;
    g.beta = 1;
    g.A = lora_products::At(a.dy, a.linears.column[m], act_bytes);
    g.lda = a.ldy;
    g.B = lora_products::At(a.u, m * c, act_bytes);
    g.ldb = columns;
    g.C = a.grad_b + row * a.r;
    g.ldc = a.r;
    g.a_type = Operand::kAct;
    g.b_type = Operand::kAct;
    g.c_type = Operand::kF32;
    run(g);
  }
}

}  // namespace soup::kernels

#endif  // SOUP_KERNELS_LORA_PRODUCTS_H_
