// Plays a worker for the supervisor's tests. It answers each RunPass with a PassDone of the same
// number, except for these passes: 1 exits with status 3, 2 stands still with heartbeats that show
// no progress, 3 falls silent, 4 sends half a frame and exits, 5 stops itself by SIGSTOP.
// --mode=mute never says Hello; --mode=stubborn ignores Shutdown. With --prepare: tells progress
// ten times, 100 ms apart, then falls silent where the request's output path is "silent", else
// replies.
#include <signal.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <cstdlib>
#include <string>

#include "daemon/common/link.h"
#include "soup/worker/v1/worker.pb.h"

using soup::worker::v1::FromWorker;
using soup::worker::v1::ToWorker;

namespace {

int Prepare(soup::daemon::Link& link) {
  soup::worker::v1::PrepareRequest request;
  auto frame = link.Receive();
  if (!frame.ok() || !request.ParseFromString(frame->bytes)) return 9;
  soup::worker::v1::FromPrepare message;
  for (int i = 0; i < 10; ++i) {
    message.mutable_progress()->set_done(i);
    (void)link.Send(message);
    (void)link.Receive(absl::Now() + absl::Milliseconds(200));
  }
  if (request.output_path() == "silent") (void)link.Receive();
  message.mutable_reply()->set_ok(true);
  (void)link.Send(message);
  return link.Flush(absl::Now() + absl::Seconds(10)) ? 0 : 9;
}

}  // namespace

int main(int argc, char** argv) {
  std::string mode;
  bool prepare = false;
  for (int i = 1; i < argc; ++i) {
    const std::string arg = argv[i];
    if (arg.rfind("--mode=", 0) == 0) mode = arg.substr(7);
    if (arg == "--prepare") prepare = true;
  }
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  soup::daemon::Link link{soup::engine::UniqueFd(3)};
  if (prepare) return Prepare(link);
  if (mode == "mute") {
    (void)link.Receive();
    return 0;
  }
  FromWorker hello;
  hello.mutable_hello()->set_pid(::getpid());
  hello.mutable_hello()->set_device_name("fake");
  (void)link.Send(hello);
  bool beat = true;
  bool advance = true;
  for (int64_t progress = 0;;) {
    auto frame = link.Receive(absl::Now() + absl::Milliseconds(20));
    if (absl::IsDeadlineExceeded(frame.status())) {
      FromWorker heartbeat;
      if (advance) ++progress;
      heartbeat.mutable_heartbeat()->set_progress(progress);
      if (beat) (void)link.Send(heartbeat);
      continue;
    }
    if (!frame.ok()) return 0;
    ToWorker message;
    if (!message.ParseFromString(frame->bytes)) return 9;
    if (message.has_shutdown() && mode != "stubborn") return 0;
    if (!message.has_run_pass()) continue;
    switch (message.run_pass().pass_id()) {
      case 1:
        return 3;
      case 2:
        advance = false;
        break;
      case 3:
        beat = false;
        break;
      case 4:
        (void)!::write(3, "\x64\x00\x00\x00half", 8);
        ::_exit(0);
      case 5:
        ::raise(SIGSTOP);
        break;
      default: {
        FromWorker done;
        done.mutable_pass_done()->set_pass_id(message.run_pass().pass_id());
        (void)link.Send(done);
      }
    }
  }
}
