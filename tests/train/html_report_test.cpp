// What html_report() writes of a fit, however that ends.
#include "lockstep/train/html_report.h"

#include "lockstep/train/callbacks.h"
#include "lockstep/train/report/report_page.h"
#include "lockstep/train/report/run_report.h"
#include "tests/support/run_program.h"
#include "tests/support/scratch_folder.h"
#include "tests/train/fits.h"

namespace lockstep::testing {

namespace {

using internal::RunOutcome;
using internal::RunReport;

/// Two epochs of four steps, and a validation after each.
History fit(Strategy& strategy, std::vector<std::shared_ptr<Callback>> callbacks, bool dry_run = false) {
  const Setting setting(strategy);
  Trainer trainer = setting.trainer();
  return trainer.fit(
      setting.train,
      {.epochs = 2, .validation = setting.validation, .callbacks = std::move(callbacks), .dry_run = dry_run});
}

std::shared_ptr<Callback> at_step(int64_t step, std::function<void(Trainer&)> fn) {
  return callbacks::each_step([step, fn = std::move(fn)](Trainer& trainer, const Logs&) {
    if (trainer.status().step == step) fn(trainer);
  });
}

std::string fact(const RunReport& run, const std::string& name) {
  for (const auto& [one, text] : run.facts) {
    if (one == name) return text;
  }
  return "";
}

}  // namespace

class HtmlReportCallback : public ScratchFolder {
 protected:
  RunReport report(const std::string& file = "report.html") const {
    return internal::run_in_page(text_of(path(file)), file);
  }
};

TEST_F(HtmlReportCallback, HasWhatTheFitWas) {
  MirroredStrategy strategy({.devices = lanes(1), .replicas = 2});
  const History history = fit(strategy, {callbacks::html_report({.file = path("new/report.html")})});
  const RunReport run = report("new/report.html");
  EXPECT_EQ(run.title, "report");
  EXPECT_EQ(run.state, RunOutcome::kFinished);
  EXPECT_EQ(run.steps, 8);
  EXPECT_EQ(run.samples, 26);
  ASSERT_EQ(run.epochs.size(), 2u);
  EXPECT_EQ(run.epochs[1].logs, history.epochs()[1]);
  EXPECT_EQ(run.epochs[1].step, 8);
  EXPECT_EQ(run.curves.at("loss").points().size(), 8u);
  EXPECT_EQ(run.curves.at("learning_rate").last()->value, 0.05);
  EXPECT_EQ(run.validation.at("loss").points().size(), 2u);
  EXPECT_EQ(run.metrics, (std::vector<std::string>{"accuracy", "largest"}));
  EXPECT_FALSE(fact(run, "command").empty());
  EXPECT_NE(fact(run, "strategy").find("replica"), std::string::npos);
  EXPECT_EQ(fact(run, "weights sha256").size(), 64u);
  ASSERT_FALSE(run.variables.empty());
  EXPECT_EQ(run.variables[0].name, "model.first.bias");
  EXPECT_NE(run.variables[0].norm, run.variables[0].norm_before);
  EXPECT_GT(run.seconds, 0);
}

TEST_F(HtmlReportCallback, SaysWhyAFitEnded) {
  MirroredStrategy strategy({.devices = lanes(1), .replicas = 2});
  fit(strategy, {callbacks::html_report({.file = path("report.html"), .title = "mine"}),
                 at_step(2, [](Trainer& trainer) { trainer.stop("enough of it"); })});
  EXPECT_EQ(report().state, RunOutcome::kStopped);
  EXPECT_EQ(report().why, "enough of it");
  EXPECT_EQ(report().title, "mine");
  EXPECT_EQ(report().steps, 2);
  const auto fail = [](Trainer&) { throw std::runtime_error("<it broke>"); };
  EXPECT_THROW(fit(strategy, {callbacks::html_report({.file = path("report.html")}), at_step(6, fail)}),
               std::runtime_error);
  EXPECT_EQ(report().state, RunOutcome::kFailed);
  EXPECT_NE(report().why.find("<it broke>"), std::string::npos);
  EXPECT_EQ(report().steps, 6);
  EXPECT_EQ(text_of(path("report.html")).find("<it broke>"), std::string::npos);
}

TEST_F(HtmlReportCallback, GoesOnWhereAFitIsResumed) {
  const auto fit_until = [&](int64_t stop) {
    MirroredStrategy strategy({.devices = lanes(1), .replicas = 2});
    const auto fail = [](Trainer&) { throw std::runtime_error("as asked"); };
    try {
      fit(strategy, {callbacks::html_report({.file = path("report.html"), .checkpoints = path("saved")}),
                     callbacks::checkpoints({.directory = path("saved"), .every_steps = 3}), at_step(stop, fail)});
    } catch (const std::runtime_error&) {
    }
  };
  fit_until(5);
  const RunReport failed = report();
  EXPECT_EQ(failed.state, RunOutcome::kFailed);
  fit_until(-1);
  const RunReport run = report();
  EXPECT_EQ(run.state, RunOutcome::kFinished);
  EXPECT_EQ(run.resumes, std::vector<int64_t>{3});
  EXPECT_EQ(run.curves.at("loss").points().size(), 8u);
  EXPECT_EQ(run.epochs.size(), 2u);
  EXPECT_EQ(run.variables[0].norm_before, failed.variables[0].norm_before);
  EXPECT_FALSE(run.checkpoints.empty());
}

TEST_F(HtmlReportCallback, IsWrittenByTheChiefAndNotInADryRun) {
  const auto states = run_workers({2, 4, 1}, [&](Strategy& strategy) {
    const auto report = callbacks::html_report({.file = path("report.html")});
    fit(strategy, {report});
    return report->state().is_null() ? 1 : 0;
  });
  EXPECT_EQ(states, (std::vector<int>{0, 1}));
  EXPECT_EQ(report().steps, 8);
  MirroredStrategy strategy({.devices = lanes(1), .replicas = 1});
  fit(strategy, {callbacks::html_report({.file = path("dry.html")})}, true);
  EXPECT_FALSE(std::filesystem::exists(path("dry.html")));
}

TEST_F(HtmlReportCallback, RefusesAFileThatCannotBe) {
  expect_error<UsageError>([] { callbacks::html_report({}); }, "LS-OPTION");
  write("file", "");
  MirroredStrategy strategy({.devices = lanes(1), .replicas = 1});
  expect_error<DataError>([&] { fit(strategy, {callbacks::html_report({.file = path("file/report.html")})}); },
                          "LS-FILE", {"file'"});
}

}  // namespace lockstep::testing
