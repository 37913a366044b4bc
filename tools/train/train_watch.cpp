#include "tools/train/train_watch.h"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <nlohmann/json.hpp>

namespace lockstep::tools {

using Clock = std::chrono::steady_clock;

TrainWatch::TrainWatch(const TrainOptions& options, SampleLog& log) : options_(options), log_(log) {}

void TrainWatch::begin(const Trainer& trainer) {
  const Strategy& strategy = trainer.strategy();
  if (options_.resume) {
    log_.go_on_at(strategy.step());
    const std::string text =
        trainer.status().is_resumed
            ? fmt::format("goes on after step {}, from {}", strategy.step(), options_.checkpoint_dir)
            : fmt::format("there is no checkpoint in {}: starts from the beginning", options_.checkpoint_dir);
    if (strategy.is_chief()) std::fputs(fmt::format("lockstep train: {}\n", text).c_str(), stderr);
  }
  began_ = Clock::now();
}

void TrainWatch::on_fit_resume(Trainer& trainer, const Logs& /*logs*/) { begin(trainer); }

void TrainWatch::on_epoch_begin(Trainer& trainer, const Logs& /*logs*/) {
  if (!began_) begin(trainer);
  epoch_loss_ = 0;
  epoch_steps_ = 0;
}

void TrainWatch::on_step_end(Trainer& trainer, const Logs& logs) {
  if (!options_.sample_log.empty()) log_samples(trainer);
  epoch_loss_ += logs.at("loss");
  ++epoch_steps_;
  samples_ += trainer.batches().front().begin()->global_size;
}

void TrainWatch::on_epoch_end(Trainer& /*trainer*/, const Logs& /*logs*/) {
  seconds_ = std::chrono::duration<double>(Clock::now() - *began_).count();
}

nlohmann::json TrainWatch::state() const {
  log_.flush();
  return {{"epoch_loss", epoch_loss_}, {"epoch_steps", epoch_steps_}};
}

void TrainWatch::load(const nlohmann::json& state) {
  epoch_loss_ = state.at("epoch_loss").get<double>();
  epoch_steps_ = state.at("epoch_steps").get<int64_t>();
}

double TrainWatch::train_loss() const { return epoch_loss_ / static_cast<double>(std::max<int64_t>(epoch_steps_, 1)); }

/// Writes which sample each replica of each worker used.
void TrainWatch::log_samples(const Trainer& trainer) {
  const Strategy& strategy = trainer.strategy();
  const PerReplica<Batch>& batch = trainer.batches().front();
  const auto rows = strategy.per_replica([&](ReplicaId r) {
    const at::Tensor& ids = batch[r].ids;
    return at::stack({at::full_like(ids, r.value()), ids}, 1);
  });
  const at::Tensor all = strategy.gather(rows);
  const auto* row = all.data_ptr<int64_t>();
  for (int64_t i = 0; i < all.size(0); ++i, row += 2) {
    log_.write(fmt::format("{} {} {} {}\n", trainer.status().epoch, strategy.step() - 1, row[0], row[1]));
  }
}

}  // namespace lockstep::tools
