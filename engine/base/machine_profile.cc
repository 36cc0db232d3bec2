#include "engine/base/machine_profile.h"

#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"

namespace soup::engine {

std::string MachineProfile::ToText() const {
  return nlohmann::json{{"backend", backend},
                        {"device_name", device_name},
                        {"device_memory_bytes", device_memory_bytes},
                        {"overhead_bytes", overhead_bytes},
                        {"copy_bytes_per_second", copy_bytes_per_second},
                        {"gemm_flops", gemm_flops},
                        {"dequant_bytes_per_second", dequant_bytes_per_second},
                        {"cpu_threads", cpu_threads},
                        {"blas_core", blas_core}}
      .dump();
}

absl::StatusOr<MachineProfile> MachineProfile::FromText(absl::string_view text) {
  try {
    const auto j = nlohmann::json::parse(text.begin(), text.end());
    MachineProfile p;
    p.backend = j.at("backend").get<std::string>();
    p.device_name = j.at("device_name").get<std::string>();
    p.device_memory_bytes = j.at("device_memory_bytes").get<int64_t>();
    p.overhead_bytes = j.at("overhead_bytes").get<int64_t>();
    p.copy_bytes_per_second = j.at("copy_bytes_per_second").get<double>();
    p.gemm_flops = j.at("gemm_flops").get<double>();
    p.dequant_bytes_per_second = j.at("dequant_bytes_per_second").get<double>();
    p.cpu_threads = j.at("cpu_threads").get<int32_t>();
    p.blas_core = j.at("blas_core").get<std::string>();
    return p;
  } catch (const nlohmann::json::exception& e) {
    return absl::InvalidArgumentError(absl::StrCat("machine profile is not readable (", e.what(),
                                                   "); delete it and it is made anew"));
  }
}

}  // namespace soup::engine
