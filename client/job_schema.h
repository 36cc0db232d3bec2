// Every key of a job file: section, type, default, range and meaning, in one table. The parser, the
// writer, the suggestions for misspelt keys and the check of docs/JOB_FILE.md all read it.
// Constant data and pure functions; thread-safe.
#ifndef SOUP_CLIENT_JOB_SCHEMA_H_
#define SOUP_CLIENT_JOB_SCHEMA_H_

#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace soup::client {

enum class KeyKind {
  kText,
  kChoice,       // one of `choices`
  kWholeNumber,  // within [low, high]
  kReal,         // within low .. high
  kBool,         // true | false
  kServerPath,   // a folder on soupd's host
  kOutputPath,   // a folder of the caller's, made absolute
  kSources,      // a file of the caller's, or a list of files or {path, weight, format}; uploaded
  kFractionOrFile,  // a real, or a file
  kAdapterFolder,   // a folder of the caller's with a PEFT adapter, its two files uploaded
  kTargets,         // all-linear, or a list of module names
  kSize,            // auto, or bytes with a unit
  kDuration,        // none, or seconds with a unit
};

struct JobKey {
  const char* section;  // "" for the keys that stand alone
  const char* key;
  KeyKind kind;
  const char* default_text;  // YAML; nullptr: there is none
  bool required;
  double low = 0, high = 0;
  bool low_open = false, high_open = false;  // the bound itself is not allowed
  const char* choices = "";                  // "a|b|c"
  const char* meaning = "";
};

absl::Span<const JobKey> JobKeys();
// nullptr when there is no such key.
const JobKey* FindJobKey(absl::string_view section, absl::string_view key);
// "training.epochs", "name".
std::string FullName(const JobKey& key);
// base, data, lora, training, resources.
const std::vector<std::string>& JobSections();
// What the value must be, for messages and docs: "a whole number, 1 to 4096".
std::string TypeText(const JobKey& key);

// For an unknown key `wrong` in `section`: `did you mean "epochs"?`, or that the key belongs under
// another section, or the nearest one with the list of what may stand here.
std::string SuggestKey(absl::string_view section, absl::string_view wrong);
// The nearest of `choices` by edit distance (insert, delete, change, swap neighbours; case and
// `-`/`_` do not count), or empty when none is near.
std::string Nearest(absl::string_view wrong, const std::vector<std::string>& choices);

}  // namespace soup::client

#endif  // SOUP_CLIENT_JOB_SCHEMA_H_
