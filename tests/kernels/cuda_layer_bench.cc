// What a layer's ops that are no large product take on this card, one row an op: microseconds,
// bytes that it must move, their rate, and the sum over a layer forward and backward. Random data;
// launches follow one another as in a step, each on the next of several sets of buffers, so that
// the cache holds nothing of its inputs. `cuda_layer_bench [T [r]]`, 8B shapes, adapters on q, k,
// v, o.
#include <cuda_runtime.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <string>
#include <vector>

#include "kernels/cuda/elementwise.h"
#include "kernels/cuda/lora.h"
#include "kernels/cuda/norm.h"
#include "kernels/cuda/qkv_finish.h"
#include "kernels/cuda/rope.h"

namespace soup::kernels {
namespace {

constexpr int64_t kHidden = 4096, kHeads = 32, kKvHeads = 8, kHeadDim = 128, kInner = 14336;
constexpr int64_t kQ = kHeads * kHeadDim, kKv = kKvHeads * kHeadDim, kQkv = kQ + 2 * kKv;

void Must(cudaError_t status, const char* what) {
  if (status == cudaSuccess) return;
  std::fprintf(stderr, "%s: %s\n", what, cudaGetErrorString(status));
  std::exit(1);
}

// Equal-sized buffers of random bf16, taken in turn.
class Sets {
 public:
  Sets(int64_t elements, int sets) {
    for (int i = 0; i < sets; ++i) {
      void* p = nullptr;
      Must(cudaMalloc(&p, static_cast<size_t>(elements * 2)), "cudaMalloc");
      std::vector<uint16_t> host(static_cast<size_t>(std::min<int64_t>(elements, 1 << 22)));
      for (uint16_t& v : host) {
        state_ ^= state_ << 13;
        state_ ^= state_ >> 7;
        state_ ^= state_ << 17;
        const uint16_t bits = static_cast<uint16_t>(state_ >> 20);
        v = static_cast<uint16_t>((bits & 0x807f) | ((0x7a + bits % 5) << 7));
      }
      for (int64_t at = 0; at < elements; at += static_cast<int64_t>(host.size())) {
        const int64_t n = std::min<int64_t>(elements - at, static_cast<int64_t>(host.size()));
        Must(cudaMemcpy(static_cast<uint16_t*>(p) + at, host.data(), static_cast<size_t>(n * 2),
                        cudaMemcpyHostToDevice),
             "upload");
      }
      blocks_.push_back(p);
    }
  }
  ~Sets() {
    for (void* p : blocks_) cudaFree(p);
  }
  Sets(const Sets&) = delete;
  Sets& operator=(const Sets&) = delete;
  void* operator()(int i) const { return blocks_[static_cast<size_t>(i) % blocks_.size()]; }

 private:
  uint64_t state_ = 88172645463325252ull;
  std::vector<void*> blocks_;
};

struct Totals {
  double us = 0, bytes = 0;
};

// Median over runs of `launches` launches in a row.
double MicrosecondsOf(const std::function<void(int)>& launch) {
  constexpr int kLaunches = 24, kRuns = 7;
  cudaEvent_t begin, end;
  Must(cudaEventCreate(&begin), "event");
  Must(cudaEventCreate(&end), "event");
  std::vector<float> times;
  for (int run = -1; run < kRuns; ++run) {
    Must(cudaEventRecord(begin), "record");
    for (int i = 0; i < kLaunches; ++i) launch(i);
    Must(cudaEventRecord(end), "record");
    Must(cudaEventSynchronize(end), "synchronize");
    float ms = 0;
    Must(cudaEventElapsedTime(&ms, begin, end), "elapsed");
    if (run >= 0) times.push_back(ms);
  }
  std::sort(times.begin(), times.end());
  Must(cudaEventDestroy(begin), "event");
  Must(cudaEventDestroy(end), "event");
  return 1e3 * times[times.size() / 2] / kLaunches;
}

void Report(Totals* totals, const char* name, int calls, double bytes,
            const std::function<void(int)>& launch) {
  const double us = MicrosecondsOf(launch);
  std::printf("%-28s %2d x %7.2f us  %7.1f MB  %5.2f TB/s\n", name, calls, us, 1e-6 * bytes,
              1e-6 * bytes / us);
  std::fflush(stdout);
  totals->us += calls * us;
  totals->bytes += calls * bytes;
}

void Print(const char* name, const Totals& t) {
  std::printf("%-28s      %7.2f us  %7.1f MB  %5.2f TB/s\n", name, t.us, 1e-6 * t.bytes,
              1e-6 * t.bytes / t.us);
}

void Elementwise(int64_t T, Totals* totals) {
  const Sets x(T * kHidden, 6), y(T * kHidden, 6), z(T * kHidden, 6), w(kHidden, 1);
  const double hidden = 2.0 * T * kHidden;
  Totals beside;
  Report(&beside, "(copy)", 1, 2 * hidden, [&](int i) {
    Must(cudaMemcpyAsync(y(i), x(i), static_cast<size_t>(hidden), cudaMemcpyDeviceToDevice),
         "copy");
  });
  RmsNormForwardArgs f{};
  f.weight = static_cast<uint16_t*>(w(0));
  f.T = T;
  f.H = kHidden;
  f.eps = 1e-5f;
  Report(totals, "norm forward", 2, 2 * hidden, [&](int i) {
    f.x = x(i);
    f.y = y(i);
    Must(cuda::RmsNormForward(f, nullptr), "norm");
  });
  RmsNormBackwardArgs b{};
  b.weight = f.weight;
  b.T = T;
  b.H = kHidden;
  b.eps = 1e-5f;
  b.accumulate = true;
  Report(totals, "norm backward", 2, 4 * hidden, [&](int i) {
    b.x = x(i);
    b.dy = y(i);
    b.dx = z(i);
    Must(cuda::RmsNormBackward(b, nullptr), "norm");
  });
}

// Positions and frequencies of rope.
struct RopeTables {
  explicit RopeTables(int64_t T) {
    const std::vector<int32_t> host(static_cast<size_t>(T), 317);
    Must(cudaMalloc(&positions, static_cast<size_t>(4 * T)), "cudaMalloc");
    Must(cudaMemcpy(positions, host.data(), static_cast<size_t>(4 * T), cudaMemcpyHostToDevice),
         "upload");
  }
  ~RopeTables() { cudaFree(positions); }
  RopeTables(const RopeTables&) = delete;
  RopeTables& operator=(const RopeTables&) = delete;
  RopeArgs Args(void* x, int64_t T, bool inverse) const {
    RopeArgs a{};
    a.x = x;
    a.positions = static_cast<int32_t*>(positions);
    a.inv_freq = static_cast<float*>(frequencies(0));
    a.T = T;
    a.heads = kHeads + kKvHeads;
    a.D = kHeadDim;
    a.row_stride = kQkv;
    a.inverse = inverse;
    a.rotary = kHeadDim;
    return a;
  }
  void* positions = nullptr;
  const Sets frequencies{kHeadDim, 1};
};

void RopeAndGate(int64_t T, Totals* totals) {
  {
    const Sets x(T * kQkv, 4);
    const RopeTables tables(T);
    Report(totals, "rope", 1, 4.0 * T * (kQ + kKv),
           [&](int i) { Must(cuda::Rope(tables.Args(x(i), T, i % 2 == 1), nullptr), "rope"); });
  }
  const Sets gate_up(T * 2 * kInner, 2), y(T * kInner, 2);
  Report(totals, "swiglu forward", 1, 6.0 * T * kInner, [&](int i) {
    Must(cuda::SwigluForward({gate_up(i), y(i), T, kInner}, nullptr), "swiglu");
  });
  Report(totals, "swiglu backward", 1, 10.0 * T * kInner, [&](int i) {
    Must(cuda::SwigluBackward({gate_up(i), y(i), gate_up(i), T, kInner}, nullptr), "swiglu");
  });
}

// The adapters of linears of these widths that read one input of kHidden columns; normed: q, k, v.
void Lora(int64_t T, int64_t r, const std::vector<int64_t>& widths, bool normed, Totals* totals) {
  LoraLinears linears{};
  int64_t rows = 0;
  for (const int64_t width : widths) {
    linears.column[linears.count] = rows;
    linears.width[linears.count++] = width;
    rows += width;
  }
  const int64_t R = linears.count * r;
  const Sets x(T * kHidden, 6), y(T * rows, 4), u(T * R, 4), a(R * kHidden, 1), b(rows * r, 1),
      grad(2 * std::max(rows * r, R * kHidden), 1);
  const std::string tag = " " + std::to_string(linears.count) + "x" + std::to_string(rows);
  const auto named = [&](const char* what) { return what + tag; };
  const double wide = 2.0 * T * rows, hidden = 2.0 * T * kHidden;
  const Operand act = Operand::kAct, f32 = Operand::kF32;
  const auto skinny = [](const GemmArgs& g) { Must(cuda::SkinnyGemm(g, nullptr), "skinny"); };
  Report(totals, named("lora xA").c_str(), 1, hidden, [&](int i) {
    skinny(
        {false, true, T, R, kHidden, 1, 0, x(i), kHidden, a(0), kHidden, u(i), R, act, act, act});
  });
  const RopeTables tables(T);
  const auto up = [&](int i) {
    return LoraUpArgs{linears, u(i), b(0), y(i), T, r, rows, 2.f, true};
  };
  if (normed) {
    Report(totals, named("lora up, rope").c_str(), 1, 2 * wide, [&](int i) {
      Must(cuda::LoraUpRope({up(i), tables.Args(y(i), T, false)}, nullptr), "up, rope");
    });
    // What families with other heads have in its place.
    const Sets product(2 * T * rows, 2), weight(kHeadDim, 1);
    Totals beside;
    Report(&beside, named("(qkv finish)").c_str(), 1, 4 * wide, [&](int i) {
      QkvFinishArgs f{};
      f.x = static_cast<float*>(product(i));
      f.x_row_stride = f.row_stride = rows;
      f.y = y(i);
      f.saved = y(i + 1);
      f.linears = linears;
      f.u = u(i);
      f.b = b(0);
      f.r = r;
      f.q_norm = f.k_norm = static_cast<uint16_t*>(weight(0));
      f.rope = {static_cast<int32_t*>(tables.positions), static_cast<float*>(tables.frequencies(0)),
                kHeadDim, 1.f};
      f.T = T;
      f.Hq = kHeads;
      f.Hkv = kKvHeads;
      f.D = kHeadDim;
      f.lora_scale = 2.f;
      f.eps = 1e-5f;
      Must(cuda::QkvFinish(f, nullptr), "qkv finish");
    });
  } else {
    const Sets residual(T * rows, 4);
    Report(totals, named("lora up").c_str(), 1, (linears.count == 1 ? 3 : 2) * wide, [&](int i) {
      LoraUpArgs a = up(i);
      if (linears.count == 1) a.addend = residual(i);
      Must(cuda::LoraUp(a, nullptr), "up");
    });
  }
  Report(totals, named("lora back").c_str(), 1, wide, [&](int i) {
    Must(cuda::LoraBack({linears, y(i), b(0), u(i), T, r, rows, 2.f}, nullptr), "back");
  });
  Report(totals, named("lora grad").c_str(), 1, wide, [&](int i) {
    Must(cuda::LoraGrad({linears, y(i), u(i), static_cast<float*>(grad(0)), T, r, rows, 2.f},
                        nullptr),
         "grad");
  });
  if (normed) {
    const Sets weight(kHidden, 1), rstd(2 * T, 1);
    Report(totals, named("lora dA, normed").c_str(), 1, hidden, [&](int i) {
      Must(cuda::LoraNormedGrad(
               {u(i), x(i), static_cast<uint16_t*>(weight(0)), static_cast<float*>(rstd(0)),
                nullptr, static_cast<float*>(grad(0)), T, R, kHidden, R, 1e-5f},
               nullptr),
           "dA");
    });
  } else {
    Report(totals, named("lora dA").c_str(), 1, hidden, [&](int i) {
      skinny({true, false, R, kHidden, T, 1, 1, u(i), R, x(i), kHidden, grad(0), kHidden, act, act,
              f32});
    });
  }
  Report(totals, named("lora dx").c_str(), 1, hidden, [&](int i) {
    skinny(
        {false, false, T, kHidden, R, 1, 0, u(i), R, a(0), kHidden, x(i), kHidden, act, act, act});
  });
}

}  // namespace
}  // namespace soup::kernels

int main(int argc, char** argv) {
  using soup::kernels::Totals;
  const int64_t T = argc > 1 ? std::atoll(argv[1]) : 4096, r = argc > 2 ? std::atoll(argv[2]) : 8;
  Totals elementwise, lora;
  std::printf("T %lld, r %lld\n", static_cast<long long>(T), static_cast<long long>(r));
  soup::kernels::Elementwise(T, &elementwise);
  soup::kernels::RopeAndGate(T, &elementwise);
  soup::kernels::Print("elementwise, a layer", elementwise);
  soup::kernels::Lora(T, r, {soup::kernels::kQ, soup::kernels::kKv, soup::kernels::kKv}, true,
                      &lora);
  soup::kernels::Lora(T, r, {soup::kernels::kHidden}, false, &lora);
  soup::kernels::Print("lora, a layer", lora);
  return 0;
}
