// Temporary folders, whole files, and TLS certificates for tests of the client.
#ifndef SOUP_TESTS_CLIENT_TEST_FILES_H_
#define SOUP_TESTS_CLIENT_TEST_FILES_H_

#include <string>
#include <vector>

namespace soup::client {

// A folder of its own under TMPDIR, removed at the end. Its path is short enough for a unix socket.
class TempFolder {
 public:
  TempFolder();
  TempFolder(const TempFolder&) = delete;
  TempFolder& operator=(const TempFolder&) = delete;
  ~TempFolder();
  const std::string& path() const { return path_; }
  std::string operator/(const std::string& name) const { return path_ + "/" + name; }

 private:
  std::string path_;
};

void WriteFile(const std::string& path, const std::string& data);
// Empty when there is none.
std::string ReadFile(const std::string& path);
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
