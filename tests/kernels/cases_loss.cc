#include <algorithm>
#include <cmath>

#include "tests/kernels/cases.h"
#include "tests/kernels/reference.h"

namespace soup::kernels {
namespace {

struct LossCase {
  std::string name;
  int64_t n, H, V, slice;
  double spread;  // of the logits, roughly
  double soft_cap = 0;
};

// p is act and lies over fp32 logits, row on row: elements of a row's stride for each float.
int64_t ElementsPerFloat(Element act) { return act == Element::kF32 ? 1 : 2; }

struct LossBuffers {
  LossBuffers(TestDevice& device, int64_t n, int64_t H)
      : m(device, Element::kF32, std::vector<double>(n, NAN)),
        l(device, Element::kF32, std::vector<double>(n, NAN)),
        target_logit(device, Element::kF32, std::vector<double>(n, NAN)),
        grad(device, Element::kF32, std::vector<double>(n * H, NAN)),
        target_row(device, device.wt(), std::vector<double>(n * H, NAN)),
        loss(device, Element::kF32, std::vector<double>(n, NAN)),
        dh(device, device.act(), std::vector<double>(n * H, NAN)) {}
  DeviceTensor m, l, target_logit, grad, target_row, loss, dh;
};

// The head over all slices as the engine runs it: logits by a product, loss slice, gradient by a
// product, target rows, finish.
std::vector<Check> RunHead(TestDevice& device, uint64_t seed, const LossCase& c, bool with_grad) {
  Random random(seed);
  const auto hidden = RoundTo(device.act(), random.Normals(c.n * c.H));
  const auto weight = RoundTo(
      Element::kBf16, random.Normals(c.V * c.H, c.spread / std::sqrt(static_cast<double>(c.H))));
  std::vector<int32_t> targets;
  for (int64_t i = 0; i < c.n; ++i) targets.push_back(static_cast<int32_t>(random.Below(c.V)));
  targets[0] = static_cast<int32_t>(c.V - 1);
  const float scale = 0.125f;

  const DeviceTensor h(device, device.act(), hidden);
  const DeviceTensor w(device, device.wt(), weight);
  const DeviceArray<int32_t> device_targets(device, targets);
  const DeviceTensor logits(device, Element::kF32, std::vector<double>(c.n * c.slice, NAN));
  const LossBuffers buffers(device, c.n, c.H);
  const int64_t wt_bytes = device.wt() == Element::kF32 ? 4 : 2;
  for (int64_t v0 = 0; v0 < c.V; v0 += c.slice) {
    const int64_t Vs = std::min(c.slice, c.V - v0);
    const void* slice = static_cast<const char*>(w.data()) + v0 * c.H * wt_bytes;
    device.Run(GemmArgs{.transpose_a = false,
                        .transpose_b = true,
                        .M = c.n,
                        .N = Vs,
                        .K = c.H,
                        .alpha = 1.0f,
                        .beta = 0.0f,
                        .A = h.data(),
                        .lda = c.H,
                        .B = slice,
                        .ldb = c.H,
                        .C = logits.data(),
                        .ldc = Vs,
                        .a_type = Operand::kAct,
                        .b_type = Operand::kWt,
                        .c_type = Operand::kF32});
    device.Run(LossSliceArgs{.logits = logits.as<float>(),
                             .targets = device_targets.data(),
                             .m = buffers.m.as<float>(),
                             .l = buffers.l.as<float>(),
                             .target_logit = buffers.target_logit.as<float>(),
                             .grad = with_grad ? buffers.grad.as<float>() : nullptr,
                             .n = c.n,
                             .H = c.H,
                             .v0 = v0,
                             .Vs = Vs,
                             .first = v0 == 0,
                             .with_grad = with_grad,
                             .soft_cap = static_cast<float>(c.soft_cap)});
    if (!with_grad) continue;
    device.Run(GemmArgs{.transpose_a = false,
                        .transpose_b = false,
                        .M = c.n,
                        .N = c.H,
                        .K = Vs,
                        .alpha = 1.0f,
                        .beta = 1.0f,
                        .A = logits.data(),
                        .lda = Vs * ElementsPerFloat(device.act()),
                        .B = slice,
                        .ldb = c.H,
                        .C = buffers.grad.data(),
                        .ldc = c.H,
                        .a_type = Operand::kAct,
                        .b_type = Operand::kWt,
                        .c_type = Operand::kF32});
    device.Run(LossTargetRowsArgs{.weight = slice,
                                  .targets = device_targets.data(),
                                  .target_row = buffers.target_row.data(),
                                  .n = c.n,
                                  .H = c.H,
                                  .v0 = v0,
                                  .Vs = Vs});
  }
  device.Run(LossFinishArgs{.m = buffers.m.as<float>(),
                            .l = buffers.l.as<float>(),
                            .target_logit = buffers.target_logit.as<float>(),
                            .grad = buffers.grad.as<float>(),
                            .target_row = buffers.target_row.data(),
                            .loss = buffers.loss.as<float>(),
                            .dh = with_grad ? buffers.dh.data() : nullptr,
                            .n = c.n,
                            .H = c.H,
                            .scale = scale,
                            .soft_cap = static_cast<float>(c.soft_cap)});
  const auto expected =
      reference::CrossEntropy(hidden, weight, targets, c.n, c.H, c.V, scale, c.soft_cap);
  std::vector<Check> checks = {
      CompareL2("loss", buffers.loss.Get(), expected.loss, (4 + 2 * c.spread) * device.epsilon())};
  if (with_grad) {
    checks.push_back(
        CompareL2("dh", buffers.dh.Get(), expected.dh, (8 + 8 * c.spread) * device.epsilon()));
  }
  return checks;
}

// One slice after another on given logits: what each output is after the last.
std::vector<Check> RunSlices(TestDevice& device, uint64_t seed, int64_t n, int64_t V,
                             int64_t slice) {
  Random random(seed);
  const int64_t H = 8;
  const auto logits = RoundTo(Element::kF32, random.Normals(n * V, 6.0));
  std::vector<int32_t> targets;
  for (int64_t i = 0; i < n; ++i) targets.push_back(static_cast<int32_t>(random.Below(V)));
  const DeviceArray<int32_t> device_targets(device, targets);
  LossBuffers buffers(device, n, H);
  std::vector<Check> checks;
  // grad starts at 0 with the first slice, then each slice adds 1 as the engine's product would.
  std::vector<double> grad(n * H, 0.0), m(n, -INFINITY), l(n, 0.0);
  for (int64_t v0 = 0; v0 < V; v0 += slice) {
    const int64_t Vs = std::min(slice, V - v0);
    std::vector<double> part;
    for (int64_t i = 0; i < n; ++i) {
      part.insert(part.end(), &logits[i * V + v0], &logits[i * V + v0] + Vs);
    }
    const DeviceTensor device_logits(device, Element::kF32, part);
    device.Run(LossSliceArgs{.logits = device_logits.as<float>(),
                             .targets = device_targets.data(),
                             .m = buffers.m.as<float>(),
                             .l = buffers.l.as<float>(),
                             .target_logit = buffers.target_logit.as<float>(),
                             .grad = buffers.grad.as<float>(),
                             .n = n,
                             .H = H,
                             .v0 = v0,
                             .Vs = Vs,
                             .first = v0 == 0,
                             .with_grad = true});
    for (int64_t i = 0; i < n; ++i) {
      const double old = m[i];
      for (int64_t j = 0; j < Vs; ++j) m[i] = std::max(m[i], part[i * Vs + j]);
      const double factor = v0 == 0 ? 0.0 : std::exp(old - m[i]);
      l[i] *= factor;
      for (int64_t j = 0; j < Vs; ++j) {
        part[i * Vs + j] = std::exp(part[i * Vs + j] - m[i]);
        l[i] += part[i * Vs + j];
      }
      for (int64_t h = 0; h < H; ++h) grad[i * H + h] *= factor;
    }
    checks.push_back(
        CompareL2("p", device_logits.GetRows(device.act(), n, Vs), part, 8 * device.epsilon()));
    checks.push_back(CompareL2("grad", buffers.grad.Get(), grad, 8 * device.epsilon()));
    for (double& g : grad) g += 1.0;
    grad = RoundTo(Element::kF32, grad);
    buffers.grad.Set(grad);
  }
  std::vector<double> target_logit;
  for (int64_t i = 0; i < n; ++i) target_logit.push_back(logits[i * V + targets[i]]);
  checks.push_back(CompareExactly("m", buffers.m.Get(), m));
  checks.push_back(CompareL2("l", buffers.l.Get(), l, 4 * device.epsilon()));
  checks.push_back(CompareExactly("target_logit", buffers.target_logit.Get(), target_logit));
  return checks;
}

}  // namespace

void AppendLossCases(std::vector<OpCase>* cases) {
  const LossCase table[] = {
      {"one_slice", 3, 8, 20, 20, 1.0},
      {"odd_slices", 7, 24, 101, 13, 2.0},
      {"slices_of_one", 2, 4, 9, 1, 1.0},
      {"confident", 5, 64, 320, 128, 12.0},
      {"wide", 33, 96, 3000, 1024, 3.0},
      {"soft_cap", 9, 64, 320, 128, 12.0, 20.0},
      {"soft_cap_odd", 7, 24, 101, 13, 2.0, 30.0},
  };
  for (const LossCase& c : table) {
    for (bool with_grad : {true, false}) {
      cases->push_back({"loss_head_" + c.name + (with_grad ? "" : "_score"), 0,
                        [c, with_grad](auto& device, auto seed) {
                          return RunHead(device, seed, c, with_grad);
                        }});
    }
  }
  const int64_t shapes[][3] = {{1, 1, 1}, {4, 50, 17}, {3, 2500, 2048}};
  for (const auto& [n, V, slice] : shapes) {
    cases->push_back({"loss_slice_n" + std::to_string(n) + "_V" + std::to_string(V), 0,
                      [n = n, V = V, slice = slice](auto& device, auto seed) {
                        return RunSlices(device, seed, n, V, slice);
                      }});
  }
}

}  // namespace soup::kernels
