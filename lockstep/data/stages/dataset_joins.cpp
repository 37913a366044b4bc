// The stages of data sets that read one data set several times, or two side by side.
#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <typeinfo>
#include <utility>
#include <vector>

#include "lockstep/core/error.h"
#include "lockstep/data/deal/batch_rows.h"
#include "lockstep/data/deal/order_probe.h"
#include "lockstep/data/sources/files_digest.h"
#include "lockstep/data/stages/stage.h"
#include "lockstep/data/stages/stage_digest.h"

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

/// Samples of one of several sources each, in groups by the source.
class PartsStage : public Stage {
 public:
  using Stage::Stage;
  std::vector<int64_t> ids_at(std::span<const int64_t> places) const override {
    std::vector<int64_t> ids(places.size());
    for (const Part& part : parts_of(places)) {
      const std::vector<int64_t> inner = part.source->ids_at(part.places);
      for (std::size_t i = 0; i < part.rows.size(); ++i) ids[part.rows[i]] = sum_of(part.first_id, inner.at(i));
    }
    return ids;
  }
  Batch read(std::span<const int64_t> places) const override {
    return places.empty() ? read_upstream({}) : read_parts(parts_of(places), places);
  }
  std::optional<std::vector<internal::AnySample>> read_as(const std::type_info& type,
                                                          std::span<const int64_t> places) const override {
    if (places.empty()) return upstream().read_as(type, places);
    std::vector<internal::AnySample> all(places.size());
    for (const Part& part : parts_of(places)) {
      auto some = part.source->read_as(type, part.places);
      if (!some || some->size() != part.rows.size()) return std::nullopt;
      for (std::size_t i = 0; i < part.rows.size(); ++i) all[part.rows[i]] = std::move((*some)[i]);
    }
    return all;
  }

 protected:
  struct Part {
    std::shared_ptr<const Source> source;
    int64_t first_id = 0;                // added to the source's ids
    std::vector<int64_t> places = {};    // in the source
    std::vector<std::size_t> rows = {};  // where they stand among all
    void add(int64_t place, std::size_t row) {
      places.push_back(place);
      rows.push_back(row);
    }
  };
  /// The samples at some places, of which there is at least one, by source. No part is empty.
  virtual std::vector<Part> parts_of(std::span<const int64_t> places) const = 0;

 private:
  Batch read_parts(const std::vector<Part>& parts, std::span<const int64_t> places) const {
    std::vector<Batch> read;
    std::vector<int64_t> firsts;               // places of the parts' first samples, for messages
    std::vector<int64_t> from(places.size());  // the row of the joined parts that stands at a place
    int64_t next = 0;
    for (const Part& part : parts) {
      read.push_back(internal::read_checked(*part.source, part.places));
      read.back().ids = at::Tensor();
      firsts.push_back(places[part.rows.front()]);
      for (const std::size_t row : part.rows) from[row] = next++;
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
  int64_t id_bound() const override { return product_of(count_, upstream().id_bound()); }
  uint64_t digest() const override {
    return internal::stage_digest(Stage::digest(), "repeat",
                                  {static_cast<uint64_t>(count_), pass_.seed, static_cast<uint64_t>(pass_.epoch)});
  }
  std::shared_ptr<const Source> at_epoch(const Pass& pass) const override {
    if (internal::is_order_probe(pass)) return Stage::at_epoch(pass);
    return std::make_shared<RepeatStage>(whole(), count_, pass);
  }

 protected:
  std::shared_ptr<const Source> with(const Dataset& upstream) const override {
    return std::make_shared<RepeatStage>(upstream, count_, pass_);
  }
  /// Each time has ids of its own, so that a map() behind it draws other numbers each time.
  std::vector<Part> parts_of(std::span<const int64_t> places) const override {
    std::vector<Part> parts;
    std::map<int64_t, std::size_t> part_of_round;
    for (std::size_t i = 0; i < places.size(); ++i) {
      const int64_t number = places[i] / once_;
      const auto [at, is_new] = part_of_round.try_emplace(number, parts.size());
      if (is_new) parts.push_back({round(number), product_of(number, upstream().id_bound())});
      parts[at->second].add(places[i] % once_, i);
    }
    return parts;
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
  std::optional<std::vector<internal::AnySample>> read_as(const std::type_info& type,
                                                          std::span<const int64_t> places) const override {
    if (places.empty() && !second_.source()->read_as(type, places)) return std::nullopt;
    return PartsStage::read_as(type, places);
  }
  void require_batches() const override {
    upstream().require_batches();
    second_.source()->require_batches();
  }
  std::vector<SourceFile> files() const override {
    return internal::joined_files(upstream().files(), second_.source()->files());
  }

 protected:
  std::shared_ptr<const Source> with(const Dataset& upstream) const override {
    return std::make_shared<ConcatenateStage>(upstream, second_);
  }
  std::vector<Part> parts_of(std::span<const int64_t> places) const override {
    Part first{whole().source()};
    Part second{second_.source(), upstream().id_bound()};
    for (std::size_t i = 0; i < places.size(); ++i) {
      const bool is_first = places[i] < border_;
      (is_first ? first : second).add(is_first ? places[i] : places[i] - border_, i);
    }
    std::vector<Part> parts;
    if (!first.rows.empty()) parts.push_back(std::move(first));
    if (!second.rows.empty()) parts.push_back(std::move(second));
    return parts;
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
  void require_batches() const override {
    upstream().require_batches();
    second_.source()->require_batches();
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
