#include "engine/device/arena.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "engine/base/log.h"

namespace soup::engine {
namespace {

std::string Describe(const BufferPlacement& b) {
  return absl::StrCat("'", b.name, "' [", b.offset, ", ", b.offset + b.bytes, ")");
}

absl::Status CheckPlacement(const BufferPlacement& b, const ArenaLayout& layout) {
  if (b.offset < 0 || b.bytes < 0 || b.offset % kArenaAlignment != 0 ||
      b.bytes % kArenaAlignment != 0 || b.bytes > layout.bytes ||
      b.offset > layout.bytes - b.bytes) {
    return absl::InvalidArgumentError(absl::StrCat(
        "buffer ", Describe(b), " is unaligned or outside its layout of ", layout.bytes, " bytes"));
  }
  return absl::OkStatus();
}

}  // namespace

ArenaBuffer& ArenaBuffer::operator=(ArenaBuffer&& other) noexcept {
  if (this == &other) return *this;
  Reset();
  arena_ = std::exchange(other.arena_, nullptr);
  token_ = std::exchange(other.token_, 0);
  data_ = std::exchange(other.data_, nullptr);
  bytes_ = std::exchange(other.bytes_, 0);
  return *this;
}

void ArenaBuffer::Reset() {
  if (arena_ == nullptr) return;
  arena_->Release(token_);
  arena_ = nullptr;
  data_ = nullptr;
  bytes_ = 0;
}

Arena::Arena(std::byte* base, int64_t bytes, std::function<void()> free_memory,
             std::function<void(std::byte*, int64_t)> poison)
    : base_(base), bytes_(bytes), free_memory_(std::move(free_memory)), poison_(std::move(poison)) {
  SOUP_CHECK(reinterpret_cast<uintptr_t>(base) % kArenaAlignment == 0);
}

Arena::~Arena() {
  SOUP_CHECK(tokens_.empty());  // A buffer would dangle.
  if (free_memory_) free_memory_();
}

absl::Status Arena::Bind(ArenaLayout layout) {
  if (layout.bytes > bytes_) {
    return absl::InvalidArgumentError(
        absl::StrCat("a layout of ", layout.bytes, " bytes does not fit the arena of ", bytes_));
  }
  absl::flat_hash_map<std::string, int32_t> index;
  for (size_t i = 0; i < layout.buffers.size(); ++i) {
    const absl::Status status = CheckPlacement(layout.buffers[i], layout);
    if (!status.ok()) return status;
    if (!index.emplace(layout.buffers[i].name, static_cast<int32_t>(i)).second) {
      return absl::InvalidArgumentError(
          absl::StrCat("the layout names buffer '", layout.buffers[i].name, "' twice"));
    }
  }
  std::map<int64_t, int32_t> tokens;
  for (const auto& [token, old_index] : tokens_) {
    const BufferPlacement& old = layout_.buffers[static_cast<size_t>(old_index)];
    const auto it = index.find(old.name);
    if (it == index.end() || layout.buffers[static_cast<size_t>(it->second)].offset != old.offset ||
        layout.buffers[static_cast<size_t>(it->second)].bytes != old.bytes) {
      return absl::FailedPreconditionError(
          absl::StrCat("buffer ", Describe(old), " is in use and has no such place in the next ",
                       "pass's layout"));
    }
    tokens.emplace(token, it->second);
  }
  layout_ = std::move(layout);
  index_ = std::move(index);
  tokens_ = std::move(tokens);
  in_use_.assign(layout_.buffers.size(), false);
  live_.clear();
  high_water_ = 0;
  for (const auto& [token, i] : tokens_) {
    const BufferPlacement& b = layout_.buffers[static_cast<size_t>(i)];
    in_use_[static_cast<size_t>(i)] = true;
    if (b.bytes > 0) live_.emplace(b.offset, i);
    high_water_ = std::max(high_water_, b.offset + b.bytes);
  }
  return absl::OkStatus();
}

absl::StatusOr<ArenaBuffer> Arena::Take(absl::string_view name) {
  const auto it = index_.find(std::string(name));
  return Take(name,
              it == index_.end() ? 0 : layout_.buffers[static_cast<size_t>(it->second)].bytes);
}

absl::StatusOr<ArenaBuffer> Arena::Take(absl::string_view name, int64_t bytes) {
  const auto found = index_.find(std::string(name));
  if (found == index_.end()) {
    return absl::NotFoundError(
        absl::StrCat("the plan of this pass has no buffer '", name, "' (", bytes, " bytes)"));
  }
  const int32_t index = found->second;
  const BufferPlacement& b = layout_.buffers[static_cast<size_t>(index)];
  if (bytes < 0 || bytes > b.bytes) {
    return absl::InvalidArgumentError(absl::StrCat("buffer '", name, "' is planned with ", b.bytes,
                                                   " bytes and was asked for with ", bytes));
  }
  if (in_use_[static_cast<size_t>(index)]) {
    return absl::FailedPreconditionError(absl::StrCat("buffer ", Describe(b), " is in use"));
  }
  if (b.bytes > 0) {
    // Live buffers do not meet, so only the neighbours can.
    auto neighbour = live_.lower_bound(b.offset);
    const BufferPlacement* meets = nullptr;
    if (neighbour != live_.end() && neighbour->first < b.offset + b.bytes) {
      meets = &layout_.buffers[static_cast<size_t>(neighbour->second)];
    } else if (neighbour != live_.begin()) {
      const BufferPlacement& below = layout_.buffers[static_cast<size_t>((--neighbour)->second)];
      if (below.offset + below.bytes > b.offset) meets = &below;
    }
    if (meets != nullptr) {
      return absl::FailedPreconditionError(absl::StrCat(
          "buffer ", Describe(b), " shares bytes with ", Describe(*meets), ", which is in use"));
    }
    live_.emplace(b.offset, index);
  }
  in_use_[static_cast<size_t>(index)] = true;
  high_water_ = std::max(high_water_, b.offset + ArenaRoundUp(bytes));
  if (poison_) poison_(base_ + b.offset, b.bytes);

  ArenaBuffer buffer;
  buffer.arena_ = this;
  buffer.token_ = next_token_++;
  buffer.data_ = base_ + b.offset;
  buffer.bytes_ = bytes;
  tokens_.emplace(buffer.token_, index);
  return buffer;
}

void Arena::Release(int64_t token) {
  const auto it = tokens_.find(token);
  SOUP_CHECK(it != tokens_.end());
  const BufferPlacement& b = layout_.buffers[static_cast<size_t>(it->second)];
  in_use_[static_cast<size_t>(it->second)] = false;
  if (b.bytes > 0) live_.erase(b.offset);
  tokens_.erase(it);
}

}  // namespace soup::engine
