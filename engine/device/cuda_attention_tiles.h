// Attention's tile lists on the device: made on the host once for each cut of rows into sequences,
// kept in a fixed pool, found again by the cut (every layer of a pass asks for the same few). When
// the pool is full the compute stream is waited for and the pool begins anew. Internal to
// engine/device. Not thread-safe.
#ifndef SOUP_ENGINE_DEVICE_CUDA_ATTENTION_TILES_H_
#define SOUP_ENGINE_DEVICE_CUDA_ATTENTION_TILES_H_

#include <cuda_runtime.h>

#include <cstdint>
#include <cstring>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "engine/base/status_macros.h"
#include "engine/device/cuda_handles.h"
#include "kernels/cuda/attention.h"
#include "kernels/cuda/attention_f32.h"

namespace soup::engine {

class CudaAttentionTiles {
 public:
  CudaAttentionTiles() = default;
  // `device_pool` and `pinned_pool`: `bytes` each, aligned to 16.
  CudaAttentionTiles(const kernels::cuda::AttentionDevice& device, std::byte* device_pool,
                     std::byte* pinned_pool, int64_t bytes)
      : device_(device), device_pool_(device_pool), pinned_pool_(pinned_pool), bytes_(bytes) {}

  // The lists of a cut, `cu` in host memory, without the sequences whose flag in `skipped` (empty:
  // none) is set; `stream`: where they will be read. kv_split is as the
  // schedule wants it and partials is null. Errors: ResourceExhausted (a cut larger than the pool),
  // InvalidArgument (a head dimension without a kernel), and those of CUDA.
  absl::StatusOr<kernels::cuda::AttentionTiles> Find(const int32_t* cu, int64_t sequences,
                                                     int64_t heads, int64_t kv_heads,
                                                     int64_t head_dim, int64_t window,
                                                     const std::vector<uint8_t>& skipped,
                                                     cudaStream_t stream) {
    std::string key(reinterpret_cast<const char*>(cu),
                    static_cast<size_t>(sequences + 1) * sizeof(int32_t));
    absl::StrAppend(&key, "/", heads, "/", kv_heads, "/", head_dim, "/", window, "/");
    key.append(skipped.begin(), skipped.end());
    kernels::cuda::AttentionVariant variant;
    variant.window = static_cast<int32_t>(window);
    return Find(std::move(key), head_dim, cu[sequences], stream,
                [&](kernels::cuda::AttentionSchedule* schedule) {
                  return kernels::cuda::MakeAttentionSchedule(
                      device_, cu, sequences, heads, kv_heads, head_dim, variant, schedule,
                      skipped.empty() ? nullptr : skipped.data());
                });
  }

  // The same for the fp32 kernels (kernels/cuda/attention_f32.h).
  absl::StatusOr<kernels::cuda::AttentionTiles> FindF32(const int32_t* cu, int64_t sequences,
                                                        int64_t heads, int64_t kv_heads,
                                                        int64_t head_dim, int64_t window,
                                                        cudaStream_t stream) {
    std::string key(reinterpret_cast<const char*>(cu),
                    static_cast<size_t>(sequences + 1) * sizeof(int32_t));
    absl::StrAppend(&key, "/f32/", heads, "/", kv_heads, "/", head_dim, "/", window);
    kernels::cuda::AttentionVariant variant;
    variant.window = static_cast<int32_t>(window);
    return Find(std::move(key), head_dim, cu[sequences], stream,
                [&](kernels::cuda::AttentionSchedule* schedule) {
                  return kernels::cuda::MakeAttentionF32Schedule(cu, sequences, heads, kv_heads,
                                                                 head_dim, variant, schedule);
                });
  }

 private:
  template <typename Make>
  absl::StatusOr<kernels::cuda::AttentionTiles> Find(std::string key, int64_t head_dim,
                                                     int64_t rows, cudaStream_t stream,
                                                     const Make& make) {
    if (const auto it = known_.find(key); it != known_.end()) return it->second;
    kernels::cuda::AttentionSchedule schedule;
    if (make(&schedule) != cudaSuccess) {
      return absl::InvalidArgumentError(
          absl::StrCat("no attention kernel of this build has head dimension ", head_dim));
    }
    const int64_t count = static_cast<int64_t>(
        schedule.forward.size() + schedule.backward_q.size() + schedule.backward_kv.size());
    const int64_t need = count * static_cast<int64_t>(sizeof(kernels::cuda::AttentionTile));
    if (need > bytes_) {
      return absl::ResourceExhaustedError(absl::StrCat("attention over ", rows, " rows has ", count,
                                                       " tiles, more than their pool holds"));
    }
    if (used_ + need > bytes_) {
      SOUP_RETURN_IF_ERROR(CudaStatus(cudaStreamSynchronize(stream), "attention tiles"));
      known_.clear();
      used_ = 0;
    }
    kernels::cuda::AttentionTiles tiles;
    const int64_t begin = used_;
    tiles.forward = Append(schedule.forward, &tiles.forward_count);
    tiles.backward_q = Append(schedule.backward_q, &tiles.backward_q_count);
    tiles.backward_kv = Append(schedule.backward_kv, &tiles.backward_kv_count);
    tiles.kv_split = schedule.kv_split;
    SOUP_RETURN_IF_ERROR(CudaStatus(
        cudaMemcpyAsync(device_pool_ + begin, pinned_pool_ + begin,
                        static_cast<size_t>(used_ - begin), cudaMemcpyHostToDevice, stream),
        "attention tiles"));
    known_.emplace(std::move(key), tiles);
    return tiles;
  }

  const kernels::cuda::AttentionTile* Append(const std::vector<kernels::cuda::AttentionTile>& list,
                                             int32_t* count) {
    const size_t bytes = list.size() * sizeof(kernels::cuda::AttentionTile);
    if (bytes > 0) std::memcpy(pinned_pool_ + used_, list.data(), bytes);
    const auto* at = reinterpret_cast<const kernels::cuda::AttentionTile*>(device_pool_ + used_);
    used_ += static_cast<int64_t>(bytes);
    *count = static_cast<int32_t>(list.size());
    return at;
  }

  kernels::cuda::AttentionDevice device_;
  std::byte* device_pool_ = nullptr;
  std::byte* pinned_pool_ = nullptr;
  int64_t bytes_ = 0;
  int64_t used_ = 0;
  std::map<std::string, kernels::cuda::AttentionTiles> known_;
};

}  // namespace soup::engine

#endif  // SOUP_ENGINE_DEVICE_CUDA_ATTENTION_TILES_H_
