#include "absl/strings/string_view.h"
#include "engine/data/jinja/template.h"
#include "engine/data/json_value.h"
#include "tests/fuzz/fuzz_target.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  namespace jinja = soup::engine::jinja;
  static const auto* const variables = new absl::StatusOr<soup::engine::Value>(
      soup::engine::ParseJsonValue(R"({"messages":[{"role":"user","content":" Hi "},
{"role":"assistant","content":"Yo","tool_calls":[{"function":{"name":"f","arguments":{"a":[1,2.5]}}}]}],
"bos_token":"<s>","eos_token":"</s>","add_generation_prompt":true,"n":5,"l":[3,1,2]})"));
  const auto made = jinja::Template::Parse({reinterpret_cast<const char*>(data), size}, "template");
  if (!made.ok()) return 0;
  jinja::RenderOptions options;
  options.max_steps = 20000;
  options.max_made_bytes = 1 << 20;
  options.max_output_bytes = 1 << 18;
  (*made)->Render((*variables)->AsDict(), options).IgnoreError();
  return 0;
}
