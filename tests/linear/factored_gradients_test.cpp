// Gradients that are kept as factors: where they are, what a user may notice of them, and that no bit depends on them.
#include <gtest/gtest.h>
#include <torch/nn/module.h>
#include <torch/nn/utils/clip_grad.h>
#include <torch/optim/adamw.h>
#include <torch/optim/sgd.h>
#include <torch/serialize.h>
#include <torch/types.h>

#include <cstdlib>
#include <functional>
#include <memory>
#include <sstream>
#include <string>
#include <vector>

#include "lockstep/core/log.h"
#include "lockstep/linear/factored_tensor.h"
#include "lockstep/linear/product_order.h"
#include "tests/linear/some_numbers.h"
#include "tests/support/autocast.h"
#include "tests/support/errors.h"
#include "tests/support/factored.h"
#include "tests/support/programs.h"

namespace lockstep {
namespace {

using testing::expect_error;
using testing::FactoredGradientsAre;
using testing::lanes;
using testing::some;
using torch::Tensor;

class FactoredGradients : public ::testing::Test {
 protected:
  static constexpr int64_t kRows = 256;
  static constexpr int64_t kColumns = 300;

  void SetUp() override {
    if (!testing::can_factor()) GTEST_SKIP() << "this LibTorch or processor keeps no factors";
  }
  static Tensor loss(const Tensor& weight, const Tensor& x) { return x.mm(weight.t()).pow(2).sum(); }
  /// The gradient that LibTorch itself computes after after_backward().
  static Tensor expected(ReplicaContext& ctx, const Tensor& weight) {
    const Tensor copy = weight.detach().clone().requires_grad_();
    loss(copy, some({8, kColumns}, 1.0 + static_cast<double>(ctx.replica_id()))).backward();
    return copy.grad();
  }
  /// Runs fn(ctx, weight) on every replica after a backward.
  void after_backward(const std::function<void(ReplicaContext&, Tensor&)>& fn, int64_t samples = 8) {
    strategy_.run([&](ReplicaContext& ctx) {
      Tensor weight = weight_.value(ctx);
      const Tensor own = loss(weight, some({samples, kColumns}, 1.0 + static_cast<double>(ctx.replica_id())));
      ctx.scale_loss(own, 1, 1).backward();  // which leaves it as it is
      fn(ctx, weight);
    });
  }

  const FactoredGradientsAre scope_{"always"};
  MirroredStrategy strategy_{{.devices = lanes(2), .replicas = 2}};
  const Variable weight_ = strategy_.make_variable(some({kRows, kColumns}, 0), {.name = "weight"});
  const Optimizer optimizer_ = strategy_.make_optimizer(std::vector<Variable>{weight_}, torch::optim::SGDOptions(0.1));
};

TEST_F(FactoredGradients, AreNotWrittenBeforeTheStep) {
  after_backward([&](ReplicaContext& ctx, Tensor& weight) {
    EXPECT_FALSE(weight.grad().has_storage());
    optimizer_.step(ctx);
    EXPECT_FALSE(weight.grad().defined());
  });
  EXPECT_TRUE(testing::has_value(strategy_.describe(), "factors"));
}

TEST_F(FactoredGradients, AreJoinedOverMicroBatchesWhileSamplesAreFew) {
  after_backward([&](ReplicaContext&, Tensor& weight) {
    loss(weight, some({100, kColumns}, 3)).backward();
    loss(weight, some({84, kColumns}, 4)).backward();
    EXPECT_FALSE(weight.grad().has_storage());
    loss(weight, some({1, kColumns}, 5)).backward();
    EXPECT_TRUE(weight.grad().has_storage());
  });
}

TEST_F(FactoredGradients, OfAWeightThatIsUsedTwiceAreJoined) {
  after_backward([&](ReplicaContext&, Tensor& weight) {
    weight.mutable_grad() = Tensor();
    (loss(weight, some({3, kColumns}, 3)) + loss(weight, some({4, kColumns}, 4))).backward();
    EXPECT_FALSE(weight.grad().has_storage());
  });
}

TEST_F(FactoredGradients, OfManySamplesAreWritten) {
  after_backward([&](ReplicaContext&, Tensor& weight) { EXPECT_TRUE(weight.grad().has_storage()); }, 193);
  EXPECT_TRUE(testing::has_value(strategy_.describe(), "many samples"));
}

TEST_F(FactoredGradients, AreOrdinaryTensorsFromTheFirstOperatorOn) {
  after_backward([&](ReplicaContext& ctx, Tensor& weight) {
    const Tensor kept = weight.grad();
    const Tensor transposed = kept.t();
    EXPECT_FALSE(transposed.has_storage());
    EXPECT_TRUE(torch::equal(transposed.t(), expected(ctx, weight)));
    EXPECT_TRUE(kept.has_storage());
    EXPECT_EQ(kept.data_ptr(), transposed.data_ptr());
    EXPECT_EQ(kept.data_ptr(), weight.grad().data_ptr());
    kept.mul_(2);
    EXPECT_TRUE(torch::equal(transposed.t(), kept));
  });
}

TEST_F(FactoredGradients, SayWhatToDoWhereDataPtrComesFirst) {
  after_backward([&](ReplicaContext&, Tensor& weight) {
    try {
      weight.grad().data_ptr<float>();
      ADD_FAILURE() << "nothing was thrown";
    } catch (const c10::Error& error) {
      for (const char* value : {"'weight'", ".grad().clone()", "LOCKSTEP_FACTORED_GRADIENTS=off"}) {
        EXPECT_TRUE(testing::has_value(error.what(), value)) << error.what();
      }
    }
    EXPECT_NE(weight.grad().clone().data_ptr<float>(), nullptr);
    EXPECT_NE(weight.grad().data_ptr<float>(), nullptr);
  });
}

TEST_F(FactoredGradients, AreSavedAsTheTensorsThatTheyAre) {
  after_backward([&](ReplicaContext&, Tensor& weight) {
    std::stringstream stream;
    torch::save(weight.grad(), stream);
    Tensor loaded;
    torch::load(loaded, stream);
    EXPECT_TRUE(torch::equal(loaded, weight.grad()));
  });
}

TEST_F(FactoredGradients, MayBeReducedByTheContext) {
  after_backward([&](ReplicaContext& ctx, Tensor& weight) {
    EXPECT_FALSE(weight.grad().has_storage());
    const Tensor sum = ctx.all_reduce(Reduction::kSum, weight.grad());
    EXPECT_TRUE(torch::equal(sum, ctx.all_reduce(Reduction::kSum, expected(ctx, weight))));
  });
}

TEST_F(FactoredGradients, OfALayerUnderAutocastAreThoseOfLibTorch) {
  const auto train = [&](const char* factored) {
    const FactoredGradientsAre scope(factored);
    MirroredStrategy strategy({.devices = lanes(1), .replicas = 2});
    const Variable weight = strategy.make_variable(some({kRows, kColumns}, 0), {.name = "weight"});
    const Optimizer optimizer = strategy.make_optimizer(std::vector<Variable>{weight}, torch::optim::SGDOptions(0.1));
    strategy.run([&](ReplicaContext& ctx) {
      const Tensor value = loss(weight.value(ctx), some({8, kColumns}, 1));
      testing::set_autocast(true);
      value.backward();
      testing::set_autocast(false);
      optimizer.step(ctx);
    });
    return weight.read();
  };
  EXPECT_TRUE(torch::equal(train("auto"), train("off")));
}

TEST_F(FactoredGradients, ThatWereGivenOtherDataAreThatData) {
  after_backward([&](ReplicaContext&, Tensor& weight) {
    const Tensor alias = weight.grad().detach();
    weight.grad().set_data(torch::full({kRows, kColumns}, 3.0));
    EXPECT_TRUE(weight.grad().is_alias_of(weight.grad()));
    EXPECT_GT(alias.norm().item<double>(), 0);
    EXPECT_TRUE(torch::equal(weight.grad().data(), torch::full({kRows, kColumns}, 3.0)));
  });
}

TEST_F(FactoredGradients, ThatWereAddedThroughAnAliasAreNoticed) {
  after_backward([&](ReplicaContext& ctx, Tensor& weight) {
    const Tensor first = weight.grad();
    weight.mutable_grad() = Tensor();
    loss(weight, some({3, kColumns}, 3)).backward();
    weight.grad().data().add_(first);
    EXPECT_FALSE(weight.grad().has_storage());
    optimizer_.step(ctx);
  });
  EXPECT_EQ(strategy_.findings().size(), 1u);
}

TEST_F(FactoredGradients, HaveTheSignsOfLibTorchWhereProductsUnderflow) {
  after_backward([&](ReplicaContext&, Tensor& weight) {
    const Tensor x = torch::full({2, kColumns}, 1e-30);
    const Tensor gy = torch::full({2, kRows}, -1e-30);
    const Tensor copy = weight.detach().clone().requires_grad_();
    weight.mutable_grad() = Tensor();
    x.mm(weight.t()).backward(gy);
    x.mm(copy.t()).backward(gy);
    EXPECT_FALSE(weight.grad().has_storage());
    EXPECT_TRUE(torch::equal(weight.grad().signbit(), copy.grad().signbit()));
  });
}

TEST_F(FactoredGradients, KeepTheirTreatmentOfDenormalsWhereverTheyAreRead) {
  const auto kept = [&](const char* factored) {
    const FactoredGradientsAre scope(factored);
    MirroredStrategy strategy({.devices = lanes(1), .replicas = 2, .denormals = Denormals::kFlush});
    const Variable weight = strategy.make_variable(some({kRows, kColumns}, 0), {.name = "weight"});
    const Optimizer optimizer = strategy.make_optimizer(std::vector<Variable>{weight}, torch::optim::SGDOptions(0.1));
    std::vector<Tensor> all(2);
    strategy.run([&](ReplicaContext& ctx) {
      const Tensor x = some({8, kColumns}, 1.0 + static_cast<double>(ctx.replica_id())) * 1e-20;
      x.mm(weight.value(ctx).t()).backward(some({8, kRows}, 2) * 1e-19);
      all[static_cast<std::size_t>(ctx.replica_id().value())] = weight.value(ctx).grad();
    });
    return all;
  };
  const std::vector<Tensor> with = kept("always");
  const std::vector<Tensor> without = kept("off");
  EXPECT_FALSE(with[0].has_storage());
  EXPECT_TRUE(torch::equal(with[0] + with[1], without[0] + without[1]));
  EXPECT_TRUE(torch::equal(with[1], without[1]));
}

TEST_F(FactoredGradients, HaveOrdinaryViewsInInferenceMode) {
  after_backward([&](ReplicaContext& ctx, Tensor& weight) {
    Tensor transposed;
    {
      const c10::InferenceMode inference;
      transposed = weight.grad().t();
    }
    EXPECT_FALSE(transposed.is_inference());
    EXPECT_TRUE(torch::equal(transposed.t(), expected(ctx, weight)));
  });
}

TEST_F(FactoredGradients, OfAZeroTensorAreZero) {
  after_backward([&](ReplicaContext&, Tensor& weight) {
    weight.mutable_grad() = Tensor();
    some({8, kColumns}, 1).mm(weight.t()).backward(at::_efficientzerotensor({8, kRows}));
    EXPECT_EQ(weight.grad().abs().sum().item<double>(), 0);
  });
}

TEST_F(FactoredGradients, UpdateAWeightOfTransposedLayout) {
  const auto made = [&](int64_t) {
    auto module = std::make_shared<torch::nn::Module>();
    module->register_parameter("weight", torch::zeros({kColumns, kRows}).t());
    return module;
  };
  int64_t calls = 0;
  const auto model = strategy_.make_module([&] { return made(calls++); }, {.name = "transposed"});
  const Optimizer theirs = strategy_.make_optimizer(model, torch::optim::SGDOptions(1));
  Tensor total;
  after_backward([&](ReplicaContext& ctx, Tensor& weight) {
    Tensor parameter = model(ctx)->parameters()[0];
    EXPECT_FALSE(parameter.is_contiguous());
    parameter.mutable_grad() = weight.grad().detach();
    const Tensor sum = ctx.all_reduce(Reduction::kSum, expected(ctx, weight));
    if (ctx.replica_id() == 0) total = sum;
    theirs.step(ctx);
  });
  EXPECT_TRUE(torch::equal(model.variables()[0].read(), total.neg()));
}

/// With lanes that begin inside a group of rows, more than one panel of columns, and rows that no block ends with.
TEST(FactoredGradientsOfALargeWeight, GiveTheWeightsThatWrittenOnesGive) {
  if (!testing::can_factor()) GTEST_SKIP() << "this LibTorch or processor keeps no factors";
  for (const bool clips : {false, true}) {
    const auto train = [&](const char* factored) {
      const FactoredGradientsAre scope(factored);
      MirroredStrategy strategy({.devices = lanes(2), .replicas = 3});
      const Variable weight = strategy.make_variable(some({513, 1027}, 0), {.name = "weight"});
      const Optimizer optimizer =
          strategy.make_optimizer(std::vector<Variable>{weight}, torch::optim::AdamWOptions(0.1));
      std::vector<double> norms;
      for (int step = 0; step < 3; ++step) {
        strategy.run([&](ReplicaContext& ctx) {
          const Tensor x = some({5 + step, 1027}, 1.0 + static_cast<double>(ctx.replica_id()));
          x.mm(weight.value(ctx).t()).relu().pow(2).mean().backward();
          EXPECT_EQ(weight.value(ctx).grad().has_storage(), std::string(factored) == "off");
          StepOptions options;
          if (clips) options.clip_global_norm = 0.01;
          const StepInfo info = optimizer.step(ctx, options);
          if (ctx.replica_id() == 0) norms.push_back(info.global_norm);
        });
      }
      return std::pair(weight.read(), norms);
    };
    const auto [with, norms_with] = train("auto");
    const auto [without, norms_without] = train("off");
    EXPECT_TRUE(torch::equal(with, without));
    EXPECT_EQ(norms_with, norms_without);
  }
}

TEST_F(FactoredGradients, MayBecomeTheGradientOfAnotherVariable) {
  const Variable other = strategy_.make_variable(torch::zeros({kColumns, kRows}), {.name = "other"});
  const Optimizer theirs = strategy_.make_optimizer(std::vector<Variable>{other}, torch::optim::SGDOptions(1));
  Tensor expected;
  after_backward([&](ReplicaContext& ctx, Tensor& weight) {
    other.value(ctx).mutable_grad() = weight.grad().t();
    weight.mutable_grad() = Tensor();
    theirs.step(ctx);
    weight.mutable_grad() = Tensor();
  });
  after_backward([&](ReplicaContext& ctx, Tensor& weight) {
    const Tensor sum = ctx.all_reduce(Reduction::kSum, weight.grad());
    if (ctx.replica_id() == 0) expected = sum.t().neg().contiguous();
  });
  EXPECT_TRUE(torch::equal(other.read(), expected));
}

TEST_F(FactoredGradients, ThatWereClippedByHandAreStillNoticed) {
  after_backward([&](ReplicaContext& ctx, Tensor& weight) {
    EXPECT_FALSE(weight.grad().has_storage());
    torch::nn::utils::clip_grad_norm_({weight}, 0.01);
    optimizer_.step(ctx);
  });
  const std::vector<Finding> findings = strategy_.findings();
  ASSERT_EQ(findings.size(), 1u);
  EXPECT_EQ(findings[0].code, "LS-GRADIENT-CHANGED");
}

TEST_F(FactoredGradients, ThatWereReadAloneAreNotSaidToBeChanged) {
  after_backward([&](ReplicaContext& ctx, Tensor& weight) {
    EXPECT_GT(weight.grad().norm().item<double>(), 0);
    optimizer_.step(ctx);
  });
  EXPECT_TRUE(strategy_.findings().empty());
}

TEST_F(FactoredGradients, ThatATensorWasGivenAsDataAreRefused) {
  after_backward([&](ReplicaContext&, Tensor& weight) {
    Tensor other = torch::zeros({2, 2});
    other.set_data(weight.grad());
    expect_error<UsageError>([&] { other.add_(1); }, "LS-GRADIENT-WITHOUT-MEMORY");
  });
}

TEST(ProductOrder, IsThatOfLibTorchForOtherNumbersTooWhereItSaysSo) {
  if (!testing::can_factor()) GTEST_SKIP() << "this LibTorch or processor keeps no factors";
  for (const int64_t samples : {1, 8, 16, 32, 100, 192}) {
    for (const auto& [rows, columns] : {std::pair<int64_t, int64_t>{1024, 784}, {512, 512}, {300, 260}, {3, 8}}) {
      const auto zero_sums = internal::zero_sums_of_libtorch(samples, rows, columns);
      if (!zero_sums) continue;
      const Tensor left = torch::randn({samples, rows}).relu();
      const Tensor right = torch::randn({samples, columns}).relu();
      EXPECT_TRUE(torch::equal(left.t().mm(right), internal::Factors(left, right, *zero_sums).product()))
          << samples << " samples, " << rows << " x " << columns;
    }
  }
}

}  // namespace
}  // namespace lockstep
