#include "bench/synthetic_base.h"

#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>
#include <functional>
#include <memory>
#include <thread>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "engine/base/arena_layout.h"
#include "engine/base/dtype.h"
#include "engine/model/slab_contents.h"
#include "kernels/bf16.h"
#include "kernels/nf4.h"
#include "kernels/philox.h"

namespace soup::bench {
namespace {

using engine::BaseFormat;
using engine::MatrixLayout;
using engine::SlabTensor;

// Draws a task writes: large enough to be worth a thread's while, small enough to share out.
constexpr int64_t kTaskBlocks = 1 << 18;

// NF4 codes drawn evenly have this standard deviation before they are scaled by absmax.
constexpr double kNf4CodeDeviation = 0.55;
// absmax of the blocks of a matrix lies within this part of its mean.
constexpr float kAbsmaxSpread = 0.3f;
// Biases are even over [-this, this).
constexpr float kBiasRange = 0.1f;

// Fills the bytes that Philox blocks [begin, end) of a stream stand for. 16 bytes a block.
using Fill = std::function<void(const kernels::PhiloxStream&, int64_t begin, int64_t end)>;
struct Task {
  uint64_t stream;
  int64_t begin, end;
  const Fill* fill;
};

int64_t Elements(const SlabTensor& t) {
  int64_t n = 1;
  for (const int64_t d : t.shape) n *= d;
  return n;
}

// Eight bf16 values a block, even over [-a, a).
Fill Bf16Values(std::byte* dst, int64_t n, float a) {
  auto* out = reinterpret_cast<uint16_t*>(dst);
  return [out, n, a](const kernels::PhiloxStream& random, int64_t begin, int64_t end) {
    for (int64_t b = begin; b < end; ++b) {
      const kernels::PhiloxBlock block = random.Block(static_cast<uint64_t>(b));
      for (int64_t i = 0; i < 8 && b * 8 + i < n; ++i) {
        const uint32_t half = block.v[i / 2] >> (i % 2 * 16) & 0xffffu;
        out[b * 8 + i] = kernels::F32ToBf16((static_cast<float>(half) / 32768.0f - 1.0f) * a);
      }
    }
  };
}

// The normal distribution's quantile at p in (0, 1): bisection of its distribution function.
double NormalQuantile(double p) {
  double low = -9, high = 9;
  for (int i = 0; i < 60; ++i) {
    const double middle = (low + high) / 2;
    (0.5 * std::erfc(-middle / std::sqrt(2.0)) < p ? low : high) = middle;
  }
  return (low + high) / 2;
}

// bf16 values of 2^16 equally probable draws of a normal distribution: up to 4.3 deviations.
std::vector<uint16_t> NormalTable(double deviation) {
  constexpr int kDraws = 1 << 16;
  static const std::vector<float> quantiles = [] {
    std::vector<float> q(kDraws);
    for (int i = 0; i < kDraws / 2; ++i) {  // symmetric
      q[kDraws - 1 - i] = static_cast<float>(-NormalQuantile((i + 0.5) / kDraws));
      q[i] = -q[kDraws - 1 - i];
    }
    return q;
  }();
  std::vector<uint16_t> table(kDraws);
  for (int i = 0; i < kDraws; ++i) {
    table[i] = kernels::F32ToBf16(quantiles[i] * static_cast<float>(deviation));
  }
  return table;
}

// Eight bf16 values a block, normal.
Fill Bf16Normal(std::byte* dst, int64_t n, double deviation) {
  auto* out = reinterpret_cast<uint16_t*>(dst);
  const auto table = std::make_shared<const std::vector<uint16_t>>(NormalTable(deviation));
  return [out, n, table](const kernels::PhiloxStream& random, int64_t begin, int64_t end) {
    for (int64_t b = begin; b < end; ++b) {
      const kernels::PhiloxBlock block = random.Block(static_cast<uint64_t>(b));
      for (int64_t i = 0; i < 8 && b * 8 + i < n; ++i) {
        out[b * 8 + i] = (*table)[block.v[i / 2] >> (i % 2 * 16) & 0xffffu];
      }
    }
  };
}

// 32 values a block, by codes drawn evenly; 64 elements share an absmax.
Fill Nf4Values(std::byte* dst, int64_t n, float absmax) {
  constexpr uint64_t kAbsmaxBlocks = uint64_t{1} << 60;  // of the stream: beyond the codes'
  auto* out = reinterpret_cast<uint16_t*>(dst);
  return [out, n, absmax](const kernels::PhiloxStream& random, int64_t begin, int64_t end) {
    for (int64_t b = begin; b < end; ++b) {
      const kernels::PhiloxBlock codes = random.Block(static_cast<uint64_t>(b));
      const kernels::PhiloxBlock scale = random.Block(kAbsmaxBlocks + static_cast<uint64_t>(b / 2));
      const float even = static_cast<float>(scale.v[0] >> 8) * 0x1p-23f - 1.0f;
      const float a = absmax * (1.0f + kAbsmaxSpread * even);
      for (int64_t i = 0; i < 32 && b * 32 + i < n; ++i) {
        const uint32_t code = codes.v[i / 8] >> (i % 8 * 4) & 15u;
        out[b * 32 + i] = kernels::F32ToBf16(kernels::kNf4Code[code] * a);
      }
    }
  };
}

Fill Bytes(std::byte* dst, int64_t bytes) {
  return [dst, bytes](const kernels::PhiloxStream& random, int64_t begin, int64_t end) {
    for (int64_t b = begin; b < end; ++b) {
      const kernels::PhiloxBlock block = random.Block(static_cast<uint64_t>(b));
      std::memcpy(dst + b * 16, block.v,
                  static_cast<size_t>(std::min<int64_t>(16, bytes - b * 16)));
    }
  };
}

// Four fp32 values a block, even over mean * [1 - spread, 1 + spread).
Fill F32Values(std::byte* dst, int64_t n, float mean) {
  auto* out = reinterpret_cast<float*>(dst);
  return [out, n, mean](const kernels::PhiloxStream& random, int64_t begin, int64_t end) {
    for (int64_t b = begin; b < end; ++b) {
      const kernels::PhiloxBlock block = random.Block(static_cast<uint64_t>(b));
      for (int64_t i = 0; i < 4 && b * 4 + i < n; ++i) {
        const float even = static_cast<float>(block.v[i] >> 8) * 0x1p-23f - 1.0f;
        out[b * 4 + i] = mean * (1.0f + kAbsmaxSpread * even);
      }
    }
  };
}

class Filler {
 public:
  Filler(const engine::ModelSpec& spec, BaseFormat format, WeightValues values)
      : spec_(spec), format_(format), values_(values) {}

  void Slab(int64_t slab, std::byte* data) {
    for (const SlabTensor& t : engine::SlabContents(spec_, format_, slab)) Tensor(t, data);
  }

  void Run(int threads, uint64_t seed) {
    std::vector<Task> tasks;
    for (size_t s = 0; s < parts_.size(); ++s) {
      for (int64_t b = 0; b < parts_[s].blocks; b += kTaskBlocks) {
        tasks.push_back({s, b, std::min(b + kTaskBlocks, parts_[s].blocks), &parts_[s].fill});
      }
    }
    std::atomic<size_t> next{0};
    const auto work = [&] {
      for (size_t i = next.fetch_add(1); i < tasks.size(); i = next.fetch_add(1)) {
        const Task& task = tasks[i];
        (*task.fill)(kernels::PhiloxStream(seed, 0, task.stream), task.begin, task.end);
      }
    };
    std::vector<std::thread> crew;
    for (int i = 1; i < threads; ++i) crew.emplace_back(work);
    work();
    for (std::thread& t : crew) t.join();
  }

 private:
  struct Part {
    int64_t blocks;
    Fill fill;
  };
  void Add(int64_t per_block, int64_t n, Fill fill) {
    parts_.push_back({(n + per_block - 1) / per_block, std::move(fill)});
  }

  void Tensor(const SlabTensor& t, std::byte* slab) {
    const int64_t n = Elements(t);
    if (absl::EndsWith(t.name, ".bias")) {
      Add(8, n, Bf16Values(slab + t.offset, n, kBiasRange));
      return;
    }
    if (t.shape.size() == 1) {  // a norm
      auto* out = reinterpret_cast<uint16_t*>(slab + t.offset);
      std::fill_n(out, n, kernels::F32ToBf16(1.0f));
      return;
    }
    const double deviation = 1.0 / std::sqrt(static_cast<double>(t.shape[1]));
    if (t.is_linear && format_ != BaseFormat::kBf16) {
      Nf4(t.matrix, n, deviation, slab);
      return;
    }
    const int64_t offset = t.is_linear ? t.matrix.data_offset : t.offset;
    if (t.is_linear && values_ == WeightValues::kNf4) {
      const float absmax = static_cast<float>(deviation / kNf4CodeDeviation);
      Add(32, n, Nf4Values(slab + offset, n, absmax));
      return;
    }
    if (values_ == WeightValues::kNormal) {
      Add(8, n, Bf16Normal(slab + offset, n, deviation));
      return;
    }
    Add(8, n, Bf16Values(slab + offset, n, static_cast<float>(std::sqrt(3.0) * deviation)));
  }

  void Nf4(const MatrixLayout& m, int64_t n, double deviation, std::byte* slab) {
    const float absmax = static_cast<float>(deviation / kNf4CodeDeviation);
    Add(16, (n + 1) / 2, Bytes(slab + m.data_offset, (n + 1) / 2));
    if (format_ == BaseFormat::kNf4) {
      Add(4, m.blocks(), F32Values(slab + m.absmax_offset, m.blocks(), absmax));
      return;
    }
    // absmax = nested_code * nested_absmax + offset, the code even over about [-1, 1].
    Add(16, m.blocks(), Bytes(slab + m.absmax_offset, m.blocks()));
    auto* nested = reinterpret_cast<float*>(slab + m.nested_absmax_offset);
    std::fill_n(nested, m.nested_blocks(), absmax * kAbsmaxSpread);
    *reinterpret_cast<float*>(slab + m.offset_offset) = absmax;
  }

  const engine::ModelSpec& spec_;
  const BaseFormat format_;
  const WeightValues values_;
  std::vector<Part> parts_;
};

}  // namespace

const char* WeightValuesName(WeightValues values) {
  switch (values) {
    case WeightValues::kNormal:
      return "normal";
    case WeightValues::kEven:
      return "even";
    case WeightValues::kNf4:
      return "nf4";
  }
  return "";
}

absl::StatusOr<std::unique_ptr<SyntheticBase>> SyntheticBase::Make(const engine::ModelSpec& spec,
                                                                   BaseFormat format, int threads,
                                                                   WeightValues values,
                                                                   uint64_t seed) {
  std::unique_ptr<SyntheticBase> made(new SyntheticBase());
  made->base_.spec = spec;
  made->base_.format = format;
  const int64_t slabs = engine::SlabCount(spec);
  for (int64_t s = 0; s < slabs; ++s) {
    made->bytes_ += engine::ArenaRoundUp(engine::SlabBytes(spec, format, s));
  }
  void* data = mmap(nullptr, static_cast<size_t>(made->bytes_), PROT_READ | PROT_WRITE,
                    MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (data == MAP_FAILED) {
    return absl::ResourceExhaustedError(
        absl::StrCat("a synthetic base of ", made->bytes_, " bytes: ", std::strerror(errno)));
  }
  made->data_ = static_cast<std::byte*>(data);
  madvise(data, static_cast<size_t>(made->bytes_), MADV_HUGEPAGE);  // Advice only.
  Filler filler(spec, format, values);
  int64_t at = 0;
  for (int64_t s = 0; s < slabs; ++s) {
    const int64_t bytes = engine::SlabBytes(spec, format, s);
    made->base_.slabs.emplace_back(made->data_ + at, static_cast<size_t>(bytes));
    filler.Slab(s, made->data_ + at);
    at += engine::ArenaRoundUp(bytes);
  }
  filler.Run(threads, seed);
  return made;
}

SyntheticBase::~SyntheticBase() {
  if (data_ != nullptr) munmap(data_, static_cast<size_t>(bytes_));
}

}  // namespace soup::bench
