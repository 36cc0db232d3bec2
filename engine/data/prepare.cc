#include "engine/data/prepare.h"

#include <algorithm>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/types/span.h"
#include "engine/base/file_system.h"
#include "engine/base/status_macros.h"
#include "engine/data/dataset.h"
#include "engine/data/fit_record.h"
#include "engine/data/notices.h"
#include "engine/data/record_encoder.h"
#include "engine/data/record_format.h"
#include "engine/data/record_reader.h"
#include "engine/data/source_draws.h"
#include "engine/data/tokenizer.h"
#include "engine/data/tokenizer_config.h"

namespace soup::engine {
namespace {

constexpr int64_t kProgressEveryBytes = 1 << 20;
constexpr int64_t kShownErrors = 5;
constexpr size_t kMaxWarnings = 32;

absl::Status CheckOptions(const PrepareOptions& o) {
  const auto bad = [](auto... parts) { return absl::InvalidArgumentError(absl::StrCat(parts...)); };
  if (o.train.empty()) return bad("no training file");
  for (const PrepareSource& source : o.train) {
    if (source.path.empty()) return bad("no training file");
    if (!(source.weight >= 0 && source.weight <= PrepareOptions::kMaxWeight)) {
      return bad("data.train: the weight of ", source.name, " is ", source.weight,
                 "; a weight lies between 0 and ", PrepareOptions::kMaxWeight);
    }
  }
  if (o.max_length < 2) return bad("data.max_length is ", o.max_length, "; at least 2 is needed");
  if (o.train_on != "responses" && o.train_on != "all")
    return bad("data.train_on is '", o.train_on, "'; known: responses, all");
  if (!(o.validation_fraction >= 0 && o.validation_fraction <= 0.5))
    return bad("data.validation is ", o.validation_fraction, "; a fraction lies between 0 and 0.5");
  if (o.validation_fraction > 0 && !o.validation_path.empty())
    return bad("data.validation is both a fraction and a file; give one of them");
  if (o.max_line_bytes < 1) return bad("max_line_bytes is ", o.max_line_bytes);
  if (o.preview_records < 0) return bad("preview_records is ", o.preview_records);
  if (o.max_bad_records < 0)
    return bad("data.max_errors is ", o.max_bad_records, "; 0 or more is needed");
  return absl::OkStatus();
}

enum class Part { kTrain, kValidation };

// A file while it is read.
struct OpenSource {
  std::string path;
  std::string name;
  std::string format_word;  // as the job has it
  Part part = Part::kTrain;
  FileKind kind = FileKind::kAuto;     // as the job has it
  std::optional<RecordFormat> format;  // from the job, or from the first record
  bool automatic = false;
  RecordDraw held_out;
  SourceCopies copies;
  int64_t drawn = 0;  // records that are to be trained on
  int64_t previewed = 0;
  SourceReport report;
};

class Preparer {
 public:
  Preparer(const PrepareOptions& options, const PrepareProgress& progress)
      : options_(options), progress_(progress) {}

  absl::StatusOr<PrepareReport> Run();

 private:
  absl::Status Tell(absl::string_view stage, int64_t done, int64_t total) const {
    if (progress_ == nullptr || progress_(stage, done, total)) return absl::OkStatus();
    return absl::CancelledError("preparation was stopped");
  }
  absl::Status LoadTokenizer();
  absl::StatusOr<std::unique_ptr<RecordReader>> Open(const OpenSource& source) const {
    return RecordReader::Open(source.path, source.name, {source.kind, options_.max_line_bytes});
  }
  absl::StatusOr<OpenSource> MakeSource(const std::string& path, const std::string& name,
                                        const std::string& format, Part part) const;
  absl::StatusOr<OpenSource> MakeTrainSource(int index) const;
  absl::StatusOr<int64_t> CountRecords(const OpenSource& source) const;
  absl::Status ReadSource(OpenSource source);
  absl::Status ReadRecords(RecordReader* reader, OpenSource* source);
  absl::Status ReadRecord(const Value& record, const RecordReader& reader, int64_t index,
                          OpenSource* source);
  absl::Status AgreeOnFormat(const Value& record, const std::string& where, OpenSource* source);
  absl::StatusOr<RecordEncoder*> EncoderFor(RecordFormat format);
  absl::Status Keep(EncodedRecord encoded, int64_t index, OpenSource* source);
  absl::Status Write(const std::vector<TokenRecord>& pieces, int64_t copies, Part part,
                     OpenSource* source);
  absl::Status LeaveOut(const absl::Status& why, int64_t line, OpenSource* source);
  absl::Status TooManyErrors(bool all_read) const;
  void Preview(const std::vector<TokenRecord>& pieces, bool truncated, OpenSource* source);
  void TellFormats();
  absl::Status CheckResult() const;
  std::string HeaderJson() const;

  const PrepareOptions& options_;
  const PrepareProgress& progress_;
  TooLong too_long_ = TooLong::kTruncate;
  std::unique_ptr<Tokenizer> tokenizer_;
  TokenizerConfig config_;
  std::map<RecordFormat, std::unique_ptr<RecordEncoder>> encoders_;
  std::set<RecordFormat> train_formats_;
  std::unique_ptr<DatasetWriter> writer_;
  Notices notices_;
  PrepareReport report_;
  int64_t bad_records_ = 0;
  std::vector<std::string> first_errors_;
};

absl::Status Preparer::LoadTokenizer() {
  SOUP_RETURN_IF_ERROR(Tell("tokenizer", 0, 1));
  if (!options_.tokenizer_json.empty()) {
    SOUP_ASSIGN_OR_RETURN(tokenizer_, Tokenizer::Create(options_.tokenizer_json, "tokenizer.json"));
    SOUP_ASSIGN_OR_RETURN(config_, ParseTokenizerConfig(options_.tokenizer_config_json));
  } else {
    const std::string path = JoinPath(options_.tokenizer_dir, "tokenizer.json");
    if (!RealFileSystem().Exists(path)) {
      return absl::NotFoundError(absl::StrCat(
          path,
          " is not there: it holds the tokenizer. Fetch it, or, where the model has only "
          "tokenizer.model or vocab.json, load it with transformers' AutoTokenizer and save "
          "it again"));
    }
    SOUP_ASSIGN_OR_RETURN(const std::string json, RealFileSystem().ReadFile(path));
    SOUP_ASSIGN_OR_RETURN(tokenizer_, Tokenizer::Create(json, "tokenizer.json"));
    SOUP_ASSIGN_OR_RETURN(config_, LoadTokenizerConfig(options_.tokenizer_dir));
  }
  std::vector<std::string> warnings;
  SOUP_RETURN_IF_ERROR(CheckAgreement(config_, *tokenizer_, &warnings));
  for (const std::string& warning : warnings) notices_.AddGeneral(warning);
  return absl::OkStatus();
}

// ---- sources ----

absl::StatusOr<OpenSource> Preparer::MakeSource(const std::string& path, const std::string& name,
                                                const std::string& format, Part part) const {
  OpenSource out;
  out.path = path;
  out.name = name.empty() ? path : name;
  out.format_word = format.empty() ? options_.format : format;
  out.part = part;
  out.kind = FileKindFromName(out.format_word);
  out.automatic = out.format_word == "auto" || out.kind != FileKind::kAuto;
  if (!out.automatic) {
    SOUP_ASSIGN_OR_RETURN(out.format, RecordFormatFromName(out.format_word));
    out.report.reason = "the job says so";
  }
  out.report.name = out.name;
  return out;
}

absl::StatusOr<OpenSource> Preparer::MakeTrainSource(int index) const {
  const PrepareSource& source = options_.train[static_cast<size_t>(index)];
  SOUP_ASSIGN_OR_RETURN(OpenSource out,
                        MakeSource(source.path, source.name, source.format, Part::kTrain));
  out.report.weight = source.weight;
  int64_t records = 0;
  if (options_.validation_fraction > 0 || SourceCopies::NeedsCount(source.weight)) {
    SOUP_ASSIGN_OR_RETURN(records, CountRecords(out));
  }
  if (options_.validation_fraction > 0)
    out.held_out = DrawHeldOut(records, options_.validation_fraction, options_.seed, index);
  out.copies = SourceCopies::Of(records, source.weight, options_.seed, index);
  return out;
}

absl::StatusOr<int64_t> Preparer::CountRecords(const OpenSource& source) const {
  SOUP_ASSIGN_OR_RETURN(const auto reader, Open(source));
  int64_t records = 0;
  for (;; ++records) {
    SOUP_ASSIGN_OR_RETURN(const bool more, reader->Next());
    if (!more) return records;
  }
}

absl::Status Preparer::ReadSource(OpenSource source) {
  SOUP_ASSIGN_OR_RETURN(const auto reader, Open(source));
  source.report.kind = FileKindName(reader->kind());
  SOUP_RETURN_IF_ERROR(ReadRecords(reader.get(), &source));
  if (source.report.read == 0)
    return absl::InvalidArgumentError(absl::StrCat(source.name, ": no records"));
  for (const std::string& notice : reader->notices())
    notices_.AddGeneral(absl::StrCat(source.name, ": ", notice));
  if (reader->kind() != FileKind::kJsonl) {
    source.report.reason = absl::StrCat("read as ", FileKindName(reader->kind()), " because ",
                                        reader->kind_reason(), "; ", source.report.reason);
  }
  if (source.part == Part::kTrain && source.drawn == 0 && source.report.weight > 0) {
    notices_.AddGeneral(absl::StrCat(source.name, ": its weight ", source.report.weight, " of ",
                                     source.report.read,
                                     " record(s) comes to none, so no record of it is trained on; "
                                     "raise the weight, or leave the file out"));
  }
  if (source.format) {
    source.report.format = RecordFormatName(*source.format);
    const auto encoder = encoders_.find(*source.format);
    if (encoder != encoders_.end() && !encoder->second->manner().empty())
      absl::StrAppend(&source.report.reason, "; ", encoder->second->manner());
  }
  if (!source.format) source.report.reason = "no record of it is used";
  report_.dataset.sources.push_back(std::move(source.report));
  return absl::OkStatus();
}

absl::Status Preparer::ReadRecords(RecordReader* reader, OpenSource* source) {
  const char* stage = source->part == Part::kTrain ? "tokenise train" : "tokenise validation";
  const int64_t bytes = reader->file_bytes();
  int64_t told = 0;
  SOUP_RETURN_IF_ERROR(Tell(stage, 0, bytes));
  for (int64_t index = 0;; ++index) {
    SOUP_ASSIGN_OR_RETURN(const bool more, reader->Next());
    if (!more) break;
    ++source->report.read;
    const bool held_out = source->held_out.Holds(index);
    const bool drawn = source->copies.Of(index) > 0;
    source->drawn += drawn && !held_out ? 1 : 0;
    if (held_out || drawn) {
      const auto record = reader->Parse();
      const absl::Status status =
          record.ok() ? ReadRecord(*record, *reader, index, source) : record.status();
      if (!status.ok()) SOUP_RETURN_IF_ERROR(LeaveOut(status, reader->line(), source));
    }
    if (reader->bytes_read() - told >= kProgressEveryBytes) {
      told = reader->bytes_read();
      SOUP_RETURN_IF_ERROR(Tell(stage, told, bytes));
    }
  }
  if (bad_records_ > options_.max_bad_records) return TooManyErrors(/*all_read=*/true);
  return Tell(stage, bytes, bytes);
}

// ---- records ----

// What a record of format `auto` is settles the source's format, or has to agree with it. A record
// that has none is at fault alone (InvalidArgument); one of another format is a mixture, which is
// the file's fault.
absl::Status Preparer::AgreeOnFormat(const Value& record, const std::string& where,
                                     OpenSource* source) {
  const auto detected = DetectRecordFormat(record);
  const std::string before =
      source->format ? absl::StrCat("; the records before are ", RecordFormatName(*source->format))
                     : "";
  if (!detected.ok()) {
    return absl::Status(detected.status().code(),
                        absl::StrCat(where, ": ", detected.status().message(), before));
  }
  if (source->format) {
    if (*detected == *source->format) return absl::OkStatus();
    return absl::FailedPreconditionError(absl::StrCat(
        where, ": a record of format ", RecordFormatName(*detected), before,
        ". `format: auto` takes one format: sort the records into files of their own"));
  }
  if (source->part == Part::kValidation && train_formats_.count(*detected) == 0) {
    return absl::FailedPreconditionError(absl::StrCat(
        where, ": a record of format ", RecordFormatName(*detected), "; the training records are ",
        absl::StrJoin(train_formats_, ", ", [](std::string* out, RecordFormat f) {
          absl::StrAppend(out, RecordFormatName(f));
        })));
  }
  source->format = *detected;
  source->report.reason = RecordFormatReason(*detected);
  return absl::OkStatus();
}

absl::StatusOr<RecordEncoder*> Preparer::EncoderFor(RecordFormat format) {
  std::unique_ptr<RecordEncoder>& encoder = encoders_[format];
  if (encoder == nullptr) {
    auto made = RecordEncoder::Create(tokenizer_.get(), config_,
                                      {format, options_.train_on == "all", options_.vocab_size});
    if (!made.ok()) return absl::FailedPreconditionError(made.status().message());
    encoder = *std::move(made);
  }
  return encoder.get();
}

absl::Status Preparer::ReadRecord(const Value& record, const RecordReader& reader, int64_t index,
                                  OpenSource* source) {
  const std::string where = reader.Where();
  if (source->automatic) SOUP_RETURN_IF_ERROR(AgreeOnFormat(record, where, source));
  if (source->part == Part::kTrain) train_formats_.insert(*source->format);
  SOUP_ASSIGN_OR_RETURN(RecordEncoder * encoder, EncoderFor(*source->format));
  auto encoded = encoder->Encode(record);
  if (!encoded.ok()) {
    return absl::Status(encoded.status().code(),
                        absl::StrCat(where, ": ", encoded.status().message()));
  }
  encoded->tokens.line = reader.line();
  return Keep(*std::move(encoded), index, source);
}

absl::Status Preparer::Keep(EncodedRecord encoded, int64_t index, OpenSource* source) {
  DatasetReport& report = report_.dataset;
  const int64_t line = encoded.tokens.line;
  const auto notice = [&](const std::string& what) { notices_.Add(source->name, what, line); };
  for (const std::string& what : encoded.notices) notice(what);
  const bool too_long = encoded.tokens.ids.size() > static_cast<size_t>(options_.max_length);
  const bool cut = too_long && too_long_ == TooLong::kTruncate;
  std::vector<TokenRecord> pieces =
      FitRecord(std::move(encoded.tokens), options_.max_length, too_long_);
  if (cut) {
    ++report.truncated_records;
    notice(absl::StrCat("record(s) cut to ", options_.max_length, " tokens"));
  } else if (too_long && too_long_ == TooLong::kDrop) {
    ++report.dropped_records;
    ++report.skipped_records;
    notice(absl::StrCat("record(s) left out: longer than ", options_.max_length, " tokens"));
    return absl::OkStatus();
  } else if (too_long) {
    ++report.split_records;
    notice(absl::StrCat("record(s) split into pieces of ", options_.max_length, " tokens"));
  }
  pieces.erase(std::remove_if(pieces.begin(), pieces.end(),
                              [](const TokenRecord& r) { return CountTargets(r) == 0; }),
               pieces.end());
  if (pieces.empty()) {
    ++report.skipped_records;
    notice(cut ? "record(s) skipped: no supervised token is left after the cut"
               : "record(s) skipped: no supervised token");
    return absl::OkStatus();
  }
  const bool held_out = source->held_out.Holds(index);
  const Part part = held_out ? Part::kValidation : source->part;
  if (part == Part::kTrain && source->previewed < options_.preview_records)
    Preview(pieces, cut, source);
  return Write(pieces, part == Part::kTrain ? source->copies.Of(index) : 1, part, source);
}

absl::Status Preparer::Write(const std::vector<TokenRecord>& pieces, int64_t copies, Part part,
                             OpenSource* source) {
  DatasetReport& report = report_.dataset;
  for (int64_t copy = 0; copy < copies; ++copy) {
    for (const TokenRecord& piece : pieces) {
      const auto length = static_cast<int32_t>(piece.ids.size());
      report.longest_record_tokens = std::max<int64_t>(report.longest_record_tokens, length);
      if (part == Part::kValidation) {
        ++report.validation_records;
        ++source->report.validation_records;
        report_.validation_lengths.push_back(length);
        if (writer_ != nullptr) SOUP_RETURN_IF_ERROR(writer_->AddValidation(piece));
        continue;
      }
      ++report.records;
      ++source->report.records;
      report.tokens += length;
      source->report.tokens += length;
      report.supervised_tokens += CountTargets(piece);
      report_.lengths.push_back(length);
      size_t bucket = 0;
      while (length >> (bucket + 1) != 0) ++bucket;
      if (report_.length_histogram.size() <= bucket) report_.length_histogram.resize(bucket + 1);
      ++report_.length_histogram[bucket];
      if (writer_ != nullptr) SOUP_RETURN_IF_ERROR(writer_->AddTrain(piece));
    }
  }
  return absl::OkStatus();
}

// The text of each token. A character whose bytes lie in several tokens stands at the last of them,
// and nothing at the others; bytes that come to no character are U+FFFD.
std::vector<std::string> TextOfEach(const Tokenizer& tokenizer, absl::Span<const int32_t> ids) {
  constexpr size_t kLongestRun = 16;  // tokens
  const auto whole = [](absl::string_view s) { return !absl::StrContains(s, "\xef\xbf\xbd"); };
  std::vector<std::string> out(ids.size());
  for (size_t i = 0; i < ids.size();) {
    std::string text = tokenizer.Decode(ids.subspan(i, 1));
    size_t taken = 1;
    const size_t longest = std::min(kLongestRun, ids.size() - i);
    for (size_t n = 2; !whole(text) && n <= longest; ++n) {
      std::string run = tokenizer.Decode(ids.subspan(i, n));
      if (!whole(run)) continue;
      text = std::move(run);
      taken = n;
    }
    out[i + taken - 1] = std::move(text);
    i += taken;
  }
  return out;
}

void Preparer::Preview(const std::vector<TokenRecord>& pieces, bool truncated, OpenSource* source) {
  const TokenRecord& shown = pieces.front();
  PreviewRecord out;
  out.source = source->name;
  out.line = shown.line;
  out.truncated = truncated;
  out.pieces = static_cast<int32_t>(pieces.size());
  std::vector<std::string> texts = TextOfEach(*tokenizer_, shown.ids);
  for (size_t i = 0; i < shown.ids.size(); ++i) {
    out.tokens.push_back({shown.ids[i], std::move(texts[i]), i > 0 && shown.supervised[i] != 0});
  }
  report_.preview.push_back(std::move(out));
  ++source->previewed;
}

// ---- errors ----

absl::Status Preparer::TooManyErrors(bool all_read) const {
  if (bad_records_ == 1) return absl::InvalidArgumentError(first_errors_.front());
  return absl::InvalidArgumentError(
      absl::StrCat(all_read ? "" : "at least ", bad_records_, " records cannot be used, more than ",
                   options_.max_bad_records,
                   " (data.max_errors); the first of them: ", absl::StrJoin(first_errors_, " | ")));
}

// Only a record's own fault (InvalidArgument) may be left out; anything else stops. Past the limit
// reading goes on for a few more, so that people see what there is to mend, not the first only.
absl::Status Preparer::LeaveOut(const absl::Status& why, int64_t line, OpenSource* source) {
  if (!absl::IsInvalidArgument(why)) {
    return bad_records_ > options_.max_bad_records ? TooManyErrors(/*all_read=*/false) : why;
  }
  ++bad_records_;
  if (static_cast<int64_t>(first_errors_.size()) < kShownErrors)
    first_errors_.push_back(std::string(why.message()));
  if (bad_records_ >= options_.max_bad_records + kShownErrors)
    return TooManyErrors(/*all_read=*/false);
  ++source->report.error_records;
  ++report_.dataset.error_records;
  ++report_.dataset.skipped_records;
  notices_.Add(source->name, "record(s) left out because of errors", line);
  return absl::OkStatus();
}

absl::Status Preparer::CheckResult() const {
  const DatasetReport& report = report_.dataset;
  const bool wanted = options_.validation_fraction > 0 || !options_.validation_path.empty();
  if (report.records > 0 && (!wanted || report.validation_records > 0)) return absl::OkStatus();
  const std::string why = !report.warnings.empty()
                              ? absl::StrCat(". ", absl::StrJoin(report.warnings, "; "))
                              : ": the files are too short for data.validation and their weights";
  return absl::InvalidArgumentError(absl::StrCat(
      "no record is left to ", report.records == 0 ? "train on" : "validate with", why));
}

// ---- the whole ----

void Preparer::TellFormats() {
  DatasetReport& report = report_.dataset;
  std::vector<std::string> formats;
  std::string reasons;
  for (const SourceReport& source : report.sources) {
    if (!source.format.empty() &&
        std::find(formats.begin(), formats.end(), source.format) == formats.end())
      formats.push_back(source.format);
    absl::StrAppend(&reasons, reasons.empty() ? "" : "; ", source.name, ": ", source.reason);
  }
  report.format = absl::StrJoin(formats, ", ");
  report.format_reason =
      options_.train.size() == 1 ? report.sources.front().reason : std::move(reasons);
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
                                 {"too_long", options_.too_long},
                                 {"seed", options_.seed}};
  return header.dump();
}

absl::StatusOr<PrepareReport> Preparer::Run() {
  SOUP_RETURN_IF_ERROR(CheckOptions(options_));
  SOUP_ASSIGN_OR_RETURN(too_long_, TooLongFromName(options_.too_long));
  // What the options say of formats, before anything is read.
  for (const PrepareSource& source : options_.train)
    SOUP_RETURN_IF_ERROR(
        MakeSource(source.path, source.name, source.format, Part::kTrain).status());
  SOUP_RETURN_IF_ERROR(LoadTokenizer());
  if (!options_.output_path.empty()) {
    SOUP_ASSIGN_OR_RETURN(writer_, DatasetWriter::Create(options_.output_path));
  }
  for (int i = 0; i < static_cast<int>(options_.train.size()); ++i) {
    SOUP_ASSIGN_OR_RETURN(OpenSource source, MakeTrainSource(i));
    SOUP_RETURN_IF_ERROR(ReadSource(std::move(source)));
  }
  if (!options_.validation_path.empty()) {
    SOUP_ASSIGN_OR_RETURN(
        OpenSource source,
        MakeSource(options_.validation_path, options_.validation_name, "", Part::kValidation));
    SOUP_RETURN_IF_ERROR(ReadSource(std::move(source)));
    // Uploads lie by their content's hash: the same path is the same content.
    for (const PrepareSource& train : options_.train) {
      if (train.path != options_.validation_path || train.weight == 0) continue;
      notices_.AddGeneral(absl::StrCat(options_.validation_name, ": data.validation holds what ",
                                       train.name,
                                       " trains on, so its loss says nothing of other "
                                       "records"));
    }
  }
  TellFormats();
  report_.dataset.warnings = notices_.ToWarnings();
  for (const std::string& error : first_errors_)
    if (report_.dataset.warnings.size() < kMaxWarnings) report_.dataset.warnings.push_back(error);
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
