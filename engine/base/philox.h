// Philox4x32-10, a counter-based random generator: a 128-bit counter and a 64-bit key give 128
// random bits, with no state in between (Salmon, Moraes, Dror, Shaw: "Parallel random numbers: as
// easy as 1, 2, 3", SC 2011). Any draw of any stream can be had without the ones before it.
// Checked against the known answers of Random123. Pure functions; any thread.
#ifndef SOUP_ENGINE_BASE_PHILOX_H_
#define SOUP_ENGINE_BASE_PHILOX_H_

#include <array>
#include <cstddef>
#include <cstdint>

namespace soup::engine {

using PhiloxBlock = std::array<uint32_t, 4>;

// counter[0] is the lowest word; key[0] the lower one.
constexpr PhiloxBlock Philox4x32(PhiloxBlock counter, std::array<uint32_t, 2> key) {
  for (int round = 0; round < 10; ++round) {
    const uint64_t product0 = uint64_t{0xD2511F53u} * counter[0];
    const uint64_t product1 = uint64_t{0xCD9E8D57u} * counter[2];
    counter = {static_cast<uint32_t>(product1 >> 32) ^ counter[1] ^ key[0],
               static_cast<uint32_t>(product1),
               static_cast<uint32_t>(product0 >> 32) ^ counter[3] ^ key[1],
               static_cast<uint32_t>(product0)};
    key = {key[0] + 0x9E3779B9u, key[1] + 0xBB67AE85u};
  }
  return counter;
}

// Draws of one stream, (seed, stream), by index. Streams of one seed do not meet.
class PhiloxStream {
 public:
  constexpr PhiloxStream(uint64_t seed, uint64_t stream)
      : key_{static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32)},
        stream_lo_(static_cast<uint32_t>(stream)),
        stream_hi_(static_cast<uint32_t>(stream >> 32)) {}

  // 128 bits at `index`.
  constexpr PhiloxBlock Block(uint64_t index) const {
    return Philox4x32(
        {static_cast<uint32_t>(index), static_cast<uint32_t>(index >> 32), stream_lo_, stream_hi_},
        key_);
  }
  // 64 bits at `index`; two a block.
  constexpr uint64_t U64(uint64_t index) const {
    const PhiloxBlock b = Block(index / 2);
    const size_t lane = (index % 2) * 2;
    return uint64_t{b[lane + 1]} << 32 | b[lane];
  }

 private:
  std::array<uint32_t, 2> key_;
  uint32_t stream_lo_, stream_hi_;
};

// A number in [0, n) from 64 random bits (D. Lemire, arXiv 1805.10941, without the rejection: the
// bias is below n / 2^64). n >= 1.
constexpr uint64_t BoundedFromU64(uint64_t bits, uint64_t n) {
  return static_cast<uint64_t>((static_cast<unsigned __int128>(bits) * n) >> 64);
}

// Uniform in [0, 1): the upper 24 bits of the draw.
constexpr float UniformFromU32(uint32_t bits) { return static_cast<float>(bits >> 8) * 0x1.0p-24f; }

}  // namespace soup::engine

#endif  // SOUP_ENGINE_BASE_PHILOX_H_
