// StepStats as the bytes that a mirror carries: JSON, numbers that JSON lacks as null.
#include <algorithm>
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "engine/train/job_run.h"

namespace soup::engine {
namespace {

// A mirror's stats are short: of the records of a skipped step only so many are kept.
constexpr size_t kMostRecords = 64;

double Number(const nlohmann::json& j, const char* key) {
  const auto it = j.find(key);
  return it != j.end() && it->is_number() ? it->get<double>()
                                          : std::numeric_limits<double>::quiet_NaN();
}

int64_t Integer(const nlohmann::json& j, const char* key) {
  const auto it = j.find(key);
  return it != j.end() && it->is_number_integer() ? it->get<int64_t>() : 0;
}

// "training records 3, 9, counted from 1"
std::string RecordList(absl::string_view part, const std::vector<int32_t>& records) {
  std::string out = absl::StrCat(part, " record", records.size() == 1 ? " " : "s ");
  const size_t shown = std::min<size_t>(records.size(), 8);
  for (size_t i = 0; i < shown; ++i) absl::StrAppend(&out, i == 0 ? "" : ", ", records[i] + 1);
  if (shown < records.size()) absl::StrAppend(&out, " and ", records.size() - shown, " more");
  return absl::StrCat(out, ", counted from 1");
}

}  // namespace

std::string SkippedWarning(const StepStats& s) {
  return absl::StrCat("step ", s.step, " was not applied: its ",
                      std::isfinite(s.loss) ? "gradient" : "loss", " is not finite (",
                      RecordList("training", s.skipped_records),
                      "); weights and moments are as before it");
}

std::string ValidationWarning(int64_t step, const std::vector<int32_t>& records) {
  return absl::StrCat(
      "validation after step ", step, ": the loss is not finite",
      records.empty() ? "" : absl::StrCat(" (", RecordList("validation", records), ")"),
      "; lower training.learning_rate, or mend what the base or the data holds");
}

std::string EncodeStepStats(const StepStats& s) {
  std::vector<int32_t> records = s.skipped_records;
  if (records.size() > kMostRecords) records.resize(kMostRecords);
  const nlohmann::json j = {{"step", s.step},
                            {"loss", s.loss},
                            {"grad_norm", s.grad_norm},
                            {"learning_rate", s.learning_rate},
                            {"tokens", s.tokens},
                            {"supervised_tokens", s.supervised_tokens},
                            {"bucket_tail_tokens", s.bucket_tail_tokens},
                            {"padding_tokens", s.padding_tokens},
                            {"seconds", s.seconds},
                            {"stall_seconds", s.stall_seconds},
                            {"copy_bytes", s.copy_bytes},
                            {"copy_seconds", s.copy_seconds},
                            {"skipped", s.skipped},
                            {"skipped_records", records}};
  return j.dump();
}

std::optional<StepStats> DecodeStepStats(const std::string& job_id, absl::string_view bytes) {
  const auto j = nlohmann::json::parse(bytes.begin(), bytes.end(), nullptr, false);
  if (!j.is_object()) return std::nullopt;
  StepStats s;
  s.job_id = job_id;
  s.step = Integer(j, "step");
  s.loss = Number(j, "loss");
  s.grad_norm = Number(j, "grad_norm");
  s.learning_rate = Number(j, "learning_rate");
  s.tokens = Integer(j, "tokens");
  s.supervised_tokens = Integer(j, "supervised_tokens");
  s.bucket_tail_tokens = Integer(j, "bucket_tail_tokens");
  s.padding_tokens = Integer(j, "padding_tokens");
  s.seconds = Number(j, "seconds");
  s.stall_seconds = Number(j, "stall_seconds");
  s.copy_bytes = Integer(j, "copy_bytes");
  s.copy_seconds = Number(j, "copy_seconds");
  const auto skipped = j.find("skipped");
  s.skipped = skipped != j.end() && skipped->is_boolean() && skipped->get<bool>();
  const auto records = j.find("skipped_records");
  if (records != j.end() && records->is_array()) {
    for (const auto& r : *records) {
      if (r.is_number_integer()) s.skipped_records.push_back(r.get<int32_t>());
    }
  }
  if (s.skipped) s.warning = SkippedWarning(s);
  return s;
}

}  // namespace soup::engine
