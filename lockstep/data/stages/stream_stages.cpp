// The stages of streams that choose, order and group elements.
#include <ATen/ATen.h>
#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <limits>
#include <memory>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

#include "lockstep/data/deal/batch_rows.h"
#include "lockstep/data/deal/plan.h"
#include "lockstep/data/stages/stage.h"
#include "lockstep/data/stages/stream_stage.h"

namespace lockstep::data {

using internal::append;
using internal::check_count;
using internal::PositionParts;
using internal::StreamStage;

namespace {

using Reader = std::unique_ptr<StreamReader>;

constexpr int64_t kAll = std::numeric_limits<int64_t>::max();

/// Elements by their number: some are left out, or it ends early.
class CountingReader final : public StreamReader {
 public:
  /// Gives element i where `wanted(i)`; ends before element `end`.
  CountingReader(Reader upstream, int64_t read, int64_t end, std::function<bool(int64_t)> wanted)
      : upstream_(std::move(upstream)), read_(read), end_(end), wanted_(std::move(wanted)) {}
  bool next(Batch& element) override {
    while (read_ < end_ && upstream_->next(element)) {
      if (wanted_(read_++)) return true;
    }
    return false;
  }
  StreamPosition position() const override {
    StreamPosition position{read_};
    append(position, upstream_->position());
    return position;
  }

 private:
  const Reader upstream_;
  int64_t read_;
  const int64_t end_;
  const std::function<bool(int64_t)> wanted_;
};

class CountingStage final : public StreamStage {
 public:
  CountingStage(const Stream& upstream, int64_t end, std::function<bool(int64_t)> wanted, std::string what)
      : StreamStage(upstream), end_(end), wanted_(std::move(wanted)), what_(std::move(what)) {}
  std::unique_ptr<StreamReader> open(const StreamPass& pass, const StreamPosition& position) const override {
    if (position.empty()) return std::make_unique<CountingReader>(open_upstream(pass, {}), 0, end_, wanted_);
    PositionParts parts(position, describe());
    const int64_t read = parts.number();
    const StreamPosition there = parts.inner();
    parts.end();
    return std::make_unique<CountingReader>(open_upstream(pass, there), read, end_, wanted_);
  }
  std::string describe() const override { return fmt::format("{} of {}", what_, upstream().describe()); }
  int64_t num_shards() const override { return 1; }  // it counts over all files
  bool is_endless() const override { return end_ == kAll && StreamStage::is_endless(); }

 private:
  const int64_t end_;
  const std::function<bool(int64_t)> wanted_;
  const std::string what_;
};

class ShuffleReader final : public StreamReader {
 public:
  ShuffleReader(Reader upstream, int64_t window, uint64_t seed, int64_t epoch)
      : upstream_(std::move(upstream)), window_(window), seed_(seed), epoch_(epoch), start_(upstream_->position()) {}

  /// Reads window `number` again, and goes on behind its first `given` elements.
  void restore(int64_t number, int64_t given, SkippedSamples* skipped) {
    number_ = number;
    if (given == 0) return;
    const int64_t before = skipped ? skipped->count() : 0;
    fill();
    if (skipped) skipped->set(before);
    given_ = std::min(given, static_cast<int64_t>(elements_.size()));
  }

  bool next(Batch& element) override {
    if (full_ && given_ == static_cast<int64_t>(elements_.size())) {
      full_ = false;
      elements_.clear();
      given_ = 0;
      ++number_;
      start_ = upstream_->position();
    }
    if (!full_) fill();
    if (!full_) return false;
    element = std::move(elements_[static_cast<std::size_t>(order_->sample_at(given_++))]);
    return true;
  }

  StreamPosition position() const override {
    const bool done = full_ && given_ == static_cast<int64_t>(elements_.size());
    StreamPosition position{done ? number_ + 1 : number_, done || !full_ ? 0 : given_};
    append(position, done ? upstream_->position() : start_);
    return position;
  }

 private:
  /// Where it throws, the next call goes on.
  void fill() {
    Batch element;
    while (static_cast<int64_t>(elements_.size()) < window_ && upstream_->next(element)) elements_.push_back(element);
    full_ = !elements_.empty();
    order_.emplace(static_cast<int64_t>(elements_.size()), true, internal::mixed(seed_, static_cast<uint64_t>(number_)),
                   epoch_);
  }

  const Reader upstream_;
  const int64_t window_;
  const uint64_t seed_;
  const int64_t epoch_;
  StreamPosition start_;  // of this window
  int64_t number_ = 0;    // of this window
  int64_t given_ = 0;     // elements of this window
  bool full_ = false;     // the window is read as far as it goes
  std::vector<Batch> elements_;
  std::optional<internal::EpochOrder> order_;
};

class ShuffleStage final : public StreamStage {
 public:
  ShuffleStage(const Stream& upstream, int64_t window, uint64_t seed)
      : StreamStage(upstream), window_(window), seed_(seed) {}
  std::unique_ptr<StreamReader> open(const StreamPass& pass, const StreamPosition& position) const override {
    const uint64_t seed = internal::mixed(seed_, static_cast<uint64_t>(pass.shard_index));
    if (position.empty())
      return std::make_unique<ShuffleReader>(open_upstream(pass, {}), window_, seed, pass.pass.epoch);
    PositionParts parts(position, describe());
    const int64_t number = parts.number();
    const int64_t given = parts.number();
    const StreamPosition start = parts.inner();
    parts.end();
    auto reader = std::make_unique<ShuffleReader>(open_upstream(pass, start), window_, seed, pass.pass.epoch);
    reader->restore(number, given, pass.skipped.get());
    return reader;
  }
  std::string describe() const override {
    const std::string seed = seed_ == 0 ? "" : fmt::format(" by seed {}", seed_);
    return fmt::format("{}, shuffled in windows of {}{}", upstream().describe(), window_, seed);
  }
  int64_t elements_in_memory() const override {
    constexpr int64_t kMost = int64_t{1} << 40;  // a larger window is as good as this one, and sums stay below 2^63
    return upstream().elements_in_memory() + std::min(window_, kMost);
  }

 private:
  const int64_t window_;
  const uint64_t seed_;
};

class BatchReader final : public StreamReader {
 public:
  BatchReader(Reader upstream, int64_t count, bool drop, std::optional<PadOptions> pad, std::string who,
              std::shared_ptr<const StreamSource> source)
      : upstream_(std::move(upstream)),
        count_(count),
        drop_(drop),
        pad_(pad),
        who_(std::move(who)),
        source_(std::move(source)),
        position_(upstream_->position()) {}
  bool next(Batch& element) override {
    Batch one;
    while (static_cast<int64_t>(elements_.size()) < count_ && upstream_->next(one)) elements_.push_back(std::move(one));
    const bool gives = !elements_.empty() && (!drop_ || static_cast<int64_t>(elements_.size()) == count_);
    const std::vector<Batch> elements = std::move(elements_);
    elements_.clear();
    position_ = upstream_->position();
    if (!gives) return false;
    const internal::SampleNames names{[this](int64_t id) { return source_->name_of(id); }};
    element = pad_ ? internal::padded_rows(elements, *pad_, who_, names) : internal::joined_rows(elements, who_, names);
    return true;
  }
  StreamPosition position() const override { return position_; }

 private:
  const Reader upstream_;
  const int64_t count_;
  const bool drop_;
  const std::optional<PadOptions> pad_;
  const std::string who_;
  const std::shared_ptr<const StreamSource> source_;  // names its samples
  StreamPosition position_;                           // behind the last whole element
  std::vector<Batch> elements_;
};

class BatchStage final : public StreamStage {
 public:
  BatchStage(const Stream& upstream, int64_t count, bool drop, std::optional<PadOptions> pad)
      : StreamStage(upstream), count_(count), drop_(drop), pad_(pad) {}
  std::unique_ptr<StreamReader> open(const StreamPass& pass, const StreamPosition& position) const override {
    return std::make_unique<BatchReader>(open_upstream(pass, position), count_, drop_, pad_, describe(),
                                         shared_upstream());
  }
  std::string describe() const override {
    std::string padded;
    if (pad_) padded = fmt::format(", filled up with {}", pad_->value);
    if (pad_ && pad_->length > 0) padded += fmt::format(" to {}", pad_->length);
    return fmt::format("{}groups of {} of {}{}", drop_ ? "whole " : "", count_, upstream().describe(), padded);
  }

 private:
  const int64_t count_;
  const bool drop_;
  const std::optional<PadOptions> pad_;
};

class PrefetchStage final : public StreamStage {
 public:
  PrefetchStage(const Stream& upstream, int64_t steps) : StreamStage(upstream), steps_(steps) {}
  std::unique_ptr<StreamReader> open(const StreamPass& pass, const StreamPosition& position) const override {
    return upstream().open(pass, position);
  }
  std::string describe() const override { return upstream().describe(); }
  int64_t read_ahead() const override { return steps_; }

 private:
  const int64_t steps_;
};

}  // namespace

Stream Stream::take(int64_t count) const {
  check_count("Stream::take", count, 0);
  return Stream(std::make_shared<CountingStage>(
      *this, count, [](int64_t) { return true; }, fmt::format("the first {} elements", count)));
}

Stream Stream::skip(int64_t count) const {
  check_count("Stream::skip", count, 0);
  return Stream(std::make_shared<CountingStage>(
      *this, kAll, [count](int64_t i) { return i >= count; }, fmt::format("all but the first {} elements", count)));
}

Stream Stream::shard(int64_t count, int64_t index) const {
  internal::check_shard("Stream::shard", count, index);
  return Stream(std::make_shared<CountingStage>(
      *this, kAll, [count, index](int64_t i) { return i % count == index; },
      fmt::format("shard {} of {}", index, count)));
}

Stream Stream::shuffle(int64_t window, uint64_t seed) const {
  check_count("Stream::shuffle", window, 1);
  return Stream(std::make_shared<ShuffleStage>(*this, window, seed));
}

Stream Stream::batch(int64_t count, bool drop_remainder) const {
  check_count("Stream::batch", count, 1);
  return Stream(std::make_shared<BatchStage>(*this, count, drop_remainder, std::nullopt));
}

Stream Stream::padded_batch(int64_t count, const PadOptions& pad, bool drop_remainder) const {
  check_count("Stream::padded_batch", count, 1);
  check_count("PadOptions::length", pad.length, 0);
  return Stream(std::make_shared<BatchStage>(*this, count, drop_remainder, pad));
}

Stream Stream::prefetch(int64_t steps) const {
  check_count("Stream::prefetch", steps, 0);
  return Stream(std::make_shared<PrefetchStage>(*this, steps));
}

}  // namespace lockstep::data
