#include "engine/device/machine_measure.h"

#include <sys/mman.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <map>
#include <memory>
#include <numeric>
#include <optional>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "engine/base/attention_library.h"
#include "engine/base/clock.h"
#include "engine/base/log.h"
#include "engine/base/status_macros.h"
#include "engine/plan/pass_buffers.h"
#include "kernels/bf16.h"
#include "kernels/philox.h"

namespace soup::engine {
namespace {

constexpr absl::Duration kPatience = absl::Minutes(2);
constexpr int kLeastRepeats = 3;
constexpr int kMostRepeats = 30;
constexpr int64_t kPatternBytes = 4 << 20;
constexpr int64_t kNf4Block = 64;
constexpr int kLaunches = 200;
constexpr uint64_t kSeed = 0x50bd;

// Host memory that the kernel was asked to back with huge pages.
class HostPages {
 public:
  static absl::StatusOr<HostPages> Map(int64_t bytes) {
    void* data = mmap(nullptr, static_cast<size_t>(bytes), PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (data == MAP_FAILED) {
      return absl::ResourceExhaustedError(
          absl::StrCat("no host memory for a slab of ", bytes, " bytes"));
    }
    madvise(data, static_cast<size_t>(bytes), MADV_HUGEPAGE);  // Advice only.
    return HostPages(static_cast<std::byte*>(data), bytes);
  }
  HostPages(HostPages&& other) noexcept
      : data_(std::exchange(other.data_, nullptr)), bytes_(other.bytes_) {}
  HostPages& operator=(HostPages&&) = delete;
  ~HostPages() {
    if (data_ != nullptr) munmap(data_, static_cast<size_t>(bytes_));
  }
  std::byte* data() const { return data_; }
  int64_t bytes() const { return bytes_; }

 private:
  HostPages(std::byte* data, int64_t bytes) : data_(data), bytes_(bytes) {}
  std::byte* data_;
  int64_t bytes_;
};

// Bump allocation in one arena: measuring needs no lifetimes.
class Room {
 public:
  Room(std::byte* base, int64_t bytes) : base_(base), bytes_(bytes) {}
  int64_t mark() const { return used_; }
  void Reset(int64_t mark) { used_ = mark; }
  bool Fits(int64_t bytes) const { return used_ + ArenaRoundUp(bytes) <= bytes_; }
  std::byte* Take(int64_t bytes) {
    SOUP_CHECK(Fits(bytes));
    std::byte* at = base_ + used_;
    used_ += ArenaRoundUp(bytes);
    return at;
  }

 private:
  std::byte* base_;
  int64_t bytes_;
  int64_t used_ = 0;
};

class Measurer {
 public:
  Measurer(Backend* backend, const DecoderWidths& widths, const MeasureOptions& options,
           MachineProfile* profile)
      : backend_(*backend),
        w_(widths),
        options_(options),
        profile_(*profile),
        act_(DTypeBytes(backend->activation_type())),
        wt_(DTypeBytes(backend->weight_type())),
        start_ns_(RealClock().MonotonicNs()) {}

  absl::Status Run();

 private:
  using Work = std::function<absl::Status()>;

  double Elapsed() const {
    return static_cast<double>(RealClock().MonotonicNs() - start_ns_) * 1e-9;
  }
  bool Allows(double seconds) const { return Elapsed() + seconds < options_.seconds_limit; }

  absl::StatusOr<double> Once(StreamView stream, const Work& work);
  absl::StatusOr<double> Median(StreamView stream, const Work& work);
  absl::StatusOr<std::optional<double>> Point(double flops, double last_rate, const Work& work);

  absl::Status MakeArena();
  absl::Status FillRandom(std::byte* dst, int64_t bytes);
  absl::Status MeasureLink();
  absl::Status MeasureCopies(const HostPages& slab);
  absl::Status MeasureElementwise();
  absl::Status MeasureDequant();
  absl::Status Warm(const Work& work);
  absl::Status MeasureGemm();
  struct AttentionCase {
    kernels::AttentionForwardArgs forward;
    kernels::AttentionBackwardArgs backward;
    AttentionScratch scratch;
    std::vector<int32_t> cu;
    double forward_flops = 0;
  };
  absl::StatusOr<bool> MakeAttention(int64_t tokens, AttentionCase& c);
  absl::StatusOr<bool> UseLibrary(int64_t tokens, AttentionCase& c);
  absl::Status MeasureAttention();

  int64_t nq() const { return (w_.heads + 2 * w_.kv_heads) * w_.head_dim; }
  int64_t q() const { return w_.heads * w_.head_dim; }
  // [out, in] of the layer's four products.
  std::vector<std::pair<int64_t, int64_t>> Products() const {
    return {{nq(), w_.hidden},
            {w_.hidden, q()},
            {2 * w_.intermediate, w_.hidden},
            {w_.hidden, w_.intermediate}};
  }
  int64_t LayerElements() const {
    int64_t n = 0;
    for (const auto& [out, in] : Products()) n += out * in;
    return n;
  }
  // Memory that is large enough to be no cache's matter, as far as the arena allows.
  int64_t LargeBytes() const { return ArenaRoundUp(arena_bytes_ / 8); }

  Backend& backend_;
  const DecoderWidths w_;
  const MeasureOptions& options_;
  MachineProfile& profile_;
  const int64_t act_, wt_;
  const int64_t start_ns_;
  int64_t arena_bytes_ = 0;
  std::unique_ptr<Arena> arena_;
  ArenaBuffer all_;
  std::optional<Room> room_;
};

absl::StatusOr<double> Measurer::Once(StreamView stream, const Work& work) {
  Event begin = backend_.MakeTimedEvent(), end = backend_.MakeTimedEvent();
  SOUP_RETURN_IF_ERROR(backend_.Record(begin, stream));
  SOUP_RETURN_IF_ERROR(work());
  SOUP_RETURN_IF_ERROR(backend_.Record(end, stream));
  SOUP_RETURN_IF_ERROR(backend_.Synchronize(kPatience));
  SOUP_ASSIGN_OR_RETURN(const double seconds, backend_.SecondsBetween(begin, end));
  return std::max(seconds, 1e-9);
}

// Seconds of `work` on `stream`. The first run is not counted: it loads code and chooses
// algorithms. Repeats are queued together, so that the device does not idle between them.
absl::StatusOr<double> Measurer::Median(StreamView stream, const Work& work) {
  SOUP_RETURN_IF_ERROR(Once(stream, work).status());
  SOUP_ASSIGN_OR_RETURN(const double estimate, Once(stream, work));
  const int repeats = static_cast<int>(std::clamp(options_.point_seconds / estimate,
                                                  static_cast<double>(kLeastRepeats - 1),
                                                  static_cast<double>(kMostRepeats - 1))) +
                      1;
  std::vector<Event> marks;
  for (int i = 0; i <= repeats; ++i) marks.push_back(backend_.MakeTimedEvent());
  SOUP_RETURN_IF_ERROR(backend_.Record(marks[0], stream));
  for (int i = 1; i <= repeats; ++i) {
    SOUP_RETURN_IF_ERROR(work());
    SOUP_RETURN_IF_ERROR(backend_.Record(marks[i], stream));
  }
  SOUP_RETURN_IF_ERROR(backend_.Synchronize(kPatience));
  std::vector<double> seconds;
  for (int i = 0; i < repeats; ++i) {
    SOUP_ASSIGN_OR_RETURN(const double s, backend_.SecondsBetween(marks[i], marks[i + 1]));
    seconds.push_back(std::max(s, 1e-9));
  }
  std::nth_element(seconds.begin(), seconds.begin() + repeats / 2, seconds.end());
  return seconds[static_cast<size_t>(repeats / 2)];
}

// A point of a curve; nothing when the time left does not hold it, going by the rate of the point
// before (0: the first one, always made).
absl::StatusOr<std::optional<double>> Measurer::Point(double flops, double last_rate,
                                                      const Work& work) {
  if (last_rate > 0) {
    const double one = flops / last_rate;
    const double repeats =
        std::clamp(options_.point_seconds / one, static_cast<double>(kLeastRepeats),
                   static_cast<double>(kMostRepeats));
    if (!Allows(one * (repeats + 2))) return std::optional<double>();
  }
  SOUP_ASSIGN_OR_RETURN(const double seconds, Median(backend_.compute_stream(), work));
  return std::optional<double>(flops / seconds);
}

// Activations: uniform in [-1, 1), as the backend's activation type. Read as bytes (packed codes)
// they are random enough too.
absl::Status Measurer::FillRandom(std::byte* dst, int64_t bytes) {
  const int64_t pattern = std::min(bytes, kPatternBytes);
  std::vector<std::byte> host(static_cast<size_t>(pattern));
  const kernels::PhiloxStream random(kSeed, 0, 0);
  for (int64_t i = 0; i < pattern / act_; ++i) {
    const float x = 2 * random.Uniform(static_cast<uint64_t>(i)) - 1;
    if (act_ == 4) {
      reinterpret_cast<float*>(host.data())[i] = x;
    } else {
      reinterpret_cast<uint16_t*>(host.data())[i] = kernels::F32ToBf16(x);
    }
  }
  SOUP_RETURN_IF_ERROR(
      backend_.CopyToDeviceAsync(dst, host.data(), pattern, backend_.compute_stream()));
  SOUP_RETURN_IF_ERROR(backend_.Synchronize(kPatience));  // `host` dies here
  for (int64_t done = pattern; done < bytes;) {
    const int64_t piece = std::min(done, bytes - done);
    backend_.CopyOnDevice(dst + done, dst, piece);
    done += piece;
  }
  return backend_.status();
}

// Others may be using the device: less memory measures fewer points.
absl::Status Measurer::MakeArena() {
  arena_bytes_ = options_.arena_bytes;
  if (profile_.device_memory_bytes > 0) {
    arena_bytes_ = std::min(arena_bytes_, profile_.device_memory_bytes / 4);
  }
  for (int attempt = 0;; ++attempt) {
    auto made = backend_.CreateArena(arena_bytes_);
    if (made.ok()) {
      arena_ = *std::move(made);
      return absl::OkStatus();
    }
    if (!absl::IsResourceExhausted(made.status()) || attempt == 2) return made.status();
    arena_bytes_ /= 2;
  }
}

absl::Status Measurer::Run() {
  if (std::min({w_.hidden, w_.intermediate, w_.heads, w_.kv_heads, w_.head_dim}) <= 0 ||
      w_.heads % w_.kv_heads != 0) {
    return absl::InvalidArgumentError(
        "widths to measure at must be positive, and whole query "
        "heads must share a key-value head");
  }
  if (options_.gemm_rows.empty() || options_.attention_tokens.empty() || options_.slab_bytes <= 0) {
    return absl::InvalidArgumentError("nothing to measure: no rows, no tokens or no slab");
  }
  SOUP_RETURN_IF_ERROR(MakeArena());
  ArenaLayout layout;
  layout.bytes = arena_bytes_ / kArenaAlignment * kArenaAlignment;
  layout.buffers.push_back({"measure", "measure", 0, layout.bytes, 0, 0});
  SOUP_RETURN_IF_ERROR(arena_->Bind(layout));
  SOUP_ASSIGN_OR_RETURN(all_, arena_->Take("measure"));
  room_.emplace(all_.data(), all_.bytes());
  // Products last: theirs is the longest curve, and choosing their algorithms takes time once.
  for (const auto step :
       {&Measurer::MeasureLink, &Measurer::MeasureElementwise, &Measurer::MeasureDequant,
        &Measurer::MeasureAttention, &Measurer::MeasureGemm}) {
    room_->Reset(0);
    SOUP_RETURN_IF_ERROR((this->*step)());
  }
  return backend_.Synchronize(kPatience);
}

absl::Status Measurer::MeasureLink() {
  const int64_t bytes = options_.slab_bytes;
  if (!room_->Fits(2 * ArenaRoundUp(bytes))) {
    return absl::InvalidArgumentError(
        absl::StrCat("an arena of ", arena_bytes_, " bytes does not hold two slabs of ", bytes));
  }
  SOUP_ASSIGN_OR_RETURN(const HostPages slab, HostPages::Map(bytes));
  const kernels::PhiloxStream random(kSeed, 1, 0);
  for (int64_t i = 0; i + 4 <= slab.bytes(); i += 512) {
    *reinterpret_cast<uint32_t*>(slab.data() + i) = random.Draw(static_cast<uint64_t>(i));
  }
  backend_.RegisterHostMemory(slab.data(), slab.bytes());
  const absl::Status measured = MeasureCopies(slab);
  backend_.UnregisterHostMemory();
  return measured;
}

// Each way alone, then a slab each way at once: the slower of the two counts.
absl::Status Measurer::MeasureCopies(const HostPages& slab) {
  const int64_t bytes = slab.bytes();
  std::byte* dst = room_->Take(bytes);
  std::byte* src = room_->Take(bytes);
  SOUP_RETURN_IF_ERROR(FillRandom(src, bytes));
  SOUP_RETURN_IF_ERROR(backend_.Synchronize(kPatience));
  SOUP_ASSIGN_OR_RETURN(const auto host, backend_.CreateHostArena(bytes));
  ArenaLayout layout;
  layout.bytes = ArenaRoundUp(bytes);
  layout.buffers.push_back({"measure", "measure", 0, layout.bytes, 0, 0});
  SOUP_RETURN_IF_ERROR(host->Bind(layout));
  SOUP_ASSIGN_OR_RETURN(const ArenaBuffer back, host->Take("measure", bytes));

  const StreamView to_device = backend_.copy_stream(), to_host = backend_.offload_stream();
  const Work fetch = [&] { return backend_.CopyToDeviceAsync(dst, slab.data(), bytes, to_device); };
  const Work offload = [&] { return backend_.OffloadAsync(back.data(), src, bytes); };
  const double size = static_cast<double>(bytes);
  SOUP_ASSIGN_OR_RETURN(const double fetched, Median(to_device, fetch));
  SOUP_ASSIGN_OR_RETURN(const double offloaded, Median(to_host, offload));
  SOUP_ASSIGN_OR_RETURN(const double both, Median(to_host, [&]() -> absl::Status {
                          SOUP_RETURN_IF_ERROR(fetch());
                          return offload();
                        }));
  profile_.copy_bytes_per_second = size / fetched;
  profile_.copy_to_host_bytes_per_second = size / offloaded;
  profile_.copy_both_ways_bytes_per_second = size / both;
  return backend_.Synchronize(kPatience);
}

absl::Status Measurer::MeasureElementwise() {
  const int64_t bytes = LargeBytes();
  std::byte* from = room_->Take(bytes);
  std::byte* to = room_->Take(bytes);
  SOUP_RETURN_IF_ERROR(FillRandom(from, bytes));
  SOUP_ASSIGN_OR_RETURN(const double seconds, Median(backend_.compute_stream(), [&] {
                          backend_.CopyOnDevice(to, from, bytes);
                          return backend_.status();
                        }));
  profile_.device_copy_bytes_per_second = 2.0 * static_cast<double>(bytes) / seconds;
  SOUP_ASSIGN_OR_RETURN(const double launches, Median(backend_.compute_stream(), [&] {
                          for (int i = 0; i < kLaunches; ++i) {
                            backend_.Axpy({from, to, 8, 1.0f, false});
                          }
                          return backend_.status();
                        }));
  profile_.launch_seconds = launches / kLaunches;
  return absl::OkStatus();
}

// The widest product's weights, or as many of them as there is room for.
absl::Status Measurer::MeasureDequant() {
  const int64_t wanted = 2 * w_.intermediate * w_.hidden;
  const int64_t fits = arena_bytes_ / 2 / wt_;
  const int64_t n = std::min(wanted, fits) / kNf4Block * kNf4Block;
  const int64_t blocks = n / kNf4Block;
  std::vector<float> absmax(static_cast<size_t>(blocks));
  const kernels::PhiloxStream random(kSeed, 2, 0);
  for (int64_t b = 0; b < blocks; ++b) {
    absmax[static_cast<size_t>(b)] = 0.05f + 0.05f * random.Uniform(static_cast<uint64_t>(b));
  }
  kernels::Nf4DequantArgs args = {};
  std::byte* packed = room_->Take(n / 2);
  std::byte* scales = room_->Take(blocks * 4);
  SOUP_RETURN_IF_ERROR(FillRandom(packed, n / 2));
  SOUP_RETURN_IF_ERROR(
      backend_.CopyToDeviceAsync(scales, absmax.data(), blocks * 4, backend_.compute_stream()));
  SOUP_RETURN_IF_ERROR(backend_.Synchronize(kPatience));
  args.packed = reinterpret_cast<const uint8_t*>(packed);
  args.absmax = reinterpret_cast<const float*>(scales);
  args.dst = room_->Take(n * wt_);
  args.n = n;
  SOUP_ASSIGN_OR_RETURN(const double seconds, Median(backend_.compute_stream(), [&] {
                          backend_.Nf4Dequant(args);
                          return backend_.status();
                        }));
  profile_.dequant_bytes_per_second = static_cast<double>(n * wt_) / seconds;
  return absl::OkStatus();
}

absl::Status Measurer::Warm(const Work& work) {
  const double start = Elapsed();
  while (Elapsed() - start < options_.warm_seconds && Allows(0)) {
    SOUP_RETURN_IF_ERROR(Once(backend_.compute_stream(), work).status());
  }
  return absl::OkStatus();
}

// A layer's four products forward (x W^T) and backward (dy W), for each number of rows.
absl::Status Measurer::MeasureGemm() {
  std::vector<std::byte*> weights;
  int64_t widest = 0;
  for (const auto& [out, in] : Products()) {
    widest = std::max({widest, out, in});
    if (!room_->Fits(out * in * wt_)) {
      return absl::InvalidArgumentError(absl::StrCat("an arena of ", arena_bytes_,
                                                     " bytes does not hold a layer's weights of ",
                                                     LayerElements() * wt_, " bytes"));
    }
    weights.push_back(room_->Take(out * in * wt_));
    SOUP_RETURN_IF_ERROR(FillRandom(weights.back(), out * in * wt_));
  }
  const int64_t mark = room_->mark();
  double last_rate = 0;
  profile_.gemm_rates.clear();
  for (const int64_t rows : options_.gemm_rows) {
    room_->Reset(mark);
    const int64_t bytes = rows * widest * act_;
    // Preparing products takes time too, where their algorithms are not known yet.
    if (last_rate > 0 && !Allows(0)) break;
    if (!room_->Fits(ArenaRoundUp(bytes) + bytes)) break;
    std::byte* x = room_->Take(bytes);
    std::byte* y = room_->Take(bytes);
    SOUP_RETURN_IF_ERROR(FillRandom(x, bytes));
    std::vector<kernels::GemmArgs> products;
    for (size_t p = 0; p < weights.size(); ++p) {
      const auto [out, in] = Products()[p];
      for (const bool backward : {false, true}) {
        const int64_t n = backward ? in : out, k = backward ? out : in;
        products.push_back({false, !backward, rows, n, k, 1, 0, x, k, weights[p], in, y, n,
                            kernels::Operand::kAct, kernels::Operand::kWt, kernels::Operand::kAct});
      }
    }
    SOUP_RETURN_IF_ERROR(backend_.PrepareGemms(products, nullptr).status());
    const Work layer = [&] {
      for (const kernels::GemmArgs& product : products) backend_.Gemm(product);
      return backend_.status();
    };
    if (last_rate == 0) SOUP_RETURN_IF_ERROR(Warm(layer));
    const double flops = 4.0 * static_cast<double>(rows) * static_cast<double>(LayerElements());
    SOUP_ASSIGN_OR_RETURN(const std::optional<double> rate, Point(flops, last_rate, layer));
    if (!rate.has_value()) break;
    last_rate = *rate;
    profile_.gemm_rates.push_back({rows, *rate});
  }
  if (profile_.gemm_rates.empty()) {
    return absl::InvalidArgumentError(absl::StrCat("an arena of ", arena_bytes_,
                                                   " bytes does not hold products of ",
                                                   options_.gemm_rows.front(), " rows"));
  }
  double sum = 0;
  for (const MeasuredRate& p : profile_.gemm_rates) sum += p.flops;
  profile_.gemm_flops = sum / static_cast<double>(profile_.gemm_rates.size());
  return absl::OkStatus();
}

// Causal attention over a batch of equal sequences. False: it does not fit into the room left.
absl::StatusOr<bool> Measurer::MakeAttention(int64_t tokens, AttentionCase& c) {
  const int64_t sequences = std::max<int64_t>(options_.attention_batch_tokens / tokens, 1);
  const int64_t t = sequences * tokens, kv_bytes = w_.kv_heads * w_.head_dim * act_;
  const int64_t qkv_bytes = t * nq() * act_, q_bytes = t * q() * act_, row_bytes = t * w_.heads * 4;
  const int64_t partial_bytes =
      act_ == 2 ? AttentionPartialsPlanned(t, w_.heads, w_.kv_heads, w_.head_dim) : 0;
  if (!room_->Fits(2 * (ArenaRoundUp(qkv_bytes) + ArenaRoundUp(q_bytes) + ArenaRoundUp(row_bytes)) +
                   partial_bytes)) {
    return false;
  }
  std::byte* qkv = room_->Take(qkv_bytes);
  std::byte* d_qkv = room_->Take(qkv_bytes);
  std::byte* out = room_->Take(q_bytes);
  std::byte* dout = room_->Take(q_bytes);
  auto* lse = reinterpret_cast<float*>(room_->Take(row_bytes));
  auto* delta = reinterpret_cast<float*>(room_->Take(row_bytes));
  SOUP_RETURN_IF_ERROR(FillRandom(qkv, qkv_bytes));
  SOUP_RETURN_IF_ERROR(FillRandom(dout, q_bytes));
  if (partial_bytes > 0) {
    c.scratch.partials = reinterpret_cast<float*>(room_->Take(partial_bytes));
    c.scratch.most_split = AttentionSplitPlanned(t, w_.heads, w_.kv_heads);
  }
  for (int64_t s = 0; s <= sequences; ++s) c.cu.push_back(static_cast<int32_t>(s * tokens));
  const std::byte* k = qkv + q_bytes / t;
  std::byte* dk = d_qkv + q_bytes / t;
  const float scale = static_cast<float>(1.0 / std::sqrt(static_cast<double>(w_.head_dim)));
  c.forward = {qkv,       k, k + kv_bytes, nq(),        out,         lse,  c.cu.data(),
               sequences, t, w_.heads,     w_.kv_heads, w_.head_dim, scale};
  c.backward = {qkv,   k,        k + kv_bytes, nq(),          out,  dout,        lse,
                delta, d_qkv,    dk,           dk + kv_bytes, nq(), c.cu.data(), sequences,
                t,     w_.heads, w_.kv_heads,  w_.head_dim,   scale};
  c.forward_flops = 2.0 * static_cast<double>(tokens * t) * static_cast<double>(q());
  if (!options_.attention_library) return true;
  return UseLibrary(tokens, c);
}

// As a job of such sequences would run. False: the workspace does not fit into the room left.
absl::StatusOr<bool> Measurer::UseLibrary(int64_t tokens, AttentionCase& c) {
  const AttentionWidths widths = {w_.heads, w_.kv_heads, w_.head_dim};
  AttentionShare share = ChooseAttentionShare(
      profile_.attention_library, profile_.device_memory_bytes, c.forward.S * tokens, widths);
  share.batched = BatchedAttentionLength({static_cast<int32_t>(tokens)});
  std::map<int64_t, AttentionPreparation> calls;  // by the number of sequences
  int64_t workspace = 0;
  for (const AttentionCall& block : AttentionCalls(c.cu.data(), c.forward.S, share.batched)) {
    if (!LibraryTakesForward(tokens, share.forward, block.count)) continue;
    AttentionPreparation p;
    p.length_class = AttentionLengthClass(tokens);
    p.exact = FillsItsClass(tokens);
    p.heads = w_.heads;
    p.kv_heads = w_.kv_heads;
    p.head_dim = w_.head_dim;
    p.row_stride = nq();
    p.sequences = block.count;
    if (LibraryTakesBackward(tokens, share.backward, widths, share.workspace_limit, block.count)) {
      p.groups = AttentionGroups(tokens, widths, share.workspace_limit, block.count);
      p.workspace_bytes = AttentionCallBytes(tokens, widths, share.workspace_limit, block.count);
    }
    workspace = std::max(workspace, p.workspace_bytes);
    calls.emplace(block.count, p);
  }
  if (calls.empty()) return true;
  if (!room_->Fits(workspace)) return false;
  std::vector<AttentionPreparation> preparations;
  for (const auto& [count, p] : calls) preparations.push_back(p);
  SOUP_RETURN_IF_ERROR(backend_.PrepareAttention(share.library, preparations));
  c.forward.library = {.least_tokens = share.forward.least,
                       .most_tokens = share.forward.most,
                       .batched = share.batched};
  c.backward.library = {.least_tokens = share.backward.least,
                        .most_tokens = share.backward.most,
                        .workspace_limit = share.workspace_limit,
                        .workspace = room_->Take(workspace),
                        .workspace_bytes = workspace,
                        .batched = share.batched};
  return true;
}

absl::Status Measurer::MeasureAttention() {
  profile_.attention_forward_rates.clear();
  profile_.attention_backward_rates.clear();
  double forward_rate = 0, backward_rate = 0;
  for (const int64_t tokens : options_.attention_tokens) {
    room_->Reset(0);
    AttentionCase c;
    SOUP_ASSIGN_OR_RETURN(const bool fits, MakeAttention(tokens, c));
    if (!fits) break;
    SOUP_ASSIGN_OR_RETURN(const auto forward, Point(c.forward_flops, forward_rate, [&] {
                            backend_.AttentionForward(c.forward);
                            return backend_.status();
                          }));
    if (!forward.has_value()) break;
    SOUP_ASSIGN_OR_RETURN(const auto backward, Point(2.5 * c.forward_flops, backward_rate, [&] {
                            backend_.AttentionBackward(c.backward, c.scratch);
                            return backend_.status();
                          }));
    if (!backward.has_value()) break;
    forward_rate = *forward;
    backward_rate = *backward;
    profile_.attention_forward_rates.push_back({tokens, forward_rate});
    profile_.attention_backward_rates.push_back({tokens, backward_rate});
  }
  if (!profile_.attention_forward_rates.empty()) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("an arena of ", arena_bytes_,
                                                 " bytes does not hold attention over ",
                                                 options_.attention_tokens.front(), " tokens"));
}

bool OnDevice(const Backend& backend) { return backend.weight_type() == DType::kBF16; }

}  // namespace

DecoderWidths TypicalWidths(const Backend& backend) {
  if (OnDevice(backend)) return {4096, 14336, 32, 8, 128};
  return {576, 1536, 9, 3, 64};
}

MeasureOptions QuickMeasure(const Backend& backend) {
  MeasureOptions o;
  if (OnDevice(backend)) {
    o.seconds_limit = 2.5;
    o.point_seconds = 0.02;
    o.warm_seconds = 0.3;
    o.arena_bytes = int64_t{3} << 30;
    o.slab_bytes = 112 << 20;
    // Few: where no profile of algorithms is kept yet, each row count is tuned first.
    o.gemm_rows = {512, 2048, 8192};
    o.attention_tokens = {512, 2048, 4096, 16384};
    o.attention_batch_tokens = 4096;
    return o;
  }
  o.seconds_limit = 0.7;
  o.point_seconds = 0.01;
  o.arena_bytes = 96 << 20;
  o.slab_bytes = 4 << 20;
  o.gemm_rows = {64, 256, 1024};
  o.attention_tokens = {64, 256, 1024};
  o.attention_batch_tokens = 256;
  return o;
}

MeasureOptions ThoroughMeasure(const Backend& backend) {
  MeasureOptions o = QuickMeasure(backend);
  o.seconds_limit = OnDevice(backend) ? 20 : 10;
  o.point_seconds = 0.2;
  o.warm_seconds = OnDevice(backend) ? 1.0 : 0.1;
  if (OnDevice(backend)) o.gemm_rows = {512, 1024, 2048, 4096, 8192, 16384};
  o.attention_library = true;
  return o;
}

absl::Status CheckAttentionLibrary(Backend* backend, MachineProfile* profile) {
  if (profile->attention_library.empty()) return absl::OkStatus();
  // Forward and backward are the library's here, wherever our own kernels stand in for it: the
  // limits leave room for two key-value heads a call (AttentionMakersOf).
  constexpr int64_t kTokens = 8192;
  const AttentionWidths widths = {32, 8, 128};
  const AttentionShare share = ChooseAttentionShare(profile->attention_library,
                                                    profile->device_memory_bytes, kTokens, widths);
  AttentionPreparation p;
  p.length_class = kTokens;
  p.exact = true;
  p.heads = widths.heads;
  p.kv_heads = widths.kv_heads;
  p.head_dim = widths.head_dim;
  p.row_stride = (widths.heads + 2 * widths.kv_heads) * widths.head_dim;
  p.groups = AttentionGroups(kTokens, widths, share.workspace_limit);
  p.workspace_bytes = AttentionCallBytes(kTokens, widths, share.workspace_limit);
  const absl::Status prepared =
      backend->PrepareAttention(profile->attention_library, absl::MakeConstSpan(&p, 1));
  SOUP_RETURN_IF_ERROR(backend->status());
  if (prepared.ok()) return absl::OkStatus();
  SOUP_LOG(kWarn, "device")
      << profile->attention_library << " is here and does not work (" << prepared.message()
      << "): attention by our own kernels alone. Reinstall it, or take it off "
         "the library path";
  profile->attention_library.clear();
  return absl::OkStatus();
}

absl::Status MeasureMachine(Backend* backend, const DecoderWidths& widths,
                            const MeasureOptions& options, MachineProfile* profile) {
  return Measurer(backend, widths, options, profile).Run();
}

}  // namespace soup::engine
