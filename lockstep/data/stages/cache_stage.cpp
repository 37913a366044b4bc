// Dataset::cache(): samples that are read once, and kept in memory or in a file.
#include <fmt/format.h>

#include <atomic>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/core/error.h"
#include "lockstep/core/log.h"
#include "lockstep/data/deal/batch_copy.h"
#include "lockstep/data/deal/batch_rows.h"
#include "lockstep/data/stages/element_file.h"
#include "lockstep/data/stages/stage.h"

namespace lockstep::data {

namespace {

/// Samples that were read, by number. Any thread.
class Kept {
 public:
  /// In memory.
  Kept() : is_in_file_(false), recording_(std::make_shared<internal::ElementsInMemory>()), samples_(recording_) {}
  /// In a file. Throws a DataError where it cannot be used.
  Kept(const std::string& path, const internal::CacheKey& key)
      : is_in_file_(true), samples_(internal::ElementFile::open(path, key)) {
    if (samples_) return;
    samples_ = recording_ = internal::ElementRecording::resume(path, key);
    if (samples_) return;
    internal::log(LogLevel::kInfo,
                  fmt::format("the cache '{}' is being written by another reader; samples are read without it", path));
  }

  /// In memory of its own if `is_given_away`. A sample that is damaged is read as if it were not there.
  std::optional<Batch> find(int64_t id, bool is_given_away) const try {
    std::optional<Batch> found = samples_ ? samples_->find(id) : std::nullopt;
    if (found && is_given_away && samples_->are_shared()) found = internal::copied(std::move(*found));
    return found;
  } catch (const DataError& error) {
    if (!is_damage_told_.exchange(true)) {
      internal::log(LogLevel::kWarning, std::string(error.what()) + "; what is damaged is read each time");
    }
    return std::nullopt;
  }
  void to_kept_form(Batch& samples) const { internal::to_kept_form(samples, is_in_file_); }
  /// Once.
  void tell_of_sparse(const std::string& who) const {
    if (is_sparse_told_.exchange(true)) return;
    internal::log(LogLevel::kWarning,
                  who +
                      ": samples with sparse tensors are not kept, because rows of these cannot be taken out; they "
                      "are read each time");
  }
  void add(int64_t id, const Batch& sample) {
    if (recording_) recording_->add(id, sample);
  }

 private:
  const bool is_in_file_;
  std::shared_ptr<internal::GrowingElements> recording_;  // null where nothing is added
  std::shared_ptr<const internal::Elements> samples_;     // null where another reader writes the file
  mutable std::atomic<bool> is_damage_told_{false};
  mutable std::atomic<bool> is_sparse_told_{false};
};

/// Whether single samples can be taken out of what was read together.
bool has_rows(Batch& read) {
  bool is_dense = true;
  for_each_tensor(read, [&](const at::Tensor& tensor) {
    if (tensor.defined() && tensor.layout() != at::kStrided) is_dense = false;
  });
  return is_dense;
}

class CacheStage final : public internal::EachStage {
 public:
  CacheStage(const Dataset& upstream, std::shared_ptr<Kept> kept) : EachStage(upstream), kept_(std::move(kept)) {}
  std::string describe() const override { return fmt::format("cached {}", upstream().describe()); }
  std::shared_ptr<const Source> at_epoch(const Pass& /*pass*/) const override { return nullptr; }
  Batch read(std::span<const int64_t> ids) const override {
    std::vector<Batch> samples(ids.size());
    std::vector<int64_t> missing;
    std::vector<std::size_t> places;
    for (std::size_t i = 0; i < ids.size(); ++i) {
      if (std::optional<Batch> found = kept_->find(ids[i], ids.size() == 1)) {
        samples[i] = std::move(*found);
      } else {
        missing.push_back(ids[i]);
        places.push_back(i);
      }
    }
    const std::vector<int64_t> known = ids_at(ids);
    const internal::SampleNames names{[this](int64_t id) { return name_of(id); }, known};
    // What is kept is not given away: joining copies it, but for a single sample.
    if (missing.empty() && samples.size() == 1) return std::move(samples.front());
    if (missing.empty() && !samples.empty()) return internal::joined_rows(samples, describe(), names);
    Batch read = read_upstream(missing);
    if (!has_rows(read)) {
      kept_->tell_of_sparse(describe());
      return missing.size() == ids.size() ? read : read_upstream(ids);
    }
    kept_->to_kept_form(read);
    for (std::size_t m = 0; m < missing.size(); ++m) {
      samples[places[m]] = internal::rows_of(read, static_cast<int64_t>(m), 1);
      kept_->add(missing[m], samples[places[m]]);
    }
    return missing.size() == ids.size() ? read : internal::joined_rows(samples, describe(), names);
  }

 protected:
  std::shared_ptr<const Source> with(const Dataset& upstream) const override {
    return std::make_shared<CacheStage>(upstream, kept_);
  }

 private:
  const std::shared_ptr<Kept> kept_;
};

}  // namespace

Dataset Dataset::cache(const std::string& path) const {
  const internal::CacheKey key{.digest = source()->digest(), .size = size()};
  auto kept = path.empty() ? std::make_shared<Kept>() : std::make_shared<Kept>(path, key);
  return Dataset(std::make_shared<CacheStage>(*this, std::move(kept)));
}

}  // namespace lockstep::data
