#include "kernels/cpu/isa/gate.h"
#include "kernels/cpu/isa/loops.h"

namespace soup::kernels::cpu::SOUP_ISA {
namespace {

// p [E] = softmax of a row of logits, summed in index order.
void Softmax(const float* logits, int64_t E, float* p) {
  float largest = logits[0];
  for (int64_t e = 1; e < E; ++e) largest = logits[e] > largest ? logits[e] : largest;
  const F16 shift = Set(largest);
  int64_t e = 0;
  for (; e + kLanes <= E; e += kLanes) Store(p + e, Exp(Load(logits + e) - shift));
  if (e < E) StoreFirst(p + e, Exp(LoadFirst(logits + e, E - e, largest) - shift), E - e);
  double sum = 0.0;
  for (e = 0; e < E; ++e) sum += static_cast<double>(p[e]);
  const float inverse = static_cast<float>(1.0 / sum);
  for (e = 0; e < E; ++e) p[e] *= inverse;
}

// The largest that is not taken (below 0), of equals the first; a NaN is never larger.
int64_t Largest(const float* p, int64_t E) {
  int64_t best = -1;
  for (int64_t e = 0; e < E; ++e) {
    if (p[e] < 0.0f) continue;
    if (best < 0 || p[e] > p[best]) best = e;
  }
  return best;
}

}  // namespace

void RouteLoop(const RouteArgs& args, int64_t begin, int64_t end) {
  float p[kMaxExperts];
  for (int64_t t = begin; t < end; ++t) {
    Softmax(args.logits + t * args.lde, args.E, p);
    int32_t* experts = args.experts + t * args.k;
    float* weights = args.weights + t * args.k;
    float sum = 0.0f;
    for (int64_t j = 0; j < args.k; ++j) {
      const int64_t e = Largest(p, args.E);
      experts[j] = static_cast<int32_t>(e);
      weights[j] = p[e];
      sum += p[e];
      p[e] = -1.0f;
    }
    if (!args.normalise) continue;
    for (int64_t j = 0; j < args.k; ++j) weights[j] /= sum;
  }
}

// Normalised weights are a softmax over the chosen logits alone: d l_j = w_j (d w_j - sum w dw).
// Otherwise they are probabilities: d l_e = p_e ([e chosen] d w_e - sum p dw), over all E.
void RouteBackwardLoop(const RouteBackwardArgs& args, int64_t begin, int64_t end) {
  float p[kMaxExperts];
  for (int64_t t = begin; t < end; ++t) {
    const int32_t* experts = args.experts + t * args.k;
    const float* weights = args.weights + t * args.k;
    const float* d = args.d_weights + t * args.k;
    float* out = static_cast<float*>(args.d_logits) + t * args.lde;
    double mean = 0.0;
    for (int64_t j = 0; j < args.k; ++j) {
      mean += static_cast<double>(weights[j]) * static_cast<double>(d[j]);
    }
    const float m = static_cast<float>(mean);
    for (int64_t e = 0; e < args.lde; ++e) out[e] = 0.0f;
    if (!args.normalise) {
      Softmax(args.logits + t * args.lde, args.E, p);
      for (int64_t e = 0; e < args.E; ++e) out[e] = -p[e] * m;
      for (int64_t j = 0; j < args.k; ++j) out[experts[j]] += weights[j] * d[j];
    } else {
      for (int64_t j = 0; j < args.k; ++j) out[experts[j]] = weights[j] * (d[j] - m);
    }
  }
}

namespace {

template <typename Fn>
SOUP_INLINE void EntryGradOf(const EntryGradArgs& args, int64_t begin, int64_t end, Fn times) {
  for (int64_t row = begin; row < end; ++row) {
    const float* gate = static_cast<const float*>(args.gate_up) + row * 2 * args.I;
    const float* up = gate + args.I;
    float* d = static_cast<float*>(args.d_act) + row * args.I;
    const int64_t entry = args.entries[row];
    const F16 weight = Set(args.weights[entry]);
    double total = 0.0;
    for (int64_t b = 0; b < args.I; b += 1024) {
      const int64_t last = args.I - b < 1024 ? args.I : b + 1024;
      F16 sum = Set(0.0f);
      int64_t i = b;
      for (; i + kLanes <= last; i += kLanes) {
        const F16 dy = Load(d + i);
        sum = sum + dy * times(Load(gate + i), Load(up + i));
        Store(d + i, dy * weight);
      }
      if (const int64_t n = last - i; n > 0) {
        const F16 dy = LoadFirst(d + i, n);
        sum = sum + dy * times(LoadFirst(gate + i, n), LoadFirst(up + i, n));
        StoreFirst(d + i, dy * weight, n);
      }
      total += static_cast<double>(Sum(sum));
    }
    args.d_weights[entry] = static_cast<float>(total);
  }
}

}  // namespace

void EntryGradLoop(const EntryGradArgs& args, int64_t begin, int64_t end) {
  if (args.gate == GateActivation::kSilu) {
    EntryGradOf(args, begin, end, [](F16 gate, F16 up) { return SiluTimes(gate, up); });
  } else {
    EntryGradOf(args, begin, end, [](F16 gate, F16 up) { return GeluTimes(gate, up); });
  }
}

}  // namespace soup::kernels::cpu::SOUP_ISA
