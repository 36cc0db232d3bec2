// Runs a program with an environment of its own, apart from the test's, and keeps what it writes.
// Every wait has a limit; a program that runs on is killed by the destructor.
#ifndef SOUP_TESTS_CLIENT_SUBPROCESS_H_
#define SOUP_TESTS_CLIENT_SUBPROCESS_H_

#include <sys/types.h>

#include <map>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"

namespace soup::client {

class Subprocess {
 public:
  struct Options {
    std::map<std::string, std::string> environment;  // all of it
    std::string input;                               // for stdin
    std::string folder;                              // working folder; empty: the test's
    bool terminal = false;  // stdin, stdout, stderr are one pseudo-terminal; all goes to out()
  };
  Subprocess(const std::vector<std::string>& arguments, const Options& options);
  Subprocess(const Subprocess&) = delete;
  Subprocess& operator=(const Subprocess&) = delete;
  ~Subprocess();

  // The exit code, or -signal; -1000 when it did not end within the limit.
  int Wait(absl::Duration limit = absl::Seconds(60));
  void Signal(int number);
  // Until stdout (stderr) holds `text`; false when it does not within the limit.
  bool AwaitOut(const std::string& text, absl::Duration limit = absl::Seconds(30));
  bool AwaitErr(const std::string& text, absl::Duration limit = absl::Seconds(30));
  std::string out();
  std::string err();

 private:
  void Pump(int fd, std::string* to);
  bool Await(const std::string* where, const std::string& text, absl::Duration limit);

  pid_t pid_ = -1;
  bool reaped_ = false;
  int result_ = 0;
  absl::Mutex mutex_;
  std::string out_ ABSL_GUARDED_BY(mutex_), err_ ABSL_GUARDED_BY(mutex_);
  std::vector<std::thread> pumps_;
};

}  // namespace soup::client

#endif  // SOUP_TESTS_CLIENT_SUBPROCESS_H_
