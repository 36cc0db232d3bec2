// Files of records: what they are taken for, CSV by RFC 4180, JSON arrays, and what is refused.
#include "engine/data/record_reader.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "tests/engine/data/data_test_util.h"

namespace soup::engine {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::StartsWith;

// A record as "key=value|key=value"; a value that is no text by its kind.
std::string Shown(const Value& record) {
  std::string out;
  for (const auto& [key, value] : record.AsDict()) {
    absl::StrAppend(&out, out.empty() ? "" : "|", key, "=",
                    value.is_string() ? value.AsString() : value.KindName());
  }
  return out;
}

struct ReadBack {
  FileKind kind = FileKind::kAuto;
  std::string reason;
  std::vector<std::string> records, errors, notices;
  std::vector<int64_t> lines;
  std::string refusal;  // of the file as a whole
};

ReadBack Read(const std::string& name, const std::string& content, int64_t max_bytes = 1000,
              FileKind kind = FileKind::kAuto) {
  const TempDir dir;
  ReadBack out;
  const auto reader = RecordReader::Open(dir.Write("file", content), name, {kind, max_bytes});
  if (!reader.ok()) {
    EXPECT_EQ(reader.status().code(), absl::StatusCode::kInvalidArgument) << reader.status();
    out.refusal = std::string(reader.status().message());
    return out;
  }
  out.kind = (*reader)->kind();
  out.reason = (*reader)->kind_reason();
  for (;;) {
    const auto more = (*reader)->Next();
    if (!more.ok()) {
      EXPECT_EQ(more.status().code(), absl::StatusCode::kInvalidArgument) << more.status();
      out.refusal = std::string(more.status().message());
      return out;
    }
    if (!*more) break;
    out.lines.push_back((*reader)->line());
    const auto record = (*reader)->Parse();
    if (record.ok()) {
      out.records.push_back(Shown(*record));
    } else {
      EXPECT_THAT(std::string(record.status().message()), StartsWith(name + " line "));
      out.errors.push_back(std::string(record.status().message()));
    }
  }
  EXPECT_EQ((*reader)->bytes_read(), (*reader)->file_bytes());
  out.notices = (*reader)->notices();
  return out;
}

// ---- what a file is taken for ----

TEST(FileKindTest, FollowsTheNameAndTheFirstBytes) {
  struct Case {
    const char* name;
    const char* content;
    FileKind kind;
    size_t records;
  };
  for (const Case& c : std::vector<Case>{
           {"a.jsonl", "{\"a\":\"1\"}\n{\"a\":\"2\"}\n", FileKind::kJsonl, 2},
           {"a.json", "{\"a\":\"1\"}\n{\"a\":\"2\"}\n", FileKind::kJsonl, 2},
           {"a", "{\"a\":\"1\"}", FileKind::kJsonl, 1},
           {"a.json", "[{\"a\":\"1\"},{\"a\":\"2\"}]", FileKind::kJson, 2},
           {"a.jsonl", "[\n{\"a\":\"1\"}\n]\n", FileKind::kJson, 1},
           {"a.json", "{\n \"data\": [\n {\"a\":\"1\"}\n ]\n}\n", FileKind::kJson, 1},
           {"a.json", "{\"data\":[{\"a\":\"1\"},{\"a\":\"2\"}]}", FileKind::kJson, 2},
           {"a.json", "{\"messages\":[{\"a\":\"1\"},{\"a\":\"2\"}]}", FileKind::kJsonl, 1},
           {"a.json", "{\"input_ids\":[1,2]}", FileKind::kJsonl, 1},
           {"dir.v2/A.CSV", "a,b\n1,2\n", FileKind::kCsv, 1},
           {"a.tsv", "a\tb\n1\t2,3\n", FileKind::kTsv, 1},
           {"a.json", "\xef\xbb\xbf [ ]", FileKind::kJson, 0},
           {"empty.jsonl", "", FileKind::kJsonl, 0}}) {
    SCOPED_TRACE(absl::StrCat(c.name, ": ", c.content));
    const ReadBack r = Read(c.name, c.content);
    EXPECT_EQ(r.refusal, "");
    EXPECT_EQ(FileKindName(r.kind), FileKindName(c.kind));
    EXPECT_EQ(r.records.size(), c.records);
    EXPECT_NE(r.reason, "");
  }
  EXPECT_THAT(Read("notes.txt", "plain words\n").refusal, HasSubstr("neither { nor ["));
  EXPECT_EQ(Read("x", "a,b\n1,2\n", 1000, FileKind::kCsv).records.size(), 1u);
  EXPECT_EQ(Read("x", "{\"a\":\"1\"}\n{\"a\":\"2\"}\n", 1000, FileKind::kJson).records.size(), 2u);
  EXPECT_EQ(Read("x.csv", "[{\"a\":\"1\"}]", 1000, FileKind::kJson).records.size(), 1u);
}

TEST(FileKindTest, WhatIsNoTextIsNamed) {
  const auto refused = [](const std::string& content) { return Read("f.jsonl", content).refusal; };
  EXPECT_THAT(refused(std::string("\xff\xfe{\0\"\0", 6)), HasSubstr("UTF-16"));
  EXPECT_THAT(refused(std::string("{\0\"\0a\0", 6)), HasSubstr("UTF-16"));
  EXPECT_THAT(refused(std::string("\0{\0\"", 4)), HasSubstr("UTF-16"));
  EXPECT_THAT(refused(std::string("\xff\xfe\0\0{\0\0\0", 8)), HasSubstr("UTF-32"));
  EXPECT_THAT(refused("\x1f\x8b\x08xxxx"), HasSubstr("gzip"));
  EXPECT_THAT(refused("version https://git-lfs.github.com/spec/v1\noid"),
              HasSubstr("git lfs pull"));
  EXPECT_THAT(refused("<!DOCTYPE html>"), HasSubstr("a web page"));
  EXPECT_THAT(refused("(\xb5\x2f\xfdxx"), HasSubstr("zstd"));
  EXPECT_THAT(refused("\xfd"
                      "7zXZ"),
              HasSubstr("xz"));
  EXPECT_THAT(refused("BZh91AY"), HasSubstr("bzip2"));
  EXPECT_THAT(refused("PK\x03\x04xx"), HasSubstr("Excel"));
  EXPECT_THAT(refused("PAR1xxxx"), HasSubstr("Parquet"));
  const TempDir dir;
  const auto folder = RecordReader::Open(dir.path(), "folder", {});
  EXPECT_THAT(std::string(folder.status().message()), HasSubstr("folder, not a file"));
}

// ---- CSV ----

TEST(CsvTest, CellsAreTextsAndNothingElse) {
  const ReadBack r = Read("t.csv",
                          "prompt,completion\n"
                          "word,null\n"
                          "other,NA\n"
                          "zip,007\n"
                          "day,2024-01-02\n"
                          "big,1e5\n"
                          "yes,true\n"
                          ",\n"
                          "blank,  \n");
  EXPECT_THAT(r.errors, IsEmpty());
  EXPECT_THAT(r.records,
              ElementsAre("prompt=word|completion=null", "prompt=other|completion=NA",
                          "prompt=zip|completion=007", "prompt=day|completion=2024-01-02",
                          "prompt=big|completion=1e5", "prompt=yes|completion=true",
                          "prompt=|completion=", "prompt=blank|completion=  "));
}

TEST(CsvTest, QuotesCommasAndLineBreaks) {
  const ReadBack r = Read("t.csv",
                          "a,b\n"
                          "\"x, y\",\"he said \"\"no\"\"\"\n"
                          "\"two\nlines\",\"\"\n"
                          "\"\",\"\"\"\"\n"
                          "\n"
                          "last,row");
  EXPECT_THAT(r.errors, IsEmpty());
  EXPECT_THAT(r.records,
              ElementsAre("a=x, y|b=he said \"no\"", "a=two\nlines|b=", "a=|b=\"", "a=last|b=row"));
  EXPECT_THAT(r.lines, ElementsAre(2, 3, 5, 7));
}

TEST(CsvTest, WindowsLineEndsMakeNoDifference) {
  const std::string unix_file = "a,b\n\"two\nlines\",x\n1,2\n";
  std::string windows_file = "\xef\xbb\xbf";
  for (const char c : unix_file) {
    if (c == '\n') windows_file.push_back('\r');
    windows_file.push_back(c);
  }
  EXPECT_EQ(Read("t.csv", windows_file).records, Read("t.csv", unix_file).records);
  // In a file whose lines end in LF, a CRLF in a cell is what was written there.
  EXPECT_THAT(Read("t.csv", "a,b\n\"x\r\ny\",z\n").records, ElementsAre("a=x\r\ny|b=z"));
}

TEST(CsvTest, ARowThatCannotBeReadIsOneError) {
  const ReadBack r = Read("t.csv",
                          "a,b\n"
                          "1\n"
                          "1,2,3\n"
                          "5\" pipe,x\n"
                          "\"x\"y,z\n"
                          "caf\xe9,x\n"
                          "ok,ok\n");
  EXPECT_THAT(r.records, ElementsAre("a=ok|b=ok"));
  EXPECT_THAT(r.errors,
              ElementsAre(AllOf(HasSubstr("line 2"), HasSubstr("1 cell(s) where the header has 2")),
                          AllOf(HasSubstr("line 3"), HasSubstr("3 cell(s)")),
                          AllOf(HasSubstr("line 4"), HasSubstr("column 1 ('a'): a quote inside")),
                          AllOf(HasSubstr("line 5"), HasSubstr("text after the closing quote")),
                          AllOf(HasSubstr("line 6"), HasSubstr("0xE9 at offset 32 "))));
}

TEST(CsvTest, AQuoteLeftOpenIsToldWithItsLine) {
  EXPECT_THAT(Read("t.csv", "a,b\n1,2\n\"x,y\n3,4\n").refusal,
              AllOf(HasSubstr("line 3"), HasSubstr("never closed")));
}

TEST(CsvTest, HeadersThatCannotBeAreRefused) {
  const auto refused = [](const std::string& content) { return Read("t.csv", content).refusal; };
  EXPECT_THAT(refused("a,b,a\n1,2,3\n"), HasSubstr("'a' twice"));
  EXPECT_THAT(refused(",a,b\n0,1,2\n"), HasSubstr("column 1 of the header has no name"));
  EXPECT_THAT(refused("a,b,\n0,1,2\n"), HasSubstr("column 3 of the header has no name"));
  EXPECT_THAT(refused("prompt;completion\na;b\n"), HasSubstr("semicolon between its cells"));
  EXPECT_THAT(refused("prompt\tcompletion\na\tb\n"), HasSubstr("name it .tsv"));
  EXPECT_THAT(refused("a,b\r1,2\r"), HasSubstr("carriage return"));  // line ends of old Macs
  EXPECT_THAT(refused("\n\n"), HasSubstr("no records"));
  EXPECT_THAT(refused(""), HasSubstr("no records"));
  EXPECT_THAT(Read("t.csv", "a,b\n").records, IsEmpty());
}

TEST(CsvTest, ALongRowIsToldWithItsSizeAndTheRestIsRead) {
  const ReadBack r = Read("t.csv", "a,b\n" + std::string(5000, 'x') + ",y\n1,2\n");
  EXPECT_THAT(r.errors,
              ElementsAre(HasSubstr("line 2 is 5002 bytes long, over the limit of 1000")));
  EXPECT_THAT(r.records, ElementsAre("a=1|b=2"));
}

TEST(CsvTest, RowsOverBuffersAreWhole) {
  std::string file = "a,b\n";
  std::vector<std::string> expected;
  for (int i = 0; i < 4000; ++i) {
    const std::string cell =
        absl::StrCat(i, std::string(static_cast<size_t>(i % 300), 'q'), "\n\"");
    absl::StrAppend(&file, "\"", i, std::string(static_cast<size_t>(i % 300), 'q'), "\n\"\"\",z\n");
    expected.push_back(absl::StrCat("a=", cell, "|b=z"));
  }
  ASSERT_GT(file.size(), size_t{600'000});
  const ReadBack r = Read("t.csv", file);
  EXPECT_EQ(r.records, expected);
}

// ---- JSON ----

TEST(JsonTest, AnArrayOrOneArrayInAnObject) {
  const char* const records = "[{\"t\": \"a ] , } \\\" [\"},\n {\"t\": \"b\"}]";
  const ReadBack array = Read("t.json", records);
  EXPECT_THAT(array.records, ElementsAre("t=a ] , } \" [", "t=b"));
  EXPECT_THAT(array.lines, ElementsAre(1, 2));
  const ReadBack object = Read("t.json", absl::StrCat("{\"version\": \"[1]\",\n\"rows\": ", records,
                                                      ", \"n\": {\"x\": [1]}}"));
  EXPECT_EQ(object.records, array.records);
  EXPECT_THAT(object.notices, ElementsAre(HasSubstr("'version'"), HasSubstr("'n'")));
  EXPECT_THAT(Read("t.json", "[]").records, IsEmpty());
}

TEST(JsonTest, ABadElementIsOneError) {
  const ReadBack r = Read("t.json",
                          "[\n{\"t\": \"a\"},\n{\"t\": NaN},\n7,\n{\"t\": \"b\", \"t\": \"c\"},\n"
                          "{\"t\":\n  \"x\",},\n{\"t\": \"d\"}\n]\n");
  EXPECT_THAT(r.records, ElementsAre("t=a", "t=d"));
  EXPECT_THAT(r.errors,
              ElementsAre(AllOf(HasSubstr("line 3"), HasSubstr("record 2"), HasSubstr("NaN")),
                          AllOf(HasSubstr("line 4"), HasSubstr("an integer where")),
                          AllOf(HasSubstr("line 5"), HasSubstr("'t' is there twice")),
                          AllOf(HasSubstr("line 7 column 7"), HasSubstr("a comma too many"))));
  EXPECT_THAT(Read("t.json", "[{\"t\":\"a\"},]").errors, ElementsAre(HasSubstr("comma too many")));
  EXPECT_THAT(Read("t.json", "[,{\"t\":\"a\"}]").errors, ElementsAre(HasSubstr("comma too many")));
}

TEST(JsonTest, AFileThatIsBrokenAsAWholeIsRefused) {
  const auto refused = [](const std::string& content) { return Read("t.json", content).refusal; };
  EXPECT_THAT(refused("[{\"t\":\"a\"},\n{\"t\":\"b"), HasSubstr("line 2: the file ends inside"));
  EXPECT_THAT(refused("[{\"t\":\"a\"}"), HasSubstr("the file ends inside"));
  EXPECT_THAT(refused("[{\"t\":\"a\"}] x"), HasSubstr("more after the end"));
  EXPECT_THAT(refused("[{\"t\":\"a\"}]\n[{\"t\":\"b\"}]"), HasSubstr("more after the end"));
  EXPECT_THAT(refused("[{\"t\":\"a\"}}"), HasSubstr("brackets do not match"));
  EXPECT_THAT(refused("{\n\"a\": 1\n}\n"), HasSubstr("without an array of records"));
  EXPECT_THAT(refused("{\n\"train\": [{\"t\":\"a\"}], \"test\": [{\"t\":\"a\"}]\n}"),
              HasSubstr("two arrays, 'train' and 'test'"));
  EXPECT_THAT(refused("{\n\"a\": 1 \"b\": []}"), HasSubstr("cannot be read"));
  EXPECT_THAT(refused("{\n\"a\": [{\"t\":\"a\"}] \"b\": 1}"), HasSubstr("',' is expected"));
  EXPECT_THAT(refused("{\n\"a\" [1]}"), HasSubstr("':' is expected"));
  EXPECT_THAT(refused("hello"), HasSubstr("begins with ["));
}

TEST(JsonTest, ALongElementIsToldWithItsSizeAndTheRestIsRead) {
  const ReadBack r =
      Read("t.json", "[{\"t\":\"" + std::string(600'000, 'x') + "\"},{\"t\":\"b\"}]");
  EXPECT_THAT(r.errors, ElementsAre(HasSubstr("600008 bytes long, over the limit of 1000")));
  EXPECT_THAT(r.records, ElementsAre("t=b"));
}

// ---- JSON lines: habits of other programs ----

TEST(JsonHabitTest, AreNamed) {
  const auto error = [](const std::string& line) {
    const ReadBack r = Read("t.jsonl", line);
    EXPECT_EQ(r.errors.size(), 1u);
    return r.errors.empty() ? "" : r.errors[0];
  };
  EXPECT_THAT(error("{\"t\": NaN}"), HasSubstr("NaN is no JSON value"));
  EXPECT_THAT(error("{\"t\": \"a\tb\"}"), HasSubstr("a control character, 0x09"));
  EXPECT_THAT(error(std::string("{\"t\": \"a\0b\"}", 12)), HasSubstr("a zero byte"));
  EXPECT_THAT(error("{\"t\": -Infinity}"), HasSubstr("Infinity is no JSON value"));
  EXPECT_THAT(error("{\"t\": None}"), HasSubstr("None is no JSON value"));
  EXPECT_THAT(error("{'t': 'a'}"), HasSubstr("double quotes"));
  EXPECT_THAT(error("{\"t\": \"a\",}"), HasSubstr("a comma too many before '}'"));
  EXPECT_THAT(error("{\"t\": \"a\""), HasSubstr("ends in the middle"));
  EXPECT_THAT(error("{\"t\": 123456789012345678901234}"), HasSubstr("beyond 64 bits"));
  EXPECT_THAT(error("{\"t\": 1e999}"), HasSubstr("out of range"));
  EXPECT_THAT(error("{\"t\": \"a\"},"), HasSubstr("a comma after the record"));
  EXPECT_THAT(error("{\"t\": \"a\"}{\"t\": \"b\"}"), HasSubstr("two records on one line"));
  EXPECT_THAT(error("{\"t\": \"a\"}\r{\"t\": \"b\"}"), HasSubstr("carriage returns alone"));
  EXPECT_THAT(error("{\"t\": \"a\", \"t\": \"b\"}"), HasSubstr("'t' is there twice"));
  EXPECT_THAT(error("{\"t\": \"\\ud83d\"}"), HasSubstr("surrogate"));
}

TEST(JsonHabitTest, UnicodeLineSeparatorsEndNoLine) {
  const ReadBack r = Read("t.jsonl",
                          "{\"t\":\"a\xe2\x80\xa8"
                          "b\xe2\x80\xa9"
                          "c\xc2\x85"
                          "d\"}\n{\"t\":\"e\"}\n");
  EXPECT_THAT(r.errors, IsEmpty());
  EXPECT_EQ(r.records.size(), 2u);
}

// Every prefix of a file and every byte of it replaced: records, errors or a refusal, no crash.
TEST(RecordReaderTest, DamagedFilesNeverCrash) {
  const std::pair<const char*, std::string> files[] = {
      {"t.csv", "a,b\n\"x \"\"y\"\"\n\",2\r\n3,\"4\"\n"},
      {"t.json", "{\"v\": 1, \"d\": [{\"t\": \"a\\\"]\"}, {\"n\": [1, {}]}], \"w\": null}"}};
  int refusals = 0;
  for (const auto& [name, good] : files) {
    for (size_t n = 0; n < good.size(); ++n) {
      refusals += !Read(name, good.substr(0, n)).refusal.empty();
      for (char c : {'\0', '"', '\\', '[', '}', ',', '\xff', '\n', '\r'}) {
        std::string bad = good;
        bad[n] = c;
        refusals += !Read(name, bad).refusal.empty();
      }
    }
  }
  EXPECT_GT(refusals, 100);
}

}  // namespace
}  // namespace soup::engine
