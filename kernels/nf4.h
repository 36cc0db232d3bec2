// NF4's constants, shared by the quantiser and every dequantiser: the 16 codes (QLoRA, arXiv
// 2305.14314, appendix E, as fp32 in bitsandbytes) and the signed dynamic 8-bit map that double
// quantisation stores absmax on (Dettmers, arXiv 1511.04561, as bitsandbytes'
// create_dynamic_map()). Std only. Any thread.
#ifndef SOUP_KERNELS_NF4_H_
#define SOUP_KERNELS_NF4_H_

#include <array>
#include <cstdint>

namespace soup::kernels {

inline constexpr int64_t kNf4BlockSize = 64;
inline constexpr int64_t kNf4NestedBlockSize = 256;

constexpr int64_t Nf4Blocks(int64_t n) { return (n + kNf4BlockSize - 1) / kNf4BlockSize; }
constexpr int64_t Nf4NestedBlocks(int64_t blocks) {
  return (blocks + kNf4NestedBlockSize - 1) / kNf4NestedBlockSize;
}

inline constexpr std::array<float, 16> kNf4Code = {
    -1.0f,
    -0.6961928009986877f,
    -0.5250730514526367f,
    -0.39491748809814453f,
    -0.28444138169288635f,
    -0.18477343022823334f,
    -0.09105003625154495f,
    0.0f,
    0.07958029955625534f,
    0.16093020141124725f,
    0.24611230194568634f,
    0.33791524171829224f,
    0.44070982933044434f,
    0.5626170039176941f,
    0.7229568362236023f,
    1.0f,
};

// 256 values, ascending, from -0.9929... to 1. Built once; the reference stays valid.
const std::array<float, 256>& Nf4NestedCode();

}  // namespace soup::kernels

#endif  // SOUP_KERNELS_NF4_H_
