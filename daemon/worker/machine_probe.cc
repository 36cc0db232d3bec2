#include "daemon/worker/machine_probe.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "engine/base/status_macros.h"
#include "kernels/cpu/context.h"

namespace soup::worker {
namespace {

constexpr absl::Duration kPatience = absl::Seconds(30);
constexpr int64_t kCopyBytes = int64_t{32} << 20;
constexpr int64_t kGemm = 512;
constexpr int64_t kDequantWeights = int64_t{1} << 20;

int64_t MemInfo(const char* key) {
  std::ifstream in("/proc/meminfo");
  const std::string prefix = absl::StrCat(key, ":");
  for (std::string line; std::getline(in, line);) {
    long long kib = 0;
    if (line.rfind(prefix, 0) == 0 &&
        std::sscanf(line.c_str() + prefix.size(), " %lld kB", &kib) == 1)
      return kib * 1024;
  }
  return 0;
}

std::string CpuName() {
  std::ifstream in("/proc/cpuinfo");
  for (std::string line; std::getline(in, line);) {
    const size_t colon = line.find(": ");
    if (line.rfind("model name", 0) == 0 && colon != std::string::npos)
      return line.substr(colon + 2);
  }
  return "CPU";
}

// The best of a few runs, in seconds: what the machine can do, not what it did while others ran.
template <typename Fn>
absl::StatusOr<double> Best(engine::Backend& backend, const Fn& fn) {
  double best = 1e9;
  for (int i = 0; i < 3; ++i) {
    const absl::Time start = absl::Now();
    fn();
    SOUP_RETURN_IF_ERROR(backend.Synchronize(kPatience));
    best = std::min(best, absl::ToDoubleSeconds(absl::Now() - start));
  }
  return std::max(best, 1e-9);
}

}  // namespace

int64_t HostMemoryTotal() { return MemInfo("MemTotal"); }
int64_t HostMemoryAvailable() { return MemInfo("MemAvailable"); }

absl::StatusOr<engine::MachineProfile> ProbeMachine(engine::Backend& backend, int cpu_threads) {
  engine::MachineProfile profile;
  profile.backend = backend.name();
  profile.device_name = CpuName();
  profile.device_memory_bytes = HostMemoryTotal();
  profile.cpu_threads = cpu_threads;
  profile.blas_core = kernels::cpu::BlasCoreName();

  std::vector<std::byte> source(kCopyBytes), target(kCopyBytes);
  std::memset(source.data(), 1, source.size());
  absl::Status copied;
  SOUP_ASSIGN_OR_RETURN(const double copy_seconds, Best(backend, [&] {
                          copied = backend.CopyToDeviceAsync(target.data(), source.data(),
                                                             kCopyBytes, backend.copy_stream());
                        }));
  SOUP_RETURN_IF_ERROR(copied);
  profile.copy_bytes_per_second = static_cast<double>(kCopyBytes) / copy_seconds;

  const std::vector<float> a(kGemm * kGemm, 0.5f), b(kGemm * kGemm, 0.25f);
  std::vector<float> c(kGemm * kGemm);
  kernels::GemmArgs gemm{};
  gemm.transpose_b = true;
  gemm.M = gemm.N = gemm.K = kGemm;
  gemm.alpha = 1;
  gemm.A = a.data();
  gemm.B = b.data();
  gemm.C = c.data();
  gemm.lda = gemm.ldb = gemm.ldc = kGemm;
  gemm.a_type = gemm.c_type = kernels::Operand::kAct;
  gemm.b_type = kernels::Operand::kWt;
  SOUP_ASSIGN_OR_RETURN(const double gemm_seconds, Best(backend, [&] { backend.Gemm(gemm); }));
  profile.gemm_flops = 2.0 * kGemm * kGemm * kGemm / gemm_seconds;

  const std::vector<uint8_t> packed(kDequantWeights / 2, 0x37);
  const std::vector<float> absmax(kDequantWeights / 64, 0.01f);
  std::vector<float> weights(kDequantWeights);
  kernels::Nf4DequantArgs dequant{};
  dequant.packed = packed.data();
  dequant.absmax = absmax.data();
  dequant.dst = weights.data();
  dequant.n = kDequantWeights;
  SOUP_ASSIGN_OR_RETURN(const double dequant_seconds,
                        Best(backend, [&] { backend.Nf4Dequant(dequant); }));
  profile.dequant_bytes_per_second =
      static_cast<double>(kDequantWeights * static_cast<int64_t>(sizeof(float))) / dequant_seconds;
  return profile;
}

}  // namespace soup::worker
