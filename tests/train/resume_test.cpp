// A fit that is stopped goes on at the very next step, with the bits, the logs and the callbacks' state of the fit that
// never stopped.
#include <atomic>
#include <set>

#include "tests/support/scratch_folder.h"
#include "tests/train/fits.h"

namespace lockstep::testing {

namespace {

namespace fs = std::filesystem;
using nlohmann::json;

/// Counts hooks, and says so in its state.
class Counter final : public Callback {
 public:
  std::string name() const override { return "counter"; }
  void on_epoch_begin(Trainer&, const Logs&) override { ++counts["epoch begins"]; }
  void on_step_end(Trainer&, const Logs&) override { ++counts["steps"]; }
  void on_evaluate_end(Trainer&, const Logs&) override { ++counts["validations"]; }
  void on_epoch_end(Trainer&, const Logs&) override { ++counts["epoch ends"]; }
  json state() const override { return counts; }
  void load(const json& state) override { counts = state.get<std::map<std::string, int>>(); }

  std::map<std::string, int> counts;
};

/// What a fit has come to.
struct Ended {
  std::string digest;
  std::string history;
  std::map<std::string, int> counts;
  bool operator==(const Ended&) const = default;
};

std::ostream& operator<<(std::ostream& out, const Ended& ended) {
  out << ended.digest.substr(0, 8) << " " << ended.history;
  for (const auto& [name, count] : ended.counts) out << ", " << count << " " << name;
  return out;
}

struct Stop {
  int64_t after = -1;   // which step of the run; -1: it is not stopped
  bool throws = false;  // by an exception, and not by stop()
};

/// Two epochs of four steps. What early_stopping has kept is given back at the end.
Ended fit(Strategy& strategy, const fs::path& directory, const Stop& how, FitOptions options = {}) {
  const Setting setting(strategy);
  Trainer trainer = setting.trainer();
  const auto counter = std::make_shared<Counter>();
  options.epochs = 2;
  if (!options.validation) options.validation = setting.validation;
  options.callbacks = {// It stands first, and still has what those behind it have done.
                       callbacks::checkpoints({.directory = directory, .every_steps = how.throws ? 1 : 100}),
                       callbacks::early_stopping({.patience = 5, .restore_best = true}),
                       callbacks::reduce_on_plateau({.monitor = "loss", .factor = 0.5, .patience = 1, .min_delta = 10}),
                       callbacks::each_step(
                           [how](Trainer& own, const Logs&) {
                             if (own.strategy().step() != how.after) return;
                             if (how.throws) throw std::runtime_error("as asked");
                             own.stop("as asked");
                           },
                           "stop"),
                       counter};
  std::string history;
  try {
    history = trainer.fit(setting.train, options).to_json().dump();
  } catch (const std::runtime_error& error) {
    EXPECT_TRUE(how.throws) << error.what();
  }
  return {digest_of(setting), history, counter->counts};
}

Ended run(const WorkersCase& one, const fs::path& directory, const Stop& how, const FitOptions& options = {}) {
  const auto all = run_workers(one, [&](Strategy& strategy) { return fit(strategy, directory, how, options); });
  for (const Ended& each : all) EXPECT_EQ(each, all.front()) << "on another worker";
  return all.front();
}

}  // namespace

class Resume : public ScratchFolder {};

TEST_F(Resume, GoesOnAfterEachStepWithTheBitsAndLogs) {
  const Ended expected = run({1, 4, 1}, path("whole"), {});
  EXPECT_EQ(expected.counts.at("steps"), 8);
  EXPECT_EQ(expected.counts.at("epoch ends"), 2);
  const std::vector<WorkersCase> cases{{1, 4, 2}, {2, 4, 1}, {3, 4, 1}, {1, 4, 1}};
  for (int64_t step = 1; step <= 8; ++step) {
    const WorkersCase& before = cases[static_cast<std::size_t>(step) % cases.size()];
    const WorkersCase& after = cases[static_cast<std::size_t>(step + 1) % cases.size()];
    const fs::path directory = path("stopped-" + std::to_string(step));
    run(before, directory, {.after = step});
    EXPECT_TRUE(fs::exists(directory / ("step-000000000" + std::to_string(step)))) << step;
    EXPECT_EQ(run(after, directory, {}), expected) << "stopped after step " << step << ", " << before << ", " << after;
    // The end itself is resumed too: nothing is left to do.
    EXPECT_EQ(run(before, directory, {}), expected) << "resumed at its end, stopped after step " << step;
  }
}

TEST_F(Resume, GoesOnFromTheLastSaveAfterAnException) {
  const Ended expected = run({1, 3, 1}, path("whole"), {});
  for (int64_t step = 2; step <= 8; ++step) {
    const fs::path directory = path("thrown-" + std::to_string(step));
    run({1, 3, 1}, directory, {.after = step, .throws = true});
    EXPECT_FALSE(fs::exists(directory / ("step-000000000" + std::to_string(step)))) << step;
    EXPECT_EQ(run({2, 3, 1}, directory, {}), expected) << "thrown in step " << step;
  }
}

TEST_F(Resume, HasTheLogsThatWereNotBroughtTogetherYet) {
  const FitOptions seldom{.validate_every_steps = 3, .log_every = 3};
  const Ended expected = run({1, 2, 1}, path("whole"), {}, seldom);
  for (int64_t step = 1; step < 8; ++step) {
    const fs::path directory = path("stopped-" + std::to_string(step));
    run({1, 2, 1}, directory, {.after = step}, seldom);
    EXPECT_EQ(run({2, 2, 1}, directory, {}, seldom), expected) << "stopped after step " << step;
  }
}

TEST_F(Resume, GoesOnAfterItsNumberOfStepsWasReached) {
  const Ended expected = run({1, 2, 1}, path("whole"), {});
  const Ended six = run({1, 2, 1}, path("limited"), {}, {.steps = 6});
  EXPECT_EQ(run({1, 2, 1}, path("limited"), {}, {.steps = 6}), six) << "the same limit again";
  EXPECT_EQ(run({1, 2, 1}, path("limited"), {}), expected);
}

TEST_F(Resume, StaysEndedWhereACallbackHasEndedItAtAnEpochsEnd) {
  const auto fit = [&](int64_t epochs) {
    return run_workers({1, 1, 1},
                       [&](Strategy& strategy) {
                         const Setting setting(strategy);
                         Trainer trainer = setting.trainer();
                         trainer.fit(setting.train,
                                     {.epochs = epochs,
                                      .callbacks = {callbacks::early_stopping({.monitor = "loss", .goal = 100.0}),
                                                    callbacks::checkpoints({.directory = path("ended")})}});
                         EXPECT_NE(trainer.stopped().find("goal"), std::string::npos);
                         return strategy.step();
                       })
        .front();
  };
  EXPECT_EQ(fit(5), 4);
  EXPECT_EQ(fit(9), 4);
}

TEST_F(Resume, TakesTheCheckpointThatIsNamed) {
  run_workers({1, 2, 1}, [&](Strategy& strategy) {
    const Setting setting(strategy);
    Trainer trainer = setting.trainer();
    std::map<std::string, std::string> digests;  // after which epoch
    const auto fit = [&](int64_t epochs, std::variant<std::string, int64_t> from) {
      std::vector<int64_t> steps;
      trainer.fit(
          setting.train,
          {.epochs = epochs,
           .validation = setting.validation,
           .callbacks = {
               callbacks::checkpoints({.directory = path("run"), .every_steps = 4, .keep = 9, .resume_from = from}),
               callbacks::best_checkpoint({.directory = path("run"), .monitor = "val_loss"}),
               callbacks::each_step([&](Trainer& own, const Logs&) { steps.push_back(own.status().step); })}});
      return steps;
    };
    EXPECT_EQ(fit(3, "last").size(), 12u);
    EXPECT_EQ(fit(3, "last").size(), 0u);
    EXPECT_EQ(fit(3, 4).front(), 5);
    EXPECT_EQ(fit(3, "8").front(), 9);
    const auto& values = trainer.history().of("val_loss");
    int64_t best = 0;
    for (const auto& [epoch, value] : values) {
      if (value < values[static_cast<std::size_t>(best)].second) best = epoch;
    }
    EXPECT_EQ(fit(4, "best").front(), 4 * (best + 1) + 1);
    expect_error<DataError>([&] { fit(3, 7); }, "LS-CHECKPOINT-NONE");
    expect_error<UsageError>([&] { fit(3, "newest"); }, "LS-OPTION", {"newest"});
    return 0;
  });
}

TEST_F(Resume, SaysWhichCallbackACheckpointLacksOrHas) {
  for (const bool saves_best : {true, false}) {
    const auto directory = path(saves_best ? "with" : "without");
    const auto fit = [&](bool keeps_best) {
      run_workers({1, 1, 1}, [&](Strategy& strategy) {
        const Setting setting(strategy);
        Trainer trainer = setting.trainer();
        FitOptions options{.epochs = 2,
                           .validation = setting.validation,
                           .callbacks = {callbacks::checkpoints({.directory = directory})}};
        if (keeps_best) options.callbacks.push_back(callbacks::early_stopping({.restore_best = true}));
        if (keeps_best == saves_best) {
          EXPECT_EQ(trainer.fit(setting.train, options).epochs().size(), 2u);
          return 0;
        }
        const auto error = caught_from<UsageError>([&] { trainer.fit(setting.train, options); });
        if (!error) return 0;
        EXPECT_EQ(error->code(), "LS-CHECKPOINT-MISFIT");
        EXPECT_TRUE(has_value(error->what(), "early_stopping/best/model.first.weight")) << error->what();
        for (const char* const word : {"early_stopping", "restore_best", ".directory"}) {
          EXPECT_TRUE(has_value(error->remedy(), word)) << error->remedy();
        }
        EXPECT_FALSE(has_value(error->what(), "RestoreOptions")) << error->what();
        return 0;
      });
    };
    fit(saves_best);
    fit(!saves_best);
    fit(saves_best);
  }
}

TEST_F(Resume, SaysThatACheckpointIsOfALoopWithoutATrainer) {
  run_workers({2, 2, 1}, [&](Strategy& strategy) {
    const Setting setting(strategy);
    Checkpoint checkpoint(strategy);
    checkpoint.track(
        "a loop's own",
        [] {
          return json{{"epoch", 0}};
        },
        [](const json&) {});
    CheckpointManager(checkpoint, {.directory = path("loop"), .async = false}).save();
    const auto error = caught_from<UsageError>([&] {
      setting.trainer().fit(setting.train, {.callbacks = {callbacks::checkpoints({.directory = path("loop")})}});
    });
    if (!error) return 0;
    EXPECT_EQ(error->code(), "LS-CHECKPOINT-MISFIT") << error->what();
    for (const char* const word : {"without a Trainer", ".directory", ".allow_missing"}) {
      EXPECT_TRUE(has_value(error->remedy(), word)) << error->what();
    }
    EXPECT_EQ(strategy.step(), 0);
    // What the remedy says.
    Checkpoint(strategy).restore(path("loop") + "/step-0000000000", {.allow_missing = true, .allow_unexpected = true});
    setting.trainer().fit(setting.train, {.callbacks = {callbacks::checkpoints({.directory = path("new")})}});
    EXPECT_EQ(strategy.step(), 4);
    return 0;
  });
}

TEST_F(Resume, SavesWhereAWorkerIsAskedToStop) {
  run_workers({1, 1, 1}, [&](Strategy& strategy) {
    const Setting setting(strategy);
    Trainer trainer = setting.trainer();
    const auto fit = [&](bool asks) {
      return trainer.fit(setting.train, {.epochs = 2,
                                         .callbacks = {callbacks::checkpoints({.directory = path("asked")}),
                                                       callbacks::each_step([&](Trainer& own, const Logs&) {
                                                         if (asks && own.status().step == 2) request_stop();
                                                       })}});
    };
    fit(true);
    EXPECT_EQ(trainer.stopped(), "a worker was asked to stop");
    EXPECT_EQ(trainer.status().step, 3);  // a step says it when it has ended
    internal::forget_stop_request();
    strategy.evaluate([](ReplicaContext&) {});  // which is how the strategy learns of it
    EXPECT_EQ(fit(false).epochs().size(), 2u);
    EXPECT_EQ(strategy.step(), 8);
    return 0;
  });
}

}  // namespace lockstep::testing
