// Streams' beginnings: records of files, data sets, generators.
#include "lockstep/data/stream.h"

#include <ATen/ATen.h>
#include <fmt/format.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

#include <algorithm>
#include <exception>
#include <filesystem>
#include <fstream>
#include <utility>

#include "lockstep/core/error.h"
#include "lockstep/core/log.h"
#include "lockstep/data/deal/batch_rows.h"
#include "lockstep/data/deal/order_probe.h"
#include "lockstep/data/deal/row_feed.h"
#include "lockstep/data/stages/sample_error.h"
#include "lockstep/data/stages/stage.h"
#include "lockstep/data/stages/stage_digest.h"

namespace lockstep {

namespace internal::inline data {

void append(lockstep::data::StreamPosition& position, const lockstep::data::StreamPosition& inner) {
  position.push_back(static_cast<int64_t>(inner.size()));
  position.insert(position.end(), inner.begin(), inner.end());
}

int64_t PositionParts::number(int64_t least) {
  if (next_ >= position_.size() || position_[next_] < least) refuse();
  return position_[next_++];
}

lockstep::data::StreamPosition PositionParts::inner() {
  const auto size = static_cast<std::size_t>(number());
  if (size > position_.size() - next_) refuse();
  const auto begin = position_.begin() + static_cast<std::ptrdiff_t>(next_);
  next_ += size;
  return {begin, begin + static_cast<std::ptrdiff_t>(size)};
}

void PositionParts::end() const {
  if (next_ != position_.size()) refuse();
}

void PositionParts::refuse() const {
  throw UsageError("LS-STATE-MISFIT", fmt::format("a cursor was given that is none of {}", who_),
                   "give what cursor() of the same pipeline gave");
}

}  // namespace internal::data

namespace data {

using internal::PositionParts;

void SkippedSamples::add(const std::exception_ptr& why) {
  constexpr int64_t kLogged = 8;
  if (!internal::is_about_sample(why)) std::rethrow_exception(why);
  const int64_t before = count_.fetch_add(1);
  if (all_) return all_->add(why);
  const bool is_rest = internal::loses_rest(why);
  if (before >= kLogged && !is_rest) return;
  internal::log(LogLevel::kWarning,
                fmt::format("{} was left out{}: {}{}", is_rest ? "the rest of a file" : "a sample",
                            is_rest ? ", and counts as one sample" : "", message_of(why),
                            before + 1 == kLogged ? " (of more samples only rests of files are logged)" : ""));
}

StreamReader::~StreamReader() = default;
StreamSource::~StreamSource() = default;

std::string StreamSource::name_of(int64_t id) const { return fmt::format("sample {} of {}", id, describe()); }

int64_t StreamSource::num_shards() const { return 1; }
std::vector<StreamSource::File> StreamSource::files() const { return {}; }
int64_t StreamSource::read_ahead() const { return 0; }
int64_t StreamSource::elements_in_memory() const { return 0; }
uint64_t StreamSource::digest() const { return internal::stage_digest(1, describe()); }

const std::shared_ptr<const StreamSource>& Stream::source() const {
  if (source_) return source_;
  throw UsageError("LS-EMPTY-HANDLE", "a Stream that holds no data was used",
                   "assign one first: data::from_records(...), data::from_generator(...)");
}

std::unique_ptr<StreamReader> Stream::open(const StreamPass& pass) const { return source()->open(pass, {}); }

std::vector<Batch> Stream::read_all(uint64_t seed) const {
  const auto reader = open({.pass = {.seed = seed}});
  std::vector<Batch> all;
  for (Batch element; reader->next(element);) all.push_back(std::move(element));
  return all;
}

namespace {

class GeneratorReader final : public StreamReader {
 public:
  GeneratorReader(GeneratorFunction generator, std::string name, int64_t elements, int64_t rows)
      : generator_(std::move(generator)), name_(std::move(name)), elements_(elements), rows_(rows) {}
  bool next(Batch& element) override {
    std::optional<Batch> made;
    try {
      made = generator_();
      if (!made) return false;
      internal::check_rows(
          *made, std::max<int64_t>(made->input.defined() && made->input.dim() > 0 ? made->input.size(0) : 1, 1), name_);
      internal::check_element(*made, name_);
    } catch (const DataError&) {
      throw;
    } catch (...) {
      std::throw_with_nested(
          DataError("LS-SOURCE",
                    fmt::format("{} failed at element {}: {}", name_, elements_, message_of(std::current_exception())),
                    "look into the generator; std::rethrow_if_nested gives the exception itself"));
    }
    const int64_t rows = made->input.size(0);
    made->padding = 0;
    made->global_size = 0;
    if (!made->ids.defined()) made->ids = at::arange(rows_, rows_ + rows, at::kLong);
    element = std::move(*made);
    ++elements_;
    rows_ += rows;
    return true;
  }
  StreamPosition position() const override { return {elements_, rows_}; }

 private:
  const GeneratorFunction generator_;
  const std::string name_;
  int64_t elements_;
  int64_t rows_;
};

class GeneratorSource final : public StreamSource {
 public:
  GeneratorSource(std::function<GeneratorFunction(const GeneratorStart&)> make, std::string name)
      : make_(std::move(make)), name_(std::move(name)) {}
  std::unique_ptr<StreamReader> open(const StreamPass& pass, const StreamPosition& position) const override {
    int64_t elements = 0;
    int64_t rows = 0;
    if (!position.empty()) {
      PositionParts parts(position, describe());
      elements = parts.number();
      rows = parts.number();
      parts.end();
    }
    return std::make_unique<GeneratorReader>(make_({pass.pass.seed, pass.pass.epoch, elements}), name_, elements, rows);
  }
  std::string describe() const override { return name_; }

 private:
  const std::function<GeneratorFunction(const GeneratorStart&)> make_;
  const std::string name_;
};

/// Samples that are read at once.
constexpr int64_t kAtOnce = 64;

class DatasetReader final : public StreamReader {
 public:
  DatasetReader(Dataset dataset, int64_t next, std::shared_ptr<SkippedSamples> skipped)
      : dataset_(std::move(dataset)), size_(dataset_.size()), next_(next), skipped_(std::move(skipped)) {}
  bool next(Batch& element) override {
    while (next_ < size_) {
      if (!has_next()) read_some();
      if (!has_next()) continue;
      element = internal::rows_of(some_, next_ - begin_, 1);
      ++next_;
      return true;
    }
    return false;
  }
  StreamPosition position() const override { return {next_}; }

 private:
  bool has_next() const { return next_ >= begin_ && next_ < begin_ + some_.size(); }

  /// Reads several at once, or the one among them that cannot be read alone, and then goes on behind it.
  void read_some() {
    std::vector<int64_t> ids;
    for (int64_t id = next_; id < std::min(size_, next_ + at_once_); ++id) ids.push_back(id);
    at_once_ = std::min<int64_t>(at_once_ * 2, kAtOnce);  // one that is read for a moment only reads little
    some_ = Batch();
    try {
      some_ = dataset_.read(ids);
      begin_ = next_;
    } catch (const DataError&) {
      at_once_ = 1;
      if (ids.size() > 1) return;
      ++next_;
      if (!skipped_) throw;
      skipped_->add(std::current_exception());
    } catch (...) {
      at_once_ = 1;
      if (ids.size() > 1) return;
      ++next_;
      throw;
    }
  }

  const Dataset dataset_;
  const int64_t size_;
  int64_t next_;
  const std::shared_ptr<SkippedSamples> skipped_;
  int64_t begin_ = 0;
  int64_t at_once_ = 1;
  Batch some_;
};

class DatasetStream final : public StreamSource {
 public:
  explicit DatasetStream(Dataset dataset) : dataset_(std::move(dataset)) {}
  std::unique_ptr<StreamReader> open(const StreamPass& pass, const StreamPosition& position) const override {
    int64_t next = 0;
    if (!position.empty()) {
      PositionParts parts(position, describe());
      next = parts.number();
      parts.end();
    }
    auto source = dataset_.source()->at_epoch(pass.pass);
    return std::make_unique<DatasetReader>(source ? Dataset(std::move(source)) : dataset_, next, pass.skipped);
  }
  std::string describe() const override { return dataset_.source()->describe(); }
  /// A sample is known by its number where that is the same sample in each epoch.
  std::string name_of(int64_t id) const override {
    const Source& source = *dataset_.source();
    return internal::changes_by_epoch(source) ? StreamSource::name_of(id) : source.name_of(id);
  }
  std::vector<File> files() const override { return {{describe(), dataset_.source()->digest()}}; }
  int64_t read_ahead() const override { return dataset_.source()->read_ahead(); }
  int64_t elements_in_memory() const override { return std::min(dataset_.size(), kAtOnce); }

 private:
  const Dataset dataset_;
};

}  // namespace

Stream from_dataset(const Dataset& dataset) {
  dataset.size();  // throws for an empty handle
  return Stream(std::make_shared<DatasetStream>(dataset));
}

Stream from_generator(std::function<GeneratorFunction(const GeneratorStart&)> make, const std::string& name) {
  return Stream(std::make_shared<GeneratorSource>(std::move(make), name));
}

Stream from_generator(std::function<GeneratorFunction()> make, const std::string& name) {
  const auto from = [make = std::move(make)](const GeneratorStart& start) {
    GeneratorFunction generator = make();
    for (int64_t i = 0; i < start.element && generator(); ++i) continue;
    return generator;
  };
  return Stream(std::make_shared<GeneratorSource>(from, name));
}

}  // namespace data
}  // namespace lockstep
