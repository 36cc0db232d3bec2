#include "engine/data/source_draws.h"

#include <algorithm>
#include <cmath>
#include <vector>

namespace soup::engine {
namespace {

constexpr uint64_t kWeightStream = uint64_t{0x77656967} << 32;  // "weig"

// A bijection on 64 bits that leaves no pattern (splitmix64's finaliser): a fixed draw a record.
uint64_t Scramble(uint64_t x) {
  x += 0x9e3779b97f4a7c15u;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

}  // namespace

RecordDraw RecordDraw::Of(int64_t records, int64_t count, uint64_t seed, uint64_t stream) {
  RecordDraw out;
  out.seed_ = Scramble(seed);
  if (stream != 0) out.seed_ = Scramble(out.seed_ ^ stream);
  if (count < 1) return out;
  out.all_ = count >= records;
  if (out.all_) return out;
  // The `count` with the least draws.
  std::vector<uint64_t> draws(static_cast<size_t>(records));
  for (size_t i = 0; i < draws.size(); ++i) draws[i] = Scramble(out.seed_ ^ i);
  std::nth_element(draws.begin(), draws.begin() + (count - 1), draws.end());
  out.limit_ = draws[static_cast<size_t>(count - 1)];
  return out;
}

bool RecordDraw::Holds(int64_t index) const {
  return all_ || (limit_ && Scramble(seed_ ^ static_cast<uint64_t>(index)) <= *limit_);
}

RecordDraw DrawHeldOut(int64_t records, double fraction, uint64_t seed, int source) {
  auto count = static_cast<int64_t>(std::llround(fraction * static_cast<double>(records)));
  count = std::min(std::max<int64_t>(count, fraction > 0 ? 1 : 0), records - 1);
  return RecordDraw::Of(records, count, seed, static_cast<uint64_t>(source));
}

bool SourceCopies::NeedsCount(double weight) { return weight != std::floor(weight); }

SourceCopies SourceCopies::Of(int64_t records, double weight, uint64_t seed, int source) {
  SourceCopies out;
  const double whole = std::floor(weight);
  out.whole_ = static_cast<int64_t>(whole);
  const auto extra =
      static_cast<int64_t>(std::llround((weight - whole) * static_cast<double>(records)));
  out.extra_ =
      RecordDraw::Of(records, extra, seed, kWeightStream | static_cast<uint64_t>(source + 1));
  return out;
}

}  // namespace soup::engine
