#include "tests/client/subprocess.h"

#include <fcntl.h>
#include <pty.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>

#include "absl/time/clock.h"
#include "engine/base/log.h"

namespace soup::client {
namespace {

std::vector<char*> Pointers(std::vector<std::string>& strings) {
  std::vector<char*> out;
  for (std::string& s : strings) out.push_back(s.data());
  out.push_back(nullptr);
  return out;
}

void SetCloseOnExec(int fd) { fcntl(fd, F_SETFD, FD_CLOEXEC); }

}  // namespace

Subprocess::Subprocess(const std::vector<std::string>& arguments, const Options& options) {
  std::vector<std::string> argv_text = arguments, env_text;
  for (const auto& [key, value] : options.environment) env_text.push_back(key + "=" + value);
  // Of a build with sanitizers: cmake/SoupTargets.cmake.
  if (const char* told = std::getenv("LSAN_OPTIONS")) {
    env_text.push_back(std::string("LSAN_OPTIONS=") + told);
  }
  int in[2] = {-1, -1}, out[2] = {-1, -1}, err[2] = {-1, -1};
  if (options.terminal) {
    winsize size = {50, 120, 0, 0};
    SOUP_CHECK(openpty(&out[0], &out[1], nullptr, nullptr, &size) == 0);
    in[0] = err[1] = out[1];
  } else {
    SOUP_CHECK(pipe(in) == 0 && pipe(out) == 0 && pipe(err) == 0);
  }
  for (const int fd : {in[1], out[0], err[0]}) {
    if (fd >= 0) SetCloseOnExec(fd);
  }
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, in[0], 0);
  posix_spawn_file_actions_adddup2(&actions, out[1], 1);
  posix_spawn_file_actions_adddup2(&actions, err[1], 2);
  if (!options.folder.empty()) {
    posix_spawn_file_actions_addchdir_np(&actions, options.folder.c_str());
  }
  posix_spawnattr_t attributes;
  posix_spawnattr_init(&attributes);
  sigset_t none;
  sigemptyset(&none);
  posix_spawnattr_setsigmask(&attributes, &none);
  posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSIGMASK);
  SOUP_CHECK(posix_spawn(&pid_, argv_text[0].c_str(), &actions, &attributes,
                         Pointers(argv_text).data(), Pointers(env_text).data()) == 0);
  posix_spawn_file_actions_destroy(&actions);
  posix_spawnattr_destroy(&attributes);
  close(out[1]);
  pumps_.emplace_back([this, fd = out[0]] { Pump(fd, &out_); });
  if (options.terminal) return;
  close(in[0]);
  close(err[1]);
  pumps_.emplace_back([this, fd = err[0]] { Pump(fd, &err_); });
  // Inputs of tests are far smaller than a pipe's buffer.
  SOUP_CHECK(write(in[1], options.input.data(), options.input.size()) ==
             static_cast<ssize_t>(options.input.size()));
  close(in[1]);
}

Subprocess::~Subprocess() {
  if (!reaped_) {
    kill(pid_, SIGKILL);
    Wait();
  }
  for (std::thread& pump : pumps_) pump.join();
}

void Subprocess::Pump(int fd, std::string* to) {
  char buffer[4096];
  for (;;) {
    const ssize_t n = read(fd, buffer, sizeof buffer);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) break;  // a pseudo-terminal ends with EIO
    absl::MutexLock lock(&mutex_);
    to->append(buffer, static_cast<size_t>(n));
  }
  close(fd);
}

int Subprocess::Wait(absl::Duration limit) {
  const absl::Time end = absl::Now() + limit;
  while (!reaped_) {
    int status = 0;
    const pid_t pid = waitpid(pid_, &status, WNOHANG);
    if (pid == pid_) {
      reaped_ = true;
      result_ = WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
    } else if (absl::Now() > end) {
      return -1000;
    } else {
      absl::SleepFor(absl::Milliseconds(5));  // polls a child; there is nothing else to wait on
    }
  }
  for (std::thread& pump : pumps_) pump.join();
  pumps_.clear();
  return result_;
}

void Subprocess::Signal(int number) { kill(pid_, number); }

bool Subprocess::Await(const std::string* where, const std::string& text, absl::Duration limit) {
  const auto there = [&] { return where->find(text) != std::string::npos; };
  absl::MutexLock lock(&mutex_);
  return mutex_.AwaitWithTimeout(absl::Condition(&there), limit);
}
bool Subprocess::AwaitOut(const std::string& text, absl::Duration limit) {
  return Await(&out_, text, limit);
}
bool Subprocess::AwaitErr(const std::string& text, absl::Duration limit) {
  return Await(&err_, text, limit);
}

std::string Subprocess::out() {
  absl::MutexLock lock(&mutex_);
  return out_;
}
std::string Subprocess::err() {
  absl::MutexLock lock(&mutex_);
  return err_;
}

}  // namespace soup::client
