// Examples of torch::data of any type: tensors, numbers, and what only a function of the program can join.
#include "lockstep/data/sources/torch_dataset.h"

#include <gtest/gtest.h>
#include <torch/data.h>
#include <torch/types.h>

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "tests/support/errors.h"
#include "tests/support/programs.h"

namespace lockstep {
namespace {

using testing::expect_error;
using testing::lanes;
using torch::Tensor;

/// A number as the target of an example.
struct Answered : torch::data::Dataset<Answered, torch::data::Example<float, bool>> {
  torch::data::Example<float, bool> get(std::size_t i) override { return {static_cast<float>(i) / 2, i == 1}; }
  torch::optional<std::size_t> size() const override { return 3; }
};
struct Numbered : torch::data::Dataset<Numbered, torch::data::Example<Tensor, int>> {
  torch::data::Example<Tensor, int> get(std::size_t i) override { return {torch::ones({2}), static_cast<int>(i)}; }
  torch::optional<std::size_t> size() const override { return 3; }
};

TEST(Torch, ExamplesWithNumbersAsTargetsAreSamples) {
  const Batch all = data::from_torch(Numbered()).read_all();
  EXPECT_TRUE(torch::equal(all.target, torch::arange(3)));
  const Batch answers = data::from_torch(Answered()).read_all();
  EXPECT_TRUE(torch::equal(answers.input, torch::tensor({0.0F, 0.5F, 1.0F})));
  EXPECT_TRUE(torch::equal(answers.target, torch::tensor({false, true, false})));
}

/// An example of any type: it compiles, and says in one line that it needs a function.
template <class T>
struct Any : torch::data::Dataset<Any<T>, torch::data::Example<Tensor, T>> {
  torch::data::Example<Tensor, T> get(std::size_t) override { return {torch::ones({2}), T{}}; }
  torch::optional<std::size_t> size() const override { return 2; }
};
template <class T>
void expect_told() {
  MirroredStrategy strategy({.devices = lanes(1), .replicas = 1});
  expect_error<UsageError>([&] { strategy.distribute(data::from_torch(Any<T>()), {.global_batch = 2}); }, "LS-COLLATE",
                           {"Example", ".collate"});
  const auto count = [](const std::vector<torch::data::Example<Tensor, T>>& all) {
    return Batch{.input = torch::full({1}, static_cast<int64_t>(all.size()))};
  };
  const auto dealt = strategy.distribute(data::from_torch(Any<T>()), {.global_batch = 2, .collate = count});
  const Batch part = (*dealt.epoch(0).begin())[0];
  EXPECT_EQ(part.input.item().toLong(), 2);
}

TEST(Torch, ExamplesOfAnyTypeAreReadByACollateFunction) {
  expect_told<std::string>();
  expect_told<std::vector<Tensor>>();
  expect_told<std::pair<Tensor, int>>();
  expect_told<std::map<std::string, Tensor>>();
  expect_told<std::unique_ptr<int>>();
  expect_told<std::optional<Tensor>>();
  expect_told<torch::data::Example<>>();
}

/// As a DataLoader gives them, to a step.
TEST(Torch, ExamplesOfAnyTypeReachAStep) {
  MirroredStrategy strategy({.devices = lanes(1), .replicas = 2});
  auto loader = torch::data::make_data_loader(Any<std::string>(), 2);
  for (auto& examples : *loader) {
    const auto sizes = strategy.run(examples, [](ReplicaContext&, const auto& all) { return all.size(); });
    EXPECT_EQ(sizes[1], 2u);
  }
}

}  // namespace
}  // namespace lockstep
