#include "engine/data/value.h"

#include <algorithm>

#include "absl/strings/str_cat.h"

namespace soup::engine {
namespace {

// Up to this many keys a search beats an index.
constexpr size_t kIndexedFrom = 16;

absl::Status TooDeep() {
  return absl::InvalidArgumentError(
      absl::StrCat("values are nested deeper than ", Value::kMaxDepth));
}

}  // namespace

Value Value::Undefined(std::string hint) {
  return Value(Data(SharedHint{std::make_shared<const std::string>(std::move(hint))}));
}

Value Value::String(std::string s) {
  return Value(Data(SharedString{std::make_shared<const std::string>(std::move(s))}));
}

absl::StatusOr<Value> Value::List(std::vector<Value> items, bool tuple) {
  auto data = std::make_shared<ListData>();
  for (const Value& v : items) data->depth = std::max(data->depth, v.depth() + 1);
  if (data->depth > kMaxDepth) return TooDeep();
  data->items = std::move(items);
  data->tuple = tuple;
  return Value(Data(std::shared_ptr<const ListData>(std::move(data))));
}

absl::StatusOr<Value> Value::Group(Value key, Value items) {
  auto data = std::make_shared<ListData>();
  data->depth = 1 + std::max(key.depth(), items.depth());
  if (data->depth > kMaxDepth) return TooDeep();
  data->items = {std::move(key), std::move(items)};
  data->tuple = data->group = true;
  return Value(Data(std::shared_ptr<const ListData>(std::move(data))));
}

absl::StatusOr<Value> Value::Dict(Items items) {
  auto data = std::make_shared<DictData>();
  absl::flat_hash_map<std::string, size_t> index;
  for (auto& [key, value] : items) {
    data->depth = std::max(data->depth, value.depth() + 1);
    const auto [it, fresh] = index.emplace(key, data->items.size());
    if (fresh) {
      data->items.emplace_back(std::move(key), std::move(value));
    } else {
      data->items[it->second].second = std::move(value);
    }
  }
  if (data->depth > kMaxDepth) return TooDeep();
  if (data->items.size() >= kIndexedFrom) data->index = std::move(index);
  return Value(Data(std::shared_ptr<const DictData>(std::move(data))));
}

bool Value::is_tuple() const {
  return is_list() && std::get<std::shared_ptr<const ListData>>(data_)->tuple;
}

bool Value::is_group() const {
  return is_list() && std::get<std::shared_ptr<const ListData>>(data_)->group;
}

const std::vector<Value>& Value::AsList() const {
  return std::get<std::shared_ptr<const ListData>>(data_)->items;
}

const Value::Items& Value::AsDict() const {
  return std::get<std::shared_ptr<const DictData>>(data_)->items;
}

const Value* Value::Find(absl::string_view key) const {
  if (!is_dict()) return nullptr;
  const DictData& data = *std::get<std::shared_ptr<const DictData>>(data_);
  if (!data.index.empty()) {
    const auto it = data.index.find(key);
    return it == data.index.end() ? nullptr : &data.items[it->second].second;
  }
  for (const auto& [name, value] : data.items)
    if (absl::string_view(name) == key) return &value;
  return nullptr;
}

int Value::depth() const {
  if (is_list()) return std::get<std::shared_ptr<const ListData>>(data_)->depth;
  if (is_dict()) return std::get<std::shared_ptr<const DictData>>(data_)->depth;
  return 0;
}

const char* Value::KindName() const {
  switch (kind()) {
    case Kind::kUndefined:
      return "undefined";
    case Kind::kNone:
      return "null";
    case Kind::kBool:
      return "a boolean";
    case Kind::kInt:
      return "an integer";
    case Kind::kFloat:
      return "a number";
    case Kind::kString:
      return "a string";
    case Kind::kList:
      return "a list";
    case Kind::kDict:
      return "an object";
    case Kind::kObject:
      return "a function or namespace";
  }
  return "?";
}

}  // namespace soup::engine
