// Answers for the comparisons with Python's libraries (compare_*.py), one JSON object a line on
// standard input and output:
//   data_probe jinja               {"template", "variables"} -> {"text", "generation"} | {"error"}
//   data_probe tokenizer FILE      {"text"} or {"hex"} -> {"ids", "decoded"} | {"error"}
#include <iostream>
#include <nlohmann/json.hpp>
#include <string>

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
  std::cerr << "usage: data_probe jinja | data_probe tokenizer FILE\n";
  return 2;
}

}  // namespace
}  // namespace soup::engine

int main(int argc, char** argv) { return soup::engine::Main(argc, argv); }
