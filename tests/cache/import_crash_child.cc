// The process that import_crash_test kills. Usage:
//   import_crash_child append <cache> <slabs>    begins an import, appends, dies
//   import_crash_child commit <cache> <slabs>    the same, and commits before it dies
//   import_crash_child flip <cache> <model>      imports when the store is empty, evicts otherwise
//   import_crash_child evict <cache>             dies as soon as the base is no longer visible
// Always ends by SIGKILL, so that no destructor tidies up.
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <thread>

#include "cache/importer.h"
#include "tests/cache/store_helpers.h"

namespace soup::cache {
namespace {

using ::soup::testing::MakeKey;
using ::soup::testing::SlabBytes;

[[noreturn]] void Die() {
  raise(SIGKILL);
  std::abort();
}

void Append(ShardStore& store, int slabs, bool commit) {
  BaseManifest draft;
  draft.key = MakeKey('a');
  auto writer = store.Begin(draft, int64_t{100} << 20, {});
  if (!writer.ok()) std::exit(3);
  for (int i = 0; i < slabs; ++i) {
    if (!(*writer)->Append(SlabBytes(draft.key, i, int64_t{30} << 20)).ok()) std::exit(4);
  }
  if (commit && !(*writer)->Commit().ok()) std::exit(5);
  Die();
}

void Flip(ShardStore& store, const std::string& model) {
  const auto bases = store.List();
  if (bases.empty()) {
    ImportBase(store, model, {}, engine::BaseFormat::kNf4, {}).IgnoreError();
  } else {
    store.Evict(bases[0].manifest.key).IgnoreError();
  }
  Die();
}

void Evict(ShardStore& store) {
  std::thread([&] { store.Evict(MakeKey('a')).IgnoreError(); }).detach();
  while (!store.List().empty()) std::this_thread::yield();
  Die();
}

int Main(int argc, char** argv) {
  if (argc < 3) return 2;
  const std::string action = argv[1], last = argv[argc - 1];
  ShardStoreOptions options;
  options.folder = argv[2];
  auto store = ShardStore::Open(options);
  if (!store.ok()) {
    std::fprintf(stderr, "%s\n", store.status().ToString().c_str());
    return 6;
  }
  if (action == "append" || action == "commit")
    Append(**store, std::stoi(last), action == "commit");
  if (action == "flip") Flip(**store, last);
  if (action == "evict") Evict(**store);
  return 2;
}

}  // namespace
}  // namespace soup::cache

int main(int argc, char** argv) { return soup::cache::Main(argc, argv); }
