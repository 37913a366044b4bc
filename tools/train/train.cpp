#include "tools/train/train.h"

#include <ATen/ATen.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <torch/nn/functional/loss.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <functional>
#include <optional>
#include <string_view>

#include "lockstep/core/counted.h"
#include "lockstep/core/fingerprint.h"
#include "lockstep/lockstep.h"
#include "tools/console.h"
#include "tools/disk_error.h"
#include "tools/exit_status.h"
#include "tools/models/models.h"
#include "tools/train/checkpoint_schedule.h"
#include "tools/train/optimizers.h"
#include "tools/train/sample_log.h"
#include "tools/train/sample_text.h"
#include "tools/train/train_checkpoints.h"
#include "tools/train/train_data.h"
#include "tools/train/train_report.h"
#include "tools/train/train_trace.h"
#include "tools/whole_file.h"

namespace lockstep::tools {

namespace {

namespace F = torch::nn::functional;

/// The exit code, that of a DataError which ends the program.
int not_written() { return exit_status(kEnvironment, ExitCode::kDataError); }

std::unique_ptr<Strategy> make(const TrainOptions& options, const std::optional<ClusterSpec>& cluster) {
  const auto require_workers = [&](const char* flag, const std::string& value, const char* otherwise) {
    if (value == otherwise || options.strategy == "multi-worker") return;
    throw UsageError("LS-FLAG",
                     fmt::format("{} {} was given, and --strategy {} has one worker", flag, value, options.strategy),
                     "use --strategy multi-worker");
  };
  require_workers("--engine", options.engine, "auto");
  require_workers("--wire", options.wire, "exact");
  require_workers("--slots", options.slots, "whole");
  return make_strategy(options.strategy, {.devices = options.devices,
                                          .replicas = options.replicas,
                                          .seed = options.seed,
                                          .threads_per_replica = static_cast<int>(options.threads_per_replica),
                                          .factored_gradients = options.factored_gradients ? FactoredGradients::kAuto
                                                                                           : FactoredGradients::kOff,
                                          .cluster = cluster,
                                          .engine = options.engine,
                                          .wire = options.wire == "exact" ? WireFormat::kExact : WireFormat::kBFloat16,
                                          .slots = options.slots == "whole" ? Slots::kWhole : Slots::kSliced});
}

/// Loss and accuracy over a whole data set, each target once: a label, or a character of text.
struct Evaluation {
  double loss = 0;
  double accuracy = 0;
};

Evaluation evaluate(Strategy& strategy, const ReplicatedModel& model, const Dataset& dataset, int64_t global_batch) {
  const auto data = strategy.distribute(dataset, {.global_batch = global_batch});
  at::Tensor total = at::zeros({3}, at::kDouble);  // loss, correct, targets
  for (const auto& batch : data.epoch(0)) {
    const auto sums = strategy.evaluate(batch, [&](ReplicaContext& ctx, const Batch& part) {
      if (part.size() == 0) return at::zeros({3}, at::kDouble);
      const at::Tensor logits = model(ctx)->forward(part.input);
      const at::Tensor target = part.target.flatten();
      const at::Tensor loss = F::cross_entropy(logits, target, F::CrossEntropyFuncOptions().reduction(torch::kSum));
      const at::Tensor correct = logits.argmax(1).eq(target).sum();
      return at::stack({loss.to(at::kDouble), correct.to(at::kDouble), at::scalar_tensor(target.numel(), at::kDouble)});
    });
    total += strategy.reduce(Reduction::kSum, sums);
  }
  const double* sums = total.data_ptr<double>();
  return {sums[0] / sums[2], sums[1] / sums[2]};
}

/// Writes which sample each replica of each worker used.
void log_samples(const Strategy& strategy, SampleLog& log, int64_t epoch, int64_t step,
                 const PerReplica<Batch>& batch) {
  const auto rows = strategy.per_replica([&](ReplicaId r) {
    const at::Tensor& ids = batch[r].ids;
    return at::stack({at::full_like(ids, r.value()), ids}, 1);
  });
  const at::Tensor all = strategy.gather(rows);
  const auto* row = all.data_ptr<int64_t>();
  for (int64_t i = 0; i < all.size(0); ++i, row += 2) {
    log.write(fmt::format("{} {} {} {}\n", epoch, step, row[0], row[1]));
  }
}

/// One training step; gives the loss over the global batch.
double step(Strategy& strategy, const ReplicatedModel& model, const Optimizer& optimizer,
            const PerReplica<Batch>& batch) {
  const auto losses = strategy.run(batch, [&](ReplicaContext& ctx, const Batch& part) {
    const at::Tensor loss = ctx.scale_loss(mean_loss(*model(ctx), part.input, part.target));
    if (!std::isfinite(loss.item<double>())) {
      throw NonFiniteError("LS-NOT-FINITE",
                           fmt::format("step {}, replica {}: the loss is {}; the step was not applied", ctx.step(),
                                       ctx.replica_id().value(), loss.item<double>()),
                           "lower --learning-rate, or look at the samples of this step");
    }
    loss.backward();
    optimizer.step(ctx, {.check_finite = true});
    return loss.detach();
  });
  return strategy.reduce(Reduction::kSum, losses).item<double>();
}

}  // namespace

int train(const TrainOptions& options) {
  const bool text = reads_text(options.model.name);
  if (options.sample > 0 && !text) {
    throw UsageError("LS-FLAG", fmt::format("--sample was given and --model {} makes no text", options.model.name),
                     "use --model gpt");
  }
  static_cast<void>(
      CheckpointSchedule(options.checkpoint_every));  // refuses a text that is none before anything begins
  std::optional<ClusterSpec> cluster;
  if (options.strategy == "multi-worker") cluster = resolve_cluster();
  // The chief writes the files of all workers.
  const bool is_chief = !cluster || cluster->is_chief();
  SampleLog sample_log(is_chief ? options.sample_log : "", !options.checkpoint_dir.empty(), options.resume);
  WholeFile json(is_chief ? options.json : "");
  static_cast<void>(WholeFile(is_chief ? options.export_file : ""));  // refuses a bad place before hours of training
  const auto strategy = make(options, cluster);
  stop_on_signal();  // before all workers have made the model, so that none is still killed by it later
  ModelOptions model_options = options.model;
  const TrainData split = load_data(options.data, model_options);
  const std::string description = strategy->describe();  // while there are no variables, of which it has a table
  // Models with batch normalisation normalize each replica's part; what is evaluated is the mean of the statistics.
  const ReplicatedModel model =
      strategy->make_module([&] { return make_model(model_options); }, {.buffers = lockstep::Buffers::kMean});
  const Optimizer optimizer = make_optimizer(*strategy, model, options.optimizer, options.learning_rate);
  const auto data = strategy->distribute(split.train, {.global_batch = options.global_batch,
                                                       .shuffle = true,
                                                       .name = "train",
                                                       .prefetch = options.prefetch,
                                                       .threads = 0});

  const int64_t per_epoch = data.steps_per_epoch();
  if (per_epoch == 0) {
    throw DataError("LS-NO-SAMPLES", fmt::format("--data {} has no sample to train on", options.data),
                    "give more data");
  }
  const int64_t steps = options.steps > 0 ? options.steps : per_epoch * std::max<int64_t>(options.epochs, 1);
  if (is_chief) {
    std::fputs(description.c_str(), stderr);
    std::fputs(fmt::format("data: {}", data.describe()).c_str(), stderr);
    if (options.describe) std::fputs(strategy->describe_variables().c_str(), stderr);
  }

  TrainCounts counts;
  TrainCheckpoints checkpoints(options, *strategy, counts, [&] { sample_log.flush(); });
  if (options.resume) sample_log.go_on_at(strategy->step());
  if (is_chief && !checkpoints.beginning().empty()) {
    std::fputs(fmt::format("lockstep train: {}\n", checkpoints.beginning()).c_str(), stderr);
  }
  TrainReport report;
  std::optional<Progress> progress;
  if (is_chief) progress.emplace(steps - strategy->step(), options.steps > 0 ? 0 : steps / per_epoch);
  std::optional<std::string> failure;
  TrainTrace trace(options.trace, *strategy, strategy->step(), steps);
  int64_t samples_now = 0;  // since the start of this process
  using Clock = std::chrono::steady_clock;
  Clock::duration waited{0};
  const auto start = Clock::now();
  try {
    const int64_t first_epoch = data.cursor().epoch;
    for (int64_t epoch = first_epoch; strategy->step() < steps && !strategy->stop_requested(); ++epoch) {
      if (epoch > first_epoch) counts.epoch_loss = 0, counts.epoch_steps = 0;
      auto asked = Clock::now();  // for the next batch
      for (const auto& batch : data.epoch(epoch)) {
        waited += Clock::now() - asked;
        const int64_t number = strategy->step();
        trace.before_step();
        const double loss = step(*strategy, model, optimizer, batch);
        trace.after_step();
        if (!options.sample_log.empty()) log_samples(*strategy, sample_log, epoch, number, batch);
        const int64_t samples = batch.begin()->global_size;
        counts.samples += samples;
        counts.epoch_loss += loss;
        ++counts.epoch_steps;
        samples_now += samples;
        if (progress) progress->step(epoch, samples, loss);
        checkpoints.after_step();
        if (strategy->step() == steps || strategy->stop_requested()) break;  // before the next batch counts as used
        asked = Clock::now();
      }
      if (progress && counts.epoch_steps > 0) {
        progress->epoch(epoch, counts.epoch_loss / static_cast<double>(counts.epoch_steps));
      }
    }
  } catch (const ReplicaError& error) {
    try {
      std::rethrow_if_nested(error);
    } catch (const NonFiniteError& cause) {
      failure = cause.what();
    } catch (const PeerError& cause) {
      // Another worker's loss or gradient: all workers end in the same way.
      if (std::string_view(cause.what()).find("LS-NOT-FINITE") != std::string_view::npos) failure = cause.what();
    }
    if (!failure) throw;
  }
  report.seconds = std::chrono::duration<double>(Clock::now() - start).count();
  report.input_stall = std::chrono::duration<double>(waited).count() / std::max(report.seconds, 1e-9);
  report.steps = strategy->step();
  report.samples = counts.samples;
  report.samples_of_process = samples_now;
  report.train_loss = counts.epoch_loss / static_cast<double>(std::max<int64_t>(counts.epoch_steps, 1));
  progress.reset();
  // The files may lie on several disks: where one cannot be written, the others still are.
  bool is_all_written = true;
  const auto attempt = [&](const char* what, const std::function<void()>& write) {
    is_all_written = write_or_say(is_chief, what, write) && is_all_written;
  };
  if (!failure) attempt("the trace could not be written", [&] { trace.finish(); });
  if (!failure) attempt("the last checkpoint could not be saved", [&] { checkpoints.save_now(); });
  const std::string saved =
      checkpoints.wanted() && is_all_written ? fmt::format("; saved as {}", checkpoints.last()) : "";
  attempt("the log of samples could not be written", [&] { sample_log.commit(); });
  if (failure) {
    std::fputs(fmt::format("lockstep train: {}\n", *failure).c_str(), stderr);
    return exit_status(kFindings, ExitCode::kDataError);
  }
  if (report.steps < steps) {
    std::fputs(fmt::format("lockstep train: a worker was asked to stop; all have ended after {}{}\n",
                           internal::counted(report.steps, "step"), saved)
                   .c_str(),
               stderr);
    return is_all_written ? static_cast<int>(ExitCode::kRestartable) : not_written();
  }
  const Evaluation evaluation = evaluate(*strategy, model, split.evaluate, text ? 64 : 1000);
  report.eval_loss = evaluation.loss;
  report.eval_accuracy = evaluation.accuracy;
  describe_run(report, options, *strategy);
  optimizer.gather_slots();
  digest_state(report, *strategy);
  if (!options.export_file.empty()) {
    const auto weights = model.state();
    attempt("the weights could not be exported",
            [&] { strategy->on_chief([&] { save_tensors(options.export_file, weights); }); });
  }
  if (is_chief) print_table(table_of(report));
  if (options.sample > 0) {
    const std::string made = sample_text(*strategy, model, split.vocabulary, model_options.context, options.sample);
    if (is_chief) std::fputs(fmt::format("\nsample:\n{}\n", made).c_str(), stdout);
  }
  attempt("the report could not be written", [&] {
    strategy->on_chief([&] {
      json.write(json_of(report));
      json.commit();
    });
  });
  if (!is_all_written) return not_written();
  return report.findings.empty() ? kClean : exit_status(kFindings, ExitCode::kDataError);
}

}  // namespace lockstep::tools
