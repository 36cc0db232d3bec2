// The NF4 quantiser beyond its golden data: every instruction set, ranges, edges, bad input; and
// how far its bytes can be trusted to be those of a GPU.
#include "kernels/cpu/nf4_quantize.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <set>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "kernels/bf16.h"
#include "kernels/cpu/simd_table.h"
#include "kernels/nf4.h"
#include "tests/kernels/cases.h"

namespace soup::kernels::cpu {
namespace {

// The decision tree of bitsandbytes' CUDA quantiser, as the sorted list of its constants.
constexpr float kTree[15] = {
    -0.8480964004993439f,  -0.6106329262256622f,  -0.4599952697753906f,   -0.33967943489551544f,
    -0.23460740596055984f, -0.13791173323988914f, -0.045525018125772476f, 0.03979014977812767f,
    0.1202552504837513f,   0.2035212516784668f,   0.2920137718319893f,    0.3893125355243683f,
    0.5016634166240692f,   0.6427869200706482f,   0.8614784181118011f,
};

int TreeCode(float x) {
  int code = 0;
  for (float threshold : kTree) code += x > threshold;
  return code;
}

struct Quantised {
  std::vector<uint8_t> packed;
  std::vector<float> absmax;
};

Quantised Quantise(const std::vector<float>& x) {
  const auto n = static_cast<int64_t>(x.size());
  Quantised q{std::vector<uint8_t>((n + 1) / 2), std::vector<float>(Nf4Blocks(n))};
  const Nf4QuantizeArgs args = {
      .src_f32 = x.data(), .n = n, .packed = q.packed.data(), .absmax = q.absmax.data()};
  EXPECT_EQ(Nf4QuantizeBlocks(args, 0, Nf4Blocks(n)), -1);
  return q;
}

int CodeAt(const Quantised& q, int64_t i) {
  return i % 2 == 0 ? q.packed[i / 2] >> 4 : q.packed[i / 2] & 15;
}

std::vector<float> RandomWeights(int64_t n, uint64_t seed) {
  Random random(seed);
  std::vector<float> x;
  for (int64_t i = 0; i < n; ++i) x.push_back(static_cast<float>(0.02 * random.Normal()));
  return x;
}

TEST(Nf4QuantizeTest, ScalarTreeAgrees) {
  const std::vector<float> x = RandomWeights(64 * 500 + 31, 1);
  const Quantised q = Quantise(x);
  for (size_t i = 0; i < x.size(); ++i) {
    const size_t begin = i / 64 * 64, end = std::min(begin + 64, x.size());
    float largest = 0;
    for (size_t j = begin; j < end; ++j) largest = std::max(largest, std::fabs(x[j]));
    ASSERT_EQ(q.absmax[i / 64], largest) << i;
    ASSERT_EQ(CodeAt(q, i), TreeCode(x[i] * (1.0f / largest))) << i;
  }
}

TEST(Nf4QuantizeTest, SameBytesOnEveryInstructionSet) {
  Random random(2);
  for (int round = 0; round < 2000; ++round) {
    const int64_t n = round < 1000 ? 64 : 1 + random.Below(64);
    uint16_t bf16[64];
    float f32[64];
    for (int64_t i = 0; i < n; ++i) {
      // Any exponent, denormals and both zeros too.
      do {
        bf16[i] = static_cast<uint16_t>(random.Bits());
      } while (!std::isfinite(Bf16ToF32(bf16[i])));
      f32[i] = static_cast<float>(random.Normal());
    }
    for (const bool wide : {false, true}) {
      uint8_t expected[32] = {};
      const float absmax = FindSimdTable("base")->nf4_quantize_block(
          wide ? nullptr : bf16, wide ? f32 : nullptr, n, expected);
      for (const char* name : {"avx2", "avx512"}) {
        const SimdTable* simd = FindSimdTable(name);
        if (simd == nullptr) continue;
        uint8_t packed[32] = {};
        EXPECT_EQ(simd->nf4_quantize_block(wide ? nullptr : bf16, wide ? f32 : nullptr, n, packed),
                  absmax);
        EXPECT_EQ(std::memcmp(packed, expected, sizeof packed), 0) << name << " round " << round;
      }
    }
  }
}

TEST(Nf4QuantizeTest, RangesGiveTheWholesBytes) {
  const std::vector<float> x = RandomWeights(64 * 41 + 7, 3);
  const auto n = static_cast<int64_t>(x.size());
  const Quantised whole = Quantise(x);
  Quantised parts{std::vector<uint8_t>((n + 1) / 2, 0xEE), std::vector<float>(Nf4Blocks(n))};
  const Nf4QuantizeArgs args = {
      .src_f32 = x.data(), .n = n, .packed = parts.packed.data(), .absmax = parts.absmax.data()};
  for (int64_t b = Nf4Blocks(n); b > 0;) {  // backwards, to depend on no order
    const int64_t begin = std::max<int64_t>(0, b - 5);
    EXPECT_EQ(Nf4QuantizeBlocks(args, begin, b), -1);
    b = begin;
  }
  EXPECT_EQ(parts.packed, whole.packed);
  EXPECT_EQ(parts.absmax, whole.absmax);
}

// As bitsandbytes: 0 * (1 / 0) is NaN, which its tree answers with code 0; -1 * 0 is still 0.
TEST(Nf4QuantizeTest, AllZeroBlock) {
  std::vector<float> x(128, 0.0f);
  for (size_t i = 64; i < 128; ++i) x[i] = 1.0f;
  const Quantised q = Quantise(x);
  EXPECT_EQ(q.absmax[0], 0.0f);
  for (int64_t i = 0; i < 64; ++i) EXPECT_EQ(CodeAt(q, i), 0);
  for (int64_t i = 64; i < 128; ++i) EXPECT_EQ(CodeAt(q, i), 15);
}

// A short block is filled up with zeros, so an odd count leaves code 7 (zero) in the last nibble.
TEST(Nf4QuantizeTest, ShortAndOddLastBlock) {
  for (int64_t n : {1, 2, 3, 63, 65, 127}) {
    std::vector<float> x(n, -2.0f);
    const Quantised q = Quantise(x);
    EXPECT_EQ(static_cast<int64_t>(q.packed.size()), (n + 1) / 2);
    for (int64_t i = 0; i < n; ++i) EXPECT_EQ(CodeAt(q, i), 0) << n;
    if (n % 2 == 1) {
      EXPECT_EQ(q.packed.back() & 15, 7) << n;
    }
    EXPECT_EQ(q.absmax.back(), 2.0f);
  }
}

TEST(Nf4QuantizeTest, NonFiniteWeightIsReportedByPosition) {
  for (float poison :
       {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity(),
        -std::numeric_limits<float>::infinity()}) {
    for (int64_t at : {0, 63, 64, 200, 299}) {
      std::vector<float> x = RandomWeights(300, 4);
      x[at] = poison;
      if (at < 250) x[at + 37] = poison;  // the first one is named
      std::vector<uint16_t> half;
      for (float v : x) half.push_back(F32ToBf16(v));
      std::vector<uint8_t> packed(150);
      std::vector<float> absmax(5);
      Nf4QuantizeArgs args = {
          .src_f32 = x.data(), .n = 300, .packed = packed.data(), .absmax = absmax.data()};
      EXPECT_EQ(Nf4QuantizeBlocks(args, 0, 5), at);
      args.src_f32 = nullptr;
      args.src_bf16 = half.data();
      EXPECT_EQ(Nf4QuantizeBlocks(args, 0, 5), at);
    }
  }
}

// bitsandbytes' wheels are compiled with fast division, so a GPU's 1 / absmax may differ from ours
// in the last place. For bf16 weights that decides no code: with every absmax mantissa and every
// weight that bf16 has, a reciprocal off by one unit either way picks the same code. (Scaling both
// by a power of two changes nothing, so one binade of absmax covers all, denormals aside.)
TEST(Nf4QuantizeTest, ReciprocalsLastPlaceDecidesNoBf16Code) {
  for (uint32_t mantissa = 0; mantissa < 128; ++mantissa) {
    const float absmax = Bf16ToF32(static_cast<uint16_t>((127u << 7) | mantissa));
    const float inverse = 1.0f / absmax;
    const float below = std::nextafter(inverse, 0.0f), above = std::nextafter(inverse, 2.0f);
    for (uint32_t bits = 0; bits < 0x8000u; ++bits) {
      const float x = Bf16ToF32(static_cast<uint16_t>(bits));
      if (!(x <= absmax)) break;
      for (float v : {x, -x}) {
        const int code = TreeCode(v * inverse);
        for (const float scaled : {v * below, v * above}) {
          ASSERT_EQ(TreeCode(std::nextafter(scaled, 2.0f)), code) << v << " / " << absmax;
          ASSERT_EQ(TreeCode(std::nextafter(scaled, -2.0f)), code) << v << " / " << absmax;
        }
      }
    }
  }
}

// Within half a step of the nearest code: what quantising is for.
TEST(Nf4QuantizeTest, PicksTheNearestCode) {
  const std::vector<float> x = RandomWeights(64 * 100, 5);
  const Quantised q = Quantise(x);
  for (size_t i = 0; i < x.size(); ++i) {
    const double scaled = static_cast<double>(x[i]) / q.absmax[i / 64];
    double nearest = 2;
    for (float code : kNf4Code) nearest = std::min(nearest, std::fabs(scaled - code));
    EXPECT_NEAR(std::fabs(scaled - kNf4Code[CodeAt(q, i)]), nearest, 1e-6);
  }
}

// bitsandbytes' search for the nearest dynamic code, step by step.
int DescendTree(float x) {
  const auto& code = Nf4NestedCode();
  int pivot = 127, lower = 0, upper = 255;
  for (int step = 64; step > 0; step /= 2) {
    if (x > code[pivot]) {
      lower = pivot;
      pivot += step;
    } else {
      upper = pivot;
      pivot -= step;
    }
  }
  if (x > code[pivot]) return x > (code[upper] + code[pivot]) * 0.5f ? upper : pivot;
  return x < (code[lower] + code[pivot]) * 0.5f ? lower : pivot;
}

TEST(Nf4NestedTest, FindsTheTreesCode) {
  const auto& code = Nf4NestedCode();
  std::vector<float> values = {0.0f, -0.0f, 1.0f, -1.0f, 1e-9f, -1e-9f};
  for (int k = 0; k < 256; ++k) {
    const float middle = k < 255 ? (code[k] + code[k + 1]) * 0.5f : 1.0f;
    for (float v : {code[k], middle}) {
      values.insert(values.end(), {v, std::nextafter(v, 2.0f), std::nextafter(v, -2.0f)});
    }
  }
  std::set<int> seen;
  for (float v : values) {
    if (std::fabs(v) > 1.0f) continue;
    // A block whose absmax is 1 and whose offset is 0 passes v through unchanged.
    const float absmax[2] = {1.0f, v};
    uint8_t q[2];
    float nested;
    Nf4QuantizeAbsmaxBlocks(absmax, 2, 0.0f, 0, 1, q, &nested);
    ASSERT_EQ(nested, 1.0f);
    EXPECT_EQ(q[1], DescendTree(v)) << v;
    seen.insert(q[1]);
  }
  EXPECT_EQ(seen.size(), 256u);
}

TEST(Nf4NestedTest, RangesGiveTheWholesBytes) {
  std::vector<float> absmax = RandomWeights(256 * 5 + 9, 6);
  for (float& a : absmax) a = std::fabs(a);
  const auto blocks = static_cast<int64_t>(absmax.size());
  std::vector<uint8_t> q(blocks), part(blocks);
  std::vector<float> nested(Nf4NestedBlocks(blocks)), part_nested(nested.size());
  float offset;
  Nf4QuantizeAbsmax(absmax.data(), blocks, q.data(), nested.data(), &offset);
  EXPECT_EQ(offset, Nf4AbsmaxMean(absmax.data(), blocks));
  for (int64_t b = 0; b < Nf4NestedBlocks(blocks); ++b) {
    Nf4QuantizeAbsmaxBlocks(absmax.data(), blocks, offset, b, b + 1, part.data(),
                            part_nested.data());
  }
  EXPECT_EQ(part, q);
  EXPECT_EQ(part_nested, nested);
}

// One block, or equal blocks: absmax equals its mean and the nested block is all zero. Whatever
// code is stored, absmax comes back exactly: code * 0 + offset.
TEST(Nf4NestedTest, EqualBlocksComeBackExactly) {
  for (int64_t blocks : {1, 300}) {
    const std::vector<float> absmax(blocks, 0.37f);
    std::vector<uint8_t> q(blocks);
    std::vector<float> nested(Nf4NestedBlocks(blocks));
    float offset;
    Nf4QuantizeAbsmax(absmax.data(), blocks, q.data(), nested.data(), &offset);
    for (int64_t b = 0; b < blocks; ++b) {
      EXPECT_EQ(Nf4NestedCode()[q[b]] * nested[b / 256] + offset, 0.37f);
    }
  }
}

}  // namespace
}  // namespace soup::kernels::cpu
