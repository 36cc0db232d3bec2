// The gRPC server with its endpoints: soup.v1.Soup, health and reflection; the unix socket always,
// TCP with TLS when configured. Start and Shutdown from one thread.
#ifndef SOUP_DAEMON_CONTROL_API_SERVER_H_
#define SOUP_DAEMON_CONTROL_API_SERVER_H_

#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "daemon/control/api_context.h"
#include "daemon/control/auth.h"

namespace soup::daemon {

class ApiServer {
 public:
  // `api` and `peers` (the table that api reads) outlive the server.
  // Errors name the endpoint and the remedy.
  static absl::StatusOr<std::unique_ptr<ApiServer>> Start(ApiContext* api, PeerTable* peers);
  ~ApiServer();
  ApiServer(const ApiServer&) = delete;
  ApiServer& operator=(const ApiServer&) = delete;

  // HOST:PORT of the TCP endpoint; empty when it is off.
  const std::string& tcp_address() const { return tcp_address_; }
  // What health says of the services "soupd.storage" and "soupd.worker".
  void SetStorageHealthy(bool healthy);
  void SetWorkerHealthy(bool healthy);
  // From now on mutations are refused, streams end with UNAVAILABLE and nobody new is let in.
  // Idempotent.
  void BeginDrain();
  // Waits for calls until `deadline`, then cuts them.
  void Shutdown(absl::Time deadline);

 private:
  struct Parts;
  explicit ApiServer(std::unique_ptr<Parts> parts);
  std::unique_ptr<Parts> parts_;
  std::string tcp_address_;
};

}  // namespace soup::daemon

#endif  // SOUP_DAEMON_CONTROL_API_SERVER_H_
