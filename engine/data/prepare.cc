#include "engine/data/prepare.h"

#include <algorithm>
#include <cmath>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "engine/base/file_system.h"
#include "engine/base/status_macros.h"
#include "engine/data/dataset.h"
#include "engine/data/jsonl_reader.h"
#include "engine/data/notices.h"
#include "engine/data/record_encoder.h"
#include "engine/data/record_format.h"
#include "engine/data/tokenizer.h"
#include "engine/data/tokenizer_config.h"

namespace soup::engine {
namespace {

constexpr int64_t kProgressEveryBytes = 1 << 20;
constexpr size_t kShownErrors = 5;

// A bijection on 64 bits that leaves no pattern (splitmix64's finaliser): a fixed draw a record.
uint64_t Scramble(uint64_t x) {
  x += 0x9e3779b97f4a7c15u;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

absl::Status CheckOptions(const PrepareOptions& o) {
  const auto bad = [](auto... parts) { return absl::InvalidArgumentError(absl::StrCat(parts...)); };
  if (o.train_path.empty()) return bad("no training file");
  if (o.max_length < 2) return bad("data.max_length is ", o.max_length, "; at least 2 is needed");
  if (o.train_on != "responses" && o.train_on != "all")
    return bad("data.train_on is '", o.train_on, "'; known: responses, all");
  if (!(o.validation_fraction >= 0 && o.validation_fraction <= 0.5))
    return bad("data.validation is ", o.validation_fraction, "; a fraction lies between 0 and 0.5");
  if (o.validation_fraction > 0 && !o.validation_path.empty())
    return bad("data.validation is both a fraction and a file; give one of them");
  if (o.max_line_bytes < 1) return bad("max_line_bytes is ", o.max_line_bytes);
  if (o.preview_records < 0) return bad("preview_records is ", o.preview_records);
  return absl::OkStatus();
}

// Which records of the training file are held out: the `count` with the least draws.
class HoldOut {
 public:
  static HoldOut Draw(int64_t records, double fraction, uint64_t seed) {
    HoldOut out;
    out.seed_ = Scramble(seed);
    auto count = static_cast<int64_t>(std::llround(fraction * static_cast<double>(records)));
    // A fraction that was asked for holds out something, and never everything.
    count = std::min(std::max<int64_t>(count, fraction > 0 ? 1 : 0), records - 1);
    if (count < 1) return out;
    std::vector<uint64_t> draws(static_cast<size_t>(records));
    for (size_t i = 0; i < draws.size(); ++i) draws[i] = Scramble(out.seed_ ^ i);
    std::nth_element(draws.begin(), draws.begin() + (count - 1), draws.end());
    out.limit_ = draws[static_cast<size_t>(count - 1)];
    return out;
  }
  bool Holds(int64_t index) const {
    return limit_ && Scramble(seed_ ^ static_cast<uint64_t>(index)) <= *limit_;
  }

 private:
  uint64_t seed_ = 0;
  std::optional<uint64_t> limit_;
};

class Preparer {
 public:
  Preparer(const PrepareOptions& options, const PrepareProgress& progress)
      : options_(options), progress_(progress) {}

  absl::StatusOr<PrepareReport> Run();

 private:
  enum class Part { kTrain, kValidation };

  absl::Status Tell(absl::string_view stage, int64_t done, int64_t total) const {
    if (progress_ == nullptr || progress_(stage, done, total)) return absl::OkStatus();
    return absl::CancelledError("preparation was stopped");
  }
  absl::StatusOr<std::unique_ptr<JsonlReader>> Open(const std::string& path,
                                                    const std::string& name) const {
    return JsonlReader::Open(path, name, {options_.max_line_bytes});
  }
  absl::StatusOr<int64_t> CountRecords(const std::string& path, const std::string& name) const;
  absl::Status ReadFile(const std::string& path, const std::string& name, Part part);
  absl::Status ReadRecord(const Value& record, const std::string& name, int64_t line, Part part);
  absl::Status FixFormat(const Value& record, const std::string& name, int64_t line);
  absl::Status Keep(EncodedRecord encoded, const std::string& name, Part part);
  absl::Status LeaveOut(const absl::Status& why, const std::string& name, int64_t line);
  void Preview(const EncodedRecord& encoded);
  absl::Status CheckResult() const;
  std::string HeaderJson() const;

  const PrepareOptions& options_;
  const PrepareProgress& progress_;
  std::unique_ptr<Tokenizer> tokenizer_;
  TokenizerConfig config_;
  std::unique_ptr<RecordEncoder> encoder_;
  std::unique_ptr<DatasetWriter> writer_;
  std::optional<RecordFormat> format_;
  HoldOut hold_out_;
  Notices notices_;
  PrepareReport report_;
  int64_t bad_records_ = 0;
  std::vector<std::string> first_errors_;
};

absl::StatusOr<int64_t> Preparer::CountRecords(const std::string& path,
                                               const std::string& name) const {
  SOUP_ASSIGN_OR_RETURN(const auto reader, Open(path, name));
  JsonlReader::Line line;
  int64_t records = 0;
  for (;;) {
    SOUP_ASSIGN_OR_RETURN(const bool more, reader->Next(&line));
    if (!more) return records;
    ++records;
  }
}

absl::Status Preparer::FixFormat(const Value& record, const std::string& name, int64_t line) {
  const auto detected = DetectRecordFormat(record);
  if (!detected.ok()) {
    return absl::FailedPreconditionError(
        absl::StrCat(name, " line ", line, ": ", detected.status().message()));
  }
  format_ = *detected;
  report_.dataset.format_reason = RecordFormatReason(*detected);
  return absl::OkStatus();
}

absl::Status Preparer::ReadRecord(const Value& record, const std::string& name, int64_t line,
                                  Part part) {
  const bool automatic = options_.format == "auto";
  if (!format_) SOUP_RETURN_IF_ERROR(FixFormat(record, name, line));
  if (encoder_ == nullptr) {
    auto encoder = RecordEncoder::Create(
        tokenizer_.get(), config_,
        {*format_, options_.train_on == "all", options_.max_length, options_.vocab_size});
    if (!encoder.ok()) return absl::FailedPreconditionError(encoder.status().message());
    encoder_ = *std::move(encoder);
  }
  const std::string where = absl::StrCat(name, " line ", line, ": ");
  if (automatic) {
    const auto format = DetectRecordFormat(record);
    if (!format.ok() || *format != *format_) {
      return absl::FailedPreconditionError(absl::StrCat(
          where,
          format.ok() ? absl::StrCat("a record of format ", RecordFormatName(*format))
                      : std::string(format.status().message()),
          "; the records before are ", RecordFormatName(*format_),
          ". `format: auto` takes one format: sort the records into files of their own"));
    }
  }
  auto encoded = encoder_->Encode(record);
  if (!encoded.ok())
    return absl::Status(encoded.status().code(), absl::StrCat(where, encoded.status().message()));
  encoded->tokens.line = line;
  return Keep(*std::move(encoded), name, part);
}

absl::Status Preparer::Keep(EncodedRecord encoded, const std::string& name, Part part) {
  DatasetReport& report = report_.dataset;
  const int64_t line = encoded.tokens.line;
  for (const std::string& notice : encoded.notices) notices_.Add(name, notice, line);
  if (encoded.truncated) {
    ++report.truncated_records;
    notices_.Add(name, absl::StrCat("record(s) cut to ", options_.max_length, " tokens"), line);
  }
  if (encoded.targets == 0) {
    ++report.skipped_records;
    notices_.Add(name,
                 encoded.truncated ? "record(s) skipped: no supervised token is left after the cut"
                                   : "record(s) skipped: no supervised token",
                 line);
    return absl::OkStatus();
  }
  const auto length = static_cast<int32_t>(encoded.tokens.ids.size());
  report.longest_record_tokens = std::max<int64_t>(report.longest_record_tokens, length);
  if (part == Part::kValidation) {
    ++report.validation_records;
    report_.validation_lengths.push_back(length);
    return writer_ == nullptr ? absl::OkStatus() : writer_->AddValidation(encoded.tokens);
  }
  ++report.records;
  report.tokens += length;
  report.supervised_tokens += encoded.targets;
  report_.lengths.push_back(length);
  size_t bucket = 0;
  while (length >> (bucket + 1) != 0) ++bucket;
  if (report_.length_histogram.size() <= bucket) report_.length_histogram.resize(bucket + 1);
  ++report_.length_histogram[bucket];
  if (report_.preview.size() < static_cast<size_t>(options_.preview_records)) Preview(encoded);
  return writer_ == nullptr ? absl::OkStatus() : writer_->AddTrain(encoded.tokens);
}

void Preparer::Preview(const EncodedRecord& encoded) {
  PreviewRecord out;
  out.line = encoded.tokens.line;
  out.truncated = encoded.truncated;
  for (size_t i = 0; i < encoded.tokens.ids.size(); ++i) {
    const int32_t id = encoded.tokens.ids[i];
    out.tokens.push_back({id, tokenizer_->Decode({id}), encoded.tokens.supervised[i] != 0});
  }
  report_.preview.push_back(std::move(out));
}

// Only a record's own fault (InvalidArgument) may be left out; anything else stops.
absl::Status Preparer::LeaveOut(const absl::Status& why, const std::string& name, int64_t line) {
  if (!absl::IsInvalidArgument(why)) return why;
  ++bad_records_;
  if (first_errors_.size() < kShownErrors) first_errors_.push_back(std::string(why.message()));
  if (bad_records_ > options_.max_bad_records) {
    if (options_.max_bad_records == 0) return why;
    return absl::InvalidArgumentError(absl::StrCat(
        "more than ", options_.max_bad_records,
        " records cannot be used; the first of them: ", absl::StrJoin(first_errors_, " | ")));
  }
  ++report_.dataset.skipped_records;
  notices_.Add(name, "record(s) left out because of errors", line);
  return absl::OkStatus();
}

absl::Status Preparer::ReadFile(const std::string& path, const std::string& name, Part part) {
  SOUP_ASSIGN_OR_RETURN(const auto reader, Open(path, name));
  const char* stage = part == Part::kTrain ? "tokenise train" : "tokenise validation";
  JsonlReader::Line line;
  int64_t told = 0;
  SOUP_RETURN_IF_ERROR(Tell(stage, 0, reader->file_bytes()));
  int64_t index = 0;
  for (;; ++index) {
    SOUP_ASSIGN_OR_RETURN(const bool more, reader->Next(&line));
    if (!more) break;
    const Part goes_to = hold_out_.Holds(index) ? Part::kValidation : part;
    const auto record = reader->Parse(line);
    const absl::Status status =
        record.ok() ? ReadRecord(*record, name, line.number, goes_to) : record.status();
    if (!status.ok()) SOUP_RETURN_IF_ERROR(LeaveOut(status, name, line.number));
    if (reader->bytes_read() - told >= kProgressEveryBytes) {
      told = reader->bytes_read();
      SOUP_RETURN_IF_ERROR(Tell(stage, told, reader->file_bytes()));
    }
  }
  if (index == 0) return absl::InvalidArgumentError(absl::StrCat(name, ": no records"));
  return Tell(stage, reader->file_bytes(), reader->file_bytes());
}

absl::Status Preparer::CheckResult() const {
  const DatasetReport& report = report_.dataset;
  const bool wanted = options_.validation_fraction > 0 || !options_.validation_path.empty();
  if (report.records > 0 && (!wanted || report.validation_records > 0)) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("no record is left to ",
                                                 report.records == 0 ? "train on" : "validate with",
                                                 ". ", absl::StrJoin(report.warnings, "; ")));
}

std::string Preparer::HeaderJson() const {
  const DatasetReport& r = report_.dataset;
  const nlohmann::json header = {{"records", r.records},
                                 {"validation_records", r.validation_records},
                                 {"tokens", r.tokens},
                                 {"supervised_tokens", r.supervised_tokens},
                                 {"truncated_records", r.truncated_records},
                                 {"skipped_records", r.skipped_records},
                                 {"format", r.format},
                                 {"train_on", options_.train_on},
                                 {"max_length", options_.max_length},
                                 {"seed", options_.seed}};
  return header.dump();
}

absl::StatusOr<PrepareReport> Preparer::Run() {
  SOUP_RETURN_IF_ERROR(CheckOptions(options_));
  if (options_.format != "auto") {
    SOUP_ASSIGN_OR_RETURN(format_, RecordFormatFromName(options_.format));
    report_.dataset.format_reason = "the job says so";
  }
  SOUP_RETURN_IF_ERROR(Tell("tokenizer", 0, 1));
  SOUP_ASSIGN_OR_RETURN(const std::string json, RealFileSystem().ReadFile(JoinPath(
                                                    options_.tokenizer_dir, "tokenizer.json")));
  SOUP_ASSIGN_OR_RETURN(tokenizer_, Tokenizer::Create(json, "tokenizer.json"));
  SOUP_ASSIGN_OR_RETURN(config_, LoadTokenizerConfig(options_.tokenizer_dir));
  std::vector<std::string> warnings;
  SOUP_RETURN_IF_ERROR(CheckAgreement(config_, *tokenizer_, &warnings));
  for (const std::string& warning : warnings) notices_.AddGeneral(warning);
  if (!options_.output_path.empty()) {
    SOUP_ASSIGN_OR_RETURN(writer_, DatasetWriter::Create(options_.output_path));
  }
  const std::string& train = options_.train_path;
  const std::string train_name = options_.train_name.empty() ? train : options_.train_name;
  if (options_.validation_fraction > 0) {
    SOUP_ASSIGN_OR_RETURN(const int64_t records, CountRecords(train, train_name));
    hold_out_ = HoldOut::Draw(records, options_.validation_fraction, options_.seed);
  }
  SOUP_RETURN_IF_ERROR(ReadFile(train, train_name, Part::kTrain));
  if (!options_.validation_path.empty()) {
    hold_out_ = HoldOut();
    SOUP_RETURN_IF_ERROR(ReadFile(
        options_.validation_path,
        options_.validation_name.empty() ? options_.validation_path : options_.validation_name,
        Part::kValidation));
  }
  if (format_) report_.dataset.format = RecordFormatName(*format_);
  report_.dataset.warnings = notices_.ToWarnings();
  for (const std::string& error : first_errors_)
    if (report_.dataset.warnings.size() < 32) report_.dataset.warnings.push_back(error);
  SOUP_RETURN_IF_ERROR(CheckResult());
  if (writer_ != nullptr) SOUP_RETURN_IF_ERROR(writer_->Finish(HeaderJson()));
  return std::move(report_);
}

}  // namespace

absl::StatusOr<PrepareReport> PrepareDataset(const PrepareOptions& options,
                                             const PrepareProgress& progress) {
  auto report = Preparer(options, progress).Run();
  // FailedPrecondition means "not this record's fault alone" in here; outside it is bad input.
  if (!report.ok() && absl::IsFailedPrecondition(report.status()))
    return absl::InvalidArgumentError(report.status().message());
  return report;
}

}  // namespace soup::engine
