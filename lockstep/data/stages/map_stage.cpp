// map(): samples that a function of the program makes from samples.
#include <ATen/ATen.h>
#include <fmt/format.h>

#include <algorithm>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

#include "lockstep/core/error.h"
#include "lockstep/data/deal/batch_rows.h"
#include "lockstep/data/deal/order_probe.h"
#include "lockstep/data/deal/row_collector.h"
#include "lockstep/data/read_pool.h"
#include "lockstep/data/stages/map_call.h"
#include "lockstep/data/stages/stage.h"
#include "lockstep/data/stages/stage_digest.h"

namespace lockstep {

namespace internal::inline data {

namespace {

// Making a generator costs as much as a small sample, so each thread keeps those that it has used.
thread_local std::vector<std::unique_ptr<RandomStream>> idle_streams;

}  // namespace

SampleRandom::SampleRandom(const lockstep::data::Pass& pass)
    : seed_(mixed(pass.seed, mixed(static_cast<uint64_t>(pass.epoch), static_cast<uint64_t>(pass.maps_after)))) {
  static const int intercepted = intercept_random_operators();
  static_cast<void>(intercepted);
  if (idle_streams.empty()) {
    stream_ = std::make_unique<RandomStream>();
  } else {
    stream_ = std::move(idle_streams.back());
    idle_streams.pop_back();
  }
  scope_.emplace(*stream_);
}

SampleRandom::~SampleRandom() {
  scope_.reset();
  idle_streams.push_back(std::move(stream_));
}

void SampleRandom::begin(int64_t sample) {
  stream_->restart({.seed = mixed(seed_, static_cast<uint64_t>(sample)), .purpose = StreamPurpose::kSample});
}

Batch call_map(const MapCall& call, SampleRandom& random, Batch sample, int64_t id, FunctionRef<std::string()> where) {
  const int64_t rows = sample.size();
  try {
    random.begin(id);
    static const at::Generator none;
    Batch made = call.function(std::move(sample), call.takes_generator ? random.generator() : none);
    made.ids = at::Tensor();
    made.global_size = 0;
    made.padding = 0;
    for_each_tensor(made, [](at::Tensor& tensor) {
      if (tensor.defined() && tensor.requires_grad()) tensor = tensor.detach();
    });
    check_rows(made, rows, call.who);
    return made;
  } catch (...) {
    std::throw_with_nested(DataError(
        "LS-MAP", fmt::format("{} failed on {}: {}", call.name, where(), message_of(std::current_exception())),
        "correct the function or the sample, or skip such samples: DistributeOptions::on_error; "
        "std::rethrow_if_nested gives the exception itself"));
  }
}

}  // namespace internal::data

namespace data {

namespace {

/// What all passes of a map() share.
struct Mapping {
  Mapping(internal::MapCall fn, int64_t threads) : call(std::move(fn)), pool(threads) {}

  const internal::MapCall call;
  internal::ReadPool pool;
  std::mutex mutex;
  std::optional<Batch> no_rows;  // of the form that sample 0 has, once it was made; guarded by mutex
};

class MapStage final : public internal::EachStage {
 public:
  MapStage(const Dataset& upstream, std::shared_ptr<Mapping> mapping, Pass pass)
      : EachStage(upstream), mapping_(std::move(mapping)), pass_(pass) {}

  std::string describe() const override { return fmt::format("{} of {}", mapping_->call.name, upstream().describe()); }
  /// Of the function only the name is known.
  uint64_t digest() const override {
    return internal::stage_digest(Stage::digest(), "map/" + mapping_->call.name,
                                  {pass_.seed, static_cast<uint64_t>(pass_.epoch)});
  }

  std::shared_ptr<const Source> at_epoch(const Pass& pass) const override {
    if (internal::is_order_probe(pass) && !mapping_->call.takes_generator) return Stage::at_epoch(pass);
    Pass before = pass;
    if (!internal::is_order_probe(pass)) ++before.maps_after;
    auto source = upstream().at_epoch(before);
    return std::make_shared<MapStage>(source ? Dataset(std::move(source)) : whole(), mapping_, pass);
  }

  Batch read(std::span<const int64_t> ids) const override {
    if (ids.empty()) return without_rows();
    // Each task reads and maps neighbours, so that a source that reads many at once does so.
    constexpr int64_t kMost = 16;
    const auto count = static_cast<int64_t>(ids.size());
    const int64_t threads = mapping_->pool.threads();
    const int64_t each = threads == 1 ? count : std::clamp<int64_t>(count / (4 * threads), 1, kMost);
    const int64_t tasks = (count + each - 1) / each;
    const std::vector<int64_t> kept = ids_at(ids);
    internal::RowCollector made(count);
    mapping_->pool.run(tasks, [&](int64_t task) {
      const int64_t begin = task * each;
      const int64_t size = std::min(each, count - begin);
      const auto some = ids.subspan(static_cast<std::size_t>(begin), static_cast<std::size_t>(size));
      Batch rows = read_upstream(some);
      const auto known = std::span(kept).subspan(static_cast<std::size_t>(begin), static_cast<std::size_t>(size));
      rows.ids = internal::ids_tensor(known);
      internal::SampleRandom random(pass_);
      for (int64_t i = 0; i < size; ++i) {
        const int64_t id = known[static_cast<std::size_t>(i)];
        Batch sample = internal::rows_of(rows, i, 1);
        sample.global_size = 1;
        Batch row =
            internal::call_map(mapping_->call, random, std::move(sample), id, [&] { return upstream().name_of(id); });
        if (!row.target.defined()) row.target = at::empty({1, 0});
        made.put(begin + i, std::move(row));
      }
    });
    const Batch joined = made.take(describe(), {[this](int64_t id) { return name_of(id); }, kept});
    if (std::find(ids.begin(), ids.end(), kFirst) != ids.end()) {
      const std::lock_guard<std::mutex> lock(mapping_->mutex);
      if (!mapping_->no_rows) mapping_->no_rows = internal::no_rows(joined);
    }
    return joined;
  }

 protected:
  std::shared_ptr<const Source> with(const Dataset& upstream) const override {
    return std::make_shared<MapStage>(upstream, mapping_, pass_);
  }

 private:
  /// Its form tells those of results, whichever are read first: a last group of batch() has fewer rows.
  static constexpr int64_t kFirst = 0;

  /// The dtypes and shapes of results are known from a sample only.
  Batch without_rows() const {
    {
      const std::lock_guard<std::mutex> lock(mapping_->mutex);
      if (mapping_->no_rows) return *mapping_->no_rows;
    }
    return size() == 0 ? read_upstream({}) : internal::no_rows(read({&kFirst, 1}));
  }

  const std::shared_ptr<Mapping> mapping_;
  const Pass pass_;
};

class MapRowsStage final : public internal::EachStage {
 public:
  MapRowsStage(const Dataset& upstream, std::function<Batch(Batch)> fn, std::string name)
      : EachStage(upstream), fn_(std::move(fn)), name_(std::move(name)) {}
  std::string describe() const override { return fmt::format("{} of {}", name_, upstream().describe()); }
  uint64_t digest() const override { return internal::stage_digest(Stage::digest(), "map_rows/" + name_); }
  Batch read(std::span<const int64_t> ids) const override {
    const internal::ReadingScope scope;
    Batch rows = read_upstream(ids);
    rows.ids = internal::ids_tensor(ids_at(ids));
    rows.global_size = static_cast<int64_t>(ids.size());
    Batch made = fn_(std::move(rows));
    made.padding = 0;
    made.ids = at::Tensor();
    if (made.input.defined() && !made.target.defined()) made.target = at::empty({static_cast<int64_t>(ids.size()), 0});
    return made;
  }

 protected:
  std::shared_ptr<const Source> with(const Dataset& upstream) const override {
    return std::make_shared<MapRowsStage>(upstream, fn_, name_);
  }

 private:
  const std::function<Batch(Batch)> fn_;
  const std::string name_;
};

}  // namespace

Dataset Dataset::mapped(MapFunction fn, bool takes_generator, const MapOptions& options) const {
  const int64_t threads = internal::mapping_threads(options.threads);
  auto mapping = std::make_shared<Mapping>(internal::MapCall{std::move(fn), takes_generator, options.name}, threads);
  return Dataset(std::make_shared<MapStage>(*this, std::move(mapping), Pass{}));
}

Dataset Dataset::map_rows(std::function<Batch(Batch)> fn, const std::string& name) const {
  return Dataset(std::make_shared<MapRowsStage>(*this, std::move(fn), name));
}

}  // namespace data
}  // namespace lockstep
