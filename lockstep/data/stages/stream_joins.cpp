// The stages of streams that read one stream several times, or two side by side.
#include <ATen/ATen.h>
#include <fmt/format.h>

#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "lockstep/core/error.h"
#include "lockstep/data/deal/batch_rows.h"
#include "lockstep/data/stages/stage.h"
#include "lockstep/data/stages/stream_stage.h"

namespace lockstep::data {

using internal::append;
using internal::check_count;
using internal::PositionParts;
using internal::StreamStage;

namespace {

using Reader = std::unique_ptr<StreamReader>;

class RepeatReader final : public StreamReader {
 public:
  RepeatReader(std::shared_ptr<const StreamSource> source, StreamPass pass, std::optional<int64_t> count, int64_t round,
               const StreamPosition& position)
      : source_(std::move(source)), pass_(std::move(pass)), count_(count), round_(round) {
    if (more()) reader_ = open(position);
    was_empty_ = position.empty();
  }
  bool next(Batch& element) override {
    while (more()) {
      if (!reader_) {
        reader_ = open({});
        was_empty_ = true;
      }
      if (reader_->next(element)) {
        was_empty_ = false;
        return true;
      }
      if (was_empty_) return false;  // a stream without elements would be read for ever
      reader_.reset();
      ++round_;
    }
    return false;
  }
  StreamPosition position() const override {
    StreamPosition position{round_};
    append(position, reader_ ? reader_->position() : StreamPosition{});
    return position;
  }

 private:
  bool more() const { return !count_ || round_ < *count_; }
  Reader open(const StreamPosition& position) const {
    StreamPass pass = pass_;
    const uint64_t before = static_cast<uint64_t>(pass.pass.epoch) * static_cast<uint64_t>(count_.value_or(1));
    pass.pass.epoch = static_cast<int64_t>(before + static_cast<uint64_t>(round_));
    return internal::open_stage(source_, pass, position);
  }

  const std::shared_ptr<const StreamSource> source_;
  const StreamPass pass_;
  const std::optional<int64_t> count_;
  int64_t round_;
  bool was_empty_ = true;
  Reader reader_;
};

class RepeatStage final : public StreamStage {
 public:
  RepeatStage(const Stream& upstream, std::optional<int64_t> count) : StreamStage(upstream), count_(count) {}
  std::unique_ptr<StreamReader> open(const StreamPass& pass, const StreamPosition& position) const override {
    if (position.empty()) return std::make_unique<RepeatReader>(shared_upstream(), pass, count_, 0, StreamPosition{});
    PositionParts parts(position, describe());
    const int64_t round = parts.number();
    const StreamPosition there = parts.inner();
    parts.end();
    return std::make_unique<RepeatReader>(shared_upstream(), pass, count_, round, there);
  }
  std::string describe() const override {
    return count_ ? fmt::format("{} times {}", *count_, upstream().describe())
                  : fmt::format("{}, again and again", upstream().describe());
  }
  bool is_endless() const override { return !count_ || (*count_ > 0 && StreamStage::is_endless()); }

 private:
  const std::optional<int64_t> count_;
};

class ZipReader final : public StreamReader {
 public:
  ZipReader(Reader first, Reader second, std::string name)
      : first_(std::move(first)), second_(std::move(second)), name_(std::move(name)) {}
  bool next(Batch& element) override {
    // An element of the first one waits where the second one throws.
    if (!waiting_) {
      position_ = position_of_both();
      Batch one;
      if (!first_->next(one)) return false;
      waiting_ = std::move(one);
    }
    Batch other;
    if (!second_->next(other)) return false;
    Batch first = std::move(*waiting_);
    waiting_.reset();
    if (first.size() != other.size()) {
      throw DataError("LS-SAMPLE-SHAPE",
                      fmt::format("zip was given elements of {} and {} rows", first.size(), other.size()),
                      "give both streams the same batch()");
    }
    element = internal::zipped(std::move(first), other, name_);
    return true;
  }
  StreamPosition position() const override { return waiting_ ? position_ : position_of_both(); }

 private:
  StreamPosition position_of_both() const {
    StreamPosition position;
    append(position, first_->position());
    append(position, second_->position());
    return position;
  }

  const Reader first_;
  const Reader second_;
  const std::string name_;
  std::optional<Batch> waiting_;
  StreamPosition position_;  // before the element that waits
};

class ZipStage final : public StreamStage {
 public:
  ZipStage(const Stream& first, const Stream& second, std::string name)
      : StreamStage(first), second_(second.source()), name_(std::move(name)) {}
  std::unique_ptr<StreamReader> open(const StreamPass& pass, const StreamPosition& position) const override {
    StreamPosition first;
    StreamPosition second;
    if (!position.empty()) {
      PositionParts parts(position, describe());
      first = parts.inner();
      second = parts.inner();
      parts.end();
    }
    return std::make_unique<ZipReader>(open_upstream(pass, first), internal::open_stage(second_, pass, second), name_);
  }
  std::string describe() const override {
    return fmt::format("{} with {} as '{}'", upstream().describe(), second_->describe(), name_);
  }
  int64_t num_shards() const override { return 1; }  // files of both need not correspond
  bool is_endless() const override { return StreamStage::is_endless() && internal::is_endless(*second_); }
  int64_t elements_in_memory() const override {
    return upstream().elements_in_memory() + second_->elements_in_memory();
  }
  uint64_t digest() const override {
    return internal::stage_digest(internal::mixed(upstream().digest(), second_->digest()), describe());
  }
  std::vector<File> files() const override {
    std::vector<File> all = upstream().files();
    for (File& file : second_->files()) all.push_back(std::move(file));
    return all;
  }

 private:
  const std::shared_ptr<const StreamSource> second_;
  const std::string name_;
};

}  // namespace

Stream Stream::repeat(std::optional<int64_t> count) const {
  if (count) check_count("Stream::repeat", *count, 0);
  return Stream(std::make_shared<RepeatStage>(*this, count));
}

Stream Stream::zip(const Stream& other, const std::string& name) const {
  return Stream(std::make_shared<ZipStage>(*this, other, name));
}

}  // namespace lockstep::data
