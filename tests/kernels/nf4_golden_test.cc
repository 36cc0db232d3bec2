// The NF4 quantiser and dequantiser against bytes that bitsandbytes wrote (tests/golden/nf4).
#include <cstdint>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/bf16.h"
#include "kernels/cpu/context.h"
#include "kernels/cpu/nf4_dequant.h"
#include "kernels/cpu/nf4_quantize.h"
#include "kernels/nf4.h"
#include "tests/kernels/tensor_file.h"

namespace soup::kernels::cpu {
namespace {

const TensorFile& Golden() {
  static const TensorFile file(std::string(SOUP_TEST_DATA_DIR) + "/golden/nf4/nf4.safetensors");
  return file;
}

template <typename T>
std::vector<uint8_t> BytesOf(const std::vector<T>& values) {
  const auto* begin = reinterpret_cast<const uint8_t*>(values.data());
  return std::vector<uint8_t>(begin, begin + values.size() * sizeof(T));
}

std::vector<uint16_t> ToBf16(const std::vector<float>& values) {
  std::vector<uint16_t> bits;
  for (float v : values) bits.push_back(F32ToBf16(v));
  return bits;
}

class Nf4GoldenTest : public testing::TestWithParam<const char*> {
 protected:
  std::string Name(const char* suffix) const { return std::string(GetParam()) + suffix; }
  std::vector<uint16_t> Weight() const { return Golden().Read<uint16_t>(Name(".weight")); }
};

TEST_P(Nf4GoldenTest, SingleQuantisationBytes) {
  const std::vector<uint16_t> weight = Weight();
  const auto n = static_cast<int64_t>(weight.size());
  std::vector<uint8_t> packed((weight.size() + 1) / 2);
  std::vector<float> absmax(Nf4Blocks(n));
  const Nf4QuantizeArgs args = {
      .src_bf16 = weight.data(), .n = n, .packed = packed.data(), .absmax = absmax.data()};
  ASSERT_EQ(Nf4QuantizeBlocks(args, 0, Nf4Blocks(n)), -1);
  EXPECT_EQ(packed, Golden().Read<uint8_t>(Name(".sq.packed")));
  EXPECT_EQ(BytesOf(absmax), BytesOf(Golden().Read<float>(Name(".sq.absmax"))));
}

TEST_P(Nf4GoldenTest, Fp32SourceGivesTheSameBytes) {
  const std::vector<uint16_t> weight = Weight();
  std::vector<float> wide;
  for (uint16_t w : weight) wide.push_back(Bf16ToF32(w));
  const auto n = static_cast<int64_t>(weight.size());
  std::vector<uint8_t> packed((weight.size() + 1) / 2);
  std::vector<float> absmax(Nf4Blocks(n));
  const Nf4QuantizeArgs args = {
      .src_f32 = wide.data(), .n = n, .packed = packed.data(), .absmax = absmax.data()};
  ASSERT_EQ(Nf4QuantizeBlocks(args, 0, Nf4Blocks(n)), -1);
  EXPECT_EQ(packed, Golden().Read<uint8_t>(Name(".sq.packed")));
}

TEST_P(Nf4GoldenTest, DoubleQuantisationBytes) {
  const auto absmax = Golden().Read<float>(Name(".sq.absmax"));
  const auto blocks = static_cast<int64_t>(absmax.size());
  std::vector<uint8_t> q(absmax.size());
  std::vector<float> nested(Nf4NestedBlocks(blocks));
  std::vector<float> offset(1);
  Nf4QuantizeAbsmax(absmax.data(), blocks, q.data(), nested.data(), offset.data());
  EXPECT_EQ(BytesOf(offset), BytesOf(Golden().Read<float>(Name(".dq.offset"))));
  EXPECT_EQ(BytesOf(nested), BytesOf(Golden().Read<float>(Name(".dq.nested_absmax"))));
  EXPECT_EQ(q, Golden().Read<uint8_t>(Name(".dq.absmax")));
  EXPECT_EQ(Golden().Read<uint8_t>(Name(".dq.packed")), Golden().Read<uint8_t>(Name(".sq.packed")));
}

TEST_P(Nf4GoldenTest, DequantisedSingle) {
  const auto packed = Golden().Read<uint8_t>(Name(".sq.packed"));
  const auto absmax = Golden().Read<float>(Name(".sq.absmax"));
  const auto expected = Golden().Read<uint16_t>(Name(".sq.dequant"));
  for (const char* simd : {"base", "avx2", "avx512"}) {
    CpuContext ctx({.threads = 2, .simd = simd});
    std::vector<float> dst(expected.size());
    Nf4Dequant({.packed = packed.data(),
                .absmax = absmax.data(),
                .dst = dst.data(),
                .n = static_cast<int64_t>(dst.size())},
               ctx);
    EXPECT_EQ(ToBf16(dst), expected) << simd;
  }
}

TEST_P(Nf4GoldenTest, DequantisedDouble) {
  const auto packed = Golden().Read<uint8_t>(Name(".dq.packed"));
  const auto q = Golden().Read<uint8_t>(Name(".dq.absmax"));
  const auto nested = Golden().Read<float>(Name(".dq.nested_absmax"));
  const auto offset = Golden().Read<float>(Name(".dq.offset"));
  const auto expected = Golden().Read<uint16_t>(Name(".dq.dequant"));
  for (const char* simd : {"base", "avx2", "avx512"}) {
    CpuContext ctx({.threads = 2, .simd = simd});
    std::vector<float> dst(expected.size());
    Nf4Dequant({.packed = packed.data(),
                .absmax_q = q.data(),
                .nested_absmax = nested.data(),
                .nested_offset = offset.data(),
                .dst = dst.data(),
                .n = static_cast<int64_t>(dst.size())},
               ctx);
    EXPECT_EQ(ToBf16(dst), expected) << simd;
  }
}

TEST_P(Nf4GoldenTest, Codes) {
  const auto code = Golden().Read<float>(Name(".sq.code"));
  EXPECT_THAT(kNf4Code, testing::ElementsAreArray(code));
  const auto nested = Golden().Read<float>(Name(".dq.nested_code"));
  EXPECT_THAT(Nf4NestedCode(), testing::ElementsAreArray(nested));
}

INSTANTIATE_TEST_SUITE_P(Matrices, Nf4GoldenTest, testing::Values("a", "b", "c", "outlier"),
                         [](const auto& info) { return std::string(info.param); });

}  // namespace
}  // namespace soup::kernels::cpu
