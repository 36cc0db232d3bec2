#include <string>

#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "engine/data/conversation.h"
#include "engine/data/json_value.h"
#include "engine/data/unicode.h"
#include "tests/fuzz/fuzz_target.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const absl::string_view text(reinterpret_cast<const char*>(data), size);
  for (absl::string_view line : absl::StrSplit(text, '\n')) {
    if (soup::engine::FindInvalidUtf8(line)) continue;
    const auto value = soup::engine::ParseJsonValue(line);
    if (value.ok()) soup::engine::ReadConversation(*value).IgnoreError();
  }
  return 0;
}
