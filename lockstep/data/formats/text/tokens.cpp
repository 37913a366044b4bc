// Windows of tokens, read from a file as they are asked for.
#include <ATen/ATen.h>
#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/core/counted.h"
#include "lockstep/core/error.h"
#include "lockstep/data/files.h"
#include "lockstep/data/formats/input.h"
#include "lockstep/data/formats/text/token_guess.h"
#include "lockstep/data/sources/files_digest.h"
#include "lockstep/data/stages/stage_digest.h"

namespace lockstep::data {

namespace {

constexpr int64_t kSampled = 1 << 16;               // bytes
constexpr int64_t kWholeAtOnce = int64_t{1} << 26;  // bytes of tokens that are all looked at before the first is used

int64_t width_of(TokenType type) {
  switch (type) {
    case TokenType::kUInt8: return 1;
    case TokenType::kUInt16: return 2;
    case TokenType::kUInt32:
    case TokenType::kInt32: return 4;
    case TokenType::kInt64: return 8;
  }
  throw UsageError("LS-OPTION", fmt::format("tokens was given .dtype {}", static_cast<int>(type)), "give a TokenType");
}

/// How many different tokens a dtype holds; INT64_MAX where they are more.
int64_t most_of(TokenType type) {
  if (type == TokenType::kInt64) return INT64_MAX;
  return int64_t{1} << (8 * width_of(type) - (type == TokenType::kInt32 ? 1 : 0));
}

template <class T>
void widen(const char* bytes, int64_t count, int64_t* to) {
  for (int64_t i = 0; i < count; ++i) {
    T value;
    std::memcpy(&value, bytes + i * static_cast<int64_t>(sizeof(T)), sizeof(T));
    to[i] = static_cast<int64_t>(value);
  }
}

void widen(TokenType type, const char* bytes, int64_t count, int64_t* to) {
  switch (type) {
    case TokenType::kUInt8: return widen<uint8_t>(bytes, count, to);
    case TokenType::kUInt16: return widen<uint16_t>(bytes, count, to);
    case TokenType::kUInt32: return widen<uint32_t>(bytes, count, to);
    case TokenType::kInt32: return widen<int32_t>(bytes, count, to);
    case TokenType::kInt64: return widen<int64_t>(bytes, count, to);
  }
}

class TokenSource final : public Source {
 public:
  TokenSource(const std::string& path, const TokenOptions& options)
      : file_(path), options_(options), width_(width_of(options.dtype)) {
    const int64_t bytes = file_.size() - options.header;
    if (options.check_dtype) check_header();
    if (bytes < 0 || bytes % width_ != 0) {
      throw DataError(
          "LS-DATA-FILE",
          fmt::format("'{}' has {} bytes, {} of them before the tokens: the rest is no number of tokens of {} bytes",
                      path, file_.size(), options.header, width_),
          "check .dtype and .header, or get the file again");
    }
    // A window needs one token more than it has: the target of its last one.
    size_ = (bytes / width_ - 1) / options.context;
    if (bytes / width_ <= options.context) {
      throw DataError(
          "LS-DATA-FILE",
          fmt::format("'{}' has {} tokens, too few for a window of {}", path, bytes / width_, options.context),
          "give a longer file, or a smaller .context");
    }
    if (options.check_dtype) check_dtype(bytes);
    if (options.vocabulary > 0) check_vocabulary(bytes);
  }

  int64_t size() const override { return size_; }

  Batch read(std::span<const int64_t> ids) const override {
    const auto count = static_cast<int64_t>(ids.size());
    const int64_t context = options_.context;
    Batch batch{.input = at::empty({count, context}, at::kLong), .target = at::empty({count, context}, at::kLong)};
    std::string bytes(static_cast<std::size_t>((context + 1) * width_), '\0');
    for (int64_t i = 0; i < count; ++i) {
      const int64_t offset = options_.header + ids[static_cast<std::size_t>(i)] * context * width_;
      const std::size_t got = file_.read_at(offset, bytes.data(), bytes.size());
      if (got < bytes.size()) {
        throw DataError("LS-DATA-FILE",
                        fmt::format("'{}' had {} bytes when it was opened, and now ends at byte {}", file_.path(),
                                    file_.size(), offset + static_cast<int64_t>(got)),
                        "let nothing write to it while it is in use");
      }
      int64_t* const input = batch.input.data_ptr<int64_t>() + i * context;
      int64_t* const target = batch.target.data_ptr<int64_t>() + i * context;
      widen(options_.dtype, bytes.data(), context, input);
      widen(options_.dtype, bytes.data() + width_, context, target);
      check(input, context, offset);
      check(target + context - 1, 1, offset + context * width_);
    }
    return batch;
  }

  std::string describe() const override {
    return fmt::format("{} windows of {} tokens in '{}'", size_, options_.context, file_.path());
  }
  std::vector<SourceFile> files() const override { return {{file_.path(), internal::digest_of_file(file_.path())}}; }
  uint64_t digest() const override {
    return internal::stage_digest(internal::digest_of(files()), "tokens",
                                  {static_cast<uint64_t>(options_.dtype), static_cast<uint64_t>(options_.context),
                                   static_cast<uint64_t>(options_.header)});
  }

 private:
  /// Bytes of tokens, from `offset` among them on.
  std::string piece(int64_t offset, int64_t count) const {
    std::string bytes(static_cast<std::size_t>(count), '\0');
    bytes.resize(file_.read_at(options_.header + offset, bytes.data(), bytes.size()));
    return bytes;
  }

  void check_header() const {
    char begin[16];
    const int64_t header = internal::known_header({begin, file_.read_at(0, begin, sizeof begin)});
    if (options_.header >= header) return;
    throw DataError("LS-DATA-FILE",
                    fmt::format("'{}' has a header of {} bytes before its tokens, and .header is {}", file_.path(),
                                header, options_.header),
                    fmt::format("give .header = {}, and the .dtype that it names", header));
  }

  /// By the tokens at the beginning, in the middle and at the end.
  void check_dtype(int64_t bytes) const {
    std::string sample;
    for (const int64_t at : {int64_t{0}, bytes / 2, bytes - kSampled}) {
      const int64_t begin = std::max<int64_t>(at, static_cast<int64_t>(sample.size())) / 8 * 8;
      if (begin < bytes) sample += piece(begin, std::min(kSampled, bytes - begin) / 8 * 8);
    }
    const auto other = internal::other_tokens(
        sample, {.width = static_cast<int>(width_),
                 .is_signed = options_.dtype == TokenType::kInt32 || options_.dtype == TokenType::kInt64,
                 .vocabulary = options_.vocabulary,
                 .bytes = bytes});
    if (!other) return;
    throw DataError("LS-DATA-FILE",
                    fmt::format("'{}' was to be read as {} tokens of {}, and looks like {}", file_.path(),
                                bytes / width_, internal::counted(width_, "byte"), *other),
                    "check .dtype and .header; where they are right, give .check_dtype = false");
  }

  /// All tokens, or of a large file those at the beginning and at the end; the others when they are read.
  void check_vocabulary(int64_t bytes) const {
    const int64_t end_of_first = bytes <= kWholeAtOnce ? bytes : kSampled;
    check_range(0, end_of_first);
    if (end_of_first < bytes) check_range((bytes - kSampled) / width_ * width_, bytes);
  }

  void check_range(int64_t begin, int64_t end) const {
    std::vector<int64_t> tokens(static_cast<std::size_t>(kSampled / width_));
    for (int64_t at = begin; at < end; at += kSampled) {
      const std::string bytes = piece(at, std::min(kSampled, end - at));
      const auto count = static_cast<int64_t>(bytes.size()) / width_;
      widen(options_.dtype, bytes.data(), count, tokens.data());
      check(tokens.data(), count, options_.header + at);
    }
  }

  void check(const int64_t* tokens, int64_t count, int64_t offset) const {
    if (options_.vocabulary == 0) return;
    for (int64_t i = 0; i < count; ++i) {
      if (tokens[i] >= 0 && tokens[i] < options_.vocabulary) continue;
      throw DataError("LS-DATA-FILE",
                      fmt::format("'{}' has the token {} at byte {}, and the vocabulary has {}", file_.path(),
                                  tokens[i], offset + i * width_, options_.vocabulary),
                      "check .dtype, .header and .vocabulary, or get the file again");
    }
  }

  const internal::FileContents file_;
  const TokenOptions options_;
  const int64_t width_;
  int64_t size_ = 0;
};

}  // namespace

Dataset tokens(const std::string& path, const TokenOptions& options) {
  if (options.context < 1 || options.header < 0 || options.vocabulary < 0) {
    throw UsageError("LS-OPTION",
                     fmt::format("tokens was given .context {}, .header {} and .vocabulary {}", options.context,
                                 options.header, options.vocabulary),
                     "give a context of at least 1, and no negative numbers");
  }
  if (options.vocabulary > most_of(options.dtype)) {
    throw UsageError(
        "LS-OPTION",
        fmt::format("tokens was given a .vocabulary of {}, and tokens of {} are below {}", options.vocabulary,
                    internal::counted(width_of(options.dtype), "byte"), most_of(options.dtype)),
        "check .vocabulary, or give the .dtype that the file was written with");
  }
  return Dataset(std::make_shared<TokenSource>(path, options));
}

}  // namespace lockstep::data
