#include "tests/kernels/reference.h"

#include <cmath>
#include <optional>
#include <tuple>

namespace soup::kernels::reference {
namespace {

// compute(args...), remembered for the next call with equal arguments. A case that runs ten times
// on one input (other threads, other instruction sets) pays for its costly reference once. A NaN
// among the arguments equals nothing, so such a call is computed each time.
template <auto compute, typename... Args>
auto RememberLast(const Args&... args) {
  using Result = decltype(compute(args...));
  thread_local std::optional<std::tuple<std::tuple<Args...>, Result>> last;
  if (!last.has_value() || std::get<0>(*last) != std::tie(args...)) {
    last.emplace(std::tuple<Args...>(args...), compute(args...));
  }
  return std::get<1>(*last);
}

}  // namespace

RmsNormResult RmsNorm(const Values& x, const Values& weight, int64_t T, int64_t H, double eps) {
  RmsNormResult result{Values(T * H), Values(T)};
  for (int64_t t = 0; t < T; ++t) {
    double squares = 0;
    for (int64_t i = 0; i < H; ++i) squares += x[t * H + i] * x[t * H + i];
    result.rstd[t] = 1.0 / std::sqrt(squares / H + eps);
    for (int64_t i = 0; i < H; ++i) result.y[t * H + i] = x[t * H + i] * result.rstd[t] * weight[i];
  }
  return result;
}

Values RmsNormGrad(const Values& dy, const Values& x, const Values& weight, int64_t T, int64_t H,
                   double eps) {
  Values dx(T * H);
  const Values rstd = RmsNorm(x, weight, T, H, eps).rstd;
  for (int64_t t = 0; t < T; ++t) {
    double dot = 0;
    for (int64_t i = 0; i < H; ++i) dot += dy[t * H + i] * weight[i] * x[t * H + i];
    const double r = rstd[t];
    for (int64_t i = 0; i < H; ++i) {
      dx[t * H + i] = r * dy[t * H + i] * weight[i] - x[t * H + i] * r * r * r * dot / H;
    }
  }
  return dx;
}

void Rope(Values* x, const std::vector<int32_t>& positions, const std::vector<float>& inv_freq,
          int64_t heads, int64_t D, int64_t row_stride, bool inverse, int64_t rotary,
          double scale) {
  const int64_t half = (rotary > 0 ? rotary : D) / 2;
  for (size_t t = 0; t < positions.size(); ++t) {
    for (int64_t h = 0; h < heads; ++h) {
      for (int64_t i = 0; i < half; ++i) {
        const double angle = static_cast<float>(positions[t]) * inv_freq[i];
        const double c = scale * std::cos(angle);
        const double s = scale * (inverse ? -std::sin(angle) : std::sin(angle));
        double& low = (*x)[t * row_stride + h * D + i];
        double& high = (*x)[t * row_stride + h * D + half + i];
        const double a = low, b = high;
        low = a * c - b * s;
        high = b * c + a * s;
      }
    }
  }
}

namespace {

// Calls fn(sequence begin, query row, query head, kv head) for every live query.
template <typename Fn>
void ForEachQuery(const AttentionShape& shape, const Fn& fn) {
  for (size_t s = 0; s + 1 < shape.cu_seqlens.size(); ++s) {
    for (int64_t i = shape.cu_seqlens[s]; i < shape.cu_seqlens[s + 1]; ++i) {
      for (int64_t h = 0; h < shape.Hq; ++h)
        fn(shape.cu_seqlens[s], i, h, h / (shape.Hq / shape.Hkv));
    }
  }
}

double DotRows(const double* a, const double* b, int64_t n) {
  double sum = 0;
  for (int64_t i = 0; i < n; ++i) sum += a[i] * b[i];
  return sum;
}

// Score of a query and a key, and the soft cap's slope there.
struct Score {
  double value, slope;
};
Score ScoreOf(const AttentionShape& shape, double product) {
  const double s = shape.scale * product;
  if (shape.soft_cap == 0) return {s, 1.0};
  const double t = std::tanh(s / shape.soft_cap);
  return {shape.soft_cap * t, 1.0 - t * t};
}
bool Sees(const AttentionShape& shape, int64_t i, int64_t j) {
  return shape.window == 0 || i - j < shape.window;
}

// Probabilities of query row i over keys begin .. i; *lse is their log sum.
Values Probabilities(const AttentionShape& shape, const Values& q, const Values& k, int64_t begin,
                     int64_t i, int64_t h, int64_t kv, double* lse) {
  const int64_t D = shape.D;
  Values p(i - begin + 1);
  double largest = -INFINITY;
  for (int64_t j = begin; j <= i; ++j) {
    const double product = DotRows(&q[(i * shape.Hq + h) * D], &k[(j * shape.Hkv + kv) * D], D);
    p[j - begin] = Sees(shape, i, j) ? ScoreOf(shape, product).value : -INFINITY;
    largest = std::max(largest, p[j - begin]);
  }
  double sum = 0;
  for (double s : p) sum += std::exp(s - largest);
  *lse = largest + std::log(sum);
  for (double& s : p) s = std::exp(s - *lse);
  return p;
}

AttentionResult ComputeAttention(const AttentionShape& shape, const Values& q, const Values& k,
                                 const Values& v) {
  const int64_t D = shape.D;
  AttentionResult result{Values(shape.T * shape.Hq * D), Values(shape.T * shape.Hq)};
  ForEachQuery(shape, [&](int64_t begin, int64_t i, int64_t h, int64_t kv) {
    const Values p = Probabilities(shape, q, k, begin, i, h, kv, &result.lse[i * shape.Hq + h]);
    for (int64_t j = begin; j <= i; ++j) {
      for (int64_t d = 0; d < D; ++d) {
        result.out[(i * shape.Hq + h) * D + d] += p[j - begin] * v[(j * shape.Hkv + kv) * D + d];
      }
    }
  });
  return result;
}

AttentionGrads ComputeAttentionGrad(const AttentionShape& shape, const Values& q, const Values& k,
                                    const Values& v, const Values& dout) {
  const int64_t D = shape.D;
  AttentionGrads grads{Values(q.size()), Values(k.size()), Values(v.size())};
  ForEachQuery(shape, [&](int64_t begin, int64_t i, int64_t h, int64_t kv) {
    double lse;
    const Values p = Probabilities(shape, q, k, begin, i, h, kv, &lse);
    const int64_t qi = (i * shape.Hq + h) * D;
    Values dp(p.size());
    double mean = 0;
    for (size_t j = 0; j < p.size(); ++j) {
      dp[j] = DotRows(&dout[qi], &v[((begin + j) * shape.Hkv + kv) * D], D);
      mean += p[j] * dp[j];
    }
    for (size_t j = 0; j < p.size(); ++j) {
      const int64_t kj = ((begin + j) * shape.Hkv + kv) * D;
      const double slope = ScoreOf(shape, DotRows(&q[qi], &k[kj], D)).slope;
      const double ds = p[j] * (dp[j] - mean) * slope * shape.scale;
      for (int64_t d = 0; d < D; ++d) {
        grads.dv[kj + d] += p[j] * dout[qi + d];
        grads.dq[qi + d] += ds * k[kj + d];
        grads.dk[kj + d] += ds * q[qi + d];
      }
    }
  });
  return grads;
}

}  // namespace

AttentionResult Attention(const AttentionShape& shape, const Values& q, const Values& k,
                          const Values& v) {
  return RememberLast<ComputeAttention>(shape, q, k, v);
}
AttentionGrads AttentionGrad(const AttentionShape& shape, const Values& q, const Values& k,
                             const Values& v, const Values& dout) {
  return RememberLast<ComputeAttentionGrad>(shape, q, k, v, dout);
}

namespace {

struct GateValue {
  double value, slope;
};
GateValue Gate(double g, bool gelu) {
  if (gelu) {
    const double c = std::sqrt(2.0 / 3.14159265358979323846);
    const double t = std::tanh(c * (g + 0.044715 * g * g * g));
    return {0.5 * g * (1 + t),
            0.5 * (1 + t) + 0.5 * g * (1 - t * t) * c * (1 + 3 * 0.044715 * g * g)};
  }
  const double s = 1.0 / (1.0 + std::exp(-g));
  return {g * s, s * (1.0 + g * (1.0 - s))};
}

}  // namespace

Values Swiglu(const Values& gate_up, int64_t T, int64_t I, bool gelu) {
  Values y(T * I);
  for (int64_t t = 0; t < T; ++t) {
    for (int64_t i = 0; i < I; ++i) {
      y[t * I + i] = Gate(gate_up[t * 2 * I + i], gelu).value * gate_up[t * 2 * I + I + i];
    }
  }
  return y;
}

Values SwigluGrad(const Values& gate_up, const Values& dy, int64_t T, int64_t I, bool gelu) {
  Values grad(T * 2 * I);
  for (int64_t t = 0; t < T; ++t) {
    for (int64_t i = 0; i < I; ++i) {
      const GateValue gate = Gate(gate_up[t * 2 * I + i], gelu);
      grad[t * 2 * I + i] = dy[t * I + i] * gate_up[t * 2 * I + I + i] * gate.slope;
      grad[t * 2 * I + I + i] = dy[t * I + i] * gate.value;
    }
  }
  return grad;
}

namespace {

Values ComputeGemm(const GemmShape& shape, const Values& a, const Values& b, Values c) {
  for (int64_t i = 0; i < shape.M; ++i) {
    for (int64_t j = 0; j < shape.N; ++j) {
      double sum = 0;
      for (int64_t k = 0; k < shape.K; ++k) {
        sum += a[shape.transpose_a ? k * shape.lda + i : i * shape.lda + k] *
               b[shape.transpose_b ? j * shape.ldb + k : k * shape.ldb + j];
      }
      double& out = c[i * shape.ldc + j];
      out = shape.alpha * sum + (shape.beta == 0 ? 0 : shape.beta * out);
    }
  }
  return c;
}

}  // namespace

void Gemm(const GemmShape& shape, const Values& a, const Values& b, Values* c) {
  *c = RememberLast<ComputeGemm>(shape, a, b, *c);
}

CrossEntropyResult CrossEntropy(const Values& hidden, const Values& weight,
                                const std::vector<int32_t>& targets, int64_t n, int64_t H,
                                int64_t V, double scale, double soft_cap) {
  CrossEntropyResult result{Values(n), Values(n * H)};
  Values logits(V), slopes(V, 1.0);
  for (int64_t i = 0; i < n; ++i) {
    double largest = -INFINITY;
    for (int64_t w = 0; w < V; ++w) {
      logits[w] = DotRows(&hidden[i * H], &weight[w * H], H);
      if (soft_cap > 0) {
        const double t = std::tanh(logits[w] / soft_cap);
        logits[w] = soft_cap * t;
        slopes[w] = 1 - t * t;
      }
      largest = std::max(largest, logits[w]);
    }
    double sum = 0;
    for (double x : logits) sum += std::exp(x - largest);
    const double lse = largest + std::log(sum);
    result.loss[i] = lse - logits[targets[i]];
    for (int64_t w = 0; w < V; ++w) {
      const double d =
          scale * slopes[w] * (std::exp(logits[w] - lse) - (w == targets[i] ? 1.0 : 0.0));
      for (int64_t h = 0; h < H; ++h) result.dh[i * H + h] += d * weight[w * H + h];
    }
  }
  return result;
}

void AdamW(AdamWState* state, const Values& g, const AdamWParams& params) {
  const double bias1 = 1.0 - std::pow(params.beta1, static_cast<double>(params.t));
  const double bias2 = 1.0 - std::pow(params.beta2, static_cast<double>(params.t));
  for (size_t i = 0; i < g.size(); ++i) {
    const double grad = g[i] * params.grad_scale;
    double& w = state->w[i];
    double& m = state->m[i];
    double& v = state->v[i];
    w *= 1.0 - params.lr * params.weight_decay;
    m = params.beta1 * m + (1.0 - params.beta1) * grad;
    v = params.beta2 * v + (1.0 - params.beta2) * grad * grad;
    w -= params.lr / bias1 * m / (std::sqrt(v) / std::sqrt(bias2) + params.eps);
  }
}

}  // namespace soup::kernels::reference
