// A value of a data record or of a chat template: what JSON and Jinja have between them. Lists and
// dicts never change once made and keep the order of their keys, so values are shared freely and
// hold no cycles. Copying is cheap. Not thread-safe for one object; different values are.
#ifndef SOUP_ENGINE_DATA_VALUE_H_
#define SOUP_ENGINE_DATA_VALUE_H_

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace soup::engine {

// Things that only a template has (macros, namespaces, ...); owned by the rendering, not by values.
class TemplateObject {
 public:
  virtual ~TemplateObject() = default;
};

class Value {
 public:
  enum class Kind { kUndefined, kNone, kBool, kInt, kFloat, kString, kList, kDict, kObject };
  using Items = std::vector<std::pair<std::string, Value>>;
  // Values nested deeper than this cannot be made: recursion over a value is safe.
  static constexpr int kMaxDepth = 64;

  Value() = default;  // none
  static Value None() { return Value(); }
  // `hint`: what was looked for, for the message when it is used.
  static Value Undefined(std::string hint = "");
  static Value Bool(bool b) { return Value(Data(b)); }
  static Value Int(int64_t i) { return Value(Data(i)); }
  static Value Float(double d) { return Value(Data(d)); }
  static Value String(std::string s);
  static Value Object(TemplateObject* object) { return Value(Data(object)); }
  // Errors: InvalidArgument (nested deeper than kMaxDepth).
  static absl::StatusOr<Value> List(std::vector<Value> items, bool tuple = false);
  // A tuple (key, items) whose parts also have the names "grouper" and "list" (jinja's groupby).
  static absl::StatusOr<Value> Group(Value key, Value items);
  // Keys must differ: the last of two equal ones stays, at the first one's place.
  static absl::StatusOr<Value> Dict(Items items);

  Kind kind() const { return static_cast<Kind>(data_.index()); }
  bool is_undefined() const { return kind() == Kind::kUndefined; }
  bool is_none() const { return kind() == Kind::kNone; }
  bool is_bool() const { return kind() == Kind::kBool; }
  bool is_int() const { return kind() == Kind::kInt; }
  bool is_float() const { return kind() == Kind::kFloat; }
  bool is_number() const { return is_bool() || is_int() || is_float(); }
  bool is_string() const { return kind() == Kind::kString; }
  bool is_list() const { return kind() == Kind::kList; }
  bool is_tuple() const;
  bool is_group() const;
  bool is_dict() const { return kind() == Kind::kDict; }
  bool is_object() const { return kind() == Kind::kObject; }

  // Each of the right kind only.
  bool AsBool() const { return std::get<bool>(data_); }
  int64_t AsInt() const { return std::get<int64_t>(data_); }
  double AsFloat() const { return std::get<double>(data_); }
  const std::string& AsString() const { return *std::get<SharedString>(data_).text; }
  const std::string& UndefinedHint() const { return *std::get<SharedHint>(data_).text; }
  TemplateObject* AsObject() const { return std::get<TemplateObject*>(data_); }
  const std::vector<Value>& AsList() const;
  const Items& AsDict() const;

  // A dict's member, or null. On anything else null.
  const Value* Find(absl::string_view key) const;
  int depth() const;

  // What messages call the kind: "a string", "null", ...
  const char* KindName() const;

 private:
  struct SharedHint {
    std::shared_ptr<const std::string> text;
  };
  struct SharedString {
    std::shared_ptr<const std::string> text;
  };
  struct ListData {
    std::vector<Value> items;
    bool tuple = false;
    bool group = false;
    int depth = 1;
  };
  struct DictData {
    Items items;
    absl::flat_hash_map<std::string, size_t> index;  // filled for large ones only
    int depth = 1;
  };
  // In the order of Kind.
  using Data = std::variant<SharedHint, std::monostate, bool, int64_t, double, SharedString,
                            std::shared_ptr<const ListData>, std::shared_ptr<const DictData>,
                            TemplateObject*>;
  explicit Value(Data data) : data_(std::move(data)) {}

  Data data_ = std::monostate();
};

}  // namespace soup::engine

#endif  // SOUP_ENGINE_DATA_VALUE_H_
