// Answers for the comparisons with Python's libraries (compare_*.py), one JSON object a line on
// standard input and output:
//   data_probe jinja               {"template", "variables"} -> {"text", "generation"} | {"error"}
//   data_probe tokenizer-speed FILE SECONDS   {"text"}s; when all are read, encodes them again and
//       again for about SECONDS -> one object {"bytes", "tokens", "seconds"} of the fastest round
//   data_probe tokenizer FILE      {"text"} or {"hex"} -> {"ids", "decoded"} | {"error"}
#include <ctime>
#include <iostream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/string_view.h"
#include "engine/data/jinja/template.h"
#include "engine/data/json_value.h"
#include "engine/data/tokenizer.h"

namespace soup::engine {
namespace {

nlohmann::json Error(const absl::Status& status) {
  return {{"error", std::string(status.message())}};
}

nlohmann::json AnswerJinja(const std::string& line) {
  // Through our own JSON reader: the order of keys is part of what is compared.
  const auto request = ParseJsonValue(line);
  if (!request.ok()) return Error(request.status());
  const auto made = jinja::Template::Parse(request->Find("template")->AsString(), "t");
  if (!made.ok()) return Error(made.status());
  const auto rendering = (*made)->Render(request->Find("variables")->AsDict(), {});
  if (!rendering.ok()) return Error(rendering.status());
  nlohmann::json out = {{"text", rendering->text}, {"generation", nlohmann::json::array()}};
  for (const auto& [begin, end] : rendering->generation) out["generation"].push_back({begin, end});
  return out;
}

nlohmann::json AnswerTokenizer(const Tokenizer& tokenizer, EncodeContext* context,
                               const std::string& line) {
  const nlohmann::json request = nlohmann::json::parse(line);
  const std::string text = request.contains("hex")
                               ? absl::HexStringToBytes(request.at("hex").get<std::string>())
                               : request.at("text").get<std::string>();
  std::vector<int32_t> ids;
  const absl::Status status = tokenizer.Encode(text, context, &ids);
  if (!status.ok()) return Error(status);
  return {{"ids", ids}, {"decoded", tokenizer.Decode(ids)}};
}

// The fastest of several rounds over all texts: what else the machine does only slows.
int MeasureSpeed(const Tokenizer& tokenizer, double seconds) {
  std::vector<std::string> texts;
  size_t bytes = 0;
  for (std::string line; std::getline(std::cin, line);) {
    texts.push_back(nlohmann::json::parse(line).at("text").get<std::string>());
    bytes += texts.back().size();
  }
  const auto since = [](std::clock_t t) {  // this process's own time
    return static_cast<double>(std::clock() - t) / CLOCKS_PER_SEC;
  };
  double best = 0;
  size_t tokens = 0;
  for (const std::clock_t start = std::clock(); best == 0 || since(start) < seconds;) {
    EncodeContext context;  // each round learns the words anew
    std::vector<int32_t> ids;
    tokens = 0;
    const std::clock_t round = std::clock();
    for (const std::string& text : texts) {
      ids.clear();
      if (!tokenizer.Encode(text, &context, &ids).ok()) return 1;
      tokens += ids.size();
    }
    const double took = since(round);
    if (best == 0 || took < best) best = took;
  }
  std::cout << nlohmann::json{{"bytes", bytes}, {"tokens", tokens}, {"seconds", best}}.dump()
            << '\n';
  return 0;
}

int Main(int argc, char** argv) {
  const absl::string_view mode = argc > 1 ? argv[1] : "";
  std::string line;
  if (mode == "jinja") {
    while (std::getline(std::cin, line)) std::cout << AnswerJinja(line).dump() << '\n';
    return 0;
  }
  if (mode == "tokenizer" && argc == 3) {
    const auto tokenizer = Tokenizer::Load(argv[2]);
    if (!tokenizer.ok()) {
      std::cerr << tokenizer.status() << '\n';
      return 1;
    }
    EncodeContext context;
    while (std::getline(std::cin, line))
      std::cout << AnswerTokenizer(**tokenizer, &context, line).dump() << '\n';
    return 0;
  }
  if (mode == "tokenizer-speed" && argc == 4) {
    const auto tokenizer = Tokenizer::Load(argv[2]);
    if (tokenizer.ok()) return MeasureSpeed(**tokenizer, std::stod(argv[3]));
    std::cerr << tokenizer.status() << '\n';
    return 1;
  }
  std::cerr << "usage: data_probe jinja | tokenizer FILE | tokenizer-speed FILE SECONDS\n";
  return 2;
}

}  // namespace
}  // namespace soup::engine

int main(int argc, char** argv) { return soup::engine::Main(argc, argv); }
