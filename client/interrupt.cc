#include "client/interrupt.h"

#include <algorithm>
#include <csignal>

#include "absl/time/clock.h"

namespace soup::client {
namespace {

volatile std::sig_atomic_t g_pending_signal = 0;

void OnSignal(int signal_number) {
  g_pending_signal = signal_number;
  std::signal(signal_number, SIG_DFL);
}

}  // namespace

void InstallSignalHandlers() {
  struct sigaction action = {};
  action.sa_handler = OnSignal;
  sigemptyset(&action.sa_mask);
  sigaction(SIGINT, &action, nullptr);
  sigaction(SIGTERM, &action, nullptr);
}

int PendingSignal() { return g_pending_signal; }

bool SleepUnlessInterrupted(absl::Duration duration) {
  // Short slices: a signal that another thread takes does not end this thread's sleep.
  constexpr absl::Duration kSlice = absl::Milliseconds(50);
  const absl::Time end = absl::Now() + duration;
  while (PendingSignal() == 0) {
    const absl::Duration left = end - absl::Now();
    if (left <= absl::ZeroDuration()) return true;
    absl::SleepFor(std::min(left, kSlice));
  }
  return false;
}

}  // namespace soup::client
