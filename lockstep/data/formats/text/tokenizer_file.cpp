// Hugging Face's tokenizer.json, as far as it is byte-level BPE. What would change tokens and is not known here is
// refused.
#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <initializer_list>
#include <nlohmann/json.hpp>
#include <utility>

#include "lockstep/cluster/named_text.h"
#include "lockstep/core/error.h"
#include "lockstep/data/formats/text/byte_pairs.h"

namespace lockstep::internal::inline data {

namespace {

using nlohmann::json;

/// Reads one file into a BytePairs.
class TokenizerFile {
 public:
  explicit TokenizerFile(const std::string& name) : name_(name) {}

  std::shared_ptr<const BytePairs> read(std::string_view text) {
    const json file = json::parse(text.begin(), text.end(), nullptr, false);
    if (!file.is_object()) damaged("it is no JSON object");
    expect_keys(file, "the file",
                {"version", "truncation", "padding", "added_tokens", "normalizer", "pre_tokenizer", "post_processor",
                 "decoder", "model"});
    for (const char* key : {"truncation", "padding", "normalizer"}) {
      if (!is_null(file, key)) refuse(fmt::format("it has a {}", key));
    }
    for (const char* key : {"post_processor", "decoder"}) {
      if (!is_null(file, key) && type_of(file[key]) != "ByteLevel") {
        refuse(fmt::format("its {} is {}, and not ByteLevel", key, in_quotes(type_of(file[key]))));
      }
    }
    if (is_null(file, "model") || !file["model"].is_object()) damaged("it has no model");
    read_pre_tokenizer(file);
    const json& model = file["model"];
    check_model(model);
    read_vocabulary(member(model, "vocab", json::value_t::object));
    read_merges(member(model, "merges", json::value_t::array));
    if (!is_null(file, "added_tokens")) read_added(member(file, "added_tokens", json::value_t::array));
    return std::make_shared<const BytePairs>(std::move(pairs_));
  }

 private:
  [[noreturn]] void refuse(const std::string& reason) const {
    throw DataError("LS-DATA-FILE",
                    fmt::format("'{}' is a tokenizer of a kind that is not supported: {}", name_, reason),
                    "use one of byte-level BPE without normalizer, like GPT-2's");
  }
  [[noreturn]] void damaged(const std::string& reason) const {
    throw DataError("LS-DATA-FILE", fmt::format("'{}' is no tokenizer.json: {}", name_, reason), "get the file again");
  }

  static bool is_null(const json& object, const char* key) { return !object.contains(key) || object[key].is_null(); }
  static std::string type_of(const json& object) {
    if (!object.is_object() || is_null(object, "type") || !object["type"].is_string()) return "";
    return object["type"].get<std::string>();
  }
  /// A truth value; false where there is none.
  bool flag(const json& object, const char* key, bool otherwise = false) const {
    if (is_null(object, key)) return otherwise;
    if (!object[key].is_boolean()) damaged(fmt::format("its {} is neither true nor false", key));
    return object[key].get<bool>();
  }
  const json& member(const json& object, const char* key, json::value_t type) const {
    if (is_null(object, key) || object[key].type() != type)
      damaged(fmt::format("its {} is missing, or of the wrong kind", key));
    return object[key];
  }
  void expect_keys(const json& object, const char* what, std::initializer_list<std::string_view> known) const {
    for (const auto& [key, value] : object.items()) {
      bool is_known = false;
      for (const std::string_view one : known) is_known = is_known || key == one;
      if (!is_known) refuse(fmt::format("{} has the entry {}", what, in_quotes(key)));
    }
  }
  /// A number of a token.
  int64_t token_in(const json& value) const {
    if (!value.is_number_integer()) damaged("a token is no whole number");
    const auto token = value.get<int64_t>();
    if (token < 0 || token > INT32_MAX) damaged(fmt::format("there is a token {}", token));
    return token;
  }

  void read_pre_tokenizer(const json& file) {
    if (is_null(file, "pre_tokenizer")) refuse("it has no pre_tokenizer");
    const json& pre = file["pre_tokenizer"];
    if (type_of(pre) != "ByteLevel")
      refuse(fmt::format("its pre_tokenizer is {}, and not ByteLevel", in_quotes(type_of(pre))));
    expect_keys(pre, "its pre_tokenizer", {"type", "add_prefix_space", "trim_offsets", "use_regex"});
    pairs_.prefix_space = flag(pre, "add_prefix_space", true);
    pairs_.splits = flag(pre, "use_regex", true);
  }

  void check_model(const json& model) const {
    if (model.contains("type") && type_of(model) != "BPE")
      refuse(fmt::format("its model is {}, and not BPE", in_quotes(type_of(model))));
    expect_keys(model, "its model",
                {"type", "dropout", "unk_token", "continuing_subword_prefix", "end_of_word_suffix", "fuse_unk",
                 "byte_fallback", "ignore_merges", "vocab", "merges"});
    if (!is_null(model, "dropout") && model["dropout"] != 0) refuse("its model has a dropout");
    for (const char* key : {"continuing_subword_prefix", "end_of_word_suffix"}) {
      if (!is_null(model, key) && model[key] != "") refuse(fmt::format("its model has a {}", key));
    }
    if (flag(model, "ignore_merges")) refuse("its model has ignore_merges");
  }

  void read_vocabulary(const json& vocabulary) {
    for (const auto& [spelling, value] : vocabulary.items()) {
      const int64_t token = token_in(value);
      if (!pairs_.bytes.emplace(token, unspelled(spelling).value_or(spelling)).second) {
        damaged(fmt::format("two entries of its vocabulary are token {}", token));
      }
      pairs_.tokens.emplace(spelling, token);
      pairs_.size = std::max(pairs_.size, token + 1);
    }
    for (int byte = 0; byte < 256; ++byte) {
      const char c = static_cast<char>(byte);
      const auto found = pairs_.tokens.find(spelled({&c, 1}));
      if (found == pairs_.tokens.end()) refuse(fmt::format("its vocabulary has no token for the byte {}", byte));
      pairs_.byte_tokens.push_back(found->second);
    }
  }

  /// "left right", or a list of both.
  std::pair<std::string, std::string> parts_of(const json& merge) const {
    if (merge.is_string()) {
      const std::string text = merge.get<std::string>();
      const std::size_t space = text.find(' ');
      if (space != std::string::npos && text.find(' ', space + 1) == std::string::npos) {
        return {text.substr(0, space), text.substr(space + 1)};
      }
    } else if (merge.is_array() && merge.size() == 2 && merge[0].is_string() && merge[1].is_string()) {
      return {merge[0].get<std::string>(), merge[1].get<std::string>()};
    }
    damaged("one of its merges is no pair of texts");
  }

  void read_merges(const json& merges) {
    const auto token_of = [&](const std::string& spelling) {
      const auto found = pairs_.tokens.find(spelling);
      if (found == pairs_.tokens.end())
        damaged(fmt::format("its merges need {}, which its vocabulary has not", in_quotes(spelling)));
      return found->second;
    };
    int64_t rank = 0;
    for (const json& merge : merges) {
      const auto [left, right] = parts_of(merge);
      const uint64_t pair = BytePairs::pair(token_of(left), token_of(right));
      pairs_.merges.insert_or_assign(pair, BytePairs::Merge{rank++, token_of(left + right)});
    }
  }

  void read_added(const json& added) {
    for (const json& one : added) {
      if (!one.is_object() || is_null(one, "content") || !one["content"].is_string() || !one.contains("id")) {
        damaged("one of its added tokens has no content or no id");
      }
      const std::string content = one["content"].get<std::string>();
      const int64_t token = token_in(one["id"]);
      for (const char* key : {"single_word", "lstrip", "rstrip"}) {
        if (flag(one, key)) refuse(fmt::format("its added token {} has {}", in_quotes(content), key));
      }
      const auto [known, is_new] = pairs_.tokens.emplace(content, token);
      const auto bytes = pairs_.bytes.find(token);
      if (content.empty() || known->second != token || (is_new && bytes != pairs_.bytes.end())) {
        damaged(fmt::format("its added token {} is empty, or token {} of its vocabulary is another one",
                            in_quotes(content), token));
      }
      pairs_.bytes[token] = content;
      pairs_.size = std::max(pairs_.size, token + 1);
      (flag(one, "normalized", true) ? pairs_.second_texts : pairs_.first_texts).add(content, token);
    }
  }

  const std::string& name_;
  BytePairs pairs_;
};

}  // namespace

std::shared_ptr<const BytePairs> parse_tokenizer(const std::string& name, std::string_view json) {
  return TokenizerFile(name).read(json);
}

}  // namespace lockstep::internal::data
