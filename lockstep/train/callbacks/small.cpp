// Callbacks that need a few lines: each_step(), each_epoch(), stop_on_not_finite(), csv_log() and json_log().
#include <fmt/format.h>

#include <cmath>
#include <nlohmann/json.hpp>
#include <utility>

#include "lockstep/checkpoint/folder/replace_file.h"
#include "lockstep/core/error.h"
#include "lockstep/train/callbacks.h"
#include "lockstep/train/callbacks/last_callback.h"
#include "lockstep/train/numbers.h"
#include "lockstep/train/trainer.h"

namespace lockstep {

namespace {

using Function = std::function<void(Trainer&, const Logs&)>;
namespace fs = std::filesystem;

class EachStep final : public Callback {
 public:
  EachStep(Function fn, std::string name) : fn_(std::move(fn)), name_(std::move(name)) {}
  std::string name() const override { return name_; }
  void on_step_end(Trainer& trainer, const Logs& logs) override { fn_(trainer, logs); }

 private:
  const Function fn_;
  const std::string name_;
};

class EachEpoch final : public Callback {
 public:
  bool uses_step_logs() const override { return false; }
  EachEpoch(Function fn, std::string name) : fn_(std::move(fn)), name_(std::move(name)) {}
  std::string name() const override { return name_; }
  void on_epoch_end(Trainer& trainer, const Logs& logs) override { fn_(trainer, logs); }

 private:
  const Function fn_;
  const std::string name_;
};

void require_function(const Function& fn, const char* call) {
  if (!fn) throw UsageError("LS-OPTION", fmt::format("{} was given an empty function", call), "give it a function");
}

/// A file that has a line for each epoch of the history, and is written anew at each epoch's end.
class HistoryFile : public Callback {
 public:
  bool uses_step_logs() const override { return false; }
  explicit HistoryFile(fs::path file) : file_(std::move(file)) {}
  bool writes_files() const override { return true; }

  void on_fit_begin(Trainer& trainer, const Logs& /*logs*/) override {
    if (trainer.strategy().is_chief()) internal::prepare_to_replace(file_);  // an error now costs no epoch
  }
  void on_epoch_end(Trainer& trainer, const Logs& logs) override {
    if (!trainer.strategy().is_chief()) return;
    std::string text = begin(trainer);
    const History& history = trainer.history();
    for (std::size_t i = 0; i < history.epochs().size(); ++i) text += line(history.numbers()[i], history.epochs()[i]);
    internal::replace_with_text(file_, text + line(trainer.status().epoch, logs));
  }

 protected:
  virtual std::string begin(const Trainer& /*trainer*/) { return {}; }
  virtual std::string line(int64_t epoch, const Logs& logs) const = 0;

 private:
  const fs::path file_;
};

class CsvLog final : public HistoryFile {
 public:
  explicit CsvLog(callbacks::CsvLogOptions options)
      : HistoryFile(std::move(options.file)), separator_(options.separator) {}
  std::string name() const override { return "csv_log"; }

 private:
  std::string begin(const Trainer& trainer) override {
    columns_ = trainer.log_names();
    std::string text = "epoch";
    for (const std::string& column : columns_) text += separator_ + column;
    return text + "\n";
  }
  std::string line(int64_t epoch, const Logs& logs) const override {
    std::string text = fmt::format("{}", epoch);
    for (const std::string& column : columns_) {
      const auto found = logs.find(column);
      text += separator_ + (found == logs.end() ? "" : fmt::format("{}", found->second));
    }
    return text + "\n";
  }

  const char separator_;
  std::vector<std::string> columns_;
};

class JsonLog final : public HistoryFile {
 public:
  explicit JsonLog(callbacks::JsonLogOptions options) : HistoryFile(std::move(options.file)) {}
  std::string name() const override { return "json_log"; }

 private:
  std::string line(int64_t epoch, const Logs& logs) const override {
    nlohmann::ordered_json json{{"epoch", epoch}};
    for (const auto& [name, value] : logs) json[name] = internal::json_of(value);
    return json.dump() + "\n";
  }
};

void require_file(const fs::path& file, const char* call) {
  if (file.empty()) throw UsageError("LS-OPTION", fmt::format("{} was given no .file", call), "give it a file's name");
}

}  // namespace

std::shared_ptr<Callback> callbacks::each_step(Function fn, std::string name) {
  require_function(fn, "each_step");
  return std::make_shared<EachStep>(std::move(fn), std::move(name));
}

std::shared_ptr<Callback> callbacks::each_epoch(Function fn, std::string name) {
  require_function(fn, "each_epoch");
  return std::make_shared<EachEpoch>(std::move(fn), std::move(name));
}

std::shared_ptr<Callback> callbacks::stop_on_not_finite() { return std::make_shared<internal::StopOnNotFinite>(); }

std::shared_ptr<Callback> callbacks::csv_log(CsvLogOptions options) {
  require_file(options.file, "csv_log");
  return std::make_shared<CsvLog>(std::move(options));
}

std::shared_ptr<Callback> callbacks::json_log(JsonLogOptions options) {
  require_file(options.file, "json_log");
  return std::make_shared<JsonLog>(std::move(options));
}

}  // namespace lockstep
