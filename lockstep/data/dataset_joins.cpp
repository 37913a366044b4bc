// The stages of data sets that read one data set several times, or two side by side.
#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <limits>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "lockstep/core/error.h"
#include "lockstep/data/batch_rows.h"
#include "lockstep/data/files_digest.h"
#include "lockstep/data/order_probe.h"
#include "lockstep/data/stage.h"
#include "lockstep/data/stage_digest.h"

namespace lockstep::data {

using internal::check_count;

namespace {

/// Up to the largest number: ids beyond it would be those of more samples than a data set can have.
int64_t sum_of(int64_t a, int64_t b) {
  int64_t sum = 0;
  return __builtin_add_overflow(a, b, &sum) ? std::numeric_limits<int64_t>::max() : sum;
}
int64_t product_of(int64_t a, int64_t b) {
  int64_t product = 0;
  return __builtin_mul_overflow(a, b, &product) ? std::numeric_limits<int64_t>::max() : product;
}

/// Samples of one of several sources each: read() collects those of each source and puts them in order.
class PartsStage : public Stage {
 public:
  using Stage::Stage;

 protected:
  struct Part {
    std::shared_ptr<const Source> source;
    std::vector<int64_t> ids;   // in the source
    std::vector<int64_t> rows;  // where they stand in what is read
  };
  /// Reads all parts of the samples `ids`. There is at least one.
  Batch read_parts(const std::vector<Part>& parts, std::span<const int64_t> ids) const {
    std::vector<Batch> read;
    std::vector<int64_t> firsts;            // places of the parts' first samples, for messages
    std::vector<int64_t> from(ids.size());  // the row of the joined parts that stands at a place
    int64_t next = 0;
    for (const Part& part : parts) {
      read.push_back(internal::read_checked(*part.source, part.ids));
      read.back().ids = at::Tensor();
      if (!part.rows.empty()) firsts.push_back(ids[static_cast<std::size_t>(part.rows.front())]);
      for (const int64_t row : part.rows) from[static_cast<std::size_t>(row)] = next++;
    }
    const std::vector<int64_t> names = ids_at(firsts);
    const Batch joined = internal::joined_rows(read, describe(), {[this](int64_t id) { return name_of(id); }, names});
    return std::is_sorted(from.begin(), from.end()) ? joined : internal::rows_at(joined, from);
  }
};

class RepeatStage final : public PartsStage {
 public:
  RepeatStage(const Dataset& upstream, int64_t count, Pass pass)
      : PartsStage(upstream), count_(count), pass_(pass), once_(upstream.size()) {}
  int64_t size() const override { return once_ * count_; }
  std::string describe() const override { return fmt::format("{} times {}", count_, upstream().describe()); }
  std::string name_of(int64_t id) const override {
    const int64_t bound = upstream().id_bound();
    return bound > 0 ? round(id / bound)->name_of(id % bound) : Source::name_of(id);
  }
  /// Each time has ids of its own, so that a map() behind it draws other numbers each time.
  std::vector<int64_t> ids_at(std::span<const int64_t> places) const override {
    std::map<int64_t, std::shared_ptr<const Source>> rounds;
    std::vector<int64_t> ids;
    for (const int64_t place : places) {
      const int64_t number = place / once_;
      std::shared_ptr<const Source>& source = rounds[number];
      if (!source) source = round(number);
      const int64_t inner = place % once_;
      ids.push_back(sum_of(product_of(number, upstream().id_bound()), source->ids_at({&inner, 1}).at(0)));
    }
    return ids;
  }
  int64_t id_bound() const override { return product_of(count_, upstream().id_bound()); }
  uint64_t digest() const override {
    return internal::stage_digest(Stage::digest(), "repeat",
                                  {static_cast<uint64_t>(count_), pass_.seed, static_cast<uint64_t>(pass_.epoch)});
  }
  std::shared_ptr<const Source> at_epoch(const Pass& pass) const override {
    if (internal::is_order_probe(pass)) return Stage::at_epoch(pass);
    return std::make_shared<RepeatStage>(whole(), count_, pass);
  }
  Batch read(std::span<const int64_t> ids) const override {
    std::vector<Part> parts;
    std::vector<int64_t> numbers;
    for (std::size_t i = 0; i < ids.size(); ++i) {
      const int64_t number = ids[i] / once_;
      auto at = std::find(numbers.begin(), numbers.end(), number);
      if (at == numbers.end()) {
        parts.push_back({round(number), {}, {}});
        at = numbers.insert(numbers.end(), number);
      }
      Part& part = parts[static_cast<std::size_t>(at - numbers.begin())];
      part.ids.push_back(ids[i] % once_);
      part.rows.push_back(static_cast<int64_t>(i));
    }
    if (parts.empty()) return read_upstream({});
    return read_parts(parts, ids);
  }

 protected:
  std::shared_ptr<const Source> with(const Dataset& upstream) const override {
    return std::make_shared<RepeatStage>(upstream, count_, pass_);
  }

 private:
  /// What is before it, as it is the time after `number` others.
  std::shared_ptr<const Source> round(int64_t number) const {
    Pass pass = pass_;
    // A count of epochs that goes round stays one epoch each.
    pass.epoch = static_cast<int64_t>(static_cast<uint64_t>(pass_.epoch) * static_cast<uint64_t>(count_) +
                                      static_cast<uint64_t>(number));
    auto source = upstream().at_epoch(pass);
    return source ? source : whole().source();
  }

  const int64_t count_;
  const Pass pass_;
  const int64_t once_;
};

class ConcatenateStage final : public PartsStage {
 public:
  ConcatenateStage(const Dataset& first, const Dataset& second)
      : PartsStage(first), second_(second), border_(first.size()), size_(border_ + second.size()) {}
  int64_t size() const override { return size_; }
  std::string describe() const override {
    return fmt::format("{} and {}", upstream().describe(), second_.source()->describe());
  }
  std::string name_of(int64_t id) const override {
    const int64_t bound = upstream().id_bound();
    return id < bound ? upstream().name_of(id) : second_.source()->name_of(id - bound);
  }
  std::vector<int64_t> ids_at(std::span<const int64_t> places) const override {
    const int64_t bound = upstream().id_bound();
    std::vector<int64_t> ids;
    for (const int64_t place : places) {
      const bool is_first = place < border_;
      const int64_t inner = is_first ? place : place - border_;
      const int64_t id = (is_first ? upstream() : *second_.source()).ids_at({&inner, 1}).at(0);
      ids.push_back(is_first ? id : sum_of(bound, id));
    }
    return ids;
  }
  int64_t id_bound() const override { return sum_of(upstream().id_bound(), second_.source()->id_bound()); }
  uint64_t digest() const override {
    return internal::stage_digest(internal::joined_digest(upstream().digest(), second_.source()->digest()),
                                  "concatenate", {static_cast<uint64_t>(border_)});
  }
  std::shared_ptr<const Source> at_epoch(const Pass& pass) const override {
    auto first = upstream().at_epoch(pass);
    auto second = second_.source()->at_epoch(pass);
    if (!first && !second) return nullptr;
    return std::make_shared<ConcatenateStage>(first ? Dataset(std::move(first)) : whole(),
                                              second ? Dataset(std::move(second)) : second_);
  }
  Batch read(std::span<const int64_t> ids) const override {
    Part first{whole().source(), {}, {}};
    Part second{second_.source(), {}, {}};
    for (std::size_t i = 0; i < ids.size(); ++i) {
      Part& part = ids[i] < border_ ? first : second;
      part.ids.push_back(ids[i] < border_ ? ids[i] : ids[i] - border_);
      part.rows.push_back(static_cast<int64_t>(i));
    }
    std::vector<Part> parts;
    if (!first.ids.empty() || second.ids.empty()) parts.push_back(std::move(first));
    if (!second.ids.empty()) parts.push_back(std::move(second));
    return read_parts(parts, ids);
  }
  std::vector<SourceFile> files() const override {
    return internal::joined_files(upstream().files(), second_.source()->files());
  }

 protected:
  std::shared_ptr<const Source> with(const Dataset& upstream) const override {
    return std::make_shared<ConcatenateStage>(upstream, second_);
  }

 private:
  const Dataset second_;
  const int64_t border_;
  const int64_t size_;
};

class ZipStage final : public internal::EachStage {
 public:
  ZipStage(const Dataset& first, Dataset second, std::string name)
      : EachStage(first),
        second_(std::move(second)),
        name_(std::move(name)),
        size_(std::min(first.size(), second_.size())) {}
  int64_t size() const override { return size_; }
  std::string describe() const override {
    return fmt::format("{} with {}", upstream().describe(), second_.source()->describe());
  }
  uint64_t digest() const override {
    return internal::stage_digest(internal::joined_digest(upstream().digest(), second_.source()->digest()),
                                  "zip/" + name_);
  }
  std::shared_ptr<const Source> at_epoch(const Pass& pass) const override {
    auto first = upstream().at_epoch(pass);
    auto second = second_.source()->at_epoch(pass);
    if (!first && !second) return nullptr;
    return std::make_shared<ZipStage>(first ? Dataset(std::move(first)) : whole(),
                                      second ? Dataset(std::move(second)) : second_, name_);
  }
  Batch read(std::span<const int64_t> ids) const override {
    return internal::zipped(read_upstream(ids), internal::read_checked(*second_.source(), ids), name_);
  }
  std::vector<SourceFile> files() const override {
    return internal::joined_files(upstream().files(), second_.source()->files());
  }

 protected:
  std::shared_ptr<const Source> with(const Dataset& upstream) const override {
    return std::make_shared<ZipStage>(upstream, second_, name_);
  }

 private:
  const Dataset second_;
  const std::string name_;
  const int64_t size_;
};

}  // namespace

Dataset Dataset::repeat(int64_t count) const {
  check_count("Dataset::repeat", count, 0);
  int64_t all = 0;
  if (__builtin_mul_overflow(count, size(), &all)) {
    throw UsageError("LS-OPTION", fmt::format("{} samples were to be repeated {} times", size(), count),
                     "give a count with which the number of samples stays below 2^63");
  }
  return Dataset(std::make_shared<RepeatStage>(*this, count, Pass{}));
}

Dataset Dataset::zip(const Dataset& other, const std::string& name) const {
  return Dataset(std::make_shared<ZipStage>(*this, other, name));
}

Dataset Dataset::concatenate(const Dataset& other) const {
  int64_t all = 0;
  if (__builtin_add_overflow(size(), other.size(), &all)) {
    throw UsageError("LS-OPTION", fmt::format("{} and {} samples were to be one data set", size(), other.size()),
                     "keep the number of samples below 2^63");
  }
  return Dataset(std::make_shared<ConcatenateStage>(*this, other));
}

}  // namespace lockstep::data
