#include "cache/manifest.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "engine/base/status_macros.h"

namespace soup::cache {

int64_t BaseManifest::total_bytes() const {
  int64_t total = 0;
  for (const SlabRecord& slab : slabs) total += slab.bytes;
  return total;
}

int64_t BaseManifest::chunks(int64_t slab) const {
  return (slabs[slab].bytes + chunk_bytes - 1) / chunk_bytes;
}

int64_t BaseManifest::chunk_size(int64_t slab, int64_t chunk) const {
  return std::min(chunk_bytes, slabs[slab].bytes - chunk * chunk_bytes);
}

std::string BaseManifest::ToText() const {
  nlohmann::json root;
  root["version"] = kManifestVersion;
  root["key"] = key.ToString();
  root["config_json"] = config_json;
  root["source_folder"] = source_folder;
  root["warnings"] = warnings;
  root["created_unix_ms"] = created_unix_ms;
  root["chunk_bytes"] = chunk_bytes;
  root["slabs"] = nlohmann::json::array();
  for (const SlabRecord& slab : slabs) {
    root["slabs"].push_back(
        {{"bytes", slab.bytes}, {"xxh3", absl::StrCat(absl::Hex(slab.xxh3, absl::kZeroPad16))}});
  }
  // A folder's name need not be UTF-8; what is not is shown as U+FFFD.
  return root.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

absl::StatusOr<BaseManifest> BaseManifest::FromText(absl::string_view text) {
  const auto bad = [](absl::string_view what) {
    return absl::DataLossError(
        absl::StrCat("a base's manifest in the shard store is damaged: ", what));
  };
  try {
    const nlohmann::json root = nlohmann::json::parse(text.begin(), text.end());
    if (root.at("version").get<int64_t>() != kManifestVersion) return bad("another version");
    BaseManifest m;
    SOUP_ASSIGN_OR_RETURN(m.key, BaseKey::Parse(root.at("key").get<std::string>()));
    m.config_json = root.at("config_json").get<std::string>();
    m.source_folder = root.at("source_folder").get<std::string>();
    m.warnings = root.at("warnings").get<std::vector<std::string>>();
    m.created_unix_ms = root.at("created_unix_ms").get<int64_t>();
    m.chunk_bytes = root.at("chunk_bytes").get<int64_t>();
    if (m.chunk_bytes <= 0) return bad("chunk_bytes");
    for (const nlohmann::json& item : root.at("slabs")) {
      SlabRecord slab;
      slab.bytes = item.at("bytes").get<int64_t>();
      if (slab.bytes <= 0 || !absl::SimpleHexAtoi(item.at("xxh3").get<std::string>(), &slab.xxh3)) {
        return bad("slabs");
      }
      m.slabs.push_back(slab);
    }
    return m;
  } catch (const nlohmann::json::exception& e) {
    return bad(e.what());
  }
}

}  // namespace soup::cache
