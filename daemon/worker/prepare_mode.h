// `soup-worker --prepare`: one request over the link, progress, one reply. Runs apart from soupd
// because files, template, tokenizer and an adapter to go on from are a stranger's: memory and CPU
// time are limited before anything of them is read, and there is no device and no store in this
// process.
#ifndef SOUP_DAEMON_WORKER_PREPARE_MODE_H_
#define SOUP_DAEMON_WORKER_PREPARE_MODE_H_

#include "daemon/common/link.h"

namespace soup::worker {

// Returns the exit status.
int RunPrepareMode(daemon::Link& link);

}  // namespace soup::worker

#endif  // SOUP_DAEMON_WORKER_PREPARE_MODE_H_
