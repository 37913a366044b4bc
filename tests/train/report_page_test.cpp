// The report of a run: what stands in it and in which order, that it loads nothing and is no way in for HTML, its
// colours, its size; and what a browser makes of it, where there is one.
#include "lockstep/train/report/report_page.h"

#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <cstdlib>
#include <limits>
#include <nlohmann/json.hpp>
#include <regex>
#include <set>
#include <string>
#include <vector>

#include "lockstep/core/error.h"
#include "lockstep/train/report/html_text.h"
#include "lockstep/train/report/line_chart.h"
#include "lockstep/train/report/page_style.h"
#include "lockstep/train/report/report_sections.h"
#include "tests/support/errors.h"
#include "tests/support/run_program.h"
#include "tests/support/scratch_folder.h"

namespace lockstep::internal {
namespace {

using testing::expect_error;

/// A run of ten epochs that was stopped, with something of everything.
RunReport example() {
  RunReport run{.title = "digits, run 7",
                .state = RunOutcome::kStopped,
                .why = "val_loss has not improved for 3 epochs",
                .began = "2026-11-28 09:00:00 UTC",
                .written = "2026-11-28 09:00:32 UTC",
                .steps = 1200,
                .samples = 307200,
                .seconds = 31.8,
                .input_seconds = 2.5,
                .validation_seconds = 3.25,
                .resumes = {600},
                .metrics = {"accuracy"},
                .lower_is_better = {"loss"}};
  for (int64_t step = 1; step <= 1200; ++step) {
    const auto at = static_cast<double>(step);
    run.curves["loss"].add(step, 2.25 * std::exp(-at / 200) + 0.25);
    run.curves["learning_rate"].add(step, 1e-3 * std::min(1.0, at / 60));
    run.curves["gradient_norm"].add(step, 1 + std::exp(-at / 500));
    run.curves["samples_per_second"].add(step, 9800 + 100 * std::sin(at));
  }
  for (int64_t epoch = 0; epoch < 10; ++epoch) {
    const auto at = static_cast<double>(epoch);
    const double loss = 0.5 - 0.0625 * at + (epoch > 6 ? 0.125 * (at - 6) : 0);
    run.validation["loss"].add((epoch + 1) * 120, loss);
    run.validation["accuracy"].add((epoch + 1) * 120, 1 - loss);
    run.epochs.push_back({.epoch = epoch,
                          .step = (epoch + 1) * 120,
                          .logs = {{"loss", 0.75 - at / 20}, {"val_loss", loss}, {"val_accuracy", 1 - loss}}});
  }
  run.findings.push_back({"LS-INPUT-SLOW", 500, 60, "the lanes waited for input\nread ahead further"});
  run.checkpoints = {{.step = 840, .bytes = 5100000, .is_best = true}, {.step = 1200, .bytes = 5100000}};
  run.variables.push_back({"conv1.weight", "[32, 1, 3, 3]", 288, 1.5, 2.5});
  run.facts = {{"command", "train --model cnn"}, {"weights sha256", "9f2c41d0"}};
  return run;
}

std::size_t count_of(const std::string& text, const std::string& piece) {
  std::size_t count = 0;
  for (std::size_t at = text.find(piece); at != std::string::npos; at = text.find(piece, at + 1)) ++count;
  return count;
}

/// The places of the pieces in the text, in their order, ascend.
void expect_in_order(const std::string& text, const std::vector<std::string>& pieces) {
  std::size_t from = 0;
  for (const std::string& piece : pieces) {
    const std::size_t found = text.find(piece, from);
    EXPECT_NE(found, std::string::npos) << piece;
    if (found != std::string::npos) from = found;
  }
}

TEST(ReportPage, AnswersInTheOrderInWhichOneAsks) {
  expect_in_order(report_page(example()), {"stopped</p>",
                                           "digits, run 7",
                                           "val_loss has not improved",
                                           "Best validation loss",
                                           "0.1250",
                                           "epoch 7 of 10",
                                           "Best validation accuracy",
                                           "0.8750",
                                           "samples/s",
                                           "31.8 s",
                                           "<h2>Findings",
                                           "LS-INPUT-SLOW",
                                           "the lanes waited",
                                           "Cure:",
                                           "read ahead further",
                                           "<h2>Curves",
                                           "loss, by step",
                                           "accuracy, by step",
                                           "<h2>Speed",
                                           "Samples a second",
                                           "waiting for input",
                                           "<h2>Optimizer",
                                           "Learning rate",
                                           "Norm of the gradient",
                                           "conv1.weight",
                                           "<h2>Checkpoints",
                                           "best",
                                           "5.1 MB",
                                           "last",
                                           "<h2>What ran",
                                           "train --model cnn",
                                           "9f2c41d0",
                                           "<h2>Numbers",
                                           "val_accuracy"});
}

TEST(ReportPage, HasTheNumbersOfTheRun) {
  const std::string page = report_page(example());
  EXPECT_NE(page.find("training from 2.489 to 0.2556; validation from 0.5000 to 0.3125"), std::string::npos);
  EXPECT_NE(page.find("steps 82 %, waiting for input 8 %, validation 10 %"), std::string::npos);
  EXPECT_NE(page.find(">resumed</text>"), std::string::npos);
  EXPECT_NE(page.find(">best</text>"), std::string::npos);
  EXPECT_NE(page.find("9,660 samples/s"), std::string::npos);
}

TEST(ReportPage, LoadsNothing) {
  const std::string page = report_page(example());
  for (const char* const piece : {"://", "src=", "href=", "url(", "@import", "fetch(", "import "}) {
    EXPECT_EQ(count_of(page, piece), 0u) << piece;
  }
  EXPECT_NE(page.find("default-src 'none'"), std::string::npos);
  EXPECT_EQ(count_of(page, "unsafe"), 0u);
}

TEST(ReportPage, IsNoWayInForHtml) {
  const std::string evil = "</script><script>alert(1)</script><img src=x onerror=\"alert(2)\" '&";
  RunReport run = example();
  run.title = run.why = run.began = run.written = evil;
  run.metrics = {evil};
  run.curves[evil].add(1, 1);
  run.validation[evil].add(1, 1);
  run.epochs.back().logs[evil] = 1;
  run.findings = {{evil, 1, 1, evil + "\n" + evil}};
  run.variables = {{evil, evil, 1, 1, 1}};
  run.facts = {{evil, evil}};
  const std::string page = report_page(run);
  EXPECT_EQ(count_of(page, "<script"), 3u);
  EXPECT_EQ(count_of(page, "</script"), 3u);
  EXPECT_EQ(count_of(page, "<img"), 0u);
  EXPECT_EQ(count_of(page, "onerror=\""), 0u);
  EXPECT_EQ(run_in_page(page, "it").title, evil);
}

TEST(ReportPage, TakesBytesThatAreNoUtf8) {
  RunReport run = example();
  run.title = "a\xff\xfe";
  EXPECT_EQ(run_in_page(report_page(run), "it").title, "a\xef\xbf\xbd\xef\xbf\xbd");
}

TEST(ReportPage, CarriesTheRun) {
  const RunReport run = example();
  EXPECT_EQ(RunReport::from_json(run.to_json()).to_json(), run.to_json());
  const RunReport carried = run_in_page(report_page(run), "it");
  EXPECT_EQ(carried.state, RunOutcome::kStopped);
  EXPECT_EQ(carried.epochs.size(), 10u);
  EXPECT_EQ(carried.epochs[3].logs, run.epochs[3].logs);
  EXPECT_EQ(carried.curves.at("loss").points().size(), run.curves.at("loss").points().size());
  expect_error<DataError>([] { run_in_page("<html></html>", "'a.html'"); }, "LS-DATA-FILE", {"'a.html'"});
  std::string cut = report_page(run);
  cut.replace(cut.find("\"epochs\":["), 3, "???");
  expect_error<DataError>([&] { run_in_page(cut, "'a.html'"); }, "LS-DATA-FILE");
}

TEST(ReportPage, ShowsARunThatHasHardlyBegun) {
  const std::string page = report_page({.title = "new"});
  EXPECT_NE(page.find("No value was logged"), std::string::npos);
  EXPECT_EQ(count_of(page, "nan"), 0u);
  EXPECT_EQ(run_in_page(page, "it").steps, 0);
}

TEST(ReportPage, ShowsARunWithoutFiniteValues) {
  RunReport run{.title = "broken", .state = RunOutcome::kFailed, .lower_is_better = {"loss"}};
  const double nan = std::numeric_limits<double>::quiet_NaN();
  run.curves["loss"].add(12, nan);
  run.epochs.push_back({.epoch = 0, .step = 12, .logs = {{"loss", nan}, {"other", -1 / 0.0}}});
  const std::string page = report_page(run);
  EXPECT_NE(page.find("came at step 12"), std::string::npos);
  EXPECT_NE(page.find("no epoch has ended with a finite value"), std::string::npos);
  const auto logs = run_in_page(page, "it").epochs.at(0).logs;
  EXPECT_TRUE(std::isnan(logs.at("loss")));
  EXPECT_EQ(logs.at("other"), -std::numeric_limits<double>::infinity());
}

TEST(ReportPage, IsSmallWithManyLongCurves) {
  RunReport run = example();
  for (int i = 0; i < 60; ++i) {
    ThinnedCurve& curve = run.curves["metric_" + std::to_string(i)];
    for (int64_t step = 0; step < 100000; ++step) curve.add(step, std::sin(static_cast<double>(step) / (i + 1)));
  }
  const std::string page = report_page(run);
  EXPECT_LT(page.size(), 1'300'000u);
  EXPECT_EQ(count_of(page, "<figure"), 66u);
}

TEST(BestValueOf, IsNeverNanAndKnowsWhatIsBetter) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  RunReport run{.lower_is_better = {"loss"}};
  run.epochs = {{.epoch = 0, .step = 5, .logs = {{"val_loss", nan}, {"val_accuracy", 0.25}}},
                {.epoch = 1, .step = 10, .logs = {{"val_loss", 0.5}, {"val_accuracy", 0.75}}},
                {.epoch = 2, .step = 15, .logs = {{"val_loss", 0.25}, {"val_accuracy", 0.5}}},
                {.epoch = 3, .step = 20, .logs = {{"val_loss", 0.25}}}};
  EXPECT_EQ(best_value(run, "val_loss")->epoch, 2);
  EXPECT_EQ(best_value(run, "val_accuracy")->epoch, 1);
  EXPECT_FALSE(best_value(run, "val_nothing"));
}

// Colours, as the style sheet names them.

double luminance(const std::string& colour) {
  const auto part = [&](std::size_t at) {
    const double share = std::stoi(colour.substr(at, 2), nullptr, 16) / 255.0;
    return share <= 0.04045 ? share / 12.92 : std::pow((share + 0.055) / 1.055, 2.4);
  };
  return 0.2126 * part(1) + 0.7152 * part(3) + 0.0722 * part(5);
}

TEST(ReportPage, TextStandsOutInEachMode) {
  const std::string style = kPageStyle;
  const std::regex colour("--([a-z0-9]+):(#[0-9a-f]{6})");
  for (std::size_t at = style.find(":root"); at != std::string::npos; at = style.find(":root", at + 1)) {
    const std::string block = style.substr(at, style.find('}', at) - at);
    std::map<std::string, std::string> colours;
    for (std::sregex_iterator it(block.begin(), block.end(), colour), end; it != end; ++it)
      colours[(*it)[1]] = (*it)[2];
    ASSERT_EQ(colours.size(), 14u) << block;
    for (const char* const ground : {"ground", "card"}) {
      for (const auto& [name, value] : colours) {
        if (name == "ground" || name == "card" || name == "rule") continue;
        const double a = luminance(colours[ground]) + 0.05;
        const double b = luminance(value) + 0.05;
        EXPECT_GE(std::max(a, b) / std::min(a, b), 4.5) << name << " on " << ground;
      }
    }
  }
}

TEST(RoundTicks, AreRoundAndWithinTheRange) {
  EXPECT_EQ(round_ticks(0, 10, 5), (std::vector<double>{0, 2, 4, 6, 8, 10}));
  EXPECT_EQ(round_ticks(-1.2, 1.3, 5), (std::vector<double>{-1, -0.5, 0, 0.5, 1}));
  EXPECT_EQ(round_ticks(3, 3, 5), (std::vector<double>{3}));
}

TEST(HtmlText, SaysNumbersForReaders) {
  EXPECT_EQ(short_number(0.40224), "0.4022");
  EXPECT_EQ(short_number(9780.4), "9,780");
  EXPECT_EQ(short_number(-1234567), "-1,234,567");
  EXPECT_EQ(short_number(12.3456), "12.35");
  EXPECT_EQ(short_number(1.2e-5), "1.200e-05");
  EXPECT_EQ(short_number(0), "0");
  EXPECT_EQ(short_number(std::numeric_limits<double>::quiet_NaN()), "NaN");
  EXPECT_EQ(duration_text(0.0123), "12 ms");
  EXPECT_EQ(duration_text(31.84), "31.8 s");
  EXPECT_EQ(duration_text(725), "12 min 5 s");
  EXPECT_EQ(duration_text(12000), "3 h 20 min");
  EXPECT_EQ(size_text(5100000), "5.1 MB");
  EXPECT_EQ(size_text(12), "12 B");
  EXPECT_EQ(percent_text(1, 0), "0 %");
}

// What a browser makes of it.

class ReportInBrowser : public testing::ScratchFolder {
 protected:
  /// What headless Chromium prints, or an empty text where there is none.
  std::string browse(const std::string& arguments) const {
    for (const char* const program : {"chromium", "chromium-browser", "google-chrome"}) {
      if (std::system(("command -v " + std::string(program) + " >/dev/null 2>&1").c_str()) != 0) continue;
      const std::string command = "timeout 60 " + std::string(program) +
                                  " --headless --no-sandbox --disable-gpu --disable-dev-shm-usage --user-data-dir='" +
                                  path("profile") + "' " + arguments + " 2>/dev/null";
      return testing::run_program("sh", "-c \"" + command + "\"").output;
    }
    return "";
  }
};

TEST_F(ReportInBrowser, ShowsValuesWhereTheKeysGo) {
  // The page as it is, in a frame, with a script beside it that presses a key and copies what the page then says.
  std::string page = report_page(example());
  const std::string probe =
      "<script>addEventListener('load',()=>{const f=document.querySelector('iframe').contentDocument,"
      "s=f.querySelector('[data-chart=loss] svg');for(let i=0;i<51;i++)s.dispatchEvent(new KeyboardEvent('keydown',"
      "{key:'ArrowRight',bubbles:true}));document.body.append('SAYS '+f.querySelector('[data-chart=loss] output')"
      ".textContent+' WIDE '+(f.documentElement.scrollWidth>f.documentElement.clientWidth))})</script>";
  write("report.html", page);
  write("probe.html", "<iframe src='report.html' style='width:390px;height:800px'></iframe>" + probe);
  const std::string dom =
      browse("--allow-file-access-from-files --virtual-time-budget=3000 --dump-dom '" + path("probe.html") + "'");
  if (dom.empty()) GTEST_SKIP() << "needs Chromium";
  std::smatch said;
  ASSERT_TRUE(std::regex_search(dom, said, std::regex("SAYS training ([0-9.]+) \\(step ([0-9,]+)\\)"))) << dom;
  const std::string step = std::regex_replace(said[2].str(), std::regex(","), "");
  EXPECT_NEAR(std::stod(said[1]), 2.25 * std::exp(-std::stod(step) / 200) + 0.25, 1e-5) << "at step " << step;
  EXPECT_NE(dom.find("validation 0."), std::string::npos) << dom;
  EXPECT_NE(dom.find("WIDE false"), std::string::npos) << dom;
}

TEST_F(ReportInBrowser, DrawsEachCurveInLightAndInDark) {
  write("report.html", report_page(example()));
  // Of each chart the longest line that the browser has laid out, and the colour of the ground.
  write(
      "probe.html",
      "<iframe src='report.html' style='width:1000px;height:800px'></iframe>"
      "<script>addEventListener('load',()=>{const f=document.querySelector('iframe').contentDocument,"
      "charts=[...f.querySelectorAll('[data-chart] svg')],drawn=charts.filter(c=>Math.max(0,...[...c.querySelectorAll("
      "'path,polyline')].map(p=>p.getTotalLength()))>100&&c.getBoundingClientRect().height>50);document.body.append("
      "'DRAWN '+drawn.length+' OF '+charts.length+' ON '+f.defaultView.getComputedStyle(f.body).backgroundColor+"
      "' / '+f.defaultView.getComputedStyle(f.documentElement).backgroundColor+' END')})</script>");
  std::set<std::string> grounds;
  for (const char* const mode : {"", "--force-dark-mode"}) {
    const std::string dom = browse(std::string(mode) + " --allow-file-access-from-files --virtual-time-budget=3000 " +
                                   "--dump-dom '" + path("probe.html") + "'");
    if (dom.empty()) GTEST_SKIP() << "needs Chromium";
    std::smatch said;
    ASSERT_TRUE(std::regex_search(dom, said, std::regex("DRAWN ([0-9]+) OF ([0-9]+) ON ([^E]*) END"))) << dom;
    EXPECT_EQ(said[1].str(), said[2].str()) << mode;
    EXPECT_GE(std::stoi(said[2].str()), 5) << mode;
    grounds.insert(said[3].str());
  }
  EXPECT_EQ(grounds.size(), 2u) << "the same colours in light and in dark: " << *grounds.begin();
}

TEST_F(ReportInBrowser, Prints) {
  write("report.html", report_page(example()));
  browse("--print-to-pdf='" + path("report.pdf") + "' '" + path("report.html") + "'");
  if (!std::filesystem::exists(path("report.pdf"))) GTEST_SKIP() << "needs Chromium";
  const std::string pdf = testing::text_of(path("report.pdf"));
  EXPECT_EQ(pdf.substr(0, 4), "%PDF");
  EXPECT_GE(count_of(pdf, "/Type /Page\n") + count_of(pdf, "/Type /Page "), 2u) << "it has pages, and not all on one";
}

}  // namespace
}  // namespace lockstep::internal
