// A folder of a test's own, removed with all in it when the test ends. kInMemory: on /dev/shm where
// there is one, for tests that fsync often and hold little.
#ifndef SOUP_TESTS_SUPPORT_TEMP_DIR_H_
#define SOUP_TESTS_SUPPORT_TEMP_DIR_H_

#include <stdlib.h>
#include <unistd.h>

#include <filesystem>
#include <string>
#include <system_error>

namespace soup::testing {

class TempDir {
 public:
  enum Where { kDisk, kInMemory };
  explicit TempDir(Where where = kDisk) {
    const bool memory = where == kInMemory && access("/dev/shm", W_OK) == 0;
    const std::filesystem::path parent =
        memory ? std::filesystem::path("/dev/shm") : std::filesystem::temp_directory_path();
    std::string pattern = (parent / "soup-test-XXXXXX").string();
    if (mkdtemp(pattern.data()) != nullptr) path_ = pattern;
  }
  TempDir(const TempDir&) = delete;
  TempDir& operator=(const TempDir&) = delete;
  ~TempDir() {
    std::error_code ignored;
    if (!path_.empty()) std::filesystem::remove_all(path_, ignored);
  }
  const std::string& path() const { return path_; }
  std::string operator/(const std::string& name) const { return path_ + "/" + name; }

 private:
  std::string path_;
};

}  // namespace soup::testing

#endif  // SOUP_TESTS_SUPPORT_TEMP_DIR_H_
