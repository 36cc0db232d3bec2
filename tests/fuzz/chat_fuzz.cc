// A messages record under one of several chat templates: what is read of it, how it is rendered and
// which of its tokens are supervised. The first byte chooses the template.
#include <fstream>
#include <iterator>
#include <memory>
#include <string>
#include <vector>

#include "engine/data/chat_encoder.h"
#include "engine/data/json_value.h"
#include "engine/data/unicode.h"
#include "tests/fuzz/fuzz_target.h"

namespace {

using soup::engine::ChatEncoder;
using soup::engine::Tokenizer;

constexpr const char* kTemplates[] = {
    "{{ bos_token }}{% for m in messages %}<|turn|>{{ m.role }}\n{{ m.content }}<|end|>{% endfor "
    "%}{% if add_generation_prompt %}<|turn|>assistant\n{% endif %}",
    "{% for m in messages %}<|turn|>{{ m.role }}\n{{ m.content | trim }}{% for c in m.tool_calls "
    "or "
    "[] %}<call>{{ c.function.name }} {{ c.function.arguments | tojson }}</call>{% endfor "
    "%}<|end|>\n{% endfor %}{% if add_generation_prompt %}<|turn|>assistant\n<think>\n{% endif %}",
    "{% for m in messages %}{% if m.role == 'assistant' %}{% generation %}{{ m.content }}{% for c "
    "in "
    "m.tool_calls or [] %}{{ c.name }}{% if c.arguments is string %}{{ c.arguments }}{% else %}{{ "
    "c.arguments | tojson }}{% endif %}{% endfor %}<|end|>{% endgeneration %}{% else %}{{ "
    "m.content "
    "}}{% endif %}{% endfor %}",
    "{{ tools | tojson }}{% for m in messages %}[{{ m.role }}] {{ m.content }}{{ m.tool_calls }}{% "
    "if m.tool_calls %}{{ m.tool_calls[0].function.arguments }}{% endif %}{{ m.name }}{% if "
    "loop.last %}<|end|>{% endif %}{% endfor %}",
};

// With the byte tokenizer of the cases.
std::vector<std::unique_ptr<ChatEncoder>> MakeEncoders(Tokenizer* tokenizer) {
  std::vector<std::unique_ptr<ChatEncoder>> out;
  for (const char* text : kTemplates) {
    for (const bool train_on_all : {false, true}) {
      soup::engine::TokenizerConfig config;
      config.chat_template = config.tool_template = text;
      config.special_tokens = {{"bos_token", "<|bos|>"}, {"eos_token", "<|end|>"}};
      out.push_back(ChatEncoder::Create(tokenizer, config, train_on_all).value());
    }
  }
  return out;
}

std::unique_ptr<Tokenizer> MakeTokenizer() {
  std::ifstream in(SOUP_TEST_DATA_DIR "/cases/_base/bytes/tokenizer.json");
  const std::string json((std::istreambuf_iterator<char>(in)), std::istreambuf_iterator<char>());
  return Tokenizer::Create(json, "tokenizer.json").value();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static Tokenizer* const tokenizer = MakeTokenizer().release();
  static const auto* const encoders =
      new std::vector<std::unique_ptr<ChatEncoder>>(MakeEncoders(tokenizer));
  if (size < 2 || size > 4096) return 0;
  const absl::string_view text(reinterpret_cast<const char*>(data) + 1, size - 1);
  if (soup::engine::FindInvalidUtf8(text)) return 0;
  const auto record = soup::engine::ParseJsonValue(text);
  if (!record.ok()) return 0;
  soup::engine::EncodeContext context;
  soup::engine::TokenRecord out;
  std::vector<std::string> notices;
  const ChatEncoder& encoder = *(*encoders)[data[0] % encoders->size()];
  if (!encoder.Encode(*record, &context, &out, &notices).ok()) return 0;
  if (out.ids.size() != out.supervised.size()) __builtin_trap();
  return 0;
}
