#include "tools/report.h"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <set>
#include <utility>

#include "lockstep/core/error.h"
#include "lockstep/train/report/html_text.h"
#include "lockstep/train/report/report_page.h"
#include "lockstep/train/report/report_sections.h"
#include "lockstep/train/report/run_report.h"
#include "tools/console.h"
#include "tools/exit_status.h"

namespace lockstep::tools {

namespace {

using internal::RunReport;
using Json = nlohmann::ordered_json;

RunReport report_in(const std::string& file) {
  std::ifstream in(file, std::ios::binary);
  const std::string page{std::istreambuf_iterator<char>(in), {}};
  if (!in.is_open() || in.bad()) {
    throw DataError("LS-DATA-FILE", fmt::format("'{}' cannot be read: {}", file, std::strerror(errno)),
                    "name a file that html_report has written");
  }
  return internal::run_in_page(page, "'" + file + "'");
}

double rate_of(const RunReport& run) { return run.seconds > 0 ? static_cast<double>(run.samples) / run.seconds : 0; }

/// The losses and metrics of any of the runs as their epochs' logs name them, the main ones first.
std::vector<std::string> names_in(const std::vector<RunReport>& runs) {
  std::vector<std::string> names;
  for (const RunReport& run : runs) {
    std::vector<std::string> own{"loss"};
    own.insert(own.end(), run.metrics.begin(), run.metrics.end());
    for (const std::string& name : own) {
      for (const std::string& one : {"val_" + name, name}) {
        const bool is_logged = std::any_of(run.epochs.begin(), run.epochs.end(),
                                           [&](const auto& epoch) { return epoch.logs.count(one) != 0; });
        if (is_logged && std::find(names.begin(), names.end(), one) == names.end()) names.push_back(one);
      }
    }
  }
  return names;
}

std::string fact_of(const RunReport& run, const std::string& name) {
  for (const auto& [one, text] : run.facts) {
    if (one == name) return text;
  }
  return "";
}

/// Names of facts that are not the same in all runs.
std::vector<std::string> differing_facts(const std::vector<RunReport>& runs) {
  std::vector<std::string> names;
  for (const RunReport& run : runs) {
    for (const auto& [name, text] : run.facts) {
      const bool differs =
          std::any_of(runs.begin(), runs.end(), [&](const RunReport& other) { return fact_of(other, name) != text; });
      if (differs && std::find(names.begin(), names.end(), name) == names.end()) names.push_back(name);
    }
  }
  return names;
}

/// The first line of a text, cut where it is long for a column.
std::string for_column(const std::string& text) {
  constexpr std::size_t kLongest = 40;
  const std::string line = text.substr(0, text.find('\n'));
  return line.size() > kLongest ? line.substr(0, kLongest - 3) + "..." : line;
}

std::string findings_of(const RunReport& run) {
  std::set<std::string> codes;
  for (const auto& finding : run.findings) codes.insert(finding.code);
  std::string text;
  for (const std::string& code : codes) text += (text.empty() ? "" : ", ") + code;
  return text.empty() ? "none" : text;
}

Json json_of(const RunReport& run, const std::string& file, const std::vector<std::string>& names) {
  Json json{{"file", file},
            {"title", run.title},
            {"state", internal::word_of(run.state)},
            {"why", run.why},
            {"steps", run.steps},
            {"samples", run.samples},
            {"seconds", run.seconds},
            {"samples_per_second", rate_of(run)},
            {"best", Json::object()},
            {"findings", Json::array()},
            {"facts", Json::object()}};
  for (const std::string& name : names) {
    const auto best = internal::best_value(run, name);
    if (best) json["best"][name] = {{"value", best->value}, {"epoch", best->epoch}, {"step", best->step}};
  }
  for (const auto& finding : run.findings) json["findings"].push_back(finding.code);
  for (const auto& [name, text] : run.facts) json["facts"][name] = text;
  return json;
}

}  // namespace

int compare_reports(const ReportCommandOptions& options) {
  std::vector<RunReport> runs;
  for (const std::string& file : options.files) runs.push_back(report_in(file));
  const std::vector<std::string> names = names_in(runs);
  if (options.json) {
    Json json{{"runs", Json::array()}, {"different", differing_facts(runs)}};
    for (std::size_t i = 0; i < runs.size(); ++i) json["runs"].push_back(json_of(runs[i], options.files[i], names));
    print_json(json);
    return kClean;
  }
  std::vector<std::vector<std::string>> rows;
  const auto add = [&](const std::string& name, const auto& cell) {
    rows.push_back({name});
    for (const RunReport& run : runs) rows.back().push_back(cell(run));
  };
  add("", [](const RunReport& run) { return for_column(run.title); });
  add("state", [](const RunReport& run) { return std::string(internal::word_of(run.state)); });
  add("why", [](const RunReport& run) { return for_column(run.why); });
  add("steps", [](const RunReport& run) { return internal::whole_number(run.steps); });
  add("time", [](const RunReport& run) { return internal::duration_text(run.seconds); });
  add("samples/s", [](const RunReport& run) { return internal::short_number(rate_of(run)); });
  add("waiting for input", [](const RunReport& run) { return internal::percent_text(run.input_seconds, run.seconds); });
  for (const std::string& name : names) {
    add("best " + name, [&](const RunReport& run) {
      const auto best = internal::best_value(run, name);
      return best
                 ? fmt::format("{} (epoch {})", internal::short_number(best->value), internal::shown_epoch(best->epoch))
                 : "none";
    });
  }
  add("findings", findings_of);
  for (const std::string& name : differing_facts(runs)) {
    add(name, [&](const RunReport& run) { return for_column(fact_of(run, name)); });
  }
  print_columns(rows);
  return kClean;
}

}  // namespace lockstep::tools
