#include "client/output_folder.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "client/exit_codes.h"
#include "client/sha256.h"
#include "client/units.h"
#include "engine/base/file_system.h"
#include "engine/base/status_macros.h"
#include "engine/base/unique_fd.h"

namespace soup::client {
namespace {

namespace fs = std::filesystem;
using engine::ErrnoStatus;
using engine::JoinPath;
using soup::v1::Artifact;
using soup::v1::ArtifactChunk;
using soup::v1::FetchArtifactRequest;

constexpr char kTemporaryPrefix[] = ".soupctl-";
constexpr char kTemporarySuffix[] = ".partial";
constexpr char kConfigFile[] = "adapter_config.json";
constexpr int kAttemptsWithoutProgress = 6;
constexpr absl::Duration kChunkLimit = absl::Seconds(60);
constexpr int kMaxArtifacts = 1000;

absl::Status NotWritable(const std::string& folder, const std::string& part, int error) {
  return ErrorWithExitCode(
      ExitCode::kError,
      absl::StrCat("output ", folder,
                   " is not writable: ", part == folder ? "" : absl::StrCat(part, ": "),
                   std::strerror(error), "; choose another `output`, or change the permissions"));
}

// soupd's names become file names here, so a name that could leave the folder is refused.
bool IsSafeName(const std::string& name) {
  return !name.empty() && name.size() <= 200 && name[0] != '.' &&
         name.find('/') == std::string::npos && name.find('\0') == std::string::npos;
}

// A file in the making. The lock tells a later run that a temporary file is in use.
class TemporaryFile {
 public:
  static absl::StatusOr<std::unique_ptr<TemporaryFile>> Create(const std::string& folder,
                                                               const std::string& name) {
    std::string path =
        JoinPath(folder, absl::StrCat(kTemporaryPrefix, name, ".XXXXXX", kTemporarySuffix));
    const int fd = mkostemps(path.data(), static_cast<int>(strlen(kTemporarySuffix)), O_CLOEXEC);
    if (fd < 0) return ErrnoStatus(errno, "create a file in", folder);
    auto file = std::unique_ptr<TemporaryFile>(new TemporaryFile(path, fd));
    flock(fd, LOCK_EX | LOCK_NB);
    // mkostemps makes 0600; an adapter gets what any new file of the caller's gets.
    const mode_t mask = umask(0);
    umask(mask);
    fchmod(fd, 0666 & ~mask);
    return file;
  }
  ~TemporaryFile() {
    if (!path_.empty()) unlink(path_.c_str());
  }

  // `target` is named in errors; `left` is what is still to be written.
  absl::Status Write(absl::string_view data, const std::string& target, int64_t left) {
    while (!data.empty()) {
      const ssize_t n = write(fd_.get(), data.data(), data.size());
      if (n < 0 && errno == EINTR) continue;
      if (n < 0) return ErrnoStatus(errno, "write", target, left);
      data.remove_prefix(static_cast<size_t>(n));
      left -= n;
    }
    return absl::OkStatus();
  }
  absl::Status Sync(const std::string& target) {
    if (fsync(fd_.get()) != 0) return ErrnoStatus(errno, "write", target);
    return absl::OkStatus();
  }
  absl::Status RenameTo(const std::string& target) {
    if (rename(path_.c_str(), target.c_str()) != 0) return ErrnoStatus(errno, "rename to", target);
    path_.clear();
    return absl::OkStatus();
  }

 private:
  TemporaryFile(std::string path, int fd) : path_(std::move(path)), fd_(fd) {}
  std::string path_;
  engine::UniqueFd fd_;
};

// Temporary files of runs that were killed.
void RemoveStaleTemporaries(const std::string& folder) {
  const auto names = engine::RealFileSystem().ListDirectory(folder);
  if (!names.ok()) return;
  for (const std::string& name : *names) {
    if (!absl::StartsWith(name, kTemporaryPrefix) || !absl::EndsWith(name, kTemporarySuffix)) {
      continue;
    }
    const std::string path = JoinPath(folder, name);
    const engine::UniqueFd fd(open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW));
    if (fd.get() >= 0 && flock(fd.get(), LOCK_EX | LOCK_NB) == 0) unlink(path.c_str());
  }
}

bool HasSameFile(const std::string& path, const Artifact& artifact) {
  const auto size = engine::RealFileSystem().FileSize(path);
  if (!size.ok() || *size != artifact.size_bytes()) return false;
  const auto hashed = HashFile(path, nullptr);
  return hashed.ok() && hashed->sha256 == artifact.sha256();
}

// Downloads one artifact into `file`.
class Download {
 public:
  Download(Api* api, const std::string& job_id, const Artifact& artifact, std::string target,
           TemporaryFile* file, const FetchProgress& progress)
      : api_(api),
        job_id_(job_id),
        artifact_(artifact),
        target_(std::move(target)),
        file_(file),
        progress_(progress) {}

  absl::Status Run() {
    Backoff backoff(absl::Milliseconds(250), absl::Seconds(5));
    int without_progress = 0;
    for (;;) {
      const int64_t before = offset_;
      const absl::Status status = Receive();
      if (status.ok()) break;
      if (offset_ > before) without_progress = 0;
      const bool again = IsRetriable(status) ||
                         (IsRemote(status) && status.code() == absl::StatusCode::kDeadlineExceeded);
      if (!again || ++without_progress >= kAttemptsWithoutProgress) return status;
      if (!SleepUnlessInterrupted(backoff.Next())) return Interrupted();
    }
    if (offset_ != artifact_.size_bytes()) {
      return absl::DataLossError(absl::StrCat(artifact_.name(), " of job ", job_id_, ": ", offset_,
                                              " bytes came, soupd promised ",
                                              artifact_.size_bytes(), "; fetch again"));
    }
    const std::string sha256 = hash_.HexDigest();
    if (sha256 != artifact_.sha256()) {
      return absl::DataLossError(absl::StrCat(
          artifact_.name(), " of job ", job_id_, " arrived with SHA-256 ", sha256,
          ", soupd promised ", artifact_.sha256(), "; nothing was written; fetch again"));
    }
    return file_->Sync(target_);
  }

 private:
  absl::Status Interrupted() const {
    return InterruptedError(PendingSignal(), absl::StrCat("fetch of ", job_id_,
                                                          " interrupted; to get the adapter: "
                                                          "soupctl fetch ",
                                                          job_id_));
  }

  absl::Status Receive() {
    FetchArtifactRequest request;
    request.set_job_id(job_id_);
    request.set_name(artifact_.name());
    request.set_offset(offset_);
    ReplyStream<ArtifactChunk> stream(api_->stub(), &Api::Stub::AsyncFetchArtifact, request);
    const std::string doing = absl::StrCat("fetch ", artifact_.name(), " of ", job_id_);
    for (;;) {
      using Next = ReplyStream<ArtifactChunk>::Next;
      switch (stream.Read(kChunkLimit)) {
        case Next::kReply:
          break;
        case Next::kEnd:
          return api_->Explain(stream.Finish(), doing);
        case Next::kIdle:
          stream.Finish();
          return api_->Explain(GivenUp(WaitResult::kTimeout), doing);
        case Next::kInterrupted:
          return Interrupted();
      }
      const std::string& data = stream.reply().data();
      if (offset_ + static_cast<int64_t>(data.size()) > artifact_.size_bytes()) {
        return absl::DataLossError(absl::StrCat(doing, ": more bytes came than the ",
                                                artifact_.size_bytes(), " promised"));
      }
      SOUP_RETURN_IF_ERROR(file_->Write(data, target_, artifact_.size_bytes() - offset_));
      hash_.Update(data);
      offset_ += static_cast<int64_t>(data.size());
      progress_(artifact_.name(), offset_, artifact_.size_bytes());
    }
  }

  Api* const api_;
  const std::string job_id_;
  const Artifact& artifact_;
  const std::string target_;
  TemporaryFile* const file_;
  const FetchProgress& progress_;
  Sha256 hash_;
  int64_t offset_ = 0;
};

absl::Status CheckRoom(const std::string& folder, int64_t needed) {
  SOUP_ASSIGN_OR_RETURN(const int64_t free_bytes, engine::RealFileSystem().FreeBytes(folder));
  if (needed <= free_bytes) return absl::OkStatus();
  return absl::ResourceExhaustedError(absl::StrCat(
      "output ", folder, ": ", needed, " bytes needed, ", free_bytes, " bytes free; make room"));
}

// A folder with its parents. What was made, and holds nothing, goes again unless Keep() is called.
class MadeFolder {
 public:
  explicit MadeFolder(const std::string& folder) : folder_(folder) {
    struct stat st;
    for (fs::path part = folder; !part.empty() && lstat(part.c_str(), &st) != 0 && errno == ENOENT;
         part = part.parent_path()) {
      made_.push_back(part.string());
    }
  }
  MadeFolder(const MadeFolder&) = delete;
  MadeFolder& operator=(const MadeFolder&) = delete;
  ~MadeFolder() {
    for (const std::string& part : made_) {
      if (rmdir(part.c_str()) != 0 && errno != ENOENT) return;  // "a/b/" is there twice
    }
  }
  void Keep() { made_.clear(); }

  // Makes the folder, and waits until nobody else fetches into it: the weights of one job beside
  // the config of another would pass for one.
  absl::StatusOr<engine::UniqueFd> Lock() {
    // One that made it, and failed, may have removed it while we waited.
    for (int tries = 0;; ++tries) {
      SOUP_RETURN_IF_ERROR(engine::RealFileSystem().CreateDirectories(folder_, 0777));
      engine::UniqueFd lock(open(folder_.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
      if (lock.get() < 0 && (errno != ENOENT || tries == kLockTries))
        return ErrnoStatus(errno, "open", folder_);
      if (lock.get() < 0) continue;
      while (flock(lock.get(), LOCK_EX) != 0) {
        if (errno == ENOTSUP || errno == ENOLCK) break;  // a file system without locks
        if (errno != EINTR) return ErrnoStatus(errno, "lock", folder_);
      }
      struct stat st;
      const bool there = fstat(lock.get(), &st) == 0 && st.st_nlink > 0;
      if (there || tries == kLockTries) return lock;
    }
  }

 private:
  static constexpr int kLockTries = 10;
  const std::string folder_;
  std::vector<std::string> made_;  // the deepest first
};

absl::Status SyncFolder(const std::string& folder) {
  const engine::UniqueFd fd(open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (fd.get() < 0 || fsync(fd.get()) != 0) return ErrnoStatus(errno, "sync", folder);
  return absl::OkStatus();
}

}  // namespace

absl::Status CheckOutputFolder(const std::string& folder) {
  struct stat st;
  std::string part = folder;
  while (stat(part.c_str(), &st) != 0) {
    if (errno != ENOENT) return NotWritable(folder, part, errno);
    if (lstat(part.c_str(), &st) == 0) return NotWritable(folder, part + " (a link)", ENOENT);
    const std::string parent = fs::path(part).parent_path().string();
    if (parent == part || parent.empty()) return NotWritable(folder, part, ENOENT);
    part = parent;
  }
  if (!S_ISDIR(st.st_mode)) return NotWritable(folder, part, ENOTDIR);
  // Permission bits do not tell of read-only mounts, quotas and network file systems: try it.
  std::string probe = JoinPath(part, absl::StrCat(kTemporaryPrefix, "probe.XXXXXX"));
  const int fd = mkostemp(probe.data(), O_CLOEXEC);
  if (fd < 0) return NotWritable(folder, part, errno);
  close(fd);
  unlink(probe.c_str());
  return absl::OkStatus();
}

absl::StatusOr<FetchResult> FetchAdapter(Api* api, const std::string& job_id,
                                         const std::string& folder, const FetchProgress& progress) {
  SOUP_ASSIGN_OR_RETURN(const auto list, api->ListArtifacts(job_id));
  if (list.artifacts().empty()) {
    return absl::FailedPreconditionError(absl::StrCat("job ", job_id, " has no adapter to fetch"));
  }
  if (list.artifacts_size() > kMaxArtifacts) {
    return absl::InternalError(absl::StrCat("job ", job_id, " has ", list.artifacts_size(),
                                            " artifacts, which no adapter has"));
  }
  SOUP_RETURN_IF_ERROR(CheckOutputFolder(folder));
  MadeFolder made(folder);
  SOUP_ASSIGN_OR_RETURN(const engine::UniqueFd lock, made.Lock());
  RemoveStaleTemporaries(folder);

  FetchResult result;
  std::vector<const Artifact*> wanted;
  for (const Artifact& artifact : list.artifacts()) {
    if (!IsSafeName(artifact.name())) {
      return absl::InternalError(absl::StrCat("soupd names an artifact \"", artifact.name(),
                                              "\", which is no file name; nothing was written"));
    }
    ++result.files;
    result.bytes += artifact.size_bytes();
    const std::string target = JoinPath(folder, artifact.name());
    if (HasSameFile(target, artifact)) continue;
    result.replaced = result.replaced || engine::RealFileSystem().Exists(target);
    result.downloaded += artifact.size_bytes();
    wanted.push_back(&artifact);
  }
  SOUP_RETURN_IF_ERROR(CheckRoom(folder, result.downloaded));

  std::vector<std::unique_ptr<TemporaryFile>> files;
  for (const Artifact* artifact : wanted) {
    SOUP_ASSIGN_OR_RETURN(auto file, TemporaryFile::Create(folder, artifact->name()));
    const std::string target = JoinPath(folder, artifact->name());
    SOUP_RETURN_IF_ERROR(Download(api, job_id, *artifact, target, file.get(), progress).Run());
    files.push_back(std::move(file));
  }
  if (result.replaced && wanted.size() > 1) {
    SOUP_RETURN_IF_ERROR(engine::RealFileSystem().Remove(JoinPath(folder, kConfigFile)));
  }
  for (const bool config : {false, true}) {
    for (size_t i = 0; i < wanted.size(); ++i) {
      if ((wanted[i]->name() == kConfigFile) != config) continue;
      SOUP_RETURN_IF_ERROR(files[i]->RenameTo(JoinPath(folder, wanted[i]->name())));
    }
  }
  made.Keep();
  SOUP_RETURN_IF_ERROR(SyncFolder(folder));
  return result;
}

}  // namespace soup::client
