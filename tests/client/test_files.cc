#include "tests/client/test_files.h"

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <random>

#include "engine/base/log.h"

namespace soup::client {

std::vector<std::string> Names(const std::string& folder) {
  std::vector<std::string> names;
  std::error_code ec;
  for (const auto& entry : std::filesystem::directory_iterator(folder, ec)) {
    names.push_back(entry.path().filename().string());
  }
  std::sort(names.begin(), names.end());
  return names;
}

std::string RandomBytes(size_t size, unsigned seed) {
  std::mt19937 rng(seed);
  std::string out(size, '\0');
  for (char& c : out) c = static_cast<char>(rng());
  return out;
}

TlsFiles MakeTlsFiles(const std::string& folder) {
  TlsFiles files{folder + "/ca.pem", folder + "/cert.pem", folder + "/key.pem",
                 folder + "/other.pem"};
  const std::string script =
      "cd '" + folder +
      "' && {"
      " for ca in ca other; do openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1"
      "  -nodes -days 2 -subj \"/CN=$ca\" -keyout $ca.key -out $ca.pem || exit 1; done &&"
      " openssl req -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -subj /CN=soupd"
      "  -keyout key.pem -out soupd.csr &&"
      " echo subjectAltName=DNS:localhost,DNS:soupd.test > san &&"
      " openssl x509 -req -in soupd.csr -CA ca.pem -CAkey ca.key -CAcreateserial -days 2"
      "  -extfile san -out cert.pem; } > openssl.log 2>&1";
  SOUP_CHECK(std::system(script.c_str()) == 0);
  return files;
}

}  // namespace soup::client
