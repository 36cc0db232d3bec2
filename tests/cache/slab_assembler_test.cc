#include "cache/slab_assembler.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>

#include "engine/io/safetensors_reader.h"
#include "engine/model/slab_contents.h"
#include "kernels/cpu/nf4_quantize.h"
#include "tests/cache/tiny_model.h"
#include "tests/support/temp_dir.h"
#include "tests/support/whole_file.h"

namespace soup::cache {
namespace {

using engine::BaseFormat;
using engine::DType;
using ::soup::testing::CaseFolder;
using ::soup::testing::GoldenFolder;
using ::soup::testing::TempDir;
using ::soup::testing::TinyModel;
using ::testing::HasSubstr;

constexpr char kQ1[] = "model.layers.1.self_attn.q_proj.weight";

std::vector<uint16_t> Bf16Of(const std::string& folder, const std::string& name) {
  const auto file = engine::SafetensorsFile::Open(folder + "/model.safetensors");
  EXPECT_TRUE(file.ok()) << file.status();
  const auto values = (*file)->ReadF32(name);
  EXPECT_TRUE(values.ok()) << values.status();
  std::vector<uint16_t> out;
  for (float v : *values) out.push_back(engine::F32ToBf16(v));
  return out;
}

TEST(SlabAssembler, Bf16SlabsHoldTheCheckpointsBytes) {
  for (const char* name : {"llama", "llama31", "smollm"}) {
    const auto base = MemoryBase::Assemble(GoldenFolder(name), {}, BaseFormat::kBf16);
    ASSERT_TRUE(base.ok()) << base.status();
    int64_t weights = 0;
    for (int64_t slab = 0; slab < base->slabs(); ++slab) {
      for (const auto& t : engine::SlabContents(base->spec(), BaseFormat::kBf16, slab)) {
        const std::vector<uint16_t> want = Bf16Of(GoldenFolder(name), t.name);
        const int64_t at = t.is_linear ? t.matrix.data_offset : t.offset;
        EXPECT_EQ(std::memcmp(base->slab(slab).data() + at, want.data(), want.size() * 2), 0)
            << t.name;
        weights += static_cast<int64_t>(want.size());
      }
    }
    EXPECT_GT(weights, 100'000);
  }
}

// Each matrix as the quantiser alone gives it (which is held against bitsandbytes' bytes
// elsewhere).
TEST(SlabAssembler, Nf4SlabsHoldEachMatrixQuantisedOnItsOwn) {
  TempDir dir;
  TinyModel model;
  model.hidden = 1040;  // matrices of more than one unit, with a last block cut short
  model.intermediate = 1111;
  model.layers = 1;
  model.Write(dir.path());
  for (BaseFormat format : {BaseFormat::kNf4, BaseFormat::kNf4DoubleQuant}) {
    const auto base = MemoryBase::Assemble(dir.path(), {}, format);
    ASSERT_TRUE(base.ok()) << base.status();
    const uint8_t* slab = base->slab(0).data();
    for (const auto& t : engine::SlabContents(base->spec(), format, 0)) {
      const std::vector<uint16_t> weights = Bf16Of(dir.path(), t.name);
      if (!t.is_linear) {
        EXPECT_EQ(std::memcmp(slab + t.offset, weights.data(), weights.size() * 2), 0) << t.name;
        continue;
      }
      const engine::MatrixLayout& m = t.matrix;
      std::vector<uint8_t> packed(static_cast<size_t>(m.data_bytes));
      std::vector<float> absmax(static_cast<size_t>(m.blocks()));
      kernels::cpu::Nf4QuantizeArgs args;
      args.src_bf16 = weights.data();
      args.n = static_cast<int64_t>(weights.size());
      args.packed = packed.data();
      args.absmax = absmax.data();
      ASSERT_EQ(kernels::cpu::Nf4QuantizeBlocks(args, 0, m.blocks()), -1);
      EXPECT_EQ(std::memcmp(slab + m.data_offset, packed.data(), packed.size()), 0) << t.name;
      if (format == BaseFormat::kNf4) {
        EXPECT_EQ(std::memcmp(slab + m.absmax_offset, absmax.data(), absmax.size() * 4), 0);
        continue;
      }
      std::vector<uint8_t> q(absmax.size());
      std::vector<float> nested(static_cast<size_t>(m.nested_blocks()));
      float offset = 0;
      kernels::cpu::Nf4QuantizeAbsmax(absmax.data(), m.blocks(), q.data(), nested.data(), &offset);
      EXPECT_EQ(std::memcmp(slab + m.absmax_offset, q.data(), q.size()), 0);
      EXPECT_EQ(std::memcmp(slab + m.nested_absmax_offset, nested.data(), nested.size() * 4), 0);
      EXPECT_EQ(std::memcmp(slab + m.offset_offset, &offset, 4), 0);
    }
  }
}

TEST(SlabAssembler, SameBytesForAnyNumberOfThreads) {
  TempDir dir;
  TinyModel model;
  model.hidden = 1040;
  model.layers = 1;
  model.shards = 3;
  model.Write(dir.path());
  TaskControl one, many;
  one.threads = 1;
  many.threads = 7;
  const auto a = MemoryBase::Assemble(dir.path(), {}, BaseFormat::kNf4DoubleQuant, one);
  const auto b = MemoryBase::Assemble(dir.path(), {}, BaseFormat::kNf4DoubleQuant, many);
  ASSERT_TRUE(a.ok() && b.ok()) << a.status() << b.status();
  for (int64_t i = 0; i < a->slabs(); ++i) EXPECT_EQ(a->slab(i), b->slab(i));
}

TEST(SlabAssembler, F32IsRoundedWithAWarning) {
  TempDir dir;
  TinyModel model;
  model.dtype = DType::kF32;
  model.Write(dir.path());
  const auto assembler = SlabAssembler::Create(dir.path(), {}, BaseFormat::kBf16);
  ASSERT_TRUE(assembler.ok()) << assembler.status();
  ASSERT_EQ((*assembler)->warnings().size(), 1u);
  EXPECT_THAT((*assembler)->warnings()[0], HasSubstr("rounded"));
  std::vector<uint8_t> slab(static_cast<size_t>((*assembler)->slab_bytes(1)));
  ASSERT_TRUE((*assembler)->Assemble(1, absl::MakeSpan(slab), {}).ok());
  const engine::LayerLayout layout =
      engine::MakeLayerLayout((*assembler)->spec(), BaseFormat::kBf16);
  const engine::MatrixLayout& q = layout.matrix(engine::Module::kQ);
  const std::vector<uint16_t> want = Bf16Of(dir.path(), kQ1);
  EXPECT_EQ(std::memcmp(slab.data() + q.data_offset, want.data(), want.size() * 2), 0);
}

void ExpectRefused(const TinyModel& model, std::vector<std::string> named) {
  TempDir dir;
  model.Write(dir.path());
  for (BaseFormat format : {BaseFormat::kBf16, BaseFormat::kNf4, BaseFormat::kNf4DoubleQuant}) {
    const absl::Status status = MemoryBase::Assemble(dir.path(), {}, format).status();
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
    for (const std::string& name : named) {
      EXPECT_THAT(std::string(status.message()), HasSubstr(name));
    }
  }
}

TEST(SlabAssembler, EveryWeightThatIsNotFiniteIsNamed) {
  for (float value : {NAN, -NAN, INFINITY, -INFINITY, 3.4e38f}) {
    for (DType dtype : {DType::kBF16, DType::kF32}) {
      TinyModel model;
      model.dtype = dtype;
      model.edit = [&](auto& values) { values[kQ1][3 * 64 + 5] = value; };
      ExpectRefused(model, {kQ1, "row 3, column 5"});
    }
  }
  TinyModel norm;
  norm.edit = [](auto& values) { values["model.norm.weight"][9] = NAN; };
  ExpectRefused(norm, {"model.norm.weight", "index 9"});
}

TEST(SlabAssembler, NanOfCase15IsNamed) {
  const absl::Status status =
      MemoryBase::Assemble(CaseFolder("15-nan-poison/base"), {}, BaseFormat::kBf16).status();
  EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
  for (const char* part : {"model.embed_tokens.weight", "row 7", "index 229"}) {
    EXPECT_THAT(std::string(status.message()), HasSubstr(part));
  }
}

TEST(SlabAssembler, MissingMisshapenAndUnknownTensorsAreNamed) {
  TinyModel model;
  model.edit = [](auto& values) {
    values.erase("model.norm.weight");
    values.erase(kQ1);
  };
  ExpectRefused(model, {"lacks 2 of 21", "model.norm.weight", kQ1});
  model.edit = [](auto& values) { values["model.layers.0.self_attn.q_proj.bias"] = {0, 1}; };
  ExpectRefused(model, {"1 tensors", "q_proj.bias"});
  model.edit = [](auto& values) { values["model.layers.2.self_attn.q_proj.weight"] = {0, 1}; };
  ExpectRefused(model, {"model.layers.2.self_attn.q_proj.weight"});

  TempDir dir;
  TinyModel().Write(dir.path());
  TinyModel wider;
  wider.intermediate = 97;
  soup::testing::WriteWhole(dir / "config.json", wider.ConfigJson());
  const absl::Status status = MemoryBase::Assemble(dir.path(), {}, BaseFormat::kBf16).status();
  EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("[96, 64]"));
  EXPECT_THAT(std::string(status.message()), HasSubstr("[97, 64]"));
}

TEST(SlabAssembler, DerivedTensorsAreIgnored) {
  TempDir dir;
  TinyModel model;
  model.edit = [](auto& values) {
    values["model.layers.0.self_attn.rotary_emb.inv_freq"] = {1, 2, 3};
  };
  model.Write(dir.path());
  EXPECT_TRUE(MemoryBase::Assemble(dir.path(), {}, BaseFormat::kNf4).ok());
}

TEST(SlabAssembler, TiedHeadMayBeThereWhenItIsTheEmbedding) {
  TinyModel model;
  TempDir dir;
  model.edit = [](auto& values) { values["lm_head.weight"] = values["model.embed_tokens.weight"]; };
  model.Write(dir.path());
  TinyModel tied;
  tied.tied = true;
  soup::testing::WriteWhole(dir / "config.json", tied.ConfigJson());
  EXPECT_TRUE(MemoryBase::Assemble(dir.path(), {}, BaseFormat::kBf16).ok());

  model.edit = nullptr;
  model.Write(dir.path());
  soup::testing::WriteWhole(dir / "config.json", tied.ConfigJson());
  const absl::Status status = MemoryBase::Assemble(dir.path(), {}, BaseFormat::kBf16).status();
  EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("lm_head.weight"));
}

TEST(SlabAssembler, CancelStops) {
  TempDir dir;
  TinyModel().Write(dir.path());
  std::atomic<int> asked{0};
  TaskControl control;
  control.threads = 1;
  control.cancelled = [&] { return ++asked > 5; };
  EXPECT_TRUE(
      absl::IsCancelled(MemoryBase::Assemble(dir.path(), {}, BaseFormat::kBf16, control).status()));
}

TEST(SlabAssembler, UnsupportedFamilyNamesTheFolder) {
  TempDir dir;
  TinyModel().Write(dir.path());
  soup::testing::WriteWhole(dir / "config.json", R"({"model_type":"mamba"})");
  const absl::Status status = SlabAssembler::Create(dir.path(), {}, BaseFormat::kBf16).status();
  EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr(dir / "config.json"));
  EXPECT_THAT(std::string(status.message()), HasSubstr("mamba"));
}

}  // namespace
}  // namespace soup::cache
