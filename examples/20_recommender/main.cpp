// A recommender with two tables of rows: who likes what. In step its weights have the same bits on any number of
// servers.
#include <torch/torch.h>

#include <iostream>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/lockstep.h"

namespace {

constexpr int64_t kUsers = 200;
constexpr int64_t kItems = 100;

/// Two dense layers over a row of each table.
struct Net : torch::nn::Module {
  Net() : a(register_module("a", torch::nn::Linear(16, 32))), b(register_module("b", torch::nn::Linear(32, 1))) {}
  torch::Tensor forward(const torch::Tensor& user, const torch::Tensor& item) {
    return b->forward(torch::relu(a->forward(torch::cat({user, item}, 1)))).squeeze(1);
  }
  torch::nn::Linear a;
  torch::nn::Linear b;
};

/// All pairs of a user and an item, [pairs, 2], in an order without a pattern, and whether the user likes the item: by
/// hidden tastes of users and properties of items.
std::pair<torch::Tensor, torch::Tensor> pairs() {
  const auto hidden = [](int64_t count, double factor) {
    return torch::arange(count * 3).to(torch::kDouble).mul(factor).add(1).square().sin().view({count, 3});
  };
  const auto order = torch::arange(kUsers * kItems).mul(7919).remainder(kUsers * kItems);  // 7919 is prime
  const auto user = order.div(kItems, "floor");
  const auto item = order.remainder(kItems);
  const auto liking =
      (hidden(kUsers, 0.731).index_select(0, user) * hidden(kItems, 0.417).index_select(0, item)).sum(1);
  return {torch::stack({user, item}, 1), liking.gt(0).to(torch::kFloat)};
}

struct Trained {
  double auc = 0;  // of pairs that were not trained on
  std::string digest;
};

Trained train(std::optional<int64_t> staleness, int64_t servers) {
  lockstep::ParameterServerStrategy strategy({.staleness = staleness, .workers = 2, .servers = servers, .seed = 7});
  auto model = strategy.make_module([] { return std::make_shared<Net>(); });
  auto users = strategy.make_embedding({.name = "users", .rows = kUsers, .dim = 8});
  auto items = strategy.make_embedding({.name = "items", .rows = 0, .dim = 8});  // any 64-bit number is an item
  auto optimizer = strategy.make_optimizer(model, torch::optim::AdagradOptions(0.05));
  auto user_optimizer = strategy.make_optimizer(users, torch::optim::AdagradOptions(0.1));
  auto item_optimizer = strategy.make_optimizer(items, torch::optim::AdagradOptions(0.1));

  const auto [ids, liked] = pairs();
  constexpr int64_t kTrain = kUsers * kItems * 4 / 5;
  auto data = strategy.distribute(lockstep::data::from_tensors(ids.narrow(0, 0, kTrain), liked.narrow(0, 0, kTrain)),
                                  {.global_batch = 200, .shuffle = true});
  auto test = strategy.distribute(lockstep::data::from_tensors(ids.narrow(0, kTrain, ids.size(0) - kTrain),
                                                               liked.narrow(0, kTrain, ids.size(0) - kTrain)),
                                  {.global_batch = 500});

  const auto scores = [&](lockstep::WorkerContext& ctx, const lockstep::Batch& batch) {
    return model(ctx)->forward(users.look_up(ctx, batch.input.select(1, 0)),
                               items.look_up(ctx, batch.input.select(1, 1)));
  };
  auto step = strategy.step("train", [&](lockstep::WorkerContext& ctx) {
    const auto batch = data.next(ctx);
    ctx.scale_loss(torch::binary_cross_entropy_with_logits(scores(ctx, batch), batch.target)).backward();
    ctx.push();
  });

  Trained trained;
  strategy.coordinate([&](lockstep::Coordinator& coordinator) {
    const int64_t batches = 8 * data.steps_per_epoch();
    for (int64_t k = 0; k < batches * (staleness ? 2 : 1); ++k)
      coordinator.schedule(step);  // in step, one for each part
    const auto auc = lockstep::metrics::auc();
    std::mutex mutex;
    std::vector<torch::Tensor> rows;
    coordinator.evaluate(test, [&](lockstep::WorkerContext& ctx, const lockstep::Batch& batch) {
      auto counted = auc.update(scores(ctx, batch), batch);
      const std::lock_guard<std::mutex> lock(mutex);
      rows.push_back(counted.rows);
    });
    trained.auc = auc.results({.rows = torch::cat(rows)}).at("auc");
  });

  std::vector<std::pair<std::string, torch::Tensor>> all;
  for (const auto& [name, value] : model.state()) all.emplace_back(name, value);
  all.emplace_back("users", users.read(torch::arange(kUsers)));
  all.emplace_back("items", items.read(torch::arange(kItems)));
  trained.digest = lockstep::sha256_of(all);
  return trained;
}

}  // namespace

int main() {
  const Trained one = train(0, 1);
  const Trained two = train(0, 2);
  const Trained asynchronous = train(std::nullopt, 2);
  std::cout << std::boolalpha << "in step, an area under the curve above 0.85: " << (one.auc > 0.85) << "\n"
            << "the same digest with 1 and 2 servers: " << (one.digest == two.digest) << "\n"
            << "each at its own pace, above 0.85: " << (asynchronous.auc > 0.85) << "\n";
}
