// Named endpoints (`soupctl context`), kept in $XDG_CONFIG_HOME/soupctl/contexts.yaml (else
// ~/.config/soupctl/contexts.yaml), mode 0600 because it may hold tokens:
//
//   current: lab
//   contexts:
//     - {name: lab, endpoint: "lab.example.org:7443", token_file: /home/ada/.soup-token,
//        ca: /home/ada/lab-ca.pem, server_name: soupd.lab}
//
// A file that others may read is refused when it holds a token by value. Unknown keys are refused.
// Plain values; not thread-safe across writers of one file: the last rename wins, readers see a
// whole file.
#ifndef SOUP_CLIENT_CONTEXTS_H_
#define SOUP_CLIENT_CONTEXTS_H_

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace soup::client {

struct Context {
  std::string name;
  std::string endpoint;
  std::string token;       // by value; at most one of the two
  std::string token_file;  // absolute
  std::string ca;          // PEM file, absolute; empty: the system's
  std::string server_name;
};

struct Contexts {
  std::string current;  // empty: none
  std::vector<Context> all;

  const Context* Find(const std::string& name) const;
  // Replaces the one of that name, or appends.
  void Put(Context context);
  // False when there is none. Clears `current` when it was that one.
  bool Remove(const std::string& name);
};

// From $XDG_CONFIG_HOME and $HOME.
absl::StatusOr<std::string> ContextsPath();
// No file: empty.
absl::StatusOr<Contexts> LoadContexts(const std::string& path);
// Creates the folder (0700); temp file (0600), fsync, rename.
absl::Status SaveContexts(const std::string& path, const Contexts& contexts);

}  // namespace soup::client

#endif  // SOUP_CLIENT_CONTEXTS_H_
