#include "engine/io/confined_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <filesystem>

#include "tests/support/temp_dir.h"
#include "tests/support/whole_file.h"

namespace soup::engine {
namespace {

namespace fs = std::filesystem;
using ::soup::testing::TempDir;
using ::soup::testing::WriteWhole;

TEST(ConfinedFile, PipesAndFoldersAreRefusedWithoutBlocking) {
  TempDir dir;
  ASSERT_EQ(mkfifo((dir / "pipe").c_str(), 0600), 0);
  EXPECT_TRUE(absl::IsInvalidArgument(ConfinedFile::Open(dir / "pipe").status()));
  EXPECT_TRUE(absl::IsInvalidArgument(ConfinedFile::Open(dir.path()).status()));
  EXPECT_TRUE(absl::IsNotFound(ConfinedFile::Open(dir / "none").status()));
}

TEST(ConfinedFile, RootIsAFolderNotAPrefixOfAName) {
  TempDir dir;
  fs::create_directories(dir / "models");
  fs::create_directories(dir / "models-private");
  WriteWhole(dir / "models-private/a", "x");
  EXPECT_TRUE(absl::IsPermissionDenied(
      ConfinedFile::Open(dir / "models-private/a", {dir / "models"}).status()));
  EXPECT_TRUE(absl::IsPermissionDenied(
      ConfinedFile::Open(dir / "models/../models-private/a", {dir / "models"}).status()));
  EXPECT_TRUE(ConfinedFile::Open(dir / "models-private/a", {dir / "none", dir.path()}).ok());
  EXPECT_TRUE(ConfinedFile::Open(dir / "models-private/a", {"/"}).ok());
}

TEST(ConfinedFile, RootThatIsALinkCountsByWhereItLeads) {
  TempDir dir;
  fs::create_directories(dir / "real");
  WriteWhole(dir / "real/a", "x");
  fs::create_symlink("real", dir / "root");
  EXPECT_TRUE(ConfinedFile::Open(dir / "root/a", {dir / "root"}).ok());
  EXPECT_TRUE(ResolveFolder(dir / "root", {dir / "real"}).ok());
  EXPECT_TRUE(absl::IsPermissionDenied(ResolveFolder("/usr", {dir / "root"}).status()));
  EXPECT_TRUE(absl::IsInvalidArgument(ResolveFolder(dir / "root/a").status()));
}

TEST(ConfinedFile, ReadsExactlyAndWithinTheLimit) {
  TempDir dir;
  WriteWhole(dir / "a", "hello");
  const auto file = ConfinedFile::Open(dir / "a");
  ASSERT_TRUE(file.ok());
  EXPECT_EQ(*file->ReadAll(5), "hello");
  EXPECT_TRUE(absl::IsInvalidArgument(file->ReadAll(4).status()));
  char buf[8];
  EXPECT_TRUE(absl::IsDataLoss(file->Read(2, 4, buf)));
  EXPECT_EQ(*file->StampNow(), file->stamp());
}

}  // namespace
}  // namespace soup::engine
