// What callbacks can look at beside the logs: batches, gradients, what the steps' time went into, a trace; and what is
// said where something in a fit does not fit.
#include <cmath>
#include <fstream>
#include <set>

#include "lockstep/train/html_report.h"
#include "lockstep/train/report/report_page.h"
#include "lockstep/train/report/run_report.h"
#include "lockstep/train/tensor_board.h"
#include "tests/support/run_program.h"
#include "tests/support/scratch_folder.h"
#include "tests/train/event_reader.h"
#include "tests/train/fits.h"

namespace lockstep::testing {

namespace {

using nlohmann::json;

/// Calls functions at hooks. It does not look at the logs of steps.
class At final : public Callback {
 public:
  using Fn = std::function<void(Trainer&, const Logs&)>;
  struct Hooks {
    Fn fit_begin = {};
    Fn resume = {};
    Fn epoch_begin = {};
    Fn step = {};
  };
  explicit At(Hooks hooks) : hooks_(std::move(hooks)) {}
  std::string name() const override { return "at"; }
  bool uses_step_logs() const override { return false; }
  void on_fit_begin(Trainer& trainer, const Logs& logs) override { call(hooks_.fit_begin, trainer, logs); }
  void on_fit_resume(Trainer& trainer, const Logs& logs) override { call(hooks_.resume, trainer, logs); }
  void on_epoch_begin(Trainer& trainer, const Logs& logs) override { call(hooks_.epoch_begin, trainer, logs); }
  void on_step_end(Trainer& trainer, const Logs& logs) override { call(hooks_.step, trainer, logs); }

 private:
  static void call(const Fn& fn, Trainer& trainer, const Logs& logs) {
    if (fn) fn(trainer, logs);
  }
  const Hooks hooks_;
};
std::shared_ptr<Callback> at(At::Hooks hooks) { return std::make_shared<At>(std::move(hooks)); }

/// Keeps the library's lines while it lives.
class LogLines {
 public:
  LogLines() {
    set_log_sink([this](LogLevel, std::string_view line) { text_ += std::string(line) + "\n"; });
  }
  ~LogLines() { set_log_sink({}); }
  LogLines(const LogLines&) = delete;
  LogLines& operator=(const LogLines&) = delete;
  bool has(const std::string& part) const { return text_.find(part) != std::string::npos; }
  const std::string& text() const { return text_; }

 private:
  std::string text_;
};

}  // namespace

class CallbackLooks : public ScratchFolder {};

TEST_F(CallbackLooks, AtStepsAreNeededForTheirLogsOnly) {
  for (const WorkersCase& one : std::vector<WorkersCase>{{1, 3, 1}, {2, 3, 1}}) {
    const auto fit_with = [&](std::vector<std::shared_ptr<Callback>> callbacks) {
      return run_workers(one,
                         [&](Strategy& strategy) {
                           const Setting setting(strategy, 600);  // 150 steps, more than wait for each other
                           const History history =
                               setting.trainer().fit(setting.train, {.epochs = 2, .callbacks = callbacks});
                           return digest_of(setting) + history.to_json().dump();
                         })
          .front();
    };
    const std::string each =
        fit_with({callbacks::each_step([](Trainer&, const Logs& logs) { EXPECT_EQ(logs.size(), 3u); })});
    EXPECT_EQ(fit_with({}), each) << one;
    EXPECT_EQ(fit_with({at({.step = [](Trainer&, const Logs& logs) { EXPECT_TRUE(logs.empty()); }})}), each) << one;
  }
}

TEST_F(CallbackLooks, AtTheBatchesOfAStep) {
  for (const int64_t accumulate : {1, 3}) {
    run_workers({2, 3, 1}, [&](Strategy& strategy) {
      const Setting setting(strategy);
      Trainer trainer = setting.trainer({.accumulate = accumulate});
      std::set<int64_t> ids;
      std::size_t most = 0;
      const auto look = [&](Trainer& fit, const Logs&) {
        most = std::max(most, fit.batches().size());
        for (const PerReplica<Batch>& batch : fit.batches()) {
          strategy.per_replica([&](ReplicaId r) {
            for (int64_t i = 0; i < batch[r].size(); ++i) ids.insert(batch[r].ids[i].item<int64_t>());
            return 0;
          });
        }
      };
      trainer.fit(
          setting.train,
          {.callbacks = {at(
               {.epoch_begin = [](Trainer& fit, const Logs&) { EXPECT_TRUE(fit.batches().empty()); }, .step = look})}});
      EXPECT_EQ(most, static_cast<std::size_t>(accumulate));
      const auto all = strategy.reduce(Reduction::kSum, strategy.per_replica([&, is_first = true](ReplicaId) mutable {
        return torch::scalar_tensor(std::exchange(is_first, false) ? static_cast<int64_t>(ids.size()) : 0);
      }));
      EXPECT_EQ(all.item<int64_t>(), 13) << "each sample was one replica's";
      return 0;
    });
  }
}

TEST_F(CallbackLooks, AtTheGradientsOfStepsThatKeepThem) {
  std::map<int64_t, double> first;  // by step: the norm of 'model.first.weight'
  for (const WorkersCase& one : std::vector<WorkersCase>{{1, 4, 1}, {1, 4, 2}, {2, 4, 1}, {3, 4, 1}}) {
    run_workers(one, [&](Strategy& strategy) {
      const Setting setting(strategy);
      std::set<int64_t> kept;
      const auto look = [&](Trainer& fit, const Logs&) {
        const int64_t step = fit.status().step;
        if (fit.gradients().empty()) {
          if (step == 5) fit.keep_gradients();
          return;
        }
        kept.insert(step);
        double squares = 0;
        for (const auto& [name, gradient] : fit.gradients()) {
          const double norm = gradient.to(torch::kDouble).norm().item<double>();
          squares += norm * norm;
          if (name != "model.first.weight" || !strategy.is_chief()) continue;
          const auto known = first.emplace(step, norm).first;
          EXPECT_EQ(known->second, norm) << one << ", step " << step;
        }
        EXPECT_NEAR(std::sqrt(squares), fit.status().gradient_norm, 1e-5);
        if (step == 5) fit.keep_gradients();
      };
      setting.trainer().fit(
          setting.train,
          {.epochs = 2,
           .callbacks = {at({.epoch_begin = [](Trainer& fit, const Logs&) { fit.keep_gradients(); }, .step = look})}});
      EXPECT_EQ(kept, (std::set<int64_t>{1, 5, 6}));
      return digest_of(setting);
    });
  }
  EXPECT_EQ(first.size(), 3u);
}

TEST_F(CallbackLooks, AtGradientsChangeNoBit) {
  const auto digest = [](bool keeps) {
    return run_workers({1, 3, 1},
                       [&](Strategy& strategy) {
                         const Setting setting(strategy);
                         const auto keep = [&](Trainer& fit, const Logs&) {
                           if (keeps) fit.keep_gradients();
                         };
                         setting.trainer({.accumulate = 2})
                             .fit(setting.train, {.epochs = 2, .callbacks = {at({.epoch_begin = keep, .step = keep})}});
                         return digest_of(setting);
                       })
        .front();
  };
  EXPECT_EQ(digest(true), digest(false));
}

TEST_F(CallbackLooks, AtWhatTheStepsTimeWentInto) {
  for (const int64_t workers : {1, 2}) {
    run_workers({workers, 4, 2}, [](Strategy& strategy) {
      const Setting setting(strategy);
      Trainer trainer = setting.trainer();
      trainer.fit(setting.train, {.epochs = 10});
      EXPECT_EQ(trainer.status().parts.seconds, 0) << "nobody has asked";
      trainer.fit(
          setting.train,
          {.epochs = 10, .callbacks = {at({.fit_begin = [](Trainer& fit, const Logs&) { fit.measure_parts(); }})}});
      if (strategy.num_workers() > 1) return 0;  // threads of one process measure in turn
      const FitStatus::Parts& parts = trainer.status().parts;
      EXPECT_GT(parts.compute, 0);
      EXPECT_GT(parts.update, 0);
      EXPECT_EQ(parts.communication, 0);
      EXPECT_LE(parts.compute + parts.update + parts.waiting, parts.seconds);
      EXPECT_GT(trainer.status().callback_seconds, 0);
      return 0;
    });
  }
}

TEST_F(CallbackLooks, AtATraceOfSomeSteps) {
  const auto steps_in = [&](const std::string& file) {
    std::vector<int64_t> steps;
    const json document = json::parse(text_of(path(file)));
    for (const json& event : document["traceEvents"]) {
      if (event["ph"] == "X" && event["cat"] == "step") steps.push_back(event["args"]["step"].get<int64_t>());
    }
    return steps;
  };
  MirroredStrategy strategy({.devices = lanes(1), .replicas = 2});
  const Setting setting(strategy);
  Trainer trainer = setting.trainer();
  trainer.fit(setting.train, {.epochs = 2, .callbacks = {callbacks::trace({.file = path("some"), .steps = 2})}});
  EXPECT_EQ(steps_in("some"), (std::vector<int64_t>{3, 4}));
  trainer.fit(setting.train, {.epochs = 2, .callbacks = {callbacks::trace({.file = path("all"), .steps = 20})}});
  EXPECT_EQ(steps_in("all"), (std::vector<int64_t>{8, 9, 10, 11, 12, 13, 14, 15}));
  write("file", "");
  expect_error<DataError>(
      [&] { trainer.fit(setting.train, {.callbacks = {callbacks::trace({.file = path("file/trace")})}}); }, "LS-FILE");
  expect_error<UsageError>([] { callbacks::trace({}); }, "LS-OPTION");
}

TEST_F(CallbackLooks, AtTheCheckpointThatAFitGoesOnFrom) {
  std::vector<std::string> calls;
  const auto fit_to = [&](int64_t steps) {
    MirroredStrategy strategy({.devices = lanes(1), .replicas = 1});
    const Setting setting(strategy);
    const auto note = [&](const char* hook) {
      return [&calls, hook](Trainer& fit, const Logs&) {
        calls.push_back(hook + std::to_string(fit.status().step) + "/" + std::to_string(fit.strategy().step()));
      };
    };
    setting.trainer().fit(setting.train, {.steps = steps,
                                          .callbacks = {callbacks::checkpoints({.directory = path("saved")}),
                                                        at({.fit_begin = note("begin "),
                                                            .resume = note("resume "),
                                                            .epoch_begin = note("epoch "),
                                                            .step = note("step ")})}});
  };
  fit_to(2);
  EXPECT_EQ(calls, (std::vector<std::string>{"begin 0/0", "epoch 0/0", "step 1/1", "step 2/2"}));
  calls.clear();
  fit_to(3);
  EXPECT_EQ(calls, (std::vector<std::string>{"begin 0/0", "resume 2/2", "step 3/3"}));
  const LogLines log;
  fit_to(3);
  EXPECT_TRUE(log.has("has ended with step 3")) << log.text();
  EXPECT_FALSE(log.has("goes on")) << log.text();
  fit_to(4);
  EXPECT_TRUE(log.has("the fit goes on after step 3")) << log.text();
}

TEST_F(CallbackLooks, AtGradientsAndTimeAreInTheReportAndInTensorBoard) {
  MirroredStrategy strategy({.devices = lanes(1), .replicas = 2});
  const Setting setting(strategy);
  setting.trainer().fit(setting.train,
                        {.epochs = 5,
                         .callbacks = {callbacks::html_report({.file = path("report.html")}),
                                       callbacks::tensor_board({.directory = path("runs"), .gradients_every = 2})}});
  const std::string page = text_of(path("report.html"));
  const internal::RunReport run = internal::run_in_page(page, "report");
  EXPECT_EQ(run.curves.at("gradient_norm/model.first.weight").points().size(), 5u) << "one of each epoch";
  EXPECT_GT(run.variables.front().gradient_norm.value(), 0);
  EXPECT_GT(run.step_shares.at("computing"), 0);
  EXPECT_NE(page.find("waiting for input"), std::string::npos);
  EXPECT_NE(page.find("Norm of the gradient by variable"), std::string::npos);
  const auto train = read_run(path("runs/train"));
  // The report asks for gradients of each epoch, and what is there is shown.
  EXPECT_EQ(train.at(0).others.at("gradients/model.last.bias"), 5);
  EXPECT_FALSE(train.at(0).scalars.at("time/compute").empty());
}

TEST_F(CallbackLooks, AtErrorsNameTheFunctionThatTheyComeFrom) {
  run_workers({1, 2, 1}, [](Strategy& strategy) {
    const Setting setting(strategy);
    const auto fit = [&](auto loss, std::vector<MetricSpec> metrics = {}) {
      Trainer trainer(strategy, setting.model, setting.optimizer, {.loss = loss, .metrics = std::move(metrics)});
      trainer.fit(setting.train);
    };
    expect_step_error<UsageError>(
        [&] {
          fit([](const torch::Tensor& output, const Batch& batch) {
            return torch::nn::functional::cross_entropy(
                output, batch.target, torch::nn::functional::CrossEntropyFuncOptions().reduction(torch::kNone));
          });
        },
        "LS-OPTION", {"TrainerOptions::loss", "[2]"});
    expect_step_error<UsageError>([&] { fit([](const torch::Tensor&, const Batch&) { return torch::Tensor(); }); },
                                  "LS-OPTION", {"TrainerOptions::loss", "undefined"});
    const auto message_of_fit = [&](const auto& run) { return message_from<ReplicaError>([&] { run(); }); };
    const std::string of_loss = message_of_fit([&] {
      fit([](const torch::Tensor& output, const Batch& batch) {
        return (output + batch.target.to(torch::kFloat)).sum();
      });
    });
    EXPECT_NE(of_loss.find("in TrainerOptions::loss"), std::string::npos) << of_loss;
    MetricSpec broken = accuracy_spec();
    broken.update = [](const torch::Tensor& output, const Batch&) -> MetricCounts {
      return {.sums = output + torch::ones({99})};
    };
    const std::string of_metric = message_of_fit([&] { fit(cross_entropy, {broken}); });
    EXPECT_NE(of_metric.find("in the metric 'accuracy'"), std::string::npos) << of_metric;
    return 0;
  });
}

}  // namespace lockstep::testing
