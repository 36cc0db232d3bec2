// Writes small GGUF files for tests (version 3, little-endian): metadata and tensors in the order
// in which they are added. It shares nothing with the reader.
#ifndef SOUP_TESTS_SUPPORT_GGUF_WRITER_H_
#define SOUP_TESTS_SUPPORT_GGUF_WRITER_H_

#include <cstdint>
#include <cstring>
#include <fstream>
#include <string>
#include <utility>
#include <vector>

namespace soup::testing {

class GgufWriter {
 public:
  // ggml's numbers of types.
  enum Type : uint32_t { kF32 = 0, kF16 = 1, kQ4_1 = 3, kQ8_0 = 8, kBF16 = 30 };

  explicit GgufWriter(const std::string& architecture) {
    Text("general.architecture", architecture);
  }

  void Int(const std::string& key, uint32_t value) { Key(key, 4), Put(keys_, value); }
  void Float(const std::string& key, float value) { Key(key, 6), Put(keys_, value); }
  void Bool(const std::string& key, bool value) { Key(key, 7), Put<uint8_t>(keys_, value); }
  void Text(const std::string& key, const std::string& value) { Key(key, 8), String(keys_, value); }
  void Ints(const std::string& key, const std::vector<int32_t>& values) { Array(key, 5, values); }
  void Floats(const std::string& key, const std::vector<float>& values) { Array(key, 6, values); }
  void Bools(const std::string& key, const std::vector<uint8_t>& values) { Array(key, 7, values); }
  void Texts(const std::string& key, const std::vector<std::string>& values) {
    Key(key, 9), Put<uint32_t>(keys_, 8), Put<uint64_t>(keys_, values.size());
    for (const std::string& value : values) String(keys_, value);
  }

  // `shape`: outermost first; `bytes`: as they lie in the file.
  void Tensor(const std::string& name, Type type, const std::vector<int64_t>& shape,
              const std::string& bytes) {
    String(tensors_, name);
    Put<uint32_t>(tensors_, static_cast<uint32_t>(shape.size()));
    for (auto n = shape.rbegin(); n != shape.rend(); ++n) Put<uint64_t>(tensors_, *n);
    Put<uint32_t>(tensors_, type);
    data_.resize((data_.size() + 31) / 32 * 32);
    Put<uint64_t>(tensors_, data_.size());
    data_ += bytes;
    ++tensor_count_;
  }

  void Write(const std::string& path) const {
    std::string head = "GGUF";
    Put<uint32_t>(head, 3);
    Put<uint64_t>(head, tensor_count_);
    Put<uint64_t>(head, key_count_);
    head += keys_ + tensors_;
    head.resize((head.size() + 31) / 32 * 32);
    std::ofstream file(path, std::ios::binary);
    file << head << data_;
  }

 private:
  template <typename T>
  static void Put(std::string& out, T value) {
    out.append(reinterpret_cast<const char*>(&value), sizeof value);
  }
  static void String(std::string& out, const std::string& text) {
    Put<uint64_t>(out, text.size());
    out += text;
  }
  void Key(const std::string& key, uint32_t type) {
    String(keys_, key);
    Put(keys_, type);
    ++key_count_;
  }
  template <typename T>
  void Array(const std::string& key, uint32_t type, const std::vector<T>& values) {
    Key(key, 9), Put(keys_, type), Put<uint64_t>(keys_, values.size());
    for (const T value : values) Put(keys_, value);
  }

  std::string keys_, tensors_, data_;
  uint64_t key_count_ = 0, tensor_count_ = 0;
};

}  // namespace soup::testing

#endif  // SOUP_TESTS_SUPPORT_GGUF_WRITER_H_
