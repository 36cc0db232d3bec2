#if defined(__AVX512F__)
#include <immintrin.h>
#endif

#include "kernels/cpu/isa/loops.h"

namespace soup::kernels::cpu::SOUP_ISA {
namespace {

// The same values as kernels/nf4.h, kept here so that no inline code of the standard library is
// compiled for this instruction set (isa/vec.h says why); a test compares them.
constexpr float kCode[16] = {
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

// Code k is chosen when exactly k of these lie strictly below x / absmax: the decision tree of
// bitsandbytes' CUDA quantiser, as a count. They are midpoints of neighbouring codes, in the digits
// of the tree: where a midpoint falls between two floats, those digits decide.
constexpr float kThresholds[15] = {
    -0.8480964004993439f,  -0.6106329262256622f,  -0.4599952697753906f,   -0.33967943489551544f,
    -0.23460740596055984f, -0.13791173323988914f, -0.045525018125772476f, 0.03979014977812767f,
    0.1202552504837513f,   0.2035212516784668f,   0.2920137718319893f,    0.3893125355243683f,
    0.5016634166240692f,   0.6427869200706482f,   0.8614784181118011f,
};

// Weights of one block from its 16 possible values.
SOUP_INLINE void Lookup(const uint8_t* packed, const float* table, int64_t n, float* dst) {
#if defined(__AVX512F__)
  if (n == 64) {
    const __m512 values = _mm512_loadu_ps(table);
    const __m512i low_half =
        _mm512_setr_epi32(0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
    const __m512i high_half =
        _mm512_setr_epi32(8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31);
    for (int half = 0; half < 2; ++half) {
      const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(packed + 16 * half));
      const __m512i wide = _mm512_cvtepu8_epi32(bytes);
      const __m512 first = _mm512_permutexvar_ps(_mm512_srli_epi32(wide, 4), values);
      const __m512 second = _mm512_permutexvar_ps(wide, values);  // takes the low 4 bits
      _mm512_storeu_ps(dst + 32 * half, _mm512_permutex2var_ps(first, low_half, second));
      _mm512_storeu_ps(dst + 32 * half + 16, _mm512_permutex2var_ps(first, high_half, second));
    }
    return;
  }
#endif
  for (int64_t i = 0; i < n; ++i) {
    const uint8_t byte = packed[i / 2];
    dst[i] = table[(i & 1) ? (byte & 15) : (byte >> 4)];
  }
}

}  // namespace

void Nf4DequantLoop(const Nf4DequantArgs& args, const float* nested_code, int64_t block_begin,
                    int64_t block_end) {
  float* dst = static_cast<float*>(args.dst);
  for (int64_t b = block_begin; b < block_end; ++b) {
    float absmax;
    if (args.absmax != nullptr) {
      absmax = args.absmax[b];
    } else {
      absmax = nested_code[args.absmax_q[b]] * args.nested_absmax[b / 256] + args.nested_offset[0];
    }
    float table[16];
    for (int k = 0; k < 16; ++k) table[k] = RoundToBf16(kCode[k] * absmax);
    const int64_t first = b * 64;
    const int64_t n = args.n - first < 64 ? args.n - first : 64;
    Lookup(args.packed + first / 2, table, n, dst + first);
  }
}

float Nf4QuantizeBlock(const uint16_t* bf16, const float* f32, int64_t n, uint8_t* packed) {
  float x[64] = {};  // a short block is filled up with zeros, as bitsandbytes does
  if (bf16 != nullptr) {
    for (int64_t i = 0; i < n; ++i) x[i] = WidenBf16(bf16[i]);
  } else {
    for (int64_t i = 0; i < n; ++i) x[i] = f32[i];
  }
  // Magnitudes compare as integers, and NaN and infinity come out above every finite number.
  int32_t largest = 0;
  for (int i = 0; i < 64; ++i) {
    int32_t bits;
    __builtin_memcpy(&bits, x + i, sizeof bits);
    bits &= 0x7fffffff;
    largest = bits > largest ? bits : largest;
  }
  if (largest >= 0x7f800000) return -1.0f;
  float absmax;
  __builtin_memcpy(&absmax, &largest, sizeof absmax);

  // An all-zero block: 0 * inf = NaN lies above no threshold, code 0, as the tree answers.
  const F16 inverse = Set(1.0f / absmax);
  int32_t codes[64];
  for (int i = 0; i < 64; i += kLanes) {
    const F16 scaled = Load(x + i) * inverse;
    I16 count = Bits(Set(0.0f));
    for (float threshold : kThresholds) count = count - Greater(scaled, Set(threshold));
    __builtin_memcpy(codes + i, &count, sizeof count);
  }
  for (int64_t i = 0; i < (n + 1) / 2; ++i) {
    packed[i] = static_cast<uint8_t>((codes[2 * i] << 4) | codes[2 * i + 1]);
  }
  return absmax;
}

}  // namespace soup::kernels::cpu::SOUP_ISA
