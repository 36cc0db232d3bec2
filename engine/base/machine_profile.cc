#include "engine/base/machine_profile.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <utility>

#include "absl/strings/str_cat.h"

namespace soup::engine {
namespace {

// 1: no curves. 2: no attention library. 3: no fused gates. Raise it whenever a field changes its
// meaning.
constexpr int kVersion = 4;

nlohmann::json CurveToJson(const std::vector<MeasuredRate>& curve) {
  nlohmann::json points = nlohmann::json::array();
  for (const MeasuredRate& p : curve) points.push_back({{"size", p.size}, {"flops", p.flops}});
  return points;
}

// RateAt relies on ascending sizes.
absl::StatusOr<std::vector<MeasuredRate>> CurveFromJson(const nlohmann::json& points) {
  std::vector<MeasuredRate> curve;
  for (const nlohmann::json& p : points) {
    curve.push_back({p.at("size").get<int64_t>(), p.at("flops").get<double>()});
    const bool ascending = curve.size() < 2 || curve[curve.size() - 2].size < curve.back().size;
    if (curve.back().size <= 0 || !ascending) {
      return absl::InvalidArgumentError(
          absl::StrCat("machine profile: sizes of a curve must be positive and ascend (",
                       curve.back().size, "); delete it and it is made anew"));
    }
  }
  return curve;
}

}  // namespace

double RateAt(const std::vector<MeasuredRate>& curve, int64_t size) {
  if (curve.empty()) return 0;
  const auto above =
      std::lower_bound(curve.begin(), curve.end(), size,
                       [](const MeasuredRate& p, int64_t wanted) { return p.size < wanted; });
  if (above == curve.begin()) return curve.front().flops;
  if (above == curve.end()) return curve.back().flops;
  const auto below = above - 1;
  const double span = std::log(static_cast<double>(above->size) / static_cast<double>(below->size));
  const double part = std::log(static_cast<double>(size) / static_cast<double>(below->size)) / span;
  return below->flops + part * (above->flops - below->flops);
}

std::string MachineProfile::ToText() const {
  return nlohmann::json{{"version", kVersion},
                        {"backend", backend},
                        {"device_name", device_name},
                        {"device_memory_bytes", device_memory_bytes},
                        {"overhead_bytes", overhead_bytes},
                        {"copy_bytes_per_second", copy_bytes_per_second},
                        {"copy_to_host_bytes_per_second", copy_to_host_bytes_per_second},
                        {"copy_both_ways_bytes_per_second", copy_both_ways_bytes_per_second},
                        {"device_copy_bytes_per_second", device_copy_bytes_per_second},
                        {"gemm_flops", gemm_flops},
                        {"dequant_bytes_per_second", dequant_bytes_per_second},
                        {"launch_seconds", launch_seconds},
                        {"gemm_rates", CurveToJson(gemm_rates)},
                        {"attention_forward_rates", CurveToJson(attention_forward_rates)},
                        {"attention_backward_rates", CurveToJson(attention_backward_rates)},
                        {"cpu_threads", cpu_threads},
                        {"blas_core", blas_core},
                        {"fused_gate_rows", fused_gate_rows},
                        {"attention_library", attention_library}}
      .dump();
}

absl::StatusOr<MachineProfile> MachineProfile::FromText(absl::string_view text) {
  try {
    const auto j = nlohmann::json::parse(text.begin(), text.end());
    const int version = j.value("version", 1);
    if (version != kVersion) {
      return absl::InvalidArgumentError(absl::StrCat("machine profile has version ", version,
                                                     ", this program reads ", kVersion,
                                                     "; delete it and it is made anew"));
    }
    MachineProfile p;
    const auto number = [&j](const char* key) { return j.at(key).get<double>(); };
    p.backend = j.at("backend").get<std::string>();
    p.device_name = j.at("device_name").get<std::string>();
    p.device_memory_bytes = j.at("device_memory_bytes").get<int64_t>();
    p.overhead_bytes = j.at("overhead_bytes").get<int64_t>();
    p.copy_bytes_per_second = number("copy_bytes_per_second");
    p.copy_to_host_bytes_per_second = number("copy_to_host_bytes_per_second");
    p.copy_both_ways_bytes_per_second = number("copy_both_ways_bytes_per_second");
    p.device_copy_bytes_per_second = number("device_copy_bytes_per_second");
    p.gemm_flops = number("gemm_flops");
    p.dequant_bytes_per_second = number("dequant_bytes_per_second");
    p.launch_seconds = number("launch_seconds");
    const std::pair<const char*, std::vector<MeasuredRate>*> curves[] = {
        {"gemm_rates", &p.gemm_rates},
        {"attention_forward_rates", &p.attention_forward_rates},
        {"attention_backward_rates", &p.attention_backward_rates}};
    for (const auto& [key, curve] : curves) {
      auto read = CurveFromJson(j.at(key));
      if (!read.ok()) return read.status();
      *curve = *std::move(read);
    }
    p.cpu_threads = j.at("cpu_threads").get<int32_t>();
    p.blas_core = j.at("blas_core").get<std::string>();
    p.fused_gate_rows = j.at("fused_gate_rows").get<int64_t>();
    p.attention_library = j.at("attention_library").get<std::string>();
    return p;
  } catch (const nlohmann::json::exception& e) {
    return absl::InvalidArgumentError(absl::StrCat("machine profile is not readable (", e.what(),
                                                   "); delete it and it is made anew"));
  }
}

}  // namespace soup::engine
