// Measures what a backend reaches on this machine: copies, matrix products, attention, NF4
// dequantisation, elementwise traffic, the launch of a small op. Through the Backend interface, on
// random data, medians of repeats, timed by events on the streams: what a pass would see.
//
//   MachineProfile profile = ...;  // backend and device are named already
//   MeasureMachine(backend, widths, options, &profile);
//
// Bounded in time: a point of a curve that would not fit into `seconds_limit` is left out, the
// largest first; the first point of each curve is always made. Takes one arena of at most
// `arena_bytes` and gives it back, so call it before the first pass, and before host memory is
// registered: every registration is dropped.
#ifndef SOUP_ENGINE_DEVICE_MACHINE_MEASURE_H_
#define SOUP_ENGINE_DEVICE_MACHINE_MEASURE_H_

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "engine/base/machine_profile.h"
#include "engine/device/backend.h"

namespace soup::engine {

// The shapes that rates are measured at: a decoder's widths, as in its ModelSpec.
struct DecoderWidths {
  int64_t hidden = 0;
  int64_t intermediate = 0;
  int64_t heads = 0;
  int64_t kv_heads = 0;
  int64_t head_dim = 0;
};

struct MeasureOptions {
  double seconds_limit = 0;  // of the whole
  double point_seconds = 0;  // a point is repeated for so long, 3 to 30 times
  // Products run for so long before the first is timed: a card that has come to its power limit
  // runs slower than one that was idle, and training finds it so.
  double warm_seconds = 0;
  int64_t arena_bytes = 0;
  int64_t slab_bytes = 0;  // of the copies between host and device
  std::vector<int64_t> gemm_rows;
  std::vector<int64_t> attention_tokens;  // of one sequence
  int64_t attention_batch_tokens = 0;     // as many sequences as fill this, at least one
  // By the profile's attention library where a job of such sequences would use it: its plans take a
  // second to make. Otherwise by our own kernels.
  bool attention_library = false;
};

// Widths and options for a worker at its start, when no job is known yet: under 3 s on a GPU
// (widths of an 8B decoder), under 1 s on a CPU (those of a small one).
DecoderWidths TypicalWidths(const Backend& backend);
MeasureOptions QuickMeasure(const Backend& backend);
// More points, each measured long enough to be a ceiling that steps are held against.
MeasureOptions ThoroughMeasure(const Backend& backend);

// Tries the profile's attention library: an installation with a part missing is found, and fails
// only when it makes its first plan. Then the profile goes on without it, jobs are planned for our
// own kernels, and a warning says why. Takes a second; nothing to do where the profile names none.
// Errors: those of a device that has failed.
absl::Status CheckAttentionLibrary(Backend* backend, MachineProfile* profile);

// Fills the rates and curves of `profile` and leaves the rest. Errors: InvalidArgument (widths that
// are not positive, an arena in which not even the first points fit: says how many bytes it takes),
// those of CreateArena and of the device.
absl::Status MeasureMachine(Backend* backend, const DecoderWidths& widths,
                            const MeasureOptions& options, MachineProfile* profile);

}  // namespace soup::engine

#endif  // SOUP_ENGINE_DEVICE_MACHINE_MEASURE_H_
