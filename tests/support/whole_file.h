// Whole files in tests, without error handling of their own: a failed read gives "".
#ifndef SOUP_TESTS_SUPPORT_WHOLE_FILE_H_
#define SOUP_TESTS_SUPPORT_WHOLE_FILE_H_

#include <fstream>
#include <iterator>
#include <string>

namespace soup::testing {

inline std::string ReadWhole(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
}

inline void WriteWhole(const std::string& path, const std::string& data) {
  std::ofstream(path, std::ios::binary | std::ios::trunc) << data;
}

}  // namespace soup::testing

#endif  // SOUP_TESTS_SUPPORT_WHOLE_FILE_H_
