// A safetensors file read whole, for golden data of tests: little checking, no dependency on
// engine/io (kernels must be testable without the engine).
#ifndef SOUP_TESTS_KERNELS_TENSOR_FILE_H_
#define SOUP_TESTS_KERNELS_TENSOR_FILE_H_

#include <cstdint>
#include <cstring>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <string>
#include <vector>

namespace soup::kernels {

class TensorFile {
 public:
  explicit TensorFile(const std::string& path) {
    std::ifstream in(path, std::ios::binary);
    if (!in) throw std::runtime_error("cannot open " + path);
    bytes_.assign(std::istreambuf_iterator<char>(in), {});
    uint64_t header = 0;
    std::memcpy(&header, bytes_.data(), sizeof header);
    header_ = nlohmann::json::parse(bytes_.begin() + 8, bytes_.begin() + 8 + header);
    data_ = 8 + header;
  }

  template <typename T>
  std::vector<T> Read(const std::string& name) const {
    const auto& entry = header_.at(name);
    const size_t begin = entry.at("data_offsets").at(0);
    const size_t end = entry.at("data_offsets").at(1);
    std::vector<T> values((end - begin) / sizeof(T));
    std::memcpy(values.data(), bytes_.data() + data_ + begin, end - begin);
    return values;
  }

 private:
  std::vector<char> bytes_;
  nlohmann::json header_;
  size_t data_ = 0;
};

}  // namespace soup::kernels

#endif  // SOUP_TESTS_KERNELS_TENSOR_FILE_H_
