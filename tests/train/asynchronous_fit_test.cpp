// A Trainer over parameter servers whose workers do not wait for each other: each step that counts is told once.
#include <torch/optim/sgd.h>

#include <algorithm>
#include <atomic>
#include <mutex>
#include <optional>
#include <set>
#include <stdexcept>

#include "tests/support/errors.h"
#include "tests/train/fits.h"
#include "tests/train/folder.h"

namespace lockstep::testing {

namespace {

using Asynchronous = ::testing::TestWithParam<std::optional<int64_t>>;  // the staleness

}  // namespace

INSTANTIATE_TEST_SUITE_P(Staleness, Asynchronous, ::testing::Values(std::nullopt, 2));

TEST_P(Asynchronous, TellsEachStepThatCountsOnce) {
  ParameterServerStrategy strategy({.staleness = GetParam(), .workers = 3, .seed = 7});
  const Setting setting(strategy, 40);
  std::mutex mutex;
  std::multiset<int64_t> used;
  Trainer trainer(strategy, setting.model, setting.optimizer,
                  {.loss =
                       [&](const torch::Tensor& output, const Batch& part) {
                         const std::lock_guard<std::mutex> lock(mutex);
                         for (int64_t i = 0; i < part.size(); ++i) used.insert(part.ids[i].item<int64_t>());
                         return cross_entropy(output, part);
                       },
                   .metrics = {accuracy_spec()}});
  std::vector<double> losses;
  std::vector<int64_t> steps;
  const History history =
      trainer.fit(setting.train, {.epochs = 2, .callbacks = {callbacks::each_step([&](Trainer& of, const Logs& l) {
                                                 losses.push_back(l.at("loss"));
                                                 steps.push_back(of.status().step);
                                               })}});
  ASSERT_EQ(losses.size(), 20);
  for (std::size_t i = 0; i < steps.size(); ++i) EXPECT_EQ(steps[i], static_cast<int64_t>(i) + 1);
  EXPECT_EQ(strategy.step(), 20);
  const auto findings = strategy.findings();
  EXPECT_EQ(std::ranges::count(findings, "LS-BATCH-HELD", &Finding::code), 0);
  for (int64_t id = 0; id < 40; ++id) EXPECT_EQ(used.count(id), 2) << id;
  MirroredStrategy mirrored({.devices = {"cpu:0"}, .replicas = 1, .seed = 7});
  const Setting other(mirrored, 40);
  other.trainer().fit(other.train, {.epochs = 2});
  EXPECT_EQ(setting.train.cursor(), other.train.cursor());
  // The epoch's loss is that of its steps, whose order is that in which they were told.
  double sum = 0;
  for (std::size_t i = 10; i < 20; ++i) sum += losses[i] * 4;
  EXPECT_DOUBLE_EQ(history.epochs().back().at("loss"), sum / 40);
}

TEST_P(Asynchronous, TellsStepsInTheOrderInWhichTheyCount) {
  ParameterServerStrategy strategy({.staleness = GetParam(), .workers = 3, .seed = 7});
  const auto make = [] { return torch::nn::Linear(torch::nn::LinearOptions(1, 1).bias(false)); };
  const auto model = strategy.make_module(make);
  // With a decay of weights they depend on the order of gradients.
  const auto decaying = torch::optim::SGDOptions(1.0).weight_decay(0.5);
  const auto optimizer = strategy.make_optimizer(model, decaying);
  const auto data = strategy.distribute(data::from_tensors(torch::ones({60, 1}), classes(60)), {.global_batch = 1});
  auto alone = model.export_module();
  // Its value and its gradient are the sample's number.
  const auto loss = [](const torch::Tensor& output, const torch::Tensor& id) {
    const torch::Tensor product = (output * id).sum();
    return product - product.detach() + id.sum();
  };
  std::vector<double> told;
  Trainer trainer(strategy, model, optimizer, {.loss = [&](const torch::Tensor& output, const Batch& part) {
                    return loss(output, part.ids.to(torch::kFloat));
                  }});
  trainer.fit(data,
              {.callbacks = {callbacks::each_step([&](Trainer&, const Logs& l) { told.push_back(l.at("loss")); })}});
  ASSERT_EQ(std::set<double>(told.begin(), told.end()).size(), 60);
  torch::optim::SGD sgd(alone->parameters(), decaying);
  for (const double id : told) {
    sgd.zero_grad();
    loss(alone->forward(torch::ones({1, 1})), torch::full({1}, id)).backward();
    sgd.step();
  }
  EXPECT_TRUE(torch::equal(model.variables().front().read(), alone->weight.detach()));
}

TEST_P(Asynchronous, StopsAfterTheStepsThatAreUnderWay) {
  ParameterServerStrategy strategy({.staleness = GetParam(), .workers = 2, .seed = 7});
  const Setting setting(strategy, 400);
  Trainer trainer = setting.trainer();
  int64_t steps = 0;
  int epoch_ends = 0;
  int validations = 0;
  class Counting final : public Callback {
   public:
    Counting(int& validations, int& ends) : validations_(validations), ends_(ends) {}
    std::string name() const override { return "counting"; }
    void on_evaluate_end(Trainer&, const Logs&) override { ++validations_; }
    void on_epoch_end(Trainer&, const Logs&) override { ++ends_; }

   private:
    int& validations_;
    int& ends_;
  };
  trainer.fit(setting.train, {.epochs = 3,
                              .validation = setting.validation,
                              .callbacks = {std::make_shared<Counting>(validations, epoch_ends),
                                            callbacks::each_step([&](Trainer& of, const Logs&) {
                                              ++steps;
                                              if (of.status().step == 5) of.stop("enough");
                                            })}});
  EXPECT_GE(steps, 5);
  EXPECT_LE(steps, 5 + 3) << "two for each worker are under way, of which one was told";
  EXPECT_EQ(strategy.step(), steps);
  EXPECT_EQ(epoch_ends, 1);
  EXPECT_EQ(validations, 1);
  EXPECT_EQ(trainer.stopped(), "enough");
}

TEST_P(Asynchronous, MakesAsManyStepsAsAreAskedFor) {
  ParameterServerStrategy strategy({.staleness = GetParam(), .workers = 4, .seed = 7});
  const Setting setting(strategy);
  Trainer trainer = setting.trainer();
  std::vector<int64_t> validated_after;
  class Noting final : public Callback {
   public:
    explicit Noting(std::vector<int64_t>& after) : after_(after) {}
    std::string name() const override { return "noting"; }
    void on_evaluate_end(Trainer& trainer, const Logs&) override { after_.push_back(trainer.status().step); }

   private:
    std::vector<int64_t>& after_;
  };
  trainer.fit(setting.train, {.steps = 11,
                              .validation = setting.validation,
                              .callbacks = {std::make_shared<Noting>(validated_after)},
                              .validate_every_steps = 3});
  EXPECT_EQ(trainer.status().step, 11);
  EXPECT_EQ(strategy.step(), 11);
  EXPECT_EQ(validated_after, (std::vector<int64_t>{3, 6, 9}));
}

TEST_P(Asynchronous, GoesOnFromACheckpointWithTheSamplesThatAreLeft) {
  const Folder scratch;
  std::mutex mutex;
  std::multiset<int64_t> used;
  int64_t steps = 0;
  for (int i = 0; i < 2; ++i) {
    ParameterServerStrategy strategy({.staleness = GetParam(), .workers = 3, .seed = 7});
    const Setting setting(strategy, 80);
    Trainer trainer(strategy, setting.model, setting.optimizer,
                    {.loss = [&](const torch::Tensor& output, const Batch& part) {
                      const std::lock_guard<std::mutex> lock(mutex);
                      for (int64_t k = 0; k < part.size(); ++k) used.insert(part.ids[k].item<int64_t>());
                      return cross_entropy(output, part);
                    }});
    trainer.fit(setting.train, {.epochs = 1,
                                .callbacks = {callbacks::checkpoints({.directory = scratch.path(), .every_steps = 4}),
                                              callbacks::each_step([&](Trainer& of, const Logs&) {
                                                ++steps;
                                                if (i == 0 && of.status().step == 6) of.stop("enough");
                                              })}});
  }
  EXPECT_EQ(steps, 20);
  EXPECT_EQ(used.size(), 80);
  EXPECT_EQ(std::set<int64_t>(used.begin(), used.end()).size(), 80);
}

TEST_P(Asynchronous, AStepThatThrowsFailsTheFitOnce) {
  ParameterServerStrategy strategy({.staleness = GetParam(), .workers = 2, .seed = 7});
  const Setting setting(strategy, 40);
  std::atomic<bool> fails = true;
  Trainer trainer(strategy, setting.model, setting.optimizer,
                  {.loss = [&](const torch::Tensor& output, const Batch& part) {
                    if (fails && part.ids.eq(7).any().item<bool>()) throw std::invalid_argument("bad sample");
                    return cross_entropy(output, part);
                  }});
  class Failing final : public Callback {
   public:
    explicit Failing(int& count) : count_(count) {}
    std::string name() const override { return "failing"; }
    void on_fit_fail(const std::exception&) override { ++count_; }

   private:
    int& count_;
  };
  int told = 0;
  const auto fit = [&] { return trainer.fit(setting.train, {.callbacks = {std::make_shared<Failing>(told)}}); };
  const auto error = error_from<ReplicaError>([&] { fit(); });
  EXPECT_THROW(std::rethrow_if_nested(error), std::invalid_argument);
  EXPECT_EQ(told, 1);
  fails = false;
  fit();
  EXPECT_EQ(told, 1);
  EXPECT_EQ(trainer.status().step, 10);
}

TEST_P(Asynchronous, RefusesACheckpointWhileStepsAreUnderWay) {
  ParameterServerStrategy strategy({.staleness = GetParam(), .workers = 2, .seed = 7});
  const Setting setting(strategy, 40);
  Trainer trainer = setting.trainer();
  int refused = 0;
  trainer.fit(setting.train,
              {.callbacks = {callbacks::each_step([&](Trainer& of, const Logs&) {
                               if (of.status().step == 1) {
                                 expect_error<UsageError>([&] { of.checkpoint(); }, "LS-OPTION", {"under way"});
                                 ++refused;
                               }
                             }),
                             callbacks::each_epoch([&](Trainer& of, const Logs&) { of.checkpoint(); })}});
  EXPECT_EQ(refused, 1);
}

}  // namespace lockstep::testing
