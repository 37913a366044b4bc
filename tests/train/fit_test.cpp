// A fit gives the bits of the loop that it stands for.
#include <torch/optim/sgd.h>

#include "tests/train/fits.h"

namespace lockstep::testing {

namespace {

const std::vector<WorkersCase> kCases{{1, 1, 1}, {1, 2, 1}, {1, 2, 2}, {1, 3, 2}, {1, 4, 1},
                                      {1, 4, 2}, {2, 2, 1}, {2, 4, 2}, {3, 3, 1}, {3, 4, 1}};

struct FitResult {
  std::string digest;
  std::vector<double> losses;  // of each step
  std::vector<Logs> epochs;
  bool operator==(const FitResult&) const = default;
};

/// What a program would write by hand.
FitResult by_hand(Strategy& strategy, int64_t epochs) {
  const Setting setting(strategy);
  FitResult result;
  for (int64_t epoch = 0; epoch < epochs; ++epoch) {
    for (const auto& batch : setting.train.epoch(epoch)) {
      const auto losses = strategy.run(batch, [&](ReplicaContext& ctx, const Batch& part) {
        const auto loss = ctx.scale_loss(cross_entropy(setting.model(ctx)->forward(part.input), part));
        loss.backward();
        setting.optimizer.step(ctx, {.clip_global_norm = 0.5});
        return loss.detach();
      });
      result.losses.push_back(strategy.reduce(Reduction::kSum, losses).item<double>());
    }
  }
  result.digest = digest_of(setting);
  return result;
}

FitResult by_trainer(Strategy& strategy, int64_t epochs, FitOptions options = {}) {
  const Setting setting(strategy);
  Trainer trainer(strategy, setting.model, setting.optimizer,
                  {.loss = cross_entropy, .metrics = {accuracy_spec(), largest_spec()}, .clip_global_norm = 0.5});
  FitResult result;
  options.epochs = epochs;
  options.callbacks.push_back(callbacks::each_step([&](Trainer&, const Logs& logs) {
    if (!logs.empty()) result.losses.push_back(logs.at("loss"));
  }));
  result.epochs = trainer.fit(setting.train, options).epochs();
  result.digest = digest_of(setting);
  return result;
}

}  // namespace

TEST(Fit, HasTheBitsOfTheLoopThatItStandsFor) {
  for (const WorkersCase& one : kCases) {
    const auto hand = run_workers(one, [](Strategy& strategy) { return by_hand(strategy, 2); });
    const auto fit = run_workers(one, [](Strategy& strategy) { return by_trainer(strategy, 2); });
    for (std::size_t w = 0; w < fit.size(); ++w) {
      EXPECT_EQ(fit[w].digest, hand[w].digest) << one;
      EXPECT_EQ(fit[w].losses, hand[w].losses) << one;
      EXPECT_EQ(fit[w], fit[0]) << one << ": worker " << w << " has other logs";
    }
  }
}

TEST(Fit, HasTheSameLogsOnAnyLanesAndWorkers) {
  const auto logs_on = [](const WorkersCase& one) {
    return run_workers(one, [](Strategy& strategy) { return by_trainer(strategy, 2); }).front();
  };
  const FitResult expected = logs_on({1, 4, 1});
  ASSERT_EQ(expected.epochs.size(), 2u);
  for (const WorkersCase& one : std::vector<WorkersCase>{{1, 4, 2}, {2, 4, 1}, {3, 4, 1}}) {
    EXPECT_EQ(logs_on(one), expected) << one;
  }
}

TEST(Fit, WeighsAnEpochsLossBySamples) {
  const FitResult fit = run_workers({1, 2, 1}, [](Strategy& strategy) { return by_trainer(strategy, 1); }).front();
  ASSERT_EQ(fit.losses.size(), 4u);
  const double expected = (4 * fit.losses[0] + 4 * fit.losses[1] + 4 * fit.losses[2] + fit.losses[3]) / 13;
  EXPECT_DOUBLE_EQ(fit.epochs.at(0).at("loss"), expected);
}

TEST(Fit, HasTheSameEpochsHoweverSeldomItLogs) {
  for (const WorkersCase& one : std::vector<WorkersCase>{{1, 3, 1}, {2, 3, 1}}) {
    const FitResult always = run_workers(one, [](Strategy& strategy) { return by_trainer(strategy, 2); }).front();
    const FitResult seldom =
        run_workers(one, [](Strategy& strategy) { return by_trainer(strategy, 2, {.log_every = 3}); }).front();
    EXPECT_EQ(seldom.epochs, always.epochs);
    EXPECT_EQ(seldom.digest, always.digest);
    EXPECT_EQ(seldom.losses, (std::vector<double>{always.losses[2], always.losses[5]}));
  }
}

TEST(Fit, AccumulatesLikeMicroBatchesInOneRun) {
  for (const WorkersCase& one : std::vector<WorkersCase>{{1, 1, 1}, {1, 3, 2}, {2, 2, 1}}) {
    const auto hand = run_workers(one, [](Strategy& strategy) {
      const Setting setting(strategy);
      for (int64_t epoch = 0; epoch < 2; ++epoch) {
        std::vector<PerReplica<Batch>> all;
        for (const auto& batch : setting.train.epoch(epoch)) all.push_back(batch);
        for (std::size_t first = 0; first < all.size(); first += 3) {
          const std::size_t end = std::min(first + 3, all.size());
          int64_t whole = 0;
          for (std::size_t i = first; i < end; ++i) whole += all[i].begin()->global_size;
          strategy.run([&](ReplicaContext& ctx) {
            for (std::size_t i = first; i < end; ++i) {
              const Batch& part = all[i][ctx.replica_id()];
              ctx.scale_loss(cross_entropy(setting.model(ctx)->forward(part.input), part), part.samples(), whole)
                  .backward();
            }
            setting.optimizer.step(ctx, {.clip_global_norm = 0.5});
          });
        }
      }
      return digest_of(setting);
    });
    const auto fit = run_workers(one, [](Strategy& strategy) {
      const Setting setting(strategy);
      Trainer trainer(strategy, setting.model, setting.optimizer,
                      {.loss = cross_entropy, .clip_global_norm = 0.5, .accumulate = 3});
      trainer.fit(setting.train, {.epochs = 2});
      EXPECT_EQ(strategy.step(), 4);  // of 4 batches: a step of three, and one of the last
      return digest_of(setting);
    });
    EXPECT_EQ(fit, hand) << one;
  }
}

TEST(Fit, TakesForwardOfAnyForm) {
  run_workers({1, 2, 1}, [](Strategy& strategy) {
    const Setting setting(strategy);
    Trainer generic(strategy, setting.model, setting.optimizer,
                    {.loss = cross_entropy,
                     .forward = [](auto& module, const Batch& batch) { return module->forward(batch.input); }});
    Trainer by_holder(strategy, setting.model, setting.optimizer,
                      {.loss = cross_entropy,
                       .forward = [](Net& module, const Batch& batch) { return module->forward(batch.input); }});
    Trainer by_module(strategy, setting.model, setting.optimizer,
                      {.loss = cross_entropy,
                       .forward = [](NetImpl& module, const Batch& batch) { return module.forward(batch.input); }});
    const TrainerOptions named{.loss = cross_entropy,
                               .forward = [](Net& module, const Batch& batch) { return module->forward(batch.input); }};
    Trainer by_name(strategy, setting.model, setting.optimizer, named);
    const Logs expected = by_name.evaluate(setting.validation);
    EXPECT_EQ(generic.evaluate(setting.validation), expected);
    EXPECT_EQ(by_holder.evaluate(setting.validation), expected);
    EXPECT_EQ(by_module.evaluate(setting.validation), expected);
    EXPECT_EQ(setting.trainer().evaluate(setting.validation).at("loss"), expected.at("loss"));
    return 0;
  });
}

TEST(Fit, TakesAModelThatIsASharedPointer) {
  run_workers({1, 2, 1}, [](Strategy& strategy) {
    const auto model = strategy.make_module([] { return std::make_shared<NetImpl>(); });
    const auto optimizer = strategy.make_optimizer(model, torch::optim::SGDOptions(0.1));
    const auto data = strategy.distribute(data::from_tensors(inputs(5), classes(5)), {.global_batch = 5});
    Trainer trainer(strategy, model, optimizer,
                    {.loss = cross_entropy, .forward = [](std::shared_ptr<NetImpl>& module, const Batch& batch) {
                       return module->forward(batch.input);
                     }});
    EXPECT_EQ(trainer.fit(data, {.epochs = 3}).epochs().size(), 3u);
    return 0;
  });
}

TEST(Fit, TakesAStepOfTheProgramsOwn) {
  for (const WorkersCase& one : std::vector<WorkersCase>{{1, 3, 1}, {2, 3, 1}}) {
    const auto hand = run_workers(one, [](Strategy& strategy) { return by_hand(strategy, 2); });
    const auto fit = run_workers(one, [](Strategy& strategy) {
      const Setting setting(strategy);
      Trainer trainer(strategy, {.step = [&](ReplicaContext& ctx, const Batch& part) {
                        const auto mean = cross_entropy(setting.model(ctx)->forward(part.input), part);
                        ctx.scale_loss(mean).backward();
                        setting.optimizer.step(ctx, {.clip_global_norm = 0.5});
                        return mean;
                      }});
      FitResult result;
      result.epochs =
          trainer
              .fit(setting.train, {.epochs = 2, .callbacks = {callbacks::each_step([&](Trainer&, const Logs& logs) {
                                                  result.losses.push_back(logs.at("loss"));
                                                })}})
              .epochs();
      result.digest = digest_of(setting);
      return result;
    });
    EXPECT_EQ(fit.front().digest, hand.front().digest);
    ASSERT_EQ(fit.front().losses.size(), hand.front().losses.size());
    for (std::size_t i = 0; i < hand.front().losses.size(); ++i) {
      EXPECT_NEAR(fit.front().losses[i], hand.front().losses[i], 1e-6);
    }
  }
}

TEST(Fit, EvaluatesExactlyAndPredictsInTheOrderOfTheSamples) {
  // On one device, whole.
  torch::Tensor expected;
  double loss = 0;
  double accuracy = 0;
  run_workers({1, 1, 1}, [&](Strategy& strategy) {
    const Setting setting(strategy);
    Net net = setting.model.export_module();
    net->eval();
    const torch::NoGradGuard no_grad;
    expected = net->forward(inputs(13));
    loss = torch::nn::functional::cross_entropy(expected, classes(13)).item<double>();
    accuracy = expected.argmax(1).eq(classes(13)).to(torch::kDouble).mean().item<double>();
    return 0;
  });
  for (const WorkersCase& one : kCases) {
    run_workers(one, [&](Strategy& strategy) {
      const Setting setting(strategy);
      Trainer trainer = setting.trainer();
      const Logs logs = trainer.evaluate(setting.train);
      EXPECT_NEAR(logs.at("loss"), loss, 1e-6) << one;
      EXPECT_DOUBLE_EQ(logs.at("accuracy"), accuracy) << one;
      EXPECT_NEAR(logs.at("largest"), expected.max().item<double>(), 1e-6) << one;
      const torch::Tensor outputs = trainer.predict(setting.train);  // which is shuffled
      EXPECT_EQ(outputs.sizes(), expected.sizes()) << one;
      EXPECT_TRUE(torch::allclose(outputs, expected, 1e-5, 1e-6)) << one;
      const auto padded = strategy.distribute(data::from_tensors(inputs(13), classes(13)),
                                              {.global_batch = 4, .remainder = Remainder::kPad});
      EXPECT_EQ(trainer.predict(padded).size(0), 13) << one;
      EXPECT_EQ(setting.train.cursor().position, 0) << one << ": an evaluation has moved the place in the data";
      EXPECT_EQ(trainer.evaluate(setting.train), logs) << one << ": the second evaluation is another one";
      for (const Finding& finding : strategy.findings()) EXPECT_NE(finding.code, "LS-BATCH-HELD") << one;
      return 0;
    });
  }
}

TEST(Fit, CountsTheBuiltInMetricsExactlyOnAnyWorkers) {
  const auto logs_on = [](const WorkersCase& one) {
    const auto all = run_workers(one, [](Strategy& strategy) {
      const Setting setting(strategy);
      const auto squares = [](const torch::Tensor& output, const Batch&) { return output.square().sum(1); };
      Trainer of_classes(
          strategy, setting.model, setting.optimizer,
          {.loss = cross_entropy,
           .metrics = {metrics::accuracy(), metrics::top_k(2), metrics::precision(), metrics::recall(), metrics::f1(),
                       metrics::perplexity(), metrics::confusion_matrix(3), metrics::mean("squares", squares)}});
      Trainer of_two(
          strategy, setting.model, setting.optimizer,
          {.loss =
               [](const torch::Tensor& output, const Batch& batch) {
                 return torch::nn::functional::mse_loss(output, batch.target.to(torch::kFloat));
               },
           .forward = [](auto& module, const Batch& batch) { return module->forward(batch.input).select(1, 0); },
           .metrics = {metrics::auc(), metrics::average_precision(), metrics::mean_squared_error(),
                       metrics::mean_absolute_error()}});
      const auto data = [&](const DistributeOptions& options) {
        return strategy.distribute(data::from_tensors(inputs(13), classes(13).clamp_max(1)), options);
      };
      Logs logs = of_classes.evaluate(setting.train);
      logs.merge(of_two.evaluate(data({.global_batch = 4})));
      // Parts that are padded, and parts that are empty, change nothing.
      for (const DistributeOptions& options :
           {DistributeOptions{.global_batch = 4, .remainder = Remainder::kPad}, DistributeOptions{.global_batch = 2}}) {
        for (const auto& [name, value] : of_two.evaluate(data(options))) {
          if (name == "loss") continue;  // of_classes has the one in `logs`
          EXPECT_NEAR(logs.at(name), value, 2e-6) << name;
        }
      }
      return logs;
    });
    for (const Logs& each : all) EXPECT_EQ(each, all.front()) << one;
    return all.front();
  };
  const Logs expected = logs_on({1, 1, 1});  // one device on the whole set
  EXPECT_EQ(expected.size(), 21u);
  for (const WorkersCase& one : kCases) {
    const Logs logs = logs_on(one);
    ASSERT_EQ(logs.size(), expected.size()) << one;
    // Outputs of a replica's part may differ from those of the whole set in the last bit of float32.
    for (const auto& [name, value] : expected) EXPECT_NEAR(logs.at(name), value, 2e-6) << name << " on " << one;
  }
}

TEST(Fit, BeginsAnewAfterOneThatValidatedWhatItTrainsOn) {
  const auto digest = [](bool validates, const WorkersCase& one) {
    return run_workers(one,
                       [&](Strategy& strategy) {
                         const Setting setting(strategy);
                         Trainer trainer = setting.trainer();
                         FitOptions options{.epochs = 1};
                         if (validates) options.validation = setting.train;
                         for (int fit = 0; fit < 3; ++fit) trainer.fit(setting.train, options);
                         options.callbacks = {callbacks::each_epoch(
                             [](Trainer&, const Logs&) { throw std::runtime_error("as asked"); })};
                         EXPECT_ANY_THROW(trainer.fit(setting.train, options));
                         options.callbacks.clear();
                         trainer.fit(setting.train, options);
                         return digest_of(setting);
                       })
        .front();
  };
  for (const WorkersCase& one : std::vector<WorkersCase>{{1, 2, 1}, {2, 2, 1}})
    EXPECT_EQ(digest(true, one), digest(false, one)) << one;
}

TEST(Fit, EvaluatesWhatItTrainsOn) {
  const auto digest = [](bool evaluates, const WorkersCase& one) {
    return run_workers(one,
                       [&](Strategy& strategy) {
                         const Setting setting(strategy);
                         Trainer trainer = setting.trainer();
                         const auto look = [&](int64_t samples) {
                           EXPECT_EQ(trainer.predict(setting.train).size(0), samples);
                         };
                         FitOptions looking{.epochs = 3};
                         if (evaluates) {
                           looking.callbacks = {callbacks::each_step([&](Trainer&, const Logs&) { look(13); }),
                                                callbacks::each_epoch([&](Trainer&, const Logs&) { look(13); })};
                         }
                         trainer.fit(setting.train, looking);
                         const data::Cursor end = setting.train.cursor();
                         if (evaluates) look(13);
                         trainer.fit(setting.train, looking);  // a second one has whole epochs again
                         return digest_of(setting) + std::to_string(end.epoch) + " " + std::to_string(end.position);
                       })
        .front();
  };
  for (const WorkersCase& one : std::vector<WorkersCase>{{1, 2, 1}, {2, 2, 1}}) {
    EXPECT_EQ(digest(true, one), digest(false, one)) << one;
  }
}

TEST(Fit, LeavesNoTraceOfItsLookAtTheValidation) {
  const auto digest = [](bool check) {
    return run_workers({1, 2, 1},
                       [&](Strategy& strategy) {
                         const Setting setting(strategy);
                         Trainer trainer = setting.trainer();
                         const History history = trainer.fit(
                             setting.train, {.epochs = 2, .validation = setting.validation, .check_validation = check});
                         int64_t evaluations = 0;
                         for (const StateItem& item : strategy.state_items()) {
                           if (item.name == "evaluations") evaluations = item.read().front().item<int64_t>();
                         }
                         return digest_of(setting) + history.to_json().dump() + std::to_string(evaluations);
                       })
        .front();
  };
  EXPECT_EQ(digest(true), digest(false));
}

}  // namespace lockstep::testing
