#include "bench/ablated_backend.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"

namespace soup::bench {
namespace {
constexpr char kNoCopies[] = "no-copies";
constexpr char kNoDequant[] = "no-dequant";
}  // namespace

std::string Ablation::Name() const {
  std::vector<std::string> names;
  if (no_copies) names.emplace_back(kNoCopies);
  if (no_dequant) names.emplace_back(kNoDequant);
  return absl::StrJoin(names, ",");
}

absl::StatusOr<std::vector<Ablation>> ParseAblations(absl::string_view names) {
  Ablation all;
  for (const absl::string_view name : absl::StrSplit(names, ',', absl::SkipEmpty())) {
    if (name == kNoCopies) {
      all.no_copies = true;
    } else if (name == kNoDequant) {
      all.no_dequant = true;
    } else {
      return absl::InvalidArgumentError(absl::StrCat("--ablate \"", name, "\" is not known; use ",
                                                     kNoCopies, ", ", kNoDequant, " or both"));
    }
  }
  std::vector<Ablation> runs = {{}};
  if (all.no_copies) runs.push_back({.no_copies = true});
  if (all.no_dequant) runs.push_back({.no_dequant = true});
  if (all.no_copies && all.no_dequant) runs.push_back(all);
  return runs;
}

bool AblatedBackend::Done(std::map<const void*, int64_t>& done, const void* dst, int64_t bytes) {
  int64_t& written = done[dst];
  if (written >= bytes) return true;
  written = bytes;
  return false;
}

absl::Status AblatedBackend::CopyToDeviceAsync(void* dst, const void* src, int64_t bytes,
                                               engine::StreamView stream) {
  const bool slab = stream.kind() == engine::StreamKind::kCopy;
  if (ablation_.no_copies && slab && Done(copied_, dst, bytes)) return absl::OkStatus();
  return next().CopyToDeviceAsync(dst, src, bytes, stream);
}

void AblatedBackend::Nf4Dequant(const kernels::Nf4DequantArgs& args) {
  if (ablation_.no_dequant && Done(dequantised_, args.dst, args.n)) return;
  next().Nf4Dequant(args);
}

}  // namespace soup::bench
