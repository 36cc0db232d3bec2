#include "engine/io/gguf_quant.h"

#include <algorithm>
#include <cstring>
#include <iterator>

#include "absl/strings/str_cat.h"
#include "engine/base/dtype.h"

namespace soup::engine {
namespace {

constexpr GgmlTypeInfo kTypes[] = {
    {GgmlType::kF32, "F32", 1, 4},       {GgmlType::kF16, "F16", 1, 2},
    {GgmlType::kBF16, "BF16", 1, 2},     {GgmlType::kQ8_0, "Q8_0", 32, 34},
    {GgmlType::kQ4_0, "Q4_0", 32, 18},   {GgmlType::kQ4_1, "Q4_1", 32, 20},
    {GgmlType::kQ4_K, "Q4_K", 256, 144}, {GgmlType::kQ6_K, "Q6_K", 256, 210},
};

// Of the types that files may have, for messages.
constexpr struct {
  uint32_t number;
  const char* name;
} kOthers[] = {{6, "Q5_0"},   {7, "Q5_1"},    {9, "Q8_1"},     {10, "Q2_K"},   {11, "Q3_K"},
               {13, "Q5_K"},  {15, "Q8_K"},   {16, "IQ2_XXS"}, {17, "IQ2_XS"}, {18, "IQ3_XXS"},
               {19, "IQ1_S"}, {20, "IQ4_NL"}, {21, "IQ3_S"},   {22, "IQ2_S"},  {23, "IQ4_XS"},
               {24, "I8"},    {25, "I16"},    {26, "I32"},     {27, "I64"},    {28, "F64"},
               {29, "IQ1_M"}, {34, "TQ1_0"},  {35, "TQ2_0"},   {39, "MXFP4"}};

float Half(const uint8_t* p) {
  uint16_t bits;
  std::memcpy(&bits, p, sizeof bits);
  return F16ToF32(bits);
}

// 32 elements: scale, 32 signed bytes.
void Q8_0(const uint8_t* p, float* out) {
  const float d = Half(p);
  for (int i = 0; i < 32; ++i) out[i] = static_cast<float>(static_cast<int8_t>(p[2 + i])) * d;
}

// 32 elements: scale, nibbles less 8; low ones first.
void Q4_0(const uint8_t* p, float* out) {
  const float d = Half(p);
  for (int i = 0; i < 16; ++i) {
    out[i] = static_cast<float>((p[2 + i] & 15) - 8) * d;
    out[16 + i] = static_cast<float>((p[2 + i] >> 4) - 8) * d;
  }
}

// 32 elements: scale, minimum, nibbles.
void Q4_1(const uint8_t* p, float* out) {
  const float d = Half(p), m = Half(p + 2);
  for (int i = 0; i < 16; ++i) {
    const float low = static_cast<float>(p[4 + i] & 15) * d;
    const float high = static_cast<float>(p[4 + i] >> 4) * d;
    out[i] = low + m;
    out[16 + i] = high + m;
  }
}

// 256 elements: scale and minimum of 8 groups of 32, each by a 6-bit factor; nibbles.
void Q4_K(const uint8_t* p, float* out) {
  const float d = Half(p), dmin = Half(p + 2);
  const uint8_t* s = p + 4;
  const uint8_t* q = p + 16;
  for (int g = 0; g < 8; ++g) {
    const int scale = g < 4 ? s[g] & 63 : (s[g + 4] & 15) | ((s[g - 4] >> 6) << 4);
    const int minimum = g < 4 ? s[g + 4] & 63 : (s[g + 4] >> 4) | ((s[g] >> 6) << 4);
    const float dg = d * static_cast<float>(scale), mg = dmin * static_cast<float>(minimum);
    for (int i = 0; i < 32; ++i) {
      const int nibble = (q[g / 2 * 32 + i] >> (g % 2 * 4)) & 15;
      const float scaled = dg * static_cast<float>(nibble);
      out[g * 32 + i] = scaled - mg;
    }
  }
}

// 256 elements: low nibbles, two high bits, 16 signed scales of 16 elements each, scale.
void Q6_K(const uint8_t* p, float* out) {
  const uint8_t* low = p;
  const uint8_t* high = p + 128;
  const uint8_t* scales = p + 192;
  const float d = Half(p + 208);
  for (int g = 0; g < 8; ++g) {
    const int half = g / 4;
    for (int i = 0; i < 32; ++i) {
      const int nibble = (low[half * 64 + g % 2 * 32 + i] >> (g % 4 / 2 * 4)) & 15;
      const int top = (high[half * 32 + i] >> (g % 4 * 2)) & 3;
      const int q = (nibble | top << 4) - 32;
      const float scale = d * static_cast<float>(static_cast<int8_t>(scales[g * 2 + i / 16]));
      out[g * 32 + i] = scale * static_cast<float>(q);
    }
  }
}

}  // namespace

const GgmlTypeInfo* FindGgmlType(uint32_t number) {
  const auto* it = std::find_if(std::begin(kTypes), std::end(kTypes), [number](const auto& t) {
    return static_cast<uint32_t>(t.type) == number;
  });
  return it == std::end(kTypes) ? nullptr : it;
}

const GgmlTypeInfo& TypeInfo(GgmlType type) { return *FindGgmlType(static_cast<uint32_t>(type)); }

std::string GgmlTypeName(uint32_t number) {
  const GgmlTypeInfo* known = FindGgmlType(number);
  const auto* other = std::find_if(std::begin(kOthers), std::end(kOthers),
                                   [number](const auto& t) { return t.number == number; });
  const char* name =
      known != nullptr ? known->name : (other != std::end(kOthers) ? other->name : "unknown");
  return absl::StrCat(name, " (", number, ")");
}

std::string SupportedGgmlTypes() {
  std::string out;
  for (const GgmlTypeInfo& t : kTypes) absl::StrAppend(&out, out.empty() ? "" : ", ", t.name);
  return out;
}

void DequantizeBlocks(GgmlType type, const uint8_t* src, int64_t blocks, float* dst) {
  const GgmlTypeInfo& info = TypeInfo(type);
  for (int64_t b = 0; b < blocks; ++b, src += info.bytes, dst += info.block) {
    switch (type) {
      case GgmlType::kF32:
        std::memcpy(dst, src, sizeof *dst);
        break;
      case GgmlType::kF16:
        *dst = Half(src);
        break;
      case GgmlType::kBF16: {
        uint16_t bits;
        std::memcpy(&bits, src, sizeof bits);
        *dst = Bf16ToF32(bits);
        break;
      }
      case GgmlType::kQ8_0:
        Q8_0(src, dst);
        break;
      case GgmlType::kQ4_0:
        Q4_0(src, dst);
        break;
      case GgmlType::kQ4_1:
        Q4_1(src, dst);
        break;
      case GgmlType::kQ4_K:
        Q4_K(src, dst);
        break;
      case GgmlType::kQ6_K:
        Q6_K(src, dst);
        break;
    }
  }
}

}  // namespace soup::engine
