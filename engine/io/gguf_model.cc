#include "engine/io/gguf_model.h"

#include <algorithm>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/strip.h"
#include "engine/base/status_macros.h"
#include "engine/io/gguf_config.h"
#include "engine/io/gguf_rope.h"

namespace soup::engine {
namespace {

constexpr size_t kNamesShown = 8;

// "blk.<layer>.<rest>". Numbers are written in one way only.
bool SplitBlock(absl::string_view name, int64_t* layer, absl::string_view* rest) {
  if (!absl::ConsumePrefix(&name, "blk.")) return false;
  const size_t dot = name.find('.');
  if (dot == absl::string_view::npos || !absl::SimpleAtoi(name.substr(0, dot), layer)) return false;
  *rest = name.substr(dot + 1);
  return absl::StrCat(*layer) == name.substr(0, dot);
}

// "<single>.<expert>.weight"
bool SplitExpert(absl::string_view rest, absl::string_view single, int64_t* expert) {
  if (!absl::ConsumePrefix(&rest, single) || !absl::ConsumePrefix(&rest, ".") ||
      !absl::ConsumeSuffix(&rest, ".weight") || !absl::SimpleAtoi(rest, expert))
    return false;
  return absl::StrCat(*expert) == rest;
}

const char* GlobalName(absl::string_view name) {
  if (name == "token_embd.weight") return "model.embed_tokens.weight";
  if (name == "output_norm.weight") return "model.norm.weight";
  if (name == "output.weight") return "lm_head.weight";
  return nullptr;
}

}  // namespace

absl::StatusOr<std::unique_ptr<GgufModel>> GgufModel::Open(const std::string& path,
                                                           const AllowedRoots& roots) {
  std::unique_ptr<GgufModel> out(new GgufModel);
  SOUP_ASSIGN_OR_RETURN(out->file_, GgufFile::Open(path, roots, /*tokenizer=*/false));
  const GgufFile& file = *out->file_;
  SOUP_ASSIGN_OR_RETURN(GgufShape shape, ReadGgufConfig(file));
  std::vector<std::string> unknown;
  for (const GgufTensor& tensor : file.tensors()) {
    if (IsGgufRopeTensor(tensor.name)) continue;  // in the config
    bool known = false;
    SOUP_RETURN_IF_ERROR(out->AddWeights(shape, tensor, &known));
    if (!known) unknown.push_back(tensor.name);
  }
  if (!unknown.empty()) {
    const size_t shown = std::min(unknown.size(), kNamesShown);
    return file.Error(absl::StrCat(
        unknown.size(), " tensors are not known in this architecture, so results would be wrong: ",
        absl::StrJoin(unknown.begin(), unknown.begin() + static_cast<std::ptrdiff_t>(shown), ", "),
        shown < unknown.size() ? ", ..." : ""));
  }
  std::sort(out->weights_.begin(), out->weights_.end(),
            [](const Weight& a, const Weight& b) { return a.name < b.name; });
  const auto twice =
      std::adjacent_find(out->weights_.begin(), out->weights_.end(),
                         [](const Weight& a, const Weight& b) { return a.name == b.name; });
  if (twice != out->weights_.end())
    return file.Error(absl::StrCat("tensors '", twice->tensor->name, "' and '",
                                   (twice + 1)->tensor->name, "' are both ", twice->name));
  out->config_json_ = std::move(shape.config_json);
  return out;
}

// What a tensor of the file is called in Hugging Face's; several weights where it holds several
// experts.
absl::Status GgufModel::AddWeights(const GgufShape& shape, const GgufTensor& tensor, bool* known) {
  const GgufArchitecture& arch = *shape.architecture;
  *known = true;
  const float plus = arch.norm_plus_one && absl::EndsWith(tensor.name, "_norm.weight") ? 1.0F : 0;
  if (const char* name = GlobalName(tensor.name)) {
    weights_.push_back({name, tensor.shape, &tensor, 0, 0, plus});
    return absl::OkStatus();
  }
  int64_t layer = 0;
  absl::string_view rest;
  *known = SplitBlock(tensor.name, &layer, &rest) && layer >= 0 && layer < shape.layers;
  if (!*known) return absl::OkStatus();
  const std::string prefix = absl::StrCat("model.layers.", layer, ".");
  for (const GgufPart& part : arch.parts) {
    if (rest != part.gguf) continue;
    Weight weight{absl::StrCat(prefix, part.name), tensor.shape, &tensor, 0, 0, plus};
    if (arch.interleaved && rest == "attn_q.weight") weight.heads = shape.heads;
    if (arch.interleaved && rest == "attn_k.weight") weight.heads = shape.kv_heads;
    if (weight.heads > 0 && (weight.shape.size() != 2 || weight.shape[0] % (2 * weight.heads) != 0))
      return file_->Error(absl::StrCat("tensor '", tensor.name, "' has rows that are no heads"));
    weights_.push_back(std::move(weight));
    return absl::OkStatus();
  }
  for (const GgufExpertPart& part : arch.experts) {
    const std::string experts = absl::StrCat(prefix, arch.expert_block, ".experts.");
    int64_t one = 0;
    if (SplitExpert(rest, part.single, &one) && one >= 0 && one < shape.experts) {
      weights_.push_back({absl::StrCat(experts, one, ".", part.name), tensor.shape, &tensor});
      return absl::OkStatus();
    }
    if (rest != part.merged) continue;
    if (tensor.shape.size() != 3 || tensor.shape[0] != shape.experts)
      return file_->Error(absl::StrCat("tensor '", tensor.name, "' is not one matrix for each of ",
                                       shape.experts, " experts"));
    const std::vector<int64_t> matrix = {tensor.shape[1], tensor.shape[2]};
    for (int64_t e = 0; e < shape.experts; ++e)
      weights_.push_back({absl::StrCat(experts, e, ".", part.name), matrix, &tensor, 0,
                          e * matrix[0] * matrix[1]});
    return absl::OkStatus();
  }
  *known = false;
  return absl::OkStatus();
}

const GgufModel::Weight* GgufModel::Find(absl::string_view name) const {
  const auto it = std::lower_bound(
      weights_.begin(), weights_.end(), name,
      [](const Weight& w, absl::string_view n) { return absl::string_view(w.name) < n; });
  return it != weights_.end() && absl::string_view(it->name) == name ? &*it : nullptr;
}

absl::Status GgufModel::Read(const Weight& weight, int64_t first, int64_t count, float* dst) const {
  if (weight.heads == 0) {
    SOUP_RETURN_IF_ERROR(file_->Read(*weight.tensor, weight.first + first, count, dst));
    if (weight.minus != 0) {
      for (int64_t i = 0; i < count; ++i) dst[i] -= weight.minus;
    }
    return absl::OkStatus();
  }
  const int64_t columns = weight.shape[1];
  const int64_t head = weight.shape[0] / weight.heads;  // rows of one
  while (count > 0) {
    const int64_t row = first / columns, column = first % columns;
    const int64_t n = std::min(count, columns - column);
    // Row i of half j of a head is row 2 i + j there.
    const int64_t within = row % head, half = within / (head / 2), i = within % (head / 2);
    const int64_t source = row - within + 2 * i + half;
    SOUP_RETURN_IF_ERROR(file_->Read(*weight.tensor, source * columns + column, n, dst));
    first += n;
    count -= n;
    dst += n;
  }
  return absl::OkStatus();
}

}  // namespace soup::engine
