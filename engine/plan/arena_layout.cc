#include "engine/plan/arena_layout.h"

#include <algorithm>
#include <numeric>
#include <unordered_set>

#include "engine/base/log.h"

namespace soup::engine {
namespace {

// Searching costs at most this many comparisons of buffers beyond the fixed orders.
constexpr int64_t kSearchBudget = 4'000'000;
constexpr int kSearchRounds = 64;

// A request without its strings.
struct Item {
  int64_t bytes = 0;  // rounded
  int32_t first = 0;
  int32_t last = 0;
  int64_t length() const { return int64_t{last} - first; }
};

struct Packing {
  std::vector<int64_t> offsets;
  int64_t bytes = 0;
};

bool Meet(const Item& a, const Item& b) { return a.first <= b.last && b.first <= a.last; }

// Places the items in the given order, each at the lowest offset at which it meets no placed one.
Packing LowestFit(const std::vector<Item>& items, const std::vector<int32_t>& order) {
  Packing packing;
  packing.offsets.assign(items.size(), 0);
  std::vector<int32_t> by_offset;  // placed so far
  by_offset.reserve(items.size());
  for (int32_t index : order) {
    const Item& item = items[static_cast<size_t>(index)];
    int64_t at = 0;
    for (int32_t other : by_offset) {
      if (!Meet(item, items[static_cast<size_t>(other)])) continue;
      const int64_t other_at = packing.offsets[static_cast<size_t>(other)];
      if (at + item.bytes <= other_at) break;
      at = std::max(at, other_at + items[static_cast<size_t>(other)].bytes);
    }
    packing.offsets[static_cast<size_t>(index)] = at;
    packing.bytes = std::max(packing.bytes, at + item.bytes);
    const auto behind = std::upper_bound(by_offset.begin(), by_offset.end(), at,
                                         [&packing](int64_t value, int32_t i) {
                                           return value < packing.offsets[static_cast<size_t>(i)];
                                         });
    by_offset.insert(behind, index);
  }
  return packing;
}

int64_t LowerBound(const std::vector<Item>& items) {
  std::vector<std::pair<int64_t, int64_t>> changes;  // time, bytes; frees sort before takes
  for (const Item& item : items) {
    changes.emplace_back(item.first, item.bytes);
    changes.emplace_back(int64_t{item.last} + 1, -item.bytes);
  }
  std::sort(changes.begin(), changes.end());
  int64_t live = 0, most = 0;
  for (const auto& [time, bytes] : changes) most = std::max(most, live += bytes);
  return most;
}

// Offsets for all items, as near to the lower bound as the orders and the search come.
class Packer {
 public:
  explicit Packer(const std::vector<Item>& items) : items_(items), bound_(LowerBound(items)) {}

  Packing Pack() {
    // Nested lifetimes (a pass is nearly so): exact.
    Try([this](int32_t a, int32_t b) {
      return Compare(At(b).length(), At(a).length(), At(b).bytes, At(a).bytes);
    });
    Try([this](int32_t a, int32_t b) {
      return Compare(At(b).bytes, At(a).bytes, At(b).length(), At(a).length());
    });
    Try([this](int32_t a, int32_t b) {
      return Compare(At(b).bytes * (At(b).length() + 1), At(a).bytes * (At(a).length() + 1),
                     At(a).first, At(b).first);
    });
    Try([this](int32_t a, int32_t b) {
      return Compare(At(a).first, At(b).first, At(b).bytes, At(a).bytes);
    });
    Try([this](int32_t a, int32_t b) {
      return Compare(At(b).last, At(a).last, At(b).bytes, At(a).bytes);
    });
    Improve();
    return best_;
  }

 private:
  const Item& At(int32_t i) const { return items_[static_cast<size_t>(i)]; }
  bool Done() const { return tried_ && best_.bytes == bound_; }

  static int Compare(int64_t a1, int64_t b1, int64_t a2, int64_t b2) {
    if (a1 != b1) return a1 < b1 ? -1 : 1;
    if (a2 != b2) return a2 < b2 ? -1 : 1;
    return 0;
  }

  template <typename Comparison>
  void Try(const Comparison& comparison) {
    if (Done()) return;
    std::vector<int32_t> order(items_.size());
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(),
                     [&comparison](int32_t a, int32_t b) { return comparison(a, b) < 0; });
    Packing packing = LowestFit(items_, order);
    Keep(std::move(packing), std::move(order));
  }

  void Keep(Packing packing, std::vector<int32_t> order) {
    if (tried_ && packing.bytes >= best_.bytes) return;
    tried_ = true;
    best_ = std::move(packing);
    best_order_ = std::move(order);
  }

  // Whatever reaches above the lower bound came too late: place it first, and try again.
  void Improve() {
    const int64_t n = static_cast<int64_t>(items_.size());
    const int64_t rounds =
        std::min<int64_t>(kSearchRounds, kSearchBudget / std::max<int64_t>(1, n * n));
    std::vector<int32_t> order = best_order_;
    Packing packing = best_;
    for (int64_t round = 0; round < rounds && !Done(); ++round) {
      std::stable_partition(order.begin(), order.end(), [&](int32_t i) {
        return packing.offsets[static_cast<size_t>(i)] + At(i).bytes > bound_;
      });
      packing = LowestFit(items_, order);
      Keep(packing, order);
    }
  }

  const std::vector<Item>& items_;
  const int64_t bound_;
  bool tried_ = false;
  Packing best_;
  std::vector<int32_t> best_order_;
};

Item MakeItem(const BufferRequest& request) {
  SOUP_CHECK(request.bytes >= 0);
  SOUP_CHECK(request.first <= request.last);
  return Item{ArenaRoundUp(request.bytes), request.first, request.last};
}

}  // namespace

int64_t ArenaLowerBound(const std::vector<BufferRequest>& requests) {
  std::vector<Item> items;
  for (const BufferRequest& request : requests) items.push_back(MakeItem(request));
  return LowerBound(items);
}

ArenaLayout LayOutArena(const std::vector<BufferRequest>& requests) {
  ArenaLayout layout;
  layout.buffers.reserve(requests.size());
  std::unordered_set<std::string> names;
  Item all{0, 0, 0};
  for (const BufferRequest& request : requests) {
    SOUP_CHECK(names.insert(request.name).second);
    const Item item = MakeItem(request);
    layout.buffers.push_back({request.name, request.what, 0, item.bytes, item.first, item.last});
    const bool only = layout.buffers.size() == 1;
    all.first = only ? item.first : std::min(all.first, item.first);
    all.last = only ? item.last : std::max(all.last, item.last);
  }

  // The bottom: buffers that live throughout, in request order.
  int64_t bottom = 0;
  std::vector<Item> items;
  std::vector<size_t> index;
  for (size_t i = 0; i < layout.buffers.size(); ++i) {
    BufferPlacement& buffer = layout.buffers[i];
    if (buffer.bytes == 0) continue;
    if (buffer.first == all.first && buffer.last == all.last) {
      buffer.offset = bottom;
      bottom += buffer.bytes;
    } else {
      items.push_back({buffer.bytes, buffer.first, buffer.last});
      index.push_back(i);
    }
  }
  layout.bytes = bottom;
  if (items.empty()) return layout;
  const Packing packing = Packer(items).Pack();
  for (size_t i = 0; i < items.size(); ++i) {
    layout.buffers[index[i]].offset = bottom + packing.offsets[i];
  }
  layout.bytes = bottom + packing.bytes;
  return layout;
}

}  // namespace soup::engine
