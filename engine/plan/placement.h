// Where the weights, the activations and the optimizer's state of a pass live. A placement decides
// time and memory, never bits: it may change at any pass.
//
// Weights: `slots` slabs in device memory, `resident_layers` of them for good (visit_schedule.h);
// the head streamed by slices, some of them or all of it resident.
//
// What a layer's backward reads comes in two classes, each kept on the device, kept in pinned host
// memory, or made again, layer by layer:
//   attention  q, k, v, attention's output and log-sum-exp, the middle of the residual stream, and
//              x A^T of the attention's adapted linears
//   mlp        gate and up, and x A^T of the MLP's adapted linears
// Which layers: a class counts from the last layer down. The last `device` layers keep it on the
// device: their backward comes first, so their bytes are free again for the rest of the backward.
// The `host` layers before them keep it in host memory: the earlier a layer, the longer the time
// in which its bytes can go and come back unnoticed. The first layers make it again.
//
// Boundaries (every layer's input) and the optimizer's moments are kept on the device or in host
// memory. Score items keep nothing. Plain values; any thread.
#ifndef SOUP_ENGINE_PLAN_PLACEMENT_H_
#define SOUP_ENGINE_PLAN_PLACEMENT_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace soup::engine {

// A layer count that means every layer.
inline constexpr int32_t kAllLayers = INT32_MAX;

enum class Home : uint8_t { kRecompute, kHost, kDevice };
const char* HomeName(Home home);  // "recompute" | "host" | "device"

// How many layers keep a class where; the others make it again.
struct LayerSplit {
  int32_t device = 0;
  int32_t host = 0;
  bool operator==(const LayerSplit& o) const { return device == o.device && host == o.host; }
};

struct Placement {
  int32_t slots = 2;  // all, resident ones included
  int32_t resident_layers = 0;
  bool head_resident = false;  // the head kept in the arena instead of streamed by slices
  int32_t head_slices = 0;     // else: so many of its slices stay there, beside the two of the ring
  LayerSplit attention;
  LayerSplit mlp;
  bool boundaries_host = false;
  bool optimizer_host = false;

  bool operator==(const Placement& o) const {
    return slots == o.slots && resident_layers == o.resident_layers &&
           head_resident == o.head_resident && head_slices == o.head_slices &&
           attention == o.attention && mlp == o.mlp && boundaries_host == o.boundaries_host &&
           optimizer_host == o.optimizer_host;
  }
};

// The simple forms of retention: both classes of every layer made again, kept on the device, or
// kept in host memory (the boundaries too).
enum class Retention : uint8_t { kRecompute, kKeep, kHost };
const char* RetentionName(Retention retention);  // "recompute" | "keep" | "host"
void Retain(Retention retention, Placement* placement);

// "All" replaced by a model's layers, and a class's layers cut to them: device first, then host.
Placement NormalPlacement(const Placement& placement, int64_t layers);
// The other way: every layer of a class as "all", for people and for texts that models of other
// depths share.
Placement CanonicalPlacement(Placement placement, int64_t layers);
Home HomeOf(const LayerSplit& split, int64_t layers, int64_t layer);

// The fewest slots that a model of so many layers runs with.
inline int32_t LeastSlots(int64_t layers) { return layers < 2 ? static_cast<int32_t>(layers) : 2; }

// Consecutive layers that keep the same.
struct LayerBand {
  int64_t first = 0;
  int64_t layers = 0;
  Home attention = Home::kRecompute;
  Home mlp = Home::kRecompute;
  int64_t end() const { return first + layers; }
};
// All layers in bands as large as can be, in forward order. At least one.
std::vector<LayerBand> LayerBands(const Placement& placement, int64_t layers);

// "recompute", "keep", "host", or what differs from recompute:
// "attention=device:8+host:4 mlp=device:all boundaries=host optimizer=host". Read back by
// ParseRetention, which sets all of a placement but its weights. Errors: InvalidArgument (names the
// word and what is known).
std::string RetentionText(const Placement& placement);
absl::Status ParseRetention(absl::string_view text, Placement* placement);

// "streamed", "resident:5", "resident".
std::string HeadText(const Placement& placement);

// The whole: "slots=4 resident=1 head=streamed" and the retention's words, separated by spaces or
// commas; what is not named is as in Placement(). head: streamed | resident | resident:SLICES.
std::string PlacementText(const Placement& placement);
absl::StatusOr<Placement> ParsePlacement(absl::string_view text);

}  // namespace soup::engine

#endif  // SOUP_ENGINE_PLAN_PLACEMENT_H_
