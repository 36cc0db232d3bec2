// tests/golden/gguf was made with PyPI's gguf (make_gguf.py): headers, every block type against its
// dequantisation bit for bit, and files that lie.
#include "engine/io/gguf_reader.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "engine/io/gguf_header.h"

namespace soup::engine {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::string ReadGolden(const std::string& name) {
  std::ifstream file(absl::StrCat(SOUP_TEST_DATA_DIR, "/golden/gguf/", name), std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

absl::StatusOr<GgufHeader> Parse(const std::string& bytes, bool tokenizer = true) {
  return ParseGgufHeader(
      [&bytes](int64_t offset, int64_t n, void* dst) {
        EXPECT_GE(offset, 0);
        EXPECT_LE(offset + n, static_cast<int64_t>(bytes.size()));
        std::memcpy(dst, bytes.data() + offset, static_cast<size_t>(n));
        return absl::OkStatus();
      },
      static_cast<int64_t>(bytes.size()), tokenizer);
}

std::string ErrorOf(const std::string& bytes) {
  const auto header = Parse(bytes);
  return header.ok() ? "no error" : std::string(header.status().message());
}

TEST(GgufReaderTest, EveryTypeIsDequantisedToTheBit) {
  const auto file = GgufFile::Open(SOUP_TEST_DATA_DIR "/golden/gguf/quants.gguf");
  ASSERT_TRUE(file.ok()) << file.status();
  const std::string expected = ReadGolden("quants.f32");
  std::vector<std::string> names;
  size_t at = 0;
  for (const GgufTensor& tensor : (*file)->tensors()) {
    names.push_back(tensor.name);
    ASSERT_THAT(tensor.shape, ElementsAre(3, 512)) << tensor.name;
    std::vector<float> values(3 * 512);
    ASSERT_TRUE((*file)->Read(tensor, 0, 3 * 512, values.data()).ok());
    ASSERT_LE(at + 4 * values.size(), expected.size());
    int different = 0;
    for (size_t i = 0; i < values.size(); ++i) {
      float e;
      std::memcpy(&e, expected.data() + at + 4 * i, sizeof e);
      different += std::memcmp(&e, &values[i], sizeof e) != 0;
    }
    EXPECT_EQ(different, 0) << tensor.name;
    at += 4 * values.size();
    // Any range, in the middle of blocks too.
    for (const auto& [first, count] : {std::pair(1, 1), std::pair(31, 300), std::pair(255, 1281)}) {
      std::vector<float> part(static_cast<size_t>(count));
      ASSERT_TRUE((*file)->Read(tensor, first, count, part.data()).ok());
      EXPECT_EQ(std::memcmp(part.data(), values.data() + first, 4 * part.size()), 0)
          << tensor.name << " " << first;
    }
    float one;
    EXPECT_FALSE((*file)->Read(tensor, 3 * 512, 1, &one).ok());
    EXPECT_FALSE((*file)->Read(tensor, -1, 1, &one).ok());
  }
  EXPECT_EQ(at, expected.size());
  EXPECT_THAT(names, ElementsAre("bf16", "f16", "f32", "q4_0", "q4_1", "q4_k", "q6_k", "q8_0"));
}

TEST(GgufReaderTest, MetadataIsReadByKind) {
  const auto file = GgufFile::Open(SOUP_TEST_DATA_DIR "/golden/gguf/quants.gguf");
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_EQ(*(*file)->Int("test.u32"), 7);
  EXPECT_EQ(*(*file)->Text("general.architecture"), "llama");
  ASSERT_NE((*file)->List<std::string>("test.texts"), nullptr);
  EXPECT_THAT(*(*file)->List<std::string>("test.texts"), ElementsAre("a", "é", ""));
  EXPECT_EQ((*file)->List<int64_t>("test.texts"), nullptr);
  EXPECT_EQ(*(*file)->IntOr("test.none", 3), 3);
  EXPECT_THAT(std::string((*file)->Int("test.none").status().message()),
              HasSubstr("lacks test.none"));
  EXPECT_THAT(std::string((*file)->Int("test.texts").status().message()),
              HasSubstr("is no integer"));
}

TEST(GgufReaderTest, TheTokenizerIsLeftOutWhenAsked) {
  const std::string bytes = ReadGolden("llama.gguf");
  const auto all = Parse(bytes), less = Parse(bytes, /*tokenizer=*/false);
  ASSERT_TRUE(all.ok() && less.ok());
  EXPECT_EQ(all->values.count("tokenizer.ggml.tokens"), 1u);
  EXPECT_EQ(less->values.count("tokenizer.ggml.tokens"), 0u);
  EXPECT_EQ(all->tensors.size(), less->tensors.size());
}

// A header by hand.
class Bytes {
 public:
  template <typename T>
  Bytes& Put(T value) {
    text_.append(reinterpret_cast<const char*>(&value), sizeof value);
    return *this;
  }
  Bytes& Text(const std::string& s) {
    Put<uint64_t>(s.size());
    text_ += s;
    return *this;
  }
  Bytes& Head(uint64_t tensors, uint64_t keys, uint32_t version = 3) {
    text_ += "GGUF";
    return Put<uint32_t>(version).Put(tensors).Put(keys);
  }
  // An F32 tensor unless said otherwise.
  Bytes& Tensor(const std::string& name, std::vector<uint64_t> dims, uint64_t offset,
                uint32_t type = 0) {
    Text(name).Put<uint32_t>(static_cast<uint32_t>(dims.size()));
    for (uint64_t d : dims) Put(d);
    return Put(type).Put(offset);
  }
  Bytes& Data(size_t n) {
    text_.resize((text_.size() + 31) / 32 * 32 + n, '\1');
    return *this;
  }
  const std::string& text() const { return text_; }

 private:
  std::string text_;
};

TEST(GgufHeaderTest, LiesAreRefused) {
  EXPECT_EQ(ErrorOf(Bytes().Head(1, 0).Tensor("t", {2, 3}, 0).Data(24).text()), "no error");
  EXPECT_THAT(ErrorOf("GGU"), HasSubstr("cut short"));
  EXPECT_THAT(ErrorOf("version https://git-lfs.github.com/spec/v1\noid"),
              HasSubstr("git lfs pull"));
  EXPECT_THAT(ErrorOf("PK\3\4aaaaaaaaaaaaaaaaaaaaaaaa"), HasSubstr("does not begin with GGUF"));
  EXPECT_THAT(ErrorOf(Bytes().Head(0, 0, 1).text()), HasSubstr("version 1"));
  EXPECT_THAT(ErrorOf(Bytes().Head(0, 0, 0x03000000).text()), HasSubstr("big-endian"));
  EXPECT_THAT(ErrorOf(Bytes().Head(uint64_t{1} << 40, 0).text()), HasSubstr("over the limit"));
  EXPECT_THAT(ErrorOf(Bytes().Head(~uint64_t{0}, 0).text()), HasSubstr("63 bits"));
  EXPECT_THAT(ErrorOf(Bytes().Head(1000, 0).text()), HasSubstr("cut short"));
  EXPECT_THAT(ErrorOf(Bytes().Head(0, 1).Put(uint64_t{1} << 60).text()), HasSubstr("bytes"));
  EXPECT_THAT(ErrorOf(Bytes().Head(0, 1).Text("k").Put<uint32_t>(99).text()), HasSubstr("type 99"));
  EXPECT_THAT(ErrorOf(Bytes().Head(0, 1).Text("k").Put<uint32_t>(8).Put(uint64_t{1} << 50).text()),
              HasSubstr("key 'k'"));
  EXPECT_THAT(ErrorOf(Bytes().Head(0, 1).Text("k").Put<uint32_t>(7).Put<uint8_t>(2).text()),
              HasSubstr("neither 0 nor 1"));
  // Arrays: of arrays, longer than the file, over the limit of elements.
  EXPECT_THAT(
      ErrorOf(
          Bytes().Head(0, 1).Text("k").Put<uint32_t>(9).Put<uint32_t>(9).Put<uint64_t>(1).text()),
      HasSubstr("array of arrays"));
  EXPECT_THAT(ErrorOf(Bytes()
                          .Head(0, 1)
                          .Text("k")
                          .Put<uint32_t>(9)
                          .Put<uint32_t>(0)
                          .Put(uint64_t{1} << 62)
                          .text()),
              HasSubstr("cut short"));
  EXPECT_THAT(ErrorOf(Bytes()
                          .Head(0, 1)
                          .Text("k")
                          .Put<uint32_t>(9)
                          .Put<uint32_t>(0)
                          .Put(uint64_t{9} << 20)
                          .Data(10 << 20)
                          .text()),
              HasSubstr("elements together"));
  const auto key = [](Bytes& b) -> Bytes& { return b.Text("k").Put<uint32_t>(0).Put<uint8_t>(1); };
  Bytes twice;
  key(key(twice.Head(0, 2)));
  EXPECT_THAT(ErrorOf(twice.text()), HasSubstr("'k' is there twice"));

  EXPECT_THAT(ErrorOf(Bytes().Head(1, 0).Tensor("t", {0, 3}, 0).Data(99).text()),
              HasSubstr("dimension of 0"));
  EXPECT_THAT(ErrorOf(Bytes().Head(1, 0).Tensor("t", {}, 0).Data(99).text()),
              HasSubstr("0 dimensions"));
  EXPECT_THAT(ErrorOf(Bytes()
                          .Head(1, 0)
                          .Tensor("t", {uint64_t{1} << 40, uint64_t{1} << 40}, 0)
                          .Data(99)
                          .text()),
              HasSubstr("63 bits"));
  EXPECT_THAT(ErrorOf(Bytes().Head(1, 0).Tensor("t", {uint64_t{1} << 62}, 0).Data(99).text()),
              HasSubstr("63 bits"));
  EXPECT_THAT(ErrorOf(Bytes().Head(1, 0).Tensor("t", {4}, 0).Data(12).text()),
              HasSubstr("looks incomplete"));
  EXPECT_THAT(ErrorOf(Bytes().Head(1, 0).Tensor("t", {4}, 4).Data(99).text()),
              HasSubstr("alignment"));
  EXPECT_THAT(ErrorOf(Bytes().Head(1, 0).Tensor("t", {4}, uint64_t{1} << 62).Data(99).text()),
              HasSubstr("tensor 't'"));
  EXPECT_THAT(
      ErrorOf(Bytes().Head(2, 0).Tensor("t", {16}, 0).Tensor("u", {16}, 32).Data(99).text()),
      HasSubstr("'t' and 'u' lie over each other"));
  // A gap: the type says fewer bytes than were written.
  EXPECT_EQ(ErrorOf(Bytes().Head(2, 0).Tensor("u", {8}, 32).Tensor("t", {5}, 0).Data(99).text()),
            "no error");
  EXPECT_THAT(
      ErrorOf(Bytes().Head(2, 0).Tensor("t", {16}, 0, 1).Tensor("u", {8}, 64).Data(99).text()),
      HasSubstr("'u' lies 32 bytes farther on than 't' ends"));
  EXPECT_THAT(ErrorOf(Bytes().Head(1, 0).Tensor("t", {8}, 32).Data(99).text()),
              HasSubstr("'t' lies 32 bytes farther on than the header ends"));
  EXPECT_THAT(ErrorOf(Bytes().Head(2, 0).Tensor("t", {8}, 0).Tensor("t", {8}, 32).Data(99).text()),
              HasSubstr("'t' is there twice"));
  EXPECT_THAT(ErrorOf(Bytes().Head(1, 0).Tensor("t", {32}, 0, 13).Data(99).text()),
              HasSubstr("Q5_K (13), which is not supported"));
  EXPECT_THAT(ErrorOf(Bytes().Head(1, 0).Tensor("t", {33}, 0, 2).Data(99).text()),
              HasSubstr("block of 32"));
  EXPECT_THAT(
      ErrorOf(
          Bytes().Head(0, 1).Text("general.alignment").Put<uint32_t>(4).Put<uint32_t>(3).text()),
      HasSubstr("general.alignment"));
}

// Every prefix of a real header and every byte of it changed: a header or an error, and no read
// outside of the file (Parse checks).
TEST(GgufHeaderTest, DamagedHeadersNeverCrash) {
  std::string good = ReadGolden("quants.gguf");
  ASSERT_TRUE(Parse(good).ok());
  constexpr size_t kHeader = 900;
  int parsed = 0;
  for (size_t n = 0; n < kHeader; ++n) {
    parsed += Parse(good.substr(0, n)).ok();
    for (char c : {'\0', '\1', '\7', '\x7f', '\xff'}) {
      std::string bad = good;
      bad[n] = c;
      parsed += Parse(bad).ok();
    }
  }
  EXPECT_GT(parsed, 100);
}

}  // namespace
}  // namespace soup::engine
