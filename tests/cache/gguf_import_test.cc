// A GGUF base: the slabs of the Hugging Face folder that holds the same weights, byte for byte.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "cache/fingerprint.h"
#include "cache/importer.h"
#include "cache/slab_assembler.h"
#include "engine/model/model_spec.h"
#include "tests/cache/golden_gguf.h"
#include "tests/cache/store_helpers.h"
#include "tests/cache/tiny_model.h"
#include "tests/support/temp_dir.h"

namespace soup::cache {
namespace {

namespace fs = std::filesystem;
using engine::BaseFormat;
using ::soup::testing::GgufWriter;
using ::soup::testing::GoldenFolder;
using ::soup::testing::GoldenGguf;
using ::soup::testing::TempDir;
using ::testing::HasSubstr;

constexpr char kGguf[] = SOUP_TEST_DATA_DIR "/golden/gguf/llama.gguf";
constexpr char kFolder[] = SOUP_TEST_DATA_DIR "/golden/llama";

// All that a decoder computes, as text.
std::string SpecText(const engine::ModelSpec& s) {
  const auto rope = [](const engine::RopeSpec& r) {
    return absl::StrCat("rope ", static_cast<int>(r.type), " ", r.theta, " ", r.factor, " ",
                        r.low_freq_factor, " ", r.high_freq_factor, " ", r.original_max_position,
                        " ", r.beta_fast, " ", r.beta_slow, " ", r.truncate, " ",
                        r.attention_factor, " [", absl::StrJoin(r.short_factor, " "), "] [",
                        absl::StrJoin(r.long_factor, " "), "]\n");
  };
  std::string out = absl::StrCat(s.family, " ", s.hidden, " ", s.intermediate, " ", s.layers, " ",
                                 s.heads, " ", s.kv_heads, " ", s.head_dim, " ", s.vocab, " ");
  absl::StrAppend(&out, s.max_position, " eps ", s.rms_eps, " tied ", s.tied_head, " ids ",
                  s.bos_token_id, " ", s.eos_token_id, "\n", rope(s.rope), rope(s.local_rope));
  absl::StrAppend(&out, "activation ", static_cast<int>(s.activation), " rotary ", s.rotary_dim,
                  " local ", s.has_local_rope, " scalar ", s.query_scalar, " caps ",
                  s.attention_soft_cap, " ", s.final_soft_cap, " embedding ", s.embedding_scale);
  absl::StrAppend(&out, " norms ", s.norm_offset, " ", s.qk_norm, " ", s.post_norms, " biases ",
                  s.qkv_bias, " ", s.o_bias, " ", s.mlp_bias, " fused ", s.fused_projections);
  absl::StrAppend(&out, "\nexperts ", s.experts.count, " ", s.experts.per_token, " ",
                  s.experts.intermediate, " ", s.experts.normalise, "\n");
  for (int64_t l = 0; l < s.layers; ++l) {
    const engine::LayerKind kind = s.kind(l);
    absl::StrAppend(&out, kind.window, " ", kind.local_rope, " ", kind.sparse, "\n");
  }
  return out;
}

// Every byte of every slab, in every format.
void ExpectSameSlabs(const std::string& gguf, const std::string& folder) {
  for (BaseFormat format : {BaseFormat::kBf16, BaseFormat::kNf4, BaseFormat::kNf4DoubleQuant}) {
    const auto a = SlabAssembler::Create(gguf, {}, format);
    const auto b = SlabAssembler::Create(folder, {}, format);
    ASSERT_TRUE(a.ok()) << a.status();
    ASSERT_TRUE(b.ok()) << b.status();
    ASSERT_EQ((*a)->slabs(), (*b)->slabs());
    for (int64_t i = 0; i < (*a)->slabs(); ++i) {
      ASSERT_EQ((*a)->slab_bytes(i), (*b)->slab_bytes(i));
      std::vector<uint8_t> x(static_cast<size_t>((*a)->slab_bytes(i))), y(x.size());
      ASSERT_TRUE((*a)->Assemble(i, absl::MakeSpan(x), {}).ok());
      ASSERT_TRUE((*b)->Assemble(i, absl::MakeSpan(y), {}).ok());
      ASSERT_TRUE(x == y) << "slab " << i;
    }
  }
}

// Each family's golden folder as a GGUF: the same slabs and the same decoder, so the same losses.
class GgufFamilyTest : public ::testing::TestWithParam<const char*> {};

TEST_P(GgufFamilyTest, SlabsAndSpecAreTheFolders) {
  const std::string name = GetParam();
  TempDir dir;
  GoldenGguf(name).Write(dir / "m.gguf");
  ExpectSameSlabs(dir / "m.gguf", GoldenFolder(name));
  const auto a = SlabAssembler::Create(dir / "m.gguf", {}, BaseFormat::kBf16);
  const auto b = SlabAssembler::Create(GoldenFolder(name), {}, BaseFormat::kBf16);
  ASSERT_TRUE(a.ok() && b.ok());
  engine::ModelSpec told = (*a)->spec(), expected = (*b)->spec();
  if (name == "gemma2" || name == "gemma3") {
    // Is no metadata: llama.cpp and we take a head's width, the golden folders another number.
    EXPECT_EQ(told.query_scalar, told.head_dim);
    told.query_scalar = expected.query_scalar;
  }
  if (name == "phi3") expected.eos_token_id = told.eos_token_id;  // beyond the vocabulary there
  EXPECT_EQ(SpecText(told), SpecText(expected));
}

INSTANTIATE_TEST_SUITE_P(Families, GgufFamilyTest,
                         ::testing::Values("llama", "smollm", "qwen2", "qwen3", "phi3", "gemma2",
                                           "gemma3", "mixtral", "qwen3_moe"),
                         [](const auto& info) { return std::string(info.param); });

// The same of a file that PyPI's gguf wrote (tests/engine/io/make_gguf.py --families DIR).
TEST_P(GgufFamilyTest, PypisWriterGivesTheSame) {
  const char* files = std::getenv("SOUP_TEST_GGUF_DIR");
  const std::string name = GetParam();
  if (files == nullptr || !fs::exists(files + ("/" + name) + ".gguf"))
    GTEST_SKIP() << "needs SOUP_TEST_GGUF_DIR";
  ExpectSameSlabs(files + ("/" + name) + ".gguf", GoldenFolder(name));
}

// Older files have a tensor an expert.
TEST(GgufImportTest, ExpertsOneByOneAreTheSame) {
  TempDir dir;
  for (const char* name : {"mixtral", "qwen3_moe"}) {
    GoldenGguf(name, {.merged_experts = false}).Write(dir / "m.gguf");
    ExpectSameSlabs(dir / "m.gguf", GoldenFolder(name));
  }
}

// Blocks of quantised experts: an expert's matrix begins within the tensor of all.
TEST(GgufImportTest, QuantisedExpertsAreCutWhereTheyBegin) {
  TempDir dir;
  for (const GgufWriter::Type type : {GgufWriter::kQ8_0, GgufWriter::kQ4_1}) {
    GoldenGguf("mixtral", {.experts = type}).Write(dir / "merged.gguf");
    GoldenGguf("mixtral", {.merged_experts = false, .experts = type}).Write(dir / "single.gguf");
    ExpectSameSlabs(dir / "merged.gguf", dir / "single.gguf");
  }
}

absl::StatusOr<engine::ModelSpec> SpecOf(const GgufWriter& writer) {
  TempDir dir;
  writer.Write(dir / "m.gguf");
  const auto made = SlabAssembler::Create(dir / "m.gguf", {}, BaseFormat::kBf16);
  if (!made.ok()) return made.status();
  return (*made)->spec();
}

TEST(GgufImportTest, Gemma3ScalesItsGlobalLayersAndMayListThem) {
  GgufWriter writer = GoldenGguf("gemma3");
  writer.Text("gemma3.rope.scaling.type", "linear");
  writer.Float("gemma3.rope.scaling.factor", 8);
  writer.Bools("gemma3.attention.sliding_window_pattern", {1, 0, 1});
  const auto spec = SpecOf(writer);
  ASSERT_TRUE(spec.ok()) << spec.status();
  EXPECT_EQ(spec->rope.type, engine::RopeType::kLinear);
  EXPECT_EQ(spec->rope.factor, 8);
  EXPECT_EQ(spec->rope.theta, 1e6);
  EXPECT_EQ(spec->local_rope.type, engine::RopeType::kDefault);
  EXPECT_EQ(spec->local_rope.theta, 1e4);
  EXPECT_EQ(spec->kind(0).window, 8);
  EXPECT_EQ(spec->kind(1).window, 0);
  EXPECT_TRUE(spec->kind(2).local_rope);
}

std::string F32s(const std::vector<float>& values) {
  return {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(float)};
}

TEST(GgufImportTest, Phi3sLongRopeIsReadFromItsTensors) {
  GgufWriter writer = GoldenGguf("phi3");
  const std::vector<float> brief(8, 1.25F), far(8, 1.08F);
  writer.Tensor("rope_factors_short.weight", GgufWriter::kF32, {8}, F32s(brief));
  writer.Tensor("rope_factors_long.weight", GgufWriter::kF32, {8}, F32s(far));
  writer.Float("phi3.rope.scaling.attn_factor", 1.1902381F);
  const auto spec = SpecOf(writer);
  ASSERT_TRUE(spec.ok()) << spec.status();
  EXPECT_EQ(spec->rope.type, engine::RopeType::kLongRope);
  EXPECT_EQ(spec->rope.short_factor, std::vector<double>(8, 1.25));
  EXPECT_EQ(spec->rope.long_factor, std::vector<double>(8, 1.08F));
  EXPECT_EQ(spec->rope.original_max_position, 4096);
  EXPECT_EQ(spec->rope.attention_factor, 1.1902381);
}

TEST(GgufImportTest, YarnIsReadFromItsKeys) {
  GgufWriter writer = GoldenGguf("qwen3");
  writer.Text("qwen3.rope.scaling.type", "yarn");
  writer.Float("qwen3.rope.scaling.factor", 4);
  writer.Int("qwen3.rope.scaling.original_context_length", 128);
  const auto spec = SpecOf(writer);
  ASSERT_TRUE(spec.ok()) << spec.status();
  EXPECT_EQ(spec->rope.type, engine::RopeType::kYarn);
  EXPECT_EQ(spec->rope.original_max_position, 128);
  EXPECT_EQ(spec->rope.beta_fast, 32);
}

// What is not understood is refused by its name.
TEST(GgufImportTest, RefusalsNameTheKeyOrTensor) {
  const std::string f32(64 * sizeof(float), '\0');
  const auto error = [](GgufWriter writer, auto add) {
    add(writer);
    return std::string(SpecOf(writer).status().message());
  };
  EXPECT_THAT(
      error(GoldenGguf("gemma2"), [](GgufWriter& w) { w.Float("gemma2.attention.scale", 0.25); }),
      HasSubstr("gemma2.attention.scale"));
  EXPECT_THAT(error(GoldenGguf("gemma2"),
                    [](GgufWriter& w) { w.Float("gemma2.rope.freq_base_swa", 5000); }),
              HasSubstr("gemma2.rope.freq_base_swa is 5000"));
  EXPECT_THAT(error(GoldenGguf("gemma3"),
                    [](GgufWriter& w) {
                      w.Ints("gemma3.attention.sliding_window_pattern", {1, 0});
                    }),
              HasSubstr("has 2 entries for 3 layers"));
  EXPECT_THAT(error(GoldenGguf("gemma3"),
                    [](GgufWriter& w) { w.Int("gemma3.attention.sliding_window_pattern", 0); }),
              HasSubstr("sliding_window_pattern is 0"));
  EXPECT_THAT(
      error(GoldenGguf("gemma3"),
            [&](GgufWriter& w) { w.Tensor("v.blk.0.ln1.weight", GgufWriter::kF32, {64}, f32); }),
      HasSubstr("v.blk.0.ln1.weight"));
  EXPECT_THAT(error(GoldenGguf("llama"), [](GgufWriter& w) { w.Int("llama.expert_count", 4); }),
              HasSubstr("lacks llama.expert_used_count"));
  EXPECT_THAT(error(GoldenGguf("qwen3"), [](GgufWriter& w) { w.Int("qwen3.expert_count", 4); }),
              HasSubstr("qwen3.expert_count (experts) is not supported"));
  EXPECT_THAT(error(GoldenGguf("qwen3_moe"),
                    [](GgufWriter& w) { w.Int("qwen3moe.expert_shared_count", 1); }),
              HasSubstr("qwen3moe.expert_shared_count"));
  EXPECT_THAT(error(GoldenGguf("mixtral"),
                    [&](GgufWriter& w) {
                      w.Tensor("blk.0.ffn_gate.1.weight", GgufWriter::kF32, {64}, f32);
                    }),
              HasSubstr("are both model.layers.0.block_sparse_moe.experts.1.w1.weight"));
  EXPECT_THAT(error(GoldenGguf("mixtral"),
                    [&](GgufWriter& w) {
                      w.Tensor("blk.00.ffn_norm.weight", GgufWriter::kF32, {64}, f32);
                    }),
              HasSubstr("blk.00.ffn_norm.weight"));
  EXPECT_THAT(error(GoldenGguf("llama"),
                    [&](GgufWriter& w) {
                      w.Tensor("rope_factors_long.weight", GgufWriter::kF32, {64}, f32);
                    }),
              HasSubstr("rope_factors_long.weight"));
  EXPECT_THAT(
      error(GoldenGguf("phi3"), [](GgufWriter& w) { w.Text("phi3.rope.scaling.type", "dynamic"); }),
      HasSubstr("'dynamic' is not supported"));
  EXPECT_THAT(error(GoldenGguf("llama"), [](GgufWriter& w) { w.Int("split.count", 3); }),
              HasSubstr("one of 3 files"));
}

// Whole models, so that the fuzzer begins behind every check.
TEST(GgufImportTest, TheFuzzersSeedsAreModels) {
  for (const char* name : {"experts", "gemma3", "mixtral", "phi3"}) {
    const auto made = SlabAssembler::Create(
        absl::StrCat(SOUP_TEST_DATA_DIR, "/fuzz/corpus/gguf_model/", name, ".gguf"), {},
        BaseFormat::kBf16);
    EXPECT_TRUE(made.ok()) << made.status();
  }
}

// An early conversion of Phi-3 says nothing of its window.
TEST(GgufImportTest, Phi3WithoutAWordOnItsWindowIsRefused) {
  const auto spec = SpecOf(GoldenGguf("phi3", {.omit = "phi3.attention.sliding_window"}));
  EXPECT_THAT(std::string(spec.status().message()),
              HasSubstr("lacks phi3.attention.sliding_window"));
}

TEST(GgufImportTest, ExpertsOfAnotherNumberAreRefused) {
  GgufWriter many = GoldenGguf("mixtral", {.omit = "llama.expert_count"});
  many.Int("llama.expert_count", 4097);
  EXPECT_THAT(std::string(SpecOf(many).status().message()), HasSubstr("of 4097 experts"));
  GgufWriter writer = GoldenGguf("mixtral", {.omit = "llama.expert_count"});
  writer.Int("llama.expert_count", 5);
  EXPECT_THAT(std::string(SpecOf(writer).status().message()),
              HasSubstr("is not one matrix for each of 5 experts"));
}

TEST(GgufImportTest, TheGoldenLlamasSlabsAreTheFolders) { ExpectSameSlabs(kGguf, kFolder); }

TEST(GgufImportTest, AGgufIsImportedOnceWhateverItsName) {
  TempDir dir;
  fs::copy_file(kGguf, dir / "blob");  // as in a Hugging Face cache: the name says nothing
  fs::create_symlink(dir / "blob", dir / "m.gguf");
  ShardStoreOptions options;
  options.folder = dir / "cache";
  const auto store = ShardStore::Open(options);
  ASSERT_TRUE(store.ok()) << store.status();
  const auto first = ImportBase(**store, dir / "m.gguf", {}, BaseFormat::kNf4, {});
  ASSERT_TRUE(first.ok()) << first.status();
  EXPECT_TRUE(first->imported);
  const auto again = ImportBase(**store, dir / "blob", {}, BaseFormat::kNf4, {});
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_FALSE(again->imported);
  EXPECT_THAT(first->found.manifest.config_json, HasSubstr("LlamaForCausalLM"));
}

TEST(GgufImportTest, AFileThatIsNoGgufIsRefused) {
  TempDir dir;
  fs::copy_file(SOUP_TEST_DATA_DIR "/golden/llama/model.safetensors", dir / "m.gguf");
  const auto made = SlabAssembler::Create(dir / "m.gguf", {}, BaseFormat::kBf16);
  ASSERT_FALSE(made.ok());
  EXPECT_THAT(std::string(made.status().message()), HasSubstr("does not begin with GGUF"));
}

// SmolLM2 as deploy/fetch-smollm2.sh leaves it: the Q4_1 file, and what deploy/gguf_to_hf.py made
// of it.
TEST(GgufImportTest, SmolLm2sSlabsAreItsConversions) {
  const char* home = std::getenv("HOME");
  const char* cache = std::getenv("XDG_CACHE_HOME");
  const std::string models =
      (cache != nullptr ? std::string(cache)
                        : std::string(home != nullptr ? home : "") + "/.cache") +
      "/soupd/models";
  const std::string gguf = models + "/SmolLM2-135M-Instruct.gguf";
  const std::string folder = models + "/SmolLM2-135M-Instruct";
  if (!fs::exists(gguf) || !fs::exists(folder + "/config.json"))
    GTEST_SKIP() << "needs deploy/fetch-smollm2.sh, with --gguf and without";
  ExpectSameSlabs(gguf, folder);
  const auto a = SlabAssembler::Create(gguf, {}, BaseFormat::kBf16);
  const auto b = SlabAssembler::Create(folder, {}, BaseFormat::kBf16);
  ASSERT_TRUE(a.ok() && b.ok());
  const engine::ModelSpec &x = (*a)->spec(), &y = (*b)->spec();
  EXPECT_EQ(x.family, y.family);
  EXPECT_EQ(x.layers, y.layers);
  EXPECT_EQ(x.heads, y.heads);
  EXPECT_EQ(x.kv_heads, y.kv_heads);
  EXPECT_EQ(x.head_dim, y.head_dim);
  EXPECT_EQ(x.hidden, y.hidden);
  EXPECT_EQ(x.vocab, y.vocab);
  EXPECT_EQ(x.tied_head, y.tied_head);
  EXPECT_EQ(x.rms_eps, y.rms_eps);
  EXPECT_EQ(x.rope.theta, y.rope.theta);
}

}  // namespace
}  // namespace soup::cache
