// NF4 quantisation on the CPU (Dettmers et al., QLoRA, arXiv 2305.14314), bytes equal to those of
// bitsandbytes' CUDA quantiser: block 64, high nibble first; under double quantisation the blocks'
// absmax minus their mean, in blocks of 256, on bitsandbytes' signed dynamic 8-bit map.
//
// Pure functions on the caller's memory, no threads of their own: cut a matrix into ranges of whole
// blocks and call them in parallel. The same bytes on every instruction set.
#ifndef SOUP_KERNELS_CPU_NF4_QUANTIZE_H_
#define SOUP_KERNELS_CPU_NF4_QUANTIZE_H_

#include <cstdint>

#include "kernels/nf4.h"

namespace soup::kernels::cpu {

// One matrix of n weights, row-major. Exactly one of src_bf16 and src_f32 is not null.
struct Nf4QuantizeArgs {
  const uint16_t* src_bf16 = nullptr;
  const float* src_f32 = nullptr;
  int64_t n = 0;
  uint8_t* packed = nullptr;  // [(n + 1) / 2]
  float* absmax = nullptr;    // [Nf4Blocks(n)]
};

// Quantises blocks [block_begin, block_end), block b being weights [64 b, min(64 b + 64, n));
// writes only their packed bytes and absmax. Returns -1, or the index (in the matrix) of the
// range's first weight that is NaN or infinite: the range's output is then unspecified and must not
// be used.
int64_t Nf4QuantizeBlocks(const Nf4QuantizeArgs& args, int64_t block_begin, int64_t block_end);

// Second stage of double quantisation, for one matrix: q[b] and nested_absmax[b / 256] from all
// blocks' absmax; *offset is their mean. absmax must be finite. Serial, cheap (1/64 of the
// weights). `q` [blocks], `nested_absmax` [Nf4NestedBlocks(blocks)], `offset` [1].
void Nf4QuantizeAbsmax(const float* absmax, int64_t blocks, uint8_t* q, float* nested_absmax,
                       float* offset);

// The two stages of Nf4QuantizeAbsmax, callable on ranges of nested blocks.
float Nf4AbsmaxMean(const float* absmax, int64_t blocks);
void Nf4QuantizeAbsmaxBlocks(const float* absmax, int64_t blocks, float offset,
                             int64_t nested_begin, int64_t nested_end, uint8_t* q,
                             float* nested_absmax);

}  // namespace soup::kernels::cpu

#endif  // SOUP_KERNELS_CPU_NF4_QUANTIZE_H_
