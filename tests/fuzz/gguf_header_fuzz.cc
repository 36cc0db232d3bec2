#include <cstring>

#include "engine/io/gguf_header.h"
#include "tests/fuzz/fuzz_target.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto read = [data, size](int64_t offset, int64_t bytes, void* dst) {
    if (offset < 0 || bytes < 0 || static_cast<size_t>(offset + bytes) > size) __builtin_trap();
    std::memcpy(dst, data + offset, static_cast<size_t>(bytes));
    return absl::OkStatus();
  };
  for (bool tokenizer : {false, true})
    soup::engine::ParseGgufHeader(read, static_cast<int64_t>(size), tokenizer).IgnoreError();
  return 0;
}
