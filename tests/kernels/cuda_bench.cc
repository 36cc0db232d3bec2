// Rates of the CUDA ops on this card, on random data: device copy, NF4 dequantisation, attention,
// products at the shapes of an 8B layer. Prints a table; docs/BENCHMARKS.md has the numbers and the
// command.
#include <cuda_runtime.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "engine/base/attention_library.h"
#include "kernels/cuda/attention.h"
#include "kernels/cuda/cudnn_attention.h"
#include "kernels/cuda/elementwise.h"
#include "kernels/cuda/gemm.h"
#include "kernels/cuda/hopper_attention.h"
#include "kernels/cuda/lora.h"
#include "kernels/cuda/nf4_dequant.h"
#include "kernels/cuda/norm.h"
#include "kernels/lora_products.h"
#include "kernels/nf4.h"

namespace soup::kernels {
namespace {

void Must(cudaError_t status, const char* what) {
  if (status == cudaSuccess) return;
  std::fprintf(stderr, "%s: %s\n", what, cudaGetErrorString(status));
  std::exit(1);
}

// Device memory filled with random bits that are normal bf16 values in (-1, 1) when `bf16`.
class Buffer {
 public:
  Buffer(size_t bytes, bool bf16) {
    Must(cudaMalloc(&data_, bytes), "cudaMalloc");
    std::vector<uint16_t> host(std::min(bytes / 2, size_t{1} << 22));
    uint64_t state = 88172645463325252ull + bytes;
    for (uint16_t& v : host) {
      state ^= state << 13;
      state ^= state >> 7;
      state ^= state << 17;
      const uint16_t bits = static_cast<uint16_t>(state >> 20);
      v = bf16 ? static_cast<uint16_t>((bits & 0x807f) | ((0x7a + bits % 5) << 7)) : bits;
    }
    for (size_t at = 0; at < bytes; at += host.size() * 2) {
      Must(cudaMemcpy(static_cast<char*>(data_) + at, host.data(),
                      std::min(bytes - at, host.size() * 2), cudaMemcpyHostToDevice),
           "upload");
    }
  }
  ~Buffer() { cudaFree(data_); }
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;
  template <typename T>
  T* as() const {
    return static_cast<T*>(data_);
  }

 private:
  void* data_ = nullptr;
};

// Median of repeated runs, in milliseconds.
double MedianMs(const std::function<void()>& run) {
  cudaEvent_t begin, end;
  Must(cudaEventCreate(&begin), "event");
  Must(cudaEventCreate(&end), "event");
  for (int i = 0; i < 3; ++i) run();
  std::vector<float> times;
  for (int i = 0; i < 15; ++i) {
    Must(cudaEventRecord(begin), "record");
    run();
    Must(cudaEventRecord(end), "record");
    Must(cudaEventSynchronize(end), "synchronize");
    float ms = 0;
    Must(cudaEventElapsedTime(&ms, begin, end), "elapsed");
    times.push_back(ms);
  }
  std::sort(times.begin(), times.end());
  Must(cudaEventDestroy(begin), "event");
  Must(cudaEventDestroy(end), "event");
  return times[times.size() / 2];
}

void Copies() {
  const size_t bytes = size_t{2} << 30;
  const Buffer from(bytes, true), to(bytes, true);
  const double ms = MedianMs([&] {
    Must(cudaMemcpyAsync(to.as<char>(), from.as<char>(), bytes, cudaMemcpyDeviceToDevice), "copy");
  });
  std::printf("device copy                     %8.3f ms  %7.2f TB/s (read + written)\n", ms,
              2e-9 * bytes / ms);
}

void Dequantisation() {
  Must(cuda::LoadNf4Tables(), "tables");
  const int64_t n = int64_t{28672} * 4096, blocks = Nf4Blocks(n), nested = Nf4NestedBlocks(blocks);
  const Buffer packed(n / 2, false), absmax_q(blocks, false), nested_absmax(nested * 4, true),
      offset(256, true), absmax(blocks * 4, true), out(n * 2, true);
  for (const bool is_double : {true, false}) {
    Nf4DequantArgs a{};
    a.packed = packed.as<uint8_t>();
    a.absmax = is_double ? nullptr : absmax.as<float>();
    a.absmax_q = is_double ? absmax_q.as<uint8_t>() : nullptr;
    a.nested_absmax = nested_absmax.as<float>();
    a.nested_offset = offset.as<float>();
    a.dst = out.as<void>();
    a.n = n;
    const double ms = MedianMs([&] { Must(cuda::Nf4Dequant(a, nullptr), "dequant"); });
    const double bytes = n * 2.5 + (is_double ? blocks + nested * 4.0 : blocks * 4.0);
    std::printf("nf4%s gate_up 8B, 117 M weights %8.3f ms  %7.2f TB/s\n", is_double ? "-dq" : "   ",
                ms, 1e-9 * bytes / ms);
  }
}

int64_t FreeMiB() {
  size_t free = 0, total = 0;
  Must(cudaMemGetInfo(&free, &total), "memory");
  return static_cast<int64_t>(free >> 20);
}

// The same by cuDNN, with each number of key-value heads a backward call whose workspace is at most
// 5 GB; `length` tokens of a sequence of s rows, `sequences` a call.
void CudnnRates(const AttentionForwardArgs& f, const AttentionBackwardArgs& b, int64_t length,
                bool exact, int64_t sequences) {
  const int64_t s = f.cu_seqlens[1];
  const int64_t scratch_bytes =
      cuda::CudnnAttention::ScratchBytes(f.Hq * sequences * (s + s / 4 + 128));
  const Buffer scratch(static_cast<size_t>(scratch_bytes), false);
  std::string error;
  const int64_t before = FreeMiB();
  const auto library =
      cuda::CudnnAttention::Create(scratch.as<void>(), scratch_bytes, nullptr, &error);
  if (library == nullptr) {
    std::printf("  no cuDNN: %s\n", error.c_str());
    return;
  }
  const double flop = 2.0 * length * length * f.D * f.Hq * f.S;
  const int64_t created = FreeMiB();
  for (int64_t groups = 1; groups <= f.Hkv; groups *= 2) {
    if (f.Hkv % groups != 0) continue;
    const cuda::CudnnAttentionShape shape = {engine::AttentionLengthClass(length),
                                             exact,
                                             f.Hq,
                                             f.Hkv,
                                             f.D,
                                             f.row_stride,
                                             groups,
                                             sequences};
    int64_t bytes = 0;
    const auto start = std::chrono::steady_clock::now();
    if (!library->Prepare(shape, &bytes, &error)) {
      std::printf("  cuDNN %s refuses: %s\n", library->version().c_str(), error.c_str());
      return;
    }
    const double prepared =
        std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start).count();
    if (bytes > int64_t{5000} << 20) break;
    const Buffer workspace(static_cast<size_t>(std::max<int64_t>(bytes, 256)), false);
    const auto each = [&](const auto& run) {
      for (int64_t i = 0; i < f.S; i += sequences)
        Must(run(cuda::CudnnSequence{f.cu_seqlens[i], length}), "cuDNN");
    };
    const double forward =
        MedianMs([&] { each([&](const auto& q) { return library->Forward(f, shape, q); }); });
    const int64_t ran = FreeMiB();
    const double backward = MedianMs([&] {
      each([&](const auto& q) {
        return library->Backward(b, shape, q, workspace.as<void>(), bytes);
      });
    });
    std::printf(
        "  cuDNN %s class %lld length %lld x%lld groups %lld: fwd %7.3f ms %6.1f TFLOPS   bwd "
        "%7.3f ms "
        "%6.1f "
        "TFLOPS  workspace %lld  plans %.0f ms  MiB taken %lld %lld %lld\n",
        library->version().c_str(), static_cast<long long>(shape.length_class),
        static_cast<long long>(length), static_cast<long long>(sequences),
        static_cast<long long>(groups), forward, 1e-9 * flop / forward, backward,
        2.5e-9 * flop / backward, static_cast<long long>(bytes), prepared,
        static_cast<long long>(before - created), static_cast<long long>(created - ran),
        static_cast<long long>(ran - FreeMiB()));
    std::fflush(stdout);
  }
}

// Our own warpgroup kernels, all key-value heads and as many sequences a call.
void WarpgroupRates(const AttentionForwardArgs& f, const AttentionBackwardArgs& b, int64_t length,
                    int64_t sequences, int sms) {
  if (!cuda::HasHopperAttention() || f.D != cuda::kHopperAttentionHeadDim) return;
  cuda::HopperAttentionBlock block{0, length, sequences, f.Hkv};
  const int64_t bytes = cuda::HopperAttentionWorkspace(f.Hq, f.Hkv, block);
  if (bytes > int64_t{5000} << 20) return;
  const Buffer workspace(static_cast<size_t>(bytes), false);
  const auto each = [&](const auto& run) {
    for (int64_t i = 0; i < f.S; i += sequences) {
      block.first = f.cu_seqlens[i];
      Must(run(), "warpgroups");
    }
  };
  const double forward =
      MedianMs([&] { each([&] { return cuda::HopperAttentionForward(f, block, sms, nullptr); }); });
  const double backward = MedianMs([&] {
    each([&] {
      return cuda::HopperAttentionBackward(b, block, nullptr, workspace.as<void>(), bytes, nullptr);
    });
  });
  const double flop = 2.0 * length * length * f.D * f.Hq * f.S;  // causal
  std::printf(
      "  warpgroups length %lld x%lld: fwd %7.3f ms %6.1f TFLOPS   bwd %7.3f ms %6.1f TFLOPS\n",
      static_cast<long long>(length), static_cast<long long>(sequences), forward,
      1e-9 * flop / forward, backward, 2.5e-9 * flop / backward);
  std::fflush(stdout);
}

void Attention(int64_t b, int64_t s, int64_t Hq, int64_t Hkv, int64_t D) {
  cuda::AttentionDevice device;
  Must(cuda::QueryAttentionDevice(0, &device), "device");
  const int64_t T = b * s, width = (Hq + 2 * Hkv) * D;
  std::vector<int32_t> cu;
  for (int64_t i = 0; i <= b; ++i) cu.push_back(static_cast<int32_t>(i * s));
  cuda::AttentionSchedule schedule;
  Must(cuda::MakeAttentionSchedule(device, cu.data(), b, Hq, Hkv, D, {}, &schedule), "schedule");
  const Buffer qkv(T * width * 2, true), out(T * Hq * D * 2, true), dout(T * Hq * D * 2, true),
      dqkv(T * width * 2, true), lse(T * Hq * 4, true), delta(T * Hq * 4, true);
  const auto upload = [](const std::vector<cuda::AttentionTile>& list) {
    auto buffer = std::make_unique<Buffer>(list.size() * sizeof(cuda::AttentionTile), false);
    Must(cudaMemcpy(buffer->as<void>(), list.data(), list.size() * sizeof(cuda::AttentionTile),
                    cudaMemcpyHostToDevice),
         "tiles");
    return buffer;
  };
  const auto f = upload(schedule.forward), q = upload(schedule.backward_q),
             kv = upload(schedule.backward_kv);
  const int64_t partial_bytes = cuda::AttentionPartialsBytes(schedule.kv_split, T, Hkv, D);
  const Buffer partials(std::max<int64_t>(partial_bytes, 256), true);
  cuda::AttentionTiles tiles;
  tiles.forward = f->as<cuda::AttentionTile>();
  tiles.backward_q = q->as<cuda::AttentionTile>();
  tiles.backward_kv = kv->as<cuda::AttentionTile>();
  tiles.forward_count = static_cast<int32_t>(schedule.forward.size());
  tiles.backward_q_count = static_cast<int32_t>(schedule.backward_q.size());
  tiles.backward_kv_count = static_cast<int32_t>(schedule.backward_kv.size());
  tiles.kv_split = schedule.kv_split;
  tiles.partials = partials.as<float>();

  AttentionForwardArgs fa{};
  fa.q = qkv.as<uint16_t>();
  fa.k = qkv.as<uint16_t>() + Hq * D;
  fa.v = qkv.as<uint16_t>() + (Hq + Hkv) * D;
  fa.row_stride = width;
  fa.out = out.as<void>();
  fa.lse = lse.as<float>();
  fa.cu_seqlens = cu.data();
  fa.S = b;
  fa.T = T;
  fa.Hq = Hq;
  fa.Hkv = Hkv;
  fa.D = D;
  fa.scale = 1.f / std::sqrt(static_cast<float>(D));
  AttentionBackwardArgs ba{};
  ba.q = fa.q;
  ba.k = fa.k;
  ba.v = fa.v;
  ba.row_stride = width;
  ba.out = out.as<void>();
  ba.dout = dout.as<void>();
  ba.lse = lse.as<float>();
  ba.delta = delta.as<float>();
  ba.dq = dqkv.as<uint16_t>();
  ba.dk = dqkv.as<uint16_t>() + Hq * D;
  ba.dv = dqkv.as<uint16_t>() + (Hq + Hkv) * D;
  ba.grad_row_stride = width;
  ba.cu_seqlens = cu.data();
  ba.S = b;
  ba.T = T;
  ba.Hq = Hq;
  ba.Hkv = Hkv;
  ba.D = D;
  ba.scale = fa.scale;
  const double flop = 4.0 * s * s * D * Hq * b / 2;  // causal
  const double forward =
      MedianMs([&] { Must(cuda::AttentionForward(fa, {}, tiles, device, nullptr), "forward"); });
  const double backward =
      MedianMs([&] { Must(cuda::AttentionBackward(ba, {}, tiles, device, nullptr), "backward"); });
  std::printf(
      "attention b%-2lld S%-5lld %lld/%lld d%-3lld   fwd %7.3f ms %6.1f TFLOPS   bwd %7.3f ms "
      "%6.1f TFLOPS  split %d\n",
      static_cast<long long>(b), static_cast<long long>(s), static_cast<long long>(Hq),
      static_cast<long long>(Hkv), static_cast<long long>(D), forward, 1e-9 * flop / forward,
      backward, 2.5e-9 * flop / backward, schedule.kv_split);
  std::fflush(stdout);
  for (int64_t sequences = 1; sequences <= b; sequences *= 2) {
    if (b % sequences != 0) continue;
    WarpgroupRates(fa, ba, s, sequences, device.sms);
    CudnnRates(fa, ba, s, true, sequences);
  }
  CudnnRates(fa, ba, s - 1, false, 1);
}

void Products() {
  const size_t workspace_bytes = 64 << 20;
  const Buffer workspace(workspace_bytes, true);
  std::unique_ptr<cuda::GemmLibrary> library;
  Must(cuda::GemmLibrary::Create(workspace.as<void>(), workspace_bytes,
                                 cuda::GemmLibrary::Fallback::kError, &library),
       "library");
  const Buffer a(size_t{16384} * 28672 * 2, true), b(size_t{28672} * 4096 * 2, true),
      c(size_t{16384} * 28672 * 2, true);
  struct Shape {
    const char* name;
    int64_t n, k;
  };
  for (const int64_t m : {512, 4096, 16384}) {
    for (const Shape& s : {Shape{"qkv", 6144, 4096}, Shape{"o", 4096, 4096},
                           Shape{"gate_up", 28672, 4096}, Shape{"down", 4096, 14336}}) {
      GemmArgs g{};
      g.transpose_b = true;
      g.M = m;
      g.N = s.n;
      g.K = s.k;
      g.alpha = 1.f;
      g.A = a.as<void>();
      g.lda = s.k;
      g.B = b.as<void>();
      g.ldb = s.k;
      g.C = c.as<void>();
      g.ldc = s.n;
      g.a_type = Operand::kAct;
      g.b_type = Operand::kWt;
      g.c_type = Operand::kAct;
      Must(library->Tune(g, 12, nullptr), "tune");
      const double ms = MedianMs([&] { Must(library->Gemm(g, nullptr), "gemm"); });
      std::printf("product %-8s M %-6lld       %8.3f ms  %7.1f TFLOPS\n", s.name,
                  static_cast<long long>(m), ms, 2e-9 * m * s.n * s.k / ms);
    }
  }
  std::printf("%d shapes tuned, cuBLASLt %s\n", static_cast<int>(library->shapes()),
              cuda::GemmLibrary::LibraryVersion().c_str());
}

// LoRA's products, by our kernels and by the library's fastest algorithms.
void Lora(int64_t T, int64_t r, const std::vector<int64_t>& widths) {
  const size_t workspace_bytes = 32 << 20;
  const Buffer workspace(workspace_bytes, true);
  std::unique_ptr<cuda::GemmLibrary> library;
  Must(cuda::GemmLibrary::Create(workspace.as<void>(), workspace_bytes,
                                 cuda::GemmLibrary::Fallback::kError, &library),
       "library");
  const int64_t in = 4096;
  LoraLinears linears{};
  int64_t rows = 0;
  for (const int64_t w : widths) {
    linears.column[linears.count] = rows;
    linears.width[linears.count++] = w;
    rows += w;
  }
  const int64_t R = linears.count * r;
  const Buffer x(T * in * 2, true), y(T * rows * 2, true), u(T * R * 2, true), a(R * in * 2, true),
      b(rows * r * 2, true), grad(std::max(rows * r, R * in) * 4, true), dx(T * in * 2, true);
  const auto tuned = [&](const GemmArgs& g) { Must(library->Tune(g, 12, nullptr), "tune"); };
  const auto run = [&](const GemmArgs& g) { Must(library->Gemm(g, nullptr), "gemm"); };
  const auto report = [&](const char* what, double own, double theirs, double bytes) {
    std::printf(
        "lora T %-5lld r %-2lld %lld x %-5lld %-4s ours %7.1f us (%4.2f TB/s), library %7.1f us\n",
        static_cast<long long>(T), static_cast<long long>(r), static_cast<long long>(linears.count),
        static_cast<long long>(rows), what, 1e3 * own, 1e-9 * bytes / own, 1e3 * theirs);
    std::fflush(stdout);
  };
  const auto compare = [&](const char* what, const auto& args, const auto& own, double bytes) {
    if (!LoraKernelsTake(linears, r, rows)) return;
    ForEachProduct(args, 2, tuned);
    report(what, MedianMs([&] { Must(own(args, nullptr), what); }),
           MedianMs([&] { ForEachProduct(args, 2, run); }), bytes);
  };
  compare("up", LoraUpArgs{linears, u.as<void>(), b.as<void>(), y.as<void>(), T, r, rows, 2.f},
          cuda::LoraUp, 4.0 * T * rows);
  compare("back", LoraBackArgs{linears, y.as<void>(), b.as<void>(), u.as<void>(), T, r, rows, 2.f},
          cuda::LoraBack, 2.0 * T * rows);
  compare("grad",
          LoraGradArgs{linears, y.as<void>(), u.as<void>(), grad.as<float>(), T, r, rows, 2.f},
          cuda::LoraGrad, 2.0 * T * rows);
  const auto skinny = [&](const char* what, const GemmArgs& g, double bytes) {
    if (!cuda::SkinnyTakes(g)) return;  // the library's alone
    tuned(g);
    report(what, MedianMs([&] { Must(cuda::SkinnyGemm(g, nullptr), what); }),
           MedianMs([&] { run(g); }), bytes);
  };
  const Operand act = Operand::kAct, wt = Operand::kWt, f32 = Operand::kF32;
  skinny("xA",
         {false, true, T, R, in, 1, 0, x.as<void>(), in, a.as<void>(), in, u.as<void>(), R, act, wt,
          act},
         2.0 * T * in);
  skinny("dA",
         {true, false, R, in, T, 1, 1, u.as<void>(), R, x.as<void>(), in, grad.as<void>(), in, act,
          act, f32},
         2.0 * T * in);
  skinny("dx",
         {false, false, T, in, R, 1, 1, u.as<void>(), R, a.as<void>(), in, dx.as<void>(), in, act,
          wt, act},
         4.0 * T * in);
}

void Norm() {
  const int64_t T = 16384, H = 4096;
  const Buffer x(T * H * 2, true), y(T * H * 2, true), w(H * 2, true), rstd(T * 4, true);
  RmsNormForwardArgs a{};
  a.x = x.as<void>();
  a.weight = w.as<uint16_t>();
  a.y = y.as<void>();
  a.rstd = rstd.as<float>();
  a.T = T;
  a.H = H;
  a.eps = 1e-5f;
  const double ms = MedianMs([&] { Must(cuda::RmsNormForward(a, nullptr), "norm"); });
  std::printf("rms_norm forward T 16384 H 4096 %8.3f ms  %7.2f TB/s\n", ms, 4e-9 * T * H / ms);
}

int Main(bool attention_only) {
  cudaDeviceProp p;
  Must(cudaGetDeviceProperties(&p, 0), "device");
  std::printf("%s sm_%d%d, %d multiprocessors\n", p.name, p.major, p.minor, p.multiProcessorCount);
  if (!attention_only) {
    Copies();
    Dequantisation();
    Norm();
  }
  Attention(32, 512, 32, 8, 128);
  Attention(8, 2048, 32, 8, 128);
  Attention(4, 4096, 32, 8, 128);
  Attention(1, 16384, 32, 8, 128);
  Attention(4, 2048, 14, 2, 64);
  Attention(8, 1024, 32, 8, 128);
  Attention(4, 4096, 32, 8, 64);
  Attention(4, 4096, 32, 8, 96);
  if (attention_only) return 0;
  for (const int64_t T : {512, 4096}) {
    Lora(T, 8, {4096, 1024, 1024});
    Lora(T, 8, {4096});
  }
  Lora(4096, 16, {4096, 1024, 1024});
  Lora(4096, 16, {14336, 14336});
  Products();
  return 0;
}

}  // namespace
}  // namespace soup::kernels

// `cuda_bench attention`: attention only; `cuda_bench attention B S HQ HKV D`: of one shape.
int main(int argc, char** argv) {
  if (argc == 7) {
    const auto n = [argv](int i) { return static_cast<int64_t>(std::atoll(argv[i])); };
    soup::kernels::Attention(n(2), n(3), n(4), n(5), n(6));
    return 0;
  }
  return soup::kernels::Main(argc > 1 && std::string(argv[1]) == "attention");
}
