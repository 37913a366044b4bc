// What a checkpoint of a fit has beside the run's own state.
#include <nlohmann/json.hpp>

#include "lockstep/core/error.h"
#include "lockstep/train/fit.h"
#include "lockstep/train/numbers.h"

namespace lockstep::internal::inline train {

namespace {

Logs logs_of(const nlohmann::json& json) {
  Logs logs;
  for (const auto& [name, value] : json.items()) logs[name] = number_of(value);
  return logs;
}

nlohmann::json json_of_logs(const Logs& logs) {
  nlohmann::json json = nlohmann::json::object();
  for (const auto& [name, value] : logs) json[name] = json_of(value);
  return json;
}

}  // namespace

void Fit::require_no_step_under_way() const {
  if (state_.runner->under_way() == 0) return;
  throw UsageError("LS-OPTION",
                   "a checkpoint of a fit was asked for while other steps are under way, of which some count already",
                   "save by callbacks::checkpoints(), which waits for them, or at an epoch's end");
}

Checkpoint Fit::checkpoint() {
  prepare_save();
  Checkpoint checkpoint(strategy_);
  checkpoint.track(kTrackedData, data_);
  checkpoint.track(
      "fit", [this] { return saved(); }, [this](const std::string& text) { load(text); });
  return checkpoint;
}

std::string Fit::saved() const {
  if (!waiting_.empty()) {
    throw UsageError("LS-OPTION", "a Checkpoint of an earlier step of the fit was used to save",
                     "ask Trainer::checkpoint() anew for each save");
  }
  const nlohmann::json json{{"epoch", place_.epoch},
                            {"epoch_step", place_.epoch_step},
                            {"step", place_.step},
                            {"samples", place_.samples},
                            {"validated_step", place_.validated_step},
                            {"stopped", place_.stopped},
                            {"epoch_totals", place_.epoch_totals.to_json()},
                            {"extra", json_of_logs(place_.extra)},
                            {"last_logs", json_of_logs(place_.last_logs)},
                            {"history", state_.history.to_json()},
                            {"callbacks", hooks_->state()},
                            {"last_callbacks", last_->state()}};
  return json.dump();
}

void Fit::load(const std::string& text) {
  const nlohmann::json json = nlohmann::json::parse(text);
  place_ = {.epoch = json.at("epoch").get<int64_t>(),
            .epoch_step = json.at("epoch_step").get<int64_t>(),
            .step = json.at("step").get<int64_t>(),
            .samples = json.at("samples").get<int64_t>(),
            .validated_step = json.at("validated_step").get<int64_t>(),
            .stopped = json.at("stopped").get<std::string>(),
            .epoch_totals = Totals::from_json(json.at("epoch_totals"))};
  place_.extra = logs_of(json.at("extra"));
  place_.last_logs = logs_of(json.at("last_logs"));
  state_.history = History::from_json(json.at("history"));
  state_.stopped = place_.stopped;
  must_end_epoch_ = place_.epoch_step > 0;
  hooks_->load(json.at("callbacks"));
  last_->load(json.at("last_callbacks"));
}

void Fit::note_resumed() {
  FitStatus& status = state_.status;
  status.is_resumed = true;
  status.epoch = place_.epoch_step > 0 || state_.history.numbers().empty() ? place_.epoch : place_.epoch - 1;
  status.step = place_.step;
  status.epoch_step = place_.epoch_step;
  status.samples = place_.samples;
}

}  // namespace lockstep::internal::train
