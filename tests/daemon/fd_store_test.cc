// The host store's memory over a restart of soupd, with the test in systemd's part: what soupd
// hands over on NOTIFY_SOCKET is passed back to the next soupd as LISTEN_FDS.
#include "daemon/control/fd_store.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>

#include "tests/daemon/harness.h"

namespace soup::daemon {
namespace {

using engine::UniqueFd;
using soup::v1::Job;
using soup::v1::JobSpec;
using ::testing::HasSubstr;

int AnyFd() { return ::memfd_create("segment", MFD_CLOEXEC); }

TEST(FdStoreTest, SegmentsAreSortedAndIncompleteBasesLeftOut) {
  const std::string a = "0123456789abcdef0123456789abcdef/nf4-dq", b = "ff/bf16";
  const int stranger = AnyFd();
  AttachedSegments found = SortSegments(
      {SegmentName(a, 1), "stored", SegmentName(b, 1), SegmentName(a, 0), "soup-base.x.y.-1"},
      {AnyFd(), stranger, AnyFd(), AnyFd(), AnyFd()});
  EXPECT_EQ(found.size(), 1u);
  EXPECT_EQ(found[a].size(), 2u);
  EXPECT_NE(::fcntl(stranger, F_GETFD), -1) << "what is not ours is left open";
  ::close(stranger);
}

// The service manager's socket.
class Manager {
 public:
  explicit Manager(const std::string& path) : path_(path) {
    socket_ = UniqueFd(::socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0));
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    std::strncpy(address.sun_path, path.c_str(), sizeof address.sun_path - 1);
    EXPECT_EQ(::bind(socket_.get(), reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
    const timeval patience{30, 0};
    ::setsockopt(socket_.get(), SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
  }
  const std::string& path() const { return path_; }

  // Reads messages until one with FDSTORE=1 came. Its name; the descriptor goes to `fd`.
  std::string AwaitStore(UniqueFd* fd) {
    for (;;) {
      char text[4096];
      iovec iov{text, sizeof text};
      alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int) * 8)];
      msghdr message{};
      message.msg_iov = &iov;
      message.msg_iovlen = 1;
      message.msg_control = control;
      message.msg_controllen = sizeof control;
      const ssize_t n = ::recvmsg(socket_.get(), &message, MSG_CMSG_CLOEXEC);
      if (n <= 0) return "";
      UniqueFd received;
      for (cmsghdr* c = CMSG_FIRSTHDR(&message); c != nullptr; c = CMSG_NXTHDR(&message, c)) {
        if (c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_RIGHTS) continue;
        int raw;
        std::memcpy(&raw, CMSG_DATA(c), sizeof raw);
        received = UniqueFd(raw);
      }
      const std::string lines(text, static_cast<size_t>(n));
      const size_t name = lines.find("FDNAME=");
      if (lines.find("FDSTORE=1") == std::string::npos || name == std::string::npos) continue;
      *fd = std::move(received);
      return lines.substr(name + 7, lines.find('\n', name) - name - 7);
    }
  }

 private:
  const std::string path_;
  UniqueFd socket_;
};

TEST(FdStoreTest, TheNextSoupdFindsTheBaseInMemory) {
  std::string pattern = "/tmp/notifyXXXXXX";
  const std::string dir = ::mkdtemp(pattern.data());
  {
    Manager manager(dir + "/notify");
    Harness h({.flags = {}, .state_dir = "", .environment = {"NOTIFY_SOCKET=" + manager.path()}});
    ASSERT_TRUE(h.Start().ok());
    const JobSpec spec =
        h.Spec("kept", ReadFileOrEmpty(TestData("cases/17-save-on-full-disk/train.jsonl")));
    const Job first = h.Submit(spec);
    h.WaitFor(first.id(), {soup::v1::SUCCEEDED});
    UniqueFd segment;
    const std::string name = manager.AwaitStore(&segment);
    ASSERT_THAT(name, HasSubstr(h.Get(first.id()).base_fingerprint()));
    ASSERT_TRUE(segment.valid());
    h.KillSoupd();
    ASSERT_TRUE(h.StartWithDescriptors({segment.get()}, {name}).ok());
    EXPECT_THAT(h.log(), HasSubstr("taken back from systemd"));
    const Job second = h.Submit(spec);
    h.WaitFor(second.id(), {soup::v1::SUCCEEDED});
    EXPECT_THAT(ReadFileOrEmpty(h.state_dir() + "/jobs/" + second.id() + "/log.txt"),
                HasSubstr("already in host memory"));
    EXPECT_TRUE(h.Adapter(first.id()) == h.Adapter(second.id()));
    // Memory that is not what the manifest says is not taken.
    h.KillSoupd();
    const UniqueFd wrong(AnyFd());
    ASSERT_EQ(::ftruncate(wrong.get(), 6 << 20), 0);
    ASSERT_TRUE(h.StartWithDescriptors({wrong.get()}, {name}).ok());
    EXPECT_THAT(h.log(), HasSubstr("is not taken back"));
    const Job third = h.Submit(spec);
    h.WaitFor(third.id(), {soup::v1::SUCCEEDED});
    EXPECT_TRUE(h.Adapter(first.id()) == h.Adapter(third.id()));
  }
  std::filesystem::remove_all(dir);
}

}  // namespace
}  // namespace soup::daemon
