// What the tests of engine/data share: a directory of their own, small files, and the model folders
// of tests/cases.
#ifndef SOUP_TESTS_ENGINE_DATA_DATA_TEST_UTIL_H_
#define SOUP_TESTS_ENGINE_DATA_DATA_TEST_UTIL_H_

#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "engine/base/file_system.h"

namespace soup::engine {

inline std::string TestFile(absl::string_view name) {
  return absl::StrCat(SOUP_TEST_DATA_DIR, "/", name);
}

inline std::string ReadTestFile(absl::string_view name) {
  const auto text = RealFileSystem().ReadFile(TestFile(name));
  EXPECT_TRUE(text.ok()) << text.status();
  return text.value_or("");
}

// A new, empty directory that goes when the object dies.
class TempDir {
 public:
  TempDir() {
    std::string pattern = absl::StrCat(::testing::TempDir(), "/soup_data_XXXXXX");
    EXPECT_NE(mkdtemp(pattern.data()), nullptr);
    path_ = pattern;
  }
  TempDir(const TempDir&) = delete;
  TempDir& operator=(const TempDir&) = delete;
  ~TempDir() { (void)RealFileSystem().RemoveTree(path_); }

  const std::string& path() const { return path_; }
  std::string Write(absl::string_view name, absl::string_view data) const {
    const std::string full = absl::StrCat(path_, "/", name);
    std::ofstream file(full, std::ios::binary | std::ios::trunc);  // no fsync: many small files
    file.write(data.data(), static_cast<std::streamsize>(data.size()));
    file.close();
    EXPECT_TRUE(file.good()) << full;
    return full;
  }
  // The byte tokenizer's folder, with files of a case on top.
  void MakeBase(absl::string_view case_name = "") const {
    for (absl::string_view file : {"tokenizer.json", "tokenizer_config.json"}) {
      const std::string over = absl::StrCat("cases/", case_name, "/", file);
      const bool has = !case_name.empty() && RealFileSystem().Exists(TestFile(over));
      Write(file, ReadTestFile(has ? over : absl::StrCat("cases/_base/bytes/", file)));
    }
  }

 private:
  std::string path_;
};

}  // namespace soup::engine

#endif  // SOUP_TESTS_ENGINE_DATA_DATA_TEST_UTIL_H_
