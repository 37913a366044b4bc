#include "lockstep/data/dataset.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <fmt/format.h>

#include <algorithm>
#include <exception>
#include <numeric>
#include <vector>

#include "lockstep/core/counted.h"
#include "lockstep/core/error.h"
#include "lockstep/data/deal/batch_rows.h"
#include "lockstep/data/rows.h"
#include "lockstep/data/sources/files_digest.h"
#include "lockstep/data/stages/stage.h"
#include "lockstep/data/stages/stage_digest.h"
#include "lockstep/data/stages/stage_times.h"

namespace lockstep::data {

using internal::rows_of;
using internal::text_of;

namespace {

/// "3 samples (7, 0, 4)", for messages.
std::string text_of_ids(std::span<const int64_t> ids) {
  constexpr std::size_t kShown = 4;
  std::string text = internal::counted(static_cast<int64_t>(ids.size()), "sample");
  for (std::size_t i = 0; i < std::min(ids.size(), kShown); ++i)
    text += fmt::format("{}{}", i == 0 ? " (" : ", ", ids[i]);
  if (!ids.empty()) text += ids.size() > kShown ? ", ...)" : ")";
  return text;
}

/// Whether the ids that a source gave, if it gave them, are those that it was asked for.
bool are_ids(const at::Tensor& given, std::span<const int64_t> asked) {
  if (!given.defined()) return true;
  if (given.scalar_type() != at::kLong || given.dim() != 1 || !given.device().is_cpu()) return false;
  const at::Tensor ids = given.contiguous();
  return std::equal(asked.begin(), asked.end(), ids.data_ptr<int64_t>(), ids.data_ptr<int64_t>() + ids.numel());
}

/// Reads from the source. An exception that is not the library's becomes a DataError that names the source.
Batch read_or_name(const Source& source, std::span<const int64_t> ids) {
  try {
    return source.read(ids);
  } catch (const Error&) {
    throw;
  } catch (...) {
    std::throw_with_nested(DataError("LS-SOURCE",
                                     fmt::format("{} was asked for {} and failed: {}", source.describe(),
                                                 text_of_ids(ids), message_of(std::current_exception())),
                                     "look into its read(); std::rethrow_if_nested gives the exception itself"));
  }
}

}  // namespace
}  // namespace lockstep::data

namespace lockstep::internal::inline data {

Batch read_checked(const lockstep::data::Source& source, std::span<const int64_t> ids) {
  const StageScope stage(source);
  Batch batch = lockstep::data::read_or_name(source, ids);
  const auto count = static_cast<int64_t>(ids.size());
  if (rows_of(batch.input) != count || rows_of(batch.target) != count) {
    throw DataError("LS-SOURCE",
                    fmt::format("{} was asked for {} and gave input {} and target {}", source.describe(),
                                lockstep::data::text_of_ids(ids), text_of(batch.input), text_of(batch.target)),
                    "its read() must give one row of input and of target for each sample");
  }
  if (!lockstep::data::are_ids(batch.ids, ids)) {
    throw DataError(
        "LS-SOURCE",
        fmt::format("{} was asked for {} and gave others as Batch::ids", source.describe(),
                    lockstep::data::text_of_ids(ids)),
        "its read() must give the samples that it is asked for, in that order, or leave Batch::ids undefined");
  }
  if (!batch.more.empty()) check_rows(batch, count, source.describe());
  return batch;
}

std::vector<int64_t> IndexStage::upstream_ids(std::span<const int64_t> ids) const {
  std::vector<int64_t> moved;
  moved.reserve(ids.size());
  for (const int64_t id : ids) moved.push_back(upstream_id(id));
  return moved;
}

Batch IndexStage::read(std::span<const int64_t> ids) const { return read_upstream(upstream_ids(ids)); }

std::optional<std::vector<AnySample>> IndexStage::read_as(const std::type_info& type,
                                                          std::span<const int64_t> places) const {
  return upstream().read_as(type, upstream_ids(places));
}

std::vector<int64_t> IndexStage::ids_at(std::span<const int64_t> places) const {
  return upstream().ids_at(upstream_ids(places));
}

void check_count(const char* call, int64_t count, int64_t least) {
  if (count >= least) return;
  throw UsageError("LS-OPTION", fmt::format("{} was given {}", call, count), fmt::format("give at least {}", least));
}

void check_shard(const char* call, int64_t count, int64_t index) {
  check_count(call, count, 1);
  if (index >= 0 && index < count) return;
  throw UsageError("LS-OPTION", fmt::format("{} was asked for shard {} of {}", call, index, count),
                   fmt::format("choose one from 0 to {}", count - 1));
}

}  // namespace lockstep::internal::data

namespace lockstep::data {

namespace {

class TensorSource final : public Source {
 public:
  TensorSource(at::Tensor input, at::Tensor target, std::map<std::string, at::Tensor> more,
               std::vector<SourceFile> files = {}, uint64_t choice = 0)
      : all_{.input = std::move(input), .target = std::move(target), .more = std::move(more)},
        files_(std::move(files)),
        choice_(choice) {}
  int64_t size() const override { return all_.input.size(0); }
  Batch read(std::span<const int64_t> ids) const override { return internal::rows_at(all_, ids); }
  std::string describe() const override {
    return files_.empty() ? internal::counted(size(), "sample") + " in tensors"
                          : fmt::format("{} of '{}'", internal::counted(size(), "sample"), files_.front().name);
  }
  std::vector<SourceFile> files() const override { return files_; }
  uint64_t digest() const override {
    if (!files_.empty()) return internal::stage_digest(internal::digest_of(files_), "tensors", {choice_});
    constexpr int64_t kSampled = 16;
    std::vector<int64_t> sampled;
    for (int64_t i = 0; i < std::min(size(), kSampled); ++i)
      sampled.push_back(size() <= kSampled ? i : size() / kSampled * i);
    return internal::digest_of(read(sampled));
  }

 private:
  const Batch all_;
  const std::vector<SourceFile> files_;
  const uint64_t choice_;
};

class SliceStage final : public internal::IndexStage {
 public:
  SliceStage(const Dataset& whole, int64_t begin, int64_t end) : IndexStage(whole), begin_(begin), end_(end) {}
  int64_t size() const override { return end_ - begin_; }
  std::string describe() const override {
    return fmt::format("samples {} to {} of {}", begin_, end_, upstream().describe());
  }
  uint64_t digest() const override {
    return internal::stage_digest(Stage::digest(), "slice",
                                  {static_cast<uint64_t>(begin_), static_cast<uint64_t>(end_)});
  }

 protected:
  int64_t upstream_id(int64_t id) const override { return begin_ + id; }
  std::shared_ptr<const Source> with(const Dataset& whole) const override {
    return std::make_shared<SliceStage>(whole, begin_, end_);
  }

 private:
  const int64_t begin_;
  const int64_t end_;
};

}  // namespace

Source::~Source() = default;
std::string Source::name_of(int64_t id) const { return fmt::format("sample {} of {}", id, describe()); }
std::shared_ptr<const Source> Source::at_epoch(const Pass& /*pass*/) const { return nullptr; }
uint64_t Source::digest() const { return 0; }
std::vector<SourceFile> Source::files() const { return {}; }
int64_t Source::read_ahead() const { return 0; }
std::vector<int64_t> Source::ids_at(std::span<const int64_t> places) const { return {places.begin(), places.end()}; }
int64_t Source::id_bound() const { return size(); }
std::optional<std::vector<internal::AnySample>> Source::read_as(const std::type_info& /*type*/,
                                                                std::span<const int64_t> /*places*/) const {
  return std::nullopt;
}
void Source::require_batches() const {}

int64_t Stage::size() const { return Dataset(upstream_).size(); }
uint64_t Stage::digest() const { return upstream_->digest(); }
std::vector<SourceFile> Stage::files() const { return upstream_->files(); }
int64_t Stage::read_ahead() const { return upstream_->read_ahead(); }

std::shared_ptr<const Source> Stage::at_epoch(const Pass& pass) const {
  auto source = upstream_->at_epoch(pass);
  return source ? with(Dataset(std::move(source))) : nullptr;
}

Batch Stage::read_upstream(std::span<const int64_t> ids) const {
  Batch batch = internal::read_checked(*upstream_, ids);
  batch.ids = at::Tensor();  // they count in the upstream source
  return batch;
}

const std::shared_ptr<const Source>& Dataset::source() const {
  if (source_) return source_;
  throw UsageError("LS-EMPTY-HANDLE", "a Dataset that holds no data was used",
                   "assign one first: data::from_tensors(...), data::digits().train");
}

int64_t Dataset::size() const {
  const int64_t size = source()->size();
  if (size >= 0) return size;
  throw DataError("LS-SOURCE", fmt::format("{} has a size of {}", source_->describe(), size),
                  "its size() must give the number of samples, at least 0");
}

Batch Dataset::read(std::span<const int64_t> ids) const {
  const int64_t count = size();
  for (const int64_t id : ids) {
    if (id >= 0 && id < count) continue;
    throw UsageError("LS-SAMPLE-RANGE",
                     fmt::format("sample {} was asked for, and {} does not have it", id, source_->describe()),
                     count == 0 ? "it is empty" : fmt::format("choose samples from 0 to {}", count - 1));
  }
  Batch batch = internal::read_checked(*source_, ids);
  const std::vector<int64_t> kept = source_->ids_at(ids);
  if (kept.size() != ids.size()) {
    throw DataError(
        "LS-SOURCE",
        fmt::format("{} was asked for the ids of {} and gave {}", source_->describe(), text_of_ids(ids), kept.size()),
        "its ids_at() must give one id for each place");
  }
  batch.ids = internal::ids_tensor(kept);
  batch.global_size = static_cast<int64_t>(ids.size());
  return batch;
}

Batch Dataset::read_all() const {
  std::vector<int64_t> ids(static_cast<std::size_t>(size()));
  std::iota(ids.begin(), ids.end(), 0);
  return read(ids);
}

Dataset Dataset::at_epoch(uint64_t seed, int64_t epoch) const {
  auto there = source()->at_epoch({seed, epoch});
  return there ? Dataset(std::move(there)) : *this;
}

Dataset from_tensors(const at::Tensor& input, const at::Tensor& target) { return from_tensors(input, target, {}); }

Dataset from_tensors(const at::Tensor& input, const at::Tensor& target, const std::map<std::string, at::Tensor>& more) {
  internal::check_rows(input, "from_tensors", "the input");
  internal::check_rows(target, "from_tensors", "the target");
  if (rows_of(input) != rows_of(target)) {
    throw UsageError("LS-BATCH",
                     fmt::format("from_tensors was given an input {} and a target {}", text_of(input), text_of(target)),
                     "give both one row for each sample");
  }
  std::map<std::string, at::Tensor> kept;
  for (const auto& [name, tensor] : more) {
    internal::check_rows(tensor, "from_tensors", fmt::format("'{}'", name).c_str());
    if (rows_of(tensor) != rows_of(input)) {
      throw UsageError(
          "LS-BATCH",
          fmt::format("from_tensors was given an input {} and '{}' {}", text_of(input), name, text_of(tensor)),
          "give all one row for each sample");
    }
    kept[name] = tensor.detach();
  }
  return Dataset(std::make_shared<TensorSource>(input.detach(), target.detach(), std::move(kept)));
}

}  // namespace lockstep::data

namespace lockstep::internal::inline data {

Dataset tensors_of_files(const at::Tensor& input, const at::Tensor& target,
                         std::vector<lockstep::data::SourceFile> files, uint64_t choice) {
  return Dataset(std::make_shared<lockstep::data::TensorSource>(input, target, std::map<std::string, at::Tensor>{},
                                                                std::move(files), choice));
}

}  // namespace lockstep::internal::data

namespace lockstep::data {

Dataset slice(const Dataset& dataset, int64_t begin, int64_t end) {
  if (begin < 0 || begin > end || end > dataset.size()) {
    throw UsageError("LS-SAMPLE-RANGE",
                     fmt::format("the samples {} to {} were asked of {}", begin, end, dataset.source()->describe()),
                     fmt::format("choose borders from 0 to {}", dataset.size()));
  }
  return Dataset(std::make_shared<SliceStage>(dataset, begin, end));
}

}  // namespace lockstep::data
