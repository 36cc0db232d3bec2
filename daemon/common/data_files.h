// The files that a job's spec names, in one list: what is checked, kept and prepared alike for
// every file is done in a loop over these. Pure functions; any thread.
#ifndef SOUP_DAEMON_COMMON_DATA_FILES_H_
#define SOUP_DAEMON_COMMON_DATA_FILES_H_

#include <string>
#include <vector>

#include "soup/v1/job.pb.h"

namespace soup::daemon {

// data.train as the list of one that it is, or data.sources. Empty when the spec has neither.
std::vector<soup::v1::DataSource> SourcesOf(const soup::v1::DataSpec& data);

struct NamedFile {
  std::string field;  // "data.train", "data.train[1]", "lora.init_from"
  soup::v1::FileRef file;
};
// Every uploaded file of a job, in the order of the job file.
std::vector<NamedFile> FilesOf(const soup::v1::JobSpec& spec);

}  // namespace soup::daemon

#endif  // SOUP_DAEMON_COMMON_DATA_FILES_H_
