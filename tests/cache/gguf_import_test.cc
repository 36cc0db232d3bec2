// A GGUF base: the slabs of the Hugging Face folder that holds the same weights, byte for byte.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <string>

#include "cache/fingerprint.h"
#include "cache/importer.h"
#include "cache/slab_assembler.h"
#include "engine/model/model_spec.h"
#include "tests/cache/store_helpers.h"
#include "tests/support/temp_dir.h"

namespace soup::cache {
namespace {

namespace fs = std::filesystem;
using engine::BaseFormat;
using ::soup::testing::TempDir;
using ::testing::HasSubstr;

constexpr char kGguf[] = SOUP_TEST_DATA_DIR "/golden/gguf/llama.gguf";
constexpr char kFolder[] = SOUP_TEST_DATA_DIR "/golden/llama";

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
