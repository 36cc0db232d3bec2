#include "daemon/common/link.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>

#include <thread>

#include "soup/worker/v1/worker.pb.h"

namespace soup::daemon {
namespace {

using ::soup::worker::v1::ToWorker;

absl::Time Soon() { return absl::Now() + absl::Seconds(20); }

ToWorker RunPass(int64_t id) {
  ToWorker m;
  m.mutable_run_pass()->set_pass_id(id);
  return m;
}

int64_t PassId(const Frame& frame) {
  ToWorker m;
  EXPECT_TRUE(m.ParseFromString(frame.bytes));
  return m.run_pass().pass_id();
}

struct Pair {
  explicit Pair(LinkOptions options = {}) {
    auto fds = Link::MakePair();
    EXPECT_TRUE(fds.ok());
    a = std::make_unique<Link>(std::move(fds->first), options);
    b = std::make_unique<Link>(std::move(fds->second), options);
  }
  std::unique_ptr<Link> a, b;
};

UniqueFd MemoryFile(const std::string& content) {
  UniqueFd fd(::memfd_create("link_test", MFD_CLOEXEC));
  EXPECT_TRUE(fd.valid());
  EXPECT_EQ(::pwrite(fd.get(), content.data(), content.size(), 0),
            static_cast<ssize_t>(content.size()));
  return fd;
}

std::string ContentOf(const UniqueFd& fd) {
  struct stat st {};
  EXPECT_EQ(::fstat(fd.get(), &st), 0);
  std::string s(st.st_size, '\0');
  EXPECT_EQ(::pread(fd.get(), s.data(), s.size(), 0), static_cast<ssize_t>(s.size()));
  return s;
}

TEST(LinkTest, KeepsOrderBothWays) {
  Pair p;
  for (int i = 0; i < 500; ++i) {
    ASSERT_TRUE(p.a->Send(RunPass(i)).ok());
    ASSERT_TRUE(p.b->Send(RunPass(1000 + i)).ok());
  }
  for (int i = 0; i < 500; ++i) {
    auto fb = p.b->Receive(Soon());
    ASSERT_TRUE(fb.ok()) << fb.status();
    EXPECT_EQ(PassId(*fb), i);
    auto fa = p.a->Receive(Soon());
    ASSERT_TRUE(fa.ok()) << fa.status();
    EXPECT_EQ(PassId(*fa), 1000 + i);
  }
}

TEST(LinkTest, CarriesMessagesLargerThanTheSocketBuffer) {
  Pair p;
  ToWorker m;
  m.mutable_load_base()->set_config_json(std::string(20 << 20, 'x'));
  ASSERT_TRUE(p.a->Send(m).ok());
  auto frame = p.b->Receive(Soon());
  ASSERT_TRUE(frame.ok()) << frame.status();
  EXPECT_EQ(frame->bytes, m.SerializeAsString());
}

TEST(LinkTest, DescriptorsArriveWithTheirOwnMessage) {
  Pair p;
  const UniqueFd one = MemoryFile("one"), two = MemoryFile("two"), three = MemoryFile("three");
  ASSERT_TRUE(p.a->Send(RunPass(1), {one.get(), two.get()}).ok());
  ASSERT_TRUE(p.a->Send(RunPass(2)).ok());
  ASSERT_TRUE(p.a->Send(RunPass(3), {three.get()}).ok());
  auto f1 = p.b->Receive(Soon());
  auto f2 = p.b->Receive(Soon());
  auto f3 = p.b->Receive(Soon());
  ASSERT_TRUE(f1.ok() && f2.ok() && f3.ok());
  ASSERT_EQ(f1->fds.size(), 2u);
  EXPECT_EQ(ContentOf(f1->fds[0]), "one");
  EXPECT_EQ(ContentOf(f1->fds[1]), "two");
  EXPECT_NE(::fcntl(f1->fds[0].get(), F_GETFD) & FD_CLOEXEC, 0);
  EXPECT_TRUE(f2->fds.empty());
  ASSERT_EQ(f3->fds.size(), 1u);
  EXPECT_EQ(ContentOf(f3->fds[0]), "three");
}

TEST(LinkTest, CarriesAsManyDescriptorsAsTheKernelAllowsAndRefusesMore) {
  Pair p;
  const UniqueFd file = MemoryFile("x");
  const std::vector<int> most(kMaxFrameDescriptors, file.get());
  ASSERT_TRUE(p.a->Send(RunPass(1), most).ok());
  auto frame = p.b->Receive(Soon());
  ASSERT_TRUE(frame.ok()) << frame.status();
  EXPECT_EQ(frame->fds.size(), most.size());
  const std::vector<int> more(kMaxFrameDescriptors + 1, file.get());
  EXPECT_TRUE(absl::IsInvalidArgument(p.a->Send(RunPass(2), more)));
}

TEST(LinkTest, EndOfTheStreamIsTold) {
  Pair p;
  ASSERT_TRUE(p.a->Send(RunPass(7)).ok());
  ASSERT_TRUE(p.a->Flush(Soon()));
  p.a.reset();
  auto frame = p.b->Receive(Soon());
  ASSERT_TRUE(frame.ok()) << frame.status();
  EXPECT_EQ(PassId(*frame), 7);
  EXPECT_TRUE(absl::IsOutOfRange(p.b->Receive(Soon()).status()));
  EXPECT_TRUE(absl::IsOutOfRange(p.b->Receive(Soon()).status())) << "the end stays the end";
}

TEST(LinkTest, APartialFrameOutlivesADeadline) {
  auto fds = Link::MakePair();
  ASSERT_TRUE(fds.ok());
  Link link(std::move(fds->second));
  const std::string body = RunPass(42).SerializeAsString();
  std::string bytes = {static_cast<char>(body.size()), 0, 0, 0};
  bytes += body;
  for (char c : bytes) {
    EXPECT_TRUE(absl::IsDeadlineExceeded(link.Receive(absl::Now()).status()));
    ASSERT_EQ(::write(fds->first.get(), &c, 1), 1);
  }
  auto frame = link.Receive(Soon());
  ASSERT_TRUE(frame.ok()) << frame.status();
  EXPECT_EQ(PassId(*frame), 42);
}

TEST(LinkTest, AHostileLengthAndABrokenFrameAreDataLoss) {
  {
    auto fds = Link::MakePair();
    ASSERT_TRUE(fds.ok());
    Link link(std::move(fds->second), LinkOptions{1000, 1000});
    const unsigned char huge[4] = {0xff, 0xff, 0xff, 0xff};
    ASSERT_EQ(::write(fds->first.get(), huge, 4), 4);
    auto frame = link.Receive(Soon());
    EXPECT_TRUE(absl::IsDataLoss(frame.status())) << frame.status();
    EXPECT_THAT(std::string(frame.status().message()), ::testing::HasSubstr("4294967295"));
  }
  {
    auto fds = Link::MakePair();
    ASSERT_TRUE(fds.ok());
    Link link(std::move(fds->second));
    const char half[6] = {100, 0, 0, 0, 'a', 'b'};
    ASSERT_EQ(::write(fds->first.get(), half, 6), 6);
    fds->first.Reset();
    EXPECT_TRUE(absl::IsDataLoss(link.Receive(Soon()).status()));
  }
}

TEST(LinkTest, APeerThatDoesNotReadCostsTheQueueAndThenAnError) {
  auto fds = Link::MakePair();
  ASSERT_TRUE(fds.ok());
  Link link(std::move(fds->first), LinkOptions{1 << 20, 4 << 20});
  ToWorker m;
  m.mutable_load_base()->set_config_json(std::string(900 << 10, 'x'));
  absl::Status status;
  for (int i = 0; i < 100 && status.ok(); ++i) status = link.Send(m);
  EXPECT_TRUE(absl::IsResourceExhausted(status)) << status;
  EXPECT_FALSE(link.Flush(absl::Now()));
  m.mutable_load_base()->set_config_json(std::string(2 << 20, 'x'));
  EXPECT_TRUE(absl::IsResourceExhausted(link.Send(m)));  // the destructor must not hang either
}

TEST(LinkTest, CloseWakesTheReader) {
  Pair p;
  absl::Status got;
  std::thread reader([&] { got = p.b->Receive().status(); });
  p.b->Close();
  reader.join();
  EXPECT_TRUE(absl::IsUnavailable(got)) << got;
  EXPECT_TRUE(absl::IsUnavailable(p.b->Send(RunPass(1))));
}

}  // namespace
}  // namespace soup::daemon
