// A Trainer over parameter servers: in step it has the bits of a Trainer over as many replicas.
#include <filesystem>
#include <optional>
#include <set>

#include "lockstep/train/html_report.h"
#include "lockstep/train/tensor_board.h"
#include "tests/support/errors.h"
#include "tests/train/fits.h"
#include "tests/train/folder.h"

namespace lockstep::testing {

namespace {

/// What a fit has come to.
struct Ended {
  std::string digest;
  std::vector<double> losses;  // of each step
  std::vector<Logs> epochs;
  Logs evaluation;
  torch::Tensor outputs;
};

struct Fitted {
  FitOptions options = {};
  int64_t accumulate = 1;
  int64_t stop_after = -1;
};

Ended fit_with(Strategy& strategy, const Fitted& how = {}) {
  const Setting setting(strategy);
  Trainer trainer(strategy, setting.model, setting.optimizer,
                  {.loss = cross_entropy,
                   .metrics = {accuracy_spec(), largest_spec()},
                   .clip_global_norm = 0.5,
                   .accumulate = how.accumulate});
  Ended ended;
  FitOptions options = how.options;
  if (!options.epochs) options.epochs = 2;
  options.validation = setting.validation;
  options.callbacks.push_back(callbacks::each_step([&](Trainer& of, const Logs& logs) {
    ended.losses.push_back(logs.at("loss"));
    if (of.status().step == how.stop_after) of.stop("enough");
  }));
  ended.epochs = trainer.fit(setting.train, options).epochs();
  ended.digest = digest_of(setting);
  ended.evaluation = trainer.evaluate(setting.validation);
  ended.outputs = trainer.predict(setting.validation);
  return ended;
}

void expect_equal(const Ended& ended, const Ended& expected, int64_t workers) {
  EXPECT_EQ(ended.digest, expected.digest) << workers << " workers";
  EXPECT_EQ(ended.losses, expected.losses) << workers << " workers";
  EXPECT_EQ(ended.epochs, expected.epochs) << workers << " workers";
  EXPECT_EQ(ended.evaluation, expected.evaluation) << workers << " workers";
  EXPECT_TRUE(torch::equal(ended.outputs, expected.outputs)) << workers << " workers";
}

}  // namespace

TEST(ScheduledFit, InStepHasTheBitsOfReplicas) {
  for (const int64_t workers : {1, 2, 3, 4}) {
    for (const int64_t accumulate : {1, 3}) {
      MirroredStrategy mirrored({.devices = {"cpu:0"}, .replicas = workers, .seed = 7});
      const Ended expected = fit_with(mirrored, {.accumulate = accumulate});
      ParameterServerStrategy strategy({.staleness = 0, .workers = workers, .seed = 7});
      expect_equal(fit_with(strategy, {.accumulate = accumulate}), expected, workers);
    }
  }
}

TEST(ScheduledFit, InStepStopsAndChangesRatesAsReplicasDo) {
  const auto how = [] {
    return Fitted{.options = {.epochs = 3,
                              .callbacks = {callbacks::reduce_on_plateau(
                                                {.monitor = "loss", .factor = 0.5, .patience = 1, .min_delta = 10}),
                                            callbacks::early_stopping({.patience = 5, .restore_best = true})},
                              .validate_every_steps = 2},
                  .stop_after = 10};
  };
  MirroredStrategy mirrored({.devices = {"cpu:0"}, .replicas = 2, .seed = 7});
  const Ended expected = fit_with(mirrored, how());
  EXPECT_EQ(expected.losses.size(), 10);
  ParameterServerStrategy strategy({.staleness = 0, .workers = 2, .seed = 7});
  expect_equal(fit_with(strategy, how()), expected, 2);
}

TEST(ScheduledFit, GoesOnFromACheckpointInStepAsIfItHadNeverStopped) {
  const auto run = [](const std::filesystem::path& directory, int64_t stop_after) {
    ParameterServerStrategy strategy({.staleness = 0, .workers = 2, .seed = 7});
    return fit_with(strategy, {.options = {.callbacks = {callbacks::checkpoints({.directory = directory})}},
                               .stop_after = stop_after});
  };
  const Folder whole;
  const Ended expected = run(whole.path(), -1);
  for (const int64_t stop_after : {1, 3, 4, 6}) {
    const Folder scratch;
    run(scratch.path(), stop_after);
    const Ended resumed = run(scratch.path(), -1);
    EXPECT_EQ(resumed.digest, expected.digest) << stop_after;
    EXPECT_EQ(resumed.epochs, expected.epochs) << stop_after;
    EXPECT_EQ(resumed.losses.size(), expected.losses.size() - static_cast<std::size_t>(stop_after));
  }
}

namespace {

/// Asks for all that can be seen of steps. It does not look at their logs.
class Looking final : public Callback {
 public:
  std::string name() const override { return "looking"; }
  bool uses_step_logs() const override { return false; }
  void on_fit_begin(Trainer& trainer, const Logs&) override { trainer.measure_parts(); }
  void on_epoch_begin(Trainer& trainer, const Logs&) override { trainer.keep_gradients(); }
  void on_step_end(Trainer& trainer, const Logs& logs) override {
    EXPECT_TRUE(logs.empty());
    EXPECT_TRUE(trainer.gradients().empty());
    for (const PerReplica<Batch>& batch : trainer.batches()) {
      for (const Batch& part : batch) {
        for (int64_t i = 0; i < part.size(); ++i) ids.insert(part.ids[i].item<int64_t>());
      }
    }
    trainer.keep_gradients();
  }
  std::multiset<int64_t> ids;  // of all steps
};

}  // namespace

TEST(ScheduledFit, ShowsTheBatchesOfItsStepsAndNoGradients) {
  for (const std::optional<int64_t> staleness : {std::optional<int64_t>(0), std::optional<int64_t>()}) {
    ParameterServerStrategy strategy({.staleness = staleness, .workers = 2, .seed = 7});
    const Setting setting(strategy, 160);
    Trainer trainer = setting.trainer();
    const auto looking = std::make_shared<Looking>();
    const History history = trainer.fit(setting.train, {.callbacks = {looking}});
    EXPECT_EQ(looking->ids.size(), 160);
    EXPECT_EQ(std::set<int64_t>(looking->ids.begin(), looking->ids.end()).size(), 160);
    EXPECT_EQ(history.epochs().front().count("accuracy"), 1);
    EXPECT_EQ(trainer.status().parts.seconds, 0);
    EXPECT_EQ(trainer.status().step, 40);
  }
}

TEST(ScheduledFit, IsReportedWithoutGradients) {
  const Folder folder;
  ParameterServerStrategy strategy({.workers = 2, .seed = 7});
  const Setting setting(strategy, 40);
  setting.trainer().fit(
      setting.train,
      {.epochs = 2,
       .callbacks = {callbacks::html_report({.file = folder.path() / "report.html"}),
                     callbacks::tensor_board({.directory = folder.path() / "runs", .gradients_every = 1})}});
  EXPECT_TRUE(std::filesystem::exists(folder.path() / "report.html"));
}

TEST(ScheduledFit, NamesTheFunctionThatAnErrorComesFrom) {
  ParameterServerStrategy strategy({.workers = 2, .seed = 7});
  const Setting setting(strategy);
  const auto text_with = [&](auto loss) -> std::string {
    Trainer trainer(strategy, setting.model, setting.optimizer, {.loss = loss});
    try {
      trainer.fit(setting.train);
    } catch (const ReplicaError& error) {
      return error.what();
    }
    return "no error";
  };
  const std::string shape = text_with([](const torch::Tensor& output, const Batch&) { return output; });
  EXPECT_NE(shape.find("TrainerOptions::loss returned"), std::string::npos) << shape;
  const std::string thrown =
      text_with([](const torch::Tensor& output, const Batch&) { return (output + torch::ones({99})).sum(); });
  EXPECT_NE(thrown.find("in TrainerOptions::loss"), std::string::npos) << thrown;
}

TEST(ScheduledFit, RefusesAStepOfReplicasAndAFitInsideCoordinate) {
  ParameterServerStrategy strategy({.workers = 2, .seed = 7});
  const Setting setting(strategy);
  expect_error<UsageError>(
      [&] {
        const Trainer trainer(strategy, setting.model, setting.optimizer,
                              {.step = [](ReplicaContext&, const Batch&) { return torch::Tensor(); }});
      },
      "LS-OPTION", {".step", "ParameterServerStrategy"});
  Trainer trainer = setting.trainer();
  strategy.coordinate([&](Coordinator&) {
    expect_error<UsageError>([&] { trainer.fit(setting.train); }, "LS-NESTED-CALL", {"coordinate"});
  });
}

}  // namespace lockstep::testing
