// Link: the talk between soupd and one of its workers over a stream socketpair (proto/soup/worker).
//
// A frame is a 4-byte little-endian length and one serialised message; descriptors ride by
// SCM_RIGHTS on the frame's header. Send() never blocks: it queues, and a thread of the link's own
// writes, so that a peer that has stopped reading costs queue space and then an error, never a
// stuck caller. Receive() is for one reader thread. A frame longer than the limit, a truncated
// frame or lost descriptors end the link: nothing behind them can be trusted.
//
// Thread-safe, except that only one thread may be in Receive(). The link owns its socket and every
// descriptor it has received until the caller takes them; Send() duplicates what it is given.
#ifndef SOUP_DAEMON_COMMON_LINK_H_
#define SOUP_DAEMON_COMMON_LINK_H_

#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "engine/base/unique_fd.h"

namespace google::protobuf {
class MessageLite;
}

namespace soup::daemon {

using engine::UniqueFd;

struct LinkOptions {
  int64_t max_frame_bytes = int64_t{64} << 20;
  int64_t max_queued_bytes = int64_t{64} << 20;  // of frames that the peer has not taken yet
};

// The kernel's limit on descriptors of one message (SCM_MAX_FD).
inline constexpr int kMaxFrameDescriptors = 253;

struct Frame {
  std::string bytes;
  std::vector<UniqueFd> fds;
};

class Link {
 public:
  explicit Link(UniqueFd socket, LinkOptions options = {});
  ~Link();  // Close(), and joins the writer
  Link(const Link&) = delete;
  Link& operator=(const Link&) = delete;

  // A connected pair, both ends close-on-exec.
  static absl::StatusOr<std::pair<UniqueFd, UniqueFd>> MakePair();

  // Errors: ResourceExhausted (queue full, or the message is longer than a frame may be, with both
  // numbers), Unavailable (closed, or the peer is gone), InvalidArgument (too many descriptors).
  absl::Status Send(const google::protobuf::MessageLite& message,
                    absl::Span<const int> fds = absl::Span<const int>());

  // The next frame. Errors: DeadlineExceeded (nothing whole came; call again), OutOfRange (the
  // peer closed between frames), DataLoss (a frame broke off, lied about its length, or lost
  // descriptors), Unavailable (Close() was called here). All but the first are final.
  absl::StatusOr<Frame> Receive(absl::Time deadline = absl::InfiniteFuture());

  // Waits until everything queued has been handed to the kernel. False: deadline, or link broken.
  bool Flush(absl::Time deadline);

  // Shuts both directions down and wakes Receive() and the writer. Idempotent.
  void Close();

 private:
  struct Outgoing {
    std::string bytes;
    std::vector<UniqueFd> fds;
  };

  void WriteLoop();
  absl::Status WriteFrame(const Outgoing& frame);
  // Reads what is there, up to `want` bytes of `buffer_`. OK: at least one byte came.
  absl::Status ReadSome(size_t want, absl::Time deadline);

  const UniqueFd socket_;
  const LinkOptions options_;

  absl::Mutex mu_;
  std::deque<Outgoing> queue_ ABSL_GUARDED_BY(mu_);
  int64_t queued_bytes_ ABSL_GUARDED_BY(mu_) = 0;  // the frame being written included
  bool closed_ ABSL_GUARDED_BY(mu_) = false;
  bool broken_ ABSL_GUARDED_BY(mu_) = false;  // a write failed

  // Reader's state: a partial frame outlives a deadline.
  std::string buffer_;
  std::vector<UniqueFd> pending_fds_;
  absl::Status read_error_;

  std::thread writer_;
};

}  // namespace soup::daemon

#endif  // SOUP_DAEMON_COMMON_LINK_H_
