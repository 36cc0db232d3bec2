// A prepared dataset: records as token ids with a supervision flag each, in one file that the
// training worker maps. Written by `soup-worker --prepare`, read by the engine; soupd never opens
// it.
//
// File, little-endian: magic "SOUPDS01", u64 header bytes, header JSON (report), then u64 training
// records, u64 validation records, u64 tokens; u64 offsets [records + 1] (in tokens, training
// records first); i32 ids [tokens]; u8 supervised [tokens]; u64 XXH3-64 of everything before it. A
// target is a token with its flag set that is not the first of its record: its prediction is made
// from the token before it. PreparedDataset is immutable: any thread.
#ifndef SOUP_ENGINE_DATA_DATASET_H_
#define SOUP_ENGINE_DATA_DATASET_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"

namespace soup::engine {

struct TokenRecord {
  std::vector<int32_t> ids;
  std::vector<uint8_t> supervised;  // same size; 1: trained on
  int64_t line = 0;                 // in the user's file, from 1; 0: unknown
};

struct RecordView {
  absl::Span<const int32_t> ids;
  absl::Span<const uint8_t> supervised;
};

class PreparedDataset {
 public:
  // Maps and verifies (size, checksum). Errors: NotFound, DataLoss (names the path and what is
  // wrong).
  static absl::StatusOr<std::unique_ptr<PreparedDataset>> Open(const std::string& path);
  // From memory: golden data and tests.
  static std::unique_ptr<PreparedDataset> FromRecords(std::vector<TokenRecord> train,
                                                      std::vector<TokenRecord> validation = {});
  ~PreparedDataset();

  int64_t train_records() const;
  int64_t validation_records() const;
  RecordView train(int64_t i) const;
  RecordView validation(int64_t i) const;
  std::vector<int32_t> TrainLengths() const;
  std::vector<int32_t> ValidationLengths() const;

 private:
  PreparedDataset();
  struct Rep;
  std::unique_ptr<Rep> rep_;
};

// Streams records to `path` (temporary, fsync, rename in Finish). Not thread-safe. Memory: offsets
// and a small buffer.
class DatasetWriter {
 public:
  static absl::StatusOr<std::unique_ptr<DatasetWriter>> Create(const std::string& path);
  ~DatasetWriter();  // an unfinished file is removed
  absl::Status AddTrain(const TokenRecord& record);
  absl::Status AddValidation(const TokenRecord& record);
  absl::Status Finish(const std::string& report_json);

 private:
  DatasetWriter();
  struct Rep;
  std::unique_ptr<Rep> rep_;
};

}  // namespace soup::engine

#endif  // SOUP_ENGINE_DATA_DATASET_H_
