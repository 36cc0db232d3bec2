// A job file (YAML) as a JobSpec, and back. Every key, type and default stands in job_schema.h;
// docs/JOB_FILE.md is for people.
//
// No key is ever ignored: an unknown key at any depth, a key given twice, a second document and a
// value of a wrong type are refused, all of them in one go, each as
//   job.yaml:7:13: unknown key "lerning_rate" in "training"; did you mean "learning_rate"?
// Errors are UsageError (exit code 2). Parsing touches no file but the job file itself.
// Plain values and pure functions; thread-safe.
#ifndef SOUP_CLIENT_JOB_FILE_H_
#define SOUP_CLIENT_JOB_FILE_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "soup/v1/job.pb.h"

namespace soup::client {

// A file of the caller's that a spec refers to, to be uploaded before the spec is sent.
struct LocalFile {
  enum class Slot { kTrain, kValidation, kInitAdapter, kInitAdapterConfig };
  Slot slot;
  int source = -1;    // kTrain: the place in data.sources; -1: data.train is the only file
  std::string path;   // absolute
  std::string where;  // "job.yaml:3:14: data.train", for messages
};

struct JobFile {
  // Complete but for the files' sha256 and size_bytes; FileRef.name is the path as written.
  soup::v1::JobSpec spec;
  std::vector<LocalFile> files;  // in the order of Slot and source
};

struct JobFileOptions {
  std::string name;  // --name: instead of the file's
  // --set training.epochs=3: `key=value`, the value in YAML; relative paths start at `cwd`.
  std::vector<std::string> overrides;
  std::string cwd;  // absolute
};

// The place in `spec` that belongs to a file; created when absent.
soup::v1::FileRef* FileRefOf(soup::v1::JobSpec* spec, LocalFile::Slot slot, int source = -1);

// `source` names the text in messages; relative paths in it start at `folder` (absolute).
// `default_name` is the job's name when neither the text nor the options have one.
absl::StatusOr<JobFile> ParseJobFile(const std::string& text, const std::string& source,
                                     const std::string& folder, const std::string& default_name,
                                     const JobFileOptions& options);

// Reads `path`, or the standard input for "-" (relative paths then start at options.cwd).
absl::StatusOr<JobFile> ReadJobFile(const std::string& path, const JobFileOptions& options);

// The spec as a job file with every key written out. Parsing it in the same folder, beside the same
// data files, gives the same spec but for the files' hashes.
std::string RenderJobFile(const soup::v1::JobSpec& spec);

}  // namespace soup::client

#endif  // SOUP_CLIENT_JOB_FILE_H_
