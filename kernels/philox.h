// Philox4x32-10, a counter-based random generator (Salmon, Moraes, Dror, Shaw: "Parallel Random
// Numbers: As Easy as 1, 2, 3", SC 2011). A draw is a pure function of (key, counter): no state, so
// recompute, resume and every thread agree. Std only; usable from CUDA compilers. Any thread.
#ifndef SOUP_KERNELS_PHILOX_H_
#define SOUP_KERNELS_PHILOX_H_

#include <cstdint>

#if defined(__CUDACC__)
#define SOUP_PHILOX_FN __host__ __device__ inline
#else
#define SOUP_PHILOX_FN inline
#endif

namespace soup::kernels {

struct PhiloxBlock {
  uint32_t v[4];
};

// Ten rounds over `counter` (v[0] is the lowest word) under the 64-bit key (k0 low, k1 high).
SOUP_PHILOX_FN PhiloxBlock Philox4x32_10(PhiloxBlock counter, uint32_t k0, uint32_t k1) {
  for (int round = 0; round < 10; ++round) {
    const uint64_t p0 = static_cast<uint64_t>(0xD2511F53u) * counter.v[0];
    const uint64_t p1 = static_cast<uint64_t>(0xCD9E8D57u) * counter.v[2];
    counter = {{static_cast<uint32_t>(p1 >> 32) ^ counter.v[1] ^ k0, static_cast<uint32_t>(p1),
                static_cast<uint32_t>(p0 >> 32) ^ counter.v[3] ^ k1, static_cast<uint32_t>(p0)}};
    k0 += 0x9E3779B9u;
    k1 += 0xBB67AE85u;
  }
  return counter;
}

// A stream of 2^66 draws named by (seed, 128-bit stream name). Two levels, because seed, name and
// element index together are wider than one Philox counter: r = Philox(key = seed, counter = name);
// then block i = Philox(key = (r0, r1), counter = (i low, i high, r2, r3)).
class PhiloxStream {
 public:
  SOUP_PHILOX_FN PhiloxStream(uint64_t seed, uint64_t stream_hi, uint64_t stream_lo)
      : base_(Philox4x32_10(
            {{static_cast<uint32_t>(stream_lo), static_cast<uint32_t>(stream_lo >> 32),
              static_cast<uint32_t>(stream_hi), static_cast<uint32_t>(stream_hi >> 32)}},
            static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32))) {}

  // Draws 4 i .. 4 i + 3.
  SOUP_PHILOX_FN PhiloxBlock Block(uint64_t i) const {
    return Philox4x32_10(
        {{static_cast<uint32_t>(i), static_cast<uint32_t>(i >> 32), base_.v[2], base_.v[3]}},
        base_.v[0], base_.v[1]);
  }
  SOUP_PHILOX_FN uint32_t Draw(uint64_t element) const { return Block(element / 4).v[element % 4]; }
  // Uniform in [0, 1), a multiple of 2^-24 (exact in fp32).
  SOUP_PHILOX_FN float Uniform(uint64_t element) const {
    return static_cast<float>(Draw(element) >> 8) * 0x1p-24f;
  }

 private:
  PhiloxBlock base_;
};

}  // namespace soup::kernels

#endif  // SOUP_KERNELS_PHILOX_H_
