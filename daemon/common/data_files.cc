#include "daemon/common/data_files.h"

#include "absl/strings/str_cat.h"

namespace soup::daemon {

std::vector<soup::v1::DataSource> SourcesOf(const soup::v1::DataSpec& data) {
  if (!data.has_train()) return {data.sources().begin(), data.sources().end()};
  soup::v1::DataSource only;
  *only.mutable_file() = data.train();
  only.set_weight(1);
  return {only};
}

std::vector<NamedFile> FilesOf(const soup::v1::JobSpec& spec) {
  std::vector<NamedFile> out;
  if (spec.data().has_train()) out.push_back({"data.train", spec.data().train()});
  for (int i = 0; i < spec.data().sources_size(); ++i)
    out.push_back({absl::StrCat("data.train[", i, "]"), spec.data().sources(i).file()});
  if (spec.data().has_validation_file())
    out.push_back({"data.validation_file", spec.data().validation_file()});
  if (spec.lora().has_init_adapter()) {
    out.push_back({"lora.init_from (adapter_model.safetensors)", spec.lora().init_adapter()});
    out.push_back({"lora.init_from (adapter_config.json)", spec.lora().init_adapter_config()});
  }
  return out;
}

}  // namespace soup::daemon
