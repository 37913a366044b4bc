// The stages of data sets that choose, order and group samples.
#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <functional>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "lockstep/core/error.h"
#include "lockstep/data/batch_rows.h"
#include "lockstep/data/files_digest.h"
#include "lockstep/data/order_probe.h"
#include "lockstep/data/plan.h"
#include "lockstep/data/rows.h"
#include "lockstep/data/stage.h"
#include "lockstep/data/stage_digest.h"

namespace lockstep::data {

using internal::check_count;
using internal::IndexStage;

namespace {

class ShuffleStage final : public IndexStage {
 public:
  ShuffleStage(const Dataset& upstream, uint64_t seed, int64_t epoch)
      : IndexStage(upstream), seed_(seed), epoch_(epoch), order_(upstream.size(), true, seed, epoch) {}
  std::string describe() const override { return fmt::format("shuffled {}", upstream().describe()); }
  uint64_t digest() const override {
    return internal::stage_digest(Stage::digest(), "shuffle", {seed_, static_cast<uint64_t>(epoch_)});
  }
  std::shared_ptr<const Source> at_epoch(const Pass& pass) const override {
    auto there = upstream().at_epoch(pass);
    return std::make_shared<ShuffleStage>(there ? Dataset(std::move(there)) : whole(), seed_, pass.epoch);
  }

 protected:
  int64_t upstream_id(int64_t id) const override { return order_.sample_at(id); }
  std::shared_ptr<const Source> with(const Dataset& upstream) const override {
    return std::make_shared<ShuffleStage>(upstream, seed_, 0);
  }

 private:
  const uint64_t seed_;
  const int64_t epoch_;
  const internal::EpochOrder order_;
};

class ShardStage final : public IndexStage {
 public:
  ShardStage(const Dataset& upstream, int64_t count, int64_t index)
      : IndexStage(upstream), count_(count), index_(index), size_((upstream.size() - index + count - 1) / count) {}
  int64_t size() const override { return std::max<int64_t>(size_, 0); }
  std::string describe() const override {
    return fmt::format("shard {} of {} of {}", index_, count_, upstream().describe());
  }
  uint64_t digest() const override {
    return internal::stage_digest(Stage::digest(), "shard",
                                  {static_cast<uint64_t>(count_), static_cast<uint64_t>(index_)});
  }

 protected:
  int64_t upstream_id(int64_t id) const override { return id * count_ + index_; }
  std::shared_ptr<const Source> with(const Dataset& upstream) const override {
    return std::make_shared<ShardStage>(upstream, count_, index_);
  }

 private:
  const int64_t count_;
  const int64_t index_;
  const int64_t size_;
};

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
    std::vector<int64_t> firsts;            // of the parts, for messages
    std::vector<int64_t> from(ids.size());  // the row of the joined parts that stands at a place
    int64_t next = 0;
    for (const Part& part : parts) {
      read.push_back(internal::read_checked(*part.source, part.ids));
      read.back().ids = at::Tensor();
      if (!part.rows.empty()) firsts.push_back(ids[static_cast<std::size_t>(part.rows.front())]);
      for (const int64_t row : part.rows) from[static_cast<std::size_t>(row)] = next++;
    }
    const Batch joined = internal::joined_rows(read, describe(), {[this](int64_t id) { return name_of(id); }, firsts});
    return std::is_sorted(from.begin(), from.end()) ? joined : internal::rows_at(joined, from);
  }
};

class RepeatStage final : public PartsStage {
 public:
  RepeatStage(const Dataset& upstream, int64_t count, Pass pass)
      : PartsStage(upstream), count_(count), pass_(pass), once_(upstream.size()) {}
  int64_t size() const override { return once_ * count_; }
  std::string describe() const override { return fmt::format("{} times {}", count_, upstream().describe()); }
  std::string name_of(int64_t id) const override { return round(id / once_)->name_of(id % once_); }
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
    return id < border_ ? upstream().name_of(id) : second_.source()->name_of(id - border_);
  }
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

class ZipStage final : public Stage {
 public:
  ZipStage(const Dataset& first, Dataset second, std::string name)
      : Stage(first),
        second_(std::move(second)),
        name_(std::move(name)),
        size_(std::min(first.size(), second_.size())) {}
  int64_t size() const override { return size_; }
  std::string describe() const override {
    return fmt::format("{} with {}", upstream().describe(), second_.source()->describe());
  }
  std::string name_of(int64_t id) const override { return upstream().name_of(id); }
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

class BatchStage final : public Stage {
 public:
  BatchStage(const Dataset& upstream, int64_t count, bool drop, std::optional<PadOptions> pad)
      : Stage(upstream), count_(count), drop_(drop), pad_(pad), samples_(upstream.size()) {}
  int64_t size() const override { return internal::steps_of_epoch(samples_, count_, drop_); }
  std::string describe() const override { return fmt::format("groups of {} of {}", count_, upstream().describe()); }
  uint64_t digest() const override {
    const PadOptions pad = pad_.value_or(PadOptions{});
    return internal::stage_digest(Stage::digest(), pad_ ? "padded_batch" : "batch",
                                  {static_cast<uint64_t>(count_), drop_ ? 1u : 0u, std::bit_cast<uint64_t>(pad.value),
                                   static_cast<uint64_t>(pad.length)});
  }
  Batch read(std::span<const int64_t> ids) const override {
    std::vector<Batch> groups;
    for (const int64_t id : ids) groups.push_back(group(id));
    if (groups.empty()) return no_groups();
    return internal::joined_rows(groups, describe(), {[this](int64_t id) { return name_of(id); }, ids});
  }

 protected:
  std::shared_ptr<const Source> with(const Dataset& upstream) const override {
    return std::make_shared<BatchStage>(upstream, count_, drop_, pad_);
  }

 private:
  static Batch as_row(Batch group) {
    group.ids = at::Tensor();
    for_each_tensor(group, [](at::Tensor& tensor) {
      if (tensor.defined()) tensor = tensor.unsqueeze(0);
    });
    return group;
  }
  /// No rows of the shape that the first group has. Of samples of different lengths only PadOptions::length is known.
  Batch no_groups() const {
    Batch none = read_upstream({});
    const int64_t samples = samples_ == 0 ? count_ : std::min(count_, samples_);
    for_each_tensor(none, [&](at::Tensor& tensor) {
      if (!tensor.defined()) return;
      std::vector<int64_t> sizes = tensor.sizes().vec();
      sizes.front() = samples;
      if (pad_ && pad_->length > 0 && sizes.size() > 1) sizes[1] = pad_->length;
      sizes.insert(sizes.begin(), 0);
      tensor = at::empty(sizes, tensor.options());
    });
    return none;
  }
  Batch group(int64_t id) const {
    const internal::Span span = internal::batch_span(samples_, count_, id);
    std::vector<int64_t> ids;
    for (int64_t i = span.begin; i < span.end; ++i) ids.push_back(i);
    return as_row(read_padded(ids));
  }
  /// The samples of a group. Those of different lengths can only be read one by one.
  Batch read_padded(const std::vector<int64_t>& ids) const {
    if (!pad_) return read_upstream(ids);
    std::vector<Batch> samples;
    for (const int64_t& id : ids) samples.push_back(read_upstream({&id, 1}));
    return internal::padded_rows(samples, *pad_, describe(),
                                 {[this](int64_t id) { return upstream().name_of(id); }, ids});
  }

  const int64_t count_;
  const bool drop_;
  const std::optional<PadOptions> pad_;
  const int64_t samples_;
};

class PrefetchStage final : public IndexStage {
 public:
  PrefetchStage(const Dataset& upstream, int64_t steps) : IndexStage(upstream), steps_(steps) {}
  std::string describe() const override { return upstream().describe(); }
  int64_t read_ahead() const override { return steps_; }

 protected:
  int64_t upstream_id(int64_t id) const override { return id; }
  std::shared_ptr<const Source> with(const Dataset& upstream) const override {
    return std::make_shared<PrefetchStage>(upstream, steps_);
  }

 private:
  const int64_t steps_;
};

}  // namespace

Dataset Dataset::shuffle(uint64_t seed) const { return Dataset(std::make_shared<ShuffleStage>(*this, seed, 0)); }

Dataset Dataset::shard(int64_t count, int64_t index) const {
  check_count("Dataset::shard", count, 1);
  if (index < 0 || index >= count) {
    throw UsageError("LS-OPTION", fmt::format("Dataset::shard was asked for shard {} of {}", index, count),
                     fmt::format("choose one from 0 to {}", count - 1));
  }
  return Dataset(std::make_shared<ShardStage>(*this, count, index));
}

Dataset Dataset::take(int64_t count) const {
  check_count("Dataset::take", count, 0);
  return slice(*this, 0, std::min(count, size()));
}

Dataset Dataset::skip(int64_t count) const {
  check_count("Dataset::skip", count, 0);
  return slice(*this, std::min(count, size()), size());
}

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

Dataset Dataset::batch(int64_t count, bool drop_remainder) const {
  check_count("Dataset::batch", count, 1);
  return Dataset(std::make_shared<BatchStage>(*this, count, drop_remainder, std::nullopt));
}

Dataset Dataset::padded_batch(int64_t count, const PadOptions& pad, bool drop_remainder) const {
  check_count("Dataset::padded_batch", count, 1);
  check_count("PadOptions::length", pad.length, 0);
  return Dataset(std::make_shared<BatchStage>(*this, count, drop_remainder, pad));
}

Dataset Dataset::prefetch(int64_t steps) const {
  check_count("Dataset::prefetch", steps, 0);
  return Dataset(std::make_shared<PrefetchStage>(*this, steps));
}

}  // namespace lockstep::data
