#include "daemon/control/api_status.h"

#include "daemon/control/text.h"

namespace soup::daemon {

grpc::Status ToGrpcStatus(const absl::Status& status) {
  // The two enumerations have the same numbers by design (google.rpc.Code).
  static_assert(static_cast<int>(absl::StatusCode::kInvalidArgument) ==
                static_cast<int>(grpc::StatusCode::INVALID_ARGUMENT));
  static_assert(static_cast<int>(absl::StatusCode::kUnauthenticated) ==
                static_cast<int>(grpc::StatusCode::UNAUTHENTICATED));
  if (status.ok()) return grpc::Status::OK;
  // Percent-encoding triples what is not ASCII; 8 KiB is the limit of all trailers together.
  constexpr size_t kMaxMessageBytes = 2000;
  const absl::string_view text(status.message().data(), status.message().size());
  return grpc::Status(static_cast<grpc::StatusCode>(status.code()),
                      CleanText(text, kMaxMessageBytes));
}

}  // namespace soup::daemon
