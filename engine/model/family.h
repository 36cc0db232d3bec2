// The table of supported families: what each one's config must say. A new family is an entry here,
// and what it asks of the spec beyond that.
//
// Errors: InvalidArgument, naming the key, its value and what is supported. Any thread.
#ifndef SOUP_ENGINE_MODEL_FAMILY_H_
#define SOUP_ENGINE_MODEL_FAMILY_H_

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "engine/model/config_reader.h"

namespace soup::engine {

// A key whose only supported value (false, 0) leaves the feature off.
struct OffSwitch {
  const char* key;
  const char* what;  // "biases on q, k, v and o"
};

struct Family {
  const char* model_type;    // config.model_type
  const char* architecture;  // the one of config.architectures that is a causal language model
  const char* activation;    // hidden_act
  absl::Span<const OffSwitch> off;
};

absl::Span<const Family> Families();
absl::StatusOr<const Family*> FindFamily(absl::string_view model_type);
absl::Status CheckFamily(const Family& family, const ConfigReader& config);

}  // namespace soup::engine

#endif  // SOUP_ENGINE_MODEL_FAMILY_H_
