#include <algorithm>
#include <cmath>
#include <numeric>

#include "tests/kernels/cases.h"
#include "tests/kernels/reference.h"

namespace soup::kernels {
namespace {

struct RouteCase {
  std::string name;
  int64_t T, E, lde, k;
  bool normalise;
};

struct Chosen {
  std::vector<int32_t> experts;  // [T, k]
  std::vector<double> weights;
  std::vector<double> probabilities;  // [T, E]
};

Chosen ChooseReference(const RouteCase& c, const std::vector<double>& logits) {
  Chosen out;
  for (int64_t t = 0; t < c.T; ++t) {
    const double* row = &logits[t * c.lde];
    const double largest = *std::max_element(row, row + c.E);
    std::vector<double> p;
    for (int64_t e = 0; e < c.E; ++e) p.push_back(std::exp(row[e] - largest));
    const double sum = std::accumulate(p.begin(), p.end(), 0.0);
    for (double& x : p) x /= sum;
    std::vector<int32_t> order(c.E);
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(), [&](int a, int b) { return p[a] > p[b]; });
    double chosen = 0;
    for (int64_t j = 0; j < c.k; ++j) chosen += p[order[j]];
    for (int64_t j = 0; j < c.k; ++j) {
      out.experts.push_back(order[j]);
      out.weights.push_back(p[order[j]] / (c.normalise ? chosen : 1.0));
    }
    out.probabilities.insert(out.probabilities.end(), p.begin(), p.end());
  }
  return out;
}

std::vector<double> AsDoubles(const std::vector<int32_t>& values) {
  return std::vector<double>(values.begin(), values.end());
}
std::vector<double> GetInts(TestDevice& device, const DeviceArray<int32_t>& array, int64_t n) {
  std::vector<int32_t> values(n);
  device.Download(values.data(), array.data(), n * sizeof(int32_t));
  return AsDoubles(values);
}

// Routing, its lists and its backward.
std::vector<Check> RunRoute(TestDevice& device, uint64_t seed, const RouteCase& c) {
  Random random(seed);
  // Half steps: many ties, exactly equal on every device.
  auto logits = random.Normals(c.T * c.lde, 2.0);
  for (double& x : logits) x = std::round(2 * x) / 2;
  const auto d_weights = RoundTo(Element::kF32, random.Normals(c.T * c.k));
  const Chosen expected = ChooseReference(c, logits);
  const DeviceTensor device_logits(device, Element::kF32, logits);
  const DeviceArray<int32_t> experts(device, std::vector<int32_t>(c.T * c.k, -1));
  const DeviceTensor weights(device, Element::kF32, std::vector<double>(c.T * c.k, NAN));
  device.Run(RouteArgs{.logits = device_logits.as<float>(),
                       .experts = experts.data(),
                       .weights = weights.as<float>(),
                       .T = c.T,
                       .E = c.E,
                       .lde = c.lde,
                       .k = c.k,
                       .normalise = c.normalise});
  const DeviceArray<int32_t> lists(device, std::vector<int32_t>(c.E * c.T, -1));
  const DeviceArray<int32_t> counts(device, std::vector<int32_t>(c.E, -1));
  device.Run(ListExpertsArgs{.experts = experts.data(),
                             .lists = lists.data(),
                             .counts = counts.data(),
                             .T = c.T,
                             .E = c.E,
                             .k = c.k});
  const DeviceTensor device_d(device, Element::kF32, d_weights);
  const DeviceTensor d_logits(device, device.act(), std::vector<double>(c.T * c.lde, NAN));
  device.Run(RouteBackwardArgs{.logits = device_logits.as<float>(),
                               .experts = experts.data(),
                               .weights = weights.as<float>(),
                               .d_weights = device_d.as<float>(),
                               .d_logits = d_logits.data(),
                               .T = c.T,
                               .E = c.E,
                               .lde = c.lde,
                               .k = c.k,
                               .normalise = c.normalise});
  std::vector<double> expected_lists(c.E * c.T, -1), expected_counts(c.E, 0);
  std::vector<double> expected_d(c.T * c.lde, 0.0);
  for (int64_t i = 0; i < c.T * c.k; ++i) {
    const int32_t e = expected.experts[i];
    expected_lists[e * c.T + static_cast<int64_t>(expected_counts[e]++)] = static_cast<double>(i);
  }
  for (int64_t t = 0; t < c.T; ++t) {
    double mean = 0;
    for (int64_t i = t * c.k; i < (t + 1) * c.k; ++i) mean += expected.weights[i] * d_weights[i];
    for (int64_t e = 0; e < c.E && !c.normalise; ++e) {
      expected_d[t * c.lde + e] = -expected.probabilities[t * c.E + e] * mean;
    }
    for (int64_t i = t * c.k; i < (t + 1) * c.k; ++i) {
      expected_d[t * c.lde + expected.experts[i]] +=
          expected.weights[i] * (c.normalise ? d_weights[i] - mean : d_weights[i]);
    }
  }
  return {
      CompareExactly("experts", GetInts(device, experts, c.T * c.k), AsDoubles(expected.experts)),
      CompareL2("weights", weights.Get(), expected.weights, 8 * 0x1p-24),
      CompareExactly("counts", GetInts(device, counts, c.E), expected_counts),
      CompareExactly("lists", GetInts(device, lists, c.E * c.T), expected_lists),
      CompareL2("d_logits", d_logits.Get(), expected_d, 16 * device.epsilon())};
}

// Distinct tokens among T, each with an entry of k.
std::vector<int32_t> SomeEntries(Random* random, int64_t n, int64_t T, int64_t k) {
  std::vector<int32_t> tokens(T);
  std::iota(tokens.begin(), tokens.end(), 0);
  for (int64_t t = T - 1; t > 0; --t) std::swap(tokens[t], tokens[random->Below(t + 1)]);
  tokens.resize(n);
  std::sort(tokens.begin(), tokens.end());
  for (int32_t& x : tokens) x = static_cast<int32_t>(x * k + random->Below(k));
  return tokens;
}

std::vector<Check> RunEntries(TestDevice& device, uint64_t seed, int64_t n, int64_t rows, int64_t T,
                              int64_t H, int64_t k) {
  Random random(seed);
  const auto entries = SomeEntries(&random, n, T, k);
  const auto x = RoundTo(device.act(), random.Normals(T * H));
  const auto weights = RoundTo(Element::kF32, random.Normals(T * k));
  const auto before = RoundTo(Element::kF32, random.Normals(T * H));
  const auto act_before = RoundTo(device.act(), random.Normals(T * H));
  const DeviceArray<int32_t> device_entries(device, entries);
  const DeviceTensor device_x(device, device.act(), x);
  const DeviceTensor device_weights(device, Element::kF32, weights);
  const DeviceTensor gathered(device, device.act(), std::vector<double>(rows * H, NAN));
  const DeviceTensor sum(device, Element::kF32, before);
  const DeviceTensor added(device, device.act(), act_before);
  const DeviceTensor set(device, device.act(), std::vector<double>(T * H, NAN));
  device.Run(GatherEntriesArgs{.x = device_x.data(),
                               .entries = device_entries.data(),
                               .y = gathered.data(),
                               .n = n,
                               .rows = rows,
                               .H = H,
                               .k = k});
  for (const float* w : {device_weights.as<float>(), static_cast<float*>(nullptr)}) {
    device.Run(ScatterEntriesArgs{.x = gathered.data(),
                                  .entries = device_entries.data(),
                                  .weights = w,
                                  .y = sum.as<float>(),
                                  .n = n,
                                  .H = H,
                                  .k = k});
  }
  device.Run(AddF32Args{.x = sum.as<float>(), .y = added.data(), .n = T * H, .accumulate = true});
  device.Run(AddF32Args{.x = sum.as<float>(), .y = set.data(), .n = T * H, .accumulate = false});
  std::vector<double> expected_rows(rows * H, 0.0);
  auto expected = before;
  for (int64_t i = 0; i < n; ++i) {
    const int64_t t = entries[i] / k;
    for (int64_t h = 0; h < H; ++h) {
      expected_rows[i * H + h] = x[t * H + h];
      expected[t * H + h] += (weights[entries[i]] + 1) * x[t * H + h];
    }
  }
  auto expected_added = expected;
  for (size_t i = 0; i < expected.size(); ++i) expected_added[i] += act_before[i];
  return {CompareExactly("gathered", gathered.Get(), expected_rows),
          CompareL2("sum", sum.Get(), expected, 4 * 0x1p-24),
          CompareL2("set", set.Get(), expected, 2 * device.epsilon()),
          CompareL2("added", added.Get(), expected_added, 2 * device.epsilon())};
}

std::vector<Check> RunEntryGrad(TestDevice& device, uint64_t seed, int64_t n, int64_t I,
                                GateActivation gate) {
  Random random(seed);
  const int64_t T = n + 3, k = 2;
  const auto entries = SomeEntries(&random, n, T, k);
  const auto gate_up = RoundTo(device.act(), random.Normals(n * 2 * I));
  const auto d_act = RoundTo(device.act(), random.Normals(n * I));
  const auto weights = RoundTo(Element::kF32, random.Normals(T * k));
  const DeviceArray<int32_t> device_entries(device, entries);
  const DeviceTensor device_gate_up(device, device.act(), gate_up);
  const DeviceTensor device_d(device, device.act(), d_act);
  const DeviceTensor device_weights(device, Element::kF32, weights);
  const DeviceTensor d_weights(device, Element::kF32, std::vector<double>(T * k, 5.0));
  device.Run(EntryGradArgs{.gate_up = device_gate_up.data(),
                           .d_act = device_d.data(),
                           .entries = device_entries.data(),
                           .weights = device_weights.as<float>(),
                           .d_weights = d_weights.as<float>(),
                           .n = n,
                           .I = I,
                           .gate = gate});
  const auto act = reference::Swiglu(gate_up, n, I, gate == GateActivation::kGeluTanh);
  std::vector<double> expected_d(n * I), expected_weights(T * k, 5.0);
  for (int64_t i = 0; i < n; ++i) {
    double dot = 0;
    for (int64_t j = 0; j < I; ++j) {
      dot += d_act[i * I + j] * act[i * I + j];
      expected_d[i * I + j] = d_act[i * I + j] * weights[entries[i]];
    }
    expected_weights[entries[i]] = dot;
  }
  return {CompareL2("d_act", device_d.Get(), expected_d, 2 * device.epsilon()),
          CompareL2("d_weights", d_weights.Get(), expected_weights, 16 * device.epsilon())};
}

}  // namespace

void AppendMoeCases(std::vector<OpCase>* cases) {
  for (const bool normalise : {true, false}) {
    for (const RouteCase& c :
         {RouteCase{"one", 1, 1, 8, 1, normalise}, RouteCase{"mixtral", 37, 8, 8, 2, normalise},
          RouteCase{"odd", 5, 5, 8, 3, normalise}, RouteCase{"all", 9, 4, 8, 4, normalise},
          RouteCase{"qwen", 300, 128, 128, 8, normalise},
          RouteCase{"many", 3, 1000, 1000, 8, normalise}}) {
      cases->push_back({"route_" + c.name + (normalise ? "" : "_plain"), 0,
                        [c](auto& device, auto seed) { return RunRoute(device, seed, c); }});
    }
  }
  const int64_t shapes[][5] = {
      {1, 8, 1, 8, 1}, {5, 8, 9, 64, 2}, {33, 48, 40, 576, 8}, {0, 0, 4, 16, 2}};
  for (const auto& [n, rows, T, H, k] : shapes) {
    cases->push_back(
        {"entries_n" + std::to_string(n) + "_T" + std::to_string(T) + "_H" + std::to_string(H), 0,
         [n = n, rows = rows, T = T, H = H, k = k](auto& device, auto seed) {
           return RunEntries(device, seed, n, rows, T, H, k);
         }});
  }
  for (const GateActivation gate : {GateActivation::kSilu, GateActivation::kGeluTanh}) {
    const int64_t grads[][2] = {{1, 8}, {7, 48}, {20, 160}, {5, 1544}};
    for (const auto& [n, I] : grads) {
      cases->push_back({std::string("entry_grad_") +
                            (gate == GateActivation::kSilu ? "silu" : "gelu") + "_n" +
                            std::to_string(n) + "_I" + std::to_string(I),
                        0, [n = n, I = I, gate](auto& device, auto seed) {
                          return RunEntryGrad(device, seed, n, I, gate);
                        }});
    }
  }
}

}  // namespace soup::kernels
