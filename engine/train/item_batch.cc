#include "engine/train/item_batch.h"

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace soup::engine {

int64_t CountTargets(const RecordView& record) {
  int64_t n = 0;
  for (size_t i = 1; i < record.supervised.size(); ++i) n += record.supervised[i] != 0;
  return n;
}

absl::StatusOr<ItemBatch> MakeItemBatch(const PreparedDataset& dataset, bool validation,
                                        const MicroBatch& micro_batch, int64_t bucket,
                                        int64_t vocab) {
  ItemBatch batch;
  batch.bucket = bucket;
  batch.ids.reserve(bucket);
  batch.positions.reserve(bucket);
  batch.cu_seqlens.push_back(0);
  int64_t of_records = 0;
  const int64_t records = validation ? dataset.validation_records() : dataset.train_records();
  for (const int32_t index : micro_batch.records) {
    if (index < 0 || index >= records) {
      return absl::InvalidArgumentError(
          absl::StrCat("record ", index, " is not in the dataset of ", records,
                       validation ? " validation" : " training", " records"));
    }
    const RecordView record = validation ? dataset.validation(index) : dataset.train(index);
    const int32_t first = static_cast<int32_t>(batch.ids.size());
    of_records += static_cast<int64_t>(record.ids.size());
    for (size_t i = 0; i < record.ids.size(); ++i) {
      const int32_t id = record.ids[i];
      if (id < 0 || id >= vocab) {
        return absl::InvalidArgumentError(absl::StrCat("record ", index, ", token ", i, ": id ", id,
                                                       " is outside the vocabulary of ", vocab));
      }
      if (i > 0 && record.supervised[i] != 0) {
        batch.rows.push_back(first + static_cast<int32_t>(i) - 1);
        batch.targets.push_back(id);
        batch.row_record.push_back(index);
      }
      batch.ids.push_back(id);
      batch.positions.push_back(static_cast<int32_t>(i));
    }
    batch.cu_seqlens.push_back(static_cast<int32_t>(batch.ids.size()));
  }
  batch.tokens = static_cast<int64_t>(batch.ids.size());
  batch.padding = batch.tokens - of_records;
  if (batch.tokens > bucket || batch.tokens == 0) {
    return absl::InvalidArgumentError(absl::StrCat("a micro-batch of ", batch.tokens,
                                                   " tokens does not fit its bucket of ", bucket));
  }
  batch.ids.resize(bucket, 0);
  batch.positions.resize(bucket, 0);
  return batch;
}

}  // namespace soup::engine
