// A process that dies at any point of an import or an eviction: what is visible afterwards is
// whole, and what is not visible takes no room.
#include <gtest/gtest.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <thread>

#include "cache/importer.h"
#include "tests/cache/store_helpers.h"
#include "tests/cache/tiny_model.h"
#include "tests/support/seeded_rng.h"
#include "tests/support/temp_dir.h"

namespace soup::cache {
namespace {

using engine::BaseFormat;
using ::soup::testing::ExpectIntact;
using ::soup::testing::FolderBytes;
using ::soup::testing::MakeKey;
using ::soup::testing::PutBase;
using ::soup::testing::ReadSlab;
using ::soup::testing::TempDir;
using ::soup::testing::TinyModel;

constexpr int64_t kMiB = int64_t{1} << 20;

std::unique_ptr<ShardStore> OpenStore(const std::string& folder) {
  ShardStoreOptions options;
  options.folder = folder;
  auto store = ShardStore::Open(options);
  EXPECT_TRUE(store.ok()) << store.status();
  return store.ok() ? *std::move(store) : nullptr;
}

// Runs import_crash_child until it dies by SIGKILL: its own, or ours after `kill_after`. A program
// of its own, not a fork of this one: RocksDB's threads would be missing in a fork.
void RunAndKill(std::vector<std::string> arguments,
                std::chrono::microseconds kill_after = std::chrono::minutes(1)) {
  arguments.insert(arguments.begin(), std::string(SOUP_BINARY_DIR) + "/tests/import_crash_child");
  std::vector<char*> argv;
  for (std::string& a : arguments) argv.push_back(a.data());
  argv.push_back(nullptr);
  pid_t child = 0;
  ASSERT_EQ(posix_spawn(&child, argv[0], nullptr, nullptr, argv.data(), environ), 0);
  const auto deadline = std::chrono::steady_clock::now() + kill_after;
  int status = 0;
  while (waitpid(child, &status, WNOHANG) == 0) {
    if (std::chrono::steady_clock::now() >= deadline) kill(child, SIGKILL);
    std::this_thread::yield();
  }
  ASSERT_TRUE(WIFSIGNALED(status)) << "exit status " << WEXITSTATUS(status);
}

TEST(ImportCrash, DeathAfterEachStepOfAnImport) {
  TempDir dir;
  for (int slabs = 0; slabs <= 3; ++slabs) {
    RunAndKill({"append", dir / "cache", std::to_string(slabs)});
    const auto store = OpenStore(dir / "cache");
    EXPECT_TRUE(store->List().empty()) << slabs;
    EXPECT_LT(FolderBytes(dir / "cache"), 2 * kMiB) << "leftovers are removed at Open";
  }
  RunAndKill({"commit", dir / "cache", "3"});
  const auto store = OpenStore(dir / "cache");
  ASSERT_EQ(store->List().size(), 1u);
  ExpectIntact(*store, store->List()[0].manifest);
}

TEST(ImportCrash, DeathAtRandomInstants) {
  soup::testing::SeededRng rng;
  SCOPED_TRACE(rng.Trace());
  TempDir dir;
  TinyModel model;
  model.hidden = 512;
  model.intermediate = 1024;
  model.layers = 3;
  model.Write(dir / "model");
  int committed = 0;
  for (int round = 0; round < 12; ++round) {
    RunAndKill({"flip", dir / "cache", dir / "model"},
               std::chrono::microseconds(rng.Int(0, 400'000)));
    const auto store = OpenStore(dir / "cache");
    ASSERT_NE(store, nullptr);
    const auto bases = store->List();
    if (bases.empty()) {
      EXPECT_LT(FolderBytes(dir / "cache"), 2 * kMiB);
      continue;
    }
    ++committed;
    for (size_t slab = 0; slab < bases[0].manifest.slabs.size(); ++slab) {
      std::vector<uint8_t> bytes;
      const absl::Status read =
          ReadSlab(*store, bases[0].manifest, static_cast<int64_t>(slab), &bytes);
      EXPECT_TRUE(read.ok()) << read;
    }
  }
  RecordProperty("committed", committed);
  const auto store = OpenStore(dir / "cache");
  EXPECT_TRUE(ImportBase(*store, dir / "model", {}, BaseFormat::kNf4, {}).ok());
}

TEST(ImportCrash, DeathDuringAnEvictionEndsItAtTheNextOpen) {
  TempDir dir;
  { ASSERT_TRUE(PutBase(*OpenStore(dir / "cache"), MakeKey('a'), {40 * kMiB}).ok()); }
  RunAndKill({"evict", dir / "cache"});
  const auto store = OpenStore(dir / "cache");
  if (store->List().empty()) {
    EXPECT_LT(FolderBytes(dir / "cache"), 2 * kMiB);
  } else {
    ExpectIntact(*store, store->List()[0].manifest);  // died before the eviction was written
  }
}

}  // namespace
}  // namespace soup::cache
