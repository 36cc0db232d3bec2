#include "tests/kernels/reference.h"

#include <cmath>

namespace soup::kernels::reference {

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
          int64_t heads, int64_t D, int64_t row_stride, bool inverse) {
  const int64_t half = D / 2;
  for (size_t t = 0; t < positions.size(); ++t) {
    for (int64_t h = 0; h < heads; ++h) {
      for (int64_t i = 0; i < half; ++i) {
        const double angle = static_cast<float>(positions[t]) * inv_freq[i];
        const double c = std::cos(angle);
        const double s = inverse ? -std::sin(angle) : std::sin(angle);
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

// Probabilities of query row i over keys begin .. i; *lse is their log sum.
Values Probabilities(const AttentionShape& shape, const Values& q, const Values& k, int64_t begin,
                     int64_t i, int64_t h, int64_t kv, double* lse) {
  const int64_t D = shape.D;
  Values p(i - begin + 1);
  double largest = -INFINITY;
  for (int64_t j = begin; j <= i; ++j) {
    p[j - begin] =
        shape.scale * DotRows(&q[(i * shape.Hq + h) * D], &k[(j * shape.Hkv + kv) * D], D);
    largest = std::max(largest, p[j - begin]);
  }
  double sum = 0;
  for (double s : p) sum += std::exp(s - largest);
  *lse = largest + std::log(sum);
  for (double& s : p) s = std::exp(s - *lse);
  return p;
}

}  // namespace

AttentionResult Attention(const AttentionShape& shape, const Values& q, const Values& k,
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

AttentionGrads AttentionGrad(const AttentionShape& shape, const Values& q, const Values& k,
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
      const double ds = p[j] * (dp[j] - mean) * shape.scale;
      for (int64_t d = 0; d < D; ++d) {
        grads.dv[kj + d] += p[j] * dout[qi + d];
        grads.dq[qi + d] += ds * k[kj + d];
        grads.dk[kj + d] += ds * q[qi + d];
      }
    }
  });
  return grads;
}

Values Swiglu(const Values& gate_up, int64_t T, int64_t I) {
  Values y(T * I);
  for (int64_t t = 0; t < T; ++t) {
    for (int64_t i = 0; i < I; ++i) {
      const double g = gate_up[t * 2 * I + i];
      y[t * I + i] = g / (1.0 + std::exp(-g)) * gate_up[t * 2 * I + I + i];
    }
  }
  return y;
}

Values SwigluGrad(const Values& gate_up, const Values& dy, int64_t T, int64_t I) {
  Values grad(T * 2 * I);
  for (int64_t t = 0; t < T; ++t) {
    for (int64_t i = 0; i < I; ++i) {
      const double g = gate_up[t * 2 * I + i];
      const double up = gate_up[t * 2 * I + I + i];
      const double s = 1.0 / (1.0 + std::exp(-g));
      grad[t * 2 * I + i] = dy[t * I + i] * up * s * (1.0 + g * (1.0 - s));
      grad[t * 2 * I + I + i] = dy[t * I + i] * g * s;
    }
  }
  return grad;
}

void Gemm(const GemmShape& shape, const Values& a, const Values& b, Values* c) {
  for (int64_t i = 0; i < shape.M; ++i) {
    for (int64_t j = 0; j < shape.N; ++j) {
      double sum = 0;
      for (int64_t k = 0; k < shape.K; ++k) {
        sum += a[shape.transpose_a ? k * shape.lda + i : i * shape.lda + k] *
               b[shape.transpose_b ? j * shape.ldb + k : k * shape.ldb + j];
      }
      double& out = (*c)[i * shape.ldc + j];
      out = shape.alpha * sum + (shape.beta == 0 ? 0 : shape.beta * out);
    }
  }
}

CrossEntropyResult CrossEntropy(const Values& hidden, const Values& weight,
                                const std::vector<int32_t>& targets, int64_t n, int64_t H,
                                int64_t V, double scale) {
  CrossEntropyResult result{Values(n), Values(n * H)};
  Values logits(V);
  for (int64_t i = 0; i < n; ++i) {
    double largest = -INFINITY;
    for (int64_t w = 0; w < V; ++w) {
      logits[w] = DotRows(&hidden[i * H], &weight[w * H], H);
      largest = std::max(largest, logits[w]);
    }
    double sum = 0;
    for (double x : logits) sum += std::exp(x - largest);
    const double lse = largest + std::log(sum);
    result.loss[i] = lse - logits[targets[i]];
    for (int64_t w = 0; w < V; ++w) {
      const double d = scale * (std::exp(logits[w] - lse) - (w == targets[i] ? 1.0 : 0.0));
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
