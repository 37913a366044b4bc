// The table of a module's parameters.
#include "lockstep/variable/module/summary.h"

#include <gtest/gtest.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/dropout.h>
#include <torch/nn/modules/linear.h>
#include <torch/types.h>

#include <algorithm>
#include <cstddef>
#include <memory>
#include <sstream>
#include <string>
#include <vector>

#include "lockstep/lockstep.h"
#include "tests/support/programs.h"

namespace lockstep {
namespace {

/// The words of each line.
std::vector<std::vector<std::string>> words_of(const std::string& text) {
  std::vector<std::vector<std::string>> lines;
  std::istringstream all(text);
  for (std::string line; std::getline(all, line);) {
    std::istringstream words(line);
    auto& one = lines.emplace_back();
    for (std::string word; words >> word;) one.push_back(word);
  }
  return lines;
}

std::vector<std::string> first_words(const std::vector<std::string>& line, std::size_t count) {
  return {line.begin(), line.begin() + static_cast<std::ptrdiff_t>(std::min(count, line.size()))};
}

using Words = std::vector<std::string>;

TEST(Summary, CountsParametersByLayerAndInAll) {
  torch::nn::Sequential net(torch::nn::Linear(100, 50), torch::nn::BatchNorm1d(50), torch::nn::Dropout(),
                            torch::nn::Linear(torch::nn::LinearOptions(50, 10).bias(false)));
  net->ptr<torch::nn::LinearImpl>(3)->weight.requires_grad_(false);
  const std::string text = summary(net);
  const auto lines = words_of(text);
  ASSERT_EQ(lines.size(), 7u) << text;
  EXPECT_EQ(first_words(lines[1], 4), (Words{"0", "Linear", "5,050", "5,050"}));
  EXPECT_EQ(first_words(lines[2], 4), (Words{"1", "BatchNorm1d", "100", "100"})) << "buffers are no parameters";
  EXPECT_EQ(first_words(lines[3], 5), (Words{"2", "Dropout", "0", "0", "-"}));
  EXPECT_EQ(first_words(lines[4], 4), (Words{"3", "Linear", "500", "0"}));
  EXPECT_EQ(first_words(lines[5], 5), (Words{"in", "all", "Sequential", "5,650", "5,150"}));
  EXPECT_NE(text.find("weight [50, 100], bias [50]"), std::string::npos) << text;
  EXPECT_NE(text.find("weight [10, 50] (frozen)"), std::string::npos) << text;
  EXPECT_NE(text.find("running_mean [50] (buffer)"), std::string::npos) << text;
  EXPECT_NE(text.find("frozen: 500; elements of buffers: 101;"), std::string::npos) << text;
}

struct TiedByName : torch::nn::Module {
  TiedByName() {
    first = register_parameter("first", torch::ones({3, 2}));
    register_parameter("second", first);
  }
  torch::Tensor first;
};

TEST(Summary, CountsWhatIsSharedOnce) {
  const auto lines = words_of(summary(std::make_shared<TiedByName>()));
  EXPECT_EQ(lines[1].at(0), "(itself)");
  EXPECT_EQ(lines[2].back(), "6") << "in all";
  torch::nn::Linear shared(4, 4);
  const std::string text = summary(torch::nn::Sequential(shared, torch::nn::Dropout(), shared));
  EXPECT_NE(text.find("the same as 0"), std::string::npos) << text;
  EXPECT_EQ(first_words(words_of(text)[4], 4), (Words{"in", "all", "Sequential", "20"})) << text;
}

TEST(Summary, OfNothingAndOfALotIsRight) {
  struct Empty : torch::nn::Module {};
  const auto lines = words_of(summary(Empty()));
  EXPECT_EQ(lines[1].at(0), "(itself)");
  EXPECT_EQ(lines[2].back(), "0");
  struct Large : torch::nn::Module {
    Large() { register_parameter("table", torch::empty({1 << 20, 1 << 14}, torch::kMeta)); }
  };
  EXPECT_NE(summary(Large()).find("17,179,869,184"), std::string::npos) << "more than 32 bits, of no memory";
}

TEST(Summary, OfAReplicatedModuleIsThatOfOneReplica) {
  MirroredStrategy strategy({.devices = testing::lanes(1), .replicas = 3});
  const auto model = strategy.make_module([] { return torch::nn::Linear(3, 2); });
  EXPECT_EQ(summary(model), summary(torch::nn::Linear(3, 2)));
}

}  // namespace
}  // namespace lockstep
