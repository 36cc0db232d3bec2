#include "engine/data/token_record.h"

#include <limits>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "engine/base/status_macros.h"

namespace soup::engine {
namespace {

constexpr int64_t kMasked = -100;

absl::Status Bad(absl::string_view what) { return absl::InvalidArgumentError(what); }

absl::StatusOr<std::vector<int64_t>> Integers(const Value& list, absl::string_view key) {
  if (!list.is_list())
    return Bad(absl::StrCat("key '", key, "' is ", list.KindName(), " where a list is expected"));
  std::vector<int64_t> out;
  for (const Value& value : list.AsList()) {
    if (!value.is_int()) {
      const char* hint =
          value.is_list() ? "; a batch of several records? write one record a row" : "";
      return Bad(absl::StrCat("'", key, "' holds ", value.KindName(), " at place ", out.size(),
                              " where a whole number is expected", hint));
    }
    out.push_back(value.AsInt());
  }
  return out;
}

absl::Status CheckIds(const std::vector<int64_t>& ids, int64_t vocab_size) {
  if (ids.empty()) return Bad("'input_ids' is an empty list");
  const int64_t end = vocab_size > 0 ? vocab_size : std::numeric_limits<int32_t>::max();
  for (size_t i = 0; i < ids.size(); ++i) {
    if (ids[i] >= 0 && ids[i] < end) continue;
    return Bad(absl::StrCat("'input_ids' has ", ids[i], " at place ", i,
                            ", and the model's vocabulary has the ids 0 to ", end - 1,
                            ": were the records tokenised for another model?"));
  }
  return absl::OkStatus();
}

// Labels that are the next token's: some frameworks shift them, Hugging Face does not.
bool LookShifted(const std::vector<int64_t>& ids, const std::vector<int64_t>& labels) {
  size_t shifted = 0, counted = 0;
  for (size_t i = 0; i + 1 < ids.size(); ++i) {
    if (labels[i] == kMasked) continue;
    ++counted;
    shifted += labels[i] == ids[i + 1];
  }
  return counted > 0 && shifted == counted;
}

absl::Status ReadLabels(const Value& value, const std::vector<int64_t>& ids, bool train_on_all,
                        std::vector<uint8_t>* supervised) {
  SOUP_ASSIGN_OR_RETURN(const std::vector<int64_t> labels, Integers(value, "labels"));
  if (labels.size() != ids.size()) {
    return Bad(absl::StrCat("'labels' has ", labels.size(), " places and 'input_ids' has ",
                            ids.size(), "; one label a token is expected"));
  }
  for (size_t i = 0; i < ids.size(); ++i) {
    if (labels[i] == kMasked) {
      if (train_on_all) {
        return Bad(absl::StrCat("'labels' masks place ", i,
                                ", and data.train_on is all; take out the labels, or train on "
                                "responses"));
      }
      (*supervised)[i] = 0;
      continue;
    }
    if (labels[i] == ids[i]) continue;
    return Bad(absl::StrCat(
        "'labels' has ", labels[i], " at place ", i, " where 'input_ids' has ", ids[i],
        LookShifted(ids, labels)
            ? "; the labels are shifted by one: give each token its own label"
            : "; a label is its own token, or -100 for a token that is not trained on"));
  }
  return absl::OkStatus();
}

absl::Status CheckAttention(const Value& value, size_t tokens) {
  SOUP_ASSIGN_OR_RETURN(const std::vector<int64_t> mask, Integers(value, "attention_mask"));
  if (mask.size() != tokens) {
    return Bad(
        absl::StrCat("'attention_mask' has ", mask.size(), " places for ", tokens, " tokens"));
  }
  for (size_t i = 0; i < mask.size(); ++i) {
    if (mask[i] != 1) {
      return Bad(absl::StrCat("'attention_mask' has ", mask[i], " at place ", i,
                              "; leave padding out of the records"));
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status ReadTokenRecord(const Value& record, bool train_on_all, int64_t vocab_size,
                             TokenRecord* out) {
  const Value* list = record.Find("input_ids");
  if (list == nullptr) return Bad("no key 'input_ids'");
  SOUP_ASSIGN_OR_RETURN(const std::vector<int64_t> ids, Integers(*list, "input_ids"));
  SOUP_RETURN_IF_ERROR(CheckIds(ids, vocab_size));
  std::vector<uint8_t> supervised(ids.size(), 1);
  const Value* labels = record.Find("labels");
  if (labels != nullptr && !labels->is_none())
    SOUP_RETURN_IF_ERROR(ReadLabels(*labels, ids, train_on_all, &supervised));
  const Value* mask = record.Find("attention_mask");
  if (mask != nullptr && !mask->is_none()) SOUP_RETURN_IF_ERROR(CheckAttention(*mask, ids.size()));
  out->ids.assign(ids.begin(), ids.end());
  out->supervised = std::move(supervised);
  return absl::OkStatus();
}

}  // namespace soup::engine
