#include "daemon/worker/device.h"

#include <algorithm>
#include <fstream>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "daemon/worker/host_memory.h"
#include "engine/base/file_system.h"
#include "engine/base/log.h"
#include "engine/base/status_macros.h"
#include "engine/device/cpu_backend.h"
#include "engine/device/cuda_backend.h"
#include "engine/device/machine_measure.h"
#include "kernels/cpu/context.h"

namespace soup::worker {
namespace {

using engine::MachineProfile;

// More than kernels can take: another process took it meanwhile.
constexpr int64_t kMostLoadedBytes = int64_t{1} << 30;

std::string CpuName() {
  std::ifstream in("/proc/cpuinfo");
  for (std::string line; std::getline(in, line);) {
    const size_t colon = line.find(": ");
    if (line.rfind("model name", 0) == 0 && colon != std::string::npos)
      return line.substr(colon + 2);
  }
  return "CPU";
}

// What says that a kept profile was made with this very device and these libraries.
bool SameMachine(const MachineProfile& a, const MachineProfile& b) {
  return a.backend == b.backend && a.device_name == b.device_name &&
         a.device_memory_bytes == b.device_memory_bytes && a.blas_core == b.blas_core &&
         a.cpu_threads == b.cpu_threads && a.attention_library == b.attention_library;
}

// "NVIDIA H200", "sm_90, 132 SMs, …" -> nvidia-h200-sm-90-132-sms-….
std::string FileNameOf(absl::string_view text) {
  std::string name;
  for (const char c : text) {
    if (absl::ascii_isalnum(static_cast<unsigned char>(c))) {
      name.push_back(absl::ascii_tolower(static_cast<unsigned char>(c)));
    } else if (!name.empty() && name.back() != '-') {
      name.push_back('-');
    }
  }
  while (!name.empty() && name.back() == '-') name.pop_back();
  return name.substr(0, 120);
}

std::string ProfilePath(const DeviceOptions& options, const MachineProfile& profile) {
  return absl::StrCat(options.profile_dir, "/machine-", SOUP_VERSION, "-", profile.backend, "-",
                      FileNameOf(absl::StrCat(profile.device_name, " ", profile.blas_core)),
                      ".json");
}

// The kept profile of this machine. Errors: NotFound (none, or of another one).
absl::StatusOr<MachineProfile> ReadKept(const std::string& path, const MachineProfile& machine) {
  SOUP_ASSIGN_OR_RETURN(const std::string text, engine::RealFileSystem().ReadFile(path));
  SOUP_ASSIGN_OR_RETURN(MachineProfile kept, MachineProfile::FromText(text));
  if (!SameMachine(kept, machine)) {
    return absl::NotFoundError(absl::StrCat(path, " is the profile of another machine"));
  }
  kept.overhead_bytes = machine.overhead_bytes;
  return kept;
}

void Keep(const std::string& path, const MachineProfile& profile) {
  engine::FileSystem& fs = engine::RealFileSystem();
  absl::Status kept = fs.CreateDirectories(path.substr(0, path.rfind('/')));
  if (kept.ok()) kept = engine::WriteFileAtomically(fs, path, profile.ToText() + "\n");
  // A profile that cannot be kept is measured again at the next start, no more.
  if (!kept.ok()) {
    SOUP_LOG(kWarn, "worker") << "the machine profile is not kept: " << kept.message();
  }
}

struct TestCard {
  int64_t told_bytes = 0;
  int64_t real_bytes = 0;
};

// Fills the profile's rates: from the file that is kept, else by measuring, which makes the file.
// What cannot be measured now (a card that is full) leaves them at "not measured": plans are then
// made with low ones, and the next start tries again.
void Measure(const DeviceOptions& options, Device* device) {
  const std::string path = options.profile_dir.empty() ? "" : ProfilePath(options, device->profile);
  const auto take_kept = [&] {
    if (path.empty()) return false;
    absl::StatusOr<MachineProfile> kept = ReadKept(path, device->profile);
    if (!kept.ok()) return false;
    device->profile = *std::move(kept);
    return true;
  };
  if (take_kept()) return;
  engine::Backend* const backend = device->backend.get();
  if (!device->profile.attention_library.empty()) {
    // Before any job is planned for it. One that does not work may have been kept as none.
    const absl::Status tried = engine::CheckAttentionLibrary(backend, &device->profile);
    if (!tried.ok()) {
      SOUP_LOG(kWarn, "worker") << "the attention library is not tried: " << tried.message();
    }
    if (device->profile.attention_library.empty() && take_kept()) return;
  }
  engine::MeasureOptions measure = engine::QuickMeasure(*backend);
  if (device->memory_apart)
    measure.arena_bytes = std::min(measure.arena_bytes, device->free_bytes() / 2);
  MachineProfile measured = device->profile;
  const absl::Status status =
      engine::MeasureMachine(backend, engine::TypicalWidths(*backend), measure, &measured);
  if (!status.ok()) {
    SOUP_LOG(kWarn, "worker") << "the machine is not measured: " << status.message();
    return;
  }
  device->profile = std::move(measured);
  if (!path.empty()) Keep(path, device->profile);
}

absl::StatusOr<TestCard> ReadTestCard(const std::string& path) {
  SOUP_ASSIGN_OR_RETURN(const std::string text, engine::RealFileSystem().ReadFile(path));
  const std::vector<std::string> words =
      absl::StrSplit(text, absl::ByAnyChar(" \n"), absl::SkipEmpty());
  TestCard card;
  if (words.empty() || words.size() > 2 || !absl::SimpleAtoi(words.front(), &card.told_bytes) ||
      !absl::SimpleAtoi(words.back(), &card.real_bytes)) {
    return absl::InvalidArgumentError(absl::StrCat(path, " must hold one or two numbers of bytes"));
  }
  return card;
}

absl::StatusOr<Device> OpenCpu(const DeviceOptions& options) {
  const int threads = options.cpu_threads > 0
                          ? options.cpu_threads
                          : static_cast<int>(std::max(1u, std::thread::hardware_concurrency()));
  engine::CpuBackendOptions backend_options;
  backend_options.cpu_threads = threads;
  Device device;
  device.free_bytes = [] { return HostMemoryAvailable(); };
  TestCard card;
  if (!options.test_card.empty()) {
    SOUP_ASSIGN_OR_RETURN(card, ReadTestCard(options.test_card));
    backend_options.free_bytes = [path = options.test_card] {
      return ReadTestCard(path).value_or(TestCard()).real_bytes;
    };
    device.memory_apart = true;
  }
  device.backend = engine::MakeCpuBackend(backend_options);
  if (device.memory_apart) {
    device.free_bytes = [path = options.test_card, backend = device.backend.get()] {
      return ReadTestCard(path).value_or(TestCard()).told_bytes - backend->counters().arena_bytes;
    };
  }
  MachineProfile& profile = device.profile;
  profile.backend = device.backend->name();
  profile.device_name = CpuName();
  profile.device_memory_bytes = device.memory_apart ? card.told_bytes : HostMemoryTotal();
  profile.overhead_bytes = engine::CpuBackendOverheadBytes(threads);
  profile.cpu_threads = threads;
  profile.blas_core = kernels::cpu::BlasCoreName();
  Measure(options, &device);
  return device;
}

absl::StatusOr<Device> OpenCuda(const DeviceOptions& options) {
  engine::CudaBackendOptions backend_options;
  backend_options.device = options.device;
  if (!options.profile_dir.empty()) {
    SOUP_RETURN_IF_ERROR(engine::RealFileSystem().CreateDirectories(options.profile_dir));
    backend_options.gemm_profile_path = options.profile_dir + "/gemm-algorithms.txt";
  }
  SOUP_ASSIGN_OR_RETURN(engine::CudaBackend made, engine::MakeCudaBackend(backend_options));
  Device device;
  device.backend = std::move(made.backend);
  device.profile = std::move(made.profile);
  device.memory_apart = true;
  device.free_bytes = [number = options.device] {
    return engine::CudaFreeDeviceBytes(number).value_or(-1);
  };
  // The first use of a kernel loads it: what measuring has loaded is overhead too.
  const int64_t before = device.free_bytes();
  Measure(options, &device);
  const int64_t grown = before - device.free_bytes();
  if (grown > 0 && grown < kMostLoadedBytes) device.profile.overhead_bytes += grown;
  return device;
}

}  // namespace

absl::StatusOr<Device> OpenDevice(const DeviceOptions& options) {
  if (options.backend == "cpu") return OpenCpu(options);
  if (options.backend != "cuda" && options.backend != "auto") {
    return absl::InvalidArgumentError(
        absl::StrCat("backend \"", options.backend, "\" is not one of auto, cpu, cuda"));
  }
  absl::StatusOr<Device> cuda = OpenCuda(options);
  if (options.backend == "cuda") return cuda;
  if (cuda.ok()) {
    cuda->why = absl::StrCat("a card was found: ", cuda->profile.device_name);
    return cuda;
  }
  if (!absl::IsFailedPrecondition(cuda.status())) return cuda.status();
  SOUP_ASSIGN_OR_RETURN(Device cpu, OpenCpu(options));
  cpu.why = std::string(cuda.status().message());
  return cpu;
}

}  // namespace soup::worker
