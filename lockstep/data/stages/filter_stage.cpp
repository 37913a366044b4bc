// filter(): the samples of a data set that a function of the program keeps.
#include <fmt/format.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

#include <algorithm>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "lockstep/core/counted.h"
#include "lockstep/core/error.h"
#include "lockstep/data/deal/batch_rows.h"
#include "lockstep/data/deal/order_probe.h"
#include "lockstep/data/stages/stage.h"
#include "lockstep/data/stages/stage_digest.h"

namespace lockstep::data {

namespace {

class FilterStage final : public internal::IndexStage {
 public:
  FilterStage(const Dataset& upstream, std::shared_ptr<const std::vector<int64_t>> kept, uint64_t digest_of_kept)
      : IndexStage(upstream), kept_(std::move(kept)), digest_of_kept_(digest_of_kept) {}
  uint64_t digest() const override { return internal::stage_digest(Stage::digest(), "filter", {digest_of_kept_}); }
  int64_t size() const override { return static_cast<int64_t>(kept_->size()); }
  std::string describe() const override { return internal::counted(size(), "sample") + " of " + upstream().describe(); }

 protected:
  int64_t upstream_id(int64_t id) const override { return (*kept_)[static_cast<std::size_t>(id)]; }
  std::shared_ptr<const Source> with(const Dataset& upstream) const override {
    return std::make_shared<FilterStage>(upstream, kept_, digest_of_kept_);
  }

 private:
  const std::shared_ptr<const std::vector<int64_t>> kept_;
  const uint64_t digest_of_kept_;
};

}  // namespace

Dataset Dataset::filter(const std::function<bool(const Batch&)>& keep) const {
  if (internal::changes_by_epoch(*source())) {
    throw UsageError("LS-OPTION",
                     fmt::format("filter was to choose from {}, which is another in each epoch: what is chosen now "
                                 "would be other samples then",
                                 source()->describe()),
                     "filter before shuffle() and random map()s, or put cache() before filter()");
  }
  int64_t at_once = 256;
  auto kept = std::make_shared<std::vector<int64_t>>();
  const int64_t count = size();
  for (int64_t begin = 0; begin < count;) {
    std::vector<int64_t> ids;
    for (int64_t id = begin; id < std::min(count, begin + at_once); ++id) ids.push_back(id);
    Batch some;
    try {
      some = read(ids);
    } catch (const DataError& error) {
      if (at_once == 1 || error.code() != "LS-SAMPLE-SHAPE") throw;
      at_once = 1;  // samples that are not alike are read one by one
      continue;
    }
    for (std::size_t i = 0; i < ids.size(); ++i) {
      Batch sample = internal::rows_of(some, static_cast<int64_t>(i), 1);
      sample.global_size = 1;
      if (keep(sample)) kept->push_back(ids[i]);
    }
    begin += static_cast<int64_t>(ids.size());
  }
  const uint64_t digest = XXH3_64bits(kept->data(), kept->size() * sizeof(int64_t));
  return Dataset(std::make_shared<FilterStage>(*this, std::move(kept), digest));
}

}  // namespace lockstep::data
