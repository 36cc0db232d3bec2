#include "engine/io/safetensors_reader.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cstring>

#include "engine/io/safetensors_writer.h"
#include "tests/support/seeded_rng.h"
#include "tests/support/temp_dir.h"
#include "tests/support/whole_file.h"

namespace soup::engine {
namespace {

using ::soup::testing::SeededRng;
using ::soup::testing::TempDir;
using ::soup::testing::WriteWhole;
using ::testing::HasSubstr;

std::string WithHeader(const std::string& header, const std::string& data,
                       uint64_t length = UINT64_MAX) {
  if (length == UINT64_MAX) length = header.size();
  std::string file(8, '\0');
  std::memcpy(file.data(), &length, 8);
  return file + header + data;
}

// Opens and reads everything, so that a lie that Open lets through would be found by a sanitizer.
absl::Status OpenAndReadAll(const std::string& path) {
  const auto file = SafetensorsFile::Open(path);
  if (!file.ok()) return file.status();
  for (const TensorInfo& t : (*file)->tensors()) {
    const auto bytes = (*file)->ReadBytes(t.name);
    if (!bytes.ok()) return bytes.status();
    EXPECT_EQ(static_cast<int64_t>(bytes->size()), t.elements() * DTypeBytes(t.dtype));
  }
  return absl::OkStatus();
}

TEST(SafetensorsReader, ReadsTheGoldenFiles) {
  const std::string path = std::string(SOUP_TEST_DATA_DIR) + "/golden/llama/golden.safetensors";
  const auto file = SafetensorsFile::Open(path);
  ASSERT_TRUE(file.ok()) << file.status();
  const auto lengths = (*file)->ReadI64("full.lengths");
  ASSERT_TRUE(lengths.ok()) << lengths.status();
  EXPECT_EQ(lengths->size(), 2u);
  int64_t rows = 0;
  for (int64_t n : *lengths) rows += n;
  const TensorInfo* logits = (*file)->Find("base_logits.full");
  ASSERT_NE(logits, nullptr);
  EXPECT_EQ(logits->shape, (std::vector<int64_t>{rows, 320}));
  EXPECT_EQ((*file)->ReadF32("base_logits.full")->size(), static_cast<size_t>(rows * 320));
}

TEST(SafetensorsReader, WidensEveryFloatType) {
  const std::vector<float> f32 = {1.5f, -2.0f};
  const std::vector<double> f64 = {1.5, -2.0};
  const std::vector<uint16_t> bf16 = {0x3fc0, 0xc000}, f16 = {0x3e00, 0xc000};
  TempDir dir;
  ASSERT_TRUE(WriteSafetensors(RealFileSystem(), dir / "a.safetensors",
                               {{"f32", DType::kF32, {2}, AsBytes(f32)},
                                {"f64", DType::kF64, {2}, AsBytes(f64)},
                                {"bf16", DType::kBF16, {2}, AsBytes(bf16)},
                                {"f16", DType::kF16, {2}, AsBytes(f16)}})
                  .ok());
  const auto file = SafetensorsFile::Open(dir / "a.safetensors");
  ASSERT_TRUE(file.ok()) << file.status();
  for (const char* name : {"f32", "f64", "bf16", "f16"}) {
    EXPECT_EQ(*(*file)->ReadF32(name), f32) << name;
    EXPECT_TRUE(absl::IsInvalidArgument((*file)->ReadI64(name).status()));
  }
  EXPECT_TRUE(absl::IsNotFound((*file)->ReadF32("other").status()));
}

TEST(SafetensorsReader, HalfsOfEveryKindWiden) {
  EXPECT_EQ(F16ToF32(0x0001), 0x1p-24f);
  EXPECT_EQ(F16ToF32(0x8400), -0x1p-14f);
  EXPECT_EQ(F16ToF32(0x7bff), 65504.0f);
  EXPECT_EQ(F16ToF32(0xfc00), -INFINITY);
  EXPECT_NE(F16ToF32(0x7e00), F16ToF32(0x7e00));
}

struct Lie {
  const char* what;
  std::string file;
  std::string message;
};

TEST(SafetensorsReader, RefusesEveryLieByName) {
  const std::string eight(8, 'x');
  const auto tensor = [](const std::string& body) { return "{\"t\":{" + body + "}}"; };
  const std::string good = R"("dtype":"F32","shape":[2],"data_offsets":[0,8])";
  const std::vector<Lie> lies = {
      {"empty", "", "needs 8 bytes and the file has 0"},
      {"cut length field", "abc", "needs 8 bytes and the file has 3"},
      {"header beyond the file", WithHeader("{}", "", 1000),
       "needs 1008 bytes and the file has 10"},
      {"huge header", WithHeader("{}", "", 0x7fffffffffffffffULL), "claims 9223372036854775807"},
      {"LFS pointer", "version https://git-lfs.github.com/spec/v1\noid sha256:0", "git lfs pull"},
      {"largest header", WithHeader("{}", "", UINT64_MAX - 1), "claims 18446744073709551614"},
      {"not JSON", WithHeader("{\"t\":", ""), "not valid JSON"},
      {"a list", WithHeader("[]", ""), "not an object"},
      {"text after the object", WithHeader("{} {}", ""), "not valid JSON"},
      {"short data", WithHeader(tensor(good), "1234567"), "the download looks incomplete"},
      {"trailing data", WithHeader(tensor(good), eight + "y"), "belongs to nothing"},
      {"unknown dtype",
       WithHeader(tensor(R"("dtype":"F8_E4M3","shape":[8],"data_offsets":[0,8])"), eight),
       "F8_E4M3"},
      {"shape beyond offsets",
       WithHeader(tensor(R"("dtype":"F32","shape":[3],"data_offsets":[0,8])"), eight),
       "needs 12 bytes"},
      {"overflowing shape",
       WithHeader(tensor(R"("dtype":"F32","shape":[4294967296,4294967296],"data_offsets":[0,0])"),
                  ""),
       "more than 2^63"},
      {"overflow back to 8 bytes",
       WithHeader(tensor(R"("dtype":"U8","shape":[4611686018427387906,4],"data_offsets":[0,8])"),
                  eight),
       "more than 2^63"},
      {"negative dimension",
       WithHeader(tensor(R"("dtype":"F32","shape":[-2],"data_offsets":[0,8])"), eight), "negative"},
      {"fractional dimension",
       WithHeader(tensor(R"("dtype":"F32","shape":[2.0],"data_offsets":[0,8])"), eight), "'t'"},
      {"offsets backwards",
       WithHeader(tensor(R"("dtype":"F32","shape":[2],"data_offsets":[8,0])"), eight),
       "not [begin, end]"},
      {"three offsets",
       WithHeader(tensor(R"("dtype":"F32","shape":[2],"data_offsets":[0,8,8])"), eight),
       "one number"},
      {"offset of 2^64",
       WithHeader(tensor(R"("dtype":"F32","shape":[2],"data_offsets":[0,18446744073709551616])"),
                  eight),
       "'t'"},
      {"gap", WithHeader(tensor(R"("dtype":"U8","shape":[4],"data_offsets":[4,8])"), eight), "gap"},
      {"overlap",
       WithHeader(R"({"a":{"dtype":"U8","shape":[6],"data_offsets":[0,6]},)"
                  R"("b":{"dtype":"U8","shape":[4],"data_offsets":[4,8]}})",
                  eight),
       "overlap"},
      {"a name twice",
       WithHeader(R"({"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]},)"
                  R"("a":{"dtype":"U8","shape":[4],"data_offsets":[4,8]}})",
                  eight),
       "twice"},
      {"a field twice", WithHeader(tensor(good + R"(,"dtype":"F32")"), eight), "twice"},
      {"an unknown field", WithHeader(tensor(good + R"(,"stride":1)"), eight), "stride"},
      {"no dtype", WithHeader(tensor(R"("shape":[2],"data_offsets":[0,8])"), eight), "no dtype"},
      {"no shape", WithHeader(tensor(R"("dtype":"F32","data_offsets":[0,8])"), eight), "no shape"},
      {"no offsets", WithHeader(tensor(R"("dtype":"F32","shape":[2])"), eight), "no data_offsets"},
      {"a tensor that is a number", WithHeader(R"({"t":1})", ""), "'t'"},
      {"metadata that nests", WithHeader(R"({"__metadata__":{"a":{}}})", ""), "__metadata__"},
      {"metadata that is a number", WithHeader(R"({"__metadata__":{"a":1}})", ""), "a number"},
  };
  TempDir dir;
  const std::string path = dir / "model.safetensors";
  for (const Lie& lie : lies) {
    WriteWhole(path, lie.file);
    const absl::Status status = OpenAndReadAll(path);
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << lie.what << ": " << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr(lie.message)) << lie.what;
    EXPECT_THAT(std::string(status.message()), HasSubstr(path)) << lie.what;
  }
}

TEST(SafetensorsReader, AcceptsWhatTheFormatAllows) {
  TempDir dir;
  const std::string path = dir / "model.safetensors";
  WriteWhole(path, WithHeader("{}   ", ""));
  EXPECT_TRUE(OpenAndReadAll(path).ok());
  WriteWhole(path, WithHeader(R"({"scalar":{"dtype":"U8","shape":[],"data_offsets":[0,1]},)"
                              R"("none":{"dtype":"F32","shape":[0,7],"data_offsets":[1,1]}})",
                              "x"));
  EXPECT_TRUE(OpenAndReadAll(path).ok());
}

TEST(SafetensorsReader, DeeplyNestedHeaderCostsNothing) {
  TempDir dir;
  const std::string path = dir / "model.safetensors";
  WriteWhole(path, WithHeader("{\"t\":" + std::string(2'000'000, '['), ""));
  EXPECT_TRUE(absl::IsInvalidArgument(OpenAndReadAll(path)));
}

std::string SmallFile() {
  const std::vector<float> a = {1, 2, 3, 4, 5, 6};
  const std::vector<uint16_t> b = {1, 2, 3};
  return *SerializeSafetensors(
      {{"a", DType::kF32, {2, 3}, AsBytes(a)}, {"b", DType::kBF16, {3}, AsBytes(b)}});
}

TEST(SafetensorsReader, FileCutAtEveryByteIsRefused) {
  TempDir dir;
  const std::string path = dir / "model.safetensors", whole = SmallFile();
  for (size_t n = 0; n < whole.size(); ++n) {
    WriteWhole(path, whole.substr(0, n));
    EXPECT_TRUE(absl::IsInvalidArgument(OpenAndReadAll(path))) << n;
  }
  WriteWhole(path, whole);
  EXPECT_TRUE(OpenAndReadAll(path).ok());
}

TEST(SafetensorsReader, EveryByteOfTheHeaderChangedNeverCrashes) {
  TempDir dir;
  const std::string path = dir / "model.safetensors", whole = SmallFile();
  const size_t header_end = 8 + static_cast<size_t>(static_cast<uint8_t>(whole[0]));
  for (size_t at = 0; at < header_end; ++at) {
    for (const int value : {0x00, 0x22, 0x2c, 0x30, 0x39, 0x5b, 0x7b, 0x7d, 0x7f, 0x80, 0xff}) {
      std::string changed = whole;
      changed[at] = static_cast<char>(value);
      WriteWhole(path, changed);
      const absl::Status status = OpenAndReadAll(path);
      EXPECT_TRUE(status.ok() || absl::IsInvalidArgument(status)) << at << ": " << status;
    }
  }
}

TEST(SafetensorsReader, RandomDamageNeverCrashes) {
  SeededRng rng;
  SCOPED_TRACE(rng.Trace());
  TempDir dir;
  const std::string path = dir / "model.safetensors", whole = SmallFile();
  for (int round = 0; round < 2000; ++round) {
    std::string changed = whole;
    for (int64_t i = rng.Int(1, 6); i > 0; --i) {
      const auto at = static_cast<size_t>(rng.Int(0, static_cast<int64_t>(changed.size()) - 1));
      switch (rng.Int(0, 2)) {
        case 0:
          changed[at] = static_cast<char>(rng.Int(0, 255));
          break;
        case 1:
          changed.erase(at, static_cast<size_t>(rng.Int(1, 20)));
          break;
        default:
          changed.insert(at, whole.substr(static_cast<size_t>(rng.Int(0, 40)), 12));
      }
      if (changed.empty()) changed = "x";
    }
    WriteWhole(path, changed);
    const absl::Status status = OpenAndReadAll(path);
    EXPECT_TRUE(status.ok() || absl::IsInvalidArgument(status)) << status;
  }
}

TEST(SafetensorsReader, FileThatShrinksWhileInUseIsAnErrorNotASignal) {
  TempDir dir;
  const std::string path = dir / "model.safetensors", whole = SmallFile();
  WriteWhole(path, whole);
  const auto file = SafetensorsFile::Open(path);
  ASSERT_TRUE(file.ok());
  ASSERT_EQ(truncate(path.c_str(), static_cast<off_t>(whole.size()) - 4), 0);
  const absl::Status status = (*file)->ReadBytes("b").status();
  EXPECT_TRUE(absl::IsDataLoss(status)) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("has changed while in use"));
}

TEST(SafetensorsReader, ReadsRangesAndRefusesOthers) {
  TempDir dir;
  WriteWhole(dir / "a", SmallFile());
  const auto file = SafetensorsFile::Open(dir / "a");
  ASSERT_TRUE(file.ok());
  const TensorInfo& a = *(*file)->Find("a");
  float value = 0;
  ASSERT_TRUE((*file)->Read(a, 16, 4, &value).ok());
  EXPECT_EQ(value, 5.0f);
  for (const auto& [first, bytes] :
       {std::pair<int64_t, int64_t>{-4, 4}, {22, 4}, {0, INT64_MAX}, {INT64_MAX, 4}, {0, -1}}) {
    EXPECT_TRUE(absl::IsOutOfRange((*file)->Read(a, first, bytes, &value)));
  }
}

}  // namespace
}  // namespace soup::engine
