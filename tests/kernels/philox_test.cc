#include "kernels/philox.h"

#include <array>
#include <cmath>
#include <set>

#include "gtest/gtest.h"

namespace soup::kernels {
namespace {

std::array<uint32_t, 4> Words(const PhiloxBlock& b) { return {b.v[0], b.v[1], b.v[2], b.v[3]}; }

// Known answers of the Random123 distribution (kat_vectors, philox4x32 10).
TEST(PhiloxTest, KnownAnswers) {
  EXPECT_EQ(Words(Philox4x32_10({{0, 0, 0, 0}}, 0, 0)),
            (std::array<uint32_t, 4>{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  EXPECT_EQ(Words(Philox4x32_10({{~0u, ~0u, ~0u, ~0u}}, ~0u, ~0u)),
            (std::array<uint32_t, 4>{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
  EXPECT_EQ(Words(Philox4x32_10({{0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}}, 0xa4093822,
                                0x299f31d0)),
            (std::array<uint32_t, 4>{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}));
}

// Every word of the name and the seed matters.
TEST(PhiloxTest, StreamsDiffer) {
  std::set<std::array<uint32_t, 4>> seen;
  seen.insert(Words(PhiloxStream(1, 2, 3).Block(0)));
  for (int bit = 0; bit < 64; ++bit) {
    const uint64_t flip = uint64_t{1} << bit;
    seen.insert(Words(PhiloxStream(1 ^ flip, 2, 3).Block(0)));
    seen.insert(Words(PhiloxStream(1, 2 ^ flip, 3).Block(0)));
    seen.insert(Words(PhiloxStream(1, 2, 3 ^ flip).Block(0)));
    seen.insert(Words(PhiloxStream(1, 2, 3).Block(flip)));
  }
  EXPECT_EQ(seen.size(), 1u + 4 * 64);
}

TEST(PhiloxTest, DrawsAreTheBlocksInOrder) {
  const PhiloxStream stream(7, 8, 9);
  for (uint64_t i = 0; i < 20; ++i) {
    EXPECT_EQ(stream.Draw(i), stream.Block(i / 4).v[i % 4]);
    EXPECT_EQ(stream.Uniform(i), std::ldexp(static_cast<float>(stream.Draw(i) >> 8), -24));
  }
}

TEST(PhiloxTest, UniformMoments) {
  const PhiloxStream stream(42, 0, 1);
  const int n = 100000;
  double sum = 0, squares = 0;
  for (int i = 0; i < n; ++i) {
    const double u = stream.Uniform(i);
    ASSERT_GE(u, 0.0);
    ASSERT_LT(u, 1.0);
    sum += u;
    squares += u * u;
  }
  // Six standard errors: 0.289 / sqrt(n), and 0.298 / sqrt(n) of the squares.
  EXPECT_NEAR(sum / n, 0.5, 0.0055);
  EXPECT_NEAR(squares / n, 1.0 / 3, 0.0057);
}

}  // namespace
}  // namespace soup::kernels
