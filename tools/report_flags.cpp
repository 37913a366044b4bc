// The flags of `lockstep report`.
#include <CLI/CLI.hpp>
#include <memory>

#include "tools/report.h"
#include "tools/subcommands.h"

namespace lockstep::tools {

void add_report(CLI::App& app, Action& chosen) {
  CLI::App* const report = app.add_subcommand("report", "Show reports of runs beside each other");
  const auto options = std::make_shared<ReportCommandOptions>();
  report->add_option("files", options->files, "pages that html_report has written")->required();
  report->add_flag("--json", options->json, "print a JSON object");
  report->callback([options, &chosen] { chosen = [options] { return compare_reports(*options); }; });
}

}  // namespace lockstep::tools
