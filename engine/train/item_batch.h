// The rows of one micro-batch as the pass reads them: packed tokens, positions that restart with
// each record, sequence bounds, and the rows whose next token is a supervised target. Plain values.
#ifndef SOUP_ENGINE_TRAIN_ITEM_BATCH_H_
#define SOUP_ENGINE_TRAIN_ITEM_BATCH_H_

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "engine/data/dataset.h"
#include "engine/plan/batch_schedule.h"

namespace soup::engine {

struct ItemBatch {
  int64_t bucket = 0;               // T: rows, tail included
  int64_t tokens = 0;               // rows before the tail
  int64_t padding = 0;              // of these, rows that belong to no record: none
  std::vector<int32_t> ids;         // [T]; tail 0, its rows are zeroed after the gather
  std::vector<int32_t> positions;   // [T]; tail 0
  std::vector<int32_t> rows;        // rows whose next token, of the same record, is supervised
  std::vector<int32_t> targets;     // that token; size of rows
  std::vector<int32_t> cu_seqlens;  // [S + 1]
  std::vector<int32_t> row_record;  // the record of each of `rows`
};

// Targets of a record: supervised tokens but the first.
int64_t CountTargets(const RecordView& record);

// `validation` chooses the dataset's part that the micro-batch's records index. Errors:
// InvalidArgument (an id outside the vocabulary, a record index that does not exist; names the
// record; more tokens than the bucket).
absl::StatusOr<ItemBatch> MakeItemBatch(const PreparedDataset& dataset, bool validation,
                                        const MicroBatch& micro_batch, int64_t bucket,
                                        int64_t vocab);

}  // namespace soup::engine

#endif  // SOUP_ENGINE_TRAIN_ITEM_BATCH_H_
