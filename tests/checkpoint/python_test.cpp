// Weights that were trained here give the same outputs in Python's PyTorch, and those of Python here.
#include <gtest/gtest.h>
#include <torch/nn/functional/loss.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/adamw.h>
#include <torch/types.h>
#include <torch/utils.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <string>
#include <utility>

#include "lockstep/lockstep.h"
#include "tests/support/python.h"

namespace lockstep {
namespace {

namespace fs = std::filesystem;

using testing::python_with_torch;

torch::nn::Sequential net() {
  return torch::nn::Sequential(torch::nn::Conv2d(torch::nn::Conv2dOptions(1, 4, 3).padding(1)),
                               torch::nn::BatchNorm2d(4), torch::nn::ReLU(), torch::nn::Flatten(),
                               torch::nn::Linear(256, 16), torch::nn::Tanh(), torch::nn::Linear(16, 5));
}

/// One tensor for each dtype that both formats have, by Python's name of the dtype. Some lie in a larger storage, and
/// one has a gradient.
std::map<std::string, at::Tensor> of_every_type() {
  std::map<std::string, at::Tensor> tensors;
  for (const auto& [name, type] :
       {std::pair("float32", torch::kFloat), std::pair("float64", torch::kDouble), std::pair("float16", torch::kHalf),
        std::pair("bfloat16", torch::kBFloat16), std::pair("int64", torch::kLong), std::pair("int32", torch::kInt),
        std::pair("int16", torch::kShort), std::pair("int8", torch::kChar), std::pair("uint8", torch::kByte),
        std::pair("bool", torch::kBool), std::pair("complex64", torch::kComplexFloat),
        std::pair("complex128", torch::kComplexDouble)}) {
    tensors[name] = torch::arange(-2, 9).clamp(0).to(type).slice(0, 2, 8).view({2, 3});
  }
  tensors["float32"].set_requires_grad(true);
  return tensors;
}

void expect_within(const torch::Tensor& found, const torch::Tensor& expected, const char* what) {
  EXPECT_LE((found - expected).abs().max().item<double>(), 1e-6) << what;
  EXPECT_GT(expected.abs().max().item<double>(), 1e-2) << what << ": the outputs say something";
}

TEST(Python, WeightsOfHereGiveTheSameOutputsThereAndBack) {
  const std::string python = python_with_torch();
  if (python.empty())
    GTEST_SKIP() << "no Python with PyTorch: name one by LOCKSTEP_PYTHON, or make one by bench/compare --setup";
  const fs::path folder = fs::temp_directory_path() / ("lockstep-python-" + std::to_string(getpid()));
  fs::remove_all(folder);
  fs::create_directories(folder);

  MirroredStrategy strategy({.devices = {"cpu:0"}, .replicas = 2, .seed = 11});
  const auto model = strategy.make_module([] { return net(); });
  auto optimizer = strategy.make_optimizer(model, torch::optim::AdamWOptions(1e-2));
  const auto inputs = torch::sin(torch::arange(8 * 64).to(torch::kFloat)).view({8, 1, 8, 8});
  const auto targets = torch::arange(8).remainder(5);
  for (int i = 0; i < 5; ++i) {
    strategy.run(strategy.split(inputs, targets), [&](ReplicaContext& ctx, const Batch& b) {
      ctx.scale_loss(torch::nn::functional::cross_entropy(model(ctx)->forward(b.input), b.target)).backward();
      optimizer.step(ctx);
    });
  }
  const auto outputs_of = [&](const Replicated<torch::nn::Sequential>& of) {
    auto alone = of.export_module();
    alone->eval();
    const torch::NoGradGuard no_grad;
    return alone->forward(inputs);
  };
  save_tensors(folder / "here.safetensors", model.state());
  save_tensors(folder / "here.pt", model.state());
  save_tensors(folder / "every.pt", of_every_type());
  save_tensors(folder / "inputs.safetensors", {{"inputs", inputs}});
  Checkpoint(strategy).save(folder / "checkpoint");
  const auto here = outputs_of(model);

  const std::string script = (fs::path(LOCKSTEP_FROM_PYTHON) / "exchange.py").string();
  const std::string log = (folder / "log").string();
  const int code = std::system(
      ("timeout 120 '" + python + "' '" + script + "' '" + folder.string() + "' >'" + log + "' 2>&1").c_str());
  std::ifstream in(log);
  ASSERT_EQ(code, 0) << std::string(std::istreambuf_iterator<char>(in), {});

  const auto outputs = load_tensors(folder / "outputs.pt");
  expect_within(outputs.at("of_export"), here, "weights of here, in Python");
  EXPECT_TRUE(outputs.at("same_weights").item<bool>()) << "a checkpoint's weights are those that were exported";
  EXPECT_TRUE(outputs.at("same_buffers").item<bool>()) << "and the replicas' buffers have their mean";
  EXPECT_TRUE(outputs.at("slots_fit").item<bool>());
  EXPECT_TRUE(outputs.at("same_dictionary").item<bool>()) << "a state dictionary has the same weights";
  EXPECT_TRUE(outputs.at("same_types").item<bool>());
  for (const char* file : {"back.pt", "back.safetensors"}) {
    if (!fs::exists(folder / file)) continue;  // written with the package safetensors
    model.load(load_tensors(folder / file));
    expect_within(outputs_of(model), outputs.at("of_return"), file);
  }
  EXPECT_GT((outputs.at("of_return") - here).abs().max().item<double>(), 1e-3) << "Python has trained on";
  fs::remove_all(folder);
}

}  // namespace
}  // namespace lockstep
