// convert_batch_norm: which layers it replaces, what stays, and what it refuses.
#include "lockstep/layers/convert_batch_norm.h"

#include <gtest/gtest.h>
#include <torch/nn/functional/instancenorm.h>
#include <torch/nn/module.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/container/any.h>
#include <torch/nn/modules/container/moduledict.h>
#include <torch/nn/modules/container/modulelist.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/instancenorm.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/sgd.h>
#include <torch/types.h>
#include <torch/utils.h>
#include <torch/version.h>

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "lockstep/reduce/operands.h"
#include "tests/support/errors.h"
#include "tests/support/programs.h"

namespace lockstep {
namespace {

namespace nn = torch::nn;
using internal::same_bits;
using testing::expect_error;
using torch::Tensor;

/// Names and values of all tensors, in order.
std::vector<std::pair<std::string, Tensor>> named_in(const nn::Module& module) {
  std::vector<std::pair<std::string, Tensor>> all;
  for (const auto& item : module.named_parameters()) all.emplace_back(item.key(), item.value());
  for (const auto& item : module.named_buffers()) all.emplace_back(item.key(), item.value());
  return all;
}

/// Which submodules are SyncBatchNorm.
std::vector<std::string> synced_in(const nn::Module& module) {
  std::vector<std::string> names;
  for (const auto& item : module.named_modules()) {
    if (std::dynamic_pointer_cast<SyncBatchNormImpl>(item.value())) names.push_back(item.key());
  }
  return names;
}

/// Statistics and weights that no fresh layer has.
template <class Norm>
Norm worn(Norm norm) {
  const torch::NoGradGuard no_grad;
  for (auto& item : named_in(*norm)) {
    if (!item.second.defined()) continue;
    if (item.second.is_floating_point()) {
      item.second.add_(0.25);
    } else {
      item.second.add_(3);
    }
  }
  return norm;
}

/// A block that keeps its layers nowhere but in what it has registered.
struct BlockImpl : nn::Module {
  nn::Sequential body{nullptr};
  BlockImpl() {
    body = register_module(
        "body", nn::Sequential(nn::Conv2d(nn::Conv2dOptions(3, 4, 3)), worn(nn::BatchNorm2d(4)), nn::ReLU()));
    register_module("looked_up", worn(nn::BatchNorm2d(4)));
    register_module("list", nn::ModuleList(nn::Linear(2, 2), worn(nn::BatchNorm1d(2))));
    nn::ModuleDict dict;
    dict->update(std::vector<std::pair<std::string, std::shared_ptr<nn::Module>>>{
        {"deep", worn(nn::BatchNorm3d(nn::BatchNormOptions(2).affine(false).momentum(torch::nullopt))).ptr()},
        {"plain", nn::Linear(1, 1).ptr()}});
    register_module("dict", dict);
  }
  Tensor forward(const Tensor& x) {
    const Tensor y = body->forward(x);
    auto children = named_children();
    if (auto* const norm = children["looked_up"]->as<nn::BatchNorm2dImpl>()) return norm->forward(y);
    return children["looked_up"]->as<SyncBatchNormImpl>()->forward(y);
  }
};
TORCH_MODULE(Block);

/// One that has batch normalisation as a member.
struct TypedImpl : nn::Module {
  nn::Linear fc{nullptr};
  nn::BatchNorm1d bn{nullptr};
  TypedImpl() {
    fc = register_module("fc", nn::Linear(4, 4));
    bn = register_module("bn", nn::BatchNorm1d(4));
  }
  Tensor forward(const Tensor& x) { return bn->forward(fc->forward(x)); }
};
TORCH_MODULE(Typed);

/// A class that is no BatchNorm, and may compute something else.
#if TORCH_VERSION_MAJOR >= 2
struct OwnNormImpl : nn::BatchNorm1dImpl {
  using nn::BatchNorm1dImpl::BatchNorm1dImpl;
};
TORCH_MODULE(OwnNorm);
#else  // its base's functions are not exported, so that nothing can be derived from it
using OwnNormImpl = nn::InstanceNorm1dImpl;
using OwnNorm = nn::InstanceNorm1d;
#endif

TEST(ConvertBatchNorm, ReplacesLayersInAllContainersAndKeepsNamesOrderAndValues) {
  torch::manual_seed(1);
  Block block;
  const auto before = named_in(*block);
  std::vector<Tensor> values;
  for (const auto& item : before) values.push_back(item.second.clone());
  const Tensor x = torch::randn({2, 3, 8, 8});
  block->eval();
  const Tensor expected = block->forward(x);

  Block converted = convert_batch_norm(block);

  EXPECT_EQ(converted.get(), block.get()) << "the same module";
  EXPECT_EQ(synced_in(*converted), (std::vector<std::string>{"body.1", "looked_up", "list.1", "dict.deep"}));
  const auto after = named_in(*converted);
  ASSERT_EQ(after.size(), before.size());
  for (std::size_t i = 0; i < after.size(); ++i) {
    EXPECT_EQ(after[i].first, before[i].first);
    EXPECT_TRUE(same_bits(after[i].second, values[i])) << after[i].first;
  }
  // What forward uses is what is registered.
  const auto parts = converted->named_modules();
  EXPECT_EQ(converted->body->ptr(1), parts["body.1"]);
  EXPECT_EQ((*parts["list"]->as<nn::ModuleList>())[1], parts["list.1"]);
  EXPECT_EQ((*parts["dict"]->as<nn::ModuleDict>())["deep"], parts["dict.deep"]);
  EXPECT_TRUE(torch::equal(converted->forward(x), expected));
}

TEST(ConvertBatchNorm, KeepsOptionsModesDtypeAndWhatIsTrained) {
  nn::BatchNorm1d plain(nn::BatchNormOptions(3).eps(0.5).momentum(0.3));
  plain->weight.set_requires_grad(false);
  plain->to(torch::kDouble);
  plain->eval();
  nn::BatchNorm1d bare(nn::BatchNormOptions(3).affine(false).track_running_stats(false));
  nn::BatchNorm1d cumulative(nn::BatchNormOptions(3).momentum(torch::nullopt));
  const auto net = [&] {
    nn::Sequential made(std::move(*plain), std::move(*bare), std::move(*cumulative));
    return convert_batch_norm(made);
  }();
  const auto* const first = net->ptr(0)->as<SyncBatchNormImpl>();
  const auto* const second = net->ptr(1)->as<SyncBatchNormImpl>();
  const auto* const third = net->ptr(2)->as<SyncBatchNormImpl>();
  ASSERT_TRUE(first && second && third);
  EXPECT_EQ(first->options.eps(), 0.5);
  EXPECT_EQ(first->options.momentum(), 0.3);
  EXPECT_FALSE(first->is_training());
  EXPECT_FALSE(first->weight.requires_grad());
  EXPECT_TRUE(first->bias.requires_grad());
  EXPECT_EQ(first->weight.scalar_type(), torch::kDouble);
  EXPECT_EQ(first->running_mean.scalar_type(), torch::kDouble);
  EXPECT_TRUE(second->is_training());
  EXPECT_FALSE(second->weight.defined());
  EXPECT_FALSE(second->running_mean.defined());
  EXPECT_FALSE(third->options.momentum().has_value());
}

TEST(ConvertBatchNorm, OfALayerThatIsUsedTwiceMakesOneLayer) {
  auto net = [] {
    nn::BatchNorm1d norm(3);
    const nn::ModuleList inner(norm);
    return nn::ModuleList(norm, nn::Sequential(norm, norm), inner);
  }();
  convert_batch_norm(net);
  const auto layer = (*net)[0];
  EXPECT_TRUE(std::dynamic_pointer_cast<SyncBatchNormImpl>(layer));
  EXPECT_EQ((*net)[1]->as<nn::Sequential>()->ptr(0), layer);
  EXPECT_EQ((*net)[1]->as<nn::Sequential>()->ptr(1), layer);
  EXPECT_EQ((*(*net)[2]->as<nn::ModuleList>())[0], layer);
  EXPECT_EQ(net->named_buffers().size(), 12U) << "three for each place";
}

TEST(ConvertBatchNorm, OfBatchNormalisationItselfGivesItsSuccessor) {
  const SyncBatchNorm typed = convert_batch_norm(worn(nn::BatchNorm2d(3)));
  EXPECT_EQ(typed->num_batches_tracked.item<int64_t>(), 3);
  const std::shared_ptr<nn::Module> any = convert_batch_norm(std::shared_ptr<nn::Module>(nn::BatchNorm1d(3).ptr()));
  EXPECT_TRUE(std::dynamic_pointer_cast<SyncBatchNormImpl>(any));
  const std::shared_ptr<nn::Module> whole =
      convert_batch_norm(std::shared_ptr<nn::Module>(nn::Sequential(nn::BatchNorm1d(3)).ptr()));
  EXPECT_EQ(synced_in(*whole), std::vector<std::string>{"0"});
}

TEST(ConvertBatchNorm, LeavesWhatIsConvertedAndClassesThatAreDerived) {
  nn::Sequential net(SyncBatchNorm(3), OwnNorm(3));
  const auto* const synced = net->ptr(0).get();
  convert_batch_norm(net);
  EXPECT_EQ(net->ptr(0).get(), synced);
  EXPECT_TRUE(std::dynamic_pointer_cast<OwnNormImpl>(net->ptr(1)));
}

TEST(ConvertBatchNorm, RefusesALayerThatAMemberHoldsAndChangesNothing) {
  nn::Sequential net(nn::BatchNorm1d(4), Typed());
  expect_error<UsageError>([&] { convert_batch_norm(net); }, "LS-BATCH-NORM-HELD",
                           {"layer '1.bn'", "torch::nn::BatchNorm1d", "Typed"});
  EXPECT_TRUE(synced_in(*net).empty());
  expect_error<UsageError>([&] { convert_batch_norm(nn::Sequential(nullptr)); }, "LS-EMPTY-HANDLE", {});
}

/// Its forward uses the members, and not the list that registers them.
struct ListedImpl : nn::Module {
  nn::ModuleList list;
  std::vector<nn::BatchNorm1d> norms;
  explicit ListedImpl(bool keeps) {
    const nn::BatchNorm1d norm(4);
    list->push_back(norm);
    if (keeps) norms.push_back(norm);
    register_module("list", list);
  }
};
TORCH_MODULE(Listed);

TEST(ConvertBatchNorm, InAFactoryTellsTemporariesFromMembers) {
  MirroredStrategy strategy({.devices = testing::lanes(1), .replicas = 2, .seed = 1});
  const auto in_one_line =
      strategy.make_module([] { return convert_batch_norm(nn::Sequential(nn::Linear(4, 4), nn::BatchNorm1d(4))); });
  const auto by_variables = strategy.make_module(
      [] {
        nn::BatchNorm1d norm(4);
        nn::Sequential net(nn::Linear(4, 4), norm);
        return convert_batch_norm(net);
      },
      {.name = "variables"});
  for (const auto& model : {in_one_line, by_variables})
    EXPECT_EQ(synced_in(*model.export_module()), std::vector<std::string>{"1"});
  strategy.make_module([] { return convert_batch_norm(Listed(false)); }, {.name = "listed"});
  expect_error<UsageError>(
      [&] { strategy.make_module([] { return convert_batch_norm(Listed(true)); }, {.name = "kept"}); },
      "LS-BATCH-NORM-HELD", {"layer 'list.0'", "'list'", "torch::nn::BatchNorm1d"});
}

TEST(ConvertBatchNorm, InAFactoryTrainsAsOneDeviceDoesOnTheWholeBatch) {
  const auto plain = [] { return nn::Sequential(nn::Linear(4, 6), nn::BatchNorm1d(6), nn::ReLU(), nn::Linear(6, 1)); };
  const auto train = [](Strategy& strategy, const Replicated<nn::Sequential>& model) {
    auto optimizer = strategy.make_optimizer(model, torch::optim::SGDOptions(0.1));
    for (int64_t step = 0; step < 5; ++step) {
      const Tensor x = torch::arange(40).to(torch::kFloat).add(static_cast<double>(step)).sin().reshape({10, 4});
      strategy.run(strategy.split(x), [&](ReplicaContext& ctx, const Batch& b) {
        ctx.scale_loss(model(ctx)->forward(b.input).square().mean()).backward();
        optimizer.step(ctx);
      });
    }
    return model.state();
  };
  OneDeviceStrategy one({.seed = 1});
  const auto on_one = one.make_module(plain);
  MirroredStrategy three({.devices = testing::lanes(2), .replicas = 3, .seed = 1});
  const auto on_three = three.make_module([&] { return convert_batch_norm(plain()); });
  on_three.load(on_one.state());  // and files of one load into the other
  const auto expected = train(one, on_one);
  const auto got = train(three, on_three);
  ASSERT_EQ(got.size(), expected.size());
  for (const auto& [name, value] : expected)
    EXPECT_TRUE(torch::allclose(got.at(name).to(torch::kDouble), value.to(torch::kDouble), 1e-4, 1e-5)) << name;
  EXPECT_TRUE(three.findings().empty());
  on_one.load(on_three.state());
}

}  // namespace
}  // namespace lockstep
