#include "daemon/worker/host_memory.h"

#include <cstdio>
#include <fstream>
#include <string>

#include "absl/strings/str_cat.h"
#include "engine/base/available_memory.h"

namespace soup::worker {
namespace {

int64_t MemInfo(const char* key) {
  std::ifstream in("/proc/meminfo");
  const std::string prefix = absl::StrCat(key, ":");
  for (std::string line; std::getline(in, line);) {
    long long kib = 0;
    if (line.rfind(prefix, 0) == 0 &&
        std::sscanf(line.c_str() + prefix.size(), " %lld kB", &kib) == 1)
      return kib * 1024;
  }
  return 0;
}

}  // namespace

int64_t HostMemoryTotal() { return MemInfo("MemTotal"); }
int64_t HostMemoryAvailable() {
  const auto available = engine::ReadAvailableMemory("");
  return available.ok() ? available->bytes : 0;
}

}  // namespace soup::worker
