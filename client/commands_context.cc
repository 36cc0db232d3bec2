// context add, use, list, remove, show.
#include <filesystem>
#include <iostream>
#include <iterator>
#include <memory>

#include "absl/strings/str_cat.h"
#include "client/cli.h"
#include "client/contexts.h"
#include "client/exit_codes.h"
#include "engine/base/file_system.h"
#include "engine/base/status_macros.h"
#include "nlohmann/json.hpp"

namespace soup::client {
namespace {

using Json = nlohmann::ordered_json;

struct AddFlags {
  std::string name;
  std::string token;
  bool use = false;
};

std::string TokenText(const Context& c) {
  if (!c.token.empty()) return "by value";
  return c.token_file.empty() ? "none" : c.token_file;
}

Json ToJson(const Context& c, bool current) {
  return {{"name", c.name},        {"current", current}, {"endpoint", c.endpoint},
          {"token", TokenText(c)}, {"ca", c.ca},         {"server_name", c.server_name}};
}

void PrintJsonOrYaml(Cli* cli, const Json& json, OutputFormat format) {
  cli->terminal.Print(format == OutputFormat::kYaml ? JsonToYaml(json.dump())
                                                    : json.dump(1) + "\n");
}

absl::StatusOr<std::string> ExistingFile(Cli* cli, const std::string& path, const char* flag) {
  if (path.empty()) return path;
  const std::string absolute =
      (std::filesystem::path(cli->CurrentDirectory()) / path).lexically_normal().string();
  const auto text = engine::RealFileSystem().ReadFile(absolute);
  if (!text.ok()) return UsageError(absl::StrCat(flag, ": ", text.status().message()));
  return absolute;
}

absl::Status RunAdd(Cli* cli, const AddFlags& flags) {
  Context context;
  context.name = flags.name;
  // The global flags say what the context shall hold.
  context.endpoint = cli->connection.endpoint;
  context.server_name = cli->connection.server_name;
  if (context.endpoint.empty()) return UsageError("a context needs --endpoint");
  SOUP_ASSIGN_OR_RETURN(context.ca, ExistingFile(cli, cli->connection.ca, "--ca"));
  SOUP_ASSIGN_OR_RETURN(context.token_file,
                        ExistingFile(cli, cli->connection.token_file, "--token-file"));
  if (!flags.token.empty()) {
    if (!context.token_file.empty()) return UsageError("either --token or --token-file, not both");
    std::string text = flags.token;
    if (text == "-") text.assign(std::istreambuf_iterator<char>(std::cin), {});
    SOUP_ASSIGN_OR_RETURN(context.token, CleanToken(text, "--token"));
  }
  // Finds a malformed endpoint, CA or token now rather than at the first use.
  SOUP_ASSIGN_OR_RETURN(const Connection connection,
                        ResolveConnection({.endpoint = context.endpoint,
                                           .token_file = context.token_file,
                                           .ca = context.ca,
                                           .server_name = context.server_name}));
  SOUP_RETURN_IF_ERROR(MakeChannel(connection).status());
  if (connection.is_unix && !context.token.empty()) {
    return UsageError("--token has no use with a unix socket");
  }
  SOUP_ASSIGN_OR_RETURN(const std::string path, ContextsPath());
  SOUP_ASSIGN_OR_RETURN(Contexts contexts, LoadContexts(path));
  const bool is_new = contexts.Find(flags.name) == nullptr;
  contexts.Put(context);
  if (flags.use) contexts.current = flags.name;
  SOUP_RETURN_IF_ERROR(SaveContexts(path, contexts));
  cli->terminal.Say(
      absl::StrCat("context ", flags.name, is_new ? " added" : " replaced",
                   contexts.current == flags.name
                       ? ", in use"
                       : absl::StrCat("; to use it: soupctl context use ", flags.name)));
  return absl::OkStatus();
}

absl::Status NoSuchContext(const std::string& name) {
  return ErrorWithExitCode(ExitCode::kNotFound, absl::StrCat("there is no context \"", name,
                                                             "\"; see: soupctl context list"));
}

absl::Status RunUse(Cli* cli, const std::string& name) {
  SOUP_ASSIGN_OR_RETURN(const std::string path, ContextsPath());
  SOUP_ASSIGN_OR_RETURN(Contexts contexts, LoadContexts(path));
  if (contexts.Find(name) == nullptr) return NoSuchContext(name);
  contexts.current = name;
  SOUP_RETURN_IF_ERROR(SaveContexts(path, contexts));
  cli->terminal.Say(absl::StrCat("context ", name, " in use"));
  return absl::OkStatus();
}

absl::Status RunRemove(Cli* cli, const std::string& name) {
  SOUP_ASSIGN_OR_RETURN(const std::string path, ContextsPath());
  SOUP_ASSIGN_OR_RETURN(Contexts contexts, LoadContexts(path));
  const bool was_current = contexts.current == name;
  if (!contexts.Remove(name)) return NoSuchContext(name);
  SOUP_RETURN_IF_ERROR(SaveContexts(path, contexts));
  cli->terminal.Say(
      absl::StrCat("context ", name, " removed", was_current ? "; no context is in use now" : ""));
  return absl::OkStatus();
}

absl::Status RunList(Cli* cli) {
  SOUP_ASSIGN_OR_RETURN(
      const OutputFormat format,
      cli->Format(OutputFormat::kTable, {OutputFormat::kTable, OutputFormat::kJson,
                                         OutputFormat::kYaml, OutputFormat::kName}));
  SOUP_ASSIGN_OR_RETURN(const std::string path, ContextsPath());
  SOUP_ASSIGN_OR_RETURN(const Contexts contexts, LoadContexts(path));
  if (format == OutputFormat::kName) {
    for (const Context& c : contexts.all) cli->terminal.Print(c.name + "\n");
    return absl::OkStatus();
  }
  if (format != OutputFormat::kTable) {
    Json all = Json::array();
    for (const Context& c : contexts.all) all.push_back(ToJson(c, c.name == contexts.current));
    PrintJsonOrYaml(cli, Json{{"contexts", all}}, format);
    return absl::OkStatus();
  }
  if (contexts.all.empty()) {
    cli->terminal.Say("no contexts; add one: soupctl context add NAME --endpoint HOST:PORT");
    return absl::OkStatus();
  }
  Table table({"", "NAME", "ENDPOINT", "TOKEN", "CA", "SERVER NAME"});
  for (const Context& c : contexts.all) {
    table.Add({c.name == contexts.current ? "*" : "", c.name, c.endpoint, TokenText(c),
               c.ca.empty() ? "-" : c.ca, c.server_name.empty() ? "-" : c.server_name});
  }
  cli->terminal.Print(table.Render(cli->terminal.out_has_color()));
  return absl::OkStatus();
}

// The connection that the next command would use, and where each part comes from.
absl::Status RunShow(Cli* cli) {
  SOUP_ASSIGN_OR_RETURN(
      const OutputFormat format,
      cli->Format(OutputFormat::kTable,
                  {OutputFormat::kTable, OutputFormat::kJson, OutputFormat::kYaml}));
  SOUP_ASSIGN_OR_RETURN(const Connection c, ResolveConnection(cli->connection));
  const Json json = {{"endpoint", c.endpoint},
                     {"endpoint_from", c.endpoint_from},
                     {"token_from", c.token_from},
                     {"ca", c.ca_path},
                     {"server_name", c.server_name}};
  if (format != OutputFormat::kTable) {
    PrintJsonOrYaml(cli, json, format);
    return absl::OkStatus();
  }
  cli->terminal.Print(absl::StrCat(
      "endpoint:  ", c.endpoint, " (from ", c.endpoint_from, ")\n", "token:     ",
      c.is_unix ? "not needed, the kernel says who you are"
                : (c.token_from.empty() ? "none" : absl::StrCat("from ", c.token_from)),
      "\n"));
  if (!c.is_unix) {
    cli->terminal.Print(
        absl::StrCat("CA:        ", c.ca_path.empty() ? "the system's" : c.ca_path, "\n"));
    if (!c.server_name.empty()) {
      cli->terminal.Print(absl::StrCat("server:    ", c.server_name, "\n"));
    }
  }
  return absl::OkStatus();
}

}  // namespace

void AddContextCommands(CLI::App* app, Cli* cli) {
  CLI::App* context = app->add_subcommand("context", "Named endpoints of other hosts");
  context->require_subcommand(1);

  auto add = std::make_shared<AddFlags>();
  CLI::App* verb =
      AddVerb(context, cli, "add",
              "Add or replace one, from --endpoint, --token-file or --token, --ca, --server-name",
              [cli, add] { return RunAdd(cli, *add); });
  verb->add_option("name", add->name, "Its name")->required();
  verb->add_option("--token", add->token,
                   "Keep the token itself in contexts.yaml; - reads it from standard input");
  verb->add_flag("--use", add->use, "Make it the current one");

  auto use = std::make_shared<std::string>();
  verb = AddVerb(context, cli, "use", "Make one the current one",
                 [cli, use] { return RunUse(cli, *use); });
  verb->add_option("name", *use, "Its name")->required();

  auto remove = std::make_shared<std::string>();
  verb = AddVerb(context, cli, "remove", "Forget one",
                 [cli, remove] { return RunRemove(cli, *remove); });
  verb->add_option("name", *remove, "Its name")->required();

  AddVerb(context, cli, "list", "List them", [cli] { return RunList(cli); });
  AddVerb(context, cli, "show", "Show which endpoint a command would use, and why",
          [cli] { return RunShow(cli); });
}

}  // namespace soup::client
