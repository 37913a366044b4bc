// What tensor_board() writes of a fit: its runs, tags and steps, one writer, and curves that go on.
#include "lockstep/train/tensor_board.h"

#include "lockstep/train/callbacks.h"
#include "tests/support/scratch_folder.h"
#include "tests/train/event_reader.h"
#include "tests/train/fits.h"

namespace lockstep::testing {

namespace {

/// Two epochs of four steps, and a validation after each.
History fit(Strategy& strategy, std::vector<std::shared_ptr<Callback>> callbacks, bool dry_run = false) {
  const Setting setting(strategy);
  Trainer trainer = setting.trainer();
  return trainer.fit(
      setting.train,
      {.epochs = 2, .validation = setting.validation, .callbacks = std::move(callbacks), .dry_run = dry_run});
}

std::vector<ReadPoint> points(const History& history, const std::string& name) {
  std::vector<ReadPoint> all;
  for (const auto& [epoch, value] : history.of(name)) all.push_back({4 * (epoch + 1), static_cast<float>(value)});
  return all;
}

std::vector<int64_t> steps_of(const std::vector<ReadPoint>& points) {
  std::vector<int64_t> steps;
  for (const ReadPoint& point : points) steps.push_back(point.step);
  return steps;
}

}  // namespace

class TensorBoardCallback : public ScratchFolder {};

TEST_F(TensorBoardCallback, WritesTrainingAndValidationAsRunsWithEqualTags) {
  MirroredStrategy strategy({.devices = lanes(1), .replicas = 2});
  std::vector<ReadPoint> losses;
  const auto remember = callbacks::each_step([&](Trainer& trainer, const Logs& logs) {
    losses.push_back({trainer.status().step, static_cast<float>(logs.at("loss"))});
  });
  const History history = fit(strategy, {remember, callbacks::tensor_board({.directory = path("runs")})});
  const auto train = read_run(path("runs/train"));
  const auto validation = read_run(path("runs/validation"));
  ASSERT_EQ(train.size(), 1u);
  ASSERT_EQ(validation.size(), 1u);
  EXPECT_EQ(train[0].start, 0);
  EXPECT_EQ(validation[0].start, 0);
  EXPECT_EQ(train[0].scalars.at("loss"), losses);
  EXPECT_EQ(losses.size(), 8u);
  EXPECT_EQ(steps_of(train[0].scalars.at("learning_rate")), steps_of(losses));
  EXPECT_EQ(train[0].scalars.at("learning_rate")[0].value, 0.05f);
  EXPECT_EQ(steps_of(train[0].scalars.at("gradient_norm")), steps_of(losses));
  EXPECT_EQ(train[0].scalars.at("epoch/accuracy"), points(history, "accuracy"));
  EXPECT_EQ(train[0].scalars.count("epoch/val_loss"), 0u);
  EXPECT_EQ(train[0].scalars.at("time/input").size(), 2u);
  EXPECT_EQ(train[0].others.at("weights/model.first.weight"), 2);
  EXPECT_EQ(validation[0].scalars.at("loss"), points(history, "val_loss"));
  EXPECT_EQ(validation[0].scalars.at("accuracy"), points(history, "val_accuracy"));
}

TEST_F(TensorBoardCallback, GoesOnWithTheCurvesOfAFitThatIsResumed) {
  const auto fit_until = [&](int64_t stop) {
    MirroredStrategy strategy({.devices = lanes(1), .replicas = 2});
    const auto stop_there = callbacks::each_step([&](Trainer& trainer, const Logs&) {
      if (trainer.status().step == stop) throw std::runtime_error("as asked");
    });
    try {
      fit(strategy, {callbacks::tensor_board({.directory = path("runs")}),
                     callbacks::checkpoints({.directory = path("saved"), .every_steps = 3}), stop_there});
    } catch (const std::runtime_error&) {
    }
  };
  fit_until(5);  // the last checkpoint is that of step 3
  fit_until(-1);
  const auto train = read_run(path("runs/train"));
  ASSERT_EQ(train.size(), 2u);
  EXPECT_EQ(steps_of(train[0].scalars.at("loss")), (std::vector<int64_t>{1, 2, 3, 4, 5}));
  EXPECT_EQ(train[1].start, 4);
  EXPECT_EQ(steps_of(train[1].scalars.at("loss")), (std::vector<int64_t>{4, 5, 6, 7, 8}));
  // What both have is the same.
  EXPECT_EQ(train[0].scalars.at("loss")[3], train[1].scalars.at("loss")[0]);
}

TEST_F(TensorBoardCallback, OneWorkerWrites) {
  run_workers({2, 4, 1}, [&](Strategy& strategy) {
    fit(strategy, {callbacks::tensor_board({.directory = path("runs")})});
    return 0;
  });
  EXPECT_EQ(read_run(path("runs/train")).size(), 1u);
  EXPECT_EQ(read_run(path("runs/validation")).size(), 1u);
}

TEST_F(TensorBoardCallback, ShowsImagesWhereTheyAreAskedFor) {
  MirroredStrategy strategy({.devices = lanes(1), .replicas = 1});
  const auto images = [](Trainer&) -> std::map<std::string, torch::Tensor> {
    return {{"samples", torch::rand({2, 3, 4, 5})}};
  };
  fit(strategy, {callbacks::tensor_board({.directory = path("runs"), .images = images})});
  EXPECT_EQ(read_run(path("runs/train")).at(0).others.at("samples"), 2);
}

TEST_F(TensorBoardCallback, WritesNothingInADryRunAndWhereItIsToldTo) {
  MirroredStrategy strategy({.devices = lanes(1), .replicas = 1});
  fit(strategy, {callbacks::tensor_board({.directory = path("dry")})}, true);
  EXPECT_FALSE(std::filesystem::exists(path("dry")));
  fit(strategy, {callbacks::tensor_board({.directory = path("runs"), .every_steps = 3, .histograms_every = 0})});
  const auto train = read_run(path("runs/train"));
  EXPECT_EQ(steps_of(train.at(0).scalars.at("loss")), (std::vector<int64_t>{3, 6}));
  EXPECT_EQ(train[0].others.count("weights/model.first.weight"), 0u);
}

TEST_F(TensorBoardCallback, RefusesOptionsThatDoNotFit) {
  expect_error<UsageError>([] { callbacks::tensor_board({}); }, "LS-OPTION");
  expect_error<UsageError>([] { callbacks::tensor_board({.directory = "a", .every_steps = -1}); }, "LS-OPTION", {"-1"});
}

}  // namespace lockstep::testing
