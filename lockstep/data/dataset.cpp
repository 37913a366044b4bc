#include "lockstep/data/dataset.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <fmt/format.h>

#include <numeric>
#include <vector>

#include "lockstep/core/error.h"

namespace lockstep::data {

namespace {

at::Tensor as_tensor(std::span<const int64_t> ids) {
  at::Tensor tensor = at::empty({static_cast<int64_t>(ids.size())}, at::kLong);
  std::copy(ids.begin(), ids.end(), tensor.data_ptr<int64_t>());
  return tensor;
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
    return whole_->read(moved);
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

Batch Dataset::read(std::span<const int64_t> ids) const {
  Batch batch = source_->read(ids);
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
  const auto rows = [](const at::Tensor& tensor) { return tensor.defined() && tensor.dim() > 0 ? tensor.size(0) : -1; };
  if (rows(input) < 0 || rows(input) != rows(target)) {
    throw UsageError(fmt::format("from_tensors was given {} inputs and {} targets", rows(input), rows(target)),
                     "give two tensors with one row for each sample");
  }
  return Dataset(std::make_shared<TensorSource>(input.detach(), target.detach()));
}

Dataset slice(const Dataset& dataset, int64_t begin, int64_t end) {
  if (begin < 0 || begin > end || end > dataset.size()) {
    throw UsageError(fmt::format("the samples {} to {} were asked of {}", begin, end, dataset.source()->describe()),
                     fmt::format("choose borders from 0 to {}", dataset.size()));
  }
  return Dataset(std::make_shared<SliceSource>(dataset.source(), begin, end));
}

}  // namespace lockstep::data
