// How long a fit goes on, and what it refuses before its first step.
#include "tests/train/fits.h"

namespace lockstep::testing {

TEST(FitLength, SaysBeforeTheFirstStepWhatDoesNotFit) {
  run_workers({1, 1, 1}, [](Strategy& strategy) {
    const Setting setting(strategy);
    const auto& [own, model, optimizer, train, validation] = setting;
    expect_error<UsageError>([&] { Trainer(strategy, model, optimizer, {}); }, "LS-OPTION");
    expect_error<UsageError>([&] { Trainer(strategy, {}); }, "LS-OPTION");
    expect_error<UsageError>([&] { Trainer(strategy, model, optimizer, {.loss = cross_entropy, .accumulate = 0}); },
                             "LS-OPTION", {"accumulate is 0"});
    expect_error<UsageError>(
        [&] {
          Trainer(strategy, model, optimizer, {.loss = cross_entropy, .metrics = {accuracy_spec(), accuracy_spec()}});
        },
        "LS-METRIC", {"'accuracy'"});
    const TrainerOptions other{.loss = cross_entropy, .forward = [](torch::nn::Linear& module, const Batch& batch) {
                                 return module->forward(batch.input);
                               }};
    expect_error<UsageError>([&] { Trainer(strategy, model, optimizer, other); }, "LS-OPTION", {"Linear", "Net"});
    Trainer trainer(strategy, model, optimizer, {.loss = cross_entropy});
    expect_error<UsageError>([&] { trainer.fit(train, {.validate_every = 0}); }, "LS-OPTION", {"validate_every is 0"});
    expect_error<UsageError>([&] { trainer.fit(train, {.callbacks = {nullptr}}); }, "LS-OPTION");
    expect_error<UsageError>([&] { trainer.stop("no fit"); }, "LS-OPTION");
    expect_error<UsageError>([&] { trainer.fit(train, {.callbacks = {callbacks::early_stopping({})}}); }, "LS-MONITOR",
                             {"'val_loss'", "loss"});
    EXPECT_EQ(strategy.step(), 0);
    return 0;
  });
}

TEST(FitLength, CountsEpochsAndSteps) {
  run_workers({1, 2, 1}, [](Strategy& strategy) {
    const Setting setting(strategy);
    Trainer trainer = setting.trainer();
    EXPECT_EQ(trainer.fit(setting.train).numbers(), (std::vector<int64_t>{0}));
    EXPECT_EQ(trainer.fit(setting.train, {.epochs = 5, .initial_epoch = 3}).numbers(), (std::vector<int64_t>{3, 4}));
    EXPECT_TRUE(trainer.fit(setting.train, {.epochs = 0}).epochs().empty());
    const int64_t before = strategy.step();
    EXPECT_EQ(trainer.fit(setting.train, {.steps = 6}).numbers(), (std::vector<int64_t>{0, 1}));
    EXPECT_EQ(strategy.step() - before, 6);
    EXPECT_EQ(trainer.fit(setting.train, {.epochs = 1, .steps = 6}).numbers(), (std::vector<int64_t>{0}));
    EXPECT_EQ(trainer.status().step, 4);
    EXPECT_EQ(trainer.fit(setting.train, {.epochs = 9, .dry_run = true}).epochs().size(), 1u);
    EXPECT_EQ(trainer.status().step, 1);
    return 0;
  });
}

TEST(FitLength, EndsByItsTime) {
  for (const int64_t workers : {1, 2}) {
    run_workers({workers, 2, 1}, [](Strategy& strategy) {
      const Setting setting(strategy);
      Trainer trainer = setting.trainer();
      const History history = trainer.fit(setting.train, {.epochs = 1000000, .time = std::chrono::milliseconds(1)});
      EXPECT_EQ(history.epochs().size(), 1u);
      EXPECT_FALSE(trainer.stopped().empty());
      return 0;
    });
  }
}

TEST(FitLength, TakesAStreamWithoutEnd) {
  run_workers({1, 2, 1}, [](Strategy& strategy) {
    const Setting setting(strategy);
    const auto stream = strategy.distribute(data::from_dataset(data::from_tensors(inputs(13), classes(13))).repeat(),
                                            {.global_batch = 4});
    Trainer trainer = setting.trainer();
    int64_t validations = 0;
    struct Count final : Callback {
      explicit Count(int64_t& in) : count(in) {}
      void on_evaluate_end(Trainer&, const Logs&) override { ++count; }
      int64_t& count;
    };
    const History history = trainer.fit(stream, {.steps = 10,
                                                 .validation = setting.validation,
                                                 .callbacks = {std::make_shared<Count>(validations)},
                                                 .validate_every_steps = 4});
    EXPECT_EQ(history.epochs().size(), 1u);
    EXPECT_EQ(history.epochs().front().count("val_loss"), 1u);
    EXPECT_EQ(validations, 2);
    return 0;
  });
}

}  // namespace lockstep::testing
