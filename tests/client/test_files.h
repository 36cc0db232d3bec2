// Files of tests of the client: names, random bytes, TLS certificates; and what tests/support has.
#ifndef SOUP_TESTS_CLIENT_TEST_FILES_H_
#define SOUP_TESTS_CLIENT_TEST_FILES_H_

#include <string>
#include <vector>

#include "tests/support/temp_dir.h"
#include "tests/support/whole_file.h"

namespace soup::client {

using testing::ReadWhole;
using testing::TempDir;
using testing::WriteWhole;

// Names in a folder, sorted; those that begin with a dot, too.
std::vector<std::string> Names(const std::string& folder);
// `size` bytes that do not repeat, the same for the same seed.
std::string RandomBytes(size_t size, unsigned seed);

// A CA, and a certificate of its for localhost and soupd.test, made by the openssl program.
struct TlsFiles {
  std::string ca, certificate, key;  // paths
  std::string other_ca;              // a CA that has signed nothing here
};
TlsFiles MakeTlsFiles(const std::string& folder);

}  // namespace soup::client

#endif  // SOUP_TESTS_CLIENT_TEST_FILES_H_
