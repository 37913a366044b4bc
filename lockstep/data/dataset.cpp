#include "lockstep/data/dataset.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <fmt/format.h>

#include <algorithm>
#include <exception>
#include <numeric>
#include <vector>

#include "lockstep/core/error.h"
#include "lockstep/data/rows.h"

namespace lockstep::data {

using internal::rows_of;
using internal::text_of;

namespace {

at::Tensor as_tensor(std::span<const int64_t> ids) {
  at::Tensor tensor = at::empty({static_cast<int64_t>(ids.size())}, at::kLong);
  std::copy(ids.begin(), ids.end(), tensor.data_ptr<int64_t>());
  return tensor;
}

/// "3 samples (7, 0, 4)", for messages.
std::string text_of_ids(std::span<const int64_t> ids) {
  constexpr std::size_t kShown = 4;
  std::string text = fmt::format("{} sample{}", ids.size(), ids.size() == 1 ? "" : "s");
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

/// Reads from the source and checks that the result is what it was asked for.
Batch read_checked(const Source& source, std::span<const int64_t> ids) {
  Batch batch = read_or_name(source, ids);
  const auto count = static_cast<int64_t>(ids.size());
  if (rows_of(batch.input) != count || rows_of(batch.target) != count) {
    throw DataError("LS-SOURCE",
                    fmt::format("{} was asked for {} and gave input {} and target {}", source.describe(),
                                text_of_ids(ids), text_of(batch.input), text_of(batch.target)),
                    "its read() must give one row of input and of target for each sample");
  }
  if (!are_ids(batch.ids, ids)) {
    throw DataError(
        "LS-SOURCE",
        fmt::format("{} was asked for {} and gave others as Batch::ids", source.describe(), text_of_ids(ids)),
        "its read() must give the samples that it is asked for, in that order, or leave Batch::ids undefined");
  }
  return batch;
}

class TensorSource final : public Source {
 public:
  TensorSource(at::Tensor input, at::Tensor target) : input_(std::move(input)), target_(std::move(target)) {}
  int64_t size() const override { return input_.size(0); }
  Batch read(std::span<const int64_t> ids) const override {
    const at::NoGradGuard no_grad;
    const at::Tensor index = as_tensor(ids);
    return {at::index_select(input_, 0, index), at::index_select(target_, 0, index), {}, 0};
  }
  std::string describe() const override { return fmt::format("{} samples in tensors", size()); }

 private:
  const at::Tensor input_;
  const at::Tensor target_;
};

class SliceSource final : public Source {
 public:
  SliceSource(std::shared_ptr<const Source> whole, int64_t begin, int64_t end)
      : whole_(std::move(whole)), begin_(begin), end_(end) {}
  int64_t size() const override { return end_ - begin_; }
  Batch read(std::span<const int64_t> ids) const override {
    std::vector<int64_t> moved(ids.begin(), ids.end());
    for (int64_t& id : moved) id += begin_;
    Batch batch = read_checked(*whole_, moved);
    batch.ids = at::Tensor();  // they count in the whole data set
    return batch;
  }
  std::string describe() const override {
    return fmt::format("samples {} to {} of {}", begin_, end_, whole_->describe());
  }

 private:
  const std::shared_ptr<const Source> whole_;
  const int64_t begin_;
  const int64_t end_;
};

}  // namespace

Source::~Source() = default;

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
  Batch batch = read_checked(*source_, ids);
  batch.ids = as_tensor(ids);
  batch.global_size = static_cast<int64_t>(ids.size());
  return batch;
}

Batch Dataset::read_all() const {
  std::vector<int64_t> ids(static_cast<std::size_t>(size()));
  std::iota(ids.begin(), ids.end(), 0);
  return read(ids);
}

Dataset from_tensors(const at::Tensor& input, const at::Tensor& target) {
  internal::check_rows(input, "from_tensors", "the input");
  internal::check_rows(target, "from_tensors", "the target");
  if (rows_of(input) != rows_of(target)) {
    throw UsageError("LS-BATCH",
                     fmt::format("from_tensors was given an input {} and a target {}", text_of(input), text_of(target)),
                     "give both one row for each sample");
  }
  return Dataset(std::make_shared<TensorSource>(input.detach(), target.detach()));
}

Dataset slice(const Dataset& dataset, int64_t begin, int64_t end) {
  if (begin < 0 || begin > end || end > dataset.size()) {
    throw UsageError("LS-SAMPLE-RANGE",
                     fmt::format("the samples {} to {} were asked of {}", begin, end, dataset.source()->describe()),
                     fmt::format("choose borders from 0 to {}", dataset.size()));
  }
  return Dataset(std::make_shared<SliceSource>(dataset.source(), begin, end));
}

}  // namespace lockstep::data
