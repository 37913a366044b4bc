// Streams: samples in sequence, from files of records and from generators, and the stages that make one from another.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "lockstep/data/dataset.h"
#include "lockstep/data/sources/records.h"
#include "lockstep/data/sources/stream_source.h"

namespace lockstep {
namespace data {

/// The order is tf.data's: a stream that ends ends its turn, and its place gets the next stream when its turn comes.
struct InterleaveOptions {
  int64_t cycle_length = 1;  // how many streams are read in turn; 1: one after the other
  int64_t block_length = 1;  // how many elements of one before the turn passes on
};

/// A handle to a stream source; copies refer to the same source. A default-constructed one is empty: its members throw
/// a UsageError.
///
/// Stages give a new stream and leave this one as it is. They keep the ids of elements, except concatenate() and
/// interleave(), which make new ones. Ids do not depend on who reads. repeat() gives each id several times; so may
/// interleave(fn), where two streams have the same ids. An element has one row, or several after batch(). A count below
/// 0, and a shard index outside of [0, count), is a UsageError.
class Stream {
 public:
  Stream() = default;
  explicit Stream(std::shared_ptr<const StreamSource> source) : source_(std::move(source)) {}
  const std::shared_ptr<const StreamSource>& source() const;
  /// A reader of one pass, from the beginning.
  std::unique_ptr<StreamReader> open(const StreamPass& pass = {}) const;
  /// All elements of epoch 0 of `seed`. For streams that end.
  std::vector<Batch> read_all(uint64_t seed = 0) const;

  /// Each element is what `fn` makes of it: `fn(Batch)` or `fn(Batch, at::Generator)`, which must give as many rows as
  /// it got. See Dataset::map; order is kept.
  template <class Fn>
  Stream map(Fn fn, const MapOptions& options = {}) const {
    return mapped(internal_map::with_generator(std::move(fn)), internal_map::kTakesGenerator<Fn>, options);
  }
  /// The elements for which `keep` is true.
  Stream filter(std::function<bool(const Batch&)> keep) const;
  /// Elements in another order, which is a function of (seed, epoch): windows of `window` elements, one after the
  /// other, each in a random order. A window lies in memory, and is read again where a run continues in it.
  Stream shuffle(int64_t window, uint64_t seed = 0) const;
  /// The rows of `count` neighbouring elements as one element. The last one may be smaller, unless `drop_remainder`.
  Stream batch(int64_t count, bool drop_remainder = false) const;
  /// The same for elements whose second dimensions differ ([rows, length, ...]), which are filled up.
  Stream padded_batch(int64_t count, const PadOptions& pad = {}, bool drop_remainder = false) const;
  /// Every `count`-th element from element `index` on.
  Stream shard(int64_t count, int64_t index) const;
  Stream take(int64_t count) const;
  Stream skip(int64_t count) const;
  /// All elements `count` times, or without end. Each time has random work of its own, as epochs have.
  Stream repeat(std::optional<int64_t> count = std::nullopt) const;
  /// Elements with those of `other` in Batch::more: see Dataset::zip. It ends with the shorter one.
  Stream zip(const Stream& other, const std::string& name = "zipped") const;
  /// This stream's elements, then those of `other`. An id i becomes 2 * i, or 2 * i + 1 in `other`.
  Stream concatenate(const Stream& other) const;
  /// `fn(element)` gives a stream for each element; `cycle_length` of them are read in turn. `fn` gives the same stream
  /// each time. Ids are those of the streams that it gives.
  Stream interleave(std::function<Stream(const Batch&)> fn, const InterleaveOptions& options = {}) const;
  /// Keeps all elements, once a pass has read them from the first to the last: in memory, or in a file, which appears
  /// when it is whole and which later runs read too. Random work before it is that of epoch 0 of seed 0. A path that
  /// cannot be used, and a file of other data, is a DataError. Where the disk is full, or elements are left out
  /// (OnError::kSkip), nothing is kept, and the log says so. One reader at a time writes the file. It tells data apart
  /// by StreamSource::digest() and by the digests of the files. Of a function these know the name only: give the
  /// function of a map another name where it changes, and another path where a function without a name does.
  Stream cache(const std::string& path = {}) const;
  /// See Dataset::prefetch.
  Stream prefetch(int64_t steps) const;

 private:
  Stream mapped(MapFunction fn, bool takes_generator, const MapOptions& options) const;

  std::shared_ptr<const StreamSource> source_;
};

/// Elements of several streams in turn. An id i of stream k of n becomes n * i + k. At least one stream.
Stream interleave(const std::vector<Stream>& streams, const InterleaveOptions& options = {});

/// Makes a sample, of one row, from the bytes of a record. Called on the thread that reads.
using ParseFunction = std::function<Batch(const std::string& bytes, const RecordPlace& place)>;

/// The records of files, in the order of the files, or `cycle_length` files in turn. The id of a record is its file's
/// number times 2^40, plus its number in the file.
Stream from_records(std::shared_ptr<const RecordFiles> files, ParseFunction parse,
                    const InterleaveOptions& options = {});

/// The samples of a data set in their order.
Stream from_dataset(const Dataset& dataset);

/// Where a generator begins.
struct GeneratorStart {
  uint64_t seed = 0;
  int64_t epoch = 0;
  int64_t element = 0;  // how many elements come before the first one that it gives
};
/// Gives the next element, which has at least one row; nothing at the end. Where it sets no ids, rows are numbered from
/// 0.
using GeneratorFunction = std::function<std::optional<Batch>()>;

/// A stream of a program's own making. `make(start)` gives a fresh generator that begins at `start.element`; a `make()`
/// without arguments gives one that begins at the beginning, and to continue at a place everything before it is
/// generated again. All workers must generate the same elements.
Stream from_generator(std::function<GeneratorFunction(const GeneratorStart&)> make,
                      const std::string& name = "a generator");
Stream from_generator(std::function<GeneratorFunction()> make, const std::string& name = "a generator");

}  // namespace data

using data::Stream;

}  // namespace lockstep
