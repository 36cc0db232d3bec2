// Certificates made on the spot: a self-signed one for localhost and 127.0.0.1 (usable as a CA
// too).
#ifndef SOUP_TESTS_DAEMON_CONTROL_TLS_FOR_TESTS_H_
#define SOUP_TESTS_DAEMON_CONTROL_TLS_FOR_TESTS_H_

#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/x509v3.h>

#include <string>

#include "engine/base/log.h"

namespace soup::daemon {

struct KeyAndCertificate {
  std::string key_pem;
  std::string certificate_pem;
};

inline std::string TextOf(BIO* bio) {
  char* data = nullptr;
  const long n = BIO_get_mem_data(bio, &data);
  std::string text(data, static_cast<size_t>(n));
  BIO_free(bio);
  return text;
}

inline KeyAndCertificate MakeCertificate(const std::string& common_name) {
  EVP_PKEY* key = EVP_EC_gen("P-256");
  X509* cert = X509_new();
  SOUP_CHECK(key != nullptr && cert != nullptr);
  X509_set_version(cert, 2);
  ASN1_INTEGER_set(X509_get_serialNumber(cert), 1);
  X509_gmtime_adj(X509_getm_notBefore(cert), -3600);
  X509_gmtime_adj(X509_getm_notAfter(cert), 86400);
  X509_set_pubkey(cert, key);
  X509_NAME* name = X509_get_subject_name(cert);
  X509_NAME_add_entry_by_txt(name, "CN", MBSTRING_ASC,
                             reinterpret_cast<const unsigned char*>(common_name.c_str()), -1, -1,
                             0);
  X509_set_issuer_name(cert, name);
  for (const auto& [nid, value] : {std::pair{NID_subject_alt_name, "DNS:localhost,IP:127.0.0.1"},
                                   std::pair{NID_basic_constraints, "critical,CA:TRUE"}}) {
    X509_EXTENSION* extension = X509V3_EXT_conf_nid(nullptr, nullptr, nid, value);
    SOUP_CHECK(extension != nullptr);
    X509_add_ext(cert, extension, -1);
    X509_EXTENSION_free(extension);
  }
  SOUP_CHECK(X509_sign(cert, key, EVP_sha256()) > 0);
  BIO* key_bio = BIO_new(BIO_s_mem());
  PEM_write_bio_PrivateKey(key_bio, key, nullptr, nullptr, 0, nullptr, nullptr);
  BIO* cert_bio = BIO_new(BIO_s_mem());
  PEM_write_bio_X509(cert_bio, cert);
  X509_free(cert);
  EVP_PKEY_free(key);
  return {TextOf(key_bio), TextOf(cert_bio)};
}

}  // namespace soup::daemon

#endif  // SOUP_TESTS_DAEMON_CONTROL_TLS_FOR_TESTS_H_
