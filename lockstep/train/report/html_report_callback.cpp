// What the callback html_report() does at each hook.
#include <ATen/ATen.h>
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <ctime>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string_view>
#include <system_error>
#include <utility>

#include "lockstep/checkpoint/folder/replace_file.h"
#include "lockstep/core/error.h"
#include "lockstep/core/fingerprint.h"
#include "lockstep/core/sha256.h"
#include "lockstep/train/html_report.h"
#include "lockstep/train/model_values.h"
#include "lockstep/train/report/report_page.h"
#include "lockstep/train/report/run_report.h"
#include "lockstep/train/trainer.h"

namespace lockstep {

namespace {

namespace fs = std::filesystem;
using internal::RunOutcome;
using internal::RunReport;

std::string utc_now() {
  const std::time_t now = std::chrono::system_clock::to_time_t(std::chrono::system_clock::now());
  std::tm parts{};
  gmtime_r(&now, &parts);
  std::array<char, 32> text{};
  return {text.data(), std::strftime(text.data(), text.size(), "%Y-%m-%d %H:%M:%S UTC", &parts)};
}

/// This process's arguments, as a shell would take them.
std::string command_line() {
  std::ifstream in("/proc/self/cmdline", std::ios::binary);
  std::string command;
  for (std::string word; std::getline(in, word, '\0');) {
    const bool is_plain = !word.empty() && word.find_first_of(" \t\n'\"\\$`&|;<>()*?[]#~!{}") == std::string::npos;
    if (!is_plain) {
      std::string quoted = "'";
      for (const char c : word) quoted += c == '\'' ? std::string("'\\''") : std::string(1, c);
      word = quoted + "'";
    }
    command += (command.empty() ? "" : " ") + word;
  }
  return command;
}

/// The checkpoints in a folder, by the names that CheckpointManager gives them.
std::vector<internal::ReportCheckpoint> checkpoints_in(const fs::path& folder) {
  constexpr std::string_view kBeforeStep = "step-";
  std::vector<internal::ReportCheckpoint> found;
  std::error_code error;  // what cannot be looked at is not listed
  for (fs::directory_iterator it(folder, error), end; !error && it != end; it.increment(error)) {
    const std::string name = it->path().filename().string();
    const std::string digits = name.substr(std::min(kBeforeStep.size(), name.size()));
    if (name.rfind(kBeforeStep, 0) != 0 || digits.empty() || digits.size() > 18 ||
        digits.find_first_not_of("0123456789") != std::string::npos) {
      continue;
    }
    internal::ReportCheckpoint one{.step = std::stoll(digits)};
    std::error_code unknown;
    for (fs::recursive_directory_iterator file(it->path(), unknown), last; !unknown && file != last;
         file.increment(unknown)) {
      std::error_code no_size;
      const std::uintmax_t size = file->is_regular_file(no_size) ? file->file_size(no_size) : 0;
      if (!no_size) one.bytes += size;
    }
    found.push_back(one);
  }
  std::sort(found.begin(), found.end(), [](const auto& a, const auto& b) { return a.step < b.step; });
  return found;
}

class HtmlReport final : public Callback {
 public:
  explicit HtmlReport(callbacks::HtmlReportOptions options) : options_(std::move(options)) {}
  std::string name() const override { return "html_report"; }
  bool writes_files() const override { return true; }

  void on_fit_begin(Trainer& trainer, const Logs& /*logs*/) override {
    run_ = {.title = options_.title.empty() ? options_.file.stem().string() : options_.title,
            .began = utc_now(),
            .lower_is_better = {"loss"}};
    for (const MetricSpec& metric : trainer.metrics()) {
      run_.metrics.push_back(metric.name);
      if (!metric.higher_is_better) run_.lower_is_better.push_back(metric.name);
    }
    before_ = run_;
    written_at_ = -1;
    is_chief_ = trainer.strategy().is_chief();
    if (is_chief_) internal::prepare_to_replace(options_.file);  // an error now costs no epoch
    marked_ = trainer.status();
    facts_ = {{"command", command_line()},
              {"strategy", trainer.strategy().describe()},
              {"fingerprint", internal::platform_fingerprint() + ": " + internal::platform_description()}};
    if (!trainer.variables().empty()) {
      facts_.emplace_back("model", trainer.summary());
      facts_.emplace_back("variables", trainer.strategy().describe_variables());
    }
    note_variables(trainer);
    trainer.measure_parts();
    epochs_ = 0;
  }

  void on_epoch_begin(Trainer& trainer, const Logs& /*logs*/) override {
    if (options_.gradients_every > 0 && epochs_++ % options_.gradients_every == 0) trainer.keep_gradients();
  }

  void on_step_end(Trainer& trainer, const Logs& logs) override {
    const FitStatus& status = trainer.status();
    note_progress(status);
    note_gradients(trainer);
    if (logs.empty()) return;
    for (const auto& [name, value] : logs) run_.curves[name].add(status.step, value);
    if (trainer.has_optimizer()) {
      const int64_t groups = trainer.optimizer().num_groups();
      for (int64_t group = 0; group < groups; ++group) {
        const std::string name = groups == 1 ? "learning_rate" : fmt::format("learning_rate/{}", group);
        run_.curves[name].add(status.step, trainer.optimizer().learning_rate(group));
      }
    }
    if (status.gradient_norm != 0) run_.curves["gradient_norm"].add(status.step, status.gradient_norm);
    constexpr double kWindow = 0.25;  // seconds
    if (status.seconds - marked_.seconds >= kWindow) add_speed(status);
  }

  void on_evaluate_end(Trainer& trainer, const Logs& logs) override {
    for (const auto& [name, value] : logs) run_.validation[name].add(trainer.status().step, value);
  }

  void on_epoch_end(Trainer& trainer, const Logs& logs) override {
    const FitStatus& status = trainer.status();
    run_.epochs.push_back({.epoch = status.epoch, .step = status.step, .logs = logs});
    if (status.seconds > marked_.seconds) add_speed(status);
    note(trainer);
    const bool is_due = written_at_ < 0 || status.seconds - written_at_ >= options_.every_seconds;
    if (!is_due) return;
    written_at_ = status.seconds;
    write();
  }

  void on_fit_end(Trainer& trainer, const Logs& /*logs*/) override {
    note(trainer);
    note_variables(trainer);
    run_.state = trainer.stopped().empty() ? RunOutcome::kFinished : RunOutcome::kStopped;
    run_.why = trainer.stopped();
    const auto values = internal::model_values(trainer);
    if (is_chief_ && !values.empty()) facts_.emplace_back("weights sha256", sha256_of(values));
    write();
  }

  void on_fit_fail(const std::exception& error) override {
    run_.state = RunOutcome::kFailed;
    run_.why = error.what();
    write();
  }

  nlohmann::json state() const override { return is_chief_ ? run_.to_json() : nlohmann::json(); }
  void load(const nlohmann::json& state) override {
    RunReport saved = RunReport::from_json(state);
    saved.title = run_.title;
    saved.state = RunOutcome::kRunning;
    saved.why.clear();
    saved.resumes.push_back(saved.steps);
    // The norms at the beginning are those of the run, not of this process.
    for (internal::ReportVariable& one : run_.variables) {
      const auto found = std::find_if(saved.variables.begin(), saved.variables.end(),
                                      [&](const auto& other) { return other.name == one.name; });
      if (found != saved.variables.end()) one.norm_before = found->norm_before;
    }
    saved.variables = run_.variables;
    run_ = saved;
    before_ = std::move(saved);
  }

 private:
  /// How far the fit is. Times go on from those of the run before a resume.
  void note_progress(const FitStatus& status) {
    run_.steps = status.step;
    run_.samples = status.samples;
    run_.seconds = before_.seconds + status.seconds;
    run_.input_seconds = before_.input_seconds + status.input_seconds;
    run_.validation_seconds = before_.validation_seconds + status.validation_seconds;
    run_.callback_seconds = before_.callback_seconds + status.callback_seconds;
  }

  void note_gradients(const Trainer& trainer) {
    for (const auto& [name, gradient] : trainer.gradients()) {
      const double norm = gradient.to(at::kDouble).norm().item<double>();
      run_.curves["gradient_norm/" + name].add(trainer.status().step, norm);
      for (internal::ReportVariable& one : run_.variables) {
        if (one.name == name) one.gradient_norm = norm;
      }
    }
  }

  /// Shares of the steps of this process.
  void note_shares(const FitStatus::Parts& parts) {
    if (!(parts.seconds > 0)) return;
    run_.step_shares = {{"computing", parts.compute / parts.seconds},
                        {"update", parts.update / parts.seconds},
                        {"communication", parts.communication / parts.seconds},
                        {"waiting for others", parts.waiting / parts.seconds}};
  }

  /// Takes what the trainer and the strategy know now.
  void note(const Trainer& trainer) {
    note_progress(trainer.status());
    note_shares(trainer.status().parts);
    run_.findings.clear();
    for (const Finding& one : trainer.strategy().findings()) {
      run_.findings.push_back({.code = one.code, .step = one.step, .count = one.count, .text = one.text});
    }
    if (is_chief_ && !options_.checkpoints.empty()) run_.checkpoints = checkpoints_in(options_.checkpoints);
  }

  /// The norms of the model's variables: of now, and of the beginning where they are not known yet.
  void note_variables(const Trainer& trainer) {
    const auto values = internal::model_values(trainer);
    const bool is_first = run_.variables.empty();
    for (std::size_t i = 0; i < values.size(); ++i) {
      const auto& [name, value] = values[i];
      const at::Tensor floats = internal::as_floats(value);
      const double norm = floats.defined() ? floats.to(at::kDouble).norm().item<double>() : 0;
      if (is_first) {
        run_.variables.push_back(
            {.name = name, .shape = shape_of(value), .elements = value.numel(), .norm_before = norm, .norm = norm});
      } else if (i < run_.variables.size()) {
        run_.variables[i].norm = norm;
      }
    }
  }

  static std::string shape_of(const at::Tensor& value) {
    std::string text;
    for (const int64_t size : value.sizes()) text += (text.empty() ? "" : ", ") + std::to_string(size);
    return "[" + text + "]";
  }

  void add_speed(const FitStatus& status) {
    const double seconds = status.seconds - marked_.seconds - (status.validation_seconds - marked_.validation_seconds);
    const auto samples = static_cast<double>(status.samples - marked_.samples);
    if (seconds > 0 && samples > 0) run_.curves["samples_per_second"].add(status.step, samples / seconds);
    marked_ = status;
  }

  void write() {
    if (!is_chief_) return;
    run_.facts = facts_;
    run_.written = utc_now();
    internal::replace_with_text(options_.file, internal::report_page(run_));
  }

  const callbacks::HtmlReportOptions options_;
  RunReport run_;
  RunReport before_;  // as the process began: empty, or what a checkpoint had
  std::vector<std::pair<std::string, std::string>> facts_;
  int64_t epochs_ = 0;      // that have begun
  FitStatus marked_;        // since when samples a second are counted
  double written_at_ = -1;  // in the fit's seconds
  bool is_chief_ = false;
};

}  // namespace

std::shared_ptr<Callback> callbacks::html_report(HtmlReportOptions options) {
  if (options.file.empty() || !(options.every_seconds >= 0) || options.gradients_every < 0) {
    throw UsageError("LS-OPTION",
                     fmt::format("html_report was given the file '{}', .every_seconds {} and .gradients_every {}",
                                 options.file.string(), options.every_seconds, options.gradients_every),
                     "name a .file, and give numbers from 0");
  }
  return std::make_shared<HtmlReport>(std::move(options));
}

}  // namespace lockstep
