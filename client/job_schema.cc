#include "client/job_schema.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "client/units.h"

namespace soup::client {
namespace {

// Ranges are those of soupd's own check (daemon/control/spec_validator.cc), told here with the
// line.
constexpr double kInt32Max = std::numeric_limits<int32_t>::max();
constexpr double kManySteps = static_cast<double>(int64_t{1} << 40);
// seed takes all of uint64; the parser reads it exactly, this bound is only for the range check.
constexpr double kUint64Max = 18446744073709551615.0;

constexpr JobKey kKeys[] = {
    {.section = "",
     .key = "name",
     .kind = KeyKind::kText,
     .meaning = "What lists and messages call the job; without it, the job file's name without "
                "`.yaml`."},

    {.section = "base",
     .key = "path",
     .kind = KeyKind::kServerPath,
     .required = true,
     .meaning =
         "The frozen model: a Hugging Face folder or a .gguf file on soupd's host, under one "
         "of its model roots. A relative path starts at the job file."},
    {.section = "base",
     .key = "format",
     .kind = KeyKind::kChoice,
     .default_text = "nf4",
     .choices = "bf16|nf4",
     .meaning = "How the frozen weights are kept: 16-bit, or 4-bit NormalFloat."},
    {.section = "base",
     .key = "double_quant",
     .kind = KeyKind::kBool,
     .default_text = "true",
     .meaning = "nf4 only: quantise the block scales too. Not allowed as true with bf16."},

    {.section = "data",
     .key = "train",
     .kind = KeyKind::kSources,
     .required = true,
     .meaning = "The training records: JSON lines, a JSON array, or CSV. Uploaded, whatever host "
                "soupd is on."},
    {.section = "data",
     .key = "format",
     .kind = KeyKind::kText,
     .default_text = "auto",
     .meaning = "What a record is: `auto`, `text`, `prompt_completion`, `messages`, `alpaca`, "
                "`sharegpt` or `input_ids`; `jsonl`, `json`, `csv` and `tsv` say what the file is, "
                "with the rest as `auto`."},
    {.section = "data",
     .key = "max_length",
     .kind = KeyKind::kWholeNumber,
     .default_text = "2048",
     .low = 2,
     .high = 1 << 20,
     .meaning = "Tokens of a record; `too_long` says what becomes of longer ones."},
    {.section = "data",
     .key = "too_long",
     .kind = KeyKind::kChoice,
     .default_text = "truncate",
     .choices = "truncate|drop|split",
     .meaning = "Records longer than `max_length` are cut at the end, left out, or split into "
                "several; counted in the report."},
    {.section = "data",
     .key = "max_errors",
     .kind = KeyKind::kWholeNumber,
     .default_text = "0",
     .high = kManySteps,
     .meaning = "Records that may be left out because they cannot be used; with one more the job "
                "fails, naming the first."},
    {.section = "data",
     .key = "packing",
     .kind = KeyKind::kBool,
     .default_text = "true",
     .meaning = "Put several records into one sequence, each seeing only itself."},
    {.section = "data",
     .key = "train_on",
     .kind = KeyKind::kChoice,
     .default_text = "responses",
     .choices = "responses|all",
     .meaning = "Which tokens count in the loss."},
    {.section = "data",
     .key = "validation",
     .kind = KeyKind::kFractionOrFile,
     .default_text = "0",
     .low = 0,
     .high = 0.5,
     .meaning = "A part of the training records held back (0: none), or a file with records of its "
                "own. Quote a file name that is a number."},

    {.section = "lora",
     .key = "r",
     .kind = KeyKind::kWholeNumber,
     .default_text = "16",
     .low = 1,
     .high = 1024,
     .meaning = "Rank of the adapter."},
    {.section = "lora",
     .key = "alpha",
     .kind = KeyKind::kReal,
     .default_text = "32",
     .high = 1e6,
     .low_open = true,
     .meaning = "Scale of the adapter: alpha / r, or alpha / sqrt(r) with rslora."},
    {.section = "lora",
     .key = "dropout",
     .kind = KeyKind::kReal,
     .default_text = "0",
     .high = 1,
     .high_open = true,
     .meaning = "Part of the adapter's inputs set to zero in training."},
    {.section = "lora",
     .key = "targets",
     .kind = KeyKind::kTargets,
     .default_text = "all-linear",
     .meaning = "The modules that get an adapter, by the last part of their name."},
    {.section = "lora",
     .key = "rslora",
     .kind = KeyKind::kBool,
     .default_text = "false",
     .meaning = "Scale by alpha / sqrt(r)."},
    {.section = "lora",
     .key = "init_from",
     .kind = KeyKind::kAdapterFolder,
     .meaning = "A folder with adapter_model.safetensors and adapter_config.json to go on from; "
                "both are uploaded. Its rank and scale must be the job's."},

    {.section = "training",
     .key = "task",
     .kind = KeyKind::kText,
     .default_text = "sft",
     .meaning = "What is trained: `sft`, supervised fine-tuning."},
    {.section = "training",
     .key = "epochs",
     .kind = KeyKind::kReal,
     .default_text = "1",
     .high = 1e6,
     .low_open = true,
     .meaning = "How often each record is seen."},
    {.section = "training",
     .key = "batch_size",
     .kind = KeyKind::kWholeNumber,
     .default_text = "8",
     .low = 1,
     .high = 1 << 20,
     .meaning = "Records of an optimizer step. soupd cuts a step into micro-batches by itself."},
    {.section = "training",
     .key = "learning_rate",
     .kind = KeyKind::kReal,
     .default_text = "2e-4",
     .high = 10,
     .low_open = true,
     .meaning = "Peak learning rate of AdamW."},
    {.section = "training",
     .key = "scheduler",
     .kind = KeyKind::kChoice,
     .default_text = "cosine",
     .choices = "constant|linear|cosine",
     .meaning = "The learning rate after the warm-up."},
    {.section = "training",
     .key = "warmup_ratio",
     .kind = KeyKind::kReal,
     .default_text = "0.03",
     .high = 1,
     .meaning = "Part of the steps in which the learning rate rises from 0."},
    {.section = "training",
     .key = "weight_decay",
     .kind = KeyKind::kReal,
     .default_text = "0.0",
     .high = 1000,
     .meaning = "AdamW's decoupled weight decay."},
    {.section = "training",
     .key = "max_grad_norm",
     .kind = KeyKind::kReal,
     .default_text = "1.0",
     .high = 1e9,
     .meaning = "Gradients are scaled down to this global norm; 0: no clipping."},
    {.section = "training",
     .key = "seed",
     .kind = KeyKind::kWholeNumber,
     .default_text = "42",
     .high = kUint64Max,
     .meaning = "Decides the adapter's start, the order of records and dropout."},
    {.section = "training",
     .key = "save_every",
     .kind = KeyKind::kWholeNumber,
     .default_text = "100",
     .high = kInt32Max,
     .meaning = "Steps between checkpoints; 0: only at the end and on pause."},
    {.section = "training",
     .key = "keep_last",
     .kind = KeyKind::kWholeNumber,
     .default_text = "2",
     .low = 1,
     .high = 1000,
     .meaning = "Checkpoints kept."},
    {.section = "training",
     .key = "max_steps",
     .kind = KeyKind::kWholeNumber,
     .default_text = "0",
     .high = kManySteps,
     .meaning = "Stop after so many steps; 0: as many as the epochs hold."},
    {.section = "training",
     .key = "adam_beta1",
     .kind = KeyKind::kReal,
     .default_text = "0.9",
     .high = 1,
     .high_open = true,
     .meaning = "AdamW's first decay rate."},
    {.section = "training",
     .key = "adam_beta2",
     .kind = KeyKind::kReal,
     .default_text = "0.999",
     .high = 1,
     .high_open = true,
     .meaning = "AdamW's second decay rate."},
    {.section = "training",
     .key = "adam_epsilon",
     .kind = KeyKind::kReal,
     .default_text = "1e-8",
     .high = 1,
     .low_open = true,
     .meaning = "AdamW's epsilon."},
    {.section = "training",
     .key = "precision",
     .kind = KeyKind::kChoice,
     .default_text = "auto",
     .choices = "auto|bf16|fp32",
     .meaning = "Type of activations on a CUDA device; `auto` goes by the model. On the CPU they "
                "are fp32, and `bf16` is refused."},

    {.section = "resources",
     .key = "vram",
     .kind = KeyKind::kSize,
     .default_text = "auto",
     .meaning = "Device memory that the job's process may use."},
    {.section = "resources",
     .key = "priority",
     .kind = KeyKind::kChoice,
     .default_text = "normal",
     .choices = "low|normal|high",
     .meaning = "Order in the queue."},
    {.section = "resources",
     .key = "time_limit",
     .kind = KeyKind::kDuration,
     .default_text = "none",
     .meaning = "Running time after which the job is stopped, after a checkpoint."},

    {.section = "",
     .key = "output",
     .kind = KeyKind::kOutputPath,
     .meaning =
         "The caller's folder for the adapter, filled by `submit --wait`, `watch`, `wait` or "
         "`fetch`. A relative path starts at the job file."},
};

// Words of other trainers for keys of ours.
struct Synonym {
  const char* word;
  const char* section;
  const char* key;
};
constexpr Synonym kSynonyms[] = {
    {"model", "base", "path"},
    {"base_model", "base", "path"},
    {"model_path", "base", "path"},
    {"model_name_or_path", "base", "path"},
    {"quantization", "base", "format"},
    {"dataset", "data", "train"},
    {"train_file", "data", "train"},
    {"max_seq_length", "data", "max_length"},
    {"max_seq_len", "data", "max_length"},
    {"cutoff_len", "data", "max_length"},
    {"sample_packing", "data", "packing"},
    {"rank", "lora", "r"},
    {"lora_r", "lora", "r"},
    {"lora_alpha", "lora", "alpha"},
    {"lora_dropout", "lora", "dropout"},
    {"target_modules", "lora", "targets"},
    {"use_rslora", "lora", "rslora"},
    {"lr", "training", "learning_rate"},
    {"num_epochs", "training", "epochs"},
    {"num_train_epochs", "training", "epochs"},
    {"lr_scheduler", "training", "scheduler"},
    {"lr_scheduler_type", "training", "scheduler"},
    {"per_device_train_batch_size", "training", "batch_size"},
    {"micro_batch_size", "training", "batch_size"},
    {"gradient_accumulation_steps", "training", "batch_size"},
    {"save_steps", "training", "save_every"},
    {"save_total_limit", "training", "keep_last"},
    {"bf16", "training", "precision"},
    {"dtype", "training", "precision"},
    {"mixed_precision", "training", "precision"},
    {"memory", "resources", "vram"},
    {"output_dir", "", "output"},
};

std::string Normal(absl::string_view word) {
  return absl::StrReplaceAll(absl::AsciiStrToLower(word), {{"-", "_"}, {" ", "_"}});
}

// Optimal string alignment: Levenshtein, and a swap of neighbours counts one.
size_t EditDistance(absl::string_view a, absl::string_view b) {
  std::vector<std::vector<size_t>> d(a.size() + 1, std::vector<size_t>(b.size() + 1));
  for (size_t i = 0; i <= a.size(); ++i) d[i][0] = i;
  for (size_t j = 0; j <= b.size(); ++j) d[0][j] = j;
  for (size_t i = 1; i <= a.size(); ++i) {
    for (size_t j = 1; j <= b.size(); ++j) {
      d[i][j] = std::min(
          {d[i - 1][j] + 1, d[i][j - 1] + 1, d[i - 1][j - 1] + (a[i - 1] == b[j - 1] ? 0 : 1)});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1]) {
        d[i][j] = std::min(d[i][j], d[i - 2][j - 2] + 1);
      }
    }
  }
  return d[a.size()][b.size()];
}

// Nearest of `choices` and its distance; SIZE_MAX for no choices.
std::pair<size_t, std::string> NearestWithDistance(absl::string_view wrong,
                                                   const std::vector<std::string>& choices) {
  // A key of a job file is short; a longer word is cut so that the work stays bounded.
  const std::string word = Normal(wrong.substr(0, 64));
  std::pair<size_t, std::string> best{SIZE_MAX, ""};
  for (const std::string& choice : choices) {
    const size_t distance = EditDistance(word, Normal(choice));
    if (distance < best.first) best = {distance, choice};
  }
  return best;
}

bool IsNear(size_t distance, absl::string_view wrong) {
  return distance <= std::max<size_t>(1, wrong.size() / 3);
}

std::vector<std::string> KeysOf(absl::string_view section) {
  std::vector<std::string> keys;
  for (const JobKey& k : kKeys) {
    if (section == k.section) keys.push_back(k.key);
  }
  if (section.empty()) {
    for (const std::string& s : JobSections()) keys.push_back(s);
  }
  return keys;
}

std::string Belongs(const std::string& section, const std::string& key) {
  if (section.empty()) {
    return absl::StrCat("did you mean \"", key, "\" at the top level, outside any section?");
  }
  return absl::StrCat("did you mean \"", key, "\" under \"", section, "\"?");
}

std::string RangeText(const JobKey& k) {
  const bool top_open = k.high >= kInt32Max;
  if (k.kind == KeyKind::kWholeNumber) {
    return top_open
               ? absl::StrCat(ExactReal(k.low), " or more")
               : absl::StrCat(static_cast<int64_t>(k.low), " to ", static_cast<int64_t>(k.high));
  }
  return absl::StrCat(
      k.low_open ? "above " : "", ExactReal(k.low), k.low_open ? ", " : " to ",
      k.high_open  ? "below "
      : k.low_open ? "at most "
                   : "",
      k.high >= 1e4 ? absl::StrCat(static_cast<int64_t>(k.high)) : ExactReal(k.high));
}

}  // namespace

absl::Span<const JobKey> JobKeys() { return kKeys; }

const JobKey* FindJobKey(absl::string_view section, absl::string_view key) {
  for (const JobKey& k : kKeys) {
    if (section == k.section && key == k.key) return &k;
  }
  return nullptr;
}

std::string FullName(const JobKey& key) {
  return *key.section == '\0' ? key.key : absl::StrCat(key.section, ".", key.key);
}

const std::vector<std::string>& JobSections() {
  static const auto* sections =
      new std::vector<std::string>{"base", "data", "lora", "training", "resources"};
  return *sections;
}

std::string TypeText(const JobKey& k) {
  switch (k.kind) {
    case KeyKind::kText:
      return "text";
    case KeyKind::kChoice:
      return absl::StrCat(
          "one of ", absl::StrJoin(std::vector<std::string>(absl::StrSplit(k.choices, '|')), ", "));
    case KeyKind::kWholeNumber:
      return absl::StrCat("a whole number, ", RangeText(k));
    case KeyKind::kReal:
      return absl::StrCat("a number, ", RangeText(k));
    case KeyKind::kBool:
      return "true or false";
    case KeyKind::kServerPath:
      return "a folder on soupd's host";
    case KeyKind::kOutputPath:
      return "a folder";
    case KeyKind::kSources:
      return "a file, or a list of files and {path, weight, format}";
    case KeyKind::kFractionOrFile:
      return absl::StrCat("a number, ", RangeText(k), ", or a file");
    case KeyKind::kAdapterFolder:
      return "a folder with an adapter";
    case KeyKind::kTargets:
      return "all-linear, or a list of module names such as [q_proj, v_proj]";
    case KeyKind::kSize:
      return "auto, or a size with a unit such as 3.4GB, 3GiB, 512MiB";
    case KeyKind::kDuration:
      return "none, or a duration with a unit such as 90s, 15m, 12h, 2d";
  }
  return "";
}

std::string Nearest(absl::string_view wrong, const std::vector<std::string>& choices) {
  const auto [distance, choice] = NearestWithDistance(wrong, choices);
  return IsNear(distance, wrong) ? choice : "";
}

std::string SuggestKey(absl::string_view section, absl::string_view wrong) {
  const std::string word = Normal(wrong);
  const std::vector<std::string> here = KeysOf(section);
  const auto [distance, nearest] = NearestWithDistance(wrong, here);
  if (distance == 0) return absl::StrCat("did you mean \"", nearest, "\"?");
  for (const JobKey& k : kKeys) {
    if (section != k.section && word == k.key) return Belongs(k.section, k.key);
  }
  for (const Synonym& s : kSynonyms) {
    if (word == s.word) {
      return section == s.section ? absl::StrCat("did you mean \"", s.key, "\"?")
                                  : Belongs(s.section, s.key);
    }
  }
  if (IsNear(distance, wrong)) return absl::StrCat("did you mean \"", nearest, "\"?");
  for (const std::string& other : JobSections()) {
    if (section == other) continue;
    const auto [far, key] = NearestWithDistance(wrong, KeysOf(other));
    if (IsNear(far, wrong)) return Belongs(other, key);
  }
  return absl::StrCat("the nearest is \"", nearest,
                      "\"; allowed here: ", absl::StrJoin(here, ", "));
}

}  // namespace soup::client
