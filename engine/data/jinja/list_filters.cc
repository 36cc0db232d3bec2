#include "engine/data/jinja/list_filters.h"

#include <algorithm>
#include <iterator>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "engine/base/status_macros.h"
#include "engine/data/jinja/filters.h"
#include "engine/data/jinja/python_format.h"
#include "engine/data/jinja/text_ops.h"
#include "engine/data/jinja/value_ops.h"
#include "engine/data/jinja/value_tests.h"

namespace soup::engine::jinja {
namespace {

constexpr int64_t kMaxBatch = 100'000;

// item.a.0.b: an attribute's path, as jinja2's make_attrgetter.
absl::StatusOr<Value> Attribute(Value item, const Value& path, Budget* budget) {
  if (path.is_int()) return Item(item, path, budget);
  if (!path.is_string()) return TypeError("an attribute's name", path);
  for (absl::string_view part : absl::StrSplit(path.AsString(), '.')) {
    int64_t index;
    const Value key =
        absl::SimpleAtoi(part, &index) ? Value::Int(index) : Value::String(std::string(part));
    SOUP_ASSIGN_OR_RETURN(item, Item(item, key, budget));
  }
  return item;
}

// What sorting and comparing look at: the attribute, without case unless it is asked for.
absl::StatusOr<Value> SortKey(const Value& item, const BoundArgs& bound, Budget* budget) {
  Value key = item;
  const Value* attribute = bound.Find("attribute");
  if (attribute != nullptr && !attribute->is_none()) {
    SOUP_ASSIGN_OR_RETURN(key, Attribute(item, *attribute, budget));
  }
  if (key.is_string() && !bound.FlagOr("case_sensitive", false)) {
    SOUP_RETURN_IF_ERROR(budget->Bytes(static_cast<int64_t>(key.AsString().size())));
    return Value::String(Lower(key.AsString()));
  }
  return key;
}

absl::StatusOr<Value> List(const Value& v, const CallArgs& args, Budget* budget) {
  SOUP_RETURN_IF_ERROR(BoundArgs::Bind("list", {}, args).status());
  SOUP_ASSIGN_OR_RETURN(std::vector<Value> items, Elements(v, budget));
  return Value::List(std::move(items));
}

absl::StatusOr<Value> First(const Value& v, const CallArgs& args, Budget* budget) {
  SOUP_RETURN_IF_ERROR(BoundArgs::Bind("first", {}, args).status());
  SOUP_ASSIGN_OR_RETURN(const std::vector<Value> items, Elements(v, budget));
  return items.empty() ? Value::Undefined("first item") : items.front();
}

absl::StatusOr<Value> Last(const Value& v, const CallArgs& args, Budget* budget) {
  SOUP_RETURN_IF_ERROR(BoundArgs::Bind("last", {}, args).status());
  SOUP_ASSIGN_OR_RETURN(const std::vector<Value> items, Elements(v, budget));
  return items.empty() ? Value::Undefined("last item") : items.back();
}

absl::StatusOr<Value> Reverse(const Value& v, const CallArgs& args, Budget* budget) {
  SOUP_RETURN_IF_ERROR(BoundArgs::Bind("reverse", {}, args).status());
  if (v.is_string()) return Slice(v, Value::None(), Value::None(), Value::Int(-1), budget);
  SOUP_ASSIGN_OR_RETURN(std::vector<Value> items, Elements(v, budget));
  std::reverse(items.begin(), items.end());
  return Value::List(std::move(items));
}

absl::StatusOr<Value> Join(const Value& v, const CallArgs& args, Budget* budget) {
  SOUP_ASSIGN_OR_RETURN(const BoundArgs bound, BoundArgs::Bind("join", {"d", "attribute"}, args));
  SOUP_ASSIGN_OR_RETURN(const std::vector<Value> items, Elements(v, budget));
  std::string separator;
  if (const Value* d = bound.Find("d")) {
    SOUP_ASSIGN_OR_RETURN(separator, ToText(*d, budget));
  }
  const Value* attribute = bound.Find("attribute");
  std::string out;
  for (size_t i = 0; i < items.size(); ++i) {
    Value item = items[i];
    if (attribute != nullptr && !attribute->is_none()) {
      SOUP_ASSIGN_OR_RETURN(item, Attribute(item, *attribute, budget));
    }
    SOUP_ASSIGN_OR_RETURN(const std::string text, ToText(item, budget));
    SOUP_RETURN_IF_ERROR(budget->Bytes(static_cast<int64_t>(separator.size())));
    absl::StrAppend(&out, i > 0 ? separator : "", text);
  }
  return Value::String(std::move(out));
}

absl::StatusOr<Value> Items(const Value& v, const CallArgs& args, Budget* budget) {
  SOUP_RETURN_IF_ERROR(BoundArgs::Bind("items", {}, args).status());
  std::vector<Value> out;
  if (v.is_undefined()) return Value::List({});
  if (!v.is_dict()) return TypeError("'items'", v);
  SOUP_RETURN_IF_ERROR(budget->Steps(static_cast<int64_t>(v.AsDict().size())));
  for (const auto& [key, value] : v.AsDict()) {
    SOUP_ASSIGN_OR_RETURN(Value pair, Value::List({Value::String(key), value}, /*tuple=*/true));
    out.push_back(std::move(pair));
  }
  return Value::List(std::move(out));
}

// map(attribute=..., default=...) or map('filter', ...).
absl::StatusOr<Value> Map(const Value& v, const CallArgs& args, Budget* budget) {
  if (!Truth(v)) return Value::List({});  // as jinja2: none and 0 are no items
  SOUP_ASSIGN_OR_RETURN(const std::vector<Value> items, Elements(v, budget));
  std::vector<Value> out;
  if (args.positional.empty()) {
    SOUP_ASSIGN_OR_RETURN(const BoundArgs bound,
                          BoundArgs::Bind("map", {"attribute", "default"}, args));
    SOUP_ASSIGN_OR_RETURN(const Value attribute, bound.Required("attribute"));
    const Value* otherwise = bound.Find("default");
    for (const Value& item : items) {
      SOUP_ASSIGN_OR_RETURN(Value mapped, Attribute(item, attribute, budget));
      if (mapped.is_undefined() && otherwise != nullptr) mapped = *otherwise;
      out.push_back(std::move(mapped));
    }
    return Value::List(std::move(out));
  }
  if (!args.positional[0].is_string()) return TypeError("'map'", args.positional[0]);
  const std::string& filter = args.positional[0].AsString();
  if (!IsFilter(filter))
    return absl::InvalidArgumentError(absl::StrCat("filter '", filter, "' is not supported"));
  CallArgs rest = args;
  rest.positional.erase(rest.positional.begin());
  for (const Value& item : items) {
    SOUP_ASSIGN_OR_RETURN(Value mapped, ApplyFilter(filter, item, rest, budget));
    out.push_back(std::move(mapped));
  }
  return Value::List(std::move(out));
}

// select, reject, selectattr and rejectattr: by a test, or by truth.
absl::StatusOr<Value> Choose(const Value& v, const CallArgs& args, bool by_attribute, bool keep,
                             Budget* budget) {
  if (!args.named.empty())
    return absl::InvalidArgumentError("named arguments of a test are not supported here");
  CallArgs rest = args;
  Value attribute;
  if (by_attribute) {
    if (rest.positional.empty())
      return absl::InvalidArgumentError("'selectattr' and 'rejectattr' need an attribute");
    attribute = rest.positional[0];
    rest.positional.erase(rest.positional.begin());
  }
  std::string test;
  if (!rest.positional.empty()) {
    if (!rest.positional[0].is_string()) return TypeError("a test's name", rest.positional[0]);
    test = rest.positional[0].AsString();
    if (!IsTest(test))
      return absl::InvalidArgumentError(absl::StrCat("test '", test, "' is not supported"));
    rest.positional.erase(rest.positional.begin());
  }
  if (!Truth(v)) return Value::List({});  // as jinja2: none and 0 are no items
  SOUP_ASSIGN_OR_RETURN(const std::vector<Value> items, Elements(v, budget));
  std::vector<Value> out;
  for (const Value& item : items) {
    Value looked_at = item;
    if (by_attribute) {
      SOUP_ASSIGN_OR_RETURN(looked_at, Attribute(item, attribute, budget));
    }
    bool holds = Truth(looked_at);
    if (!test.empty()) {
      SOUP_ASSIGN_OR_RETURN(holds, ApplyTest(test, looked_at, rest, budget));
    }
    if (holds == keep) out.push_back(item);
  }
  return Value::List(std::move(out));
}

template <bool kByAttribute, bool kKeep>
absl::StatusOr<Value> ChooseBy(const Value& v, const CallArgs& args, Budget* budget) {
  return Choose(v, args, kByAttribute, kKeep, budget);
}

// A stable sort that stops at the first error of a comparison. `wrapped`: keys are compared as
// parts of a list (jinja2's sort does so): equal ones are never put in order.
absl::StatusOr<std::vector<Value>> Sorted(std::vector<std::pair<Value, Value>> keyed, bool reverse,
                                          bool wrapped, Budget* budget) {
  absl::Status status;
  std::vector<size_t> order(keyed.size());
  for (size_t i = 0; i < order.size(); ++i) order[i] = i;
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) {
    if (!status.ok()) return false;
    if (wrapped) {  // so that two undefined ones are no error
      const auto same = Equal(keyed[a].first, keyed[b].first, budget);
      if (same.ok() && *same) return false;
    }
    const auto compared = Order(keyed[a].first, keyed[b].first, budget);
    if (!compared.ok()) {
      status = compared.status();
      return false;
    }
    return reverse ? *compared > 0 : *compared < 0;
  });
  SOUP_RETURN_IF_ERROR(status);
  std::vector<Value> out;
  for (size_t i : order) out.push_back(keyed[i].second);
  return out;
}

absl::StatusOr<Value> Sort(const Value& v, const CallArgs& args, Budget* budget) {
  SOUP_ASSIGN_OR_RETURN(const BoundArgs bound,
                        BoundArgs::Bind("sort", {"reverse", "case_sensitive", "attribute"}, args));
  SOUP_ASSIGN_OR_RETURN(const std::vector<Value> items, Elements(v, budget));
  std::vector<std::pair<Value, Value>> keyed;
  for (const Value& item : items) {
    SOUP_ASSIGN_OR_RETURN(Value key, SortKey(item, bound, budget));
    keyed.emplace_back(std::move(key), item);
  }
  SOUP_ASSIGN_OR_RETURN(
      std::vector<Value> out,
      Sorted(std::move(keyed), bound.FlagOr("reverse", false), /*wrapped=*/true, budget));
  return Value::List(std::move(out));
}

absl::StatusOr<Value> DictSort(const Value& v, const CallArgs& args, Budget* budget) {
  SOUP_ASSIGN_OR_RETURN(const BoundArgs bound,
                        BoundArgs::Bind("dictsort", {"case_sensitive", "by", "reverse"}, args));
  SOUP_ASSIGN_OR_RETURN(const std::string by, bound.TextOr("by", "key"));
  if (by != "key" && by != "value")
    return absl::InvalidArgumentError("'dictsort' sorts by 'key' or 'value'");
  if (!v.is_dict()) return TypeError("'dictsort'", v);
  SOUP_ASSIGN_OR_RETURN(const Value items, Items(v, {}, budget));
  std::vector<std::pair<Value, Value>> keyed;
  for (const Value& item : items.AsList()) {
    SOUP_ASSIGN_OR_RETURN(Value key, SortKey(item.AsList()[by == "key" ? 0 : 1], bound, budget));
    keyed.emplace_back(std::move(key), item);
  }
  SOUP_ASSIGN_OR_RETURN(
      std::vector<Value> out,
      Sorted(std::move(keyed), bound.FlagOr("reverse", false), /*wrapped=*/false, budget));
  return Value::List(std::move(out));
}

absl::StatusOr<Value> Unique(const Value& v, const CallArgs& args, Budget* budget) {
  SOUP_ASSIGN_OR_RETURN(const BoundArgs bound,
                        BoundArgs::Bind("unique", {"case_sensitive", "attribute"}, args));
  SOUP_ASSIGN_OR_RETURN(const std::vector<Value> items, Elements(v, budget));
  std::vector<Value> seen, out;
  for (const Value& item : items) {
    SOUP_ASSIGN_OR_RETURN(Value key, SortKey(item, bound, budget));
    if (!IsHashable(key)) return TypeError("'unique'", key);
    bool known = false;
    for (size_t i = 0; i < seen.size() && !known; ++i) {
      SOUP_ASSIGN_OR_RETURN(known, Equal(seen[i], key, budget));
    }
    if (known) continue;
    seen.push_back(std::move(key));
    out.push_back(item);
  }
  return Value::List(std::move(out));
}

absl::StatusOr<Value> Extreme(const Value& v, const CallArgs& args, bool largest, Budget* budget) {
  SOUP_ASSIGN_OR_RETURN(
      const BoundArgs bound,
      BoundArgs::Bind(largest ? "max" : "min", {"case_sensitive", "attribute"}, args));
  SOUP_ASSIGN_OR_RETURN(const std::vector<Value> items, Elements(v, budget));
  if (items.empty()) return Value::Undefined("item of an empty list");
  Value best, best_key;
  for (size_t i = 0; i < items.size(); ++i) {
    SOUP_ASSIGN_OR_RETURN(Value key, SortKey(items[i], bound, budget));
    if (i > 0) {
      SOUP_ASSIGN_OR_RETURN(const int order, Order(key, best_key, budget));
      if (largest ? order <= 0 : order >= 0) continue;
    }
    best = items[i];
    best_key = std::move(key);
  }
  return best;
}

absl::StatusOr<Value> Min(const Value& v, const CallArgs& args, Budget* budget) {
  return Extreme(v, args, false, budget);
}
absl::StatusOr<Value> Max(const Value& v, const CallArgs& args, Budget* budget) {
  return Extreme(v, args, true, budget);
}

absl::StatusOr<Value> Sum(const Value& v, const CallArgs& args, Budget* budget) {
  SOUP_ASSIGN_OR_RETURN(const BoundArgs bound,
                        BoundArgs::Bind("sum", {"attribute", "start"}, args));
  SOUP_ASSIGN_OR_RETURN(const std::vector<Value> items, Elements(v, budget));
  const Value* start = bound.Find("start");
  const Value* attribute = bound.Find("attribute");
  Value total = start != nullptr ? *start : Value::Int(0);
  for (Value item : items) {
    if (attribute != nullptr && !attribute->is_none()) {
      SOUP_ASSIGN_OR_RETURN(item, Attribute(item, *attribute, budget));
    }
    SOUP_ASSIGN_OR_RETURN(total, Arithmetic("+", total, item, budget));
  }
  return total;
}

absl::StatusOr<Value> Batch(const Value& v, const CallArgs& args, Budget* budget) {
  SOUP_ASSIGN_OR_RETURN(const BoundArgs bound,
                        BoundArgs::Bind("batch", {"linecount", "fill_with"}, args));
  SOUP_RETURN_IF_ERROR(bound.Required("linecount").status());
  SOUP_ASSIGN_OR_RETURN(const int64_t count, bound.IntOr("linecount", 0));
  if (count < 1 || count > kMaxBatch)
    return absl::InvalidArgumentError("'batch' by such a number is not supported");
  SOUP_ASSIGN_OR_RETURN(const std::vector<Value> items, Elements(v, budget));
  const Value* fill = bound.Find("fill_with");
  std::vector<Value> out, row;
  const auto flush = [&]() -> absl::Status {
    SOUP_ASSIGN_OR_RETURN(Value list, Value::List(std::move(row)));
    out.push_back(std::move(list));
    row.clear();
    return absl::OkStatus();
  };
  for (const Value& item : items) {
    if (static_cast<int64_t>(row.size()) == count) SOUP_RETURN_IF_ERROR(flush());
    row.push_back(item);
  }
  if (row.empty()) return Value::List(std::move(out));
  if (fill != nullptr && !fill->is_none()) row.resize(static_cast<size_t>(count), *fill);
  SOUP_RETURN_IF_ERROR(flush());
  return Value::List(std::move(out));
}

absl::StatusOr<Value> SliceFilter(const Value& v, const CallArgs& args, Budget* budget) {
  SOUP_ASSIGN_OR_RETURN(const BoundArgs bound,
                        BoundArgs::Bind("slice", {"slices", "fill_with"}, args));
  SOUP_RETURN_IF_ERROR(bound.Required("slices").status());
  SOUP_ASSIGN_OR_RETURN(const int64_t count, bound.IntOr("slices", 0));
  if (count < 1 || count > kMaxBatch)
    return absl::InvalidArgumentError("'slice' by such a number is not supported");
  SOUP_ASSIGN_OR_RETURN(const std::vector<Value> items, Elements(v, budget));
  SOUP_RETURN_IF_ERROR(budget->Steps(count));
  const Value* fill = bound.Find("fill_with");
  const auto size = static_cast<int64_t>(items.size());
  std::vector<Value> out;
  for (int64_t i = 0, at = 0; i < count; ++i) {
    const bool extra = i < size % count;
    const int64_t end = at + size / count + (extra ? 1 : 0);
    std::vector<Value> part(items.begin() + at, items.begin() + end);
    if (fill != nullptr && !fill->is_none() && !extra) part.push_back(*fill);
    SOUP_ASSIGN_OR_RETURN(Value list, Value::List(std::move(part)));
    out.push_back(std::move(list));
    at = end;
  }
  return Value::List(std::move(out));
}

absl::StatusOr<Value> GroupBy(const Value& v, const CallArgs& args, Budget* budget) {
  SOUP_ASSIGN_OR_RETURN(
      const BoundArgs bound,
      BoundArgs::Bind("groupby", {"attribute", "default", "case_sensitive"}, args));
  SOUP_ASSIGN_OR_RETURN(const Value attribute, bound.Required("attribute"));
  SOUP_ASSIGN_OR_RETURN(const std::vector<Value> items, Elements(v, budget));
  const Value* otherwise = bound.Find("default");
  const bool exact = bound.FlagOr("case_sensitive", false);
  // Sorted by the key that is compared; what a group is called is its first item's own.
  std::vector<std::pair<Value, Value>> keyed;
  for (const Value& item : items) {
    SOUP_ASSIGN_OR_RETURN(Value name, Attribute(item, attribute, budget));
    if (name.is_undefined() && otherwise != nullptr && !otherwise->is_none()) name = *otherwise;
    Value key = name.is_string() && !exact ? Value::String(Lower(name.AsString())) : name;
    SOUP_ASSIGN_OR_RETURN(Value member, Value::List({key, name, item}));
    keyed.emplace_back(std::move(key), std::move(member));
  }
  SOUP_ASSIGN_OR_RETURN(const std::vector<Value> sorted,
                        Sorted(std::move(keyed), false, /*wrapped=*/false, budget));
  std::vector<Value> out;
  for (size_t begin = 0, end; begin < sorted.size(); begin = end) {
    std::vector<Value> members;
    for (end = begin; end < sorted.size(); ++end) {
      SOUP_ASSIGN_OR_RETURN(const bool same,
                            Equal(sorted[begin].AsList()[0], sorted[end].AsList()[0], budget));
      if (!same) break;
      members.push_back(sorted[end].AsList()[2]);
    }
    SOUP_ASSIGN_OR_RETURN(Value list, Value::List(std::move(members)));
    SOUP_ASSIGN_OR_RETURN(Value group, Value::Group(sorted[begin].AsList()[1], std::move(list)));
    out.push_back(std::move(group));
  }
  return Value::List(std::move(out));
}

struct Entry {
  absl::string_view name;
  absl::StatusOr<Value> (*function)(const Value&, const CallArgs&, Budget*);
};
constexpr Entry kFilters[] = {
    {"batch", &Batch},
    {"dictsort", &DictSort},
    {"first", &First},
    {"groupby", &GroupBy},
    {"items", &Items},
    {"join", &Join},
    {"last", &Last},
    {"list", &List},
    {"map", &Map},
    {"max", &Max},
    {"min", &Min},
    {"reject", &ChooseBy<false, false>},
    {"rejectattr", &ChooseBy<true, false>},
    {"reverse", &Reverse},
    {"select", &ChooseBy<false, true>},
    {"selectattr", &ChooseBy<true, true>},
    {"slice", &SliceFilter},
    {"sort", &Sort},
    {"sum", &Sum},
    {"unique", &Unique},
};

const Entry* FindFilter(absl::string_view name) {
  const auto* it = std::find_if(std::begin(kFilters), std::end(kFilters),
                                [name](const Entry& e) { return e.name == name; });
  return it == std::end(kFilters) ? nullptr : it;
}

}  // namespace

bool IsListFilter(absl::string_view name) { return FindFilter(name) != nullptr; }

absl::StatusOr<Value> ApplyListFilter(absl::string_view name, const Value& value,
                                      const CallArgs& args, Budget* budget) {
  return FindFilter(name)->function(value, args, budget);
}

}  // namespace soup::engine::jinja
