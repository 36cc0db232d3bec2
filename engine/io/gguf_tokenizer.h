// The tokenizer in a GGUF file's metadata as the two files that a Hugging Face folder has:
// byte-level BPE ("gpt2") with a pre-tokenizer known by its name, and BPE over characters with byte
// fallback ("llama", SentencePiece), whose merges are made from the scores as transformers makes
// them. What a GGUF does not keep is restored where it is known: gemma's tab and runs of blanks,
// the blanks that Phi-3's special tokens swallow. Others are refused by name. Any thread.
#ifndef SOUP_ENGINE_IO_GGUF_TOKENIZER_H_
#define SOUP_ENGINE_IO_GGUF_TOKENIZER_H_

#include <string>

#include "absl/status/statusor.h"
#include "engine/io/gguf_reader.h"

namespace soup::engine {

struct GgufTokenizerFiles {
  std::string tokenizer_json;
  std::string tokenizer_config_json;  // special tokens and the chat template too
};

// `file` was opened with its tokenizer. Errors: InvalidArgument, naming the key.
absl::StatusOr<GgufTokenizerFiles> ReadGgufTokenizer(const GgufFile& file);

}  // namespace soup::engine

#endif  // SOUP_ENGINE_IO_GGUF_TOKENIZER_H_
