#include "absl/strings/string_view.h"
#include "engine/io/safetensors_header.h"
#include "tests/fuzz/fuzz_target.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const absl::string_view text(reinterpret_cast<const char*>(data), size);
  soup::engine::ParseSafetensorsHeader(text).IgnoreError();
  return 0;
}
