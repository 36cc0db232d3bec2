#include "daemon/control/endpoint_tcp.h"

#include <grpcpp/security/auth_metadata_processor.h>

#include <iterator>
#include <map>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "daemon/control/api_status.h"
#include "engine/base/file_system.h"
#include "engine/base/status_macros.h"

namespace soup::daemon {
namespace {

using Metadata = std::multimap<grpc::string_ref, grpc::string_ref>;

absl::StatusOr<Principal> PrincipalOfToken(const Metadata& metadata, TokenFile* tokens) {
  const auto range = metadata.equal_range("authorization");
  if (range.first == range.second || std::next(range.first) != range.second) {
    return absl::UnauthenticatedError(
        "this endpoint wants one header `authorization: Bearer TOKEN`");
  }
  const absl::string_view header(range.first->second.data(), range.first->second.size());
  constexpr absl::string_view kScheme = "Bearer ";
  std::optional<Principal> who;
  if (header.size() > kScheme.size() &&
      absl::EqualsIgnoreCase(header.substr(0, kScheme.size()), kScheme)) {
    who = tokens->Check(header.substr(kScheme.size()));
  }
  if (!who.has_value()) {
    return absl::UnauthenticatedError("the token is not one of soupd's token file");
  }
  return *who;
}

// Stops calls without a good token before any handler: health and reflection too.
class TokenProcessor final : public grpc::AuthMetadataProcessor {
 public:
  explicit TokenProcessor(TokenFile* tokens) : tokens_(tokens) {}

  bool IsBlocking() const override { return false; }

  grpc::Status Process(const InputMetadata& metadata, grpc::AuthContext*, OutputMetadata*,
                       OutputMetadata*) override {
    return ToGrpcStatus(PrincipalOfToken(metadata, tokens_).status());
  }

 private:
  TokenFile* const tokens_;
};

absl::StatusOr<std::string> ReadPem(const std::string& path, absl::string_view flag) {
  SOUP_ASSIGN_OR_RETURN(std::string pem, engine::RealFileSystem().ReadFile(path));
  if (!absl::StrContains(pem, "-----BEGIN ")) {
    return absl::InvalidArgumentError(absl::StrCat(flag, " ", path, " is not a PEM file"));
  }
  return pem;
}

}  // namespace

absl::StatusOr<std::shared_ptr<grpc::ServerCredentials>> MakeTlsCredentials(const Config& config,
                                                                            TokenFile* tokens) {
  const bool mutual = !config.tls_client_ca.empty();
  grpc::SslServerCredentialsOptions options(
      mutual ? GRPC_SSL_REQUEST_AND_REQUIRE_CLIENT_CERTIFICATE_AND_VERIFY
             : GRPC_SSL_DONT_REQUEST_CLIENT_CERTIFICATE);
  grpc::SslServerCredentialsOptions::PemKeyCertPair pair;
  SOUP_ASSIGN_OR_RETURN(pair.private_key, ReadPem(config.tls_key, "--tls-key"));
  SOUP_ASSIGN_OR_RETURN(pair.cert_chain, ReadPem(config.tls_cert, "--tls-cert"));
  options.pem_key_cert_pairs.push_back(std::move(pair));
  if (mutual) {
    SOUP_ASSIGN_OR_RETURN(options.pem_root_certs, ReadPem(config.tls_client_ca, "--tls-client-ca"));
  }
  std::shared_ptr<grpc::ServerCredentials> credentials = grpc::SslServerCredentials(options);
  if (credentials == nullptr) {
    return absl::InvalidArgumentError(
        absl::StrCat("TLS cannot use ", config.tls_cert, " with ", config.tls_key));
  }
  if (tokens != nullptr) {
    credentials->SetAuthMetadataProcessor(std::make_shared<TokenProcessor>(tokens));
  }
  return credentials;
}

absl::StatusOr<Principal> PrincipalOfTls(const grpc::ServerContextBase& call, TokenFile* tokens) {
  if (tokens != nullptr) return PrincipalOfToken(call.client_metadata(), tokens);
  const std::shared_ptr<const grpc::AuthContext> context = call.auth_context();
  const std::vector<grpc::string_ref> names = context == nullptr
                                                  ? std::vector<grpc::string_ref>()
                                                  : context->FindPropertyValues("x509_common_name");
  if (names.size() != 1) return absl::UnauthenticatedError("soupd does not know who is calling");
  const std::string name(names[0].data(), names[0].size());
  if (!IsUserName(name)) {
    return absl::UnauthenticatedError(
        "the client certificate's common name must have 1 to 64 letters, digits and . _ : @ -");
  }
  return Principal{absl::StrCat("cert:", name), false};
}

}  // namespace soup::daemon
