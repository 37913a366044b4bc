// What the callbacks of the library decide, compared with Keras' numbers, and what they write.
#include <cmath>
#include <fstream>
#include <sstream>

#include "lockstep/train/callbacks/progress_text.h"
#include "lockstep/train/callbacks/save_schedule.h"
#include "tests/support/scratch_folder.h"
#include "tests/train/fits.h"

namespace lockstep::testing {

namespace {

using nlohmann::json;

const json& judged() {
  static const json all = json::parse(std::ifstream(LOCKSTEP_TRAIN_TESTS "/judged/callbacks.json"));
  return all;
}

double number_of(const json& value) {
  if (!value.is_string()) return value.get<double>();
  return value == "nan" ? std::nan("") : std::numeric_limits<double>::infinity();
}

/// Gives a callback the logs of a curve in place of the fit's: null for an epoch without the number. Before that it
/// sets the model's weight to the number of the epoch.
class Driver final : public Callback {
 public:
  Driver(std::shared_ptr<Callback> inner, json curve, Variable weight)
      : inner_(std::move(inner)), curve_(std::move(curve)), weight_(std::move(weight)) {}

  void on_fit_begin(Trainer& trainer, const Logs& logs) override { inner_->on_fit_begin(trainer, logs); }
  void on_epoch_end(Trainer& trainer, const Logs& /*logs*/) override {
    const int64_t epoch = trainer.status().epoch;
    weight_.assign(torch::full({1, 1}, static_cast<double>(epoch)));
    Logs logs{{"loss", 0.0}};
    const json& value = curve_.at(static_cast<std::size_t>(epoch));
    if (!value.is_null()) logs["val_loss"] = number_of(value);
    inner_->on_epoch_end(trainer, logs);
    rates.push_back(trainer.optimizer().learning_rate());
  }
  void on_fit_end(Trainer& trainer, const Logs& logs) override { inner_->on_fit_end(trainer, logs); }

  std::vector<double> rates;

 private:
  const std::shared_ptr<Callback> inner_;
  const json curve_;
  const Variable weight_;
};

struct Driven {
  int64_t epochs_run = 0;
  bool stopped = false;
  double weight = 0;  // at the end of the fit
  std::vector<double> rates;
};

Driven drive(const std::shared_ptr<Callback>& callback, const json& curve) {
  return run_workers(
             {1, 1, 1},
             [&](Strategy& strategy) {
               const auto model =
                   strategy.make_module([] { return torch::nn::Linear(torch::nn::LinearOptions(1, 1).bias(false)); });
               const auto optimizer = strategy.make_optimizer(model, torch::optim::AdamWOptions(1.0));
               const auto data =
                   strategy.distribute(data::from_tensors(torch::ones({1, 1}), torch::zeros({1})), {.global_batch = 1});
               Trainer trainer(strategy, model, optimizer,
                               {.loss = [](const torch::Tensor& output, const Batch&) { return output.sum(); }});
               const auto driver = std::make_shared<Driver>(callback, curve, model.variables().front());
               const History history =
                   trainer.fit(data, {.epochs = static_cast<int64_t>(curve.size()), .callbacks = {driver}});
               return Driven{static_cast<int64_t>(history.epochs().size()), !trainer.stopped().empty(),
                             model.variables().front().read().item<double>(), driver->rates};
             })
      .front();
}

Mode mode_of(const json& options) { return options.value("mode", "auto") == "max" ? Mode::kMax : Mode::kAuto; }

std::string text_of(const std::filesystem::path& file) {
  std::stringstream text;
  text << std::ifstream(file).rdbuf();
  return text.str();
}

}  // namespace

TEST(Callbacks, StopEarlyWhereKerasDoes) {
  int compared = 0;
  for (const json& row : judged().at("results")) {
    if (row.at("callback") != "EarlyStopping") continue;
    const json& options = row.at("options");
    const std::string curve = row.at("curve");
    callbacks::EarlyStoppingOptions ours{.mode = mode_of(options),
                                         .patience = options.at("patience"),
                                         .min_delta = options.value("min_delta", 0.0),
                                         .restore_best = true,
                                         .start_from_epoch = options.value("start_from_epoch", 0)};
    if (options.contains("baseline")) ours.baseline = options.at("baseline").get<double>();
    const Driven driven = drive(callbacks::early_stopping(ours), judged().at("curves").at(curve));
    const std::string what = curve + " " + options.dump();
    if (curve == "not_a_number" && options.contains("start_from_epoch")) {
      // The first number that is looked at is none; Keras has it as the best, here nothing is.
      EXPECT_EQ(driven.epochs_run, 6) << what;
      EXPECT_EQ(driven.weight, 5) << what;
      continue;
    }
    if (curve == "starts_as_nan" && !options.contains("start_from_epoch")) {
      // Here NaN is never the best, so that the numbers behind it improve.
      if (mode_of(options) == Mode::kMax) {
        EXPECT_EQ(driven.weight, 1) << what;
      } else if (!options.contains("baseline")) {
        EXPECT_FALSE(driven.stopped) << what;
        // By float32 numbers each second step of 0.1 is not larger than a .min_delta of 0.1: the last one is not.
        EXPECT_EQ(driven.weight, options.contains("min_delta") ? 6 : 7) << what;
      }
      continue;
    }
    ++compared;
    EXPECT_EQ(driven.epochs_run, row.at("epochs_run").get<int64_t>()) << what;
    EXPECT_EQ(driven.stopped, !row.at("stopped_at").is_null()) << what;
    EXPECT_EQ(driven.weight, row.at("weights_of_epoch").get<double>()) << what;
  }
  EXPECT_EQ(compared, 7 * 8 - 7 - 1);
}

TEST(Callbacks, ReduceTheRateWhereKerasDoes) {
  int compared = 0;
  for (const json& row : judged().at("results")) {
    if (row.at("callback") != "ReduceLROnPlateau") continue;
    const json& options = row.at("options");
    const std::string curve = row.at("curve");
    if (curve == "starts_as_nan") continue;  // NaN is the best there
    const Driven driven = drive(callbacks::reduce_on_plateau({.factor = options.at("factor"),
                                                              .patience = options.at("patience"),
                                                              .min_rate = options.value("min_lr", 0.0),
                                                              .cooldown = options.value("cooldown", 0),
                                                              .mode = mode_of(options),
                                                              .min_delta = options.value("min_delta", 1e-4)}),
                                judged().at("curves").at(curve));
    const auto expected = row.at("rate_after_epoch").get<std::vector<double>>();
    ASSERT_EQ(driven.rates.size(), expected.size());
    for (std::size_t i = 0; i < expected.size(); ++i) {
      EXPECT_NEAR(driven.rates[i], expected[i], 1e-6 * expected[i]) << curve << " " << options.dump() << " epoch " << i;
    }
    ++compared;
  }
  EXPECT_EQ(compared, 6 * 6);
}

TEST(Callbacks, ImproveAfterANumberThatIsNone) {
  const Driven driven =
      drive(callbacks::reduce_on_plateau({.factor = 0.5, .patience = 2}), judged().at("curves").at("starts_as_nan"));
  EXPECT_EQ(driven.rates, std::vector<double>(8, 1.0));
}

TEST(Callbacks, StopAtTheGoal) {
  const json curve = {0.9, 0.5, 0.3, 0.2};
  const Driven driven = drive(callbacks::early_stopping({.patience = 9, .goal = 0.5}), curve);
  EXPECT_EQ(driven.epochs_run, 2);
  EXPECT_TRUE(driven.stopped);
}

TEST(Callbacks, KnowFromTheMetricWhatIsBetter) {
  run_workers({1, 1, 1}, [](Strategy& strategy) {
    const Setting setting(strategy);
    MetricSpec worse = accuracy_spec();
    worse.higher_is_better = false;
    for (const bool higher : {true, false}) {
      Trainer trainer(strategy, setting.model, setting.optimizer,
                      {.loss = cross_entropy, .metrics = {higher ? accuracy_spec() : worse}});
      // A goal of 0 is reached at once by what is to be high, and -1 never by what is to be low.
      const auto stopping =
          callbacks::early_stopping({.monitor = "val_accuracy", .patience = 9, .goal = higher ? 0.0 : -1.0});
      const History history =
          trainer.fit(setting.train, {.epochs = 2, .validation = setting.validation, .callbacks = {stopping}});
      EXPECT_EQ(history.epochs().size(), higher ? 1u : 2u);
    }
    return 0;
  });
}

TEST(Callbacks, RestoreTheBestOnAllWorkersWithBuffers) {
  for (const WorkersCase& one : std::vector<WorkersCase>{{1, 3, 1}, {2, 3, 1}}) {
    run_workers(one, [](Strategy& strategy) {
      const Setting setting(strategy);
      Trainer trainer = setting.trainer();
      std::map<std::string, torch::Tensor> second;
      const auto history = trainer.fit(
          setting.train,
          {.epochs = 4,
           .validation = setting.validation,
           .callbacks = {
               callbacks::early_stopping({.monitor = "loss", .mode = Mode::kMin, .patience = 9, .restore_best = true}),
               callbacks::each_epoch([&](Trainer& own, const Logs& logs) {
                 const auto& before = own.history().epochs();
                 bool is_best = true;
                 for (const Logs& epoch : before) is_best &= logs.at("loss") < epoch.at("loss");
                 if (is_best) second = setting.model.state();
               })}});
      const auto now = setting.model.state();
      for (const auto& [name, value] : second) EXPECT_TRUE(now.at(name).equal(value)) << name;
      EXPECT_EQ(strategy.variables().size(), setting.model.variables().size() + setting.optimizer.slots().size())
          << "what was kept is still there";
      return 0;
    });
  }
}

TEST(Callbacks, StopWhereANumberIsNotFinite) {
  for (const int64_t workers : {1, 2}) {
    run_workers({workers, 2, 1}, [](Strategy& strategy) {
      const Setting setting(strategy);
      const auto fit = [&](const auto& loss) {
        Trainer trainer(strategy, setting.model, setting.optimizer, {.loss = loss});
        trainer.fit(setting.train, {.callbacks = {callbacks::stop_on_not_finite()}});
      };
      const std::string before = digest_of(setting);
      expect_step_error<NonFiniteError>(
          [&] {
            fit([](const torch::Tensor& output, const Batch& batch) {
              return cross_entropy(output, batch) * std::numeric_limits<double>::infinity();
            });
          },
          "LS-NOT-FINITE", {"step 0", "model.first.weight"});
      expect_step_error<NonFiniteError>(
          [&] {
            fit([](const torch::Tensor& output, const Batch& batch) {
              return cross_entropy(output, batch) + std::numeric_limits<double>::infinity();
            });
          },
          "LS-NOT-FINITE", {"step 0", "the loss is inf"});
      EXPECT_EQ(digest_of(setting), before);
      return 0;
    });
  }
}

class CallbackFiles : public ScratchFolder {};

TEST_F(CallbackFiles, HaveALineForEachEpochOfTheHistory) {
  run_workers({2, 2, 1}, [&](Strategy& strategy) {
    const Setting setting(strategy);
    Trainer trainer(strategy, setting.model, setting.optimizer, {.loss = cross_entropy});
    const History history =
        trainer.fit(setting.train, {.epochs = 3,
                                    .validation = setting.validation,
                                    .validate_every = 2,
                                    .callbacks = {callbacks::csv_log({.file = path("a/log.csv")}),
                                                  callbacks::json_log({.file = path("b/log.jsonl")})}});
    if (!strategy.is_chief()) return 0;
    std::istringstream csv(text_of(path("a/log.csv")));
    std::istringstream lines(text_of(path("b/log.jsonl")));
    std::string line;
    std::getline(csv, line);
    EXPECT_EQ(line, "epoch,loss,val_loss");
    for (std::size_t i = 0; i < 3; ++i) {
      const Logs& logs = history.epochs()[i];
      std::getline(csv, line);
      double loss = 0;
      EXPECT_EQ(sscanf(line.c_str() + 2, "%lf", &loss), 1);
      EXPECT_EQ(loss, logs.at("loss"));
      EXPECT_EQ(line.back() == ',', !logs.contains("val_loss"));
      std::getline(lines, line);
      const json object = json::parse(line);
      EXPECT_EQ(object.at("epoch"), i);
      EXPECT_EQ(object.at("loss").get<double>(), logs.at("loss"));
      EXPECT_EQ(object.size(), logs.size() + 1);
    }
    return 0;
  });
}

TEST_F(CallbackFiles, ThatCannotBeWrittenEndTheFitOnAllWorkers) {
  const std::string in_the_way = write("file", "");
  run_workers({2, 2, 1}, [&](Strategy& strategy) {
    const Setting setting(strategy);
    Trainer trainer = setting.trainer();
    const auto fit = [&] {
      trainer.fit(setting.train, {.callbacks = {callbacks::csv_log({.file = in_the_way + "/log.csv"})}});
    };
    if (strategy.is_chief()) {
      expect_error<DataError>(fit, "LS-FILE");
    } else {
      expect_error<PeerError>(fit, "LS-PEER-FAILED", {"the callback 'csv_log' threw"});
    }
    EXPECT_EQ(strategy.step(), 0) << "a fit must not train an epoch for it";
    return 0;
  });
}

TEST_F(CallbackFiles, NeverReplaceWhatIsNoPlainFile) {
  const std::string pipe = path("pipe");
  ASSERT_EQ(mkfifo(pipe.c_str(), 0600), 0);
  run_workers({1, 1, 1}, [&](Strategy& strategy) {
    const Setting setting(strategy);
    Trainer trainer = setting.trainer();
    for (const auto& callback : {callbacks::csv_log({.file = pipe}), callbacks::html_report({.file = pipe})}) {
      expect_error<DataError>([&] { trainer.fit(setting.train, {.callbacks = {callback}}); }, "LS-FILE",
                              {"'" + pipe + "'", "not a file that can be replaced"});
      EXPECT_TRUE(std::filesystem::is_fifo(pipe));
    }
    return 0;
  });
}

TEST(Progress, FitsAnyWidth) {
  using internal::bar_line;
  internal::ProgressFigures figures{.epoch = 2,
                                    .epochs = 10,
                                    .step = 744,
                                    .steps = 1200,
                                    .seconds = 19,
                                    .seconds_left = 12.4,
                                    .samples_per_second = 9800,
                                    .logs = {{"loss", 0.312}, {"accuracy", 0.879}}};
  EXPECT_EQ(bar_line(figures, 200),
            "epoch 3/10  62 %  [############--------]  744/1200  0:19 < 0:12  9.8k/s  loss 0.3120  accuracy 0.8790");
  EXPECT_EQ(bar_line(figures, 80), "epoch 3/10  62 %  744/1200  0:19 < 0:12  9.8k/s  loss 0.3120  accuracy 0.8790");
  EXPECT_EQ(bar_line(figures, 70), "epoch 3/10  62 %  744/1200  0:19 < 0:12  9.8k/s  loss 0.3120");
  for (int64_t width = 1; width <= 200; ++width) {
    EXPECT_LE(bar_line(figures, width).size(), static_cast<std::size_t>(std::max<int64_t>(width - 1, 1)));
  }
  figures.steps = figures.epochs = -1;
  figures.seconds_left = -1;
  EXPECT_EQ(bar_line(figures, 200), "epoch 3  step 744  0:19  9.8k/s  loss 0.3120  accuracy 0.8790");
  EXPECT_EQ(internal::time_text(3725), "1:02:05");
  EXPECT_EQ(internal::count_text(1234567, false), "1,234,567");
  EXPECT_EQ(internal::logs_text({{"val_loss", 1}, {"loss", 0.00001}, {"a", 2}, {"val_a", 3}}),
            "loss 1.000e-05  a 2.0000  val_loss 1.0000  val_a 3.0000");
}

TEST(SaveSchedule, TakesAHundredthOfTheTime) {
  using internal::SaveSchedule;
  const SaveSchedule::Clock::time_point begin{};
  const auto at = [&](double seconds) {
    return begin + std::chrono::duration_cast<SaveSchedule::Clock::duration>(std::chrono::duration<double>(seconds));
  };
  SaveSchedule by_cost(0, 0, begin);
  EXPECT_FALSE(by_cost.is_due_by_clock(1, 0, at(0.9)));
  EXPECT_TRUE(by_cost.is_due_by_clock(2, 0, at(1.1)));  // the first one soon
  by_cost.saved(2, 0, at(11));
  EXPECT_FALSE(by_cost.is_due_by_clock(3, 0, at(40)));    // what it has cost is not known yet
  EXPECT_FALSE(by_cost.is_due_by_clock(4, 0.5, at(60)));  // half a second: one in 50 seconds
  EXPECT_TRUE(by_cost.is_due_by_clock(5, 0.5, at(61.5)));
  by_cost.saved(5, 0.5, at(61.5));
  EXPECT_FALSE(by_cost.is_due_by_clock(6, 0.5, at(121)));  // it may have failed
  EXPECT_TRUE(by_cost.is_due_by_clock(7, 0.5, at(122)));
  by_cost.saved(7, 70, at(122));
  EXPECT_FALSE(by_cost.is_due_by_clock(8, 70, at(7100)))
      << "a save that takes longer than a minute is not followed at once";
  EXPECT_TRUE(by_cost.is_due_by_clock(9, 70, at(7123)));
  SaveSchedule by_steps(3, 0, begin);
  EXPECT_FALSE(by_steps.is_due_at(2));
  EXPECT_FALSE(by_steps.is_due_by_clock(2, 0, at(1000))) << "steps were asked for, and no time";
  EXPECT_TRUE(by_steps.is_due_at(3));
  by_steps.saved(3, 0, at(1000));
  EXPECT_FALSE(by_steps.is_due_at(3));
  EXPECT_FALSE(by_steps.is_due_at(5));
  EXPECT_TRUE(by_steps.is_due_at(7)) << "the steps of parameter servers go on by several";
  EXPECT_FALSE(by_steps.is_due_at(8));
  EXPECT_FALSE(SaveSchedule(3, 0, begin).is_due_at(7)) << "where a fit goes on from a checkpoint";
  SaveSchedule by_seconds(0, 5, begin);
  EXPECT_FALSE(by_seconds.is_due_by_clock(1, 0, at(4)));
  EXPECT_TRUE(by_seconds.is_due_by_clock(1, 0, at(6)));
}

}  // namespace lockstep::testing
