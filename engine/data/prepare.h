// From a user's files to a prepared dataset: reads records, renders and tokenises each, marks what
// is supervised, writes dataset.sds. `soup-worker --prepare` runs this apart from soupd, since the
// files, the template and the tokenizer are a stranger's.
//
// Files: JSON lines, a JSON array, CSV (record_reader.h). Records: `text` {"text"},
// `prompt_completion` {"prompt", "completion"}, `messages` {"messages": [{"role", "content",
// "tool_calls"?}, ...], "tools"?}, `alpaca` and `sharegpt` (record_conversion.h), `input_ids`
// (token_record.h). `auto` takes the one that the first record of a file has, says why, and refuses
// a file that mixes them; a record with the keys of none is a bad record.
//
// Tokens: text and prompt/completion rows get one BOS (when the tokenizer has one) and one EOS;
// prompt and completion are tokenised each alone; messages go through the model's own chat template
// with special tokens off, and an assistant turn's words and end token are supervised
// (train_on = "responses") or every token (train_on = "all"; text rows are always supervised
// whole). Token ids stay as they are. Records longer than max_length are cut, left out or split
// (fit_record.h). A record that is left with no supervised target is skipped and counted.
//
// Several sources: a source's weight says how often an epoch holds its records (source_draws.h);
// records keep the order of sources and files.
//
// Memory: the tokenizer, 16 bytes a record, and one record at a time. Thread-safe: calls with
// different output paths may run at once.
#ifndef SOUP_ENGINE_DATA_PREPARE_H_
#define SOUP_ENGINE_DATA_PREPARE_H_

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace soup::engine {

// A file of training records.
struct PrepareSource {
  std::string path;
  std::string name;    // the user's name for it, for messages; empty: path
  std::string format;  // empty: PrepareOptions::format
  double weight = 1;   // 0 .. kMaxWeight; 0 takes part only in what is read and counted
};

struct PrepareOptions {
  static constexpr double kMaxWeight = 100;

  std::string tokenizer_dir;  // tokenizer.json, tokenizer_config.json, chat_template.jinja
  // The texts of the first two, when there is no such folder (a GGUF). Empty: the folder's.
  std::string tokenizer_json;
  std::string tokenizer_config_json;
  std::vector<PrepareSource> train;  // at least one
  std::string validation_path;       // empty: no validation file
  std::string validation_name;
  double validation_fraction = 0;  // 0 .. 0.5, by record of each source, drawn from `seed`; not
                                   // with a file

  // auto | a record's format | jsonl, json, csv, tsv: that kind of file, with the format of auto.
  std::string format = "auto";
  std::string train_on = "responses";  // responses | all
  int32_t max_length = 2048;           // tokens, BOS and EOS included
  std::string too_long = "truncate";   // truncate | drop | split
  uint64_t seed = 42;
  int64_t vocab_size = 0;  // ids must lie below; 0: not checked

  std::string output_path;      // prepared dataset; empty: report only
  int32_t preview_records = 0;  // training records of each source to show token by token
  int64_t max_line_bytes = 8 << 20;
  int64_t max_bad_records = 0;  // data.max_errors: records that may be left out because of their
                                // own errors; past it the first errors are returned
};

struct PreviewToken {
  int32_t id = 0;
  // As decoded alone; a character of several tokens stands at its last, with nothing at the others;
  // U+FFFD stands for bytes that come to no character.
  std::string text;
  bool supervised = false;  // a target: never the first of the record
};

struct PreviewRecord {
  std::string source;  // the user's name for the file
  int64_t line = 0;
  std::vector<PreviewToken> tokens;
  bool truncated = false;
  int32_t pieces = 1;  // of a split record; the first is shown
};

// What became of one file.
struct SourceReport {
  std::string name;
  std::string kind;    // jsonl | json | csv | tsv
  std::string format;  // what was taken; empty where no record told
  std::string reason;  // and why, or that no record is used
  double weight = 1;
  int64_t read = 0;                // records in the file
  int64_t records = 0;             // training records made of them, as often as the weight says
  int64_t validation_records = 0;  // held out
  int64_t tokens = 0;              // of the training records
  int64_t error_records = 0;
};

// Fields as soup.v1.DatasetReport, counted over training records unless said otherwise.
struct DatasetReport {
  int64_t records = 0;
  int64_t validation_records = 0;
  int64_t tokens = 0;
  int64_t supervised_tokens = 0;  // targets: supervised and not first of their record
  // Each record of a file once, training and validation:
  int64_t truncated_records = 0;      // cut to max_length
  int64_t dropped_records = 0;        // left out as too long
  int64_t split_records = 0;          // made several of
  int64_t error_records = 0;          // left out because of their own errors
  int64_t skipped_records = 0;        // not used: no supervised target, too long, or bad
  int64_t longest_record_tokens = 0;  // training and validation, after the cut
  std::string format;                 // what was taken
  std::string format_reason;          // and why
  std::vector<std::string> warnings;  // bounded: at most 32, the lines they name at most 10 each
  std::vector<SourceReport> sources;  // in the order of the options, the validation file last
};

struct PrepareReport {
  DatasetReport dataset;
  std::vector<int32_t> lengths;             // tokens of each training record, in order
  std::vector<int32_t> validation_lengths;  // tokens of each validation record
  std::vector<PreviewRecord> preview;
  std::vector<int64_t> length_histogram;  // training records with a length in [2^i, 2^(i+1))
};

// stage: "tokenizer", "tokenise train", "tokenise validation"; done and total in bytes of a file.
// Return false to stop (status Cancelled).
using PrepareProgress = std::function<bool(absl::string_view stage, int64_t done, int64_t total)>;

// Errors: InvalidArgument (options, data, tokenizer, template; names file, line and remedy),
// NotFound, ResourceExhausted (disk), Cancelled. After an error output_path is as it was.
absl::StatusOr<PrepareReport> PrepareDataset(const PrepareOptions& options,
                                             const PrepareProgress& progress = nullptr);

}  // namespace soup::engine

#endif  // SOUP_ENGINE_DATA_PREPARE_H_
