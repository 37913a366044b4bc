#include "lockstep/train/report/run_report.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>

#include "lockstep/train/numbers.h"

namespace lockstep::internal::inline train {

namespace {

using nlohmann::json;

constexpr std::array<std::string_view, 4> kStateWords{"running", "finished", "stopped", "failed"};

json json_of(const std::map<std::string, ThinnedCurve>& curves) {
  json all = json::object();
  for (const auto& [name, curve] : curves) all[name] = curve.to_json();
  return all;
}

std::map<std::string, ThinnedCurve> curves_of(const json& all) {
  std::map<std::string, ThinnedCurve> curves;
  for (const auto& [name, curve] : all.items()) curves[name] = ThinnedCurve::from_json(curve);
  return curves;
}

/// Sets `value` to the member, where the object has it.
template <class T>
void take(const json& object, const char* name, T& value) {
  if (object.contains(name)) value = object.at(name).get<T>();
}

}  // namespace

std::string_view word_of(RunOutcome state) { return kStateWords.at(static_cast<std::size_t>(state)); }

bool RunReport::is_lower_better(const std::string& name) const {
  return std::find(lower_is_better.begin(), lower_is_better.end(), name) != lower_is_better.end();
}

json RunReport::to_json() const {
  json all{{"format", 1},
           {"title", title},
           {"state", word_of(state)},
           {"why", why},
           {"began", began},
           {"written", written},
           {"steps", steps},
           {"samples", samples},
           {"seconds", json_of(seconds)},
           {"input_seconds", json_of(input_seconds)},
           {"validation_seconds", json_of(validation_seconds)},
           {"callback_seconds", json_of(callback_seconds)},
           {"step_shares", json::object()},
           {"resumes", resumes},
           {"curves", json_of(curves)},
           {"validation", json_of(validation)},
           {"metrics", metrics},
           {"lower_is_better", lower_is_better},
           {"epochs", json::array()},
           {"findings", json::array()},
           {"checkpoints", json::array()},
           {"variables", json::array()},
           {"facts", json::array()}};
  for (const auto& [name, share] : step_shares) all["step_shares"][name] = json_of(share);
  for (const ReportEpoch& one : epochs) {
    json logs = json::object();
    for (const auto& [name, value] : one.logs) logs[name] = json_of(value);
    all["epochs"].push_back({{"epoch", one.epoch}, {"step", one.step}, {"logs", std::move(logs)}});
  }
  for (const ReportFinding& one : findings) {
    all["findings"].push_back({{"code", one.code}, {"step", one.step}, {"count", one.count}, {"text", one.text}});
  }
  for (const ReportCheckpoint& one : checkpoints) {
    all["checkpoints"].push_back({{"step", one.step}, {"bytes", one.bytes}, {"best", one.is_best}});
  }
  for (const ReportVariable& one : variables) {
    all["variables"].push_back({{"name", one.name},
                                {"shape", one.shape},
                                {"elements", one.elements},
                                {"norm_before", json_of(one.norm_before)},
                                {"norm", json_of(one.norm)}});
    if (one.gradient_norm) all["variables"].back()["gradient_norm"] = json_of(*one.gradient_norm);
  }
  for (const auto& [name, text] : facts) all["facts"].push_back({name, text});
  return all;
}

RunReport RunReport::from_json(const json& all) {
  RunReport report;
  const auto take_number = [&](const char* name, double& value) {
    if (all.contains(name)) value = number_of(all.at(name));
  };
  take(all, "title", report.title);
  std::string state(word_of(report.state));
  take(all, "state", state);
  const auto* const word = std::find(kStateWords.begin(), kStateWords.end(), state);
  if (word != kStateWords.end()) report.state = static_cast<RunOutcome>(word - kStateWords.begin());
  take(all, "why", report.why);
  take(all, "began", report.began);
  take(all, "written", report.written);
  take(all, "steps", report.steps);
  take(all, "samples", report.samples);
  take_number("seconds", report.seconds);
  take_number("input_seconds", report.input_seconds);
  take_number("validation_seconds", report.validation_seconds);
  take_number("callback_seconds", report.callback_seconds);
  const json shares = all.value("step_shares", json::object());
  for (const auto& [name, share] : shares.items()) {
    report.step_shares[name] = number_of(share);
  }
  take(all, "resumes", report.resumes);
  report.curves = curves_of(all.value("curves", json::object()));
  report.validation = curves_of(all.value("validation", json::object()));
  take(all, "metrics", report.metrics);
  take(all, "lower_is_better", report.lower_is_better);
  for (const json& one : all.value("epochs", json::array())) {
    ReportEpoch epoch{.epoch = one.at("epoch"), .step = one.at("step")};
    for (const auto& [name, value] : one.at("logs").items()) epoch.logs[name] = number_of(value);
    report.epochs.push_back(std::move(epoch));
  }
  for (const json& one : all.value("findings", json::array())) {
    report.findings.push_back(
        {.code = one.at("code"), .step = one.at("step"), .count = one.at("count"), .text = one.at("text")});
  }
  for (const json& one : all.value("checkpoints", json::array())) {
    report.checkpoints.push_back({.step = one.at("step"), .bytes = one.at("bytes"), .is_best = one.at("best")});
  }
  for (const json& one : all.value("variables", json::array())) {
    report.variables.push_back({.name = one.at("name"),
                                .shape = one.at("shape"),
                                .elements = one.at("elements"),
                                .norm_before = number_of(one.at("norm_before")),
                                .norm = number_of(one.at("norm"))});
    if (one.contains("gradient_norm")) report.variables.back().gradient_norm = number_of(one.at("gradient_norm"));
  }
  for (const json& one : all.value("facts", json::array())) report.facts.emplace_back(one.at(0), one.at(1));
  return report;
}

}  // namespace lockstep::internal::train
