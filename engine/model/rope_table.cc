#include "engine/model/rope_table.h"

#include <algorithm>
#include <cmath>

namespace soup::engine {
namespace {

constexpr double kPi = 3.14159265358979323846;

double Llama3(const RopeSpec& rope, double plain) {
  const double wavelength = 2.0 * kPi / plain;
  const double longest_kept = rope.original_max_position / rope.high_freq_factor;
  const double shortest_scaled = rope.original_max_position / rope.low_freq_factor;
  if (wavelength > shortest_scaled) return plain / rope.factor;
  if (wavelength < longest_kept) return plain;
  const double smooth = (rope.original_max_position / wavelength - rope.low_freq_factor) /
                        (rope.high_freq_factor - rope.low_freq_factor);
  return (1.0 - smooth) * plain / rope.factor + smooth * plain;
}

// Yarn: dimensions that turn more than beta_fast times in the original context keep their
// frequency, those that turn less than beta_slow times are interpolated, a ramp between.
struct YarnRamp {
  double low, high;
};
YarnRamp MakeYarnRamp(const RopeSpec& rope, int64_t dim) {
  const double d = static_cast<double>(dim);
  const auto dimension = [&](double turns) {
    return d * std::log(rope.original_max_position / (turns * 2.0 * kPi)) /
           (2.0 * std::log(rope.theta));
  };
  YarnRamp ramp = {dimension(rope.beta_fast), dimension(rope.beta_slow)};
  if (rope.truncate) ramp = {std::floor(ramp.low), std::ceil(ramp.high)};
  ramp = {std::max(ramp.low, 0.0), std::min(ramp.high, d - 1.0)};
  if (ramp.low == ramp.high) ramp.high += 0.001;
  return ramp;
}
double Yarn(const RopeSpec& rope, const YarnRamp& ramp, int64_t i, double plain) {
  const double interpolated =
      std::clamp((static_cast<double>(i) - ramp.low) / (ramp.high - ramp.low), 0.0, 1.0);
  return plain / rope.factor * interpolated + plain * (1.0 - interpolated);
}

const RopeSpec& Rope(const ModelSpec& spec, bool local) {
  return local ? spec.local_rope : spec.rope;
}
int64_t Tables(const RopeSpec& rope) { return rope.type == RopeType::kLongRope ? 2 : 1; }

}  // namespace

std::vector<float> RopeFrequencies(const RopeSpec& rope, int64_t rotary_dim, bool long_sequence) {
  std::vector<float> out;
  YarnRamp ramp = {};
  if (rope.type == RopeType::kYarn) ramp = MakeYarnRamp(rope, rotary_dim);
  for (int64_t i = 0; i < rotary_dim / 2; ++i) {
    const double plain =
        std::pow(rope.theta, -2.0 * static_cast<double>(i) / static_cast<double>(rotary_dim));
    double frequency = plain;
    if (rope.type == RopeType::kLinear) frequency = plain / rope.factor;
    if (rope.type == RopeType::kLlama3) frequency = Llama3(rope, plain);
    if (rope.type == RopeType::kYarn) frequency = Yarn(rope, ramp, i, plain);
    if (rope.type == RopeType::kLongRope) {
      frequency = plain / (long_sequence ? rope.long_factor : rope.short_factor)[i];
    }
    out.push_back(static_cast<float>(frequency));
  }
  return out;
}

std::vector<float> RopeInverseFrequencies(const ModelSpec& spec) {
  return RopeFrequencies(spec.rope, spec.rotary(), false);
}

std::vector<float> RopeTables(const ModelSpec& spec) {
  std::vector<float> out;
  for (const bool local : {false, true}) {
    if (local && !spec.has_local_rope) break;
    const RopeSpec& rope = Rope(spec, local);
    for (int64_t i = 0; i < Tables(rope); ++i) {
      const std::vector<float> table = RopeFrequencies(rope, spec.rotary(), i == 1);
      out.insert(out.end(), table.begin(), table.end());
    }
  }
  return out;
}

int64_t RopeTableFloats(const ModelSpec& spec) {
  const int64_t tables = Tables(spec.rope) + (spec.has_local_rope ? Tables(spec.local_rope) : 0);
  return tables * (spec.rotary() / 2);
}

RopeUse RopeFor(const ModelSpec& spec, int64_t layer, int64_t sequence_length) {
  const bool local = spec.has_local_rope && spec.kind(layer).local_rope;
  const RopeSpec& rope = Rope(spec, local);
  int64_t table = local ? Tables(spec.rope) : 0;
  const int64_t limit = RopeLengthLimit(spec, layer);
  if (limit > 0 && sequence_length > limit) ++table;
  RopeUse use;
  use.offset = table * (spec.rotary() / 2);
  use.scale = static_cast<float>(rope.attention_factor);
  return use;
}

int64_t RopeLengthLimit(const ModelSpec& spec, int64_t layer) {
  const RopeSpec& rope = Rope(spec, spec.has_local_rope && spec.kind(layer).local_rope);
  return rope.type == RopeType::kLongRope ? static_cast<int64_t>(rope.original_max_position) : 0;
}

}  // namespace soup::engine
