#include "lockstep/train/report/report_sections.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <set>
#include <utility>

#include "lockstep/core/counted.h"
#include "lockstep/train/report/html_text.h"

namespace lockstep::internal::inline train {

namespace {

constexpr std::string_view kValidation = "val_";

std::string section(const std::string& head, const std::string& content) {
  return content.empty() ? "" : fmt::format("<section><h2>{}</h2>{}</section>", head, content);
}

bool has_validation(const RunReport& run) { return !run.validation.empty(); }

/// "val_loss" where there is validation, otherwise "loss".
std::string judged_name(const RunReport& run, const std::string& name) {
  return has_validation(run) ? std::string(kValidation) + name : name;
}

std::string figure_of(const std::string& name, const std::string& value, const std::string& note) {
  return fmt::format("<div><dt>{}</dt><dd class=\"value\">{}</dd><dd class=\"soft\">{}</dd></div>", escaped(name),
                     escaped(value), escaped(note));
}

/// The best value of a loss or metric, with its epoch.
std::string best_figure(const RunReport& run, const std::string& name) {
  const std::string judged = judged_name(run, name);
  const std::string title = has_validation(run) ? "Best validation " + name : "Best " + name;
  const auto best = best_value(run, judged);
  if (!best) return figure_of(title, "none", "no epoch has ended with a finite value");
  return figure_of(title, short_number(best->value),
                   fmt::format("epoch {} of {}, step {}", shown_epoch(best->epoch),
                               shown_epoch(run.epochs.back().epoch), whole_number(best->step)));
}

/// What the time of a run went into, without what is 0. That of the steps is in parts, where these were measured.
std::vector<std::pair<std::string, double>> parts_of(const RunReport& run) {
  const double steps = std::max(run.seconds - run.input_seconds - run.validation_seconds - run.callback_seconds, 0.0);
  std::vector<std::pair<std::string, double>> parts;
  double rest = steps;
  for (const char* const name : {"computing", "update", "communication", "waiting for others"}) {
    const auto found = run.step_shares.find(name);
    if (found == run.step_shares.end() || !std::isfinite(found->second)) continue;
    parts.emplace_back(name, std::min(steps * found->second, rest));
    rest -= parts.back().second;
  }
  parts.emplace_back(run.step_shares.empty() ? "steps" : "rest of the steps", rest);
  parts.insert(parts.end(), {{"waiting for input", run.input_seconds},
                             {"validation", run.validation_seconds},
                             {"callbacks", run.callback_seconds}});
  std::erase_if(parts, [](const auto& part) { return !(part.second > 0); });
  return parts;
}

std::string bar_of(const RunReport& run) {
  const auto parts = parts_of(run);
  double whole = 0;
  for (const auto& [name, seconds] : parts) whole += seconds;
  if (!(whole > 0)) return "";
  std::string label;
  std::string bar;
  std::string legend;
  double x = 0;
  for (std::size_t i = 0; i < parts.size(); ++i) {
    const auto& [name, seconds] = parts[i];
    const double width = seconds / whole * 640;
    label += (i == 0 ? "" : ", ") + name + " " + percent_text(seconds, whole);
    bar += fmt::format("<rect class=\"part s{}\" x=\"{:.1f}\" y=\"2\" width=\"{:.1f}\" height=\"40\"/>", i, x, width);
    x += width;
    legend += fmt::format(
        "<li><svg viewBox=\"0 0 16 16\" aria-hidden=\"true\"><rect class=\"part s{}\" width=\"16\" "
        "height=\"16\"/></svg>"
        "{} <b>{}</b> {}</li>",
        i, name, duration_text(seconds), percent_text(seconds, whole));
  }
  return fmt::format(
      "<figure><figcaption>Where the time of {} went</figcaption><svg viewBox=\"0 0 640 44\" role=\"img\" "
      "aria-label=\"{}\">{}</svg><ul class=\"legend\">{}</ul></figure>",
      duration_text(whole), escaped(label), bar, legend);
}

/// The steps at which something happened that explains a curve.
std::vector<ChartMark> marks_of(const RunReport& run, const std::string& name) {
  std::vector<ChartMark> marks;
  for (const int64_t step : run.resumes) marks.push_back({step, "resumed"});
  for (const ReportCheckpoint& checkpoint : run.checkpoints) {
    if (&checkpoint == &run.checkpoints.back()) marks.push_back({checkpoint.step, "last checkpoint"});
  }
  if (const auto best = best_value(run, judged_name(run, name))) marks.push_back({best->step, "best"});
  return marks;
}

std::vector<CurvePoint> points_in(const std::map<std::string, ThinnedCurve>& curves, const std::string& name) {
  const auto found = curves.find(name);
  return found == curves.end() ? std::vector<CurvePoint>() : found->second.points();
}

std::string not_finite_note(const std::map<std::string, ThinnedCurve>& curves, const std::string& name,
                            const std::string& whose) {
  const auto found = curves.find(name);
  if (found == curves.end() || !found->second.not_finite_at()) return "";
  return fmt::format("<p><b>Not finite:</b> the first value of {} {} that is no finite number came at step {}.</p>",
                     whose, escaped(name), whole_number(*found->second.not_finite_at()));
}

LineChart one_line(const RunReport& run, const std::string& name, std::string title) {
  return {.key = name,
          .title = std::move(title),
          .lines = {{.name = name, .points = points_in(run.curves, name), .part = "curves", .curve = name}},
          .from_zero = true};
}

std::string row_of_charts(std::vector<LineChart> own, std::vector<LineChart>& charts, const std::string& rest = {}) {
  std::string html;
  for (LineChart& chart : own) {
    html += chart_html(chart);
    charts.push_back(std::move(chart));
  }
  html += rest;
  return html.empty() ? "" : "<div class=\"charts\">" + html + "</div>";
}

constexpr std::string_view kOfLayer = "gradient_norm/";

/// The variables with the largest gradients, as many as a chart can tell apart.
LineChart gradients_by_layer(const RunReport& run) {
  constexpr std::size_t kMost = 6;
  std::vector<std::pair<double, std::string>> last;
  for (const auto& [name, curve] : run.curves) {
    if (name.rfind(kOfLayer, 0) != 0 || curve.points().empty()) continue;
    last.emplace_back(curve.points().back().value, name);
  }
  std::stable_sort(last.begin(), last.end(), [](const auto& a, const auto& b) { return a.first > b.first; });
  if (last.size() > kMost) last.resize(kMost);
  LineChart chart{
      .key = "gradients_by_layer", .title = "Norm of the gradient by variable, the largest ones", .from_zero = true};
  for (const auto& [value, name] : last) {
    chart.lines.push_back({.name = name.substr(kOfLayer.size()),
                           .points = points_in(run.curves, name),
                           .part = "curves",
                           .curve = name,
                           .style = static_cast<int>(chart.lines.size()),
                           .has_dots = true});
  }
  return chart;
}

/// Names that other sections have.
bool is_shown_elsewhere(const std::string& name) {
  return name == "samples_per_second" || name.rfind("gradient_norm", 0) == 0 || name.rfind("learning_rate", 0) == 0;
}

}  // namespace

std::optional<BestValue> best_value(const RunReport& run, const std::string& name) {
  const bool has_prefix = name.rfind(kValidation, 0) == 0;
  const bool lower = run.is_lower_better(has_prefix ? name.substr(kValidation.size()) : name);
  std::optional<BestValue> best;
  for (const ReportEpoch& epoch : run.epochs) {
    const auto found = epoch.logs.find(name);
    if (found == epoch.logs.end() || !std::isfinite(found->second)) continue;
    if (best && !(lower ? found->second < best->value : found->second > best->value)) continue;
    best = BestValue{found->second, epoch.epoch, epoch.step};
  }
  return best;
}

std::string summary_section(const RunReport& run) {
  const std::string state(word_of(run.state));
  std::string html =
      fmt::format("<header><p class=\"state {0}\" role=\"status\">{0}</p><h1>{1}</h1>", state, escaped(run.title));
  if (!run.why.empty()) html += fmt::format("<p>{}</p>", escaped(run.why));
  html += fmt::format("<p class=\"soft\">{} to {}</p></header>", escaped(run.began), escaped(run.written));
  html += "<section aria-label=\"Summary\"><dl class=\"figures\">" + best_figure(run, "loss");
  if (run.metrics.empty()) {
    html += figure_of("Epochs", whole_number(static_cast<int64_t>(run.epochs.size())), "that have ended");
  } else {
    html += best_figure(run, run.metrics.front());
  }
  const double rate = run.seconds > 0 ? static_cast<double>(run.samples) / run.seconds : 0;
  html += figure_of("Speed", short_number(rate) + " samples/s", "over all of the time");
  html += figure_of("Time", duration_text(run.seconds),
                    fmt::format("{} steps, {} samples", whole_number(run.steps), whole_number(run.samples)));
  return html + "</dl></section>";
}

std::string findings_section(const RunReport& run) {
  std::string html;
  for (const ReportFinding& finding : run.findings) {
    const std::size_t line_end = finding.text.find('\n');
    html += fmt::format("<div class=\"finding\"><h3>{} <small>step {}, in {}</small></h3><p>{}</p>",
                        escaped(finding.code), whole_number(finding.step), counted(finding.count, "step"),
                        escaped(finding.text.substr(0, line_end)));
    if (line_end != std::string::npos) {
      html += fmt::format("<p><b>Cure:</b> {}</p>", escaped(finding.text.substr(line_end + 1)));
    }
    html += "</div>";
  }
  if (html.empty()) html = "<p class=\"soft\">Nothing was noticed that looks like a mistake.</p>";
  return section("Findings", html);
}

std::string curves_section(const RunReport& run, std::vector<LineChart>& charts) {
  std::vector<std::string> names{"loss"};
  names.insert(names.end(), run.metrics.begin(), run.metrics.end());
  std::set<std::string> known(names.begin(), names.end());
  for (const auto* const curves : {&run.curves, &run.validation}) {
    for (const auto& [name, curve] : *curves) {
      if (!is_shown_elsewhere(name) && known.insert(name).second) names.push_back(name);
    }
  }
  std::vector<LineChart> own;
  std::string notes;
  for (const std::string& name : names) {
    LineChart chart{.key = name, .title = name + ", by step", .marks = marks_of(run, name)};
    chart.lines.push_back({.name = "training", .points = points_in(run.curves, name), .part = "curves", .curve = name});
    chart.lines.push_back({.name = "validation",
                           .points = points_in(run.validation, name),
                           .part = "validation",
                           .curve = name,
                           .style = 1,
                           .has_dots = true});
    std::erase_if(chart.lines, [](const ChartLine& line) { return line.points.empty(); });
    if (chart.lines.empty() && name != "loss") continue;
    own.push_back(std::move(chart));
    notes += not_finite_note(run.curves, name, "training's") + not_finite_note(run.validation, name, "validation's");
  }
  return section("Curves", notes + row_of_charts(std::move(own), charts));
}

std::string speed_section(const RunReport& run, std::vector<LineChart>& charts) {
  std::vector<LineChart> own;
  if (run.curves.count("samples_per_second") != 0) {
    own.push_back(one_line(run, "samples_per_second", "Samples a second, by step"));
    own.back().lines.front().name = "samples/s";
    for (const int64_t step : run.resumes) own.back().marks.push_back({step, "resumed"});
  }
  return section("Speed", row_of_charts(std::move(own), charts, bar_of(run)));
}

std::string optimizer_section(const RunReport& run, std::vector<LineChart>& charts) {
  std::vector<LineChart> own;
  LineChart rates{.key = "learning_rate", .title = "Learning rate, by step", .from_zero = true};
  for (const auto& [name, curve] : run.curves) {
    if (name.rfind("learning_rate", 0) != 0) continue;
    const int style = static_cast<int>(rates.lines.size() % 6);
    const std::string group = name == "learning_rate" ? "rate" : "rate " + name.substr(name.find('/') + 1);
    rates.lines.push_back({.name = group, .points = curve.points(), .part = "curves", .curve = name, .style = style});
  }
  if (!rates.lines.empty()) own.push_back(std::move(rates));
  if (run.curves.count("gradient_norm") != 0) {
    own.push_back(one_line(run, "gradient_norm", "Norm of the gradient before clipping, by step"));
    own.back().lines.front().name = "norm";
  }
  LineChart layers = gradients_by_layer(run);
  if (!layers.lines.empty()) own.push_back(std::move(layers));
  std::string html = row_of_charts(std::move(own), charts);
  if (!run.variables.empty()) {
    std::vector<std::vector<std::string>> rows;
    int64_t elements = 0;
    for (const ReportVariable& one : run.variables) {
      elements += one.elements;
      rows.push_back({"<code>" + escaped(one.name) + "</code>", escaped(one.shape), whole_number(one.elements),
                      short_number(one.norm_before), short_number(one.norm),
                      one.gradient_norm ? short_number(*one.gradient_norm) : ""});
    }
    html += fmt::format(
        "<details open><summary>{}, {}</summary>{}</details>",
        counted(static_cast<int64_t>(run.variables.size()), "variable"), counted(elements, "element"),
        table_html({"variable", "shape", "elements", "norm at the beginning", "norm now", "norm of the gradient"}, rows,
                   2));
  }
  return section("Optimizer and variables", html);
}

std::string checkpoints_section(const RunReport& run) {
  std::vector<std::vector<std::string>> rows;
  for (const ReportCheckpoint& one : run.checkpoints) {
    const bool is_last = &one == &run.checkpoints.back();
    const std::string what = one.is_best ? is_last ? "best, last" : "best" : is_last ? "last" : "";
    rows.push_back({what, whole_number(one.step), size_text(one.bytes)});
  }
  return rows.empty() ? "" : section("Checkpoints", table_html({"", "step", "size"}, rows, 1));
}

std::string facts_section(const RunReport& run) {
  std::string html;
  for (const auto& [name, text] : run.facts) {
    html += fmt::format("<dt>{}</dt><dd><pre>{}</pre></dd>", escaped(name), escaped(text));
  }
  return section("What ran", html.empty() ? "" : "<dl class=\"facts\">" + html + "</dl>");
}

std::string numbers_section(const RunReport& run) {
  std::set<std::string> names;
  for (const ReportEpoch& epoch : run.epochs) {
    for (const auto& [name, value] : epoch.logs) names.insert(name);
  }
  std::vector<std::string> head{"epoch", "step"};
  head.insert(head.end(), names.begin(), names.end());
  std::vector<std::vector<std::string>> rows;
  for (const ReportEpoch& epoch : run.epochs) {
    std::vector<std::string> row{whole_number(shown_epoch(epoch.epoch)), whole_number(epoch.step)};
    for (const std::string& name : names) {
      const auto found = epoch.logs.find(name);
      row.push_back(found == epoch.logs.end() ? "" : short_number(found->second));
    }
    rows.push_back(std::move(row));
  }
  if (rows.empty()) return "";
  return section("Numbers",
                 "<details><summary>All epochs as a table</summary>" + table_html(head, rows, 0) + "</details>");
}

}  // namespace lockstep::internal::train
