// What streams are made of: sources that are read in sequence, and positions in them. A stage is one more source.
#pragma once

#include <atomic>
#include <cstdint>
#include <exception>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/data/batch.h"
#include "lockstep/data/dataset.h"

namespace lockstep::data {

/// Where a reader of a stream is: a few numbers, whose meaning is the source's own. None: at the beginning.
using StreamPosition = std::vector<int64_t>;

/// Counts samples that were left out because they could not be read. Any thread.
class SkippedSamples {
 public:
  SkippedSamples() = default;
  /// Those of a part of a pass: they count in `all` too, where it is given.
  explicit SkippedSamples(std::shared_ptr<SkippedSamples> all) : all_(std::move(all)) {}
  /// Counts one. The first ones are logged, with what was thrown. Where that is a lack of memory or of file
  /// descriptors, and so not about the sample, it is thrown again, and nothing is counted.
  void add(const std::exception_ptr& why);
  int64_t count() const { return count_.load(); }
  /// Sets the count back after samples were read a second time.
  void set(int64_t count) {
    const int64_t before = count_.exchange(count);
    if (all_) all_->set(all_->count() - (before - count));
  }

 private:
  const std::shared_ptr<SkippedSamples> all_ = nullptr;
  std::atomic<int64_t> count_{0};
};

/// One pass over a stream.
struct StreamPass {
  Pass pass = {};
  bool shuffle = false;     // files are read in an order that is a function of (seed, epoch)
  int64_t shard_index = 0;  // this pass reads only every shard_count-th file (StreamSource::num_shards)
  int64_t shard_count = 1;
  std::shared_ptr<SkippedSamples> skipped = nullptr;  // where it is given, samples that cannot be read are left out
};

/// Reads a stream once, in order. One thread at a time.
class StreamReader {
 public:
  virtual ~StreamReader();
  /// The next element: a Batch of one row or several, with its ids. False at the end. Where it throws, it has given
  /// nothing, and the next call goes on behind the element that could not be read, if there is a place behind it.
  virtual bool next(Batch& element) = 0;
  /// The place behind the element that next() gave last. The source's open() continues there.
  virtual StreamPosition position() const = 0;
};

/// A sequence of elements that can be read many times. Implement it for your own data, or for a stage of your own. Any
/// thread; several readers may live at once.
class StreamSource {
 public:
  virtual ~StreamSource();
  /// A reader at `position`, which a reader of the same source gave in a pass of the same seed, epoch and shard. Throws
  /// a UsageError for a position that cannot be one. The reader keeps what it needs: it may outlive the source.
  virtual std::unique_ptr<StreamReader> open(const StreamPass& pass, const StreamPosition& position) const = 0;
  virtual std::string describe() const = 0;
  /// What messages call the sample of an id that its readers gave: "sample 7 of records in memory".
  virtual std::string name_of(int64_t id) const;
  /// In how many passes with different files it can be read, whose elements together are all; 1 where it cannot.
  virtual int64_t num_shards() const;
  /// The files behind it, with a digest of each, for the check whether they have changed.
  struct File {
    std::string name;
    uint64_t digest = 0;
  };
  virtual std::vector<File> files() const;
  /// What its elements are, as far as it can say without its files; caches tell streams apart by it. Of describe(),
  /// unless it is overridden. A stage of your own that reads other streams mixes in their digests: one text may
  /// describe two orders of the same stages.
  virtual uint64_t digest() const;
  /// See Source::read_ahead.
  virtual int64_t read_ahead() const;
  /// How many elements one of its readers keeps in memory at most: those of windows, those that the threads of a
  /// map() make, and those that from_dataset() reads at once. What cache() keeps is not counted, and neither are
  /// streams that a function makes.
  virtual int64_t elements_in_memory() const;
};

}  // namespace lockstep::data

namespace lockstep::internal::inline data {

/// Writes positions that contain others.
void append(lockstep::data::StreamPosition& position, const lockstep::data::StreamPosition& inner);

/// Takes positions apart. Throws a UsageError LS-STATE-MISFIT where there is less than expected.
class PositionParts {
 public:
  PositionParts(const lockstep::data::StreamPosition& position, std::string who)
      : position_(position), who_(std::move(who)) {}
  int64_t number(int64_t least = 0);
  lockstep::data::StreamPosition inner();
  /// Throws where something is left.
  void end() const;
  /// Throws that error.
  [[noreturn]] void refuse() const;

 private:
  const lockstep::data::StreamPosition& position_;
  const std::string who_;
  std::size_t next_ = 0;
};

}  // namespace lockstep::internal::data
