// Data sets: collections of samples that can be read in any order, and the stages that make one from another.
#pragma once

#include <ATen/core/Generator.h>
#include <ATen/core/TensorBody.h>

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <type_traits>
#include <typeinfo>
#include <utility>
#include <vector>

#include "lockstep/data/batch.h"
#include "lockstep/data/deal/collate.h"

namespace lockstep {
namespace data {

/// One pass over the data of a pipeline: what its random work depends on, besides the sample.
struct Pass {
  uint64_t seed = 0;
  int64_t epoch = 0;
  int64_t maps_after =
      0;  // map() stages between this stage and the end of the pipeline: keeps their random streams apart
};

/// A file that samples come from, with a digest of what is in it.
struct SourceFile {
  std::string name = {};  // its path
  uint64_t digest = 0;
};

/// A finite collection of samples that can be read in any order. Implement it for your own data. For a stage of your
/// own, which makes its samples from those of another source, derive from Stage (data/stages/stage.h).
class Source {
 public:
  virtual ~Source();
  /// The number of samples, at least 0.
  virtual int64_t size() const = 0;
  /// The samples `ids`, each in [0, size()), in that order: `input` and `target`, both [ids.size(), ...], also where
  /// `ids` is empty. `Batch::ids` may stay undefined. Several threads may call at once. An error of the library that it
  /// throws reaches the reader as it is; any other exception reaches the reader nested in a DataError.
  virtual Batch read(std::span<const int64_t> ids) const = 0;
  /// A few words that name the source in messages.
  virtual std::string describe() const = 0;
  /// What messages call the sample with this id: "sample 7 of 100 samples in tensors", or the sample's file.
  virtual std::string name_of(int64_t id) const;
  /// The source as it is in one pass; null where it is the same in all. A source that is read without this, as
  /// Dataset::read does, is that of epoch 0 of seed 0.
  virtual std::shared_ptr<const Source> at_epoch(const Pass& pass) const;
  /// Tells whether data has changed since a cursor was saved: names and sizes of files, some samples. 0 where nothing
  /// is known but the size. It costs a few milliseconds at most.
  virtual uint64_t digest() const;
  /// The files behind it, so that a message can name one that has changed; none where there are none. They are always
  /// in the same order. It costs a few milliseconds at most.
  virtual std::vector<SourceFile> files() const;
  /// How many steps the iterators of a DistributedDataset read ahead: what prefetch() said; 0 without it.
  virtual int64_t read_ahead() const;
  /// The ids of the samples at these places, each in [0, size()). read() is asked for places. The id says which sample
  /// it is, through all stages and in all epochs: Batch::ids has it, and a map() draws by it. Without this it is the
  /// place.
  virtual std::vector<int64_t> ids_at(std::span<const int64_t> places) const;
  /// A number above all ids: size(), where ids are places.
  virtual int64_t id_bound() const;
  /// The samples at these places as values of another type than Batch, for a DistributeOptions::collate that takes this
  /// type; nothing where it has none of this type, also where `places` is empty.
  virtual std::optional<std::vector<internal::AnySample>> read_as(const std::type_info& type,
                                                                  std::span<const int64_t> places) const;
  /// Throws a UsageError (LS-COLLATE) where all samples are of another type, so that read() always fails.
  virtual void require_batches() const;
};

/// A function of map(): makes a sample from a sample, both of one row, [1, ...]. It draws random numbers from the
/// generator. So do LibTorch's random operators that are given none.
using MapFunction = std::function<Batch(Batch, const at::Generator&)>;

struct MapOptions {
  /// Threads that call the function, that of the reader included; 0: as many as the process has cores. Results do not
  /// depend on it.
  int64_t threads = 1;
  std::string name = "map";  // for messages
};

struct PadOptions {
  double value = 0;  // what rows are filled up with; of targets and the tensors in `more` too
  /// The size to which the first dimension of each sample is filled up; 0: that of the longest sample of the group.
  int64_t length = 0;
};

namespace internal_map {
/// A function that takes a sample, or a sample and a generator, as one that takes both.
template <class Fn>
MapFunction with_generator(Fn fn) {
  static_assert(
      std::is_invocable_r_v<Batch, Fn&, Batch, const at::Generator&> || std::is_invocable_r_v<Batch, Fn&, Batch>,
      "lockstep: the function of map must be callable as fn(Batch) or fn(Batch, at::Generator), and give a "
      "Batch");
  if constexpr (std::is_invocable_r_v<Batch, Fn&, Batch, const at::Generator&>) {
    return fn;
  } else {
    return [fn](Batch sample, const at::Generator&) mutable -> Batch { return fn(std::move(sample)); };
  }
}
template <class Fn>
inline constexpr bool kTakesGenerator = std::is_invocable_r_v<Batch, Fn&, Batch, const at::Generator&>;
}  // namespace internal_map

/// A handle to a source; copies refer to the same source. A default-constructed one is empty: its members throw a
/// UsageError.
///
/// Stages give a new data set and leave this one as it is. Samples of the new one have places from 0, by which they are
/// read when they are asked for, and keep the ids that they had before it: Batch::ids says which sample of the first
/// source one is, wherever it stands. A group of batch() has the id of its first sample, a zip() those of the first
/// data set. What concatenate() and repeat() add has ids of its own, behind those before it. A stage takes the size of
/// what is before it when it is made. A count below 0, and a shard index outside of [0, count), is a UsageError.
class Dataset {
 public:
  Dataset() = default;
  explicit Dataset(std::shared_ptr<const Source> source) : source_(std::move(source)) {}
  /// The number of samples. Throws a DataError where the source gives a negative one.
  int64_t size() const;
  /// The samples at the places `ids`, in that order, with their ids; `global_size` is their number. Throws a UsageError
  /// for a place outside of [0, size()). An error of the library that the source throws reaches the caller as it is.
  /// Where the source throws another exception, does not give one row of input and of target for each id, or gives
  /// other ids, a DataError names it.
  Batch read(std::span<const int64_t> ids) const;
  /// All samples in order.
  Batch read_all() const;
  /// What distribute() reads in epoch `epoch` of `seed`.
  Dataset at_epoch(uint64_t seed, int64_t epoch) const;
  const std::shared_ptr<const Source>& source() const;

  /// Each sample is what `fn` makes of it: `fn(Batch)` or `fn(Batch, at::Generator)`, which may be called on several
  /// threads at once. Its random numbers are a function of (seed, epoch, sample), whatever thread, worker or resume
  /// makes the sample. What it throws reaches the reader nested in a DataError that names the sample. All samples that
  /// are read together must have the same dtypes and shapes.
  template <class Fn>
  Dataset map(Fn fn, const MapOptions& options = {}) const {
    return mapped(internal_map::with_generator(std::move(fn)), internal_map::kTakesGenerator<Fn>, options);
  }
  /// The same with a function of any number of rows, which makes each row from the row at the same place, whatever rows
  /// are beside it. It draws nothing.
  Dataset map_rows(std::function<Batch(Batch)> fn, const std::string& name = "map_rows") const;
  /// The samples, of one row each, for which `keep` is true. Reads all of them now. Throws a UsageError behind what is
  /// another in each epoch: shuffle(), a map() that takes a generator, a Source with at_epoch(). Filter before it, or
  /// put cache() between.
  Dataset filter(const std::function<bool(const Batch&)>& keep) const;
  /// All samples in an order that is a function of (seed, epoch).
  Dataset shuffle(uint64_t seed = 0) const;
  /// Groups of `count` neighbouring samples as samples: [count, ...]. The last group may be smaller, unless
  /// `drop_remainder`; it cannot be read together with others.
  Dataset batch(int64_t count, bool drop_remainder = false) const;
  /// The same for samples whose first dimensions differ, which are filled up. Groups that are read together must have
  /// the same length: give PadOptions::length, or read one group at a time.
  Dataset padded_batch(int64_t count, const PadOptions& pad = {}, bool drop_remainder = false) const;
  /// Every `count`-th sample from sample `index` on.
  Dataset shard(int64_t count, int64_t index) const;
  /// The first `count` samples, or all where there are fewer.
  Dataset take(int64_t count) const;
  /// All but the first `count` samples.
  Dataset skip(int64_t count) const;
  /// All samples `count` times. Its epoch e has the epochs e * count and so on of what is before it, so that each time
  /// has random work of its own.
  Dataset repeat(int64_t count) const;
  /// Sample i has the input and target of this data set's sample i, and in Batch::more those of `other`'s sample i, as
  /// "<name>/input" and so on. It has as many samples as the smaller one.
  Dataset zip(const Dataset& other, const std::string& name = "zipped") const;
  /// This data set's samples, then those of `other`.
  Dataset concatenate(const Dataset& other) const;
  /// Keeps samples that were read: in memory, or in a file, which later processes use too. Random work before it is
  /// done once, as in epoch 0 of seed 0. A file of other data is a DataError, and so is a path where no file can be
  /// written; where a later write fails, the log says so and samples are read as without it. One reader at a time
  /// writes a file, and others read as without it; once it has all samples, any number of processes read it. The file
  /// tells data apart by Source::digest, which has the stages and their numbers, and of a map()'s function the name.
  Dataset cache(const std::string& path = {}) const;
  /// Iterators of a DistributedDataset read so many steps ahead, on threads of their own.
  Dataset prefetch(int64_t steps) const;

 private:
  Dataset mapped(MapFunction fn, bool takes_generator, const MapOptions& options) const;

  std::shared_ptr<const Source> source_;
};

/// Sample i is (input[i], target[i]). Both are kept, not copied, and must not change afterwards. Throws a UsageError
/// unless both are dense, lie in the host's memory and have the same number of rows, which may be 0.
Dataset from_tensors(const at::Tensor& input, const at::Tensor& target);
/// The same with further tensors, which stand in Batch::more.
Dataset from_tensors(const at::Tensor& input, const at::Tensor& target, const std::map<std::string, at::Tensor>& more);

/// The samples at [begin, end) of another data set, with their ids. Throws a UsageError where it does not have them.
Dataset slice(const Dataset& dataset, int64_t begin, int64_t end);

}  // namespace data

using data::Dataset;

}  // namespace lockstep
