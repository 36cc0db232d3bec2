#include "kernels/cuda/common.cuh"
#include "kernels/cuda/lora.h"
#include "kernels/cuda/lora_any_rank.cuh"
#include "kernels/cuda/lora_expand.cuh"
#include "kernels/cuda/lora_grad.cuh"
#include "kernels/cuda/lora_reduce.cuh"
#include "kernels/cuda/lora_rope.cuh"
#include "kernels/lora_products.h"

namespace soup::kernels::cuda {
namespace {

using lora::ExpandArgs;
using lora::GradArgs;
using lora::ReduceArgs;
using lora::Strips;

Strips StripsOf(const LoraLinears& linears) {
  Strips s{};
  s.count = linears.count;
  for (int m = 0; m < s.count; ++m) {
    s.column[m] = static_cast<int>(linears.column[m]);
    s.width[m] = static_cast<int>(linears.width[m]);
  }
  return s;
}
Strips OneStrip(int64_t width) {
  Strips s{};
  s.count = 1;
  s.width[0] = static_cast<int>(width);
  return s;
}
unsigned Groups(const Strips& s, int width) {
  int columns = 0;
  for (int m = 0; m < s.count; ++m) columns += s.width[m];
  return static_cast<unsigned>(columns / width);
}

// Once a kernel: more shared memory than every card gives unasked, for as many CTAs as it holds.
cudaError_t AllowShared(const void* kernel, int bytes) {
  const cudaError_t allowed =
      cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
  if (allowed != cudaSuccess) return allowed;
  return cudaFuncSetAttribute(kernel, cudaFuncAttributePreferredSharedMemoryCarveout,
                              cudaSharedmemCarveoutMaxShared);
}

template <int K8>
cudaError_t Expand(const ExpandArgs& a, bool transposed, cudaStream_t stream) {
  constexpr unsigned kWarps = lora::kExpandBlock / 32;
  const unsigned x = (Groups(a.strips, 64) + kWarps - 1) / kWarps;
  const unsigned tiles = static_cast<unsigned>((a.T + 15) / 16);
  // Two CTAs a multiprocessor of a large card; each keeps its weights over several tiles.
  const unsigned wanted = (264 + x - 1) / x;
  const dim3 grid(x, wanted < tiles ? wanted : tiles);
  const auto kernel = transposed            ? lora::ExpandKernel<K8, true, false>
                      : a.addend == nullptr ? lora::ExpandKernel<K8, false, false>
                                            : lora::ExpandKernel<K8, false, true>;
  return LaunchBehind(kernel, grid, lora::kExpandBlock, 0, stream, a);
}

cudaError_t AnyRank(const ExpandArgs& a, cudaStream_t stream) {
  int chunks = 0;
  for (int m = 0; m < a.strips.count; ++m) chunks += lora::AnyRankChunks(a.strips.width[m]);
  if (chunks == 0) return cudaSuccess;
  const dim3 grid(static_cast<unsigned>(chunks),
                  static_cast<unsigned>((a.T + lora::kAnyRankRows - 1) / lora::kAnyRankRows));
  const auto kernel = a.rank <= 4   ? lora::AnyRankKernel<4>
                      : a.rank <= 8 ? lora::AnyRankKernel<8>
                                    : lora::AnyRankKernel<16>;
  return LaunchBehind(kernel, grid, lora::kAnyRankThreads, 0, stream, a);
}

template <int N8, int M, bool kTransposed>
cudaError_t ReduceRows(const ReduceArgs& a, cudaStream_t stream) {
  constexpr int kShared = lora::ReduceSharedBytes<M>();
  const auto kernel = lora::ReduceKernel<N8, M, kTransposed>;
  static const cudaError_t allowed = AllowShared(reinterpret_cast<const void*>(kernel), kShared);
  if (allowed != cudaSuccess) return allowed;
  const dim3 grid(static_cast<unsigned>((a.T + 16 * M - 1) / (16 * M)),
                  static_cast<unsigned>(a.strips.count));
  return LaunchBehind(kernel, grid, 32 * lora::kReduceWarps, kShared, stream, a);
}

template <int N8>
cudaError_t Reduce(const ReduceArgs& a, bool transposed, cudaStream_t stream) {
  constexpr int kManyTokens = 2048;  // enough CTAs with rows in pairs
  if (a.T >= kManyTokens) {
    return transposed ? ReduceRows<N8, 2, true>(a, stream) : ReduceRows<N8, 2, false>(a, stream);
  }
  return transposed ? ReduceRows<N8, 1, true>(a, stream) : ReduceRows<N8, 1, false>(a, stream);
}

template <int N8, bool kTransposed, bool kNormed>
cudaError_t Grad(const GradArgs& a, cudaStream_t stream) {
  constexpr int kShared = lora::GradShape<N8, kNormed>::kSharedBytes;
  const auto kernel = lora::GradKernel<N8, kTransposed, kNormed>;
  static const cudaError_t allowed = AllowShared(reinterpret_cast<const void*>(kernel), kShared);
  if (allowed != cudaSuccess) return allowed;
  return LaunchBehind(kernel, dim3(Groups(a.strips, lora::kGradColumns)), 32 * lora::kGradWarps,
                      kShared, stream, a);
}

template <int N8>
cudaError_t Grad(const GradArgs& a, bool transposed, cudaStream_t stream) {
  return transposed ? Grad<N8, true, false>(a, stream) : Grad<N8, false, false>(a, stream);
}

cudaError_t ExpandAny(const ExpandArgs& a, int64_t rank, bool transposed, cudaStream_t stream) {
  switch (rank / 8) {
    case 1:
      return Expand<1>(a, transposed, stream);
    case 2:
      return Expand<2>(a, transposed, stream);
    case 3:
      return Expand<3>(a, transposed, stream);
    default:
      return cudaErrorInvalidValue;
  }
}

cudaError_t ReduceAny(const ReduceArgs& a, int64_t rank, bool transposed, cudaStream_t stream) {
  switch (rank / 8) {
    case 1:
      return Reduce<1>(a, transposed, stream);
    case 2:
      return Reduce<2>(a, transposed, stream);
    case 3:
      return Reduce<3>(a, transposed, stream);
    default:
      return cudaErrorInvalidValue;
  }
}

cudaError_t GradAny(const GradArgs& a, int64_t rank, bool transposed, cudaStream_t stream) {
  switch (rank / 8) {
    case 1:
      return Grad<1>(a, transposed, stream);
    case 2:
      return Grad<2>(a, transposed, stream);
    case 3:
      return Grad<3>(a, transposed, stream);
    default:
      return cudaErrorInvalidValue;
  }
}

const bf16* In(const void* p) { return static_cast<const bf16*>(p); }

ExpandArgs ExpandArgsOf(const LoraUpArgs& a) {
  return {StripsOf(a.linears),
          In(a.u),
          In(a.b),
          static_cast<bf16*>(a.y),
          static_cast<int>(a.T),
          static_cast<int>(a.r),
          static_cast<int>(a.linears.count * LoraColumns(a.r)),
          static_cast<int>(a.r),
          a.ldy,
          a.scale,
          a.accumulate,
          In(a.addend)};
}

}  // namespace

cudaError_t LoraUp(const LoraUpArgs& a, cudaStream_t stream) {
  if (!LoraUpKernelsTake(a.linears, a.r, a.ldy) || !LoraAddendFits(a)) return cudaErrorInvalidValue;
  const bool wide = LoraKernelsTake(a.linears, a.r, a.ldy);
  if (wide && (!Aligned16(a.y) || !Aligned16(a.addend))) return cudaErrorInvalidValue;
  if (a.T == 0) return cudaSuccess;
  if (!wide) return AnyRank(ExpandArgsOf(a), stream);
  return ExpandAny(ExpandArgsOf(a), a.r, false, stream);
}

cudaError_t LoraUpRope(const LoraUpRopeArgs& a, cudaStream_t stream) {
  if (!LoraUpRopeTaken(a) || !Aligned16(a.up.y) || a.rope.x != a.up.y) return cudaErrorInvalidValue;
  if (a.up.T == 0) return cudaSuccess;
  lora::RopeExpandArgs r{};
  r.up = ExpandArgsOf(a.up);
  r.positions = a.rope.positions;
  r.inv_freq = a.rope.inv_freq;
  r.heads = static_cast<int>(a.rope.heads);
  r.D = static_cast<int>(a.rope.D);
  r.rope_scale = a.rope.scale;
  r.each = lora::RopeUnits(a.up.T);
  for (int m = 0; m < r.up.strips.count; ++m) {
    const int behind = r.up.strips.column[m] + r.up.strips.width[m] - r.heads * r.D;
    if (behind / 64 > r.plain_units) r.plain_units = behind / 64;
  }
  constexpr int kTokens = 16 * lora::kRopeWarps;
  const dim3 grid(static_cast<unsigned>((r.up.T + kTokens - 1) / kTokens),
                  static_cast<unsigned>(r.D / 64 * lora::RopeChunks(r.heads, r.each) +
                                        lora::RopeChunks(r.plain_units, r.each)));
  const auto kernel = a.up.r == 8    ? lora::RopeExpandKernel<1>
                      : a.up.r == 16 ? lora::RopeExpandKernel<2>
                                     : lora::RopeExpandKernel<3>;
  return LaunchBehind(kernel, grid, 32 * lora::kRopeWarps, 0, stream, r);
}

cudaError_t LoraBack(const LoraBackArgs& a, cudaStream_t stream) {
  if (!LoraKernelsTake(a.linears, a.r, a.ldy) || !Aligned16(a.dy)) return cudaErrorInvalidValue;
  if (a.T == 0) return cudaSuccess;
  return ReduceAny({StripsOf(a.linears), In(a.dy), In(a.b), static_cast<bf16*>(a.du),
                    static_cast<int>(a.T), static_cast<int>(a.r),
                    static_cast<int>(a.linears.count * a.r), static_cast<int>(a.r), a.ldy, a.scale},
                   a.r, false, stream);
}

cudaError_t LoraGrad(const LoraGradArgs& a, cudaStream_t stream) {
  if (!LoraKernelsTake(a.linears, a.r, a.ldy) || !Aligned16(a.dy) || !Aligned16(a.u))
    return cudaErrorInvalidValue;
  if (a.T == 0) return cudaSuccess;
  return GradAny({StripsOf(a.linears), In(a.dy), In(a.u), a.grad_b, static_cast<int>(a.T),
                  static_cast<int>(a.r), static_cast<int>(a.linears.count * a.r),
                  static_cast<int>(a.r), a.ldy, a.scale},
                 a.r, false, stream);
}

cudaError_t LoraNormedGrad(const LoraNormedGradArgs& a, cudaStream_t stream) {
  if (!LoraNormedGradTaken(a) || !Aligned16(a.x) || !Aligned16(a.du)) return cudaErrorInvalidValue;
  if (a.T == 0) return cudaSuccess;
  GradArgs g{OneStrip(a.H),
             In(a.x),
             In(a.du),
             a.grad_a,
             static_cast<int>(a.T),
             static_cast<int>(a.R),
             static_cast<int>(a.ldu),
             static_cast<int>(a.H),
             a.H,
             1.f};
  g.rstd = a.rstd;
  g.weight = reinterpret_cast<const bf16*>(a.weight);
  g.weight_offset = a.weight_offset;
  switch (a.R / 8) {
    case 1:
      return Grad<1, true, true>(g, stream);
    case 2:
      return Grad<2, true, true>(g, stream);
    default:
      return Grad<3, true, true>(g, stream);
  }
}

bool SkinnyTakes(const GemmArgs& a) {
  if (a.addend != nullptr || a.a_type != Operand::kAct || a.M == 0) return false;
  const bool f32 = a.c_type == Operand::kF32;
  const auto aligned = [](const void* p, int64_t ld) { return Aligned16(p) && ld % kVector == 0; };
  if (!a.transpose_a && a.transpose_b && a.beta == 0.f && !f32) {  // u = x A^T
    return LoraKernelRank(a.N) && a.K % 64 == 0 && aligned(a.A, a.lda) && aligned(a.B, a.ldb);
  }
  if (!a.transpose_a && !a.transpose_b && !f32) {  // dx (+)= du A
    return LoraKernelRank(a.K) && a.N % 64 == 0 && aligned(a.C, a.ldc) && aligned(a.B, a.ldb) &&
           a.lda % 2 == 0 && (reinterpret_cast<uintptr_t>(a.A) & 3) == 0;
  }
  if (a.transpose_a && !a.transpose_b && a.beta == 1.f && f32) {  // dA += du^T x
    return LoraKernelRank(a.M) && a.N % 64 == 0 && aligned(a.B, a.ldb) && aligned(a.A, a.lda);
  }
  return false;
}

cudaError_t SkinnyGemm(const GemmArgs& a, cudaStream_t stream) {
  if (!SkinnyTakes(a)) return cudaErrorInvalidValue;
  if (a.transpose_b) {
    return ReduceAny(
        {OneStrip(a.K), In(a.A), In(a.B), static_cast<bf16*>(a.C), static_cast<int>(a.M),
         static_cast<int>(a.N), static_cast<int>(a.ldc), static_cast<int>(a.ldb), a.lda, a.alpha},
        a.N, true, stream);
  }
  if (a.transpose_a) {
    return GradAny(
        {OneStrip(a.N), In(a.B), In(a.A), static_cast<float*>(a.C), static_cast<int>(a.K),
         static_cast<int>(a.M), static_cast<int>(a.lda), static_cast<int>(a.ldc), a.ldb, a.alpha},
        a.M, true, stream);
  }
  return ExpandAny(
      {OneStrip(a.N), In(a.A), In(a.B), static_cast<bf16*>(a.C), static_cast<int>(a.M),
       static_cast<int>(a.K), static_cast<int>(a.lda), static_cast<int>(a.ldb), a.ldc, a.alpha,
       /*accumulate=*/a.beta != 0.f},
      a.K, true, stream);
}

}  // namespace soup::kernels::cuda
