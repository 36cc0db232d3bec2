#include "bench/row_spec.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "engine/base/status_macros.h"

namespace soup::bench {
namespace {

using engine::Module;

constexpr Setting kSettings[] = {
    {"base", "--base", "llama-8b, llama-70b, smollm-135m, or the path of a config.json"},
    {"format", "--format", "nf4, nf4-dq or bf16"},
    {"values", "--values",
     "of a bf16 base: normal (the default), even over a range, or nf4: what NF4 codes stand for"},
    {"precision", "--precision",
     "activations: auto (the default, by the model), bf16 (cuda) or fp32"},
    {"batch", "--batch", "sequences a step"},
    {"seq", "--seq", "tokens of a sequence"},
    {"shortest", "--shortest",
     "tokens of the shortest sequence: lengths are drawn evenly from there to seq"},
    {"r", "--lora-r", "LoRA rank"},
    {"targets", "--targets", "adapted linears: q,k,v,o,gate,up,down"},
    {"budget", "--budget", "arena bytes, e.g. 9.9GB: the planner chooses the placement"},
    {"slots", "--slots", "layer slots, resident ones included, or all (instead of a budget)"},
    {"resident", "--resident-layers", "layers that stay in their slots, or all"},
    {"head", "--head", "streamed, resident or resident:SLICES"},
    {"retention", "--retention", "recompute, keep, host, or e.g. attention=device:8,mlp=device:4"},
    {"attention", "--attention", "layers that keep it, e.g. device:8+host:4"},
    {"mlp", "--mlp", "the same of gate and up"},
    {"boundaries", "--boundaries", "device or host"},
    {"optimizer", "--optimizer", "device or host"},
    {"steps", "--steps", "steps that count"},
    {"warmup", "--warmup", "steps before them"},
};

struct Unit {
  const char* name;
  double bytes;
};
constexpr Unit kUnits[] = {
    {"KiB", 1024.0}, {"MiB", 1048576.0}, {"GiB", 1073741824.0}, {"TiB", 1099511627776.0},
    {"kB", 1e3},     {"MB", 1e6},        {"GB", 1e9},           {"TB", 1e12},
    {"B", 1.0},
};

absl::Status Wrong(absl::string_view key, absl::string_view value, absl::string_view wanted) {
  return absl::InvalidArgumentError(absl::StrCat(key, "=", value, " is not understood; ", wanted));
}

absl::Status Number(absl::string_view key, absl::string_view value, int32_t least, int32_t& out) {
  int32_t n = 0;
  if (!absl::SimpleAtoi(value, &n) || n < least) {
    return Wrong(key, value, absl::StrCat("a whole number from ", least, " up"));
  }
  out = n;
  return absl::OkStatus();
}

std::string ShortName(Module m) {
  return std::string(absl::StripSuffix(engine::ModuleName(m), "_proj"));
}

absl::Status Targets(absl::string_view value, std::vector<Module>& out) {
  std::vector<Module> found;
  std::vector<std::string> names;
  for (int m = 0; m < engine::kModules; ++m) {
    const Module module = static_cast<Module>(m);
    names.push_back(ShortName(module));
    for (const absl::string_view name : absl::StrSplit(value, ',')) {
      if (name == names.back()) found.push_back(module);
    }
  }
  const size_t given = static_cast<size_t>(std::count(value.begin(), value.end(), ',')) + 1;
  const bool twice = std::adjacent_find(found.begin(), found.end()) != found.end();
  if (found.size() != given || twice) {
    return Wrong("targets", value,
                 absl::StrCat("a list of ", absl::StrJoin(names, ", "), ", each once"));
  }
  out = std::move(found);
  return absl::OkStatus();
}

// Words of a placement's text (engine/plan/placement.h), one at a time.
absl::Status PlacementSetting(absl::string_view key, absl::string_view value, RowSpec& row) {
  row.placed = true;
  engine::Placement& p = row.placement;
  if (key == "retention") return engine::ParseRetention(value, &p);
  SOUP_ASSIGN_OR_RETURN(const engine::Placement parsed,
                        engine::ParsePlacement(absl::StrCat(key, "=", value)));
  if (key == "slots") p.slots = parsed.slots;
  if (key == "resident") p.resident_layers = parsed.resident_layers;
  if (key == "head") {
    p.head_resident = parsed.head_resident;
    p.head_slices = parsed.head_slices;
  }
  if (key == "attention") p.attention = parsed.attention;
  if (key == "mlp") p.mlp = parsed.mlp;
  if (key == "boundaries") p.boundaries_host = parsed.boundaries_host;
  if (key == "optimizer") p.optimizer_host = parsed.optimizer_host;
  return absl::OkStatus();
}

constexpr absl::string_view kPlacementKeys[] = {"slots",     "resident", "head",       "retention",
                                                "attention", "mlp",      "boundaries", "optimizer"};

}  // namespace

absl::Span<const Setting> Settings() { return kSettings; }

absl::StatusOr<int64_t> ParseBytes(absl::string_view text) {
  for (const Unit& unit : kUnits) {
    if (!absl::EndsWith(text, unit.name)) continue;
    double number = 0;
    const absl::string_view digits =
        absl::StripTrailingAsciiWhitespace(absl::StripSuffix(text, unit.name));
    const double bytes = absl::SimpleAtod(digits, &number) ? number * unit.bytes : 0;
    if (bytes >= 1 && bytes < 9e18) return static_cast<int64_t>(std::llround(bytes));
    break;
  }
  return absl::InvalidArgumentError(
      absl::StrCat("\"", text, "\" is no number of bytes; write it as 9.9GB or 9200MiB"));
}

absl::Status ApplySetting(absl::string_view key, absl::string_view value, RowSpec& row) {
  if (value.empty()) return Wrong(key, value, "a value must follow");
  if (key == "base") {
    row.base = std::string(value);
    return absl::OkStatus();
  }
  if (key == "format") {
    SOUP_ASSIGN_OR_RETURN(row.format, engine::ParseBaseFormat(value));
    return absl::OkStatus();
  }
  if (key == "values") {
    for (const WeightValues v : {WeightValues::kNormal, WeightValues::kEven, WeightValues::kNf4}) {
      if (value != WeightValuesName(v)) continue;
      row.values = v;
      return absl::OkStatus();
    }
    return Wrong(key, value, "normal, even or nf4");
  }
  if (key == "precision") {
    SOUP_ASSIGN_OR_RETURN(row.precision, engine::ParsePrecision(value));
    return absl::OkStatus();
  }
  if (key == "batch") return Number(key, value, 1, row.batch);
  if (key == "seq") return Number(key, value, 2, row.seq);
  if (key == "shortest") return Number(key, value, 2, row.shortest);
  if (key == "r") return Number(key, value, 1, row.lora_r);
  if (key == "targets") return Targets(value, row.targets);
  if (key == "budget") {
    SOUP_ASSIGN_OR_RETURN(row.budget_bytes, ParseBytes(value));
    return absl::OkStatus();
  }
  if (key == "steps") return Number(key, value, 1, row.steps);
  if (key == "warmup") return Number(key, value, 1, row.warmup);
  if (std::find(std::begin(kPlacementKeys), std::end(kPlacementKeys), key) !=
      std::end(kPlacementKeys)) {
    return PlacementSetting(key, value, row);
  }
  std::vector<std::string> keys;
  for (const Setting& s : kSettings) keys.emplace_back(s.key);
  return absl::InvalidArgumentError(
      absl::StrCat("\"", key, "\" is no setting of a row; there are ", absl::StrJoin(keys, ", ")));
}

absl::StatusOr<RowSpec> ParseRow(absl::string_view text, RowSpec defaults) {
  RowSpec row = std::move(defaults);
  const RowSpec before = row;
  bool budget = false, placed = false;
  for (const absl::string_view word :
       absl::StrSplit(text, absl::ByAnyChar(" \t"), absl::SkipEmpty())) {
    const std::pair<absl::string_view, absl::string_view> parts =
        absl::StrSplit(word, absl::MaxSplits('=', 1));
    if (!absl::StrContains(word, '=')) {
      return absl::InvalidArgumentError(
          absl::StrCat("row \"", text, "\": \"", word, "\" is not key=value"));
    }
    row.placed = false;
    SOUP_RETURN_IF_ERROR(ApplySetting(parts.first, parts.second, row));
    placed |= row.placed;
    budget |= parts.first == "budget";
  }
  // What the row says of memory takes the place of what the command line said.
  row.placed = placed || (before.placed && !budget);
  if (placed && !budget) row.budget_bytes = 0;
  if (budget && !placed) row.placement = engine::Placement();
  return row;
}

absl::Status CheckRow(const RowSpec& row) {
  if (row.values != WeightValues::kNormal && row.format != engine::BaseFormat::kBf16) {
    return absl::InvalidArgumentError(absl::StrCat(
        "row \"", row.ToText(), "\": values are of format=bf16; an NF4 base has codes"));
  }
  if (row.shortest > row.seq) {
    return absl::InvalidArgumentError(
        absl::StrCat("row \"", row.ToText(), "\": shortest is more than seq"));
  }
  if (row.placed == (row.budget_bytes == 0)) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      "row \"", row.ToText(), "\": ",
      row.placed ? "a budget and a placement are both given; leave one of them out"
                 : "give a budget (budget=9.9GB), or a placement (slots, resident, retention, "
                   "head)"));
}

std::string RowSpec::ToText() const {
  std::vector<std::string> names;
  for (const Module m : targets) names.push_back(ShortName(m));
  std::string text =
      absl::StrCat("base=", base, " format=", engine::BaseFormatName(format), " batch=", batch,
                   " seq=", seq, shortest > 0 ? absl::StrCat(" shortest=", shortest) : "",
                   " r=", lora_r, " targets=", absl::StrJoin(names, ","));
  if (values != WeightValues::kNormal) {
    absl::StrAppend(&text, " values=", WeightValuesName(values));
  }
  if (precision != engine::Precision::kAuto) {
    absl::StrAppend(&text, " precision=", engine::PrecisionName(precision));
  }
  if (budget_bytes > 0) absl::StrAppend(&text, " budget=", budget_bytes, "B");
  if (placed) {
    // Retention's own words have blanks between them; in a row it is one word.
    engine::Placement weights = placement;
    engine::Retain(engine::Retention::kRecompute, &weights);
    weights.optimizer_host = false;
    const std::string slots = engine::PlacementText(weights);
    absl::StrAppend(&text, " ", absl::StripSuffix(slots, "recompute"), "retention=",
                    absl::StrReplaceAll(engine::RetentionText(placement), {{" ", ","}}));
  }
  absl::StrAppend(&text, " steps=", steps, " warmup=", warmup);
  return text;
}

}  // namespace soup::bench
