#include "client/contexts.h"

#include <sys/stat.h>
#include <yaml-cpp/yaml.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "client/exit_codes.h"
#include "engine/base/file_system.h"
#include "engine/base/status_macros.h"

namespace soup::client {
namespace {

struct Field {
  const char* key;
  std::string Context::*member;
};
constexpr Field kFields[] = {
    {"name", &Context::name},   {"endpoint", &Context::endpoint},
    {"token", &Context::token}, {"token_file", &Context::token_file},
    {"ca", &Context::ca},       {"server_name", &Context::server_name},
};

absl::Status Wrong(const std::string& path, const YAML::Node& node, absl::string_view what) {
  return UsageError(absl::StrCat(path, ":", node.Mark().line + 1, ": ", what,
                                 "; mend it, or remove the file and add the contexts again"));
}

absl::StatusOr<Context> ParseContext(const std::string& path, const YAML::Node& node) {
  if (!node.IsMap()) return Wrong(path, node, "a context is a group of keys");
  Context context;
  for (const auto& pair : node) {
    const std::string key = pair.first.Scalar();
    const auto* field = std::find_if(std::begin(kFields), std::end(kFields),
                                     [&](const Field& f) { return key == f.key; });
    if (field == std::end(kFields)) {
      return Wrong(path, pair.first, absl::StrCat("unknown key \"", key, "\" of a context"));
    }
    if (!pair.second.IsScalar()) {
      return Wrong(path, pair.second, absl::StrCat("\"", key, "\" must be text"));
    }
    context.*(field->member) = pair.second.Scalar();
  }
  if (context.name.empty() || context.endpoint.empty()) {
    return Wrong(path, node, "a context needs a name and an endpoint");
  }
  return context;
}

absl::StatusOr<Contexts> ParseContexts(const std::string& path, const std::string& text) {
  Contexts out;
  const YAML::Node root = YAML::Load(text);
  if (root.IsNull()) return out;
  if (!root.IsMap()) return Wrong(path, root, "expected `current` and `contexts`");
  for (const auto& pair : root) {
    const std::string key = pair.first.Scalar();
    if (key == "current" && pair.second.IsScalar()) {
      out.current = pair.second.Scalar();
    } else if (key == "contexts" && pair.second.IsSequence()) {
      for (const auto& item : pair.second) {
        SOUP_ASSIGN_OR_RETURN(Context context, ParseContext(path, item));
        out.Put(std::move(context));
      }
    } else {
      return Wrong(path, pair.first, absl::StrCat("unexpected \"", key, "\""));
    }
  }
  return out;
}

}  // namespace

const Context* Contexts::Find(const std::string& name) const {
  const auto it =
      std::find_if(all.begin(), all.end(), [&](const Context& c) { return c.name == name; });
  return it == all.end() ? nullptr : &*it;
}

void Contexts::Put(Context context) {
  for (Context& old : all) {
    if (old.name == context.name) {
      old = std::move(context);
      return;
    }
  }
  all.push_back(std::move(context));
}

bool Contexts::Remove(const std::string& name) {
  const auto it =
      std::find_if(all.begin(), all.end(), [&](const Context& c) { return c.name == name; });
  if (it == all.end()) return false;
  all.erase(it);
  if (current == name) current.clear();
  return true;
}

absl::StatusOr<std::string> ContextsPath() {
  const char* config = std::getenv("XDG_CONFIG_HOME");
  if (config != nullptr && *config == '/') {
    return absl::StrCat(config, "/soupctl/contexts.yaml");
  }
  const char* home = std::getenv("HOME");
  if (home == nullptr || *home == '\0') {
    return UsageError("neither HOME nor XDG_CONFIG_HOME is set, so there is no place for contexts");
  }
  return absl::StrCat(home, "/.config/soupctl/contexts.yaml");
}

absl::StatusOr<Contexts> LoadContexts(const std::string& path) {
  struct stat st;
  if (stat(path.c_str(), &st) != 0) {
    if (errno == ENOENT || errno == ENOTDIR) return Contexts();
    return engine::ErrnoStatus(errno, "read contexts", path);
  }
  SOUP_ASSIGN_OR_RETURN(const std::string text, engine::RealFileSystem().ReadFile(path));
  absl::StatusOr<Contexts> contexts = Contexts();
  try {
    contexts = ParseContexts(path, text);
  } catch (const YAML::Exception& e) {
    return UsageError(absl::StrCat(path, ":", e.mark.line + 1, ": not valid YAML: ", e.msg));
  }
  if (!contexts.ok()) return contexts.status();
  const bool has_token = std::any_of(contexts->all.begin(), contexts->all.end(),
                                     [](const Context& c) { return !c.token.empty(); });
  if (has_token && (st.st_mode & 077) != 0) {
    return UsageError(
        absl::StrFormat("%s holds a token and others may read it (mode %04o); run: chmod 600 %s",
                        path, static_cast<unsigned>(st.st_mode & 07777), path));
  }
  return contexts;
}

absl::Status SaveContexts(const std::string& path, const Contexts& contexts) {
  YAML::Emitter out;
  out << YAML::BeginMap;
  if (!contexts.current.empty()) {
    out << YAML::Key << "current" << YAML::Value << YAML::DoubleQuoted << contexts.current;
  }
  out << YAML::Key << "contexts" << YAML::Value << YAML::BeginSeq;
  for (const Context& context : contexts.all) {
    out << YAML::BeginMap;
    for (const Field& field : kFields) {
      const std::string& value = context.*(field.member);
      if (value.empty()) continue;
      out << YAML::Key << field.key << YAML::Value << YAML::DoubleQuoted << value;
    }
    out << YAML::EndMap;
  }
  out << YAML::EndSeq << YAML::EndMap;
  auto& fs = engine::RealFileSystem();
  const std::string folder = std::filesystem::path(path).parent_path().string();
  SOUP_RETURN_IF_ERROR(fs.CreateDirectories(folder, 0700));
  return engine::WriteFileAtomically(fs, path, absl::StrCat(out.c_str(), "\n"));
}

}  // namespace soup::client
