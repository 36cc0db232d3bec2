// completion bash|zsh|fish: scripts made from the parser itself, so they know every verb and flag
// there is. Job names are asked of soupd while completing.
#include <memory>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "client/cli.h"
#include "engine/base/status_macros.h"

namespace soup::client {
namespace {

struct VerbInfo {
  std::string path;  // "cache ls"; "" for soupctl itself
  std::string help;
  std::vector<std::string> flags;
  std::vector<std::string> verbs;
  bool takes_job = false;
  bool takes_file = false;
};

std::vector<std::string> FlagsOf(const CLI::App* app) {
  std::vector<std::string> flags;
  for (const CLI::Option* option : app->get_options()) {
    for (const std::string& name : option->get_lnames()) flags.push_back("--" + name);
    for (const std::string& name : option->get_snames()) flags.push_back("-" + name);
  }
  return flags;
}

void Collect(const CLI::App* app, const std::string& path, std::vector<VerbInfo>* out) {
  VerbInfo info;
  info.path = path;
  info.help = app->get_description();
  info.flags = FlagsOf(app);
  for (const CLI::Option* option : app->get_options()) {
    if (!option->get_positional()) continue;
    info.takes_job = info.takes_job || option->get_name(true) == "job";
    info.takes_file = info.takes_file || option->get_name(true) == "job_file";
  }
  const auto subs = app->get_subcommands(nullptr);
  for (const CLI::App* sub : subs) info.verbs.push_back(sub->get_name());
  out->push_back(info);
  for (const CLI::App* sub : subs) {
    Collect(sub, path.empty() ? sub->get_name() : absl::StrCat(path, " ", sub->get_name()), out);
  }
}

std::string Bash(const std::vector<VerbInfo>& verbs) {
  const std::string global = absl::StrJoin(verbs[0].flags, " ");
  std::string cases;
  for (const VerbInfo& v : verbs) {
    absl::StrAppend(&cases, "    '", v.path, "') words='", absl::StrJoin(v.verbs, " "), "' flags='",
                    absl::StrJoin(v.flags, " "), v.path.empty() ? "" : absl::StrCat(" ", global),
                    "'", v.takes_job ? " job=1" : "", v.takes_file ? " file=1" : "", " ;;\n");
  }
  return absl::StrCat(
      R"sh(# bash completion for soupctl:  source <(soupctl completion bash)
_soupctl() {
  local cur=${COMP_WORDS[COMP_CWORD]} path='' words='' flags='' job='' file='' i word
  local known=' )sh",
      absl::StrJoin(verbs, " ",
                    [](std::string* out, const VerbInfo& v) {
                      absl::StrAppend(out, absl::StrReplaceAll(v.path, {{" ", "/"}}));
                    }),
      R"sh( '
  for ((i = 1; i < COMP_CWORD; i++)); do
    word=${COMP_WORDS[i]}
    [[ $word == -* ]] && continue
    [[ $known == *" ${path:+${path// //}/}$word "* ]] && path="${path:+$path }$word"
  done
  case $path in
)sh",
      cases, R"sh(  esac
  if [[ $cur == -* ]]; then
    words=$flags
  elif [[ -n $job ]]; then
    words="$(soupctl list -o name -q 2>/dev/null)"
  elif [[ -n $file ]]; then
    COMPREPLY=($(compgen -f -- "$cur"))
    return
  fi
  COMPREPLY=($(compgen -W "$words" -- "$cur"))
}
complete -o filenames -F _soupctl soupctl
)sh");
}

// zsh runs bash completions as they are.
std::string Zsh(const std::vector<VerbInfo>& verbs) {
  return absl::StrCat("# zsh completion for soupctl:  source <(soupctl completion zsh)\n",
                      "autoload -Uz compinit bashcompinit\n",
                      "(( $+functions[compdef] )) || compinit\n", "bashcompinit\n", Bash(verbs));
}

std::string FishQuoted(const std::string& text) {
  return absl::StrCat("'", absl::StrReplaceAll(text, {{"\\", "\\\\"}, {"'", "\\'"}}), "'");
}

std::string Fish(const CLI::App* app, const std::vector<VerbInfo>& verbs) {
  std::string out =
      "# fish completion for soupctl:  soupctl completion fish | source\n"
      "complete -c soupctl -f\n";
  const auto condition = [](const VerbInfo& v) {
    if (v.path.empty()) return std::string("__fish_use_subcommand");
    std::string text;
    for (const std::string& word : std::vector<std::string>(absl::StrSplit(v.path, ' '))) {
      absl::StrAppend(&text, text.empty() ? "" : "; and ", "__fish_seen_subcommand_from ", word);
    }
    return text;
  };
  for (const VerbInfo& v : verbs) {
    const std::string when = absl::StrCat("complete -c soupctl -n ", FishQuoted(condition(v)));
    const CLI::App* level = app;
    for (const std::string& word :
         std::vector<std::string>(absl::StrSplit(v.path, ' ', absl::SkipEmpty()))) {
      level = level->get_subcommand(word);
    }
    for (const CLI::App* sub : level->get_subcommands(nullptr)) {
      absl::StrAppend(&out, when, " -a ", sub->get_name(), " -d ",
                      FishQuoted(sub->get_description()), "\n");
    }
    for (const CLI::Option* option : level->get_options()) {
      std::string names;
      for (const std::string& name : option->get_lnames()) absl::StrAppend(&names, " -l ", name);
      for (const std::string& name : option->get_snames()) absl::StrAppend(&names, " -s ", name);
      if (names.empty()) continue;
      absl::StrAppend(&out, v.path.empty() ? "complete -c soupctl" : when, names,
                      option->get_expected_max() > 0 ? " -r" : "", " -d ",
                      FishQuoted(option->get_description()), "\n");
    }
    if (v.takes_job) {
      absl::StrAppend(&out, when, " -a '(soupctl list -o name -q 2>/dev/null)'\n");
    }
    if (v.takes_file) absl::StrAppend(&out, when, " -F\n");
  }
  return out;
}

}  // namespace

void AddCompletionCommand(CLI::App* app, Cli* cli) {
  auto shell = std::make_shared<std::string>();
  CLI::App* verb =
      AddVerb(app, cli, "completion", "Print a completion script for a shell", [cli, app, shell] {
        std::vector<VerbInfo> verbs;
        Collect(app, "", &verbs);
        cli->terminal.Print(*shell == "bash"  ? Bash(verbs)
                            : *shell == "zsh" ? Zsh(verbs)
                                              : Fish(app, verbs));
        return absl::OkStatus();
      });
  verb->add_option("shell", *shell, "bash, zsh or fish")
      ->required()
      ->check(CLI::IsMember({"bash", "zsh", "fish"}));
}

}  // namespace soup::client
