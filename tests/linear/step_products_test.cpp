// Products of few samples in the threads of replicas: LibTorch's bits in all that a program may do with them.
#include "lockstep/linear/step_products.h"

#include <gtest/gtest.h>
#include <torch/autograd.h>
#include <torch/optim/sgd.h>
#include <torch/types.h>
#include <torch/utils.h>

#include <atomic>
#include <cstdint>
#include <cstring>
#include <functional>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/linear/few_samples_product.h"
#include "lockstep/linear/product_order.h"
#include "tests/linear/some_numbers.h"
#include "tests/support/autocast.h"
#include "tests/support/errors.h"
#include "tests/support/factored.h"
#include "tests/support/programs.h"

namespace lockstep {
namespace {

using internal::num_few_samples_products;
using testing::FewSamplesProductsAre;
using testing::lanes;
using torch::Tensor;
using Tensors = std::vector<Tensor>;

Tensor some_with_zeros(at::IntArrayRef sizes, double phase) {
  const Tensor values = testing::some(sizes, phase);
  return values.masked_fill(values.abs() < 0.1, 0);
}

class StepProducts : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!testing::can_factor()) GTEST_SKIP() << "this LibTorch or processor has no products of few samples of our own";
    const testing::FewSamplesProductsAre scope("always");
    strategy_.run([&](ReplicaContext&) {
      if (!internal::sum_order_of_libtorch(internal::LinearProduct::kOutputWithBias, 8, 64, 400)) other_bits_ = true;
    });
    if (other_bits_) GTEST_SKIP() << "LibTorch's matrix library adds in another order here";
  }

  /// What `program` gives on two replicas, one after another in a list.
  Tensors run(const char* products, const std::function<Tensors(ReplicaContext&)>& program) {
    const FewSamplesProductsAre scope(products);
    Tensors all;
    for (const Tensors& one : strategy_.run(program)) all.insert(all.end(), one.begin(), one.end());
    return all;
  }

  /// Expects equal bits with the library's own products and without; gives how many were the library's own.
  int64_t compare(const std::string& name, const std::function<Tensors(ReplicaContext&)>& program) {
    const Tensors theirs = run("off", program);
    const int64_t before = num_few_samples_products();
    const Tensors ours = run("always", program);
    EXPECT_EQ(ours.size(), theirs.size()) << name;
    for (std::size_t i = 0; i < theirs.size(); ++i) {
      const Tensor a = theirs[i].detach().contiguous();
      const Tensor b = ours[i].detach().contiguous();
      EXPECT_EQ(a.sizes(), b.sizes()) << name;
      EXPECT_EQ(a.scalar_type(), b.scalar_type()) << name;
      EXPECT_TRUE(a.numel() == 0 || std::memcmp(a.data_ptr(), b.data_ptr(), a.nbytes()) == 0)
          << name << ", tensor " << i;
    }
    return num_few_samples_products() - before;
  }

  std::atomic<bool> other_bits_ = false;
  MirroredStrategy strategy_{{.devices = lanes(2), .replicas = 2}};
};

TEST_F(StepProducts, OfALinearLayerHaveLibTorchsBitsForEveryShape) {
  for (const auto& [rows, columns] : std::vector<std::pair<int64_t, int64_t>>{
           {12, 12}, {13, 40}, {100, 193}, {64, 400}, {33, 250}, {10, 64}, {64, 10}, {385, 577}, {1, 300}, {300, 1}}) {
    for (const int64_t samples : {0, 1, 2, 3, 4, 5, 8, 17, 33, 200}) {
      compare("linear", [&, n = rows, k = columns](ReplicaContext& ctx) {
        const double phase = static_cast<double>(ctx.replica_id());
        const Tensor x = some_with_zeros({samples, k}, phase).requires_grad_();
        const Tensor w = some_with_zeros({n, k}, 2).requires_grad_();
        const Tensor bias = some_with_zeros({n}, 3).requires_grad_();
        const Tensor with = torch::linear(x, w, bias);
        const Tensor without = torch::linear(x, w);
        (with * some_with_zeros({samples, n}, 4)).sum().backward();
        (without * some_with_zeros({samples, n}, 5)).sum().backward();
        return Tensors{with, without, x.grad(), w.grad(), bias.grad()};
      });
    }
  }
}

TEST_F(StepProducts, ThatUnderflowHaveLibTorchsSigns) {
  for (const int64_t depth : {6, 14, 32, 64, 192, 193, 400}) {
    for (const int64_t samples : {4, 5, 8, 16, 32}) {
      compare("underflow", [&, k = depth](ReplicaContext&) {
        // Many results are zeros, of both signs.
        const Tensor x = some_with_zeros({samples, k}, 1) * 1e-25;
        const Tensor w = some_with_zeros({512, k}, 2) * 1e-22;
        const Tensor bias = some_with_zeros({512}, 3) * 0;
        return Tensors{torch::linear(x, w), torch::linear(x, w, bias),
                       (some_with_zeros({samples, 512}, 4) * 1e-25).mm(w)};
      });
    }
  }
}

TEST_F(StepProducts, AreTheLibrarysOwnForFewSamplesAndNotForOneOrTwoHundred) {
  const auto own = [&](int64_t samples) {
    return compare("how many", [&](ReplicaContext&) {
      const Tensor x = some_with_zeros({samples, 400}, 0).requires_grad_();
      const Tensor w = some_with_zeros({64, 400}, 2);
      const Tensor y = torch::linear(x, w, some_with_zeros({64}, 1));
      y.square().sum().backward();
      return Tensors{y, x.grad()};
    });
  };
  EXPECT_EQ(own(8), 4) << "on two replicas the output and the input's gradient";
  EXPECT_EQ(own(1), 0);
  EXPECT_EQ(own(200), 0);
}

TEST_F(StepProducts, WithoutTheSwitchAreForLargeWeightsOnly) {
  const FewSamplesProductsAre scope(nullptr);
  const auto own = [&](int64_t samples, int64_t rows) {
    const int64_t before = num_few_samples_products();
    strategy_.run([&](ReplicaContext&) {
      return some_with_zeros({samples, 1024}, 0).mm(some_with_zeros({rows, 1024}, 1).t());
    });
    return num_few_samples_products() - before;
  };
  EXPECT_EQ(own(8, 255), 0);
  EXPECT_EQ(own(8, 256), 2);
  EXPECT_EQ(own(17, 511), 0);
  EXPECT_EQ(own(17, 512), 2);
  EXPECT_EQ(own(33, 1024), 0);
}

TEST_F(StepProducts, AreLibTorchsOutsideOfStepsAndWithMoreThreads) {
  const FewSamplesProductsAre scope("always");
  const int64_t before = num_few_samples_products();
  const auto product = [] { return some_with_zeros({8, 400}, 0).mm(some_with_zeros({64, 400}, 1).t()); };
  product();
  MirroredStrategy threads({.devices = lanes(1), .replicas = 1, .threads_per_replica = 2});
  threads.run([&](ReplicaContext&) { product(); });
  EXPECT_EQ(num_few_samples_products(), before);
  strategy_.evaluate([&](ReplicaContext&) { product(); });
  EXPECT_EQ(num_few_samples_products(), before + 2);
}

TEST_F(StepProducts, HaveLibTorchsBitsHoweverTheyAreWritten) {
  using Program = std::function<Tensors(ReplicaContext&)>;
  const auto weight = [] { return some_with_zeros({64, 400}, 2).requires_grad_(); };
  const std::vector<std::pair<std::string, Program>> programs{
      {"three dimensions",
       [&](ReplicaContext&) {
         const Tensor x = some_with_zeros({2, 5, 400}, 0).requires_grad_();
         const Tensor w = weight();
         const Tensor y = torch::linear(x, w, some_with_zeros({64}, 1));
         y.sum().backward();
         return Tensors{y, x.grad(), w.grad()};
       }},
      {"a gradient that is one expanded number",
       [&](ReplicaContext&) {
         const Tensor x = some_with_zeros({8, 400}, 0).requires_grad_();
         torch::linear(x, weight()).sum().backward();
         return Tensors{x.grad()};
       }},
      {"views of larger tensors",
       [&](ReplicaContext&) {
         const Tensor x = some_with_zeros({16, 401}, 0).slice(0, 0, 16, 2).narrow(1, 1, 400);
         const Tensor w = some_with_zeros({65, 400}, 2).narrow(0, 1, 64);
         return Tensors{x.mm(w.t()), x.contiguous().mm(w.t()), some_with_zeros({8, 64}, 1).mm(w),
                        some_with_zeros({64, 8}, 1).t().mm(w)};
       }},
      {"a weight with gaps between its rows",
       [&](ReplicaContext&) {
         const Tensor w = some_with_zeros({64, 410}, 2).narrow(1, 3, 400);
         return Tensors{some_with_zeros({8, 400}, 0).mm(w.t()), some_with_zeros({8, 64}, 0).mm(w)};
       }},
      {"beta and alpha",
       [&](ReplicaContext&) {
         const Tensor x = some_with_zeros({8, 400}, 0), w = some_with_zeros({64, 400}, 2),
                      bias = some_with_zeros({64}, 1);
         return Tensors{torch::addmm(bias, x, w.t(), 0.5), torch::addmm(bias, x, w.t(), 1, 2),
                        torch::addmm(bias, x, w.t(), 0), torch::addmm(bias, x, w.t())};
       }},
      {"other forms of bias",
       [&](ReplicaContext&) {
         const Tensor x = some_with_zeros({8, 400}, 0), w = some_with_zeros({64, 400}, 2);
         return Tensors{torch::addmm(some_with_zeros({8, 64}, 1), x, w.t()),
                        torch::addmm(some_with_zeros({1}, 1), x, w.t()),
                        torch::addmm(some_with_zeros({1, 64}, 1), x, w.t()),
                        torch::addmm(some_with_zeros({8, 1}, 1), x, w.t()),
                        torch::addmm(some_with_zeros({128}, 1).slice(0, 0, 128, 2), x, w.t()),
                        torch::addmm(some_with_zeros({8, 400}, 1), some_with_zeros({8, 64}, 0), w)};
       }},
      {"the gradient of a gradient",
       [&](ReplicaContext&) {
         const Tensor x = some_with_zeros({8, 400}, 0).requires_grad_();
         const Tensor w = weight();
         const Tensor first =
             torch::autograd::grad({torch::linear(x, w).pow(3).sum()}, {x}, {}, true, /*create_graph=*/true)[0];
         first.square().sum().backward();
         return Tensors{first, x.grad(), w.grad()};
       }},
      {"without gradient, and in inference mode",
       [&](ReplicaContext&) {
         const Tensor x = some_with_zeros({8, 400}, 0), w = weight();
         Tensors results;
         {
           const torch::NoGradGuard no_grad;
           results.push_back(torch::linear(x, w));
         }
         const c10::InferenceMode inference;
         results.push_back(torch::linear(some_with_zeros({8, 400}, 3), w).clone());
         return results;
       }},
      {"other types",
       [&](ReplicaContext&) {
         const Tensor x = some_with_zeros({8, 400}, 0), w = some_with_zeros({64, 400}, 2);
         return Tensors{x.to(torch::kDouble).mm(w.to(torch::kDouble).t()),
                        x.to(torch::kBFloat16).mm(w.to(torch::kBFloat16).t()),
                        x.to(torch::kInt).mm(w.to(torch::kInt).t())};
       }},
      {"autocast",
       [&](ReplicaContext&) {
         const Tensor x = some_with_zeros({8, 400}, 0).requires_grad_();
         const Tensor w = weight();
         testing::set_autocast(true);
         const Tensor y = torch::linear(x, w);
         testing::set_autocast(false);
         at::autocast::clear_cache();
         y.to(torch::kFloat).square().sum().backward();
         return Tensors{y, x.grad(), w.grad()};
       }},
      {"what is no number",
       [&](ReplicaContext&) {
         Tensor x = some_with_zeros({8, 400}, 0);
         x[1][7] = std::numeric_limits<float>::infinity();
         return Tensors{x.mm(some_with_zeros({64, 400}, 2).add(3).t())};
       }},
      {"a gradient of few samples as the factor of another product",
       [&](ReplicaContext&) {
         const Tensor w = weight();
         torch::linear(some_with_zeros({8, 400}, 0), w).square().sum().backward();
         return Tensors{some_with_zeros({8, 64}, 1).mm(w.grad()), some_with_zeros({8, 400}, 1).mm(w.grad().t())};
       }},
  };
  int64_t own = 0;
  for (const auto& [name, program] : programs) own += compare(name, program);
  EXPECT_GT(own, 20);
}

TEST_F(StepProducts, TakeAGradientThatIsKeptAsFactors) {
  const testing::FactoredGradientsAre factored("always");
  const auto products = [&](const char* value) {
    const FewSamplesProductsAre scope(value);
    MirroredStrategy strategy({.devices = lanes(2), .replicas = 2});
    const Variable w = strategy.make_variable(some_with_zeros({64, 400}, 2));
    const Optimizer optimizer = strategy.make_optimizer(std::vector<Variable>{w}, torch::optim::SGDOptions(0.1));
    Tensors all;
    for (const Tensors& one : strategy.run([&](ReplicaContext& ctx) {
           const Tensor weight = w.value(ctx);
           const auto backward = [&] {
             weight.mutable_grad() = Tensor();
             torch::linear(some_with_zeros({8, 400}, 0), weight).square().sum().backward();
           };
           Tensors results;
           backward();
           results.push_back(some_with_zeros({8, 64}, 1).mm(weight.grad()));
           backward();
           results.push_back(some_with_zeros({8, 400}, 1).mm(weight.grad().t()));
           backward();
           results.push_back(torch::addmm(weight.grad(), some_with_zeros({64, 8}, 1), some_with_zeros({8, 400}, 2)));
           backward();
           results.push_back(weight.grad().mm(some_with_zeros({400, 16}, 1)));
           return results;
         })) {
      all.insert(all.end(), one.begin(), one.end());
    }
    return all;
  };
  const Tensors theirs = products("off");
  const Tensors ours = products("always");
  ASSERT_EQ(ours.size(), 8u);
  for (std::size_t i = 0; i < ours.size(); ++i) EXPECT_TRUE(torch::equal(ours[i], theirs[i])) << i;
}

TEST(StepProductsSwitch, RefusesWordsThatItDoesNotKnow) {
  const testing::EnvironmentScope scope("LOCKSTEP_FEW_SAMPLES_PRODUCTS", "on");
  testing::expect_error<UsageError>([] { OneDeviceStrategy(); }, "LS-ENVIRONMENT",
                                    {"LOCKSTEP_FEW_SAMPLES_PRODUCTS", "'on'", "auto, off or always"});
}

}  // namespace
}  // namespace lockstep
