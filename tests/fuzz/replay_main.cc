// replay FOLDER: every file of a corpus, each of its beginnings and each of its bytes changed,
// through the target. Exit 1 when there is no file.
#include <filesystem>
#include <fstream>
#include <iostream>
#include <iterator>
#include <string>

#include "tests/fuzz/fuzz_target.h"

namespace {

void Run(const std::string& bytes) {
  LLVMFuzzerTestOneInput(reinterpret_cast<const uint8_t*>(bytes.data()), bytes.size());
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) return 2;
  int files = 0;
  for (const auto& entry : std::filesystem::directory_iterator(argv[1])) {
    std::ifstream file(entry.path(), std::ios::binary);
    const std::string bytes((std::istreambuf_iterator<char>(file)), {});
    ++files;
    Run(bytes);
    const size_t step = bytes.size() / 200 + 1;  // about 200 places a file
    for (size_t at = 0; at < bytes.size(); at += step) {
      Run(bytes.substr(0, at));
      std::string changed = bytes;
      changed[at] = static_cast<char>(changed[at] ^ 0x15);
      Run(changed);
    }
  }
  std::cout << files << " files replayed\n";
  return files > 0 ? 0 : 1;
}
