// StatUpload and UploadFile. A chunk is written and hashed on the pool before the next one is read,
// so a stream holds one chunk, and the client is slowed to the disk's pace.
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "daemon/control/api_reactors.h"
#include "daemon/control/api_service.h"
#include "engine/base/status_macros.h"

namespace soup::daemon {
namespace {

using soup::v1::UploadChunk;
using soup::v1::UploadReply;

class UploadStream final : public grpc::ServerReadReactor<UploadChunk> {
 public:
  UploadStream(const ApiContext& api, Principal who, UploadReply* reply)
      : api_(api), who_(std::move(who)), reply_(reply) {
    StartRead(&chunk_);
  }

 private:
  void OnReadDone(bool ok) override {
    // The client's end of the stream (ok false) also comes when it went away: Finish() of the
    // session then finds bytes missing, or the whole file, which is as good. To begin may hash what
    // is there already, to complete syncs the file: slow; a chunk is quick.
    ThreadPool& pool = session_ != nullptr && ok ? api_.pool : api_.slow_pool;
    if (!pool.TrySubmit([this, ok] { ok ? TakeChunk() : Complete(); })) {
      End(absl::UnavailableError("soupd is busy: too many calls wait; go on from StatUpload"));
    }
  }

  void TakeChunk() {
    const absl::Status status = Take();
    if (!status.ok()) return End(status);
    chunk_.Clear();
    StartRead(&chunk_);
  }

  absl::Status Take() {
    if (session_ == nullptr) {
      SOUP_RETURN_IF_ERROR(api_.CheckServing());
      reply_->set_sha256(chunk_.sha256());
      reply_->set_size_bytes(chunk_.size_bytes());
      SOUP_ASSIGN_OR_RETURN(session_, api_.uploads.Begin(who_.user, chunk_.sha256(),
                                                         chunk_.size_bytes(), chunk_.offset()));
    } else if (!chunk_.sha256().empty() && chunk_.sha256() != reply_->sha256()) {
      return absl::InvalidArgumentError("one stream carries one file");
    }
    return session_->Write(chunk_.offset(), chunk_.data());
  }

  void Complete() {
    if (session_ == nullptr) {
      return End(absl::InvalidArgumentError("the upload has no chunk: send one at least"));
    }
    End(session_->Finish());
  }

  void End(const absl::Status& status) {
    session_.reset();  // Before the answer: the next attempt finds the file free.
    Finish(ToGrpcStatus(status));
  }

  void OnDone() override { delete this; }

  const ApiContext& api_;
  const Principal who_;
  UploadReply* const reply_;
  UploadChunk chunk_;
  std::unique_ptr<UploadSession> session_;
};

class UploadRefusal final : public grpc::ServerReadReactor<UploadChunk> {
 public:
  explicit UploadRefusal(const absl::Status& status) { Finish(ToGrpcStatus(status)); }
  void OnDone() override { delete this; }
};

}  // namespace

grpc::ServerUnaryReactor* SoupService::StatUpload(grpc::CallbackServerContext* call,
                                                  const soup::v1::StatUploadRequest* request,
                                                  soup::v1::StatUploadReply* reply) {
  return RunUnary(api_, call, api_.pool, [=, this](const Principal& who) -> absl::Status {
    SOUP_ASSIGN_OR_RETURN(const Uploads::Known known,
                          api_.uploads.Stat(who.user, request->sha256(), request->size_bytes()));
    reply->set_complete(known.complete);
    reply->set_offset(known.offset);
    return absl::OkStatus();
  });
}

grpc::ServerReadReactor<UploadChunk>* SoupService::UploadFile(grpc::CallbackServerContext* call,
                                                              UploadReply* reply) {
  absl::StatusOr<Principal> who = api_.Authenticate(*call);
  if (!who.ok()) return new UploadRefusal(who.status());
  return new UploadStream(api_, *std::move(who), reply);
}

}  // namespace soup::daemon
