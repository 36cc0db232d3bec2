#include "engine/io/gguf_model.h"

#include <algorithm>
#include <map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "engine/base/status_macros.h"
#include "engine/io/gguf_config.h"

namespace soup::engine {
namespace {

constexpr size_t kNamesShown = 8;

// GGUF's names to Hugging Face's, with the heads of those whose rows are to be put in order.
struct Named {
  std::string name;
  int64_t heads = 0;
};

std::map<std::string, Named> Names(const GgufShape& shape) {
  std::map<std::string, Named> out = {{"token_embd.weight", {"model.embed_tokens.weight"}},
                                      {"output_norm.weight", {"model.norm.weight"}},
                                      {"output.weight", {"lm_head.weight"}}};
  for (int64_t layer = 0; layer < shape.layers; ++layer) {
    for (const GgufArchitecture::Part& part : shape.architecture->parts) {
      Named named{absl::StrCat("model.layers.", layer, ".", part.name)};
      const absl::string_view gguf = part.gguf;
      if (shape.architecture->interleaved && gguf == "attn_q.weight") named.heads = shape.heads;
      if (shape.architecture->interleaved && gguf == "attn_k.weight") named.heads = shape.kv_heads;
      out.emplace(absl::StrCat("blk.", layer, ".", part.gguf), std::move(named));
    }
  }
  return out;
}

}  // namespace

absl::StatusOr<std::unique_ptr<GgufModel>> GgufModel::Open(const std::string& path,
                                                           const AllowedRoots& roots) {
  std::unique_ptr<GgufModel> out(new GgufModel);
  SOUP_ASSIGN_OR_RETURN(out->file_, GgufFile::Open(path, roots, /*tokenizer=*/false));
  const GgufFile& file = *out->file_;
  SOUP_ASSIGN_OR_RETURN(GgufShape shape, ReadGgufConfig(file));
  // Names are made for as many layers as the file could hold tensors of.
  if (shape.layers > static_cast<int64_t>(file.tensors().size()))
    return file.Error(absl::StrCat("the metadata tells of ", shape.layers,
                                   " layers, but there are ", file.tensors().size(), " tensors"));
  const std::map<std::string, Named> names = Names(shape);
  std::vector<std::string> unknown;
  for (const GgufTensor& tensor : file.tensors()) {
    if (tensor.name == "rope_freqs.weight") continue;  // in the config
    const auto known = names.find(tensor.name);
    if (known == names.end()) {
      unknown.push_back(tensor.name);
      continue;
    }
    Weight weight{known->second.name, tensor.shape, &tensor, known->second.heads};
    if (weight.heads > 0 && (weight.shape.size() != 2 || weight.shape[0] % (2 * weight.heads) != 0))
      return file.Error(absl::StrCat("tensor '", tensor.name, "' has rows that are no heads"));
    out->weights_.push_back(std::move(weight));
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
  out->config_json_ = std::move(shape.config_json);
  return out;
}

const GgufModel::Weight* GgufModel::Find(absl::string_view name) const {
  const auto it = std::lower_bound(
      weights_.begin(), weights_.end(), name,
      [](const Weight& w, absl::string_view n) { return absl::string_view(w.name) < n; });
  return it != weights_.end() && absl::string_view(it->name) == name ? &*it : nullptr;
}

absl::Status GgufModel::Read(const Weight& weight, int64_t first, int64_t count, float* dst) const {
  if (weight.heads == 0) return file_->Read(*weight.tensor, first, count, dst);
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
