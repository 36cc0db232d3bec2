#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "engine/data/tokenizer.h"
#include "tests/fuzz/fuzz_target.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using soup::engine::Tokenizer;
  const absl::string_view json(reinterpret_cast<const char*>(data), size);
  const auto tokenizer = Tokenizer::Create(json, "tokenizer.json");
  if (!tokenizer.ok()) return 0;
  soup::engine::EncodeContext context;
  std::vector<int32_t> ids;
  std::vector<size_t> counts;
  const Tokenizer::Cut cuts[] = {{3, 2}, {9, 9}};
  (*tokenizer)
      ->Encode("It's  <s>12 na\xc3\xafve\n\n\xf0\x9f\x99\x82 ab", &context, &ids)
      .IgnoreError();
  (*tokenizer)->EncodeCut("ab <s> cd </s>\n", cuts, &context, &ids, &counts).IgnoreError();
  (void)(*tokenizer)->Decode(ids);
  return 0;
}
