// The host's file system behind the port, and the faulty one that tests put in its place.
#include "engine/base/file_system.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <string>

#include "engine/base/fault_file_system.h"
#include "tests/support/temp_dir.h"

namespace soup::engine {
namespace {

using ::soup::testing::TempDir;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

class FileSystemTest : public ::testing::Test {
 protected:
  TempDir dir_;
  FileSystem& fs_ = RealFileSystem();
};

TEST_F(FileSystemTest, FilesAreWrittenWhole) {
  const std::string path = dir_ / "a";
  ASSERT_TRUE(fs_.WriteFileSynced(path, "one").ok());
  ASSERT_TRUE(fs_.AppendFile(path, "two", true).ok());
  EXPECT_EQ(*fs_.ReadFile(path), "onetwo");
  EXPECT_EQ(*fs_.FileSize(path), 6);
  ASSERT_TRUE(fs_.Truncate(path, 3).ok());
  ASSERT_TRUE(WriteFileAtomically(fs_, dir_ / "b", *fs_.ReadFile(path)).ok());
  EXPECT_EQ(*fs_.ReadFile(dir_ / "b"), "one");
  EXPECT_THAT(*fs_.ListDirectory(dir_.path()), ElementsAre("a", "b"));
  ASSERT_TRUE(fs_.SyncDirectory(dir_.path()).ok());
  ASSERT_TRUE(fs_.Remove(path).ok());
  ASSERT_TRUE(fs_.Remove(path).ok()) << "absent is OK";
  EXPECT_FALSE(fs_.Exists(path));
}

TEST_F(FileSystemTest, DirectoriesArePrivate) {
  const std::string path = dir_ / "x/y/z";
  ASSERT_TRUE(fs_.CreateDirectories(path).ok());
  ASSERT_TRUE(fs_.CreateDirectories(path).ok()) << "already there is OK";
  struct stat st;
  ASSERT_EQ(stat(path.c_str(), &st), 0);
  EXPECT_EQ(st.st_mode & 0777, 0700u);
  ASSERT_TRUE(fs_.WriteFileSynced(dir_ / "file", "").ok());
  EXPECT_FALSE(fs_.CreateDirectories(dir_ / "file").ok());
  ASSERT_TRUE(fs_.RemoveTree(dir_ / "x").ok());
  EXPECT_FALSE(fs_.Exists(dir_ / "x"));
}

TEST_F(FileSystemTest, AReservedFileHasItsBlocks) {
  const std::string path = dir_ / "reserved";
  constexpr int64_t kBytes = 3 << 20;
  ASSERT_TRUE(fs_.ReserveFile(path, kBytes).ok());
  struct stat st;
  ASSERT_EQ(stat(path.c_str(), &st), 0);
  EXPECT_EQ(st.st_size, kBytes);
  EXPECT_GE(st.st_blocks * 512, kBytes);
  EXPECT_EQ(fs_.ReadFile(path)->find_first_not_of('\0'), std::string::npos);
}

TEST_F(FileSystemTest, ErrorsNameThePath) {
  const std::string path = dir_ / "nothing/here";
  for (const absl::Status& status :
       {fs_.ReadFile(path).status(), fs_.FileSize(path).status(), fs_.ListDirectory(path).status(),
        fs_.WriteFileSynced(path, "x"), fs_.AppendFile(path, "x", false),
        fs_.RenameSynced(path, path), fs_.Truncate(path, 1), fs_.SyncDirectory(path),
        fs_.ReserveFile(path, 1)}) {
    EXPECT_EQ(status.code(), absl::StatusCode::kNotFound) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr(path));
  }
}

// Nobody writes into the pipe: reading it would wait for ever.
TEST_F(FileSystemTest, WhatIsNoRegularFileIsRefusedByNameAndAtOnce) {
  const std::string pipe = dir_ / "tokenizer.json", link = dir_ / "link";
  ASSERT_EQ(mkfifo(pipe.c_str(), 0600), 0);
  ASSERT_EQ(symlink(pipe.c_str(), link.c_str()), 0);
  const std::string socket_path = dir_ / "socket";
  const int fd = socket(AF_UNIX, SOCK_STREAM, 0);
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  socket_path.copy(address.sun_path, sizeof address.sun_path - 1);
  ASSERT_EQ(bind(fd, reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
  close(fd);
  for (const std::string& path :
       {pipe, link, socket_path, dir_.path(), std::string("/dev/zero"), std::string("/dev/tty")}) {
    const absl::Status status = fs_.ReadFile(path).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition) << status;
    EXPECT_THAT(std::string(status.message()),
                AllOf(HasSubstr(path), HasSubstr("not a regular file")));
  }
  EXPECT_TRUE(fs_.ReadFile("/proc/self/status").ok());
  ASSERT_TRUE(fs_.WriteFileSynced(dir_ / "file", "x").ok());
  ASSERT_EQ(symlink("file", (dir_ / "good").c_str()), 0);
  EXPECT_EQ(*fs_.ReadFile(dir_ / "good"), "x");
}

TEST_F(FileSystemTest, DescriptorsThatRanOutAreToldApart) {
  for (int error : {EMFILE, ENFILE}) {
    const absl::Status status = ErrnoStatus(error, "open", dir_ / "file");
    EXPECT_TRUE(OutOfDescriptors(status)) << status;
    EXPECT_THAT(std::string(status.message()), AllOf(HasSubstr(dir_ / "file"), HasSubstr("limit")));
  }
  EXPECT_FALSE(OutOfDescriptors(absl::OkStatus()));
  EXPECT_FALSE(OutOfDescriptors(ErrnoStatus(ENOENT, "open", dir_ / "Too many open files")));
}

TEST_F(FileSystemTest, AFullDiskTellsNeededAndFree) {
  for (int error : {ENOSPC, EDQUOT, EFBIG}) {
    const absl::Status status = ErrnoStatus(error, "write", dir_ / "file", 12345);
    EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
    EXPECT_THAT(std::string(status.message()),
                AllOf(HasSubstr(dir_ / "file"), HasSubstr("12345 bytes needed"),
                      HasSubstr("bytes free"), ::testing::Not(HasSubstr("unknown bytes free"))));
  }
  EXPECT_EQ(ErrnoStatus(EIO, "read", "x").code(), absl::StatusCode::kDataLoss);
  EXPECT_EQ(ErrnoStatus(EROFS, "write", "x").code(), absl::StatusCode::kPermissionDenied);
}

TEST_F(FileSystemTest, AtomicWritesKeepTheOldOnAnyFailure) {
  const std::string path = dir_ / "state";
  for (FileOperation operation :
       {FileOperation::kWrite, FileOperation::kFsync, FileOperation::kRename}) {
    ASSERT_TRUE(WriteFileAtomically(fs_, path, "old").ok());
    FaultyFileSystem faulty(fs_);
    faulty.Fail(operation, "state", ENOSPC);
    EXPECT_EQ(WriteFileAtomically(faulty, path, "new and longer").code(),
              absl::StatusCode::kResourceExhausted);
    EXPECT_EQ(*fs_.ReadFile(path), "old");
    EXPECT_THAT(*fs_.ListDirectory(dir_.path()), ElementsAre("state"));
    EXPECT_EQ(faulty.failures(), 1);
  }
}

TEST_F(FileSystemTest, FaultsActAsADiskWould) {
  FaultyFileSystem faulty(fs_);
  faulty.Fail(FileOperation::kWrite, "half", ENOSPC);
  EXPECT_FALSE(faulty.WriteFileSynced(dir_ / "half", "12345678").ok());
  EXPECT_EQ(*fs_.ReadFile(dir_ / "half"), "1234") << "a part was written";
  EXPECT_TRUE(faulty.WriteFileSynced(dir_ / "other", "x").ok());
  faulty.Heal();
  EXPECT_TRUE(faulty.WriteFileSynced(dir_ / "half", "12345678").ok());

  faulty.Fail(FileOperation::kFsync, "", EIO, {.after = 1, .times = 1});
  EXPECT_TRUE(faulty.WriteFileSynced(dir_ / "f", "1").ok());
  EXPECT_EQ(faulty.WriteFileSynced(dir_ / "f", "22").code(), absl::StatusCode::kDataLoss);
  EXPECT_EQ(*fs_.ReadFile(dir_ / "f"), "22");
  EXPECT_TRUE(faulty.WriteFileSynced(dir_ / "f", "333").ok());
  faulty.Heal();

  faulty.Fail(FileOperation::kFsyncDirectory, "", EIO);
  EXPECT_FALSE(faulty.RenameSynced(dir_ / "f", dir_ / "g").ok());
  EXPECT_TRUE(fs_.Exists(dir_ / "g")) << "renamed, but not known to be durable";
  faulty.Heal();
  faulty.Fail(FileOperation::kAny, "", EDQUOT);
  EXPECT_FALSE(faulty.ReserveFile(dir_ / "r", 100).ok());
  EXPECT_FALSE(faulty.Remove(dir_ / "g").ok());
  EXPECT_FALSE(faulty.ReadFile(dir_ / "g").ok());
  EXPECT_FALSE(faulty.CreateDirectories(dir_ / "d", 0700).ok());
  EXPECT_FALSE(faulty.Truncate(dir_ / "g", 0).ok());
  EXPECT_FALSE(faulty.AppendFile(dir_ / "g", "xx", true).ok());
  EXPECT_EQ(faulty.failures(), 9);
}

}  // namespace
}  // namespace soup::engine
