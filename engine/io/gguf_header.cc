#include "engine/io/gguf_header.h"

#include <algorithm>
#include <cstring>
#include <memory>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "engine/base/status_macros.h"

namespace soup::engine {
namespace {

constexpr int64_t kBufferBytes = 256 << 10;
constexpr int64_t kMaxKeys = 65536;
constexpr int64_t kMaxTensors = 1 << 20;
constexpr int64_t kMaxNameBytes = 65535;      // of keys; the format's own limit
constexpr int64_t kMaxTensorNameBytes = 256;  // 64 in files that ggml writes
constexpr int64_t kMaxElements = 1 << 23;     // of all arrays together
constexpr int64_t kMaxAlignment = 1 << 20;
constexpr int kMaxDimensions = 4;

absl::Status Bad(absl::string_view what) { return absl::InvalidArgumentError(what); }

// Reads forward, never past the file's end or the header's limit.
class Cursor {
 public:
  Cursor(const GgufSource& source, int64_t size)
      : source_(source), end_(std::min(size, kMaxGgufHeaderBytes)), size_(size) {}

  int64_t at() const { return at_; }
  int64_t left() const { return end_ - at_; }

  absl::Status Need(int64_t bytes) const {
    if (bytes <= left()) return absl::OkStatus();
    if (end_ < size_) {
      return Bad(absl::StrCat("the header is over the limit of ", kMaxGgufHeaderBytes, " bytes"));
    }
    return Bad(absl::StrCat("the header needs ", bytes, " bytes at ", at_, ", the file has ", size_,
                            ": it was cut short, or is no GGUF file"));
  }
  absl::Status Take(int64_t bytes, void* dst) {
    SOUP_RETURN_IF_ERROR(Need(bytes));
    auto* out = static_cast<char*>(dst);
    while (bytes > 0) {
      if (at_ < begin_ || at_ >= begin_ + filled_) SOUP_RETURN_IF_ERROR(Fill());
      const int64_t n = std::min(bytes, begin_ + filled_ - at_);
      std::memcpy(out, buffer_.get() + (at_ - begin_), static_cast<size_t>(n));
      out += n;
      at_ += n;
      bytes -= n;
    }
    return absl::OkStatus();
  }
  absl::Status Skip(int64_t bytes) {
    SOUP_RETURN_IF_ERROR(Need(bytes));
    at_ += bytes;
    return absl::OkStatus();
  }

  template <typename T>
  absl::StatusOr<T> Number() {
    T out;
    SOUP_RETURN_IF_ERROR(Take(sizeof out, &out));
    return out;
  }
  // A count or a length: below 2^63.
  absl::StatusOr<int64_t> Count() {
    SOUP_ASSIGN_OR_RETURN(const auto value, Number<uint64_t>());
    if (value > static_cast<uint64_t>(INT64_MAX)) return Bad("a count beyond 63 bits");
    return static_cast<int64_t>(value);
  }
  absl::StatusOr<std::string> String(int64_t most) {
    SOUP_ASSIGN_OR_RETURN(const int64_t length, Count());
    if (length > most) return Bad(absl::StrCat("a text of ", length, " bytes"));
    SOUP_RETURN_IF_ERROR(Need(length));
    std::string out(static_cast<size_t>(length), '\0');
    SOUP_RETURN_IF_ERROR(Take(length, out.data()));
    return out;
  }

 private:
  absl::Status Fill() {
    if (buffer_ == nullptr) buffer_ = std::make_unique<char[]>(kBufferBytes);
    begin_ = at_;
    filled_ = std::min(kBufferBytes, end_ - at_);
    return source_(begin_, filled_, buffer_.get());
  }

  const GgufSource& source_;
  int64_t end_, size_;
  int64_t at_ = 0;
  std::unique_ptr<char[]> buffer_;
  int64_t begin_ = 0, filled_ = 0;
};

enum ValueType : uint32_t {
  kUint8 = 0,
  kInt8,
  kUint16,
  kInt16,
  kUint32,
  kInt32,
  kFloat32,
  kBool,
  kString,
  kArray,
  kUint64,
  kInt64,
  kFloat64,
};

// Bytes of one value; 0: of no fixed size.
int64_t FixedBytes(uint32_t type) {
  switch (type) {
    case kUint8:
    case kInt8:
    case kBool:
      return 1;
    case kUint16:
    case kInt16:
      return 2;
    case kUint32:
    case kInt32:
    case kFloat32:
      return 4;
    case kUint64:
    case kInt64:
    case kFloat64:
      return 8;
    default:
      return 0;
  }
}

bool IsReal(uint32_t type) { return type == kFloat32 || type == kFloat64; }

class Parser {
 public:
  Parser(const GgufSource& source, int64_t size, bool tokenizer)
      : in_(source, size), size_(size), tokenizer_(tokenizer) {}

  absl::StatusOr<GgufHeader> Run() {
    char magic[4];
    SOUP_RETURN_IF_ERROR(in_.Take(4, magic));
    if (std::memcmp(magic, "vers", 4) == 0)
      return Bad("no GGUF file but, it seems, a pointer of Git LFS; get the file (git lfs pull)");
    if (std::memcmp(magic, "GGUF", 4) != 0) return Bad("no GGUF file: it does not begin with GGUF");
    SOUP_ASSIGN_OR_RETURN(const auto version, in_.Number<uint32_t>());
    if (version != 2 && version != 3) {
      const bool swapped = version != 0 && (version & 0xffff) == 0;
      return Bad(swapped
                     ? std::string("big-endian GGUF is not supported")
                     : absl::StrCat("GGUF version ", version, " is not supported, only 2 and 3"));
    }
    SOUP_ASSIGN_OR_RETURN(const int64_t tensors, in_.Count());
    SOUP_ASSIGN_OR_RETURN(const int64_t keys, in_.Count());
    if (tensors > kMaxTensors) return Bad(absl::StrCat(tensors, " tensors, over the limit"));
    if (keys > kMaxKeys) return Bad(absl::StrCat(keys, " keys, over the limit"));
    for (int64_t i = 0; i < keys; ++i) SOUP_RETURN_IF_ERROR(KeyValue());
    SOUP_RETURN_IF_ERROR(Tensors(tensors));
    return std::move(out_);
  }

 private:
  absl::Status KeyValue() {
    SOUP_ASSIGN_OR_RETURN(const std::string key, in_.String(kMaxNameBytes));
    SOUP_ASSIGN_OR_RETURN(const auto type, in_.Number<uint32_t>());
    const bool keep =
        tokenizer_ || !absl::StartsWith(key, "tokenizer.") || (type != kString && type != kArray);
    absl::StatusOr<GgufValue> value = Value(type, keep);
    if (!value.ok()) {
      return Bad(absl::StrCat("key '", key.substr(0, 100), "': ", value.status().message()));
    }
    if (keep && !out_.values.emplace(key, *std::move(value)).second)
      return Bad(absl::StrCat("key '", key.substr(0, 100), "' is there twice"));
    return absl::OkStatus();
  }

  absl::StatusOr<GgufValue> Value(uint32_t type, bool keep) {
    if (type == kString) {
      SOUP_ASSIGN_OR_RETURN(std::string text, in_.String(in_.left()));
      return GgufValue(std::move(text));
    }
    if (type == kArray) return Array(keep);
    if (IsReal(type)) {
      SOUP_ASSIGN_OR_RETURN(const double real, Real(type));
      return GgufValue(real);
    }
    SOUP_ASSIGN_OR_RETURN(const int64_t whole, Whole(type));
    if (type == kBool) return GgufValue(whole != 0);
    return GgufValue(whole);
  }

  absl::StatusOr<double> Real(uint32_t type) {
    if (type == kFloat64) return in_.Number<double>();
    SOUP_ASSIGN_OR_RETURN(const auto value, in_.Number<float>());
    return static_cast<double>(value);
  }

  absl::StatusOr<int64_t> Whole(uint32_t type) {
    const auto widen = [](auto number) -> absl::StatusOr<int64_t> {
      if (!number.ok()) return number.status();
      return static_cast<int64_t>(*number);
    };
    switch (type) {
      case kUint8:
        return widen(in_.Number<uint8_t>());
      case kInt8:
        return widen(in_.Number<int8_t>());
      case kUint16:
        return widen(in_.Number<uint16_t>());
      case kInt16:
        return widen(in_.Number<int16_t>());
      case kUint32:
        return widen(in_.Number<uint32_t>());
      case kInt32:
        return widen(in_.Number<int32_t>());
      case kInt64:
        return in_.Number<int64_t>();
      case kUint64:
        return in_.Count();
      case kBool: {
        SOUP_ASSIGN_OR_RETURN(const auto value, in_.Number<uint8_t>());
        if (value > 1) return Bad("a boolean that is neither 0 nor 1");
        return value;
      }
      default:
        return Bad(absl::StrCat("type ", type, " is not known"));
    }
  }

  absl::StatusOr<GgufValue> Array(bool keep) {
    SOUP_ASSIGN_OR_RETURN(const auto type, in_.Number<uint32_t>());
    SOUP_ASSIGN_OR_RETURN(const int64_t count, in_.Count());
    const int64_t width = FixedBytes(type);
    if (type == kArray) return Bad("an array of arrays is not supported");
    if (width == 0 && type != kString) return Bad(absl::StrCat("type ", type, " is not known"));
    const int64_t least = width == 0 ? 8 : width;  // a text begins with its length
    if (count > in_.left() / least) {
      SOUP_RETURN_IF_ERROR(in_.Need(in_.left() + 1));
    }
    if (!keep) {
      if (width > 0) SOUP_RETURN_IF_ERROR(in_.Skip(count * width));
      for (int64_t i = 0; width == 0 && i < count; ++i) {
        SOUP_ASSIGN_OR_RETURN(const int64_t length, in_.Count());
        SOUP_RETURN_IF_ERROR(in_.Skip(length));
      }
      return GgufValue(int64_t{0});
    }
    elements_ += count;
    if (elements_ > kMaxElements)
      return Bad(absl::StrCat("arrays of more than ", kMaxElements, " elements together"));
    if (type == kString) return Fill<std::string>(count, [&] { return in_.String(in_.left()); });
    if (IsReal(type)) return Fill<double>(count, [&] { return Real(type); });
    return Fill<int64_t>(count, [&] { return Whole(type); });
  }

  template <typename T, typename Next>
  absl::StatusOr<GgufValue> Fill(int64_t count, const Next& next) {
    std::vector<T> out;
    out.reserve(static_cast<size_t>(count));
    for (int64_t i = 0; i < count; ++i) {
      SOUP_ASSIGN_OR_RETURN(T value, next());
      out.push_back(std::move(value));
    }
    return GgufValue(std::move(out));
  }

  absl::Status Tensors(int64_t count) {
    // A description takes 32 bytes at least.
    if (count > in_.left() / 32) SOUP_RETURN_IF_ERROR(in_.Need(in_.left() + 1));
    for (int64_t i = 0; i < count; ++i) {
      SOUP_ASSIGN_OR_RETURN(GgufTensor tensor, Tensor());
      out_.tensors.push_back(std::move(tensor));
    }
    int64_t alignment = 32;
    const auto told = out_.values.find("general.alignment");
    if (told != out_.values.end()) {
      const auto* value = std::get_if<int64_t>(&told->second);
      if (value == nullptr || *value < 1 || *value > kMaxAlignment || (*value & (*value - 1)) != 0)
        return Bad("general.alignment is no power of two up to 2^20");
      alignment = *value;
    }
    const int64_t begin = (in_.at() + alignment - 1) / alignment * alignment;
    for (GgufTensor& t : out_.tensors) {
      const auto bad = [&t](absl::string_view what) {
        return Bad(absl::StrCat("tensor '", t.name, "' ", what));
      };
      if (t.offset % alignment != 0) return bad("does not lie at a multiple of the alignment");
      if (t.offset > INT64_MAX - begin - t.bytes) return bad("lies beyond 63 bits");
      t.offset += begin;
      if (t.offset + t.bytes > size_) {
        return bad(absl::StrCat("ends at byte ", t.offset + t.bytes, ", the file has ", size_,
                                ": the download looks incomplete"));
      }
    }
    return CheckInOrder(begin, alignment);
  }

  absl::StatusOr<GgufTensor> Tensor() {
    GgufTensor out;
    SOUP_ASSIGN_OR_RETURN(out.name, in_.String(kMaxTensorNameBytes));
    const auto bad = [&out](absl::string_view what) {
      return Bad(absl::StrCat("tensor '", out.name, "' ", what));
    };
    SOUP_ASSIGN_OR_RETURN(const auto dimensions, in_.Number<uint32_t>());
    if (dimensions < 1 || dimensions > kMaxDimensions)
      return bad(absl::StrCat("has ", dimensions, " dimensions"));
    int64_t elements = 1;
    for (uint32_t i = 0; i < dimensions; ++i) {
      SOUP_ASSIGN_OR_RETURN(const int64_t n, in_.Count());
      if (n < 1 || __builtin_mul_overflow(elements, n, &elements)) {
        return bad("has a dimension of 0, or more elements than 63 bits count");
      }
      out.shape.insert(out.shape.begin(), n);  // the file tells the innermost first
    }
    SOUP_ASSIGN_OR_RETURN(const auto type, in_.Number<uint32_t>());
    const GgmlTypeInfo* info = FindGgmlType(type);
    if (info == nullptr) {
      return bad(absl::StrCat("is of type ", GgmlTypeName(type),
                              ", which is not supported (known: ", SupportedGgmlTypes(), ")"));
    }
    out.type = info->type;
    if (out.shape.back() % info->block != 0) {
      return bad(absl::StrCat("has rows of ", out.shape.back(), ", no multiple of ", info->name,
                              "'s block of ", info->block));
    }
    if (__builtin_mul_overflow(elements / info->block, info->bytes, &out.bytes))
      return bad("has more bytes than 63 bits count");
    SOUP_ASSIGN_OR_RETURN(out.offset, in_.Count());
    return out;
  }

  // One after the other, each at the next multiple of the alignment, as llama.cpp wants them: a gap
  // is a tensor whose type or shape is not what was written.
  absl::Status CheckInOrder(int64_t begin, int64_t alignment) {
    std::vector<GgufTensor>& tensors = out_.tensors;
    std::sort(tensors.begin(), tensors.end(),
              [](const auto& a, const auto& b) { return a.offset < b.offset; });
    int64_t expected = begin;
    for (size_t i = 0; i < tensors.size(); ++i) {
      const GgufTensor& t = tensors[i];
      const std::string before =
          i == 0 ? "the header" : absl::StrCat("'", tensors[i - 1].name, "'");
      if (t.offset < expected && i > 0) {
        return Bad(absl::StrCat("tensors ", before, " and '", t.name, "' lie over each other"));
      }
      if (t.offset != expected) {
        return Bad(absl::StrCat("tensor '", t.name, "' lies ", t.offset - expected,
                                " bytes farther on than ", before,
                                " ends: a wrong type or shape, or the file is damaged"));
      }
      const int64_t end = t.offset - begin + t.bytes;
      expected = begin + (end + alignment - 1) / alignment * alignment;
    }
    std::sort(tensors.begin(), tensors.end(),
              [](const auto& a, const auto& b) { return a.name < b.name; });
    for (size_t i = 1; i < tensors.size(); ++i) {
      if (tensors[i - 1].name == tensors[i].name)
        return Bad(absl::StrCat("tensor '", tensors[i].name, "' is there twice"));
    }
    return absl::OkStatus();
  }

  Cursor in_;
  int64_t size_;
  bool tokenizer_;
  int64_t elements_ = 0;
  GgufHeader out_;
};

}  // namespace

int64_t GgufTensor::elements() const {
  int64_t out = 1;
  for (int64_t n : shape) out *= n;
  return out;
}

absl::StatusOr<GgufHeader> ParseGgufHeader(const GgufSource& source, int64_t size, bool tokenizer) {
  return Parser(source, size, tokenizer).Run();
}

}  // namespace soup::engine
