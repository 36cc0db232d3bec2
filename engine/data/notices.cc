#include "engine/data/notices.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace soup::engine {

void Notices::Add(absl::string_view file, absl::string_view what, int64_t line) {
  Kind* kind = nullptr;
  for (Kind& k : kinds_)
    if (absl::string_view(k.what) == what && absl::string_view(k.file) == file) kind = &k;
  if (kind == nullptr) {
    if (kinds_.size() >= kMaxKinds) {
      ++others_;
      return;
    }
    kinds_.push_back({std::string(file), std::string(what)});
    kind = &kinds_.back();
  }
  ++kind->count;
  // A JSON array may hold many records on a line.
  const bool known = !kind->lines.empty() && kind->lines.back() == line;
  if (!known && kind->lines.size() < kMaxLines) kind->lines.push_back(line);
}

void Notices::AddGeneral(absl::string_view sentence) {
  if (kinds_.size() >= kMaxKinds) {
    ++others_;
  } else {
    kinds_.push_back({"", std::string(sentence)});
  }
}

std::vector<std::string> Notices::ToWarnings() const {
  std::vector<std::string> out;
  for (const Kind& k : kinds_) {
    if (k.count == 0) {
      out.push_back(k.what);
      continue;
    }
    const bool more = k.count > static_cast<int64_t>(k.lines.size());
    out.push_back(absl::StrCat(k.file, ": ", k.count, " ", k.what, " (line",
                               k.lines.size() > 1 ? "s " : " ", absl::StrJoin(k.lines, ", "),
                               more ? ", ..." : "", ")"));
  }
  if (others_ > 0) out.push_back(absl::StrCat("and ", others_, " more notices of other kinds"));
  return out;
}

}  // namespace soup::engine
