#include "client/doctor.h"

#include <fstream>
#include <sstream>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "client/exit_codes.h"
#include "client/terminal.h"
#include "client/units.h"

namespace soup::client {
namespace {

using soup::v1::Node;
using Result = Check::Result;

constexpr int64_t kLeastDiskBytes = int64_t{10} << 30;
constexpr double kLeastMemoryPart = 0.1;
constexpr int64_t kSilentWorkerMs = 30'000;
constexpr int kManyRestarts = 3;

std::string Size(int64_t bytes) { return HumanSize(static_cast<double>(bytes)); }

Check VersionCheck(const Node& node, const std::string& client_version) {
  Check check{"version", Result::kGood,
              absl::StrCat("soupctl ", client_version, ", soupd ", Printable(node.version())), ""};
  if (node.version() != client_version) {
    check.result = Result::kWarning;
    check.remedy = "install the same version of both; a newer field may be unknown to the older";
  }
  return check;
}

Check MemoryCheck(const Node& node) {
  Check check{"memory", Result::kGood,
              absl::StrCat(Size(node.memory_available_bytes()), " available of ",
                           Size(node.memory_total_bytes())),
              ""};
  if (static_cast<double>(node.memory_available_bytes()) <
      kLeastMemoryPart * static_cast<double>(node.memory_total_bytes())) {
    check.result = Result::kWarning;
    check.remedy = "bases may not fit into the host store: end other programs, or wait for jobs";
  }
  return check;
}

Check DiskCheck(const Node& node) {
  Check check{
      "state directory", Result::kGood,
      absl::StrCat(Printable(node.state_dir()), ", ", Size(node.state_dir_free_bytes()), " free"),
      ""};
  if (node.state_dir_free_bytes() < kLeastDiskBytes) {
    check.result = Result::kWarning;
    check.remedy =
        "imports and checkpoints need room: remove files, or evict bases (soupctl cache ls)";
  }
  return check;
}

Check StorageCheck(const Node& node) {
  if (node.storage_healthy()) return {"storage", Result::kGood, "healthy", ""};
  return {"storage", Result::kBad, Printable(node.storage_message()),
          "make room on the state directory's disk or mend it; paused jobs then go on with: "
          "soupctl resume"};
}

Check ModelRootCheck(const Node& node) {
  if (node.model_roots().empty()) {
    return {"model roots", Result::kBad, "soupd has none, so no base can be used",
            "start soupd with --model-root DIR, where DIR holds the model folders"};
  }
  return {"model roots", Result::kGood, Printable(absl::StrJoin(node.model_roots(), ", ")), ""};
}

Check DeviceCheck(const Node& node) {
  if (node.devices().empty()) {
    return {"devices", Result::kBad, "soupd knows of none", "see the log of soupd"};
  }
  std::vector<std::string> names;
  for (const auto& d : node.devices()) {
    names.push_back(absl::StrCat(d.index(), " ", Printable(d.name()), " (", Printable(d.backend()),
                                 ", ", Size(d.free_bytes()), " free)"));
  }
  return {"devices", Result::kGood, absl::StrJoin(names, ", "), ""};
}

Check WorkerCheck(const soup::v1::WorkerInfo& worker) {
  Check check{absl::StrCat("worker ", Printable(worker.device())), Result::kGood,
              absl::StrCat("pid ", worker.pid(), ", ", Printable(worker.state()), ", restarts ",
                           worker.restarts(), ", heard ", worker.heartbeat_age_ms(), " ms ago"),
              ""};
  if (worker.heartbeat_age_ms() > kSilentWorkerMs) {
    check.result = Result::kBad;
    check.remedy = "the worker is silent; soupd restarts it by itself, see the log of soupd";
  } else if (worker.restarts() >= kManyRestarts) {
    check.result = Result::kWarning;
    check.remedy = "the worker died often; see the log of soupd for why";
  }
  return check;
}

// "always [advise] never" -> "advise".
std::string Chosen(const std::string& choices) {
  const size_t open = choices.find('['), close = choices.find(']');
  if (open == std::string::npos || close == std::string::npos || close < open) return "";
  return choices.substr(open + 1, close - open - 1);
}

}  // namespace

const char* ResultName(Result result) {
  switch (result) {
    case Result::kGood:
      return "ok";
    case Result::kWarning:
      return "warning";
    case Result::kBad:
      return "bad";
  }
  return "";
}

HugePages ReadHugePages() {
  HugePages pages;
  std::ifstream meminfo("/proc/meminfo");
  std::string line;
  while (std::getline(meminfo, line)) {
    std::istringstream fields(line);
    std::string key;
    int64_t value = 0;
    fields >> key >> value;
    if (key == "HugePages_Total:") {
      pages.reserved_pages = value;
      pages.known = true;
    } else if (key == "HugePages_Free:") {
      pages.free_pages = value;
    } else if (key == "Hugepagesize:") {
      pages.page_bytes = value * 1024;
    }
  }
  std::ifstream shmem("/sys/kernel/mm/transparent_hugepage/shmem_enabled");
  if (std::getline(shmem, line)) pages.transparent_shmem = Chosen(line);
  return pages;
}

Check ConnectionCheck(const Connection& connection, const absl::Status& status) {
  const std::string where =
      absl::StrCat(connection.endpoint, " (from ", connection.endpoint_from, ")");
  if (status.ok()) return {"endpoint", Result::kGood, where, ""};
  Check check{"endpoint", Result::kBad, absl::StrCat(where, ": ", status.message()), ""};
  if (ExitCodeOf(status) == ExitCode::kAuth) {
    check.name = "auth";
    check.remedy = connection.is_unix
                       ? "soupd does not admit your user; ask its admin"
                       : "get a token from soupd's admin (soupd token new USER), then: soupctl "
                         "context add NAME --endpoint HOST:PORT --token-file FILE --ca FILE";
  } else if (connection.is_unix) {
    check.remedy =
        "start soupd (systemctl start soupd, or soupd --model-root DIR), or name its "
        "socket with --endpoint unix:PATH";
  } else if (absl::StrContains(status.message(), "andshake") ||
             absl::StrContains(status.message(), "ertificate") ||
             absl::StrContains(status.message(), "SSL")) {
    check.remedy =
        "the TLS handshake failed: give the CA of soupd's certificate with --ca, and "
        "--server-name when the certificate has another name";
  } else {
    check.remedy =
        "is the host up, soupd started with --listen-tcp, and the port open in the "
        "firewall?";
  }
  return check;
}

std::vector<Check> NodeChecks(const Node& node, const std::string& client_version) {
  std::vector<Check> checks = {
      {"auth", Result::kGood,
       absl::StrCat("you are ", Printable(node.user()), node.admin() ? ", an admin" : ""), ""},
      VersionCheck(node, client_version),
      DeviceCheck(node),
      ModelRootCheck(node),
      MemoryCheck(node),
      DiskCheck(node),
      StorageCheck(node)};
  for (const auto& worker : node.workers()) checks.push_back(WorkerCheck(worker));
  return checks;
}

Check HugePageCheck(const HugePages& pages, const Node& node) {
  std::vector<std::string> slow;
  for (const auto& base : node.bases()) {
    if (base.tier() == "plain" || base.tier() == "pageable") {
      slow.push_back(absl::StrCat(base.fingerprint().substr(0, 12), " ", base.tier()));
    }
  }
  std::string detail;
  if (pages.known) {
    detail = absl::StrCat(pages.free_pages, " of ", pages.reserved_pages, " reserved pages of ",
                          Size(pages.page_bytes), " free; transparent for shared memory: ",
                          pages.transparent_shmem.empty() ? "not known" : pages.transparent_shmem);
  } else {
    detail = node.bases().empty() ? "soupd is on another host and holds no base yet"
                                  : "as the bases in the host store show";
  }
  if (!slow.empty()) {
    absl::StrAppend(&detail, "; bases in small pages: ", absl::StrJoin(slow, ", "));
  }
  const bool transparent = pages.transparent_shmem == "advise" ||
                           pages.transparent_shmem == "always" ||
                           pages.transparent_shmem == "within_size";
  const bool good = slow.empty() && (!pages.known || pages.reserved_pages > 0 || transparent);
  if (good) return {"huge pages", Result::kGood, detail, ""};
  return {"huge pages", Result::kWarning, detail,
          "copies and pinning are faster with huge pages; as root on soupd's host: echo advise > "
          "/sys/kernel/mm/transparent_hugepage/shmem_enabled, or reserve some: sysctl "
          "vm.nr_hugepages=N"};
}

}  // namespace soup::client
