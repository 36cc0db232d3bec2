#include "engine/train/checkpoint.h"

#include <xxhash.h>

#include <algorithm>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "engine/base/log.h"
#include "engine/base/status_macros.h"
#include "engine/io/safetensors_reader.h"
#include "engine/io/safetensors_writer.h"
#include "engine/train/staged_directory.h"
#include "nlohmann/json.hpp"

namespace soup::engine {
namespace {

using nlohmann::json;

constexpr char kStateFile[] = "state.safetensors";
constexpr char kInfoFile[] = "state.json";
constexpr absl::string_view kPrefix = "step-";
constexpr int kVersion = 1;

// The vectors of a state and the prefixes of their tensors' names.
struct Part {
  absl::string_view prefix;
  absl::Span<const float> AdapterStateView::*view;
  std::vector<float> AdapterState::*vector;
};
constexpr Part kParts[] = {
    {"", &AdapterStateView::weights, &AdapterState::weights},
    {"exp_avg.", &AdapterStateView::exp_avg, &AdapterState::exp_avg},
    {"exp_avg_sq.", &AdapterStateView::exp_avg_sq, &AdapterState::exp_avg_sq},
};

std::string Hash(absl::string_view bytes) {
  return absl::StrCat(absl::Hex(XXH3_64bits(bytes.data(), bytes.size()), absl::kZeroPad16));
}

std::string StdString(absl::string_view text) { return std::string(text.data(), text.size()); }

absl::StatusOr<std::string> SerializeState(const AdapterLayout& layout,
                                           const AdapterStateView& state) {
  std::vector<TensorToWrite> tensors;
  for (const Part& part : kParts) {
    const absl::Span<const float> vector = state.*part.view;
    if (static_cast<int64_t>(vector.size()) != layout.elements()) {
      return absl::InvalidArgumentError(absl::StrCat("a state's vector has ", vector.size(),
                                                     " elements, the adapter ", layout.elements()));
    }
    if (const std::string bad = FirstNonFinite(layout, vector); !bad.empty()) {
      return absl::FailedPreconditionError(absl::StrCat("the state of step ", state.step,
                                                        " is not written: ", part.prefix, bad,
                                                        " holds a NaN or an infinity"));
    }
    for (const AdapterTensor& t : layout.tensors()) {
      tensors.push_back({absl::StrCat(part.prefix, t.name),
                         DType::kF32,
                         {t.rows, t.cols},
                         AsBytes(layout.Slice(vector, t))});
    }
  }
  return SerializeSafetensors(tensors);
}

std::string SerializeInfo(const AdapterStateView& state, absl::string_view state_bytes) {
  json info;
  info["version"] = kVersion;
  info["step"] = state.step;
  info["optimizer_steps"] = state.optimizer_steps;
  info["skipped"] = state.skipped;
  info["plan_hash"] = absl::StrCat(absl::Hex(state.plan_hash, absl::kZeroPad16));
  info["stats_hex"] = absl::BytesToHexString(state.stats);
  info["state_bytes"] = state_bytes.size();
  info["state_xxh3"] = Hash(state_bytes);
  info["info_xxh3"] = Hash(info.dump());
  return info.dump(1) + "\n";
}

absl::Status Broken(const std::string& path, absl::string_view what) {
  return absl::DataLossError(absl::StrCat(path, ": ", what));
}

// Everything but the vectors, and the file's size and hash to expect.
absl::Status ParseInfo(const std::string& path, const std::string& text, AdapterState* state,
                       std::string* state_hash, int64_t* state_bytes) {
  json info = json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!info.is_object() || !info.contains("info_xxh3")) {
    return Broken(path, "this is not a whole checkpoint's state.json");
  }
  const json own_hash = info["info_xxh3"];
  info.erase("info_xxh3");
  if (own_hash != json(Hash(info.dump()))) return Broken(path, "its checksum does not hold");
  // Its checksum holds, so its keys are those that SerializeInfo writes, if the version is.
  if (info.value("version", 0) != kVersion) {
    return Broken(path, absl::StrCat("version ", info.value("version", 0), " is not known"));
  }
  state->step = info["step"].get<int64_t>();
  state->optimizer_steps = info["optimizer_steps"].get<int64_t>();
  state->skipped = info["skipped"].get<int64_t>();
  if (!absl::SimpleHexAtoi(info["plan_hash"].get<std::string>(), &state->plan_hash)) {
    return Broken(path, "plan_hash is not hexadecimal");
  }
  state->stats = StdString(absl::HexStringToBytes(info["stats_hex"].get<std::string>()));
  *state_bytes = info["state_bytes"].get<int64_t>();
  *state_hash = info["state_xxh3"].get<std::string>();
  return absl::OkStatus();
}

}  // namespace

CheckpointStore::CheckpointStore(FileSystem* fs, std::string directory, const AdapterLayout* layout,
                                 int32_t keep_last)
    : fs_(fs),
      directory_(std::move(directory)),
      layout_(layout),
      keep_last_(std::max(keep_last, 1)) {}

absl::StatusOr<std::string> CheckpointStore::Save(const AdapterStateView& state) {
  SOUP_ASSIGN_OR_RETURN(const std::string bytes, SerializeState(*layout_, state));
  const std::string path = JoinPath(directory_, absl::StrCat(kPrefix, state.step));
  SOUP_ASSIGN_OR_RETURN(const auto staged, StagedDirectory::Create(*fs_, path));
  SOUP_RETURN_IF_ERROR(staged->WriteFile(kStateFile, bytes));
  SOUP_RETURN_IF_ERROR(staged->WriteFile(kInfoFile, SerializeInfo(state, bytes)));
  SOUP_RETURN_IF_ERROR(staged->Publish());
  Prune(state.step);
  return path;
}

void CheckpointStore::Prune(int64_t newest_step) {
  absl::Status status = CleanUpLeftovers(*fs_, directory_);
  const auto steps = Steps();
  if (!steps.ok()) {
    status.Update(steps.status());
  } else {
    std::vector<int64_t> older;
    for (int64_t step : *steps) {
      if (step <= newest_step) older.push_back(step);
    }
    for (size_t i = 0; i + static_cast<size_t>(keep_last_) < older.size(); ++i) {
      status.Update(
          RemovePublishedDirectory(*fs_, JoinPath(directory_, absl::StrCat(kPrefix, older[i]))));
    }
  }
  // The new checkpoint stands; old ones left over cost room, nothing else.
  if (!status.ok()) {
    SOUP_LOG(kWarn, "train") << "old checkpoints are left: " << status.message();
  }
}

absl::StatusOr<std::vector<int64_t>> CheckpointStore::Steps() const {
  std::vector<int64_t> steps;
  if (!fs_->Exists(directory_)) return steps;
  SOUP_ASSIGN_OR_RETURN(const std::vector<std::string> names, fs_->ListDirectory(directory_));
  for (const std::string& name : names) {
    int64_t step = 0;
    if (absl::StartsWith(name, kPrefix) &&
        absl::SimpleAtoi(absl::string_view(name).substr(kPrefix.size()), &step) && step >= 0) {
      steps.push_back(step);
    }
  }
  std::sort(steps.begin(), steps.end());
  return steps;
}

absl::StatusOr<CheckpointStore::Loaded> CheckpointStore::LatestWhole() const {
  Loaded loaded;
  if (absl::Status status = CleanUpLeftovers(*fs_, directory_); !status.ok()) {
    loaded.warnings.push_back(
        absl::StrCat("leftovers of a save are still there: ", status.message()));
  }
  SOUP_ASSIGN_OR_RETURN(const std::vector<int64_t> steps, Steps());
  for (auto step = steps.rbegin(); step != steps.rend(); ++step) {
    absl::StatusOr<AdapterState> state = Load(*step);
    if (state.ok()) {
      loaded.state = std::move(*state);
      loaded.path = JoinPath(directory_, absl::StrCat(kPrefix, *step));
      return loaded;
    }
    loaded.warnings.push_back(
        absl::StrCat("checkpoint of step ", *step, " is skipped: ", state.status().message()));
  }
  return loaded;
}

absl::StatusOr<AdapterState> CheckpointStore::Load(int64_t step) const {
  const std::string path = JoinPath(directory_, absl::StrCat(kPrefix, step));
  const std::string state_path = JoinPath(path, kStateFile);
  const std::string info_path = JoinPath(path, kInfoFile);
  AdapterState state;
  std::string hash;
  int64_t bytes = 0;
  {
    SOUP_ASSIGN_OR_RETURN(const std::string info, fs_->ReadFile(info_path));
    SOUP_RETURN_IF_ERROR(ParseInfo(info_path, info, &state, &hash, &bytes));
    if (state.step != step) return Broken(info_path, absl::StrCat("it is of step ", state.step));
    SOUP_ASSIGN_OR_RETURN(const std::string content, fs_->ReadFile(state_path));
    if (static_cast<int64_t>(content.size()) != bytes) {
      return Broken(state_path,
                    absl::StrCat("it has ", content.size(), " bytes and needs ", bytes));
    }
    if (Hash(content) != hash) return Broken(state_path, "its checksum does not hold");
  }
  SOUP_ASSIGN_OR_RETURN(const auto file, SafetensorsFile::Open(state_path));
  for (const Part& part : kParts) {
    std::vector<float>& vector = state.*part.vector;
    vector.resize(static_cast<size_t>(layout_->elements()));
    for (const AdapterTensor& t : layout_->tensors()) {
      SOUP_ASSIGN_OR_RETURN(const std::vector<float> values,
                            file->ReadF32(absl::StrCat(part.prefix, t.name)));
      if (static_cast<int64_t>(values.size()) != t.elements()) {
        return Broken(state_path, absl::StrCat(part.prefix, t.name, " has ", values.size(),
                                               " elements, the job's adapter ", t.elements()));
      }
      std::copy(values.begin(), values.end(), vector.begin() + t.offset);
    }
  }
  return state;
}

}  // namespace soup::engine
