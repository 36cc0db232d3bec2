// What soupctl doctor finds: each check with its result and, when it is not good, the remedy.
// The judgements are pure functions of what was seen, so tests can feed them.
#ifndef SOUP_CLIENT_DOCTOR_H_
#define SOUP_CLIENT_DOCTOR_H_

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "client/connection.h"
#include "soup/v1/soup.pb.h"

namespace soup::client {

struct Check {
  enum class Result { kGood, kWarning, kBad };
  std::string name;
  Result result;
  std::string detail;
  std::string remedy;  // empty when good
};
const char* ResultName(Check::Result result);  // ok, warning, bad

// This host's huge pages, for a soupd on it (a unix endpoint).
struct HugePages {
  bool known = false;
  int64_t reserved_pages = 0;  // HugePages_Total of /proc/meminfo
  int64_t free_pages = 0;
  int64_t page_bytes = 0;
  std::string transparent_shmem;  // the choice in /sys/kernel/mm/transparent_hugepage/shmem_enabled
};
HugePages ReadHugePages();

// The first failed call to soupd, as a check.
Check ConnectionCheck(const Connection& connection, const absl::Status& status);
// Everything that a node's answer tells.
std::vector<Check> NodeChecks(const soup::v1::Node& node, const std::string& client_version);
Check HugePageCheck(const HugePages& pages, const soup::v1::Node& node);

}  // namespace soup::client

#endif  // SOUP_CLIENT_DOCTOR_H_
