#include "cache/host_store.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <cstring>
#include <thread>

#include "cache/shard_keys.h"
#include "cache/shortage.h"
#include "tests/cache/store_helpers.h"

namespace soup::cache {
namespace {

using ::soup::testing::MakeKey;
using ::soup::testing::SlabBytes;
using ::testing::HasSubstr;

constexpr int64_t kMiB = int64_t{1} << 20;

// Memory of a size of the test's choosing; hugetlb pages never.
class FakeMemory final : public HostMemory {
 public:
  absl::StatusOr<AvailableMemory> Available() override {
    return AvailableMemory{available.load(), "a test", 0};
  }
  absl::StatusOr<engine::UniqueFd> CreateSegment(const std::string& name, int64_t bytes,
                                                 MemoryTier tier) override {
    if (tier == MemoryTier::kHugetlb) return absl::ResourceExhaustedError("none");
    ++segments;
    return RealHostMemory().CreateSegment(name, bytes, tier);
  }
  std::atomic<int64_t> available{1 << 30};
  std::atomic<int> segments{0};
};

BaseManifest Manifest(char digit, const std::vector<int64_t>& slabs) {
  BaseManifest m;
  m.key = MakeKey(digit);
  m.chunk_bytes = kMiB;
  for (size_t i = 0; i < slabs.size(); ++i) {
    m.slabs.push_back(
        {slabs[i], SlabChecksum(SlabBytes(m.key, static_cast<int64_t>(i), slabs[i]))});
  }
  return m;
}

HostStore::ChunkReader ReaderOf(const BaseManifest& m) {
  return [m](int64_t slab, int64_t chunk, absl::Span<uint8_t> dst) {
    const auto bytes = SlabBytes(m.key, slab, m.slabs[slab].bytes);
    std::memcpy(dst.data(), bytes.data() + chunk * m.chunk_bytes, dst.size());
    return absl::OkStatus();
  };
}

class HostStoreTest : public ::testing::Test {
 protected:
  HostStoreOptions Options() {
    HostStoreOptions options;
    options.segment_bytes = 8 * kMiB;
    options.reserve_bytes = 0;
    options.memory = &memory_;
    options.clock = &clock_;
    options.before_drop = [this](const std::string& key) { dropped_.push_back(key[0]); };
    return options;
  }
  absl::StatusOr<std::shared_ptr<const HostBase>> Load(HostStore& store, const BaseManifest& m) {
    clock_.AdvanceNs(1);
    return store.Load(m, ReaderOf(m), {});
  }

  FakeMemory memory_;
  engine::FakeClock clock_;
  std::vector<char> dropped_;
};

TEST_F(HostStoreTest, SlabsAreThereForWhoeverMapsTheDescriptors) {
  HostStore store(Options());
  const BaseManifest m = Manifest('a', {3 * kMiB + 7, 100, 9 * kMiB, 2 * kMiB});
  const auto base = Load(store, m);
  ASSERT_TRUE(base.ok()) << base.status();
  EXPECT_TRUE((*base)->Verify().ok());
  EXPECT_EQ((*base)->segments(), 3);  // 4+2 | 10, of its own | 2
  for (size_t i = 0; i < m.slabs.size(); ++i) {
    const SlabPlace& place = (*base)->slabs()[i];
    EXPECT_EQ(place.offset % kHugePageBytes, 0);
    EXPECT_EQ(place.xxh3, m.slabs[i].xxh3);
    const int64_t length = (*base)->segment_bytes(place.segment);
    void* p = mmap(nullptr, static_cast<size_t>(length), PROT_READ, MAP_SHARED,
                   (*base)->segment_fd(place.segment), 0);
    ASSERT_NE(p, MAP_FAILED);
    const auto want = SlabBytes(m.key, static_cast<int64_t>(i), place.bytes);
    EXPECT_EQ(std::memcmp(static_cast<uint8_t*>(p) + place.offset, want.data(), want.size()), 0);
    munmap(p, static_cast<size_t>(length));
  }
  EXPECT_EQ(store.pinned_bytes(), (*base)->bytes());
}

TEST_F(HostStoreTest, FilledSegmentsCannotBeWrittenOrResized) {
  HostStore store(Options());
  const auto base = Load(store, Manifest('a', {kMiB}));
  ASSERT_TRUE(base.ok()) << base.status();
  const int fd = (*base)->segment_fd(0);
  EXPECT_NE(ftruncate(fd, 0), 0);
  EXPECT_NE(ftruncate(fd, 64 * kMiB), 0);
  EXPECT_NE(pwrite(fd, "x", 1, 0), 1);
  EXPECT_EQ(mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0), MAP_FAILED);
}

TEST_F(HostStoreTest, SecondLoadIsTheSameBase) {
  HostStore store(Options());
  const BaseManifest m = Manifest('a', {kMiB});
  const auto first = Load(store, m);
  const auto second = store.Load(
      m, [](int64_t, int64_t, absl::Span<uint8_t>) { return absl::UnknownError("read again"); },
      {});
  ASSERT_TRUE(first.ok() && second.ok());
  EXPECT_EQ(first->get(), second->get());
  EXPECT_EQ(store.Find(m.key).get(), first->get());
  EXPECT_EQ(store.Find(MakeKey('b')), nullptr);
}

TEST_F(HostStoreTest, CallersAtTheSameTimeShareOneFilling) {
  HostStore store(Options());
  const BaseManifest m = Manifest('a', {3 * kMiB, 3 * kMiB});
  std::atomic<int> reads{0};
  const auto read = ReaderOf(m);
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&] {
      const auto base = store.Load(m,
                                   [&](int64_t slab, int64_t chunk, absl::Span<uint8_t> dst) {
                                     ++reads;
                                     return read(slab, chunk, dst);
                                   },
                                   {});
      EXPECT_TRUE(base.ok()) << base.status();
    });
  }
  for (std::thread& t : threads) t.join();
  EXPECT_EQ(reads, 6);
}

TEST_F(HostStoreTest, TooLittleMemoryIsRefusedWithBothNumbersBeforeATouch) {
  HostStoreOptions options = Options();
  options.reserve_bytes = 5 * kMiB;
  memory_.available = 10 * kMiB;
  HostStore store(options);
  const absl::Status status = Load(store, Manifest('a', {7 * kMiB})).status();
  EXPECT_TRUE(absl::IsResourceExhausted(status)) << status;
  for (const char* part : {"8388608", "5242880", "10485760", "a test"}) {
    EXPECT_THAT(std::string(status.message()), HasSubstr(part));
  }
  EXPECT_EQ(ShortageOf(status), Shortage::kMemoryNever);
  EXPECT_EQ(memory_.segments, 0);
  memory_.available = 13 * kMiB;
  EXPECT_TRUE(Load(store, Manifest('a', {7 * kMiB})).ok());
}

TEST_F(HostStoreTest, IdleBasesMakeRoomLeastRecentlyUsedFirst) {
  HostStoreOptions options = Options();
  options.limit_bytes = 8 * kMiB;
  HostStore store(options);
  const auto held = Load(store, Manifest('a', {2 * kMiB}));
  ASSERT_TRUE(held.ok());
  ASSERT_TRUE(Load(store, Manifest('b', {2 * kMiB})).ok());
  ASSERT_TRUE(Load(store, Manifest('c', {2 * kMiB})).ok());
  clock_.AdvanceNs(1);
  store.Find(MakeKey('b'));
  ASSERT_TRUE(Load(store, Manifest('d', {4 * kMiB})).ok());
  EXPECT_THAT(dropped_, ::testing::ElementsAre('c'));
  const absl::Status status = Load(store, Manifest('e', {8 * kMiB})).status();
  EXPECT_TRUE(absl::IsResourceExhausted(status)) << status;
  EXPECT_EQ(ShortageOf(status), Shortage::kMemoryInUse);
  EXPECT_NE(store.Find(MakeKey('a')), nullptr) << "in use: never dropped";
  EXPECT_EQ(ShortageOf(Load(store, Manifest('f', {9 * kMiB})).status()), Shortage::kMemoryNever);
}

TEST_F(HostStoreTest, DropNeedsAnIdleBase) {
  HostStore store(Options());
  auto base = Load(store, Manifest('a', {kMiB}));
  ASSERT_TRUE(base.ok());
  EXPECT_EQ(store.List()[0].holders, 1);
  EXPECT_TRUE(absl::IsFailedPrecondition(store.Drop(MakeKey('a')).status()));
  base->reset();
  const auto freed = store.Drop(MakeKey('a'));
  ASSERT_TRUE(freed.ok()) << freed.status();
  EXPECT_EQ(*freed, 2 * kMiB);
  EXPECT_EQ(store.pinned_bytes(), 0);
  EXPECT_TRUE(absl::IsNotFound(store.Drop(MakeKey('a')).status()));
}

TEST_F(HostStoreTest, BadBytesAndCancelsLeaveNothing) {
  HostStore store(Options());
  const BaseManifest m = Manifest('a', {3 * kMiB});
  const auto read = ReaderOf(m);
  const absl::Status bad = store
                               .Load(m,
                                     [&](int64_t slab, int64_t chunk, absl::Span<uint8_t> dst) {
                                       const absl::Status s = read(slab, chunk, dst);
                                       if (chunk == 2) dst[5] ^= 1;
                                       return s;
                                     },
                                     {})
                               .status();
  EXPECT_TRUE(absl::IsDataLoss(bad)) << bad;
  TaskControl control;
  std::atomic<int> asked{0};
  control.cancelled = [&] { return ++asked > 2; };
  EXPECT_TRUE(absl::IsCancelled(store.Load(m, read, control).status()));
  EXPECT_EQ(store.pinned_bytes(), 0);
  EXPECT_TRUE(Load(store, m).ok());
}

std::vector<engine::UniqueFd> Duplicates(const HostBase& base) {
  std::vector<engine::UniqueFd> fds;
  for (int i = 0; i < base.segments(); ++i) fds.emplace_back(dup(base.segment_fd(i)));
  return fds;
}

TEST_F(HostStoreTest, AttachTakesWholeSegmentsOnly) {
  const BaseManifest m = Manifest('a', {3 * kMiB, 9 * kMiB});
  HostStore before(Options());
  const auto base = Load(before, m);
  ASSERT_TRUE(base.ok());

  HostStore after(Options());
  const auto back = after.Attach(m, Duplicates(**base), {});
  ASSERT_TRUE(back.ok()) << back.status();
  EXPECT_EQ((*back)->slab(1), (*base)->slab(1));
  EXPECT_EQ(after.Find(m.key).get(), back->get());
  EXPECT_TRUE(absl::IsAlreadyExists(after.Attach(m, Duplicates(**base), {}).status()));

  HostStore other(Options());
  auto few = Duplicates(**base);
  few.pop_back();
  EXPECT_TRUE(absl::IsDataLoss(other.Attach(m, std::move(few), {}).status()));
  auto swapped = Duplicates(**base);
  std::swap(swapped[0], swapped[1]);
  EXPECT_TRUE(absl::IsDataLoss(other.Attach(m, std::move(swapped), {}).status()));
  BaseManifest wrong = m;
  wrong.slabs[1].xxh3 ^= 1;
  const absl::Status status = other.Attach(wrong, Duplicates(**base), {}).status();
  EXPECT_TRUE(absl::IsDataLoss(status)) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("slabs 1 "));
  EXPECT_EQ(other.Find(m.key), nullptr);
}

TEST_F(HostStoreTest, TierIsTheKernelsAnswer) {
  HostStoreOptions options = Options();
  options.memory = &RealHostMemory();
  HostStore store(options);
  const auto base = Load(store, Manifest('a', {4 * kMiB}));
  ASSERT_TRUE(base.ok()) << base.status();
  EXPECT_NE((*base)->tier(), MemoryTier::kPageable);
  RecordProperty("tier", MemoryTierName((*base)->tier()));
  std::printf("tier here: %s\n", MemoryTierName((*base)->tier()));
}

TEST(PlanSegments, SlabsAreAlignedAndSegmentsNotExceeded) {
  const BaseManifest m = Manifest('a', {kMiB, 3 * kMiB, 2 * kMiB, 20 * kMiB, 1});
  const SegmentPlan plan = PlanSegments(m, 8 * kMiB);
  EXPECT_THAT(plan.segment_bytes, ::testing::ElementsAre(8 * kMiB, 20 * kMiB, 2 * kMiB));
  EXPECT_EQ(plan.slabs[2].segment, 0);
  EXPECT_EQ(plan.slabs[2].offset, 6 * kMiB);
  EXPECT_EQ(plan.slabs[4].segment, 2);
}

}  // namespace
}  // namespace soup::cache
