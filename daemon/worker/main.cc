// soup-worker: one a device. Started by soupd, which hands it one end of their link; not for use by
// hand. With --prepare: tokenises a user's data instead, without a device.
#include <signal.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <string>
#include <thread>

#include "daemon/common/link.h"
#include "daemon/worker/machine_probe.h"
#include "daemon/worker/parent.h"
#include "daemon/worker/prepare_mode.h"
#include "daemon/worker/session.h"
#include "engine/base/log.h"
#include "engine/device/cpu_backend.h"

namespace {

struct Flags {
  bool prepare = false;
  int link_fd = -1;
  int parent_pid = 0;
  std::string backend = "cpu";
  int cpu_threads = 0;
  std::string test_die;
};

int Serve(const Flags& flags, soup::daemon::Link& link) {
  const int threads = flags.cpu_threads > 0
                          ? flags.cpu_threads
                          : static_cast<int>(std::max(1u, std::thread::hardware_concurrency()));
  soup::engine::CpuBackendOptions options;
  options.cpu_threads = threads;
  const auto backend = soup::engine::MakeCpuBackend(options);
  auto profile = soup::worker::ProbeMachine(*backend, threads);
  if (!profile.ok()) {
    SOUP_LOG(kError, "worker") << "the machine cannot be measured: " << profile.status().message();
    return 1;
  }
  soup::worker::SessionOptions session_options;
  if (!flags.test_die.empty()) {
    auto death = soup::worker::TestDeath::Parse(flags.test_die);
    if (!death.ok()) {
      SOUP_LOG(kError, "worker") << "--test-die: " << death.status().message();
      return 2;
    }
    session_options.test_death = *std::move(death);
  }
  soup::worker::Session session(session_options, backend.get(), *std::move(profile), &link);
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
  app.add_option("--backend", flags.backend, "cpu")->check(CLI::IsMember({"cpu"}));
  app.add_option("--cpu-threads", flags.cpu_threads, "Threads of the CPU backend; 0: every core")
      ->check(CLI::Range(0, 1024));
  app.add_option("--test-die", flags.test_die,
                 "For tests: NAME:STEP:before|committed, the job and step to die over");
  CLI11_PARSE(app, argc, argv);

  soup::worker::DieWithParent(flags.parent_pid);
  ::signal(SIGPIPE, SIG_IGN);
  soup::daemon::Link link{soup::engine::UniqueFd(flags.link_fd)};
  return flags.prepare ? soup::worker::RunPrepareMode(link) : Serve(flags, link);
}
