#include "lockstep/data/stages/interleave.h"

#include <ATen/ATen.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <functional>
#include <numeric>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "lockstep/core/error.h"
#include "lockstep/data/deal/batch_rows.h"
#include "lockstep/data/deal/plan.h"
#include "lockstep/data/stages/stage.h"
#include "lockstep/data/stages/stage_digest.h"
#include "lockstep/data/stages/stage_times.h"
#include "lockstep/data/stages/stream_stage.h"

namespace lockstep {

namespace {

using data::InterleaveOptions;
using data::StreamPass;
using data::StreamPosition;
using data::StreamReader;
using data::StreamSource;
using internal::append;
using internal::PositionParts;

/// Of streams that are read in turn: caches that hold them in the order of earlier versions have another digest.
uint64_t order_digest(uint64_t streams, std::string_view kind, const InterleaveOptions& options) {
  return options.cycle_length == 1 ? internal::stage_digest(streams, kind) : internal::stage_digest(streams, kind, {2});
}

/// How streams are read in turn, for descriptions, which tell other elements apart.
std::string in_turn(const InterleaveOptions& options) {
  if (options.cycle_length == 1 && options.block_length == 1) return "";
  return fmt::format(", {} in turn, {} at a time", options.cycle_length, options.block_length);
}

/// One of the streams that are read in turn.
struct Child {
  std::unique_ptr<StreamReader> reader;
  StreamPosition key;  // what it is found by again
};

/// Gives the streams, one after the other.
class Children {
 public:
  virtual ~Children() = default;
  /// The next one, opened at its beginning; one without a reader at the end.
  virtual Child next() = 0;
  /// The one with this key, opened at a position. Throws where there is none.
  virtual Child again(const StreamPosition& key, const StreamPosition& position) = 0;
  virtual StreamPosition position() const = 0;
};

/// Behind the children's position in a reader's. Earlier versions gave a stream's place away within its turn, and wrote
/// no mark here.
constexpr int64_t kEndedStreamsPassOn = -2;

[[noreturn]] void refuse_earlier(int64_t cycle_length) {
  throw UsageError(
      "LS-STATE-MISFIT",
      fmt::format("a cursor was saved by an earlier version, which read {} streams in turn in another order",
                  cycle_length),
      "finish the epoch with that version, or begin an epoch: its cursor has the position 0 and no stream");
}

/// Places for streams, visited in turn. The turn of a place ends with its block, or where its stream ends; a place
/// without a stream gets the next one when it is visited.
class InterleaveReader final : public StreamReader {
 public:
  InterleaveReader(std::unique_ptr<Children> children, const InterleaveOptions& options)
      : children_(std::move(children)), options_(options) {}

  void restore(PositionParts& parts) {
    started_ = true;
    const int64_t mark = parts.number(kEndedStreamsPassOn);
    // Invariant: with one place the order, and what the numbers mean, are those of earlier versions.
    const bool is_earlier = mark != kEndedStreamsPassOn;
    if (is_earlier && options_.cycle_length > 1) refuse_earlier(options_.cycle_length);
    turn_ = is_earlier ? mark : parts.number();
    given_ = parts.number();
    const int64_t places = parts.number();
    if (turn_ < 0 || turn_ >= options_.cycle_length || turn_ > places || places > options_.cycle_length) parts.refuse();
    for (int64_t place = 0; place < places; ++place) {
      if (!is_earlier && parts.number() == 0) {
        places_.emplace_back();
        continue;
      }
      const StreamPosition key = parts.inner();
      places_.push_back(children_->again(key, parts.inner()));
      ++open_;
    }
  }

  bool next(Batch& element) override {
    started_ = true;
    while (!ended_ || open_ > 0) {
      if (!has_stream(turn_) && !open_next()) {
        pass_on();
        continue;
      }
      Child& child = places_[static_cast<std::size_t>(turn_)];
      if (child.reader->next(element)) {
        if (++given_ >= options_.block_length) pass_on();
        return true;
      }
      child = {};
      --open_;
      pass_on();
    }
    return false;
  }

  StreamPosition position() const override {
    if (!started_) return {};
    StreamPosition position;
    append(position, children_->position());
    position.insert(position.end(), {kEndedStreamsPassOn, turn_, given_, static_cast<int64_t>(places_.size())});
    for (const Child& child : places_) {
      position.push_back(child.reader ? 1 : 0);
      if (!child.reader) continue;
      append(position, child.key);
      append(position, child.reader->position());
    }
    return position;
  }

 private:
  bool has_stream(int64_t place) const {
    return place < static_cast<int64_t>(places_.size()) && places_[static_cast<std::size_t>(place)].reader;
  }

  /// Gives the present place the next stream; false where there is none.
  bool open_next() {
    if (ended_) return false;
    Child child = children_->next();
    ended_ = !child.reader;
    if (ended_) return false;
    if (turn_ == static_cast<int64_t>(places_.size())) places_.emplace_back();
    places_[static_cast<std::size_t>(turn_)] = std::move(child);
    ++open_;
    return true;
  }

  void pass_on() {
    given_ = 0;
    // After the last stream no place is added.
    const int64_t count = ended_ ? static_cast<int64_t>(places_.size()) : options_.cycle_length;
    turn_ = turn_ + 1 < count ? turn_ + 1 : 0;
  }

  const std::unique_ptr<Children> children_;
  const InterleaveOptions options_;
  bool started_ = false;
  bool ended_ = false;         // the streams have ended
  std::vector<Child> places_;  // at most cycle_length, added as they are visited
  int64_t open_ = 0;           // places with a stream
  int64_t turn_ = 0;           // the present place; at most one behind the last
  int64_t given_ = 0;          // elements of the present turn
};

/// Opens a reader at a position, the beginning included.
std::unique_ptr<StreamReader> opened(std::unique_ptr<Children> children, const InterleaveOptions& options,
                                     PositionParts* parts) {
  auto reader = std::make_unique<InterleaveReader>(std::move(children), options);
  if (parts) {
    reader->restore(*parts);
    parts->end();
  }
  return reader;
}

/// Numbers the ids of one of several streams.
class NumberedReader final : public StreamReader {
 public:
  NumberedReader(std::unique_ptr<StreamReader> reader, int64_t number, int64_t count)
      : reader_(std::move(reader)), number_(number), count_(count) {}
  bool next(Batch& element) override {
    if (!reader_->next(element)) return false;
    element.ids = element.ids * count_ + number_;
    return true;
  }
  StreamPosition position() const override { return reader_->position(); }

 private:
  const std::unique_ptr<StreamReader> reader_;
  const int64_t number_;
  const int64_t count_;
};

using Sources = std::vector<std::shared_ptr<const StreamSource>>;

class ListedChildren final : public Children {
 public:
  ListedChildren(const Sources& sources, bool numbered, const StreamPass& pass, int64_t next)
      : sources_(sources),
        numbered_(numbered),
        pass_(pass),
        order_(static_cast<int64_t>(sources.size()), pass.shuffle && !numbered, internal::mixed(pass.pass.seed, 1),
               pass.pass.epoch),
        next_(next) {
    // A shard has some of the streams whole, or a shard of each.
    if (pass.shard_count > 1 && static_cast<int64_t>(sources.size()) >= pass.shard_count) {
      every_ = pass.shard_count;
      first_ = pass.shard_index;
      pass_.shard_count = 1;
      pass_.shard_index = 0;
    }
  }
  Child next() override {
    const int64_t place = first_ + next_ * every_;
    if (place >= static_cast<int64_t>(sources_.size())) return {};
    ++next_;
    return at(order_.sample_at(place), {});
  }
  Child again(const StreamPosition& key, const StreamPosition& position) override {
    PositionParts parts(key, "a list of streams");
    const int64_t number = parts.number();
    parts.end();
    if (number >= static_cast<int64_t>(sources_.size())) parts.refuse();
    return at(number, position);
  }
  StreamPosition position() const override { return {next_}; }

 private:
  Child at(int64_t number, const StreamPosition& position) const {
    auto reader = internal::open_stage(sources_[static_cast<std::size_t>(number)], pass_, position);
    if (numbered_) {
      reader = std::make_unique<NumberedReader>(std::move(reader), number, static_cast<int64_t>(sources_.size()));
    }
    return {std::move(reader), {number}};
  }

  const Sources sources_;
  const bool numbered_;
  StreamPass pass_;
  const internal::EpochOrder order_;
  int64_t every_ = 1;
  int64_t first_ = 0;
  int64_t next_;
};

class ListedStreams final : public StreamSource, public internal::MaybeEndless {
 public:
  ListedStreams(Sources sources, const InterleaveOptions& options, bool numbered, std::string name)
      : sources_(std::move(sources)), options_(options), numbered_(numbered), name_(std::move(name)) {}
  std::unique_ptr<StreamReader> open(const StreamPass& pass, const StreamPosition& position) const override {
    if (position.empty())
      return opened(std::make_unique<ListedChildren>(sources_, numbered_, pass, 0), options_, nullptr);
    PositionParts parts(position, describe());
    const StreamPosition next = parts.inner();
    if (next.size() != 1 || next.front() < 0) parts.refuse();
    return opened(std::make_unique<ListedChildren>(sources_, numbered_, pass, next.front()), options_, &parts);
  }
  std::string describe() const override { return name_ + in_turn(options_); }
  std::string name_of(int64_t id) const override {
    if (!numbered_) return StreamSource::name_of(id);
    const auto count = static_cast<int64_t>(sources_.size());
    const int64_t number = (id % count + count) % count;
    return sources_[static_cast<std::size_t>(number)]->name_of((id - number) / count);
  }
  int64_t num_shards() const override {
    int64_t fewest = sources_.front()->num_shards();
    for (const auto& source : sources_) fewest = std::min(fewest, source->num_shards());
    return std::max(fewest, static_cast<int64_t>(sources_.size()));
  }
  std::vector<File> files() const override {
    std::vector<File> files;
    for (const auto& source : sources_) {
      for (File& file : source->files()) files.push_back(std::move(file));
    }
    return files;
  }
  int64_t read_ahead() const override { return sources_.front()->read_ahead(); }
  bool is_endless() const override {
    return std::any_of(sources_.begin(), sources_.end(), [](const auto& one) { return internal::is_endless(*one); });
  }
  /// Of the streams that are open at a time, as many as they can be.
  int64_t elements_in_memory() const override {
    std::vector<int64_t> counts;
    for (const auto& source : sources_) counts.push_back(source->elements_in_memory());
    std::sort(counts.rbegin(), counts.rend());
    const auto open = std::min<int64_t>(options_.cycle_length, static_cast<int64_t>(counts.size()));
    return std::accumulate(counts.begin(), counts.begin() + open, int64_t{0});
  }
  uint64_t digest() const override {
    uint64_t digest = sources_.size();
    for (const auto& source : sources_) digest = internal::mixed(digest, source->digest());
    return order_digest(digest, describe(), options_);
  }

 private:
  const Sources sources_;
  const InterleaveOptions options_;
  const bool numbered_;
  const std::string name_;
};

/// Streams that a function makes of the elements of another one.
class MadeChildren final : public Children {
 public:
  MadeChildren(std::shared_ptr<const StreamSource> upstream, std::function<Stream(const Batch&)> fn,
               const StreamPass& pass, const StreamPosition& position)
      : upstream_(std::move(upstream)),
        fn_(std::move(fn)),
        pass_(pass),
        reader_(internal::open_stage(upstream_, pass, position)) {}
  Child next() override { return made(*reader_, reader_->position(), {}); }
  Child again(const StreamPosition& key, const StreamPosition& position) override {
    Child child = made(*internal::open_stage(upstream_, pass_, key), key, position);
    if (child.reader) return child;
    throw DataError(
        "LS-DATA-CHANGED",
        fmt::format("the cursor is in a stream made of an element that {} does not have", upstream_->describe()),
        "give the data that the cursor came from, or begin at the first epoch");
  }
  StreamPosition position() const override { return reader_->position(); }

 private:
  Child made(StreamReader& reader, const StreamPosition& key, const StreamPosition& position) const {
    Batch element;
    if (!reader.next(element)) return {};
    return {internal::open_stage(fn_(element).source(), pass_, position), key};
  }

  const std::shared_ptr<const StreamSource> upstream_;
  const std::function<Stream(const Batch&)> fn_;
  const StreamPass pass_;
  const std::unique_ptr<StreamReader> reader_;
};

class MadeStreams final : public StreamSource, public internal::MaybeEndless {
 public:
  MadeStreams(std::shared_ptr<const StreamSource> upstream, std::function<Stream(const Batch&)> fn,
              const InterleaveOptions& options)
      : upstream_(std::move(upstream)), fn_(std::move(fn)), options_(options) {}
  std::unique_ptr<StreamReader> open(const StreamPass& pass, const StreamPosition& position) const override {
    if (position.empty())
      return opened(std::make_unique<MadeChildren>(upstream_, fn_, pass, StreamPosition{}), options_, nullptr);
    PositionParts parts(position, describe());
    const StreamPosition there = parts.inner();
    return opened(std::make_unique<MadeChildren>(upstream_, fn_, pass, there), options_, &parts);
  }
  std::string describe() const override {
    return fmt::format("streams made of {}{}", upstream_->describe(), in_turn(options_));
  }
  std::vector<File> files() const override { return upstream_->files(); }
  bool is_endless() const override { return internal::is_endless(*upstream_); }
  int64_t read_ahead() const override { return upstream_->read_ahead(); }
  int64_t elements_in_memory() const override { return upstream_->elements_in_memory(); }
  uint64_t digest() const override { return order_digest(upstream_->digest(), describe(), options_); }

 private:
  const std::shared_ptr<const StreamSource> upstream_;
  const std::function<Stream(const Batch&)> fn_;
  const InterleaveOptions options_;
};

void check(const InterleaveOptions& options) {
  internal::check_count("InterleaveOptions::cycle_length", options.cycle_length, 1);
  internal::check_count("InterleaveOptions::block_length", options.block_length, 1);
}

}  // namespace

Stream internal::interleaved(Sources streams, const InterleaveOptions& options, InterleavedIds ids,
                             const std::string& name) {
  check(options);
  return Stream(std::make_shared<ListedStreams>(std::move(streams), options, ids == InterleavedIds::kNumbered, name));
}

namespace data {

Stream interleave(const std::vector<Stream>& streams, const InterleaveOptions& options) {
  if (streams.empty()) throw UsageError("LS-OPTION", "interleave was given no streams", "give at least one");
  Sources sources;
  for (const Stream& stream : streams) sources.push_back(stream.source());
  std::vector<std::string> names;
  for (const auto& source : sources) names.push_back(source->describe());
  const std::string name = fmt::format("[{}]", fmt::join(names, "; "));
  return internal::interleaved(std::move(sources), options, internal::InterleavedIds::kNumbered, name);
}

Stream Stream::concatenate(const Stream& other) const {
  const std::string name = fmt::format("{} and {}", source()->describe(), other.source()->describe());
  return internal::interleaved({source(), other.source()}, {}, internal::InterleavedIds::kNumbered, name);
}

Stream Stream::interleave(std::function<Stream(const Batch&)> fn, const InterleaveOptions& options) const {
  check(options);
  return Stream(std::make_shared<MadeStreams>(source(), std::move(fn), options));
}

}  // namespace data
}  // namespace lockstep
