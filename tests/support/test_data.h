// Where the tests' data lies: the source tree, or $SOUP_TEST_DATA when tests run on another machine
// (deploy/bundle.sh --with-tests).
#ifndef SOUP_TESTS_SUPPORT_TEST_DATA_H_
#define SOUP_TESTS_SUPPORT_TEST_DATA_H_

#include <cstdlib>
#include <string>

namespace soup {

// tests/<path>.
inline std::string TestDataPath(const std::string& path) {
  const char* there = std::getenv("SOUP_TEST_DATA");
  return std::string(there != nullptr ? there : SOUP_TEST_DATA_DIR) + "/" + path;
}

}  // namespace soup

#endif  // SOUP_TESTS_SUPPORT_TEST_DATA_H_
