#include "tools/bench/made_data.h"

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>

namespace lockstep::tools {

Batch made_batch(const ModelOptions& model, int64_t size, uint64_t seed) {
  const at::Generator generator = at::detail::createCPUGenerator(seed);
  const auto normal = [&](at::IntArrayRef shape) { return at::empty(shape).normal_(0, 1, generator); };
  const auto classes = [&](int64_t count) { return at::empty({size}, at::kLong).random_(0, count, generator); };
  if (model.name == "mlp")
    return {.input = normal({size, model.widths.front()}), .target = classes(model.widths.back())};
  if (model.name == "resnet18") return {.input = normal({size, 3, 32, 32}), .target = classes(10)};
  if (reads_text(model.name)) {
    const auto characters = [&] {
      return at::empty({size, model.context}, at::kLong).random_(0, model.vocabulary, generator);
    };
    return {.input = characters(), .target = characters()};
  }
  return {.input = normal({size, 1, 28, 28}), .target = classes(10)};
}

}  // namespace lockstep::tools
