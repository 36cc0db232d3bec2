// Blocks of kBlock query rows by kBlock keys. Scores of a block: S = Q K^T through K transposed, so
// that vectors run over keys; then out rows through V as it lies.
#include "kernels/cpu/isa/block_matmul.h"
#include "kernels/cpu/isa/loops.h"

namespace soup::kernels::cpu::SOUP_ISA {
namespace {

constexpr int64_t kBlock = 64;
// Query rows that share one transposed key block in the forward.
constexpr int64_t kSuperBlock = 256;

SOUP_INLINE int64_t Min(int64_t a, int64_t b) { return a < b ? a : b; }

// dst[d][j] = src[j][d] for j < rows, 0 for rows <= j < kBlock.  dst [D, kBlock].
void Transpose(const float* src, int64_t stride, int64_t rows, int64_t D, float* __restrict dst) {
  constexpr int64_t kTile = 16;
  for (int64_t j0 = 0; j0 < kBlock; j0 += kTile) {
    for (int64_t d = 0; d < D; ++d) {
      float* to = dst + d * kBlock + j0;
      if (j0 + kTile <= rows) {
        for (int64_t j = 0; j < kTile; ++j) to[j] = src[(j0 + j) * stride + d];
      } else {
        for (int64_t j = 0; j < kTile; ++j) {
          to[j] = j0 + j < rows ? src[(j0 + j) * stride + d] : 0.0f;
        }
      }
    }
  }
}

SOUP_INLINE int64_t Max(int64_t a, int64_t b) { return a > b ? a : b; }

// Keys [begin, end) of a block that starts at key j0 are visible to query `row`. window 0: no lower
// bound.
struct Visible {
  int64_t begin, end;
};
SOUP_INLINE Visible VisibleKeys(int64_t row, int64_t j0, int64_t window) {
  return {window > 0 ? Min(kBlock, Max(0, row - window + 1 - j0)) : 0,
          Max(0, Min(kBlock, row - j0 + 1))};
}
SOUP_INLINE void Mask(float* s, Visible visible) {
  for (int64_t j = 0; j < visible.begin; ++j) s[j] = -__builtin_inff();
  for (int64_t j = visible.end; j < kBlock; ++j) s[j] = -__builtin_inff();
}
// The first key block that query rows from i0 on see.
SOUP_INLINE int64_t FirstBlock(int64_t i0, int64_t window) {
  return window > 0 ? Max(0, i0 - window + 1) / kBlock * kBlock : 0;
}
// One past the last query row that sees a key of the block at j0.
SOUP_INLINE int64_t LastRow(int64_t j0, int64_t length, int64_t window) {
  return window > 0 ? Min(length, j0 + kBlock - 1 + window) : length;
}

// s = cap * tanh(scale * s / cap).
SOUP_INLINE void CapScores(float* s, float scale, float cap) {
  const F16 vscale = Set(scale), vcap = Set(cap), inverse = Set(1.0f / cap);
  for (int64_t j = 0; j < kBlock; j += kLanes) {
    Store(s + j, SoftCap(Load(s + j) * vscale, vcap, inverse));
  }
}

// One row of scores: s = scale * s where visible, -inf elsewhere; running maximum and sum; s
// becomes exp(s - maximum). Returns the factor that earlier sums and outputs must be multiplied by.
SOUP_INLINE float SoftmaxRow(float* s, Visible visible, float scale, float* m, float* l) {
  if (visible.begin >= visible.end) {  // the window has left the block behind, or not reached it
    for (int64_t j = 0; j < kBlock; ++j) s[j] = 0.0f;
    return 1.0f;
  }
  Mask(s, visible);
  const F16 vscale = Set(scale);
  F16 largest = Set(*m);
  for (int64_t j = 0; j < kBlock; j += kLanes) {
    const F16 scaled = Load(s + j) * vscale;
    Store(s + j, scaled);
    largest = Max(scaled, largest);
  }
  const float new_max = MaxLane(largest);
  const F16 shift = Set(new_max);
  F16 sum = Set(0.0f);
  for (int64_t j = 0; j < kBlock; j += kLanes) {
    const F16 p = Exp(Load(s + j) - shift);
    Store(s + j, p);
    sum = sum + p;
  }
  float factor[kLanes];
  Store(factor, Exp(Set(*m - new_max)));
  *l = *l * factor[0] + Sum(sum);
  *m = new_max;
  return factor[0];
}

struct ForwardHead {
  const float* q;
  const float* k;
  const float* v;
  int64_t stride;  // of q, k, v
  float* out;
  int64_t out_stride;
  int64_t D;
  float scale;
  int64_t window;
  float soft_cap;
};

// Rows [i0, i0 + rows) against keys [j0, j0 + keys); out holds the unnormalised output so far.
void ForwardBlock(const ForwardHead& h, int64_t i0, int64_t rows, int64_t j0, int64_t keys,
                  const float* k_transposed, float* s, float* m, float* l) {
  Matmul({rows, kBlock, h.D, h.q + i0 * h.stride, h.stride, 1, k_transposed, kBlock, s, kBlock,
          false});
  const bool first = j0 == FirstBlock(i0, h.window);
  const bool capped = h.soft_cap > 0;
  for (int64_t r = 0; r < rows; ++r) {
    if (capped) CapScores(s + r * kBlock, h.scale, h.soft_cap);
    const float factor = SoftmaxRow(s + r * kBlock, VisibleKeys(i0 + r, j0, h.window),
                                    capped ? 1.0f : h.scale, m + r, l + r);
    float* __restrict out = h.out + (i0 + r) * h.out_stride;
    if (!first) {
      for (int64_t d = 0; d < h.D; ++d) out[d] *= factor;
    }
  }
  Matmul({rows, h.D, keys, s, kBlock, 1, h.v + j0 * h.stride, h.stride, h.out + i0 * h.out_stride,
          h.out_stride, !first});
}

}  // namespace

// scratch: K^T [D, 64], S [64, 64], m and l [256].
void AttentionForwardTask(const AttentionForwardArgs& args, int64_t sequence, int64_t head,
                          float* scratch) {
  const int64_t D = args.D;
  const int64_t begin = args.cu_seqlens[sequence];
  const int64_t length = args.cu_seqlens[sequence + 1] - begin;
  const int64_t kv_head = head / (args.Hq / args.Hkv);
  const ForwardHead h = {static_cast<const float*>(args.q) + begin * args.row_stride + head * D,
                         static_cast<const float*>(args.k) + begin * args.row_stride + kv_head * D,
                         static_cast<const float*>(args.v) + begin * args.row_stride + kv_head * D,
                         args.row_stride,
                         static_cast<float*>(args.out) + begin * args.Hq * D + head * D,
                         args.Hq * D,
                         D,
                         args.scale,
                         args.window,
                         args.soft_cap};
  float* k_transposed = scratch;
  float* s = k_transposed + D * kBlock;
  float* m = s + kBlock * kBlock;
  float* l = m + kSuperBlock;
  for (int64_t super = 0; super < length; super += kSuperBlock) {
    const int64_t super_end = Min(length, super + kSuperBlock);
    for (int64_t r = 0; r < super_end - super; ++r) {
      m[r] = -__builtin_inff();
      l[r] = 0.0f;
    }
    for (int64_t j0 = FirstBlock(super, args.window); j0 < super_end; j0 += kBlock) {
      const int64_t keys = Min(kBlock, length - j0);
      const int64_t last_row = Min(super_end, LastRow(j0, length, args.window));
      Transpose(h.k + j0 * h.stride, h.stride, keys, D, k_transposed);
      for (int64_t i0 = Max(super, j0); i0 < last_row; i0 += kBlock) {
        ForwardBlock(h, i0, Min(kBlock, super_end - i0), j0, keys, k_transposed, s, m + i0 - super,
                     l + i0 - super);
      }
    }
    for (int64_t i = super; i < super_end; ++i) {
      float* __restrict out = h.out + i * h.out_stride;
      const float inverse = 1.0f / l[i - super];
      for (int64_t d = 0; d < D; ++d) out[d] *= inverse;
      args.lse[(begin + i) * args.Hq + head] = static_cast<float>(
          static_cast<double>(m[i - super]) + __builtin_log(static_cast<double>(l[i - super])));
    }
  }
}

void AttentionDeltaLoop(const AttentionBackwardArgs& args, int64_t begin, int64_t end) {
  for (int64_t i = begin * args.Hq; i < end * args.Hq; ++i) {
    args.delta[i] =
        static_cast<float>(Dot(static_cast<const float*>(args.out) + i * args.D,
                               static_cast<const float*>(args.dout) + i * args.D, args.D));
  }
}

namespace {

// One query head's block in the backward: p = exp(scale * s - lse), ds = p * (dp - delta) * scale,
// both over [rows, kBlock], masked to 0 where the key is not visible. With a soft cap p is that of
// the capped score, and ds is times the cap's slope.
struct BackwardRows {
  const float* lse;    // of the first row, stride Hq
  const float* delta;  // likewise
  int64_t Hq;
  float scale;
  int64_t window;
  float soft_cap;
};
void ProbabilityGradients(const BackwardRows& b, int64_t rows, int64_t i0, int64_t j0,
                          float* s_to_p, float* dp_to_ds) {
  const F16 scale = Set(b.scale);
  const bool capped = b.soft_cap > 0;
  const F16 inverse_cap = Set(capped ? 1.0f / b.soft_cap : 0.0f);
  for (int64_t r = 0; r < rows; ++r) {
    float* s = s_to_p + r * kBlock;
    float* ds = dp_to_ds + r * kBlock;
    if (capped) {
      CapScores(s, b.scale, b.soft_cap);
      for (int64_t j = 0; j < kBlock; j += kLanes) {
        // (dp - delta) times the slope; delta is spent then
        Store(ds + j,
              (Load(ds + j) - Set(b.delta[r * b.Hq])) * SoftCapSlope(Load(s + j), inverse_cap));
      }
    }
    Mask(s, VisibleKeys(i0 + r, j0, b.window));
    const F16 lse = Set(b.lse[r * b.Hq]);
    const F16 delta = Set(capped ? 0.0f : b.delta[r * b.Hq]);
    const F16 s_scale = capped ? Set(1.0f) : scale;
    for (int64_t j = 0; j < kBlock; j += kLanes) {
      const F16 p = Exp(Load(s + j) * s_scale - lse);
      Store(s + j, p);
      Store(ds + j, p * (Load(ds + j) - delta) * scale);
    }
    // One key only: its probability is 1 whatever the score. What dp and delta differ by is
    // rounding, which AdamW would divide by itself.
    if (i0 + r == 0 || b.window == 1) {
      for (int64_t j = 0; j < kBlock; ++j) ds[j] = 0.0f;
    }
  }
}

void ZeroRows(float* x, int64_t rows, int64_t stride, int64_t D) {
  for (int64_t i = 0; i < rows; ++i) {
    for (int64_t d = 0; d < D; ++d) x[i * stride + d] = 0.0f;
  }
}

}  // namespace

// scratch: K^T and V^T [D, 64] each, P and dS [64, 64] each.
void AttentionBackwardTask(const AttentionBackwardArgs& args, int64_t sequence, int64_t kv_head,
                           float* scratch) {
  const int64_t D = args.D;
  const int64_t begin = args.cu_seqlens[sequence];
  const int64_t length = args.cu_seqlens[sequence + 1] - begin;
  const int64_t group = args.Hq / args.Hkv;
  const int64_t in = args.row_stride;
  const int64_t grad = args.grad_row_stride;
  const int64_t out = args.Hq * D;
  const float* k = static_cast<const float*>(args.k) + begin * in + kv_head * D;
  const float* v = static_cast<const float*>(args.v) + begin * in + kv_head * D;
  float* dk = static_cast<float*>(args.dk) + begin * grad + kv_head * D;
  float* dv = static_cast<float*>(args.dv) + begin * grad + kv_head * D;
  float* k_transposed = scratch;
  float* v_transposed = k_transposed + D * kBlock;
  float* p = v_transposed + D * kBlock;
  float* ds = p + kBlock * kBlock;
  ZeroRows(dk, length, grad, D);
  ZeroRows(dv, length, grad, D);
  float* dq_group = static_cast<float*>(args.dq) + begin * grad + kv_head * group * D;
  ZeroRows(dq_group, length, grad, group * D);
  for (int64_t j0 = 0; j0 < length; j0 += kBlock) {
    const int64_t keys = Min(kBlock, length - j0);
    Transpose(k + j0 * in, in, keys, D, k_transposed);
    Transpose(v + j0 * in, in, keys, D, v_transposed);
    for (int64_t g = 0; g < group; ++g) {
      const int64_t head = kv_head * group + g;
      const float* q = static_cast<const float*>(args.q) + begin * in + head * D;
      const float* dout = static_cast<const float*>(args.dout) + begin * out + head * D;
      float* dq = dq_group + g * D;
      for (int64_t i0 = j0; i0 < LastRow(j0, length, args.window); i0 += kBlock) {
        const int64_t rows = Min(kBlock, length - i0);
        const int64_t first = (begin + i0) * args.Hq + head;
        Matmul({rows, kBlock, D, q + i0 * in, in, 1, k_transposed, kBlock, p, kBlock, false});
        Matmul({rows, kBlock, D, dout + i0 * out, out, 1, v_transposed, kBlock, ds, kBlock, false});
        ProbabilityGradients(
            {args.lse + first, args.delta + first, args.Hq, args.scale, args.window, args.soft_cap},
            rows, i0, j0, p, ds);
        Matmul({keys, D, rows, p, 1, kBlock, dout + i0 * out, out, dv + j0 * grad, grad, true});
        Matmul({keys, D, rows, ds, 1, kBlock, q + i0 * in, in, dk + j0 * grad, grad, true});
        Matmul({rows, D, keys, ds, kBlock, 1, k + j0 * in, in, dq + i0 * grad, grad, true});
      }
    }
  }
}

}  // namespace soup::kernels::cpu::SOUP_ISA
