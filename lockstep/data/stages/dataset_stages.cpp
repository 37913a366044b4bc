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

#include "lockstep/data/deal/batch_rows.h"
#include "lockstep/data/deal/plan.h"
#include "lockstep/data/stages/stage.h"
#include "lockstep/data/stages/stage_digest.h"

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
    const std::vector<int64_t> names = ids_at(ids);
    return internal::joined_rows(groups, describe(), {[this](int64_t id) { return name_of(id); }, names});
  }
  /// A group is known by its first sample.
  std::vector<int64_t> ids_at(std::span<const int64_t> places) const override {
    std::vector<int64_t> firsts;
    for (const int64_t place : places) firsts.push_back(place * count_);
    return upstream().ids_at(firsts);
  }
  int64_t id_bound() const override { return upstream().id_bound(); }
  std::string name_of(int64_t id) const override {
    return fmt::format("the group of {} that begins with {}", count_, upstream().name_of(id));
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
    const std::vector<int64_t> names = upstream().ids_at(ids);
    return internal::padded_rows(samples, *pad_, describe(),
                                 {[this](int64_t id) { return upstream().name_of(id); }, names});
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
  internal::check_shard("Dataset::shard", count, index);
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
