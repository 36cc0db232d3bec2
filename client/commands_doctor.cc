// doctor.
#include "absl/strings/str_cat.h"
#include "client/cli.h"
#include "client/doctor.h"
#include "client/exit_codes.h"
#include "engine/base/status_macros.h"
#include "nlohmann/json.hpp"

namespace soup::client {
namespace {

void Print(Cli* cli, const std::vector<Check>& checks, OutputFormat format) {
  if (format != OutputFormat::kTable) {
    auto all = nlohmann::ordered_json::array();
    for (const Check& c : checks) {
      all.push_back({{"check", c.name},
                     {"result", ResultName(c.result)},
                     {"detail", c.detail},
                     {"remedy", c.remedy}});
    }
    const nlohmann::ordered_json json = {{"checks", all}};
    cli->terminal.Print(format == OutputFormat::kYaml ? JsonToYaml(json.dump())
                                                      : json.dump(1) + "\n");
    return;
  }
  for (const Check& c : checks) {
    const Color color = c.result == Check::Result::kGood      ? Color::kGreen
                        : c.result == Check::Result::kWarning ? Color::kYellow
                                                              : Color::kRed;
    std::string mark = ResultName(c.result);
    mark.resize(8, ' ');
    cli->terminal.Print(
        absl::StrCat(cli->terminal.Out(color, mark), c.name, ": ", c.detail, "\n",
                     c.remedy.empty() ? "" : absl::StrCat("        → ", c.remedy, "\n")));
  }
}

absl::Status RunDoctor(Cli* cli) {
  SOUP_ASSIGN_OR_RETURN(
      const OutputFormat format,
      cli->Format(OutputFormat::kTable,
                  {OutputFormat::kTable, OutputFormat::kJson, OutputFormat::kYaml}));
  SOUP_ASSIGN_OR_RETURN(Api * api, cli->GetApi());
  const absl::StatusOr<soup::v1::Node> node = api->GetNode();
  std::vector<Check> checks = {ConnectionCheck(api->connection(), node.status())};
  if (node.ok()) {
    for (Check& check : NodeChecks(*node, SOUP_VERSION)) checks.push_back(std::move(check));
    const HugePages pages = api->connection().is_unix ? ReadHugePages() : HugePages();
    checks.push_back(HugePageCheck(pages, *node));
  }
  Print(cli, checks, format);
  if (!node.ok()) return ErrorWithExitCode(ExitCodeOf(node.status()), "soupd did not answer");
  int bad = 0;
  for (const Check& check : checks) bad += check.result == Check::Result::kBad ? 1 : 0;
  if (bad == 0) return absl::OkStatus();
  return ErrorWithExitCode(ExitCode::kError,
                           absl::StrCat(bad, " of ", checks.size(), " checks are bad"));
}

}  // namespace

void AddDoctorCommand(CLI::App* app, Cli* cli) {
  AddVerb(app, cli, "doctor", "Check the connection and soupd's host, with remedies",
          [cli] { return RunDoctor(cli); });
}

}  // namespace soup::client
