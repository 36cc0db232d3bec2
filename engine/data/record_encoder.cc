#include "engine/data/record_encoder.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "engine/base/status_macros.h"
#include "engine/data/chat_encoder.h"
#include "engine/data/record_conversion.h"
#include "engine/data/token_record.h"

namespace soup::engine {
namespace {

bool StartsWith(const std::vector<int32_t>& ids, const std::vector<int32_t>& prefix) {
  return ids.size() >= prefix.size() && std::equal(prefix.begin(), prefix.end(), ids.begin());
}
bool EndsWith(const std::vector<int32_t>& ids, const std::vector<int32_t>& suffix) {
  return ids.size() >= suffix.size() && std::equal(suffix.rbegin(), suffix.rend(), ids.rbegin());
}

// The id of a special token that tokenizer_config.json names.
absl::StatusOr<int32_t> SpecialId(const Tokenizer& tokenizer, const std::string& what,
                                  const std::string& token) {
  const int32_t id = tokenizer.IdOf(token);
  if (id < 0) {
    return absl::InvalidArgumentError(absl::StrCat("tokenizer_config.json: ", what, " '", token,
                                                   "' is no token of tokenizer.json"));
  }
  return id;
}

}  // namespace

struct RecordEncoder::Rep {
  const Tokenizer* tokenizer = nullptr;
  Options options;
  EncodeContext context;
  std::unique_ptr<ChatEncoder> chat;    // messages, and what becomes messages
  std::vector<int32_t> prefix, suffix;  // around a text or a prompt and its completion

  absl::Status ReadAffixes(const TokenizerConfig& config);
  absl::Status Append(const std::string& text, std::vector<int32_t>* ids) {
    return tokenizer->Encode(text, &context, ids);
  }
  absl::Status EncodeText(const Value& record, EncodedRecord* out);
  absl::Status EncodePromptCompletion(const std::string& prompt, const std::string& completion,
                                      EncodedRecord* out);
  absl::Status EncodeAlpaca(const Value& record, EncodedRecord* out);
  absl::Status EncodeMessages(const Value& record, EncodedRecord* out) {
    return chat->Encode(record, &context, &out->tokens, &out->notices);
  }
  absl::Status EncodeTokens(const Value& record, EncodedRecord* out) const;
  absl::Status EncodeAny(const Value& record, EncodedRecord* out);
  void AddAffixes(std::vector<int32_t>* head, std::vector<int32_t>* tail, EncodedRecord* out) const;
  absl::Status CheckVocabulary(const TokenRecord& tokens) const;
};

// One BOS and one EOS: the post-processor's tokens, completed by what tokenizer_config.json names.
absl::Status RecordEncoder::Rep::ReadAffixes(const TokenizerConfig& config) {
  prefix = tokenizer->prefix();
  suffix = tokenizer->suffix();
  if (prefix.empty() && config.add_bos_token.value_or(false)) {
    const std::string* bos = config.Token("bos_token");
    if (bos == nullptr) {
      return absl::InvalidArgumentError(
          "tokenizer_config.json: add_bos_token is true, but there is no bos_token");
    }
    SOUP_ASSIGN_OR_RETURN(const int32_t id, SpecialId(*tokenizer, "bos_token", *bos));
    prefix.push_back(id);
  }
  const std::string* eos = config.Token("eos_token");
  if (eos == nullptr) {
    if (!suffix.empty()) return absl::OkStatus();
    return absl::InvalidArgumentError(
        "tokenizer_config.json: no eos_token; without one a model trained on text or "
        "prompt/completion records never learns to stop. Add it to the model's folder");
  }
  SOUP_ASSIGN_OR_RETURN(const int32_t id, SpecialId(*tokenizer, "eos_token", *eos));
  if (std::find(suffix.begin(), suffix.end(), id) == suffix.end()) suffix.push_back(id);
  return absl::OkStatus();
}

// `head` begins the record and `tail` ends it; they may be the same.
void RecordEncoder::Rep::AddAffixes(std::vector<int32_t>* head, std::vector<int32_t>* tail,
                                    EncodedRecord* out) const {
  if (EndsWith(*tail, suffix)) {
    out->notices.push_back("record(s) already end in the end token; no second one was added");
  } else {
    tail->insert(tail->end(), suffix.begin(), suffix.end());
  }
  if (prefix.empty()) return;
  if (StartsWith(*head, prefix)) {
    out->notices.push_back("record(s) already begin with the BOS token; no second one was added");
  } else {
    head->insert(head->begin(), prefix.begin(), prefix.end());
  }
}

absl::Status RecordEncoder::Rep::EncodeText(const Value& record, EncodedRecord* out) {
  SOUP_ASSIGN_OR_RETURN(const std::string text, StringMember(record, "text"));
  std::vector<int32_t>& ids = out->tokens.ids;
  SOUP_RETURN_IF_ERROR(Append(text, &ids));
  if (ids.empty()) {
    out->notices.push_back("record(s) have an empty text: there is nothing to learn from them");
    return absl::OkStatus();
  }
  AddAffixes(&ids, &ids, out);
  out->tokens.supervised.assign(ids.size(), 1);
  return absl::OkStatus();
}

// Each side alone, as generation sees it: the prompt's own ids, then the answer's. A merge across
// the join would make a token that belongs to both.
absl::Status RecordEncoder::Rep::EncodePromptCompletion(const std::string& prompt,
                                                        const std::string& completion,
                                                        EncodedRecord* out) {
  std::vector<int32_t>& ids = out->tokens.ids;
  std::vector<int32_t> answer;
  SOUP_RETURN_IF_ERROR(Append(prompt, &ids));
  // A completion goes on where its prompt ended: no blank of the tokenizer's own between them.
  SOUP_RETURN_IF_ERROR(prompt.empty() ? Append(completion, &answer)
                                      : tokenizer->EncodeContinued(completion, &context, &answer));
  if (answer.empty()) {
    out->notices.push_back("record(s) have an empty answer: the end token alone is trained on");
  }
  AddAffixes(&ids, &answer, out);
  out->tokens.supervised.assign(ids.size(), options.train_on_all ? 1 : 0);
  ids.insert(ids.end(), answer.begin(), answer.end());
  out->tokens.supervised.resize(ids.size(), 1);
  return absl::OkStatus();
}

absl::Status RecordEncoder::Rep::EncodeAlpaca(const Value& record, EncodedRecord* out) {
  if (chat != nullptr) {
    SOUP_ASSIGN_OR_RETURN(const Value messages, AlpacaToMessages(record));
    return EncodeMessages(messages, out);
  }
  SOUP_ASSIGN_OR_RETURN(const PromptAndCompletion sides, AlpacaToPrompt(record));
  return EncodePromptCompletion(sides.prompt, sides.completion, out);
}

absl::Status RecordEncoder::Rep::EncodeTokens(const Value& record, EncodedRecord* out) const {
  SOUP_RETURN_IF_ERROR(
      ReadTokenRecord(record, options.train_on_all, options.vocab_size, &out->tokens));
  const std::vector<int32_t>&bos = tokenizer->prefix(), &ids = out->tokens.ids;
  if (bos.empty()) return absl::OkStatus();
  if (!StartsWith(ids, bos)) {
    out->notices.push_back(
        "record(s) of token ids begin without the BOS token that the tokenizer adds to texts");
  } else if (ids.size() >= 2 * bos.size() &&
             std::equal(bos.begin(), bos.end(),
                        ids.begin() + static_cast<std::ptrdiff_t>(bos.size()))) {
    out->notices.push_back("record(s) of token ids begin with two BOS tokens");
  }
  return absl::OkStatus();
}

absl::Status RecordEncoder::Rep::CheckVocabulary(const TokenRecord& tokens) const {
  if (options.vocab_size <= 0) return absl::OkStatus();
  for (int32_t id : tokens.ids) {
    if (id < options.vocab_size) continue;
    return absl::FailedPreconditionError(absl::StrCat(
        "token '", tokenizer->Decode({id}), "' has id ", id, ", but the model has ",
        options.vocab_size,
        " vocabulary rows: tokenizer.json and the model's weights do not belong together"));
  }
  return absl::OkStatus();
}

absl::Status RecordEncoder::Rep::EncodeAny(const Value& record, EncodedRecord* out) {
  switch (options.format) {
    case RecordFormat::kText:
      return EncodeText(record, out);
    case RecordFormat::kPromptCompletion: {
      SOUP_ASSIGN_OR_RETURN(const std::string prompt, StringMember(record, "prompt"));
      SOUP_ASSIGN_OR_RETURN(const std::string completion, StringMember(record, "completion"));
      return EncodePromptCompletion(prompt, completion, out);
    }
    case RecordFormat::kMessages:
      return EncodeMessages(record, out);
    case RecordFormat::kAlpaca:
      return EncodeAlpaca(record, out);
    case RecordFormat::kSharegpt: {
      SOUP_ASSIGN_OR_RETURN(const Value messages, SharegptToMessages(record));
      return EncodeMessages(messages, out);
    }
    case RecordFormat::kInputIds:
      return EncodeTokens(record, out);
  }
  return absl::InternalError("a format without an encoder");
}

RecordEncoder::RecordEncoder() : rep_(std::make_unique<Rep>()) {}
RecordEncoder::~RecordEncoder() = default;

absl::StatusOr<std::unique_ptr<RecordEncoder>> RecordEncoder::Create(const Tokenizer* tokenizer,
                                                                     const TokenizerConfig& config,
                                                                     Options options) {
  std::unique_ptr<RecordEncoder> out(new RecordEncoder);
  Rep& rep = *out->rep_;
  rep.tokenizer = tokenizer;
  rep.options = options;
  const bool conversation =
      options.format == RecordFormat::kMessages || options.format == RecordFormat::kSharegpt ||
      (options.format == RecordFormat::kAlpaca && !config.chat_template.empty());
  if (conversation) {
    SOUP_ASSIGN_OR_RETURN(rep.chat, ChatEncoder::Create(tokenizer, config, options.train_on_all));
  } else if (options.format != RecordFormat::kInputIds) {
    SOUP_RETURN_IF_ERROR(rep.ReadAffixes(config));
  }
  return out;
}

std::string RecordEncoder::manner() const {
  if (rep_->options.format != RecordFormat::kAlpaca) return "";
  return rep_->chat != nullptr
             ? "instruction and input become a user turn of the model's chat template, output the "
               "assistant's"
             : "the base has no chat template, so the prompt is Stanford Alpaca's";
}

absl::StatusOr<EncodedRecord> RecordEncoder::Encode(const Value& record) {
  Rep& rep = *rep_;
  EncodedRecord out;
  rep.context.dropped_bytes = 0;
  std::vector<std::string> ignored;
  SOUP_RETURN_IF_ERROR(CheckRecordKeys(record, rep.options.format, &ignored));
  SOUP_RETURN_IF_ERROR(rep.EncodeAny(record, &out));
  SOUP_RETURN_IF_ERROR(rep.CheckVocabulary(out.tokens));
  for (const std::string& key : ignored) {
    out.notices.push_back(absl::StrCat("record(s) have the key '", key.substr(0, 40),
                                       "', which this format does not use"));
  }
  if (rep.context.dropped_bytes > 0) {
    out.notices.push_back(
        "record(s) hold bytes that the vocabulary has no token for; they are left out, as Hugging "
        "Face tokenizers does");
  }
  return out;
}

}  // namespace soup::engine
