#include "client/upload.h"

#include <fcntl.h>
#include <sys/stat.h>

#include <cerrno>
#include <cstring>
#include <memory>

#include "absl/strings/str_cat.h"
#include "client/exit_codes.h"
#include "client/sha256.h"
#include "client/units.h"
#include "engine/base/file_system.h"
#include "engine/base/status_macros.h"
#include "engine/base/unique_fd.h"

namespace soup::client {
namespace {

using soup::v1::StatUploadReply;
using soup::v1::StatUploadRequest;
using soup::v1::UploadChunk;
using soup::v1::UploadReply;
using Stub = Api::Stub;

constexpr size_t kChunkBytes = 512 << 10;
// In a row, without a byte more at soupd.
constexpr int kAttemptsWithoutProgress = 6;
constexpr absl::Duration kChunkLimit = absl::Seconds(60);
// soupd hashes the whole file before it answers.
constexpr absl::Duration kReplyLimit = absl::Minutes(5);

// One file on its way.
class FileUpload {
 public:
  FileUpload(Api* api, const LocalFile& file, const HashedFile& hashed, const std::string& name,
             UploadObserver* observer)
      : api_(api), file_(file), hashed_(hashed), name_(name), observer_(observer) {}

  absl::Status Run() {
    Backoff backoff(absl::Milliseconds(250), absl::Seconds(5));
    int64_t best_offset = -1;
    int without_progress = 0;
    for (;;) {
      StatUploadRequest request;
      request.set_sha256(hashed_.sha256);
      request.set_size_bytes(hashed_.size_bytes);
      SOUP_ASSIGN_OR_RETURN(const StatUploadReply have, api_->StatUpload(request));
      if (have.complete()) {
        if (best_offset < 0) {
          observer_->AlreadyThere(name_, hashed_.size_bytes);
        } else {
          observer_->Sent(name_, hashed_.size_bytes);  // the reply of the last attempt was lost
        }
        return absl::OkStatus();
      }
      if (have.offset() < 0 || have.offset() > hashed_.size_bytes) {
        return absl::InternalError(absl::StrCat("upload of ", name_, ": soupd says it has ",
                                                have.offset(), " bytes of ", hashed_.size_bytes));
      }
      if (have.offset() > best_offset) {
        best_offset = have.offset();
        without_progress = 0;
        backoff.Reset();
      }
      const absl::Status status = Send(have.offset());
      if (status.ok()) {
        observer_->Sent(name_, hashed_.size_bytes);
        return status;
      }
      if (!MayRetry(status)) return WithChangeNamed(status);
      if (++without_progress >= kAttemptsWithoutProgress) return status;
      observer_->Retrying(name_, status);
      if (!SleepUnlessInterrupted(backoff.Next())) return Interrupted();
    }
  }

 private:
  absl::Status Interrupted() const {
    return InterruptedError(
        PendingSignal(),
        absl::StrCat("upload of ", name_, " interrupted; submit again to go on where it stopped"));
  }

  // ABORTED: another upload of the same file is under way, or soupd's offset has moved.
  static bool MayRetry(const absl::Status& status) {
    return IsRemote(status) && (status.code() == absl::StatusCode::kUnavailable ||
                                status.code() == absl::StatusCode::kAborted ||
                                status.code() == absl::StatusCode::kDeadlineExceeded);
  }

  absl::Status Changed() const {
    return ErrorWithExitCode(
        ExitCode::kError,
        absl::StrCat(file_.where, ": ", file_.path,
                     " changed while it was uploaded; wait until nothing writes to it, then submit "
                     "again"));
  }

  // soupd refuses bytes with another hash; tell that from its other refusals by hashing again.
  absl::Status WithChangeNamed(const absl::Status& status) const {
    if (!IsRemote(status)) return status;
    const auto again = HashFile(file_.path, [](int64_t, int64_t) { return PendingSignal() == 0; });
    if (again.ok() && again->sha256 != hashed_.sha256) return Changed();
    return status;
  }

  absl::Status Send(int64_t offset) {
    const engine::UniqueFd fd(open(file_.path.c_str(), O_RDONLY | O_CLOEXEC));
    struct stat st;
    if (fd.get() < 0 || fstat(fd.get(), &st) != 0) {
      return engine::ErrnoStatus(errno, "open", file_.path);
    }
    if (st.st_size != hashed_.size_bytes) return Changed();
    RequestStream<UploadChunk, UploadReply> stream(api_->stub(), &Stub::AsyncUploadFile);
    bool first = true;
    // One chunk at least: an upload that has all its bytes still waits to be completed.
    while (first || offset < hashed_.size_bytes) {
      UploadChunk chunk;
      if (first) {
        chunk.set_sha256(hashed_.sha256);
        chunk.set_size_bytes(hashed_.size_bytes);
      }
      first = false;
      chunk.set_offset(offset);
      SOUP_ASSIGN_OR_RETURN(*chunk.mutable_data(), ReadAt(fd.get(), offset));
      if (!stream.Write(chunk, kChunkLimit)) break;
      offset += static_cast<int64_t>(chunk.data().size());
      observer_->Sending(name_, offset, hashed_.size_bytes);
    }
    UploadReply reply;
    const grpc::Status status = stream.Finish(kReplyLimit, &reply);
    if (PendingSignal() != 0 && !status.ok()) return Interrupted();
    SOUP_RETURN_IF_ERROR(api_->Explain(status, absl::StrCat("upload of ", name_)));
    if (reply.sha256() != hashed_.sha256) {
      return absl::InternalError(absl::StrCat("upload of ", name_, ": soupd took ", reply.sha256(),
                                              " for ", hashed_.sha256));
    }
    return absl::OkStatus();
  }

  absl::StatusOr<std::string> ReadAt(int fd, int64_t offset) const {
    const int64_t left = hashed_.size_bytes - offset;
    std::string data(static_cast<size_t>(std::min<int64_t>(left, kChunkBytes)), '\0');
    size_t got = 0;
    while (got < data.size()) {
      const ssize_t n =
          pread(fd, data.data() + got, data.size() - got, offset + static_cast<int64_t>(got));
      if (n < 0 && errno == EINTR) continue;
      if (n < 0) return engine::ErrnoStatus(errno, "read", file_.path);
      if (n == 0) return Changed();  // shorter than it was
      got += static_cast<size_t>(n);
    }
    return data;
  }

  Api* const api_;
  const LocalFile& file_;
  const HashedFile hashed_;
  const std::string name_;
  UploadObserver* const observer_;
};

}  // namespace

absl::Status CheckLocalFiles(const JobFile& job) {
  for (const LocalFile& file : job.files) {
    const auto wrong = [&](absl::string_view why) {
      return UsageError(absl::StrCat(file.where, ": ", file.path, " ", why));
    };
    struct stat st;
    if (stat(file.path.c_str(), &st) != 0) {
      return wrong(absl::StrCat("cannot be read: ", std::strerror(errno)));
    }
    if (S_ISDIR(st.st_mode)) return wrong("is a folder, a file was expected");
    if (!S_ISREG(st.st_mode)) {
      return wrong("is no regular file; an upload is read more than once, so write it to a file");
    }
    if (access(file.path.c_str(), R_OK) != 0) {
      return wrong(absl::StrCat("cannot be read: ", std::strerror(errno)));
    }
    if (st.st_size == 0) return wrong("is empty");
  }
  return absl::OkStatus();
}

absl::Status UploadFiles(Api* api, JobFile* job, UploadObserver* observer) {
  SOUP_RETURN_IF_ERROR(CheckLocalFiles(*job));
  for (const LocalFile& file : job->files) {
    soup::v1::FileRef* ref = FileRefOf(&job->spec, file.slot, file.source);
    const auto hashed = HashFile(file.path, [&](int64_t done, int64_t total) {
      observer->Hashing(ref->name(), done, total);
      return PendingSignal() == 0;
    });
    if (!hashed.ok() && PendingSignal() != 0) {
      return InterruptedError(PendingSignal(), "interrupted before anything was sent");
    }
    if (!hashed.ok()) return hashed.status();
    ref->set_sha256(hashed->sha256);
    ref->set_size_bytes(hashed->size_bytes);
    SOUP_RETURN_IF_ERROR(FileUpload(api, file, *hashed, ref->name(), observer).Run());
  }
  return absl::OkStatus();
}

}  // namespace soup::client
