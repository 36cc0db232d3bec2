#include "engine/io/gguf_tokenizer.h"

#include <algorithm>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "engine/base/status_macros.h"

namespace soup::engine {
namespace {

using Json = nlohmann::json;

// tokenizer.ggml.token_type
enum TokenType : int64_t { kNormal = 1, kUnknown, kControl, kUserDefined, kUnused, kByte };

constexpr size_t kMaxPieceBytes = 512;  // of a token that merges are looked for in

constexpr char kLlama3Pattern[] =
    "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1,3}| "
    "?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+";
constexpr char kQwen2Pattern[] =
    "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}| "
    "?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+";
// Mistral Nemo's
constexpr char kTekkenPattern[] =
    "[^\\r\\n\\p{L}\\p{N}]?[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]*[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]+|"
    "[^\\r\\n\\p{L}\\p{N}]?[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]+[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]*|"
    "\\p{N}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n/]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+";

Json ByteLevel(bool use_regex) {
  return {{"type", "ByteLevel"},
          {"add_prefix_space", false},
          {"trim_offsets", true},
          {"use_regex", use_regex}};
}

Json SplitAndByteLevel(const char* pattern) {
  const Json split = {{"type", "Split"},
                      {"pattern", {{"Regex", pattern}}},
                      {"behavior", "Isolated"},
                      {"invert", false}};
  return {{"type", "Sequence"}, {"pretokenizers", Json::array({split, ByteLevel(false)})}};
}

// What tokenizer.ggml.pre says of byte-level BPE.
struct Pre {
  Json pre_tokenizer;
  Json normalizer;
  bool ignore_merges = false;
  bool add_bos = false;  // where the file does not say: these models' tokenizer.json does
};

absl::StatusOr<Pre> FindPre(const GgufFile& file) {
  SOUP_ASSIGN_OR_RETURN(const std::string name, file.Text("tokenizer.ggml.pre"));
  if (name == "gpt-2" || name == "gpt2") return Pre{ByteLevel(true), nullptr};
  if (name == "smollm") {
    const Json digits = {{"type", "Digits"}, {"individual_digits", true}};
    return Pre{{{"type", "Sequence"}, {"pretokenizers", Json::array({digits, ByteLevel(true)})}},
               nullptr};
  }
  if (name == "llama-bpe" || name == "llama3" || name == "llama-v3")
    return Pre{SplitAndByteLevel(kLlama3Pattern), nullptr, /*ignore_merges=*/true,
               /*add_bos=*/true};
  if (name == "tekken")
    return Pre{SplitAndByteLevel(kTekkenPattern), nullptr, /*ignore_merges=*/true,
               /*add_bos=*/true};
  if (name == "qwen2") return Pre{SplitAndByteLevel(kQwen2Pattern), Json{{"type", "NFC"}}};
  return file.Error(
      absl::StrCat("tokenizer.ggml.pre '", name.substr(0, 100),
                   "' is not supported (known: gpt-2, smollm, llama-bpe, qwen2, tekken); use "
                   "the model's Hugging Face folder"));
}

size_t CharacterBytes(char first) {
  const auto c = static_cast<unsigned char>(first);
  return c < 0x80 ? 1 : (c < 0xe0 ? 2 : (c < 0xf0 ? 3 : 4));
}

// Of characters, in text that need not be UTF-8: what begins none counts with what is before it.
int64_t Characters(absl::string_view text) {
  int64_t n = 0;
  for (char c : text) n += (static_cast<unsigned char>(c) & 0xc0) != 0x80;
  return n;
}

// transformers' generate_merges: every way to put a token together from two others, the tokens of
// the highest score first, then those with longer parts.
Json MergesOfScores(const std::vector<std::string>& tokens, const std::vector<double>& scores) {
  absl::flat_hash_map<absl::string_view, int64_t> ids;
  for (size_t i = 0; i < tokens.size(); ++i) ids.emplace(tokens[i], static_cast<int64_t>(i));
  struct Merge {
    double score;
    int64_t left, right;
    int64_t left_size, right_size;
  };
  std::vector<Merge> merges, local;
  for (size_t i = 0; i < tokens.size(); ++i) {
    const absl::string_view token = tokens[i];
    if (token.empty() || token.size() > kMaxPieceBytes) continue;
    local.clear();
    for (size_t at = CharacterBytes(token[0]); at < token.size(); at += CharacterBytes(token[at])) {
      const auto left = ids.find(token.substr(0, at)), right = ids.find(token.substr(at));
      if (left == ids.end() || right == ids.end()) continue;
      local.push_back({scores[i], left->second, right->second, Characters(token.substr(0, at)),
                       Characters(token.substr(at))});
    }
    std::stable_sort(local.begin(), local.end(), [](const Merge& a, const Merge& b) {
      return std::pair(a.left, a.right) < std::pair(b.left, b.right);
    });
    merges.insert(merges.end(), local.begin(), local.end());
  }
  std::stable_sort(merges.begin(), merges.end(), [](const Merge& a, const Merge& b) {
    if (a.score != b.score) return a.score > b.score;
    return std::pair(a.left_size, a.right_size) > std::pair(b.left_size, b.right_size);
  });
  Json out = Json::array();
  for (const Merge& m : merges) out.push_back({tokens[m.left], tokens[m.right]});
  return out;
}

// The characters' own mark of a blank.
constexpr char kBlank[] = "\xe2\x96\x81";

// Tokens of Phi-3's vocabulary that swallow the blanks behind them, as its tokenizer.json says and
// a GGUF does not; all of its control tokens but these.
constexpr absl::string_view kPhi3Names[] = {"<|endoftext|>", "<|assistant|>", "<|system|>",
                                            "<|end|>", "<|user|>"};
constexpr absl::string_view kPhi3KeepsBlanks[] = {"<unk>", "<s>", "<|endoftext|>"};

class Writer {
 public:
  explicit Writer(const GgufFile& file) : file_(file) {}

  absl::StatusOr<GgufTokenizerFiles> Run() {
    SOUP_ASSIGN_OR_RETURN(model_, file_.Text("tokenizer.ggml.model"));
    SOUP_ASSIGN_OR_RETURN(arch_, file_.TextOr("general.architecture", ""));
    const auto* tokens = file_.List<std::string>("tokenizer.ggml.tokens");
    types_ = file_.List<int64_t>("tokenizer.ggml.token_type");
    if (tokens == nullptr || tokens->empty()) return file_.Error("there is no tokenizer");
    tokens_ = *tokens;
    // Without it BOS, EOS and the template's tokens would be spelled out like any text.
    if (types_ == nullptr) return file_.Error("the metadata lacks tokenizer.ggml.token_type");
    if (types_->size() != tokens_.size())
      return file_.Error("tokenizer.ggml.token_type has another length than tokenizer.ggml.tokens");
    for (const char* key :
         {"tokenizer.ggml.precompiled_charsmap", "tokenizer.ggml.suffix_token_id"})
      if (file_.Has(key)) return file_.Error(absl::StrCat(key, " is not supported"));
    SOUP_ASSIGN_OR_RETURN(const bool trims,
                          file_.BoolOr("tokenizer.ggml.remove_extra_whitespaces", false));
    if (trims) return file_.Error("tokenizer.ggml.remove_extra_whitespaces is not supported");
    Json tokenizer;
    if (model_ == "gpt2") {
      SOUP_ASSIGN_OR_RETURN(tokenizer, ByteLevelTokenizer());
    } else if (model_ == "llama") {
      SOUP_ASSIGN_OR_RETURN(tokenizer, CharacterTokenizer());
    } else {
      return file_.Error(absl::StrCat("tokenizer.ggml.model '", model_.substr(0, 100),
                                      "' is not supported (known: gpt2, llama)"));
    }
    SOUP_ASSIGN_OR_RETURN(const Json config, Config());
    GgufTokenizerFiles out;
    try {
      out.tokenizer_json = tokenizer.dump();
      out.tokenizer_config_json = config.dump();
    } catch (const std::exception&) {
      return file_.Error("the tokenizer's metadata is not UTF-8");
    }
    return out;
  }

 private:
  int64_t Type(size_t i) const { return (*types_)[i]; }

  absl::StatusOr<Json> Vocab() const {
    Json out = Json::object();
    for (size_t i = 0; i < tokens_.size(); ++i) {
      if (!out.emplace(tokens_[i], i).second)
        return file_.Error(absl::StrCat("token '", tokens_[i].substr(0, 100), "' is there twice"));
    }
    return out;
  }

  Json AddedTokens() const {
    Json out = Json::array();
    for (size_t i = 0; i < tokens_.size(); ++i) {
      const int64_t type = Type(i);
      const bool special = type == kControl || (type == kUnknown && model_ == "llama");
      if (!special && type != kUserDefined) continue;
      const bool rstrip = phi3_ && special &&
                          std::find(std::begin(kPhi3KeepsBlanks), std::end(kPhi3KeepsBlanks),
                                    tokens_[i]) == std::end(kPhi3KeepsBlanks);
      out.push_back({{"id", i},
                     {"content", tokens_[i]},
                     {"single_word", false},
                     {"lstrip", false},
                     {"rstrip", rstrip},
                     {"normalized", false},
                     {"special", special}});
    }
    return out;
  }

  absl::StatusOr<Json> ByteLevelTokenizer() const {
    SOUP_ASSIGN_OR_RETURN(const Pre pre, FindPre(file_));
    const auto* merges = file_.List<std::string>("tokenizer.ggml.merges");
    if (merges == nullptr) return file_.Error("the metadata lacks tokenizer.ggml.merges");
    SOUP_ASSIGN_OR_RETURN(const Json vocab, Vocab());
    return Json{{"version", "1.0"},
                {"truncation", nullptr},
                {"padding", nullptr},
                {"added_tokens", AddedTokens()},
                {"normalizer", pre.normalizer},
                {"pre_tokenizer", pre.pre_tokenizer},
                {"post_processor", nullptr},
                {"decoder", ByteLevel(true)},
                {"model",
                 {{"type", "BPE"},
                  {"ignore_merges", pre.ignore_merges},
                  {"vocab", vocab},
                  {"merges", *merges}}}};
  }

  // llama.cpp's converter writes the blanks of a user-defined token as blanks; in tokenizer.json,
  // and in the merges, they are marks. It also gives such tokens a score of -1000, where
  // SentencePiece's is 0: runs of blanks are merged before all else.
  absl::Status RestoreUserDefined(std::vector<double>& scores) {
    for (size_t i = 0; i < tokens_.size(); ++i) {
      if (Type(i) != kUserDefined) continue;
      scores[i] = 0;
      std::string& token = tokens_[i];
      if (token.find(' ') == std::string::npos) continue;
      if (token.find_first_not_of(' ') != std::string::npos)
        return file_.Error(absl::StrCat(
            "the user-defined token '", token.substr(0, 100),
            "' has blanks, and the file does not say how they were written; use the model's "
            "Hugging Face folder"));
      std::string marks;
      for (size_t n = 0; n < token.size(); ++n) marks += kBlank;
      token = std::move(marks);
    }
    return absl::OkStatus();
  }

  // Gemma's tokenizer.json has a tab where SentencePiece has the byte.
  void RestoreTab() {
    if (std::find(tokens_.begin(), tokens_.end(), "\t") != tokens_.end()) return;
    const auto byte = std::find(tokens_.begin(), tokens_.end(), "<0x09>");
    if (byte != tokens_.end()) *byte = "\t";
  }

  absl::Status CheckPhi3() {
    for (const absl::string_view name : kPhi3Names) {
      const auto at = std::find(tokens_.begin(), tokens_.end(), name);
      if (at != tokens_.end() && Type(at - tokens_.begin()) == kControl) continue;
      return file_.Error(absl::StrCat(
          "the vocabulary is not Phi-3's (there is no control token ", name,
          "), and a GGUF does not say which of its tokens swallow the blanks behind them; use the "
          "model's Hugging Face folder"));
    }
    phi3_ = true;
    return absl::OkStatus();
  }

  // Without SentencePiece's model, llama.cpp's converter gives every token one score.
  absl::Status CheckOrder(const std::vector<double>& scores) const {
    int64_t normal = 0;
    double first = 0;
    for (size_t i = 0; i < scores.size(); ++i) {
      if (Type(i) != kNormal) continue;
      if (normal++ == 0) first = scores[i];
      if (scores[i] != first) return absl::OkStatus();
    }
    if (normal < 2) return absl::OkStatus();
    return file_.Error(absl::StrCat(
        "tokenizer.ggml.scores has ", first,
        " for every token, so the file does not say in which order tokens merge (it was converted "
        "without a tokenizer.model); use the model's Hugging Face folder"));
  }

  int64_t FirstUnknown() const {
    for (size_t i = 0; i < tokens_.size(); ++i) {
      if (Type(i) == kUnknown) return static_cast<int64_t>(i);
    }
    return 0;
  }

  absl::StatusOr<Json> CharacterTokenizer() {
    const auto* told = file_.List<double>("tokenizer.ggml.scores");
    if (told == nullptr || told->size() != tokens_.size())
      return file_.Error("tokenizer.ggml.scores is not there, or has not a score for each token");
    SOUP_RETURN_IF_ERROR(CheckOrder(*told));
    std::vector<double> scores = *told;
    const bool gemma = absl::StartsWith(arch_, "gemma");
    SOUP_RETURN_IF_ERROR(RestoreUserDefined(scores));
    if (gemma) RestoreTab();
    if (arch_ == "phi3") SOUP_RETURN_IF_ERROR(CheckPhi3());
    SOUP_ASSIGN_OR_RETURN(const int64_t unknown, TokenId("unknown_token_id", FirstUnknown()));
    SOUP_ASSIGN_OR_RETURN(const Json vocab, Vocab());
    SOUP_ASSIGN_OR_RETURN(const bool prefix,
                          file_.BoolOr("tokenizer.ggml.add_space_prefix", !gemma));
    const Json replace = {{"type", "Replace"}, {"pattern", {{"String", " "}}}, {"content", kBlank}};
    Json normalizers = Json::array();
    Json decoders =
        Json::array({{{"type", "Replace"}, {"pattern", {{"String", kBlank}}}, {"content", " "}},
                     {{"type", "ByteFallback"}},
                     {{"type", "Fuse"}}});
    if (prefix) {
      normalizers.push_back({{"type", "Prepend"}, {"prepend", kBlank}});
      decoders.push_back({{"type", "Strip"}, {"content", " "}, {"start", 1}, {"stop", 0}});
    }
    normalizers.push_back(replace);
    return Json{{"version", "1.0"},
                {"truncation", nullptr},
                {"padding", nullptr},
                {"added_tokens", AddedTokens()},
                {"normalizer", {{"type", "Sequence"}, {"normalizers", normalizers}}},
                {"pre_tokenizer", nullptr},
                {"post_processor", nullptr},
                {"decoder", {{"type", "Sequence"}, {"decoders", decoders}}},
                {"model",
                 {{"type", "BPE"},
                  {"unk_token", tokens_[unknown]},
                  {"fuse_unk", true},
                  {"byte_fallback", true},
                  {"vocab", vocab},
                  {"merges", MergesOfScores(tokens_, scores)}}}};
  }

  absl::StatusOr<int64_t> TokenId(absl::string_view name, int64_t otherwise) const {
    const std::string key = absl::StrCat("tokenizer.ggml.", name);
    SOUP_ASSIGN_OR_RETURN(const int64_t id, file_.IntOr(key, otherwise));
    if (id < 0 || id >= static_cast<int64_t>(tokens_.size()))
      return file_.Error(absl::StrCat(key, " is ", id, ", the vocabulary has ", tokens_.size()));
    return id;
  }

  absl::StatusOr<Json> Config() const {
    bool otherwise = true;
    if (model_ == "gpt2") {
      SOUP_ASSIGN_OR_RETURN(const Pre pre, FindPre(file_));
      otherwise = pre.add_bos;
    }
    SOUP_ASSIGN_OR_RETURN(const bool bos, file_.BoolOr("tokenizer.ggml.add_bos_token", otherwise));
    SOUP_ASSIGN_OR_RETURN(const bool eos, file_.BoolOr("tokenizer.ggml.add_eos_token", false));
    Json out = {{"add_bos_token", bos}, {"add_eos_token", eos}};
    if (model_ == "gpt2" && file_.Has("tokenizer.ggml.add_space_prefix")) {
      SOUP_ASSIGN_OR_RETURN(out["add_prefix_space"],
                            file_.BoolOr("tokenizer.ggml.add_space_prefix", false));
    }
    static constexpr std::pair<const char*, const char*> kTokens[] = {
        {"bos_token_id", "bos_token"},
        {"eos_token_id", "eos_token"},
        {"padding_token_id", "pad_token"},
        {"unknown_token_id", "unk_token"}};
    for (const auto& [id, name] : kTokens) {
      if (!file_.Has(absl::StrCat("tokenizer.ggml.", id))) continue;
      SOUP_ASSIGN_OR_RETURN(const int64_t token, TokenId(id, 0));
      out[name] = tokens_[token];
    }
    if (file_.Has("tokenizer.chat_template")) {
      SOUP_ASSIGN_OR_RETURN(out["chat_template"], file_.Text("tokenizer.chat_template"));
    }
    return out;
  }

  const GgufFile& file_;
  std::string model_;
  std::string arch_;
  std::vector<std::string> tokens_;
  const std::vector<int64_t>* types_ = nullptr;
  bool phi3_ = false;
};

}  // namespace

absl::StatusOr<GgufTokenizerFiles> ReadGgufTokenizer(const GgufFile& file) {
  return Writer(file).Run();
}

}  // namespace soup::engine
