// Text as a data set: windows of bytes, each byte to be predicted from the bytes before it.
#include <ATen/ATen.h>
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "lockstep/core/error.h"
#include "lockstep/data/formats/input.h"
#include "lockstep/data/sources/files_digest.h"
#include "lockstep/data/sources/sources.h"
#include "lockstep/data/stages/stage_digest.h"

namespace lockstep::data {

namespace {

/// The windows of the bytes [begin, end) of a text, whose bytes were replaced by their numbers in the vocabulary.
class WindowSource final : public Source {
 public:
  WindowSource(std::shared_ptr<const std::string> numbers, SourceFile file, std::size_t begin, std::size_t end,
               int64_t context)
      : numbers_(std::move(numbers)),
        file_(std::move(file)),
        begin_(begin),
        size_(static_cast<int64_t>(end - begin - 1) / context),
        context_(context) {}

  int64_t size() const override { return size_; }

  Batch read(std::span<const int64_t> ids) const override {
    const auto count = static_cast<int64_t>(ids.size());
    Batch batch{.input = at::empty({count, context_}, at::kLong), .target = at::empty({count, context_}, at::kLong)};
    auto* input = batch.input.data_ptr<int64_t>();
    auto* target = batch.target.data_ptr<int64_t>();
    for (const int64_t id : ids) {
      const char* from = numbers_->data() + begin_ + static_cast<std::size_t>(id * context_);
      for (int64_t i = 0; i < context_; ++i, ++from) {
        *input++ = static_cast<unsigned char>(from[0]);
        *target++ = static_cast<unsigned char>(from[1]);
      }
    }
    return batch;
  }

  std::string describe() const override {
    return fmt::format("{} windows of {} bytes of '{}'", size_, context_, file_.name);
  }
  std::vector<SourceFile> files() const override { return {file_}; }
  uint64_t digest() const override {
    return internal::stage_digest(file_.digest, "text", {begin_, static_cast<uint64_t>(context_)});
  }

 private:
  const std::shared_ptr<const std::string> numbers_;
  const SourceFile file_;
  const std::size_t begin_;
  const int64_t size_;
  const int64_t context_;
};

}  // namespace

Text text(const std::string& path, int64_t context) {
  if (context < 1)
    throw UsageError("LS-OPTION", fmt::format("text was given a context of {}", context), "give at least 1");
  std::string bytes = internal::bytes_of_file(path, INT64_MAX - 1);
  const std::size_t cut = bytes.size() - bytes.size() / 10;
  // A window needs one byte more than it has: the target of its last byte.
  const auto fits = [&](std::size_t part) { return part > static_cast<uint64_t>(context); };
  if (!fits(cut) || !fits(bytes.size() - cut)) {
    throw DataError(
        "LS-DATA-FILE",
        fmt::format(
            "'{}' has {} bytes, the last {} of them for evaluation: one part is too short for a window of {} bytes",
            path, bytes.size(), bytes.size() - cut, context),
        "give a longer text, or a smaller context");
  }
  const SourceFile file = internal::file_in_memory(path, bytes);
  std::array<bool, 256> present{};
  for (const char byte : bytes) present[static_cast<unsigned char>(byte)] = true;
  std::array<char, 256> number_of{};
  std::string vocabulary;
  for (std::size_t byte = 0; byte < present.size(); ++byte) {
    if (!present[byte]) continue;
    number_of[byte] = static_cast<char>(vocabulary.size());
    vocabulary += static_cast<char>(byte);
  }
  std::transform(bytes.begin(), bytes.end(), bytes.begin(),
                 [&](char byte) { return number_of[static_cast<unsigned char>(byte)]; });
  const auto numbers = std::make_shared<const std::string>(std::move(bytes));
  const auto part = [&](std::size_t begin, std::size_t end) {
    return Dataset(std::make_shared<WindowSource>(numbers, file, begin, end, context));
  };
  return {part(0, cut), part(cut, numbers->size()), std::move(vocabulary)};
}

}  // namespace lockstep::data
