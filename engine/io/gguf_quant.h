// The element types of GGUF that are read, and what their blocks stand for. Layouts and the order
// of the arithmetic are those of ggml's reference and of PyPI's gguf (bit-equal in fp32). Pure; any
// thread. Source: https://github.com/ggml-org/llama.cpp/blob/master/ggml/src/ggml-quants.c
#ifndef SOUP_ENGINE_IO_GGUF_QUANT_H_
#define SOUP_ENGINE_IO_GGUF_QUANT_H_

#include <cstdint>
#include <string>

namespace soup::engine {

// Numbers as in files.
enum class GgmlType : uint32_t {
  kF32 = 0,
  kF16 = 1,
  kQ4_0 = 2,
  kQ4_1 = 3,
  kQ8_0 = 8,
  kQ4_K = 12,
  kQ6_K = 14,
  kBF16 = 30,
};

struct GgmlTypeInfo {
  GgmlType type;
  const char* name;
  int64_t block;  // elements
  int64_t bytes;  // of a block
};

const GgmlTypeInfo* FindGgmlType(uint32_t number);  // null: not supported
const GgmlTypeInfo& TypeInfo(GgmlType type);
std::string GgmlTypeName(uint32_t number);  // "Q5_K (13)", also of those that are not supported
std::string SupportedGgmlTypes();           // "F32, F16, ..."

// `blocks` blocks from src (any alignment) into blocks * TypeInfo(type).block floats.
void DequantizeBlocks(GgmlType type, const uint8_t* src, int64_t blocks, float* dst);

}  // namespace soup::engine

#endif  // SOUP_ENGINE_IO_GGUF_QUANT_H_
