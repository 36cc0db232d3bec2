// absl::Status -> grpc::Status: the one file that maps codes. Any thread.
#ifndef SOUP_DAEMON_CONTROL_API_STATUS_H_
#define SOUP_DAEMON_CONTROL_API_STATUS_H_

#include <grpcpp/support/status.h>

#include "absl/status/status.h"

namespace soup::daemon {

// Messages travel in HTTP/2 trailers, whose size is limited: a long one is cut.
grpc::Status ToGrpcStatus(const absl::Status& status);

}  // namespace soup::daemon

#endif  // SOUP_DAEMON_CONTROL_API_STATUS_H_
