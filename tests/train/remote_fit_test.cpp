// A Trainer over parameter servers whose tasks talk over sockets: it has the bits of one whose tasks are threads.
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#include "lockstep/train/html_report.h"
#include "lockstep/train/tensor_board.h"
#include "tests/server/remote/remote_tasks.h"
#include "tests/support/errors.h"
#include "tests/support/worker_processes.h"
#include "tests/train/fits.h"
#include "tests/train/folder.h"

namespace lockstep::testing {

namespace {

using std::chrono::seconds;

/// What a fit, an evaluation and a prediction have come to on the chief.
struct FitResult {
  std::string digest;
  std::vector<double> losses;  // of each step
  std::vector<Logs> epochs;
  Logs evaluation;
  torch::Tensor outputs;
  std::string stopped;
};

using MakeOptions = std::function<FitOptions()>;
using Prepare = std::function<void(const Setting&)>;

FitResult fit_on_task(const ParameterServerOptions& options, const TrainerOptions& how, const MakeOptions& make,
                      const Prepare& prepare) {
  ParameterServerStrategy strategy(options);
  const Setting setting(strategy);
  if (prepare) prepare(setting);
  TrainerOptions mine = how;
  mine.loss = cross_entropy;
  mine.metrics = {accuracy_spec(), largest_spec()};
  Trainer trainer(strategy, setting.model, setting.optimizer, mine);
  FitResult result;
  FitOptions fit = make();
  fit.validation = setting.validation;
  fit.callbacks.push_back(
      callbacks::each_step([&](Trainer&, const Logs& logs) { result.losses.push_back(logs.at("loss")); }));
  result.epochs = trainer.fit(setting.train, fit).epochs();
  result.stopped = trainer.stopped();
  result.digest = digest_of(setting);
  result.evaluation = trainer.evaluate(setting.validation);
  result.outputs = trainer.predict(setting.validation);
  return result;
}

FitResult fit_by_threads(int64_t workers, const TrainerOptions& how, const MakeOptions& make,
                         const Prepare& prepare = {}) {
  return fit_on_task({.cluster = ClusterSpec(), .staleness = 0, .workers = workers, .seed = 7}, how, make, prepare);
}

FitResult fit_by_tasks(ParameterServerOptions options, int64_t workers, int64_t servers, const TrainerOptions& how,
                       const MakeOptions& make, const Prepare& prepare = {}) {
  FitResult result;
  expect_all_ended_well(run_tasks(workers, servers, [&](const ClusterSpec& spec) {
    ParameterServerOptions mine = options;
    mine.cluster = spec;
    mine.seed = 7;
    FitResult all = fit_on_task(mine, how, make, prepare);
    if (is_chief(spec)) {
      result = std::move(all);
    } else {  // whoever serves has nothing of its own
      EXPECT_TRUE(all.losses.empty() && all.epochs.empty() && all.evaluation.empty() && !all.outputs.defined());
    }
    return 0;
  }));
  return result;
}

void expect_equal(const FitResult& result, const FitResult& expected) {
  EXPECT_EQ(result.digest, expected.digest);
  EXPECT_EQ(result.losses, expected.losses);
  EXPECT_EQ(result.epochs, expected.epochs);
  EXPECT_EQ(result.evaluation, expected.evaluation);
  EXPECT_TRUE(torch::equal(result.outputs, expected.outputs));
  EXPECT_EQ(result.stopped, expected.stopped);
}

TEST(RemoteFit, HasTheBitsOfThreadsInStep) {
  const MakeOptions two_epochs = [] { return FitOptions{.epochs = 2}; };
  for (const int64_t accumulate : {1, 3}) {
    const FitResult expected = fit_by_threads(3, {.accumulate = accumulate}, two_epochs);
    EXPECT_EQ(expected.epochs.size(), 2);
    EXPECT_TRUE(expected.epochs.back().contains("val_accuracy"));
    expect_equal(fit_by_tasks({.staleness = 0}, 3, 1, {.accumulate = accumulate}, two_epochs), expected);
    expect_equal(fit_by_tasks({.partitioner = fixed_shards_partitioner(2), .staleness = 0}, 3, 2,
                              {.accumulate = accumulate}, two_epochs),
                 expected);
  }
  const TrainerOptions clipped{.clip_global_norm = 0.5};
  expect_equal(fit_by_tasks({.staleness = 0}, 2, 1, clipped, two_epochs), fit_by_threads(2, clipped, two_epochs));
}

TEST(RemoteFit, CallbacksDecideOnTheChief) {
  const MakeOptions make = [] {
    return FitOptions{
        .epochs = 3,
        .callbacks = {callbacks::reduce_on_plateau({.monitor = "loss", .factor = 0.5, .patience = 1, .min_delta = 10}),
                      callbacks::early_stopping({.patience = 5, .restore_best = true}), callbacks::stop_on_not_finite(),
                      callbacks::each_step([](Trainer& of, const Logs&) {
                        if (of.status().step == 10) of.stop("enough");
                      })},
        .validate_every_steps = 2};
  };
  const FitResult expected = fit_by_threads(2, {}, make);
  EXPECT_EQ(expected.losses.size(), 10);
  EXPECT_EQ(expected.stopped, "enough");
  expect_equal(fit_by_tasks({.staleness = 0}, 2, 2, {}, make), expected);
}

TEST(RemoteFit, RatesFollowSchedulesAndWhatCallbacksSet) {
  const Prepare scheduled = [](const Setting& setting) {
    setting.optimizer.set_schedule(schedules::cosine(0.05, 10, {.end = 0.001}));
  };
  const auto at = [](int64_t step, const std::function<void(const Optimizer&)>& change) -> MakeOptions {
    return [=] {
      return FitOptions{.epochs = 3, .callbacks = {callbacks::each_step([=](Trainer& of, const Logs&) {
                                       if (of.status().step == step) change(of.optimizer());
                                     })}};
    };
  };
  const MakeOptions plain = [] { return FitOptions{.epochs = 3}; };
  const MakeOptions another = at(5, [](const Optimizer& one) { one.set_schedule(schedules::exponential(0.1, 0.5)); });
  const MakeOptions none = at(5, [](const Optimizer& one) { one.set_learning_rate(0.2); });
  const MakeOptions plateau = [] {
    return FitOptions{.epochs = 3,
                      .callbacks = {callbacks::reduce_on_plateau(
                          {.monitor = "loss", .factor = 0.5, .patience = 1, .min_delta = 10})}};
  };
  const auto digest_with = [&](const MakeOptions& make, const Prepare& prepare) {
    const FitResult expected = fit_by_threads(2, {}, make, prepare);
    expect_equal(fit_by_tasks({.staleness = 0}, 2, 2, {}, make, prepare), expected);
    return expected.digest;
  };
  const std::string first = digest_with(plain, scheduled);
  EXPECT_NE(digest_with(another, scheduled), first);
  EXPECT_NE(digest_with(none, scheduled), first);
  EXPECT_NE(digest_with(plateau, scheduled), first);
  EXPECT_NE(digest_with(another, {}), digest_with(plain, {}));
}

/// Keeps a value of its own in a variable that it makes in its first fit.
class Remembering final : public Callback {
 public:
  std::string name() const override { return "remembering"; }
  void on_fit_begin(Trainer& trainer, const Logs&) override {
    if (!sum_.defined()) sum_ = trainer.strategy().make_variable(torch::zeros({}), {.name = "sum", .trainable = false});
  }
  void on_step_end(Trainer& trainer, const Logs&) override {
    if (!late_.defined())
      late_ = trainer.strategy().make_variable(torch::zeros({}), {.name = "late", .trainable = false});
    sum_.assign_add(torch::ones({}));
    late_.assign_add(torch::ones({}));
  }
  double sum() const { return sum_.read().item<double>(); }
  double late() const { return late_.read().item<double>(); }

 private:
  Variable sum_;
  Variable late_;
};

TEST(RemoteFit, WhatCallbacksMakeIsTheChiefsAlone) {
  expect_all_ended_well(run_tasks(2, 2, [](const ClusterSpec& spec) {
    ParameterServerStrategy strategy({.cluster = spec, .staleness = 0, .seed = 7});
    const Setting setting(strategy);
    Trainer trainer = setting.trainer();
    const auto remembering = std::make_shared<Remembering>();
    for (int i = 0; i < 2; ++i) trainer.fit(setting.train, {.epochs = 1, .callbacks = {remembering}});
    trainer.evaluate(setting.validation);
    if (is_chief(spec)) {
      EXPECT_EQ(remembering->sum(), 8);
      EXPECT_EQ(remembering->late(), 8);
    }
    return 0;
  }));
}

std::string text_of(const std::filesystem::path& file) {
  std::ifstream in(file, std::ios::binary);
  EXPECT_TRUE(in) << file;
  return {std::istreambuf_iterator<char>(in), {}};
}

TEST(RemoteFit, WritesTheFilesOfCallbacksOnce) {
  const Folder threads;
  const Folder tasks;
  const auto writing = [](const std::filesystem::path& folder) -> MakeOptions {
    return [folder] {
      return FitOptions{
          .epochs = 2,
          .callbacks = {callbacks::csv_log({.file = folder / "log.csv"}),
                        callbacks::tensor_board({.directory = folder / "board"}),
                        callbacks::html_report({.file = folder / "report.html"}),
                        callbacks::best_checkpoint({.directory = folder / "best", .monitor = "val_loss"})}};
    };
  };
  const FitResult expected = fit_by_threads(2, {}, writing(threads.path()));
  expect_equal(fit_by_tasks({.staleness = 0}, 2, 1, {}, writing(tasks.path())), expected);
  EXPECT_EQ(text_of(tasks.path() / "log.csv"), text_of(threads.path() / "log.csv"));
  EXPECT_NE(text_of(tasks.path() / "report.html").find("<svg"), std::string::npos);
  EXPECT_TRUE(std::filesystem::exists(tasks.path() / "best" / "best"));
  for (const char* const run : {"train", "validation"}) {
    const std::filesystem::directory_iterator files(tasks.path() / "board" / run);
    EXPECT_EQ(std::distance(begin(files), end(files)), 1) << run;
  }
}

TEST(RemoteFit, OtherTasksNeedNoData) {
  expect_all_ended_well(run_tasks(2, 1, [](const ClusterSpec& spec) {
    ParameterServerStrategy strategy({.cluster = spec, .staleness = 0, .seed = 7});
    const auto model = strategy.make_module([] { return Net(); });
    const auto optimizer = strategy.make_optimizer(model, torch::optim::AdamWOptions(0.05));
    DistributedDataset data;
    if (is_chief(spec)) data = strategy.distribute(data::from_tensors(inputs(13), classes(13)), {.global_batch = 4});
    Trainer trainer(strategy, model, optimizer, {.loss = cross_entropy});
    const History history = trainer.fit(data, {.epochs = 1});
    const Logs logs = trainer.evaluate(data);
    const torch::Tensor outputs = trainer.predict(data);
    EXPECT_EQ(history.epochs().size(), is_chief(spec) ? 1 : 0);
    EXPECT_EQ(logs.count("loss"), is_chief(spec) ? 1 : 0);
    EXPECT_EQ(outputs.defined(), is_chief(spec));
    return 0;
  }));
}

TEST(RemoteFit, GoesOnFromACheckpointInStepAsIfItHadNeverStopped) {
  const auto run = [](const std::filesystem::path& directory, int64_t servers, int64_t stop_after) {
    return fit_by_tasks({.partitioner = fixed_shards_partitioner(2), .staleness = 0}, 2, servers, {}, [&] {
      return FitOptions{.epochs = 2,
                        .callbacks = {callbacks::checkpoints({.directory = directory, .every_steps = 2}),
                                      callbacks::early_stopping({.patience = 5, .restore_best = true}),
                                      callbacks::each_step([stop_after](Trainer& of, const Logs&) {
                                        if (of.status().step == stop_after) of.stop("enough");
                                      })}};
    });
  };
  const Folder whole;
  const FitResult expected = run(whole.path(), 2, -1);
  EXPECT_TRUE(std::filesystem::exists(whole.path() / "step-0000000006")) << "of .every_steps";
  for (const int64_t stop_after : {3, 4}) {
    const Folder folder;
    run(folder.path(), 2, stop_after);
    const FitResult resumed = run(folder.path(), 1, -1);
    EXPECT_EQ(resumed.digest, expected.digest) << stop_after;
    EXPECT_EQ(resumed.epochs, expected.epochs) << stop_after;
    EXPECT_EQ(resumed.losses.size(), expected.losses.size() - static_cast<std::size_t>(stop_after));
  }
}

TEST(RemoteFit, WithoutABoundTellsEachStepThatCountsOnce) {
  data::Cursor end;  // of a fit whose tasks are threads
  {
    ParameterServerStrategy strategy({.cluster = ClusterSpec(), .workers = 3, .seed = 7});
    const Setting setting(strategy, 40);
    setting.trainer().fit(setting.train, {.epochs = 2});
    end = setting.train.cursor();
  }
  expect_all_ended_well(run_tasks(3, 2, [&](const ClusterSpec& spec) {
    ParameterServerStrategy strategy({.cluster = spec, .seed = 7});
    const Setting setting(strategy, 40);
    Trainer trainer = setting.trainer();
    std::vector<int64_t> steps;
    const History history = trainer.fit(
        setting.train,
        {.epochs = 2,
         .validation = setting.validation,
         .callbacks = {callbacks::each_step([&](Trainer& of, const Logs&) { steps.push_back(of.status().step); })}});
    if (is_chief(spec)) {
      EXPECT_EQ(steps.size(), 20);
      EXPECT_EQ(strategy.step(), 20);
      EXPECT_EQ(history.epochs().size(), 2);
      EXPECT_EQ(setting.train.cursor(), end);
    }
    return 0;
  }));
}

TEST(RemoteFit, ATaskWhoseTrainerHasOtherOptionsIsRefused) {
  const auto results = run_tasks(2, 1, [](const ClusterSpec& spec) {
    ParameterServerStrategy strategy({.cluster = spec, .seed = 7, .timeouts = {.join = seconds(3)}});
    const Setting setting(strategy);
    const bool is_other = spec.job == "worker" && spec.task == 1;
    Trainer trainer(strategy, setting.model, setting.optimizer,
                    {.loss = cross_entropy, .clip_global_norm = is_other ? 2.0 : 1.0});
    trainer.fit(setting.train, {.epochs = 1});
    return 0;
  });
  for (const std::size_t task : {0, 2}) {
    for (const char* const part : {"worker 1", ".clip_global_norm = 2", ".clip_global_norm = 1"})
      EXPECT_NE(results[task].error.find(part), std::string::npos) << results[task].error;
  }
}

TEST(RemoteFit, AStepThatThrowsEndsItOnAllTasks) {
  const auto results = run_tasks(2, 1, [](const ClusterSpec& spec) {
    ParameterServerStrategy strategy({.cluster = spec, .seed = 7});
    const Setting setting(strategy, 40);
    Trainer trainer(strategy, setting.model, setting.optimizer,
                    {.loss = [&](const torch::Tensor& output, const Batch& part) {
                      if (part.ids.eq(7).any().item<bool>()) throw std::invalid_argument("bad sample");
                      return cross_entropy(output, part);
                    }});
    trainer.fit(setting.train, {.epochs = 1});
    return 0;
  });
  EXPECT_NE(results[0].error.find("bad sample"), std::string::npos) << results[0].error;
  for (std::size_t i = 1; i < results.size(); ++i)
    EXPECT_NE(results[i].error.find("the chief's Trainer has thrown"), std::string::npos) << results[i].error;
}

std::string variable_of(const char* name) {
  const char* const value = std::getenv(name);
  return value == nullptr ? "" : value;
}

/// The worker that has STANDS stands in its second step, until the test kills it.
WORKER_BODY(fits) {
  ClusterSpec spec = cluster_of_tasks(2, 2, static_cast<uint16_t>(std::stoi(variable_of("PORT"))));
  spec.job = variable_of("JOB");
  spec.task = std::stoll(variable_of("TASK"));
  ParameterServerStrategy strategy({.cluster = spec,
                                    .partitioner = fixed_shards_partitioner(2),
                                    .staleness = 0,
                                    .seed = 7,
                                    .timeouts = {.join = seconds(60), .lost = seconds(2)}});
  const Setting setting(strategy);
  int calls = 0;
  Trainer trainer(strategy, setting.model, setting.optimizer,
                  {.loss =
                       [&](const torch::Tensor& output, const Batch& part) {
                         if (!variable_of("STANDS").empty() && ++calls == 2) {
                           report("stands");
                           wait_for("never");
                         }
                         return cross_entropy(output, part);
                       },
                   .metrics = {accuracy_spec(), largest_spec()}});
  try {
    const History history = trainer.fit(setting.train, {.epochs = 2, .validation = setting.validation});
    report("digest " + digest_of(setting) + " of " + std::to_string(history.epochs().size()));
  } catch (const std::exception& error) {
    report(std::string("error ") + error.what());
  }
}

TEST(RemoteFit, OfProcessesLosesAWorkerAndHasTheSameBits) {
  const std::string port = std::to_string(free_port());
  WorkerProcesses tasks("fits", 5, [&](int64_t index) -> WorkerProcesses::Environment {
    const bool is_worker = index == 1 || index == 2;
    return {{"PORT", port},
            {"JOB", index == 0  ? "chief"
                    : is_worker ? "worker"
                                : "ps"},
            {"TASK", std::to_string(index == 0  ? 0
                                    : is_worker ? index - 1
                                                : index - 3)},
            {"STANDS", index == 2 ? "1" : ""}};
  });
  tasks.expect(2, "stands", seconds(120));
  tasks.signal(2, SIGKILL);
  const std::string digest = tasks.expect(0, "digest ", seconds(60)).text;
  for (const int64_t task : {1, 3, 4}) tasks.expect(task, "digest ", seconds(60));
  ParameterServerStrategy strategy({.cluster = ClusterSpec(), .staleness = 0, .workers = 2, .seed = 7});
  const Setting setting(strategy);
  Trainer trainer(strategy, setting.model, setting.optimizer,
                  {.loss = cross_entropy, .metrics = {accuracy_spec(), largest_spec()}});
  trainer.fit(setting.train, {.epochs = 2, .validation = setting.validation});
  EXPECT_EQ(digest, "digest " + digest_of(setting) + " of 2");
}

}  // namespace

}  // namespace lockstep::testing
