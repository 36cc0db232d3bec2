#include "kernels/cpu/nf4_quantize.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "kernels/bf16.h"
#include "kernels/cpu/context.h"
#include "kernels/cpu/simd_table.h"

namespace soup::kernels::cpu {
namespace {

int64_t FirstNonFinite(const Nf4QuantizeArgs& args, int64_t begin, int64_t end) {
  for (int64_t i = begin; i < end; ++i) {
    const float x = args.src_bf16 != nullptr ? Bf16ToF32(args.src_bf16[i]) : args.src_f32[i];
    if (!std::isfinite(x)) return i;
  }
  return -1;
}

// Midpoints of neighbouring nested codes, as bitsandbytes computes them.
const std::array<float, 255>& NestedMidpoints() {
  static const std::array<float, 255> midpoints = [] {
    std::array<float, 255> result{};
    const std::array<float, 256>& code = Nf4NestedCode();
    for (size_t k = 0; k < result.size(); ++k) result[k] = (code[k] + code[k + 1]) * 0.5f;
    return result;
  }();
  return midpoints;
}

// The nearest nested code. bitsandbytes descends a binary tree whose leaves are the even codes and
// keeps the leaf on a tie, so a value on the midpoint above an even code stays below it and one on
// the midpoint above an odd code goes up. NaN (0 * inf, when a whole block equals its mean)
// descends to code 0.
uint8_t NearestNestedCode(float x) {
  const std::array<float, 255>& midpoints = NestedMidpoints();
  size_t code = 0;
  for (size_t step = 128; step > 0; step /= 2) {
    const size_t k = code + step - 1;  // is x past the midpoint between k and k + 1?
    const bool past = k % 2 == 0 ? x > midpoints[k] : x >= midpoints[k];
    if (past) code += step;
  }
  return static_cast<uint8_t>(code);
}

}  // namespace

int64_t Nf4QuantizeBlocks(const Nf4QuantizeArgs& args, int64_t block_begin, int64_t block_end) {
  SOUP_KERNEL_CHECK((args.src_bf16 != nullptr) != (args.src_f32 != nullptr));
  const SimdTable& simd = *BestSimdTable();
  for (int64_t b = block_begin; b < block_end; ++b) {
    const int64_t first = b * kNf4BlockSize;
    const int64_t n = std::min(kNf4BlockSize, args.n - first);
    const float absmax = simd.nf4_quantize_block(
        args.src_bf16 == nullptr ? nullptr : args.src_bf16 + first,
        args.src_f32 == nullptr ? nullptr : args.src_f32 + first, n, args.packed + first / 2);
    if (absmax < 0.0f) return FirstNonFinite(args, first, first + n);
    args.absmax[b] = absmax;
  }
  return -1;
}

float Nf4AbsmaxMean(const float* absmax, int64_t blocks) {
  double sum = 0.0;
  for (int64_t b = 0; b < blocks; ++b) sum += static_cast<double>(absmax[b]);
  return static_cast<float>(sum / static_cast<double>(blocks));
}

void Nf4QuantizeAbsmaxBlocks(const float* absmax, int64_t blocks, float offset,
                             int64_t nested_begin, int64_t nested_end, uint8_t* q,
                             float* nested_absmax) {
  for (int64_t nested = nested_begin; nested < nested_end; ++nested) {
    const int64_t begin = nested * kNf4NestedBlockSize;
    const int64_t end = std::min(begin + kNf4NestedBlockSize, blocks);
    float largest = 0.0f;
    for (int64_t b = begin; b < end; ++b) {
      largest = std::max(largest, std::fabs(absmax[b] - offset));
    }
    nested_absmax[nested] = largest;
    const float inverse = 1.0f / largest;
    for (int64_t b = begin; b < end; ++b) q[b] = NearestNestedCode((absmax[b] - offset) * inverse);
  }
}

void Nf4QuantizeAbsmax(const float* absmax, int64_t blocks, uint8_t* q, float* nested_absmax,
                       float* offset) {
  *offset = Nf4AbsmaxMean(absmax, blocks);
  Nf4QuantizeAbsmaxBlocks(absmax, blocks, *offset, 0, Nf4NestedBlocks(blocks), q, nested_absmax);
}

}  // namespace soup::kernels::cpu
