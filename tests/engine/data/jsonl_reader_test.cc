#include "engine/data/jsonl_reader.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "tests/engine/data/data_test_util.h"

namespace soup::engine {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::StartsWith;

struct ReadBack {
  std::vector<std::string> texts;   // of each good record
  std::vector<std::string> errors;  // of each bad one
  std::vector<int64_t> lines;
};

ReadBack ReadAll(const std::string& content, int64_t max_line_bytes = 1000) {
  const TempDir dir;
  ReadBack out;
  auto reader = JsonlReader::Open(dir.Write("t.jsonl", content), "t.jsonl", {max_line_bytes});
  if (!reader.ok()) {
    out.errors.push_back(std::string(reader.status().message()));
    return out;
  }
  JsonlReader::Line line;
  for (;;) {
    const auto more = (*reader)->Next(&line);
    EXPECT_TRUE(more.ok()) << more.status();
    if (!more.ok() || !*more) break;
    out.lines.push_back(line.number);
    const auto record = (*reader)->Parse(line);
    if (!record.ok()) {
      out.errors.push_back(std::string(record.status().message()));
    } else {
      const Value* text = record->Find("t");
      out.texts.push_back(text != nullptr && text->is_string() ? text->AsString() : "?");
    }
  }
  EXPECT_EQ((*reader)->bytes_read(), (*reader)->file_bytes());
  return out;
}

std::string OnlyError(const std::string& content, int64_t max_line_bytes = 1000) {
  const ReadBack r = ReadAll(content, max_line_bytes);
  EXPECT_EQ(r.errors.size(), 1u);
  return r.errors.empty() ? "" : r.errors.front();
}

TEST(JsonlReaderTest, BytesAroundTheRecordsMakeNoDifference) {
  const std::string a = R"({"t":"one"})", b = R"({"t":"two"})";
  for (const std::string& content :
       {a + "\n" + b + "\n", a + "\n" + b, a + "\r\n" + b + "\r\n", a + "\r\n" + b,
        "\xef\xbb\xbf" + a + "\n" + b, a + "\n\n \t\r\n" + b + "\n\n", "\n" + a + "\n" + b}) {
    const ReadBack r = ReadAll(content);
    EXPECT_THAT(r.texts, ElementsAre("one", "two")) << content;
    EXPECT_TRUE(r.errors.empty()) << content;
  }
}

TEST(JsonlReaderTest, BlankLinesCount) {
  EXPECT_THAT(ReadAll("{}\n\n\n{}\n").lines, ElementsAre(1, 4));
}

TEST(JsonlReaderTest, NothingInTheFile) {
  EXPECT_TRUE(ReadAll("").lines.empty());
  EXPECT_TRUE(ReadAll("\xef\xbb\xbf").lines.empty());
  EXPECT_TRUE(ReadAll("\n \n").lines.empty());
}

TEST(JsonlReaderTest, EscapesAreRead) {
  EXPECT_THAT(ReadAll(R"({"t":"\ud83d\ude42 \u00e9 \n \u0000"})").texts,
              ElementsAre(std::string("\xf0\x9f\x99\x82 \xc3\xa9 \n \0", 11)));
}

TEST(JsonlReaderTest, HalfASurrogatePairIsRefused) {
  for (const char* text : {R"({"t":"\ud83d!"})", R"({"t":"\ude42"})", R"({"t":"\ud83d\ud83d"})",
                           R"({"t":"\ud83d"})"}) {
    EXPECT_THAT(OnlyError(text),
                AllOf(StartsWith("t.jsonl line 1 column "), HasSubstr("half of a surrogate pair")))
        << text;
  }
}

TEST(JsonlReaderTest, BytesThatAreNoUtf8AreNamed) {
  EXPECT_EQ(OnlyError("{\"t\":\"ok\"}\n{\"t\":\"It\x92s\"}\n"),
            "t.jsonl line 2: byte 0x92 at offset 19 of the file is not UTF-8; save the file as "
            "UTF-8");
  // After a byte order mark offsets are still those of the file.
  EXPECT_THAT(OnlyError("\xef\xbb\xbf{\"t\":\"\xc0\xaf\"}"), HasSubstr("byte 0xC0 at offset 9"));
}

TEST(JsonlReaderTest, BrokenJsonNamesLineAndColumn) {
  EXPECT_THAT(OnlyError("{}\n{\"t\":\"\xc3\xa9\",}\n"),
              StartsWith("t.jsonl line 2 column 10: not valid JSON"));
  EXPECT_THAT(OnlyError("{\"t\":"), StartsWith("t.jsonl line 1 column"));
  EXPECT_THAT(OnlyError("{} {}"), StartsWith("t.jsonl line 1 column 4"));
  EXPECT_THAT(OnlyError("[1]"), HasSubstr("a list where a JSON object is expected; JSONL holds"));
  EXPECT_THAT(OnlyError("[{\"t\":1},"), HasSubstr("JSONL holds one object a line, not an array"));
  EXPECT_THAT(OnlyError("{\"t\":1,\"t\":2}"), HasSubstr("key 't' is there twice"));
  EXPECT_THAT(OnlyError("{\"t\":123456789012345678901}"), HasSubstr("beyond 64 bits"));
  EXPECT_THAT(OnlyError("{\"t\":1e999}"), HasSubstr("a number out of range"));
}

TEST(JsonlReaderTest, NestingIsBounded) {
  const std::string deep(100000, '[');
  EXPECT_THAT(OnlyError("{\"t\":" + deep, 1 << 20), HasSubstr("nested deeper than 64"));
}

TEST(JsonlReaderTest, ALongLineIsToldWithItsSizeAndTheRestIsRead) {
  // Longer than the reader's buffer, so that it spans several.
  const std::string content =
      "{\"t\":\"one\"}\n{\"t\":\"" + std::string(1 << 20, 'x') + "\"}\n{\"t\":\"two\"}\n";
  const ReadBack r = ReadAll(content, 4096);
  EXPECT_THAT(r.texts, ElementsAre("one", "two"));
  EXPECT_THAT(r.lines, ElementsAre(1, 2, 3));
  EXPECT_THAT(r.errors, ElementsAre("t.jsonl line 2 is 1048584 bytes long, over the limit of 4096; "
                                    "cut the record into smaller ones"));
  EXPECT_EQ(ReadAll(content, 1 << 21).texts.size(), 3u);
}

TEST(JsonlReaderTest, OtherFilesAreNamed) {
  EXPECT_THAT(OnlyError(std::string("\xff\xfe{\0", 4)), HasSubstr("UTF-16"));
  EXPECT_THAT(OnlyError("\x1f\x8b\x08 "), HasSubstr("gzip"));
  EXPECT_THAT(OnlyError("PAR1 "), HasSubstr("Parquet"));
}

// Every prefix of a record and every byte of it replaced: a record or an error, no crash.
TEST(JsonlReaderTest, DamagedRecordsNeverCrash) {
  const std::string good = R"({"t":"a\u00e9\ud83d\ude42","n":[1,-2.5e3,true,null,{}]})";
  int errors = 0;
  for (size_t n = 0; n < good.size(); ++n) {
    errors += static_cast<int>(ReadAll(good.substr(0, n)).errors.size());
    for (char c : {'\0', '"', '\\', '[', '9', '\xff', '\n'}) {
      std::string bad = good;
      bad[n] = c;
      errors += static_cast<int>(ReadAll(bad).errors.size());
    }
  }
  EXPECT_GT(errors, 200);
}

}  // namespace
}  // namespace soup::engine
