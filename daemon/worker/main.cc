// soup-worker: one a device. Started by soupd, which hands it one end of their link; not for use by
// hand. With --prepare: tokenises a user's data instead, without a device.
#include <signal.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <string>
#include <utility>

#include "daemon/common/link.h"
#include "daemon/worker/device.h"
#include "daemon/worker/parent.h"
#include "daemon/worker/prepare_mode.h"
#include "daemon/worker/session.h"
#include "engine/base/log.h"
#include "soup/worker/v1/worker.pb.h"

namespace {

struct Flags {
  bool prepare = false;
  int link_fd = -1;
  int parent_pid = 0;
  soup::worker::DeviceOptions device;
  std::string test_die;
};

constexpr int kNoDevice = 3;  // exit status: no device that can be used, or it has no room

int Serve(const Flags& flags, soup::daemon::Link& link) {
  soup::worker::SessionOptions session_options;
  if (!flags.test_die.empty()) {
    auto death = soup::worker::TestDeath::Parse(flags.test_die);
    if (!death.ok()) {
      SOUP_LOG(kError, "worker") << "--test-die: " << death.status().message();
      return 2;
    }
    session_options.test_death = *std::move(death);
  }
  absl::StatusOr<soup::worker::Device> device = soup::worker::OpenDevice(flags.device);
  if (!device.ok()) {
    SOUP_LOG(kError, "worker") << "no device: " << device.status().message();
    soup::worker::v1::FromWorker told;
    told.mutable_cannot_start()->set_message(std::string(device.status().message()));
    if (link.Send(told).ok()) link.Flush(absl::Now() + absl::Seconds(5));
    return kNoDevice;
  }
  if (!device->why.empty()) {
    SOUP_LOG(kInfo, "worker") << "--backend auto takes " << device->backend->name() << ": "
                              << device->why;
  }
  soup::worker::Session session(session_options, &*device, &link);
  return session.Run();
}

}  // namespace

int main(int argc, char** argv) {
  Flags flags;
  CLI::App app{"soup-worker: started by soupd; see soupd --help"};
  app.set_version_flag("--version", std::string(SOUP_VERSION));
  app.add_flag("--prepare", flags.prepare, "Tokenise one dataset and exit");
  app.add_option("--link-fd", flags.link_fd, "Descriptor of the link to soupd")->required();
  app.add_option("--parent-pid", flags.parent_pid, "soupd's pid");
  app.add_option("--backend", flags.device.backend, "auto, cpu or cuda")
      ->check(CLI::IsMember({"auto", "cpu", "cuda"}))
      ->take_last()  // soupd adds what auto took
      ->capture_default_str();
  app.add_option("--device", flags.device.device, "CUDA's number of the card")
      ->check(CLI::Range(0, 255))
      ->capture_default_str();
  app.add_option("--cpu-threads", flags.device.cpu_threads,
                 "Threads of the CPU backend; 0: every core")
      ->check(CLI::Range(0, 1024));
  app.add_option("--profile-dir", flags.device.profile_dir,
                 "Folder in which machine profiles are kept (default: not kept)");
  app.add_option("--test-die", flags.test_die,
                 "For tests: NAME:STEP:before|committed|fault|fault-once, the job and step to die "
                 "over");
  app.add_option("--test-card", flags.device.test_card,
                 "For tests: the CPU backend plays a card; the file holds the bytes free on it");
  CLI11_PARSE(app, argc, argv);

  soup::worker::DieWithParent(flags.parent_pid);
  ::signal(SIGPIPE, SIG_IGN);
  ::signal(SIGXFSZ, SIG_IGN);  // a limit on files' sizes is an error of the write: EFBIG
  soup::daemon::Link link{soup::engine::UniqueFd(flags.link_fd)};
  return flags.prepare ? soup::worker::RunPrepareMode(link) : Serve(flags, link);
}
