#include "engine/io/safetensors_header.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "engine/base/status_macros.h"

namespace soup::engine {
namespace {

// More than any real tensor has; bounds what a shape may make us keep.
constexpr size_t kMaxRank = 32;

std::optional<DType> ParseDType(const std::string& name) {
  for (DType t : {DType::kF32, DType::kBF16, DType::kF16, DType::kI64, DType::kI32, DType::kU8,
                  DType::kBool, DType::kF64}) {
    if (name == DTypeName(t)) return t;
  }
  return std::nullopt;
}

// A name out of a file, made fit for a message.
std::string Quoted(absl::string_view name) {
  constexpr size_t kShown = 200;
  return absl::StrCat("'", absl::CHexEscape(name.substr(0, kShown)),
                      name.size() > kShown ? "..." : "", "'");
}

// Receives the parser's events; every event that the format has no place for ends the parse.
class HeaderHandler final : public nlohmann::json_sax<nlohmann::json> {
 public:
  bool null() override { return Unexpected("null"); }
  bool boolean(bool) override { return Unexpected("a boolean"); }
  bool number_integer(number_integer_t) override { return Unexpected("a negative number"); }
  bool number_float(number_float_t, const string_t&) override {
    return Unexpected("a number that is not an integer in range");
  }
  bool binary(binary_t&) override { return Unexpected("binary data"); }

  bool number_unsigned(number_unsigned_t value) override {
    if (place_ != Place::kShape && place_ != Place::kOffsets) return Unexpected("a number");
    if (value > static_cast<uint64_t>(INT64_MAX)) return Unexpected("a number beyond 2^63 - 1");
    std::vector<int64_t>& list = place_ == Place::kShape ? tensor_.shape : offsets_;
    if (list.size() == (place_ == Place::kShape ? kMaxRank : 2))
      return Unexpected("one number more");
    list.push_back(static_cast<int64_t>(value));
    return true;
  }

  bool string(string_t& value) override {
    if (place_ == Place::kMetadata) {
      header_.metadata[field_] = std::move(value);
      return true;
    }
    if (place_ != Place::kTensor || field_ != "dtype") return Unexpected("a string");
    const std::optional<DType> dtype = ParseDType(value);
    if (!dtype) {
      return Fail(
          absl::StrCat("tensor ", Quoted(tensor_.name), " has dtype ", Quoted(value),
                       ", which is not supported (F64, F32, F16, BF16, I64, I32, U8, BOOL)"));
    }
    tensor_.dtype = *dtype;
    return true;
  }

  bool start_object(size_t) override {
    if (place_ == Place::kOutside) {
      place_ = Place::kTop;
    } else if (place_ == Place::kTop) {
      place_ = tensor_.name == "__metadata__" ? Place::kMetadata : Place::kTensor;
    } else {
      return Unexpected("an object");
    }
    return true;
  }

  bool key(string_t& name) override {
    if (place_ == Place::kTop) {
      tensor_ = TensorInfo();
      tensor_.name = std::move(name);
      offsets_.clear();
      seen_dtype_ = seen_shape_ = seen_offsets_ = false;
      return true;
    }
    field_ = std::move(name);
    if (place_ == Place::kMetadata) return true;
    bool* seen = field_ == "dtype"          ? &seen_dtype_
                 : field_ == "shape"        ? &seen_shape_
                 : field_ == "data_offsets" ? &seen_offsets_
                                            : nullptr;
    if (seen == nullptr) {
      return Fail(
          absl::StrCat("tensor ", Quoted(tensor_.name), " has the unknown field ", Quoted(field_)));
    }
    if (std::exchange(*seen, true)) {
      return Fail(absl::StrCat("tensor ", Quoted(tensor_.name), " has its ", field_, " twice"));
    }
    return true;
  }

  bool end_object() override {
    if (place_ == Place::kTop) {
      place_ = Place::kEnd;
      return true;
    }
    if (place_ == Place::kTensor && !AddTensor()) return false;
    place_ = Place::kTop;
    return true;
  }

  bool start_array(size_t) override {
    if (place_ != Place::kTensor || field_ == "dtype") return Unexpected("a list");
    place_ = field_ == "shape" ? Place::kShape : Place::kOffsets;
    return true;
  }

  bool end_array() override {
    place_ = Place::kTensor;
    return true;
  }

  bool parse_error(size_t position, const std::string&,
                   const nlohmann::detail::exception&) override {
    return Fail(absl::StrCat("its header is not valid JSON at byte ", position));
  }

  bool finished() const { return place_ == Place::kEnd; }
  const std::string& error() const { return error_; }
  SafetensorsHeader& header() { return header_; }

 private:
  enum class Place { kOutside, kTop, kMetadata, kTensor, kShape, kOffsets, kEnd };

  bool Fail(std::string message) {
    if (error_.empty()) error_ = std::move(message);
    return false;
  }
  bool Unexpected(absl::string_view what) {
    if (place_ == Place::kOutside || place_ == Place::kEnd) {
      return Fail(absl::StrCat("its header is ", what, ", not an object"));
    }
    if (place_ == Place::kTop) {
      return Fail(absl::StrCat("its header gives ", Quoted(tensor_.name), " as ", what));
    }
    return Fail(absl::StrCat("its header has ", what, " where it does not belong, at ",
                             Quoted(tensor_.name), " field ", Quoted(field_)));
  }

  bool AddTensor() {
    const std::string name = Quoted(tensor_.name);
    for (const auto& [seen, field] :
         {std::pair(seen_dtype_, "dtype"), std::pair(seen_shape_, "shape"),
          std::pair(seen_offsets_, "data_offsets")}) {
      if (!seen) return Fail(absl::StrCat("tensor ", name, " has no ", field));
    }
    if (offsets_.size() != 2 || offsets_[0] > offsets_[1]) {
      return Fail(absl::StrCat("tensor ", name, " has data_offsets that are not [begin, end]"));
    }
    int64_t bytes = DTypeBytes(tensor_.dtype);
    for (int64_t d : tensor_.shape) {
      if (__builtin_mul_overflow(bytes, d, &bytes)) {
        return Fail(absl::StrCat("tensor ", name, " has a shape ", tensor_.ShapeText(),
                                 " of more than 2^63 bytes"));
      }
    }
    if (bytes != offsets_[1] - offsets_[0]) {
      return Fail(absl::StrCat("tensor ", name, " of shape ", tensor_.ShapeText(), " and dtype ",
                               DTypeName(tensor_.dtype), " needs ", bytes,
                               " bytes, but its data_offsets [", offsets_[0], ", ", offsets_[1],
                               "] hold ", offsets_[1] - offsets_[0]));
    }
    tensor_.offset = offsets_[0];
    tensor_.bytes = bytes;
    header_.tensors.push_back(std::move(tensor_));
    return true;
  }

  SafetensorsHeader header_;
  Place place_ = Place::kOutside;
  TensorInfo tensor_;
  std::vector<int64_t> offsets_;
  std::string field_;
  bool seen_dtype_ = false, seen_shape_ = false, seen_offsets_ = false;
  std::string error_;
};

// Tensors must follow each other without gaps or overlaps: what lies between would be data nobody
// has accounted for, and an overlap is a tensor that is another one's bytes.
absl::Status CheckCoverage(SafetensorsHeader& header) {
  std::vector<TensorInfo>& tensors = header.tensors;
  std::sort(tensors.begin(), tensors.end(), [](const TensorInfo& a, const TensorInfo& b) {
    return std::pair(a.offset, a.bytes) < std::pair(b.offset, b.bytes);
  });
  int64_t end = 0;
  for (const TensorInfo& t : tensors) {
    if (t.offset != end) {
      return absl::InvalidArgumentError(
          absl::StrCat("tensor ", Quoted(t.name), " begins at byte ", t.offset,
                       " of the data, but the one before ends at ", end, ": tensors ",
                       t.offset < end ? "overlap" : "leave a gap"));
    }
    end = t.offset + t.bytes;
  }
  header.data_bytes = end;
  std::sort(tensors.begin(), tensors.end(),
            [](const TensorInfo& a, const TensorInfo& b) { return a.name < b.name; });
  for (size_t i = 1; i < tensors.size(); ++i) {
    if (tensors[i].name == tensors[i - 1].name) {
      return absl::InvalidArgumentError(
          absl::StrCat("tensor ", Quoted(tensors[i].name), " is in the header twice"));
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<SafetensorsHeader> ParseSafetensorsHeader(absl::string_view text) {
  HeaderHandler handler;
  bool parsed = false;
  try {
    parsed = nlohmann::json::sax_parse(text.begin(), text.end(), &handler);
  } catch (const std::exception& e) {
    return absl::InvalidArgumentError(absl::StrCat("its header cannot be read: ", e.what()));
  }
  if (!parsed || !handler.finished()) {
    return absl::InvalidArgumentError(handler.error().empty() ? "its header is not an object"
                                                              : handler.error());
  }
  SOUP_RETURN_IF_ERROR(CheckCoverage(handler.header()));
  return std::move(handler.header());
}

}  // namespace soup::engine
