#include "cache/slab_assembler.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "cache/checkpoint.h"
#include "cache/parallel.h"
#include "engine/base/status_macros.h"
#include "engine/model/slab_contents.h"
#include "kernels/cpu/nf4_quantize.h"

namespace soup::cache {
namespace {

using engine::SlabTensor;

constexpr size_t kNamesShown = 8;
// Elements that one thread reads, checks and quantises at a time; whole quantisation blocks.
constexpr int64_t kUnitElements = int64_t{1} << 20;
static_assert(kUnitElements % engine::kNf4Block == 0);
constexpr size_t kSlabAlignment = 256;

std::string Listed(const std::vector<std::string>& names) {
  const size_t shown = std::min(names.size(), kNamesShown);
  std::string text = absl::StrJoin(names.begin(), names.begin() + shown, ", ");
  if (shown < names.size()) absl::StrAppend(&text, " and ", names.size() - shown, " more");
  return text;
}

// Names, shapes and types against what the spec says; everything that headers tell.
absl::Status CheckTensors(const Checkpoint& checkpoint, const engine::ModelSpec& spec,
                          engine::BaseFormat format, std::vector<std::string>* warnings) {
  std::set<std::string> expected;
  std::vector<std::string> missing, unknown;
  int64_t rounded = 0;
  for (int64_t slab = 0; slab < engine::SlabCount(spec); ++slab) {
    for (const SlabTensor& t : engine::SlabContents(spec, format, slab)) {
      expected.insert(t.name);
      const Checkpoint::Weight* weight = checkpoint.Find(t.name);
      if (weight == nullptr) {
        missing.push_back(t.name);
        continue;
      }
      SOUP_RETURN_IF_ERROR(CheckWeight(*weight, t.shape));
      if (!weight->exact) ++rounded;
    }
  }
  if (!missing.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat(checkpoint.path(), ": the checkpoint lacks ", missing.size(), " of ",
                     expected.size(), " tensors that its config.json asks for: ", Listed(missing)));
  }
  for (const Checkpoint::Weight& weight : checkpoint.weights()) {
    if (expected.count(weight.name) == 0 && !engine::IsDerivedTensor(spec, weight.name))
      unknown.push_back(weight.name);
  }
  if (!unknown.empty()) {
    return absl::InvalidArgumentError(absl::StrCat(
        checkpoint.path(), ": the checkpoint has ", unknown.size(), " tensors that a ", spec.family,
        " model with this config.json does not use, so its results would be wrong: ",
        Listed(unknown)));
  }
  if (rounded > 0) {
    warnings->push_back(absl::StrCat(rounded, " of ", expected.size(),
                                     " tensors are not bf16 and are rounded to it"));
  }
  return absl::OkStatus();
}

// A range of one tensor's elements, the work of one thread at a time.
struct Unit {
  const SlabTensor* tensor;
  const Checkpoint* checkpoint;
  const Checkpoint::Weight* weight;
  int64_t first;
  int64_t count;
  float* absmax;  // of the whole matrix; nf4 formats only
};

std::vector<Unit> CutIntoUnits(const SlabTensor& tensor, const Checkpoint& checkpoint,
                               float* absmax) {
  const Checkpoint::Weight* const weight = checkpoint.Find(tensor.name);
  std::vector<Unit> units;
  const int64_t n = weight->elements();
  for (int64_t first = 0; first < n; first += kUnitElements) {
    units.push_back(
        {&tensor, &checkpoint, weight, first, std::min(kUnitElements, n - first), absmax});
  }
  return units;
}

absl::Status QuantizeUnit(const Unit& unit, absl::Span<uint8_t> dst) {
  std::vector<uint16_t> weights(static_cast<size_t>(unit.count));
  SOUP_RETURN_IF_ERROR(unit.checkpoint->Read(*unit.weight, unit.first, unit.count, weights.data()));
  kernels::cpu::Nf4QuantizeArgs args;
  args.src_bf16 = weights.data();
  args.n = unit.count;
  args.packed = dst.data() + unit.tensor->matrix.data_offset + unit.first / 2;
  args.absmax = unit.absmax + unit.first / engine::kNf4Block;
  const int64_t blocks = (unit.count + engine::kNf4Block - 1) / engine::kNf4Block;
  const int64_t bad = kernels::cpu::Nf4QuantizeBlocks(args, 0, blocks);
  return bad < 0 ? absl::OkStatus() : NotFinite(*unit.weight, unit.first + bad);
}

absl::Status AssembleUnit(const Unit& unit, engine::BaseFormat format, absl::Span<uint8_t> dst) {
  const SlabTensor& t = *unit.tensor;
  if (t.is_linear && format != engine::BaseFormat::kBf16) return QuantizeUnit(unit, dst);
  const int64_t offset = t.is_linear ? t.matrix.data_offset : t.offset;
  uint16_t* out = reinterpret_cast<uint16_t*>(dst.data() + offset) + unit.first;
  return unit.checkpoint->Read(*unit.weight, unit.first, unit.count, out);
}

// A tied model may carry a head all the same; when it holds other values, one of the two is wrong.
absl::Status CheckTiedHead(const Checkpoint& checkpoint, const engine::ModelSpec& spec,
                           const TaskControl& control) {
  const Checkpoint::Weight* head = checkpoint.Find("lm_head.weight");
  const Checkpoint::Weight* embedding = checkpoint.Find("model.embed_tokens.weight");
  if (!spec.tied_head || head == nullptr) return absl::OkStatus();
  SOUP_RETURN_IF_ERROR(CheckWeight(*head, {spec.vocab, spec.hidden}));
  const int64_t n = spec.vocab * spec.hidden;
  return ParallelFor((n + kUnitElements - 1) / kUnitElements, control, [&](int64_t i) {
    const int64_t first = i * kUnitElements;
    const int64_t count = std::min(kUnitElements, n - first);
    std::vector<uint16_t> a(static_cast<size_t>(count)), b(static_cast<size_t>(count));
    SOUP_RETURN_IF_ERROR(checkpoint.Read(*head, first, count, a.data()));
    SOUP_RETURN_IF_ERROR(checkpoint.Read(*embedding, first, count, b.data()));
    if (a == b) return absl::OkStatus();
    return absl::InvalidArgumentError(absl::StrCat(
        checkpoint.path(),
        ": config.json says tie_word_embeddings, but lm_head.weight holds other values "
        "than model.embed_tokens.weight: set it to false, or remove the tensor"));
  });
}

}  // namespace

struct SlabAssembler::Rep {
  std::unique_ptr<Checkpoint> checkpoint;
  engine::ModelSpec spec;
  std::string config_json;
  engine::BaseFormat format = engine::BaseFormat::kBf16;
  std::vector<std::string> warnings;
};

SlabAssembler::SlabAssembler() = default;
SlabAssembler::~SlabAssembler() = default;

absl::StatusOr<std::unique_ptr<SlabAssembler>> SlabAssembler::Create(
    const std::string& folder, const engine::AllowedRoots& roots, engine::BaseFormat format) {
  std::unique_ptr<SlabAssembler> out(new SlabAssembler);
  out->rep_ = std::make_unique<Rep>();
  Rep& rep = *out->rep_;
  rep.format = format;
  SOUP_ASSIGN_OR_RETURN(rep.checkpoint, Checkpoint::Open(folder, roots));
  rep.config_json = rep.checkpoint->config_json();
  auto spec = engine::ParseModelSpec(rep.config_json);
  if (!spec.ok()) {
    return absl::Status(spec.status().code(), absl::StrCat(folder, "/", spec.status().message()));
  }
  rep.spec = *std::move(spec);
  rep.warnings = rep.checkpoint->warnings();
  SOUP_RETURN_IF_ERROR(CheckTensors(*rep.checkpoint, rep.spec, format, &rep.warnings));
  return out;
}

const engine::ModelSpec& SlabAssembler::spec() const { return rep_->spec; }
const std::string& SlabAssembler::config_json() const { return rep_->config_json; }
engine::BaseFormat SlabAssembler::format() const { return rep_->format; }
int64_t SlabAssembler::slabs() const { return engine::SlabCount(rep_->spec); }
int64_t SlabAssembler::checkpoint_bytes() const { return rep_->checkpoint->total_bytes(); }
int64_t SlabAssembler::slab_bytes(int64_t slab) const {
  return engine::SlabBytes(rep_->spec, rep_->format, slab);
}
int64_t SlabAssembler::total_slab_bytes() const {
  return rep_->spec.layers * slab_bytes(0) + slab_bytes(rep_->spec.layers);
}
const std::vector<std::string>& SlabAssembler::warnings() const { return rep_->warnings; }

absl::Status SlabAssembler::Assemble(int64_t slab, absl::Span<uint8_t> dst,
                                     const TaskControl& control) const {
  if (static_cast<int64_t>(dst.size()) != slab_bytes(slab)) {
    return absl::InvalidArgumentError(absl::StrCat("slab ", slab, " has ", slab_bytes(slab),
                                                   " bytes, the buffer has ", dst.size()));
  }
  std::memset(dst.data(), 0, dst.size());
  const bool double_quant = rep_->format == engine::BaseFormat::kNf4DoubleQuant;
  const std::vector<SlabTensor> contents = engine::SlabContents(rep_->spec, rep_->format, slab);
  std::vector<std::vector<float>> absmax(contents.size());  // of double quantisation: first stage
  std::vector<Unit> units;
  for (size_t i = 0; i < contents.size(); ++i) {
    const SlabTensor& t = contents[i];
    float* scales = nullptr;
    if (t.is_linear && double_quant) {
      absmax[i].resize(static_cast<size_t>(t.matrix.blocks()));
      scales = absmax[i].data();
    } else if (t.is_linear && rep_->format == engine::BaseFormat::kNf4) {
      scales = reinterpret_cast<float*>(dst.data() + t.matrix.absmax_offset);
    }
    for (const Unit& unit : CutIntoUnits(t, *rep_->checkpoint, scales)) {
      units.push_back(unit);
    }
  }
  SOUP_RETURN_IF_ERROR(ParallelFor(static_cast<int64_t>(units.size()), control, [&](int64_t i) {
    return AssembleUnit(units[i], rep_->format, dst);
  }));
  if (slab == rep_->spec.layers) {
    SOUP_RETURN_IF_ERROR(CheckTiedHead(*rep_->checkpoint, rep_->spec, control));
  }
  if (!double_quant) return absl::OkStatus();
  return ParallelFor(static_cast<int64_t>(contents.size()), control, [&](int64_t i) {
    const engine::MatrixLayout& m = contents[i].matrix;
    if (!contents[i].is_linear) return absl::OkStatus();
    kernels::cpu::Nf4QuantizeAbsmax(absmax[i].data(), m.blocks(), dst.data() + m.absmax_offset,
                                    reinterpret_cast<float*>(dst.data() + m.nested_absmax_offset),
                                    reinterpret_cast<float*>(dst.data() + m.offset_offset));
    return absl::OkStatus();
  });
}

void MemoryBase::Free::operator()(uint8_t* p) const { std::free(p); }

absl::StatusOr<MemoryBase> MemoryBase::Assemble(const std::string& folder,
                                                const engine::AllowedRoots& roots,
                                                engine::BaseFormat format,
                                                const TaskControl& control) {
  SOUP_ASSIGN_OR_RETURN(const auto assembler, SlabAssembler::Create(folder, roots, format));
  MemoryBase out;
  out.spec_ = assembler->spec();
  out.config_json_ = assembler->config_json();
  out.format_ = format;
  for (int64_t i = 0; i < assembler->slabs(); ++i) {
    Slab slab;
    slab.bytes = assembler->slab_bytes(i);  // a multiple of 256, as aligned_alloc asks
    slab.data.reset(
        static_cast<uint8_t*>(std::aligned_alloc(kSlabAlignment, static_cast<size_t>(slab.bytes))));
    if (slab.data == nullptr) {
      return absl::ResourceExhaustedError(
          absl::StrCat("no memory for slab ", i, " of ", folder, " (", slab.bytes, " bytes)"));
    }
    SOUP_RETURN_IF_ERROR(assembler->Assemble(
        i, absl::MakeSpan(slab.data.get(), static_cast<size_t>(slab.bytes)), control));
    out.slabs_.push_back(std::move(slab));
  }
  return out;
}

}  // namespace soup::cache
