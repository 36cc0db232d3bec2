// soupctl. See docs/CLI.md.
#include <cstdlib>

#include "client/cli.h"
#include "client/interrupt.h"

int main(int argc, char** argv) {
  // gRPC's own log lines would stand among the chatter; errors are told by us. Ask for them with
  // GRPC_VERBOSITY=debug.
  setenv("GRPC_VERBOSITY", "NONE", /*overwrite=*/0);
  soup::client::InstallSignalHandlers();
  return soup::client::RunCli(argc, argv);
}
