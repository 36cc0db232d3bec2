#include "engine/io/gguf_rope.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdlib>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "engine/base/status_macros.h"

namespace soup::engine {
namespace {

using Json = nlohmann::ordered_json;

constexpr char kFreqs[] = "rope_freqs.weight";
constexpr char kLong[] = "rope_factors_long.weight";
constexpr char kShort[] = "rope_factors_short.weight";
constexpr double kNear = 1e-4;  // of numbers that were computed in fp32

absl::StatusOr<std::vector<float>> ReadHalf(const GgufFile& file, const char* name,
                                            int64_t rotary) {
  const GgufTensor* tensor = file.Find(name);
  if (tensor == nullptr) return file.Error(absl::StrCat("tensor ", name, " is missing"));
  if (tensor->shape.size() != 1 || tensor->shape[0] != rotary / 2)
    return file.Error(absl::StrCat(name, " has another length than ", rotary / 2,
                                   ", half of the dimensions that turn"));
  std::vector<float> out(static_cast<size_t>(rotary / 2));
  SOUP_RETURN_IF_ERROR(file.Read(*tensor, 0, rotary / 2, out.data()));
  return out;
}

// rope_freqs.weight: what llama3's scaling divides each frequency by. The file keeps the result
// alone; the settings are found again and checked against every one of them.
absl::StatusOr<Json> Llama3Scaling(const GgufFile& file, double theta, int64_t head_dim) {
  SOUP_ASSIGN_OR_RETURN(const std::vector<float> told, ReadHalf(file, kFreqs, head_dim));
  const double factor = DecimalOf(*std::max_element(told.begin(), told.end()));
  constexpr double kLow = 1, kHigh = 4, kOriginal = 8192;
  for (int64_t i = 0; i < head_dim / 2; ++i) {
    const double wavelength =
        2 * M_PI * std::pow(theta, 2.0 * static_cast<double>(i) / static_cast<double>(head_dim));
    double expected = 1;
    if (wavelength > kOriginal / kLow) {
      expected = factor;
    } else if (wavelength >= kOriginal / kHigh) {
      const double smooth = (kOriginal / wavelength - kLow) / (kHigh - kLow);
      expected = 1 / ((1 - smooth) / factor + smooth);
    }
    if (!(std::fabs(told[i] - expected) <= kNear * expected)) {
      return file.Error(
          "rope_freqs.weight is not what llama3's rope scaling (low_freq_factor 1, "
          "high_freq_factor 4, 8192 original positions) gives; use the Hugging Face folder");
    }
  }
  return Json{{"rope_type", "llama3"},
              {"factor", factor},
              {"low_freq_factor", kLow},
              {"high_freq_factor", kHigh},
              {"original_max_position_embeddings", static_cast<int64_t>(kOriginal)}};
}

class RopeReader {
 public:
  RopeReader(const GgufFile& file, const GgufArchitecture& arch, int64_t head_dim,
             int64_t positions, Json& config)
      : file_(file), arch_(arch), head_dim_(head_dim), positions_(positions), config_(config) {}

  absl::Status Run() {
    SOUP_ASSIGN_OR_RETURN(const double told, file_.RealOr(Key("rope.freq_base"), 10000));
    theta_ = DecimalOf(told);
    config_["rope_theta"] = theta_;
    SOUP_RETURN_IF_ERROR(ReadLocal());
    SOUP_RETURN_IF_ERROR(ReadRotary());
    SOUP_ASSIGN_OR_RETURN(config_["rope_scaling"], ReadScaling());
    return absl::OkStatus();
  }

 private:
  std::string Key(absl::string_view name) const { return absl::StrCat(arch_.name, ".", name); }

  absl::Status ReadLocal() {
    SOUP_ASSIGN_OR_RETURN(const double local, file_.RealOr(Key("rope.freq_base_swa"),
                                                           arch_.local_rope ? 10000 : theta_));
    if (arch_.local_rope) {
      config_["rope_local_base_freq"] = DecimalOf(local);
    } else if (DecimalOf(local) != theta_) {
      return file_.Error(absl::StrCat(Key("rope.freq_base_swa"), " is ", local, ", but ",
                                      arch_.model_type,
                                      " models turn every layer alike: that is not supported"));
    }
    return absl::OkStatus();
  }

  absl::Status ReadRotary() {
    rotary_ = head_dim_;
    if (!arch_.partial_rotary || !file_.Has(Key("rope.dimension_count"))) return absl::OkStatus();
    SOUP_ASSIGN_OR_RETURN(rotary_, file_.Int(Key("rope.dimension_count")));
    if (rotary_ < 2 || rotary_ > head_dim_ || rotary_ % 2 != 0)
      return file_.Error(
          absl::StrCat(Key("rope.dimension_count"), " is ", rotary_, ", a head has ", head_dim_));
    double part = static_cast<double>(rotary_) / static_cast<double>(head_dim_);
    // Whoever reads it takes the whole part of the product.
    if (static_cast<int64_t>(part * static_cast<double>(head_dim_)) < rotary_)
      part = std::nextafter(part, 2.0);
    config_["partial_rotary_factor"] = part;
    return absl::OkStatus();
  }

  absl::StatusOr<Json> ReadScaling() {
    // llama.cpp takes a factor without a type as linear.
    SOUP_ASSIGN_OR_RETURN(const std::string type,
                          file_.TextOr(Key("rope.scaling.type"),
                                       file_.Has(Key("rope.scaling.factor")) ? "linear" : "none"));
    const bool factors = file_.Find(kLong) != nullptr || file_.Find(kShort) != nullptr;
    if (factors) {
      if (!arch_.partial_rotary)
        return file_.Error(absl::StrCat("there is ", kLong, " or ", kShort,
                                        ", which is not supported for this architecture"));
      if (type != "none" && type != "longrope") return Unknown(type);
      return LongRope();
    }
    if (file_.Find(kFreqs) != nullptr) {
      if (type != "none")
        return file_.Error(absl::StrCat(Key("rope.scaling.type"), " '", type.substr(0, 100),
                                        "' beside ", kFreqs, " is not supported"));
      return Llama3Scaling(file_, theta_, rotary_);
    }
    if (type == "none") return Json(nullptr);
    if (type != "linear" && type != "yarn") return Unknown(type);
    SOUP_ASSIGN_OR_RETURN(const double factor, file_.Real(Key("rope.scaling.factor")));
    Json out = {{"rope_type", type}, {"factor", DecimalOf(factor)}};
    if (type == "linear") return out;
    SOUP_ASSIGN_OR_RETURN(out["original_max_position_embeddings"],
                          file_.Int(Key("rope.scaling.original_context_length")));
    for (const char* beta : {"beta_fast", "beta_slow"}) {
      const std::string key = Key(absl::StrCat("rope.scaling.yarn_", beta));
      if (!file_.Has(key)) continue;
      SOUP_ASSIGN_OR_RETURN(const double value, file_.Real(key));
      out[beta] = DecimalOf(value);
    }
    return out;
  }

  absl::Status Unknown(const std::string& type) const {
    return file_.Error(absl::StrCat(Key("rope.scaling.type"), " '", type.substr(0, 100),
                                    "' is not supported here (none, linear, yarn); use the "
                                    "model's Hugging Face folder"));
  }

  // phi3's long context: two tables of divisors, and what cosines and sines are multiplied by.
  absl::StatusOr<Json> LongRope() {
    SOUP_ASSIGN_OR_RETURN(const std::vector<float> brief, ReadHalf(file_, kShort, rotary_));
    SOUP_ASSIGN_OR_RETURN(const std::vector<float> far, ReadHalf(file_, kLong, rotary_));
    SOUP_ASSIGN_OR_RETURN(const int64_t original,
                          file_.Int(Key("rope.scaling.original_context_length")));
    if (original < 2)
      return file_.Error(
          absl::StrCat(Key("rope.scaling.original_context_length"), " is ", original));
    config_["original_max_position_embeddings"] = original;
    Json out = {{"rope_type", "longrope"}, {"short_factor", brief}, {"long_factor", far}};
    if (!file_.Has(Key("rope.scaling.attn_factor"))) return out;
    // Told in fp32; where it is what the positions give, they give it more exactly.
    SOUP_ASSIGN_OR_RETURN(const double told, file_.Real(Key("rope.scaling.attn_factor")));
    const double ratio = static_cast<double>(positions_) / static_cast<double>(original);
    const double computed =
        ratio <= 1 ? 1 : std::sqrt(1 + std::log(ratio) / std::log(static_cast<double>(original)));
    if (!(std::fabs(told - computed) <= 1e-6 * computed)) out["attention_factor"] = DecimalOf(told);
    return out;
  }

  const GgufFile& file_;
  const GgufArchitecture& arch_;
  const int64_t head_dim_, positions_;
  Json& config_;
  double theta_ = 0;
  int64_t rotary_ = 0;
};

}  // namespace

double DecimalOf(double value) {
  char buffer[64];
  const auto [end, error] =
      std::to_chars(buffer, buffer + sizeof buffer, static_cast<float>(value));
  *end = '\0';
  return std::strtod(buffer, nullptr);
}

absl::Status AddGgufRope(const GgufFile& file, const GgufArchitecture& arch, int64_t head_dim,
                         int64_t positions, Json& config) {
  return RopeReader(file, arch, head_dim, positions, config).Run();
}

bool IsGgufRopeTensor(absl::string_view name) {
  return name == kFreqs || name == kLong || name == kShort;
}

}  // namespace soup::engine
