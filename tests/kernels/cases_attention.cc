#include <cmath>

#include "tests/kernels/cases.h"
#include "tests/kernels/reference.h"

namespace soup::kernels {
namespace {

struct AttentionCase {
  std::string name;
  std::vector<int32_t> lengths;
  int64_t tail;  // bucket rows after the last sequence
  int64_t Hq, Hkv, D;
  double spread;  // of q and k: large makes softmax sharp
  int64_t window = 0;
  double soft_cap = 0;
  double rise = 0;  // how far scores rise from a sequence's last key to its first

  reference::AttentionShape Shape() const {
    reference::AttentionShape shape{
        {0}, tail, Hq, Hkv, D, 1.0 / std::sqrt(static_cast<double>(D)), window, soft_cap};
    for (int32_t length : lengths) {
      shape.cu_seqlens.push_back(shape.cu_seqlens.back() + length);
      shape.T += length;
    }
    return shape;
  }
};

// q, k and v as column ranges of one buffer, as the engine lays them, plus columns of others'
// after.
constexpr int64_t kForeignColumns = 8;

struct PackedQkv {
  reference::AttentionShape shape;
  std::vector<double> q, k, v;
  std::vector<double> buffer;  // [T, stride]
  int64_t stride;
};

std::vector<double> Columns(const std::vector<double>& buffer, int64_t T, int64_t stride,
                            int64_t first, int64_t count) {
  std::vector<double> out;
  for (int64_t t = 0; t < T; ++t) {
    for (int64_t i = 0; i < count; ++i) out.push_back(buffer[t * stride + first + i]);
  }
  return out;
}

PackedQkv MakeQkv(const AttentionCase& c, Element element, Random* random) {
  PackedQkv p{c.Shape(), {}, {}, {}, {}, (c.Hq + 2 * c.Hkv) * c.D + kForeignColumns};
  p.buffer = random->Normals(p.shape.T * p.stride);
  for (int64_t t = 0; t < p.shape.T; ++t) {
    for (int64_t i = 0; i < (c.Hq + c.Hkv) * c.D; ++i) p.buffer[t * p.stride + i] *= c.spread;
  }
  if (c.rise > 0) {
    int64_t t = 0;
    for (int32_t length : c.lengths) {
      for (int32_t i = 0; i < length; ++i, ++t) {
        double* row = &p.buffer[t * p.stride];
        for (int64_t h = 0; h < c.Hq; ++h) row[h * c.D] = std::sqrt(static_cast<double>(c.D));
        for (int64_t h = c.Hq; h < c.Hq + c.Hkv; ++h)
          row[h * c.D] = c.rise * (1.0 - static_cast<double>(i) / length);
      }
    }
  }
  p.buffer = RoundTo(element, p.buffer);
  p.q = Columns(p.buffer, p.shape.T, p.stride, 0, c.Hq * c.D);
  p.k = Columns(p.buffer, p.shape.T, p.stride, c.Hq * c.D, c.Hkv * c.D);
  p.v = Columns(p.buffer, p.shape.T, p.stride, (c.Hq + c.Hkv) * c.D, c.Hkv * c.D);
  return p;
}

// Address of column `i` of a tensor of the device's activation type.
void* Column(const TestDevice& device, const DeviceTensor& tensor, int64_t i) {
  return static_cast<char*>(tensor.data()) + i * (device.act() == Element::kF32 ? 4 : 2);
}

std::vector<Check> RunForward(TestDevice& device, uint64_t seed, const AttentionCase& c) {
  Random random(seed);
  const PackedQkv p = MakeQkv(c, device.act(), &random);
  const DeviceTensor qkv(device, device.act(), p.buffer);
  const DeviceTensor out(device, device.act(), std::vector<double>(p.shape.T * c.Hq * c.D, NAN));
  const DeviceTensor lse(device, Element::kF32, std::vector<double>(p.shape.T * c.Hq, NAN));
  const DeviceArray<int32_t> cu(device, p.shape.cu_seqlens);
  device.Run(AttentionForwardArgs{.q = Column(device, qkv, 0),
                                  .k = Column(device, qkv, c.Hq * c.D),
                                  .v = Column(device, qkv, (c.Hq + c.Hkv) * c.D),
                                  .row_stride = p.stride,
                                  .out = out.data(),
                                  .lse = lse.as<float>(),
                                  .cu_seqlens = cu.data(),
                                  .S = static_cast<int64_t>(c.lengths.size()),
                                  .T = p.shape.T,
                                  .Hq = c.Hq,
                                  .Hkv = c.Hkv,
                                  .D = c.D,
                                  .scale = static_cast<float>(p.shape.scale),
                                  .window = c.window,
                                  .soft_cap = static_cast<float>(c.soft_cap)});
  const auto expected = reference::Attention(p.shape, p.q, p.k, p.v);
  const double sharp = 1.0 + c.spread * c.spread * std::sqrt(static_cast<double>(c.D));
  // Scores are fp32 in every type.
  const double rising = 4 * c.rise * 0x1p-24;
  return {CompareL2("out", out.Get(), expected.out, 4 * sharp * device.epsilon() + rising),
          CompareL2("lse", lse.Get(), expected.lse, 4 * sharp * 0x1p-24 + rising)};
}

std::vector<Check> RunBackward(TestDevice& device, uint64_t seed, const AttentionCase& c) {
  Random random(seed);
  const PackedQkv p = MakeQkv(c, device.act(), &random);
  const int64_t T = p.shape.T;
  const auto dout = RoundTo(device.act(), random.Normals(T * c.Hq * c.D));
  const auto forward = reference::Attention(p.shape, p.q, p.k, p.v);
  const DeviceTensor qkv(device, device.act(), p.buffer);
  const DeviceTensor out(device, device.act(), forward.out);
  const DeviceTensor lse(device, Element::kF32, forward.lse);
  const DeviceTensor device_dout(device, device.act(), dout);
  const DeviceTensor delta(device, Element::kF32, std::vector<double>(T * c.Hq, NAN));
  const DeviceTensor grad(device, device.act(), std::vector<double>(T * p.stride, 7.0));
  const DeviceArray<int32_t> cu(device, p.shape.cu_seqlens);
  device.Run(AttentionBackwardArgs{.q = Column(device, qkv, 0),
                                   .k = Column(device, qkv, c.Hq * c.D),
                                   .v = Column(device, qkv, (c.Hq + c.Hkv) * c.D),
                                   .row_stride = p.stride,
                                   .out = out.data(),
                                   .dout = device_dout.data(),
                                   .lse = lse.as<float>(),
                                   .delta = delta.as<float>(),
                                   .dq = Column(device, grad, 0),
                                   .dk = Column(device, grad, c.Hq * c.D),
                                   .dv = Column(device, grad, (c.Hq + c.Hkv) * c.D),
                                   .grad_row_stride = p.stride,
                                   .cu_seqlens = cu.data(),
                                   .S = static_cast<int64_t>(c.lengths.size()),
                                   .T = T,
                                   .Hq = c.Hq,
                                   .Hkv = c.Hkv,
                                   .D = c.D,
                                   .scale = static_cast<float>(p.shape.scale),
                                   .window = c.window,
                                   .soft_cap = static_cast<float>(c.soft_cap)});
  const auto expected = reference::AttentionGrad(p.shape, p.q, p.k, p.v, dout);
  const auto got = grad.Get();
  const double bound =
      8 * (1.0 + c.spread * c.spread * std::sqrt(static_cast<double>(c.D))) * device.epsilon();
  return {CompareL2("dq", Columns(got, T, p.stride, 0, c.Hq * c.D), expected.dq, bound),
          CompareL2("dk", Columns(got, T, p.stride, c.Hq * c.D, c.Hkv * c.D), expected.dk, bound),
          CompareL2("dv", Columns(got, T, p.stride, (c.Hq + c.Hkv) * c.D, c.Hkv * c.D), expected.dv,
                    bound),
          CompareExactly("columns outside",
                         Columns(got, T, p.stride, p.stride - kForeignColumns, kForeignColumns),
                         std::vector<double>(T * kForeignColumns, 7.0))};
}

}  // namespace

void AppendAttentionCases(std::vector<OpCase>* cases) {
  const AttentionCase table[] = {
      {"one_token", {1}, 0, 1, 1, 16, 1.0},
      {"one_block", {64}, 0, 2, 1, 16, 1.0},
      {"block_and_one", {65}, 0, 2, 2, 32, 1.0},
      {"packed_tail", {5, 1, 63, 64, 65, 30}, 9, 4, 2, 16, 1.0},
      {"empty_sequence", {3, 0, 4}, 2, 2, 1, 16, 1.0},
      {"only_tail", {}, 5, 2, 1, 16, 1.0},
      {"odd_width", {70, 3}, 1, 3, 1, 20, 1.0},
      {"narrow", {33}, 0, 2, 1, 6, 1.0},
      {"smollm", {200, 120}, 8, 9, 3, 64, 1.0},
      {"long_super_blocks", {530}, 0, 2, 1, 64, 1.0},
      {"wide_128", {130}, 0, 4, 4, 128, 1.0},
      {"widest_256", {90}, 3, 1, 1, 256, 1.0},
      {"sharp", {150, 20}, 0, 2, 1, 64, 4.0},
      {"window_2", {70, 3}, 2, 2, 1, 16, 1.0, 2},
      {"window_8", {5, 1, 63, 64, 65, 30}, 9, 4, 2, 16, 1.0, 8},
      {"window_64", {200, 64}, 0, 2, 1, 32, 1.0, 64},
      {"window_65", {200, 65, 66}, 0, 2, 1, 64, 1.0, 65},
      {"window_past_the_end", {100}, 0, 2, 2, 128, 1.0, 4096},
      {"window_super_blocks", {700}, 4, 2, 1, 64, 1.0, 300},
      {"soft_cap", {70, 33}, 1, 4, 2, 32, 3.0, 0, 5.0},
      {"soft_cap_window", {150, 20}, 3, 2, 1, 256, 1.0, 40, 50.0},
      {"middle_96", {140, 17}, 3, 4, 2, 96, 1.0},
      {"groups_128", {260, 1, 256}, 10, 8, 2, 128, 1.0},
      {"neighbours_128", {256, 256, 256, 3, 256, 256, 256, 256}, 5, 4, 2, 128, 1.0},
      {"neighbours_64", {128, 128, 77, 128, 128, 128}, 2, 6, 2, 64, 1.0},
      // Keys far from the diagonal win by more than a row's first reference allows for.
      {"rising_64", {300, 70, 200}, 3, 4, 2, 64, 1.0, 0, 0, 150.0},
      {"rising_128", {257, 400}, 0, 4, 2, 128, 1.0, 0, 0, 150.0},
      {"rising_window_256", {400}, 0, 2, 1, 256, 1.0, 250, 0, 200.0},
  };
  for (const AttentionCase& c : table) {
    cases->push_back({"attention_forward_" + c.name, 0,
                      [c](auto& device, auto seed) { return RunForward(device, seed, c); }});
    if (c.rise > 0) continue;  // its backward takes an lse, no reference
    cases->push_back({"attention_backward_" + c.name, 0,
                      [c](auto& device, auto seed) { return RunBackward(device, seed, c); }});
  }
}

}  // namespace soup::kernels
