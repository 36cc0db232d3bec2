// What a job leaves behind for its owner: its log and, once it has SUCCEEDED, its artifacts.
#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <map>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "daemon/control/api_reactors.h"
#include "daemon/control/api_service.h"
#include "daemon/control/sha256.h"
#include "daemon/control/text.h"
#include "engine/base/file_system.h"
#include "engine/base/status_macros.h"

namespace soup::daemon {
namespace {

using soup::v1::Artifact;
using soup::v1::ArtifactChunk;
using soup::v1::LogChunk;

constexpr size_t kChunkBytes = 256 << 10;

// An open file of ours, read piece by piece.
class FileReader {
 public:
  ~FileReader() {
    if (fd_ >= 0) close(fd_);
  }
  bool is_open() const { return fd_ >= 0; }
  int fd() const { return fd_; }
  const struct stat& info() const { return st_; }

  // NotFound when absent or not a regular file.
  absl::Status Open(const std::string& path, int64_t offset) {
    path_ = path;
    offset_ = offset;
    fd_ = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
    if (fd_ < 0 || fstat(fd_, &st_) != 0) return engine::ErrnoStatus(errno, "open", path);
    if (!S_ISREG(st_.st_mode)) return absl::NotFoundError(absl::StrCat(path, " is not a file"));
    return absl::OkStatus();
  }
  // Empty at the end.
  absl::Status Read(std::string* data) {
    data->resize(kChunkBytes);
    ssize_t n = 0;
    do {
      n = pread(fd_, data->data(), data->size(), offset_);
    } while (n < 0 && errno == EINTR);
    if (n < 0) return engine::ErrnoStatus(errno, "read", path_);
    data->resize(static_cast<size_t>(n));
    offset_ += n;
    return absl::OkStatus();
  }

 private:
  std::string path_;
  int64_t offset_ = 0;
  int fd_ = -1;
  struct stat st_ {};
};

class LogStream final : public PumpedStream<LogChunk> {
 public:
  LogStream(const ApiContext& api, const Principal& who, const soup::v1::GetLogsRequest& request)
      : PumpedStream(api.pool), api_(api), who_(who), request_(request) {}

 private:
  absl::StatusOr<Step> Next(LogChunk* reply) override {
    if (!file_.is_open()) {
      if (request_.offset() < 0) return absl::InvalidArgumentError("offset is negative");
      SOUP_ASSIGN_OR_RETURN(const JobRecord job, api_.FindJob(who_, request_.job_id()));
      const absl::Status opened = file_.Open(api_.config.JobLogPath(job.id), request_.offset());
      if (absl::IsNotFound(opened)) return Step::kEnd;  // Nothing was logged yet.
      SOUP_RETURN_IF_ERROR(opened);
    }
    SOUP_RETURN_IF_ERROR(file_.Read(reply->mutable_data()));
    return reply->data().empty() ? Step::kEnd : Step::kWrite;
  }

  const ApiContext& api_;
  const Principal who_;
  const soup::v1::GetLogsRequest request_;
  FileReader file_;
};

// Hashes of artifacts, by path and identity of the file: they do not change, and are large.
class HashCache {
 public:
  absl::StatusOr<std::string> Of(const std::string& path, int fd, const struct stat& st) {
    const std::string key = absl::StrCat(path, "\n", st.st_ino, " ", st.st_size, " ",
                                         st.st_mtim.tv_sec, ".", st.st_mtim.tv_nsec);
    {
      absl::MutexLock lock(&mutex_);
      const auto it = hashes_.find(key);
      if (it != hashes_.end()) return it->second;
    }
    SOUP_ASSIGN_OR_RETURN(std::string hash, Sha256HexOfFile(fd, path, st.st_size));
    absl::MutexLock lock(&mutex_);
    if (hashes_.size() >= kMax) hashes_.clear();
    hashes_[key] = hash;
    return hash;
  }

 private:
  static constexpr size_t kMax = 1024;
  absl::Mutex mutex_;
  std::map<std::string, std::string> hashes_ ABSL_GUARDED_BY(mutex_);
};

HashCache& Hashes() {
  static HashCache* const cache = new HashCache();
  return *cache;
}

// Artifacts are visible when the job has SUCCEEDED, whole; never before.
absl::StatusOr<JobRecord> FindSucceeded(const ApiContext& api, const Principal& who,
                                        const std::string& asked) {
  SOUP_ASSIGN_OR_RETURN(JobRecord job, api.FindJob(who, asked));
  if (job.state != soup::v1::SUCCEEDED) {
    return absl::FailedPreconditionError(absl::StrCat("job ", job.id, " is ",
                                                      JobStateName(job.state),
                                                      "; only a job that SUCCEEDED has artifacts"));
  }
  return job;
}

absl::Status ListArtifactsOf(const ApiContext& api, const Principal& who, const std::string& asked,
                             soup::v1::ListArtifactsReply* reply) {
  SOUP_ASSIGN_OR_RETURN(const JobRecord job, FindSucceeded(api, who, asked));
  const std::string folder = api.config.ArtifactDir(job.id);
  SOUP_ASSIGN_OR_RETURN(const std::vector<std::string> names,
                        engine::RealFileSystem().ListDirectory(folder));
  for (const std::string& name : names) {
    FileReader file;
    const std::string path = absl::StrCat(folder, "/", name);
    const absl::Status opened = file.Open(path, 0);
    if (absl::IsNotFound(opened)) continue;
    SOUP_RETURN_IF_ERROR(opened);
    Artifact* artifact = reply->add_artifacts();
    artifact->set_name(name);
    artifact->set_size_bytes(file.info().st_size);
    SOUP_ASSIGN_OR_RETURN(*artifact->mutable_sha256(), Hashes().Of(path, file.fd(), file.info()));
  }
  // Published as a whole: half of an adapter must not be taken for one.
  for (const char* name : {"adapter_config.json", "adapter_model.safetensors"}) {
    const bool there =
        std::any_of(reply->artifacts().begin(), reply->artifacts().end(),
                    [name](const Artifact& artifact) { return artifact.name() == name; });
    if (there) continue;
    return absl::DataLossError(absl::StrCat("job ", job.id, ": its ", name, " is gone from ",
                                            folder, "; put it back, or run the job anew"));
  }
  return absl::OkStatus();
}

class ArtifactStream final : public PumpedStream<ArtifactChunk> {
 public:
  ArtifactStream(const ApiContext& api, const Principal& who,
                 const soup::v1::FetchArtifactRequest& request)
      : PumpedStream(api.slow_pool), api_(api), who_(who), request_(request) {}

 private:
  absl::StatusOr<Step> Next(ArtifactChunk* reply) override {
    const bool first = !file_.is_open();
    if (first) SOUP_RETURN_IF_ERROR(Open(reply));
    SOUP_RETURN_IF_ERROR(file_.Read(reply->mutable_data()));
    return first || !reply->data().empty() ? Step::kWrite : Step::kEnd;
  }

  absl::Status Open(ArtifactChunk* reply) {
    SOUP_ASSIGN_OR_RETURN(const JobRecord job, FindSucceeded(api_, who_, request_.job_id()));
    const std::string& name = request_.name();
    const absl::Status none =
        absl::NotFoundError(absl::StrCat("job ", job.id, " has no artifact ", Quoted(name)));
    if (name.empty() || name.front() == '.' || name.find('/') != std::string::npos ||
        name.size() > 255) {
      return none;
    }
    const std::string path = absl::StrCat(api_.config.ArtifactDir(job.id), "/", name);
    const absl::Status opened = file_.Open(path, request_.offset());
    if (absl::IsNotFound(opened)) return none;
    SOUP_RETURN_IF_ERROR(opened);
    if (request_.offset() < 0 || request_.offset() > file_.info().st_size) {
      return absl::OutOfRangeError(absl::StrCat("offset ", request_.offset(), " is outside the ",
                                                file_.info().st_size, " bytes of ", name));
    }
    reply->set_size_bytes(file_.info().st_size);
    SOUP_ASSIGN_OR_RETURN(*reply->mutable_sha256(), Hashes().Of(path, file_.fd(), file_.info()));
    return absl::OkStatus();
  }

  const ApiContext& api_;
  const Principal who_;
  const soup::v1::FetchArtifactRequest request_;
  FileReader file_;
};

}  // namespace

grpc::ServerWriteReactor<LogChunk>* SoupService::GetLogs(grpc::CallbackServerContext* call,
                                                         const soup::v1::GetLogsRequest* request) {
  const absl::StatusOr<Principal> who = api_.Authenticate(*call);
  if (!who.ok()) return RefuseStream<LogChunk>(who.status());
  return PumpedStream<LogChunk>::Begin(std::make_shared<LogStream>(api_, *who, *request));
}

grpc::ServerUnaryReactor* SoupService::ListArtifacts(grpc::CallbackServerContext* call,
                                                     const soup::v1::ListArtifactsRequest* request,
                                                     soup::v1::ListArtifactsReply* reply) {
  return RunUnary(api_, call, api_.slow_pool, [=, this](const Principal& who) {
    return ListArtifactsOf(api_, who, request->job_id(), reply);
  });
}

grpc::ServerWriteReactor<ArtifactChunk>* SoupService::FetchArtifact(
    grpc::CallbackServerContext* call, const soup::v1::FetchArtifactRequest* request) {
  const absl::StatusOr<Principal> who = api_.Authenticate(*call);
  if (!who.ok()) return RefuseStream<ArtifactChunk>(who.status());
  return PumpedStream<ArtifactChunk>::Begin(std::make_shared<ArtifactStream>(api_, *who, *request));
}

}  // namespace soup::daemon
