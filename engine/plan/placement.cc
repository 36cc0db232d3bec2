#include "engine/plan/placement.h"

#include <algorithm>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "engine/base/status_macros.h"

namespace soup::engine {
namespace {

constexpr LayerSplit kEveryLayerOnDevice = {kAllLayers, 0};
constexpr LayerSplit kEveryLayerOnHost = {0, kAllLayers};

std::string CountText(int32_t layers) {
  return layers == kAllLayers ? "all" : absl::StrCat(layers);
}

std::string SplitText(const LayerSplit& split) {
  std::vector<std::string> parts;
  if (split.device > 0) parts.push_back(absl::StrCat("device:", CountText(split.device)));
  if (split.host > 0) parts.push_back(absl::StrCat("host:", CountText(split.host)));
  return parts.empty() ? "recompute" : absl::StrJoin(parts, "+");
}

absl::Status Unknown(absl::string_view word, absl::string_view known) {
  return absl::InvalidArgumentError(
      absl::StrCat("placement: \"", word, "\" is not known; use ", known));
}

absl::StatusOr<int32_t> ParseCount(absl::string_view word, absl::string_view text) {
  if (text == "all") return kAllLayers;
  int32_t n = 0;
  if (!absl::SimpleAtoi(text, &n) || n < 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("placement: \"", word, "\" needs a number of 0 or more"));
  }
  return n;
}

absl::StatusOr<LayerSplit> ParseSplit(absl::string_view word, absl::string_view value) {
  LayerSplit split;
  if (value == "recompute") return split;
  for (const absl::string_view part : absl::StrSplit(value, '+')) {
    const std::pair<absl::string_view, absl::string_view> pair =
        absl::StrSplit(part, absl::MaxSplits(':', 1));
    const absl::string_view count = pair.second.empty() ? "all" : pair.second;
    if (pair.first == "device") {
      SOUP_ASSIGN_OR_RETURN(split.device, ParseCount(word, count));
    } else if (pair.first == "host") {
      SOUP_ASSIGN_OR_RETURN(split.host, ParseCount(word, count));
    } else {
      return Unknown(word, "recompute, device:N, host:N or device:N+host:N (N: layers or all)");
    }
  }
  return split;
}

absl::StatusOr<bool> ParseChoice(absl::string_view word, absl::string_view value,
                                 absl::string_view no, absl::string_view yes) {
  if (value == no) return false;
  if (value == yes) return true;
  return Unknown(word, absl::StrCat(no, " or ", yes));
}

// One word of a retention; false: it is none.
absl::StatusOr<bool> TakeRetentionWord(absl::string_view word, Placement* placement) {
  for (const Retention simple : {Retention::kRecompute, Retention::kKeep, Retention::kHost}) {
    if (word != RetentionName(simple)) continue;
    Retain(simple, placement);
    return true;
  }
  const std::pair<absl::string_view, absl::string_view> pair =
      absl::StrSplit(word, absl::MaxSplits('=', 1));
  if (pair.first == "attention") {
    SOUP_ASSIGN_OR_RETURN(placement->attention, ParseSplit(word, pair.second));
  } else if (pair.first == "mlp") {
    SOUP_ASSIGN_OR_RETURN(placement->mlp, ParseSplit(word, pair.second));
  } else if (pair.first == "boundaries") {
    SOUP_ASSIGN_OR_RETURN(placement->boundaries_host,
                          ParseChoice(word, pair.second, "device", "host"));
  } else if (pair.first == "optimizer") {
    SOUP_ASSIGN_OR_RETURN(placement->optimizer_host,
                          ParseChoice(word, pair.second, "device", "host"));
  } else {
    return false;
  }
  return true;
}

absl::Status ParseHead(absl::string_view word, absl::string_view value, Placement* placement) {
  const std::pair<absl::string_view, absl::string_view> pair =
      absl::StrSplit(value, absl::MaxSplits(':', 1));
  if (pair.second.empty() || pair.first != "resident") {
    SOUP_ASSIGN_OR_RETURN(placement->head_resident,
                          ParseChoice(word, value, "streamed", "resident"));
    placement->head_slices = 0;
    return absl::OkStatus();
  }
  placement->head_resident = false;
  SOUP_ASSIGN_OR_RETURN(placement->head_slices, ParseCount(word, pair.second));
  if (placement->head_slices == kAllLayers) {
    placement->head_resident = true;
    placement->head_slices = 0;
  }
  return absl::OkStatus();
}

std::vector<absl::string_view> Words(absl::string_view text) {
  return absl::StrSplit(text, absl::ByAnyChar(" ,"), absl::SkipEmpty());
}

constexpr char kRetentionWords[] =
    "recompute, keep, host, attention=, mlp=, boundaries= or optimizer=";

}  // namespace

const char* HomeName(Home home) {
  switch (home) {
    case Home::kRecompute:
      return "recompute";
    case Home::kHost:
      return "host";
    case Home::kDevice:
      return "device";
  }
  return "";
}

const char* RetentionName(Retention retention) {
  switch (retention) {
    case Retention::kRecompute:
      return "recompute";
    case Retention::kKeep:
      return "keep";
    case Retention::kHost:
      return "host";
  }
  return "";
}

void Retain(Retention retention, Placement* placement) {
  const LayerSplit split = retention == Retention::kKeep   ? kEveryLayerOnDevice
                           : retention == Retention::kHost ? kEveryLayerOnHost
                                                           : LayerSplit();
  placement->attention = split;
  placement->mlp = split;
  placement->boundaries_host = retention == Retention::kHost;
}

Placement NormalPlacement(const Placement& placement, int64_t layers) {
  const int32_t most = static_cast<int32_t>(layers);
  const auto normal = [most](LayerSplit split) {
    split.device = std::clamp(split.device, 0, most);
    split.host = std::clamp(split.host, 0, most - split.device);
    return split;
  };
  Placement p = placement;
  if (p.slots == kAllLayers) p.slots = most;
  if (p.resident_layers == kAllLayers) p.resident_layers = most;
  p.attention = normal(p.attention);
  p.mlp = normal(p.mlp);
  return p;
}

Placement CanonicalPlacement(Placement placement, int64_t layers) {
  for (LayerSplit* split : {&placement.attention, &placement.mlp}) {
    for (int32_t* count : {&split->device, &split->host}) {
      if (*count == layers) *count = kAllLayers;
    }
  }
  return placement;
}

Home HomeOf(const LayerSplit& split, int64_t layers, int64_t layer) {
  const int64_t from_end = layers - 1 - layer;
  if (from_end < split.device) return Home::kDevice;
  return from_end - split.device < split.host ? Home::kHost : Home::kRecompute;
}

std::vector<LayerBand> LayerBands(const Placement& placement, int64_t layers) {
  std::vector<LayerBand> bands;
  for (int64_t l = 0; l < layers; ++l) {
    const Home attention = HomeOf(placement.attention, layers, l);
    const Home mlp = HomeOf(placement.mlp, layers, l);
    if (bands.empty() || bands.back().attention != attention || bands.back().mlp != mlp) {
      bands.push_back({l, 0, attention, mlp});
    }
    ++bands.back().layers;
  }
  return bands;
}

std::string RetentionText(const Placement& placement) {
  const Placement& p = placement;
  std::vector<std::string> words;
  if (p.attention == p.mlp && p.attention == kEveryLayerOnDevice && !p.boundaries_host) {
    words.push_back("keep");
  } else if (p.attention == p.mlp && p.attention == kEveryLayerOnHost && p.boundaries_host) {
    words.push_back("host");
  } else {
    if (!(p.attention == LayerSplit())) {
      words.push_back(absl::StrCat("attention=", SplitText(p.attention)));
    }
    if (!(p.mlp == LayerSplit())) words.push_back(absl::StrCat("mlp=", SplitText(p.mlp)));
    if (p.boundaries_host) words.push_back("boundaries=host");
    if (words.empty()) words.push_back("recompute");
  }
  if (p.optimizer_host) words.push_back("optimizer=host");
  return absl::StrJoin(words, " ");
}

absl::Status ParseRetention(absl::string_view text, Placement* placement) {
  Placement parsed = *placement;
  Retain(Retention::kRecompute, &parsed);
  parsed.optimizer_host = false;
  for (const absl::string_view word : Words(text)) {
    SOUP_ASSIGN_OR_RETURN(const bool known, TakeRetentionWord(word, &parsed));
    if (!known) return Unknown(word, kRetentionWords);
  }
  *placement = parsed;
  return absl::OkStatus();
}

std::string HeadText(const Placement& placement) {
  if (placement.head_resident) return "resident";
  return placement.head_slices > 0 ? absl::StrCat("resident:", placement.head_slices) : "streamed";
}

std::string PlacementText(const Placement& placement) {
  return absl::StrCat("slots=", CountText(placement.slots),
                      " resident=", CountText(placement.resident_layers),
                      " head=", HeadText(placement), " ", RetentionText(placement));
}

absl::StatusOr<Placement> ParsePlacement(absl::string_view text) {
  Placement placement;
  for (const absl::string_view word : Words(text)) {
    SOUP_ASSIGN_OR_RETURN(const bool known, TakeRetentionWord(word, &placement));
    if (known) continue;
    const std::pair<absl::string_view, absl::string_view> pair =
        absl::StrSplit(word, absl::MaxSplits('=', 1));
    if (pair.first == "slots") {
      SOUP_ASSIGN_OR_RETURN(placement.slots, ParseCount(word, pair.second));
    } else if (pair.first == "resident") {
      SOUP_ASSIGN_OR_RETURN(placement.resident_layers, ParseCount(word, pair.second));
    } else if (pair.first == "head") {
      SOUP_RETURN_IF_ERROR(ParseHead(word, pair.second, &placement));
    } else {
      return Unknown(word, absl::StrCat("slots=, resident=, head=, ", kRetentionWords));
    }
  }
  return placement;
}

}  // namespace soup::engine
