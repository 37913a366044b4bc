// Random programs, with shared tensors, views, writes in place, draws and control flow on constants: a captured step
// has the bits of its function.
#include <gtest/gtest.h>
#include <torch/nn/functional/dropout.h>
#include <torch/nn/functional/normalization.h>
#include <torch/optim/adamw.h>
#include <torch/types.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <exception>
#include <functional>
#include <iostream>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "tests/capture/setting.h"

namespace lockstep::testing {
namespace {

using torch::Tensor;
namespace F = torch::nn::functional;

constexpr int64_t kRows = 4;
constexpr int64_t kColumns = 6;

/// An operator, or a few of them, on two matrices of kRows by kColumns; the result is one too. `number` is a constant
/// of the program.
using Operation = std::function<Tensor(const Tensor& a, const Tensor& b, int number)>;

const std::vector<Operation>& operations() {
  static const Tensor order = torch::tensor({2, 0, 3, 1});
  static const Tensor columns = torch::tensor({5, 1, 4});
  static const std::vector<Operation> all{
      [](const Tensor& a, const Tensor& b, int) { return a + b; },
      [](const Tensor& a, const Tensor& b, int number) { return torch::sub(a, b, 0.25 * number); },
      [](const Tensor& a, const Tensor& b, int) { return a * b; },
      [](const Tensor& a, const Tensor&, int) { return torch::relu(a); },
      [](const Tensor& a, const Tensor&, int) { return torch::tanh(a); },
      [](const Tensor& a, const Tensor&, int number) { return a * (0.5 + number); },
      [](const Tensor& a, const Tensor&, int number) { return 1 - a / (1 + number); },
      [](const Tensor& a, const Tensor& b, int) { return torch::mm(torch::mm(a, b.t()), a); },
      [](const Tensor& a, const Tensor&, int) { return a.t().contiguous().t(); },
      [](const Tensor& a, const Tensor&, int) {
        return a.t().reshape({kRows, kColumns});
      },
      [](const Tensor& a, const Tensor&, int) {
        return a.view({-1}).view({kRows, kColumns});
      },
      [](const Tensor& a, const Tensor& b, int) {
        return torch::cat({a.slice(0, 0, 2), b.slice(0, 2, kRows)});
      },
      [](const Tensor& a, const Tensor& b, int) {
        return torch::stack({a, b}).mean(0);
      },
      [](const Tensor& a, const Tensor&, int) {
        const auto parts = a.chunk(2, 1);
        return torch::cat({parts[1], parts[0]}, 1);
      },
      [](const Tensor& a, const Tensor& b, int) { return a.clone().mul_(b); },
      [](const Tensor& a, const Tensor& b, int) {
        Tensor c = a.clone();
        c.slice(1, 0, 3).add_(b.slice(1, 3, kColumns));
        return c;
      },
      [](const Tensor& a, const Tensor& b, int) {
        Tensor c = torch::zeros_like(a);
        c.select(0, 1).copy_(b.select(0, 2));
        return c + a;
      },
      [](const Tensor& a, const Tensor&, int) {
        Tensor c = a.clone();
        c.unsqueeze_(0).squeeze_(0).t_();
        return c.t();
      },
      [](const Tensor& a, const Tensor&, int) {
        return a.expand({3, kRows, kColumns}).sum(0);
      },
      [](const Tensor& a, const Tensor& b, int) { return a + b.mean(1, true).expand_as(a); },
      [](const Tensor& a, const Tensor&, int number) { return torch::cumsum(a, number % 2); },
      [](const Tensor& a, const Tensor&, int number) { return torch::softmax(a, number % 2); },
      [](const Tensor& a, const Tensor&, int) { return a.index_select(0, order); },
      [](const Tensor& a, const Tensor&, int) { return a.index({order}); },
      [](const Tensor& a, const Tensor& b, int) {
        Tensor c = a.clone();
        c.index_put_({torch::indexing::Slice(), columns}, b.slice(1, 0, 3));
        return c;
      },
      [](const Tensor& a, const Tensor& b, int) { return torch::where(a > b, a, b * 0.5); },
      [](const Tensor& a, const Tensor& b, int) { return a.masked_fill(b > 0, 0.125); },
      [](const Tensor& a, const Tensor& b, int) { return torch::maximum(a, b); },
      [](const Tensor& a, const Tensor&, int) { return std::get<0>(torch::sort(a, 1)); },
      [](const Tensor& a, const Tensor&, int) { return a - std::get<0>(a.max(1, true)); },
      [](const Tensor& a, const Tensor&, int) { return torch::gather(a, 1, torch::argsort(a, 1, false)); },
      [](const Tensor& a, const Tensor& b, int) { return a.detach() * b; },
      [](const Tensor& a, const Tensor&, int) { return F::layer_norm(a, F::LayerNormFuncOptions({kColumns})); },
      [](const Tensor& a, const Tensor&, int) { return F::dropout(a, F::DropoutFuncOptions().p(0.25)); },
      [](const Tensor& a, const Tensor&, int) { return a + torch::rand_like(a); },
      [](const Tensor& a, const Tensor&, int) {
        return a * torch::randn({kRows, 1});
      },
      [](const Tensor& a, const Tensor&, int) { return a.to(torch::kDouble).sin().to(torch::kFloat); },
      [](const Tensor& a, const Tensor&, int number) { return a + torch::full({kColumns}, 0.1 * number); },
      [](const Tensor& a, const Tensor&, int) {
        return a * torch::arange(kRows * kColumns).view({kRows, kColumns}).to(torch::kFloat).cos();
      },
      [](const Tensor& a, const Tensor& b, int) {
        Tensor c = torch::empty_like(a.detach());
        torch::add_out(c, a.detach(), b.detach());
        return c * a;
      },
      [](const Tensor& a, const Tensor& b, int) {
        return torch::einsum("ij,kj,kl->il", {a, b, a});
      },
      [](const Tensor& a, const Tensor& b, int) { return torch::roll(a, 1, 0) + torch::flip(b, {1}); },
      [](const Tensor& a, const Tensor& b, int) { return torch::lerp(a, b, 0.25); },
      [](const Tensor& a, const Tensor&, int) { return a.norm(2, {1}, true).expand_as(a) + a; },
  };
  return all;
}

/// The same program for the same seed.
struct RandomProgram {
  struct Line {
    std::size_t operation;
    std::size_t a;
    std::size_t b;
    int number;
  };

  explicit RandomProgram(unsigned seed, int length = 60) {
    std::mt19937 draw(seed);
    for (std::size_t known = 3; known < static_cast<std::size_t>(length) + 3; ++known) {
      // Most lines take what was made last, so that a mistake comes to the end.
      const auto one = [&] {
        return draw() % 2 == 0 ? known - 1 - draw() % std::min<std::size_t>(known, 4) : draw() % known;
      };
      lines.push_back({draw() % operations().size(), one(), one(), static_cast<int>(draw() % 3)});
    }
    returns = draw() % 3;
  }

  /// Numbers stay small, because a NaN hides every mistake before it.
  Tensor value(const Tensor& input, const Tensor& first, const Tensor& second) const {
    std::vector<Tensor> all{input, first, second};
    for (const Line& line : lines) {
      Tensor made = operations()[line.operation](all[line.a], all[line.b], line.number);
      if (line.number == 2) made = made.clamp(-4, 4);
      all.push_back(torch::tanh(made));
    }
    return all.back() + all[all.size() - 5];
  }

  std::vector<Line> lines;
  std::size_t returns = 0;
};

struct Trained {
  std::vector<Tensor> tensors;
  std::string error;
  int64_t replayed = 0;
  std::string text;
};

Trained trained(unsigned seed, bool is_captured) {
  MirroredStrategy strategy({.devices = lanes(1), .replicas = 2, .seed = seed});
  const RandomProgram program(seed);
  const auto weight = [&](const char* name, double begin) {
    return strategy.make_variable(
        torch::arange(kRows * kColumns).add(begin).to(torch::kFloat).sin().view({kRows, kColumns}), {.name = name});
  };
  const Variable first = weight("first", 1);
  const Variable second = weight("second", 2);
  const Optimizer optimizer = strategy.make_optimizer({first, second}, torch::optim::AdamWOptions(0.01));
  const auto step = [&](ReplicaContext& ctx, const Batch& batch) {
    const Tensor value = program.value(batch.input, first.value(ctx), second.value(ctx));
    const Tensor loss = ctx.scale_loss(value.pow(2).mean());
    if (loss.requires_grad()) loss.backward();
    optimizer.step(ctx);
    return program.returns == 0 ? loss.detach() : program.returns == 1 ? value.detach() : value.detach().select(1, 2);
  };
  const auto captured = strategy.capture(step);
  Trained all;
  try {
    for (int k = 0; k < 6; ++k) {
      const Tensor x = torch::arange(2 * kRows * kColumns).add(k).to(torch::kFloat).cos().view({2 * kRows, kColumns});
      const auto results =
          is_captured ? strategy.run(strategy.split(x), captured) : strategy.run(strategy.split(x), step);
      all.tensors.insert(all.tensors.end(), results.begin(), results.end());
    }
    for (const Variable& one : strategy.variables()) all.tensors.push_back(one.read());
  } catch (const std::exception& error) {
    all.error = error.what();
  }
  all.replayed = captured.num_replayed();
  all.text = captured.describe();
  return all;
}

TEST(RandomPrograms, HaveTheSameBitsCaptured) {
  const char* const more = std::getenv("CAPTURED_PROGRAMS");  // how many, by hand
  const unsigned programs = more ? static_cast<unsigned>(std::atoi(more)) : 100;
  unsigned replayed = 0;
  for (unsigned seed = 1; seed <= programs; ++seed) {
    const Trained as_it_is = trained(seed, false);
    const Trained captured = trained(seed, true);
    ASSERT_EQ(as_it_is.error, captured.error) << "program " << seed;
    ASSERT_TRUE(are_equal(as_it_is.tensors, captured.tensors)) << "program " << seed << "\n" << captured.text;
    if (captured.replayed > 0) ++replayed;
  }
  std::cout << replayed << " of " << programs << " programs were replayed\n";
  EXPECT_GT(replayed, programs * 9 / 10);
}

}  // namespace
}  // namespace lockstep::testing
