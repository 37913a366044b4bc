// In which order the hooks of callbacks come, with which logs, and what follows where one of them throws, stops the fit
// or asks for what the other workers do not.
#include <fstream>

#include "tests/train/fits.h"

namespace lockstep::testing {

namespace {

using nlohmann::json;
using Calls = std::vector<std::string>;

std::string names_of(const Logs& logs) {
  std::string text;
  for (const auto& [name, value] : logs) text += (text.empty() ? ": " : " ") + name;
  return text;
}

/// Notes each call with the names in its logs, and does what it is told at some of them.
class Recorder final : public Callback {
 public:
  using Do = std::map<std::string, std::function<void(Trainer&)>>;
  explicit Recorder(Calls& calls, std::string prefix = "", Do what = {})
      : calls_(calls), prefix_(std::move(prefix)), do_(std::move(what)) {}

  std::string name() const override { return "recorder" + prefix_; }
  void on_fit_begin(Trainer& trainer, const Logs& logs) override { note(trainer, "on_fit_begin", logs); }
  void on_epoch_begin(Trainer& trainer, const Logs& logs) override {
    note(trainer, "on_epoch_begin " + std::to_string(trainer.status().epoch), logs);
  }
  void on_step_end(Trainer& trainer, const Logs& logs) override {
    note(trainer, "on_step_end " + std::to_string(trainer.status().epoch_step - 1), logs);
  }
  void on_evaluate_end(Trainer& trainer, const Logs& logs) override { note(trainer, "on_evaluate_end", logs); }
  void on_epoch_end(Trainer& trainer, const Logs& logs) override {
    note(trainer, "on_epoch_end " + std::to_string(trainer.status().epoch), logs);
  }
  void on_fit_end(Trainer& trainer, const Logs& logs) override { note(trainer, "on_fit_end", logs); }
  void on_fit_fail(const std::exception& error) override { calls_.push_back(prefix_ + "on_fit_fail: " + error.what()); }

 private:
  void note(Trainer& trainer, const std::string& call, const Logs& logs) {
    calls_.push_back(prefix_ + call + names_of(logs));
    if (const auto found = do_.find(call); found != do_.end()) found->second(trainer);
  }
  Calls& calls_;
  const std::string prefix_;
  const Do do_;
};

/// What Keras' recorder saw, with our names. Its calls before batches and in validations have none here; and its
/// on_epoch_end comes after the validation too.
Calls from_keras(const std::string& title) {
  static const json all = json::parse(std::ifstream(LOCKSTEP_TRAIN_TESTS "/judged/hooks.json"));
  static const std::vector<std::pair<std::string, std::string>> kNames{{"on_train_batch_end", "on_step_end"},
                                                                       {"on_train_begin", "on_fit_begin"},
                                                                       {"on_train_end", "on_fit_end"},
                                                                       {"on_test_end", "on_evaluate_end"}};
  Calls calls;
  for (std::string call : all.at(title).at("calls").get<Calls>()) {
    if (call.find("batch_begin") != std::string::npos || call.find("on_test_b") != std::string::npos) continue;
    for (const auto& [theirs, ours] : kNames) {
      if (const std::size_t at = call.find(theirs); at != std::string::npos) call.replace(at, theirs.size(), ours);
    }
    calls.push_back(call);
  }
  return calls;
}

/// Fits as hooks.json says: batches of 8, with a validation of 16 samples.
Calls calls_of(int64_t samples, FitOptions options, Recorder::Do what = {}, bool two = false) {
  Calls calls;
  run_workers({1, 2, 1}, [&](Strategy& strategy) {
    const Setting setting(strategy, samples, 8);
    Trainer trainer(strategy, setting.model, setting.optimizer, {.loss = cross_entropy, .metrics = {accuracy_spec()}});
    options.validation = strategy.distribute(data::from_tensors(inputs(16), classes(16)), {.global_batch = 8});
    std::vector<std::shared_ptr<Callback>> all{std::make_shared<Recorder>(calls, two ? "A." : "", what)};
    if (two) all.push_back(std::make_shared<Recorder>(calls, "B."));
    all.insert(all.end(), options.callbacks.begin(), options.callbacks.end());
    options.callbacks = all;
    try {
      trainer.fit(setting.train, options);
    } catch (const std::runtime_error& error) {
      EXPECT_STREQ(error.what(), "as asked");
    }
    return 0;
  });
  return calls;
}

void stop(Trainer& trainer) { trainer.stop("as asked"); }
void fail(Trainer&) { throw std::runtime_error("as asked"); }

}  // namespace

TEST(Hooks, ComeInKerasOrderWithKerasLogs) {
  EXPECT_EQ(calls_of(24, {.epochs = 2}), from_keras("two epochs of three steps, validation of two steps"));
  EXPECT_EQ(calls_of(8, {.epochs = 1}, {}, true), from_keras("two callbacks: the list's order in every hook"));
  EXPECT_EQ(calls_of(24, {.epochs = 2}, {{"on_step_end 1", stop}}), from_keras("stop_training in step 1 of epoch 0"));
  EXPECT_EQ(calls_of(24, {.epochs = 2}, {{"on_epoch_begin 0", stop}}),
            from_keras("stop_training at the begin of epoch 0"));
  EXPECT_EQ(calls_of(8, {.epochs = 3, .validate_every = 2}), from_keras("validation_freq = 2, epochs = 3"));
  EXPECT_EQ(calls_of(8, {.epochs = 5, .initial_epoch = 3}), from_keras("initial_epoch = 3, epochs = 5"));
  EXPECT_EQ(calls_of(8, {.epochs = 5, .initial_epoch = 5}), from_keras("initial_epoch = 5, epochs = 5: nothing to do"));
  // The recorder stands before it, and does not see what it adds.
  EXPECT_EQ(calls_of(8, {.epochs = 1, .callbacks = {callbacks::reduce_on_plateau()}}),
            from_keras("ReduceLROnPlateau puts learning_rate into the logs of callbacks after it"));
}

TEST(Hooks, GiveALateLogToCallbacksBehindAndToTheHistory) {
  run_workers({2, 2, 1}, [](Strategy& strategy) {
    const Setting setting(strategy);
    Trainer trainer = setting.trainer();
    Calls calls;
    const History history =
        trainer.fit(setting.train, {.validation = setting.validation,
                                    .callbacks = {callbacks::reduce_on_plateau(), std::make_shared<Recorder>(calls)}});
    EXPECT_NE(calls.at(calls.size() - 2).find("learning_rate"), std::string::npos);
    EXPECT_EQ(history.of("learning_rate"), (std::vector<std::pair<int64_t, double>>{{0, 0.05}}));
    return 0;
  });
}

TEST(Hooks, TellAllOthersWhereOneThrows) {
  Calls calls = calls_of(24, {.epochs = 2}, {{"on_step_end 1", fail}}, true);
  // The one behind is not called any more, and is told; the thrower is not.
  EXPECT_EQ(calls.back(), "B.on_fit_fail: as asked");
  calls.pop_back();
  EXPECT_EQ(calls.back(), "A.on_step_end 1: accuracy loss");
  Calls alone = calls_of(24, {.epochs = 2}, {{"on_step_end 1", fail}});
  EXPECT_EQ(alone, from_keras("a callback throws in step 1 of epoch 0"));
}

TEST(Hooks, TellAllWhereAStepThrows) {
  run_workers({1, 2, 1}, [](Strategy& strategy) {
    const Setting setting(strategy);
    Trainer trainer(strategy, setting.model, setting.optimizer,
                    {.loss = [](const torch::Tensor& output, const Batch& batch) {
                      if (torch::GradMode::is_enabled() && batch.global_size == 1) throw std::runtime_error("a step");
                      return cross_entropy(output, batch);
                    }});
    Calls calls;
    EXPECT_THROW(trainer.fit(setting.train, {.callbacks = {std::make_shared<Recorder>(calls, "A."),
                                                           std::make_shared<Recorder>(calls, "B.")}}),
                 ReplicaError);
    EXPECT_EQ(calls.at(calls.size() - 2).substr(0, 13), "A.on_fit_fail");
    EXPECT_EQ(calls.at(calls.size() - 1).substr(0, 13), "B.on_fit_fail");
    EXPECT_EQ(strategy.step(), 3);
    Calls again;
    trainer.fit(setting.validation, {.callbacks = {std::make_shared<Recorder>(again)}, .dry_run = true});
    EXPECT_EQ(again.back().substr(0, 10), "on_fit_end") << "the trainer does not fit again after a failure";
    return 0;
  });
}

TEST(Hooks, EndTheFitOnAllWorkersWhereOneThrows) {
  // Hooks, and how many steps are done then.
  const std::vector<std::pair<const char*, int64_t>> hooks{{"on_fit_begin", 0},   {"on_epoch_begin 1", 4},
                                                           {"on_step_end 2", 3},  {"on_evaluate_end", 4},
                                                           {"on_epoch_end 0", 4}, {"on_fit_end", 8}};
  for (const auto& [hook, steps] : hooks) {
    const std::string expected = run_workers({1, 3, 1}, [steps = steps](Strategy& strategy) {
                                   const Setting setting(strategy);
                                   setting.trainer().fit(setting.train, {.steps = steps});
                                   return digest_of(setting);
                                 }).front();
    for (const bool calls_all : {true, false}) {
      const auto ends = run_workers({3, 3, 1}, [&, hook = hook](Strategy& strategy) -> std::string {
        const Setting setting(strategy);
        Trainer trainer = setting.trainer();
        Calls calls;
        const bool throws = strategy.worker_index() == 1;
        // Behind the thrower stands one that makes a call of all workers at each step, or none.
        const FitOptions options{
            .epochs = 2,
            .validation = setting.validation,
            .callbacks = {std::make_shared<Recorder>(calls, "", throws ? Recorder::Do{{hook, fail}} : Recorder::Do{}),
                          callbacks::each_step([&](Trainer&, const Logs&) {
                            if (calls_all) setting.model.state();
                          })}};
        std::string end = "no error";
        try {
          trainer.fit(setting.train, options);
        } catch (const PeerError& error) {
          EXPECT_EQ(calls.back().substr(0, 11), "on_fit_fail");
          end = error.what();
        } catch (const ReplicaError& error) {
          ADD_FAILURE() << hook << ": as an error of a step: " << error.what();
        } catch (const std::runtime_error& error) {
          end = error.what();
        }
        EXPECT_EQ(digest_of(setting), expected) << hook << ": not at the state of the last whole step";
        return end;
      });
      EXPECT_EQ(ends[1], "as asked") << hook;
      for (const std::size_t other : {0u, 2u}) {
        EXPECT_TRUE(has_value(ends[other], "the callback 'recorder' threw")) << hook << ": " << ends[other];
        EXPECT_TRUE(has_value(ends[other], "worker 1")) << hook << ": " << ends[other];
      }
    }
  }
}

TEST(Hooks, RefuseWhatWorkersDoNotAskAlike) {
  run_workers({2, 2, 1}, [](Strategy& strategy) {
    const Setting setting(strategy);
    Trainer trainer = setting.trainer();
    expect_error<UsageError>(
        [&] {
          trainer.fit(setting.train, {.callbacks = {callbacks::each_step(
                                          [](Trainer& own, const Logs&) {
                                            if (!own.strategy().is_chief()) own.stop("enough of it");
                                          },
                                          "mine")}});
        },
        "LS-CALLBACK-DIFFERS", {"'mine' asked to stop (enough of it)", "worker 1", "worker 0", "on_step_end"});
    expect_error<UsageError>(
        [&] {
          trainer.fit(setting.train, {.callbacks = {callbacks::each_step([](Trainer& own, const Logs&) {
                                        own.optimizer().set_learning_rate(own.strategy().is_chief() ? 0.1 : 0.2);
                                      })}});
        },
        "LS-CALLBACK-DIFFERS", {"rates 0.1", "rates 0.2"});
    setting.optimizer.set_learning_rate(0.1);
    expect_error<UsageError>(
        [&] {
          trainer.fit(setting.train, {.callbacks = {callbacks::checkpoints(
                                          {.directory = "/nowhere", .every_steps = strategy.is_chief() ? 2 : 3})}});
        },
        "LS-WORKER-ORDER", {".every_steps = 2", ".every_steps = 3"});
    // One asks alone, and the other is in the next step.
    expect_error<UsageError>(
        [&] {
          trainer.fit(setting.train, {.callbacks = {callbacks::each_step(
                                          [](Trainer& own, const Logs&) {
                                            if (!own.strategy().is_chief()) own.stop("alone");
                                          },
                                          "mine")},
                                      .log_every = 100});
        },
        "LS-CALLBACK-DIFFERS", {"'mine' asked to stop (alone)", "worker 1", "worker 0"});
    EXPECT_EQ(trainer.fit(setting.train).epochs().size(), 1u) << "no fit after the errors";
    return 0;
  });
}

TEST(Hooks, AreThoseOfAllWorkers) {
  run_workers({2, 2, 1}, [](Strategy& strategy) {
    const Setting setting(strategy);
    Trainer trainer = setting.trainer();
    Calls calls;
    FitOptions options;
    if (strategy.is_chief()) options.callbacks.push_back(std::make_shared<Recorder>(calls, "of the chief"));
    expect_error<UsageError>([&] { trainer.fit(setting.train, options); }, "LS-WORKER-ORDER",
                             {"'recorderof the chief' on worker 0"});
    expect_error<UsageError>([&] { trainer.fit(setting.train, {.epochs = strategy.worker_index() + 1}); },
                             "LS-WORKER-ORDER", {".epochs = 1", ".epochs = 2"});
    EXPECT_EQ(strategy.step(), 0);
    return 0;
  });
}

TEST(Hooks, StopAfterTheEpochThatTheyAskIn) {
  run_workers({2, 2, 1}, [](Strategy& strategy) {
    const Setting setting(strategy);
    Trainer trainer = setting.trainer();
    const History history =
        trainer.fit(setting.train, {.epochs = 5, .callbacks = {callbacks::each_epoch([](Trainer& own, const Logs&) {
                                                   if (own.status().epoch == 1) own.stop("at the second");
                                                 })}});
    EXPECT_EQ(history.numbers(), (std::vector<int64_t>{0, 1}));
    EXPECT_EQ(trainer.stopped(), "at the second");
    return 0;
  });
}

TEST(Hooks, LeaveOutWhoWritesFilesInADryRun) {
  run_workers({1, 1, 1}, [](Strategy& strategy) {
    const Setting setting(strategy);
    Trainer trainer = setting.trainer();
    trainer.fit(setting.train, {.validation = setting.validation,
                                .callbacks = {callbacks::csv_log({.file = "/nowhere/to/be/written"}),
                                              callbacks::checkpoints({.directory = "/nowhere/to/be/saved"})},
                                .dry_run = true});
    EXPECT_EQ(strategy.step(), 1);
    return 0;
  });
}

TEST(History, IsJsonAndBack) {
  History history;
  history.add(3, {{"loss", 0.1}});
  history.add(4, {{"loss", std::nan("")}, {"val_loss", -std::numeric_limits<double>::infinity()}});
  const json written = history.to_json();
  EXPECT_EQ(written.dump(), R"({"epoch":[3,4],"history":{"loss":[0.1,"NaN"],"val_loss":[null,"-Infinity"]}})");
  const History read = History::from_json(json::parse(written.dump()));
  EXPECT_EQ(read.to_json(), written);
  EXPECT_EQ(read.numbers(), history.numbers());
  EXPECT_EQ(read.of("val_loss").size(), 1u);
  EXPECT_EQ(read.epochs()[0], history.epochs()[0]);
  EXPECT_TRUE(read.of("accuracy").empty());
  expect_error<UsageError>([] { History::from_json(json::parse(R"({"epoch":[1],"history":{"loss":[]}})")); },
                           "LS-STATE-MISFIT");
  expect_error<UsageError>([] { History::from_json(json(3)); }, "LS-STATE-MISFIT");
}

}  // namespace lockstep::testing
