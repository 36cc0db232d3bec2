// Which records of a file are drawn: those held out for validation, and those that a weight that is
// no whole number takes once more. A function of seed, stream and index alone. Plain value; any
// thread.
#ifndef SOUP_ENGINE_DATA_SOURCE_DRAWS_H_
#define SOUP_ENGINE_DATA_SOURCE_DRAWS_H_

#include <cstdint>
#include <optional>

namespace soup::engine {

// A set of exactly `count` of `records` indices.
class RecordDraw {
 public:
  RecordDraw() = default;  // nothing
  // `stream` keeps draws of one seed apart.
  static RecordDraw Of(int64_t records, int64_t count, uint64_t seed, uint64_t stream);
  bool Holds(int64_t index) const;

 private:
  uint64_t seed_ = 0;
  std::optional<uint64_t> limit_;
  bool all_ = false;
};

// Records of source `source` (from 0) that are held out: round(fraction * records), but where a
// fraction was asked for at least one, and never all.
RecordDraw DrawHeldOut(int64_t records, double fraction, uint64_t seed, int source);

// How often a record stands in an epoch: floor(weight) times, and once more for
// round((weight - floor(weight)) * records) of them.
class SourceCopies {
 public:
  SourceCopies() = default;  // once
  static SourceCopies Of(int64_t records, double weight, uint64_t seed, int source);
  // Whether Of looks at the number of records.
  static bool NeedsCount(double weight);
  int64_t Of(int64_t index) const { return whole_ + (extra_.Holds(index) ? 1 : 0); }

 private:
  int64_t whole_ = 1;
  RecordDraw extra_;
};

}  // namespace soup::engine

#endif  // SOUP_ENGINE_DATA_SOURCE_DRAWS_H_
