// reduce_on_plateau(): lowers the learning rate where a number has not improved for some epochs.
#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

#include "lockstep/core/error.h"
#include "lockstep/core/log.h"
#include "lockstep/train/callbacks.h"
#include "lockstep/train/callbacks/monitor.h"
#include "lockstep/train/trainer.h"

namespace lockstep {

namespace {

class ReduceOnPlateau final : public Callback {
 public:
  explicit ReduceOnPlateau(callbacks::ReduceOnPlateauOptions options)
      : options_(std::move(options)), monitor_(options_.monitor, options_.mode, options_.min_delta) {}

  std::string name() const override { return "reduce_on_plateau"; }
  bool uses_step_logs() const override { return false; }
  std::vector<std::string> monitored() const override { return {options_.monitor}; }
  std::vector<std::string> added_logs() const override { return {"learning_rate"}; }

  void on_fit_begin(Trainer& trainer, const Logs& /*logs*/) override {
    trainer.optimizer();  // refused where there is none
    monitor_.begin(trainer);
    wait_ = 0;
    cooldown_ = 0;
  }
  void on_evaluate_end(Trainer& trainer, const Logs& logs) override { look(trainer, logs, true); }
  void on_epoch_end(Trainer& trainer, const Logs& logs) override {
    trainer.log("learning_rate", trainer.optimizer().learning_rate());
    look(trainer, logs, false);
  }

  nlohmann::json state() const override {
    return {{"best", monitor_.state()}, {"wait", wait_}, {"cooldown", cooldown_}};
  }
  void load(const nlohmann::json& state) override {
    monitor_.load(state.at("best"));
    wait_ = state.at("wait").get<int64_t>();
    cooldown_ = state.at("cooldown").get<int64_t>();
  }

 private:
  void look(Trainer& trainer, const Logs& logs, bool is_validation) {
    const auto value = monitor_.value_in(trainer, logs, is_validation);
    if (!value) return;
    if (cooldown_ > 0) {
      --cooldown_;
      wait_ = 0;
    }
    if (monitor_.is_new_best(*value)) {
      wait_ = 0;
      return;
    }
    if (cooldown_ > 0 || ++wait_ < options_.patience) return;
    if (reduce(trainer)) {
      cooldown_ = options_.cooldown;
      wait_ = 0;
    }
  }

  /// Whether a rate was above the least one.
  bool reduce(Trainer& trainer) const {
    const Optimizer& optimizer = trainer.optimizer();
    bool changes = false;
    for (int64_t g = 0; g < optimizer.num_groups(); ++g) {
      const double rate = optimizer.learning_rate(g);
      if (rate <= options_.min_rate) continue;
      optimizer.set_learning_rate(std::max(rate * options_.factor, options_.min_rate), g);
      changes = true;
    }
    if (changes && trainer.strategy().is_chief()) {
      internal::log(LogLevel::kInfo,
                    fmt::format("reduce_on_plateau: after epoch {} the learning rate is {:.6g}, because {} does not "
                                "improve",
                                trainer.status().epoch + 1, optimizer.learning_rate(), options_.monitor));
    }
    return changes;
  }

  const callbacks::ReduceOnPlateauOptions options_;
  internal::Monitor monitor_;
  int64_t wait_ = 0;
  int64_t cooldown_ = 0;
};

}  // namespace

std::shared_ptr<Callback> callbacks::reduce_on_plateau(ReduceOnPlateauOptions options) {
  const auto require = [](bool fits, const char* name, double given, const char* remedy) {
    if (fits) return;
    throw UsageError("LS-OPTION", fmt::format("reduce_on_plateau was given a {} of {}", name, given), remedy);
  };
  require(options.factor > 0 && options.factor < 1, ".factor", options.factor, "give a number between 0 and 1");
  require(options.patience >= 0, ".patience", static_cast<double>(options.patience), "give a number from 0");
  require(options.cooldown >= 0, ".cooldown", static_cast<double>(options.cooldown), "give a number from 0");
  require(options.min_rate >= 0, ".min_rate", options.min_rate, "give a number from 0");
  return std::make_shared<ReduceOnPlateau>(std::move(options));
}

}  // namespace lockstep
