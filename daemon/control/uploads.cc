#include "daemon/control/uploads.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "daemon/control/text.h"
#include "engine/base/file_system.h"
#include "engine/base/log.h"
#include "engine/base/status_macros.h"

namespace soup::daemon {
namespace {

absl::Status WriteAll(int fd, const std::string& path, absl::string_view data, int64_t offset) {
  size_t done = 0;
  while (done < data.size()) {
    const ssize_t n =
        pwrite(fd, data.data() + done, data.size() - done, offset + static_cast<int64_t>(done));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) {
      return engine::ErrnoStatus(errno, "write", path, static_cast<int64_t>(data.size() - done));
    }
    done += static_cast<size_t>(n);
  }
  return absl::OkStatus();
}

}  // namespace

UploadSession::UploadSession(Uploads* uploads, std::string user, std::string sha256,
                             int64_t size_bytes)
    : uploads_(uploads),
      user_(std::move(user)),
      sha256_(std::move(sha256)),
      size_bytes_(size_bytes) {}

UploadSession::~UploadSession() {
  if (fd_ >= 0) close(fd_);
  if (extra_ && !finished_) Drop();  // Nobody would find it to go on.
  uploads_->Unclaim(path_);
}

void UploadSession::Drop() {
  if (unlink(path_.c_str()) != 0 && errno != ENOENT) {
    SOUP_LOG(kWarn, "uploads") << "cannot remove " << path_;
  }
}

absl::Status UploadSession::Write(int64_t offset, absl::string_view data) {
  const int64_t bytes = static_cast<int64_t>(data.size());
  if (bytes > kMaxChunkBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("a chunk of ", bytes, " bytes; at most ", kMaxChunkBytes, " are taken"));
  }
  if (offset != offset_) {
    return absl::AbortedError(absl::StrCat("a chunk at offset ", offset, ", soupd is at ", offset_,
                                           "; ask StatUpload and go on from there"));
  }
  if (bytes > size_bytes_ - offset_) {
    return absl::InvalidArgumentError(
        absl::StrCat("the file is larger than the ", size_bytes_,
                     " bytes it was said to have: did it change during the upload?"));
  }
  const absl::Status written = WriteAll(fd_, path_, data, offset_);
  if (!written.ok()) {
    Drop();  // Gives the room back to whoever fills the disk.
    return written;
  }
  hash_.Update(data);
  offset_ += bytes;
  return absl::OkStatus();
}

absl::Status UploadSession::Finish() {
  if (offset_ != size_bytes_) {
    return absl::AbortedError(absl::StrCat("the upload ended at byte ", offset_, " of ",
                                           size_bytes_, "; ask StatUpload and go on from there"));
  }
  const std::string got = hash_.HexDigest();
  if (got != sha256_) {
    Drop();
    return absl::InvalidArgumentError(
        absl::StrCat("the file's SHA-256 is ", got, ", ", sha256_,
                     " was announced: it changed during the upload; upload it again"));
  }
  if (fsync(fd_) != 0) {
    const absl::Status status = engine::ErrnoStatus(errno, "sync", path_, size_bytes_);
    Drop();
    return status;
  }
  // When the file is there already this replaces it by the same bytes: one copy, and no way to
  // tell.
  SOUP_RETURN_IF_ERROR(engine::RealFileSystem().RenameSynced(path_, uploads_->FinalPath(sha256_)));
  finished_ = true;
  return uploads_->store_->AddFileOwner(user_, sha256_, size_bytes_);
}

Uploads::Uploads(std::string files_dir, int64_t max_bytes, JobStore* store)
    : files_dir_(std::move(files_dir)), max_bytes_(max_bytes), store_(store) {}

absl::StatusOr<std::unique_ptr<Uploads>> Uploads::Open(const std::string& files_dir,
                                                       int64_t max_bytes, JobStore* store) {
  SOUP_RETURN_IF_ERROR(engine::RealFileSystem().CreateDirectories(files_dir + "/partial"));
  return std::unique_ptr<Uploads>(new Uploads(files_dir, max_bytes, store));
}

std::string Uploads::FinalPath(const std::string& sha256) const {
  return absl::StrCat(files_dir_, "/", sha256);
}

std::string Uploads::PartialPath(const std::string& user, const std::string& sha256) const {
  return absl::StrCat(files_dir_, "/partial/", Sha256Hex(user).substr(0, 16), "-", sha256);
}

absl::Status Uploads::CheckArguments(const std::string& sha256, int64_t size_bytes) const {
  if (!IsSha256Hex(sha256)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "sha256 ", Quoted(sha256), " must be the 64 lower-case hex digits of the file's SHA-256"));
  }
  if (size_bytes <= 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("size_bytes is ", size_bytes, ": the file is empty, there is nothing to do"));
  }
  if (size_bytes > max_bytes_) {
    return absl::ResourceExhaustedError(absl::StrCat("the file has ", HumanBytes(size_bytes),
                                                     ", soupd takes at most ",
                                                     HumanBytes(max_bytes_), " (--max-upload)"));
  }
  return absl::OkStatus();
}

bool Uploads::Claim(const std::string& path) {
  absl::MutexLock lock(&mutex_);
  return in_use_.insert(path).second;
}

void Uploads::Unclaim(const std::string& path) {
  absl::MutexLock lock(&mutex_);
  in_use_.erase(path);
}

absl::StatusOr<Uploads::Known> Uploads::Stat(const std::string& user, const std::string& sha256,
                                             int64_t size_bytes) {
  SOUP_RETURN_IF_ERROR(CheckArguments(sha256, size_bytes));
  SOUP_ASSIGN_OR_RETURN(const bool owned, store_->OwnsFile(user, sha256));
  Known known;
  struct stat st {};
  if (owned && stat(FinalPath(sha256).c_str(), &st) == 0 && st.st_size == size_bytes) {
    known.complete = true;
    known.offset = size_bytes;
    return known;
  }
  const std::string partial = PartialPath(user, sha256);
  {
    // Another stream is writing it: this one begins anew, beside it.
    absl::MutexLock lock(&mutex_);
    if (in_use_.count(partial) > 0) return known;
  }
  if (stat(partial.c_str(), &st) == 0 && st.st_size <= size_bytes) known.offset = st.st_size;
  return known;
}

absl::StatusOr<std::unique_ptr<UploadSession>> Uploads::Begin(const std::string& user,
                                                              const std::string& sha256,
                                                              int64_t size_bytes, int64_t offset) {
  SOUP_RETURN_IF_ERROR(CheckArguments(sha256, size_bytes));
  std::string path = PartialPath(user, sha256);
  bool extra = false;
  if (!Claim(path)) {
    if (offset != 0) {
      return absl::AbortedError(
          "another upload of this file is under way; begin anew at offset 0 or wait for it");
    }
    {
      absl::MutexLock lock(&mutex_);
      absl::StrAppend(&path, ".", next_extra_++);
    }
    extra = true;
    if (!Claim(path)) return absl::InternalError(absl::StrCat(path, " is in use"));
  }
  std::unique_ptr<UploadSession> session(new UploadSession(this, user, sha256, size_bytes));
  session->path_ = path;
  session->extra_ = extra;
  const int flags = O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW | (offset == 0 ? O_TRUNC : 0);
  session->fd_ = open(path.c_str(), flags, 0600);
  if (session->fd_ < 0) return engine::ErrnoStatus(errno, "open", path, size_bytes);
  struct stat st {};
  if (fstat(session->fd_, &st) != 0) return engine::ErrnoStatus(errno, "stat", path);
  if (st.st_size != offset) {
    return absl::AbortedError(absl::StrCat("soupd has ", st.st_size, " bytes of this file, not ",
                                           offset, "; ask StatUpload and go on from there"));
  }
  SOUP_ASSIGN_OR_RETURN(const int64_t free, engine::RealFileSystem().FreeBytes(files_dir_));
  if (free < size_bytes - offset) {
    session->Drop();
    return absl::ResourceExhaustedError(
        absl::StrCat("no room in ", files_dir_, ": ", HumanBytes(size_bytes - offset), " (",
                     size_bytes - offset, " bytes) are needed, ", HumanBytes(free), " are free"));
  }
  SOUP_RETURN_IF_ERROR(UpdateFromFile(session->hash_, session->fd_, path, offset));
  session->offset_ = offset;
  return session;
}

absl::Status Uploads::CheckUsable(const std::string& user, const soup::v1::FileRef& file,
                                  absl::string_view field) const {
  SOUP_ASSIGN_OR_RETURN(const bool owned, store_->OwnsFile(user, file.sha256()));
  struct stat st {};
  if (owned && stat(FinalPath(file.sha256()).c_str(), &st) == 0) {
    if (st.st_size == file.size_bytes()) {
      // Not collected between this and the job's record. Best effort: it may be seconds old anyway.
      (void)utimensat(AT_FDCWD, FinalPath(file.sha256()).c_str(), nullptr, 0);
      return absl::OkStatus();
    }
    return absl::InvalidArgumentError(absl::StrCat(field, ".size_bytes is ", file.size_bytes(),
                                                   ": the file with this SHA-256 has ",
                                                   int64_t{st.st_size}, " bytes"));
  }
  return absl::NotFoundError(absl::StrCat(
      field, ": you have not uploaded ", file.name().empty() ? "the file" : Quoted(file.name()),
      " (SHA-256 ", file.sha256(), "); upload it first, soupctl submit does"));
}

void Uploads::CollectOld(int64_t now_unix_ms, int64_t age_seconds) {
  engine::FileSystem& fs = engine::RealFileSystem();
  const std::string folder = files_dir_ + "/partial";
  const absl::StatusOr<std::vector<std::string>> names = fs.ListDirectory(folder);
  if (!names.ok()) return;
  for (const std::string& name : *names) {
    const std::string path = absl::StrCat(folder, "/", name);
    struct stat st {};
    if (stat(path.c_str(), &st) != 0) continue;
    if (now_unix_ms / 1000 - st.st_mtim.tv_sec < age_seconds) continue;
    if (!Claim(path)) continue;
    const absl::Status removed = fs.Remove(path);
    if (!removed.ok()) {
      SOUP_LOG(kWarn, "uploads") << removed.message();
    }
    Unclaim(path);
  }
}

void Uploads::CollectUnused(int64_t now_unix_ms, int64_t age_seconds) {
  engine::FileSystem& fs = engine::RealFileSystem();
  const absl::StatusOr<std::vector<std::string>> names = fs.ListDirectory(files_dir_);
  if (!names.ok()) return;
  for (const std::string& name : *names) {
    if (!IsSha256Hex(name)) continue;
    const std::string path = FinalPath(name);
    struct stat st {};
    if (stat(path.c_str(), &st) != 0) continue;
    if (now_unix_ms / 1000 - st.st_mtim.tv_sec < age_seconds) continue;
    const absl::StatusOr<bool> in_use = store_->FileInUse(name);
    if (!in_use.ok() || *in_use) continue;
    const absl::Status removed = fs.Remove(path);
    if (!removed.ok()) {
      SOUP_LOG(kWarn, "uploads") << removed.message();
    }
  }
}

}  // namespace soup::daemon
