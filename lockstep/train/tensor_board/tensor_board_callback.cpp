// What the callback tensor_board() does at each hook.
#include <ATen/ATen.h>
#include <fmt/format.h>

#include <bit>
#include <nlohmann/json.hpp>
#include <span>
#include <utility>
#include <vector>

#include "lockstep/core/error.h"
#include "lockstep/core/tensors/host_bytes.h"
#include "lockstep/train/model_values.h"
#include "lockstep/train/tensor_board.h"
#include "lockstep/train/tensor_board/event_file.h"
#include "lockstep/train/tensor_board/histogram.h"
#include "lockstep/train/tensor_board/png_bytes.h"
#include "lockstep/train/trainer.h"

namespace lockstep {

namespace {

using internal::EventFile;
using internal::SummaryMessage;

/// One of TensorBoard's runs. Its file is made at its first point.
struct EventRun {
  std::unique_ptr<EventFile> file = nullptr;
  int64_t next_step = -1;  // behind its last point; -1: no point is known
};

/// Images as PNG files.
std::vector<std::string> pngs_of(const std::string& tag, const at::Tensor& images) {
  if (!images.defined() || images.dim() != 4) {
    throw UsageError("LS-SHAPE",
                     fmt::format("tensor_board was given images '{}' that are no [count, channels, height, "
                                 "width]",
                                 tag),
                     "give a tensor of four dimensions");
  }
  at::Tensor bytes = images.detach().to(at::kCPU);
  if (at::isFloatingType(bytes.scalar_type())) bytes = bytes.to(at::kFloat).clamp(0, 1).mul(255).round();
  bytes = bytes.to(at::kByte).permute({0, 2, 3, 1}).contiguous();
  std::vector<std::string> pngs;
  for (int64_t i = 0; i < bytes.size(0); ++i) {
    const at::Tensor one = bytes[i];
    pngs.push_back(internal::png_bytes(internal::host_numbers<uint8_t>(one), one.size(1), one.size(0), one.size(2)));
  }
  return pngs;
}

class TensorBoard final : public Callback {
 public:
  explicit TensorBoard(callbacks::TensorBoardOptions options) : options_(std::move(options)) {}
  std::string name() const override { return "tensor_board"; }
  bool writes_files() const override { return true; }

  void on_fit_begin(Trainer& trainer, const Logs& /*logs*/) override {
    train_ = {};
    validation_ = {};
    shown_findings_ = 0;
    epochs_ = 0;
    begun_epochs_ = 0;
    mark_time(trainer.status());
    epoch_begin_ = trainer.status();
    trainer.measure_parts();
  }

  void on_epoch_begin(Trainer& trainer, const Logs& /*logs*/) override {
    epoch_begin_ = trainer.status();
    mark_time(trainer.status());
    if (options_.gradients_every > 0 && begun_epochs_++ % options_.gradients_every == 0) trainer.keep_gradients();
  }

  void on_step_end(Trainer& trainer, const Logs& logs) override {
    const FitStatus& status = trainer.status();
    add_gradients(trainer);
    if (logs.empty() || status.step % stride(status.step) != 0) return;
    const bool is_second_over = status.seconds - marked_.seconds >= 1;
    // Rates are asked for by all workers alike, as every call outside of steps.
    const std::vector<double> rates = rates_of(trainer);
    if (!trainer.strategy().is_chief()) return;
    add(train_, status, [&](SummaryMessage& summary) {
      for (const auto& [name, value] : logs) summary.scalar(name, value);
      for (std::size_t group = 0; group < rates.size(); ++group) {
        summary.scalar(rates.size() == 1 ? "learning_rate" : fmt::format("learning_rate/{}", group), rates[group]);
      }
      if (status.gradient_norm != 0) summary.scalar("gradient_norm", status.gradient_norm);
      if (is_second_over) add_speed(summary, status);
    });
    if (is_second_over) mark_time(status);
  }

  void on_evaluate_end(Trainer& trainer, const Logs& logs) override {
    if (!trainer.strategy().is_chief()) return;
    add(validation_, trainer.status(), [&](SummaryMessage& summary) {
      for (const auto& [name, value] : logs) summary.scalar(name, value);
    });
    validation_.file->flush();
  }

  void on_epoch_end(Trainer& trainer, const Logs& logs) override {
    const FitStatus& status = trainer.status();
    ++epochs_;
    const bool has_histograms = options_.histograms_every > 0 && epochs_ % options_.histograms_every == 0;
    std::vector<std::pair<std::string, at::Tensor>> values;
    if (has_histograms) values = internal::model_values(trainer);
    std::map<std::string, at::Tensor> images;
    if (options_.images) images = options_.images(trainer);
    if (!trainer.strategy().is_chief()) return;
    add(train_, status, [&](SummaryMessage& summary) {
      for (const auto& [name, value] : logs) {
        if (name.rfind("val_", 0) != 0) summary.scalar("epoch/" + name, value);
      }
      add_speed(summary, status);
      const double seconds = status.seconds - epoch_begin_.seconds;
      if (seconds > 0) {
        summary.scalar("time/input", (status.input_seconds - epoch_begin_.input_seconds) / seconds);
        summary.scalar("time/validation", (status.validation_seconds - epoch_begin_.validation_seconds) / seconds);
      }
      add_shares(summary, status);
      add_histograms(summary, "weights/", values);
      for (const auto& [tag, tensor] : images) {
        const std::vector<std::string> pngs = pngs_of(tag, tensor);
        if (!pngs.empty()) summary.images(tag, tensor.size(3), tensor.size(2), pngs);
      }
      add_findings(summary, trainer);
    });
    train_.file->flush();
  }

  void on_fit_end(Trainer& trainer, const Logs& /*logs*/) override {
    if (trainer.strategy().is_chief() && trainer.strategy().findings().size() > shown_findings_) {
      add(train_, trainer.status(), [&](SummaryMessage& summary) { add_findings(summary, trainer); });
    }
    close();
  }
  void on_fit_fail(const std::exception& /*error*/) override { close(); }

  /// What was logged before a checkpoint is in the files before the checkpoint is.
  nlohmann::json state() const override {
    for (const EventRun* run : {&train_, &validation_}) {
      if (run->file) run->file->flush();
    }
    return {{"train", train_.next_step}, {"validation", validation_.next_step}};
  }
  void load(const nlohmann::json& state) override {
    train_.next_step = state.at("train").get<int64_t>();
    validation_.next_step = state.at("validation").get<int64_t>();
  }

 private:
  int64_t stride(int64_t step) const {
    if (options_.every_steps > 0) return options_.every_steps;
    return step <= 1000 ? 1 : static_cast<int64_t>(std::bit_floor(static_cast<uint64_t>(step - 1) / 1000));
  }

  static std::vector<double> rates_of(const Trainer& trainer) {
    std::vector<double> rates;
    if (!trainer.has_optimizer()) return rates;
    const Optimizer& optimizer = trainer.optimizer();
    for (int64_t group = 0; group < optimizer.num_groups(); ++group) rates.push_back(optimizer.learning_rate(group));
    return rates;
  }

  /// Adds an event of the steps done. A run's first file says where this process goes on.
  template <class Fill>
  void add(EventRun& run, const FitStatus& status, const Fill& fill) {
    if (!run.file) {
      const int64_t first = run.next_step >= 0 ? run.next_step : status.is_resumed ? status.step : 0;
      run.file = std::make_unique<EventFile>(options_.directory / (&run == &train_ ? "train" : "validation"), first);
    }
    run.file->add(status.step, fill);
    run.next_step = status.step + 1;
  }

  static void add_histograms(SummaryMessage& summary, const char* prefix,
                             const std::vector<std::pair<std::string, at::Tensor>>& values) {
    for (const auto& [name, value] : values) {
      const at::Tensor floats = internal::as_floats(value);
      if (!floats.defined()) continue;
      summary.histogram(prefix + name, internal::histogram_of(internal::host_numbers<float>(floats)));
    }
  }

  /// Where another callback has asked for gradients, they are not shown.
  void add_gradients(const Trainer& trainer) {
    if (options_.gradients_every == 0 || trainer.gradients().empty() || !trainer.strategy().is_chief()) return;
    add(train_, trainer.status(),
        [&](SummaryMessage& summary) { add_histograms(summary, "gradients/", trainer.gradients()); });
  }

  void add_shares(SummaryMessage& summary, const FitStatus& status) const {
    const FitStatus::Parts& from = epoch_begin_.parts;
    const double seconds = status.parts.seconds - from.seconds;
    if (!(seconds > 0)) return;
    summary.scalar("time/compute", (status.parts.compute - from.compute) / seconds);
    summary.scalar("time/update", (status.parts.update - from.update) / seconds);
    summary.scalar("time/communication", (status.parts.communication - from.communication) / seconds);
    summary.scalar("time/waiting", (status.parts.waiting - from.waiting) / seconds);
  }

  void mark_time(const FitStatus& status) { marked_ = status; }
  void add_speed(SummaryMessage& summary, const FitStatus& status) const {
    const double seconds = status.seconds - marked_.seconds - (status.validation_seconds - marked_.validation_seconds);
    const auto samples = static_cast<double>(status.samples - marked_.samples);
    if (seconds > 0 && samples > 0) summary.scalar("samples_per_second", samples / seconds);
  }

  void add_findings(SummaryMessage& summary, const Trainer& trainer) {
    const std::vector<Finding> findings = trainer.strategy().findings();
    for (; shown_findings_ < findings.size(); ++shown_findings_) {
      const Finding& one = findings[shown_findings_];
      summary.text("findings/" + one.code, fmt::format("**{}** in step {}\n\n{}", one.code, one.step, one.text));
    }
  }

  void close() {
    for (EventRun* const run : {&train_, &validation_}) {
      if (run->file) run->file->flush();
      run->file.reset();
    }
  }

  const callbacks::TensorBoardOptions options_;
  EventRun train_;
  EventRun validation_;
  FitStatus marked_;       // since when samples a second are counted
  FitStatus epoch_begin_;  // as the epoch began
  int64_t epochs_ = 0;     // that have ended
  int64_t begun_epochs_ = 0;
  std::size_t shown_findings_ = 0;
};

}  // namespace

std::shared_ptr<Callback> callbacks::tensor_board(TensorBoardOptions options) {
  if (options.directory.empty() || options.every_steps < 0 || options.histograms_every < 0 ||
      options.gradients_every < 0) {
    throw UsageError(
        "LS-OPTION",
        fmt::format("tensor_board was given the directory '{}', .every_steps {}, .histograms_every {} and "
                    ".gradients_every {}",
                    options.directory.string(), options.every_steps, options.histograms_every, options.gradients_every),
        "name a .directory, and give numbers from 0");
  }
  return std::make_shared<TensorBoard>(std::move(options));
}

}  // namespace lockstep
