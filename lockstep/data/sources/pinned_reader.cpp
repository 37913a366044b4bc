#include "lockstep/data/sources/pinned_reader.h"

#include <ATen/Context.h>
#include <ATen/core/TensorBody.h>
#include <c10/util/Exception.h>
#include <fmt/format.h>

#include <utility>

#include "lockstep/core/error.h"

namespace lockstep::internal::inline data {

namespace {

at::Tensor pinned(const at::Tensor& tensor) {
  if (!tensor.defined() || tensor.layout() != at::kStrided || tensor.requires_grad()) return tensor;
  try {
    return tensor.pin_memory();
  } catch (const c10::Error& error) {
    throw DataError("LS-PIN-MEMORY",
                    fmt::format("{} bytes of a batch cannot be had in pinned memory: {}", tensor.nbytes(),
                                error.what_without_backtrace()),
                    "read fewer steps ahead (DistributeOptions::prefetch), or leave pin_memory out");
  }
}

class PinnedReader final : public EpochReader {
 public:
  explicit PinnedReader(std::unique_ptr<EpochReader> reader) : reader_(std::move(reader)) {}

  Work claim() override {
    Work read = reader_->claim();
    if (!read) return {};
    return [read = std::move(read)] {
      LocalStep step = read();
      for (Batch& part : step.parts) for_each_tensor(part, [](at::Tensor& tensor) { tensor = pinned(tensor); });
      return step;
    };
  }

 private:
  const std::unique_ptr<EpochReader> reader_;
};

}  // namespace

void require_gpu_to_pin_for() {
  if (at::globalContext().hasCUDA()) return;
  throw UsageError("LS-PIN-MEMORY",
                   "distribute was given .pin_memory = true, and LibTorch sees no GPU in this program to pin for",
                   "leave pin_memory out, or link LibTorch's libtorch_cuda on a machine with a GPU");
}

std::unique_ptr<EpochReader> pinned(std::unique_ptr<EpochReader> reader) {
  return std::make_unique<PinnedReader>(std::move(reader));
}

}  // namespace lockstep::internal::data
