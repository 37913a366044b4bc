// The program `lockstep report`, as a user runs it.
#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <string>

#include "lockstep/train/report/report_page.h"
#include "lockstep/train/report/run_report.h"
#include "tests/support/run_program.h"
#include "tests/support/scratch_folder.h"

namespace lockstep::testing {
namespace {

class ReportCommand : public ScratchFolder {
 protected:
  /// Writes the report of a run of two epochs, whose best loss is this.
  std::string report(const std::string& name, double loss, const std::string& command) const {
    internal::RunReport run{.title = name,
                            .state = internal::RunOutcome::kFinished,
                            .steps = 1200,
                            .samples = 4000,
                            .seconds = 2,
                            .lower_is_better = {"loss"}};
    run.epochs = {{.epoch = 0, .step = 600, .logs = {{"val_loss", loss}}},
                  {.epoch = 1, .step = 1200, .logs = {{"val_loss", loss + 1}}}};
    run.facts = {{"command", command}, {"fingerprint", "equal"}};
    return write(name + ".html", internal::report_page(run));
  }
};

TEST_F(ReportCommand, ShowsRunsBesideEachOther) {
  const std::string files = report("one", 0.5, "train --seed 1") + " " + report("two", 0.25, "train --seed 2");
  const Result result = run("report " + files);
  EXPECT_EQ(result.code, 0) << result.output;
  for (const char* const piece : {"one", "two", "0.5000 (epoch 1)", "0.2500 (epoch 1)", "1,200", "2,000", "--seed 1"}) {
    EXPECT_NE(result.output.find(piece), std::string::npos) << piece << " in " << result.output;
  }
  EXPECT_EQ(result.output.find("fingerprint"), std::string::npos) << result.output;

  const auto json = nlohmann::json::parse(run("report --json " + files).output);
  EXPECT_EQ(json.at("runs").size(), 2u);
  EXPECT_EQ(json["runs"][1]["best"]["val_loss"], (nlohmann::json{{"value", 0.25}, {"epoch", 0}, {"step", 600}}));
  EXPECT_EQ(json["different"], nlohmann::json{"command"});
}

TEST_F(ReportCommand, RefusesWhatIsNoReport) {
  const Result missing = run("report " + path("nothing.html"));
  EXPECT_EQ(missing.code, 3) << missing.output;
  EXPECT_NE(missing.output.find("nothing.html"), std::string::npos);
  write("page.html", "<html></html>");
  EXPECT_EQ(run("report " + path("page.html")).code, 3);
  EXPECT_EQ(run("report").code, 2);
}

}  // namespace
}  // namespace lockstep::testing
