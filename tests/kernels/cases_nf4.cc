#include <cmath>

#include "kernels/nf4.h"
#include "tests/kernels/cases.h"

namespace soup::kernels {
namespace {

std::vector<Check> RunNf4Dequant(TestDevice& device, uint64_t seed, int64_t n, bool nested) {
  Random random(seed);
  const int64_t blocks = Nf4Blocks(n);
  std::vector<uint8_t> packed((n + 1) / 2), q(blocks);
  for (uint8_t& b : packed) b = static_cast<uint8_t>(random.Below(256));
  for (uint8_t& b : q) b = static_cast<uint8_t>(random.Below(256));
  std::vector<float> absmax(blocks), nested_absmax(Nf4NestedBlocks(blocks)), offset = {0.07f};
  for (float& a : absmax) a = static_cast<float>(std::fabs(random.Normal()));
  for (float& a : nested_absmax) a = static_cast<float>(0.05 * std::fabs(random.Normal()));
  const DeviceArray<uint8_t> device_packed(device, packed), device_q(device, q);
  const DeviceArray<float> device_absmax(device, absmax), device_nested(device, nested_absmax),
      device_offset(device, offset);
  const DeviceTensor dst(device, device.wt(), std::vector<double>(n, NAN));
  Nf4DequantArgs args{.packed = device_packed.data(), .dst = dst.data(), .n = n};
  if (nested) {
    args.absmax_q = device_q.data();
    args.nested_absmax = device_nested.data();
    args.nested_offset = device_offset.data();
  } else {
    args.absmax = device_absmax.data();
  }
  device.Run(args);
  std::vector<double> expected(n);
  for (int64_t i = 0; i < n; ++i) {
    const int64_t b = i / kNf4BlockSize;
    volatile float scaled = Nf4NestedCode()[q[b]] * nested_absmax[b / kNf4NestedBlockSize];
    const float scale = nested ? scaled + offset[0] : absmax[b];
    const uint8_t code = i % 2 == 0 ? packed[i / 2] >> 4 : packed[i / 2] & 15;
    expected[i] = RoundTo(Element::kBf16, kNf4Code[code] * scale);
  }
  return {CompareExactly("dst", dst.Get(), expected)};
}

}  // namespace

void AppendNf4Cases(std::vector<OpCase>* cases) {
  for (int64_t n : {1, 2, 63, 64, 65, 130, 576 * 40, 200001}) {
    for (bool nested : {false, true}) {
      cases->push_back({"nf4_dequant_n" + std::to_string(n) + (nested ? "_nested" : ""), 0,
                        [n, nested](auto& device, auto seed) {
                          return RunNf4Dequant(device, seed, n, nested);
                        }});
    }
  }
}

}  // namespace soup::kernels
