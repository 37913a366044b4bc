#include "tools/train/train.h"

#include <ATen/ATen.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <torch/nn/functional/loss.h>

#include <algorithm>
#include <cstdio>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string_view>
#include <vector>

#include "lockstep/core/counted.h"
#include "lockstep/core/fingerprint.h"
#include "lockstep/lockstep.h"
#include "tools/console.h"
#include "tools/disk_error.h"
#include "tools/exit_status.h"
#include "tools/models/models.h"
#include "tools/train/optimizers.h"
#include "tools/train/sample_log.h"
#include "tools/train/sample_text.h"
#include "tools/train/train_checkpoints.h"
#include "tools/train/train_data.h"
#include "tools/train/train_report.h"
#include "tools/train/train_watch.h"
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
                     fmt::format("{} {} was given, which --strategy {} does not take", flag, value, options.strategy),
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

torch::Tensor mean_loss_of(const torch::Tensor& logits, const Batch& part) {
  return F::cross_entropy(logits, part.target.flatten());
}

/// Loss and accuracy over a whole data set, each target once: a label, or a character of text.
MetricSpec loss_and_accuracy() {
  return {.name = "evaluation",
          .sums = 3,
          .update = [](const torch::Tensor& logits, const Batch& part) -> MetricCounts {
            const at::Tensor target = part.target.flatten();
            const at::Tensor loss =
                F::cross_entropy(logits, target, F::CrossEntropyFuncOptions().reduction(torch::kSum));
            const at::Tensor correct = logits.argmax(1).eq(target).sum();
            return {.sums = at::stack({loss.to(at::kDouble), correct.to(at::kDouble),
                                       at::scalar_tensor(target.numel(), at::kDouble)})};
          },
          .results = [](const MetricCounts& whole) -> std::map<std::string, double> {
            const double* const sum = whole.sums.data_ptr<double>();
            return {{"eval_loss", sum[0] / sum[2]}, {"eval_accuracy", sum[1] / sum[2]}};
          }};
}

/// Why the training ended where a loss or a gradient was not finite, on this worker or on another one; nothing where
/// it was something else.
std::optional<std::string> not_finite(const ReplicaError& error) {
  try {
    std::rethrow_if_nested(error);
  } catch (const NonFiniteError& cause) {
    return cause.what();
  } catch (const PeerError& cause) {
    if (std::string_view(cause.what()).find("LS-NOT-FINITE") != std::string_view::npos) return cause.what();
  } catch (...) {  // the caller throws it on
  }
  return std::nullopt;
}

}  // namespace

int train(const TrainOptions& options) {
  const bool text = reads_text(options.model.name);
  if (options.sample > 0 && !text) {
    throw UsageError("LS-FLAG", fmt::format("--sample was given and --model {} makes no text", options.model.name),
                     "use --model gpt");
  }
  static_cast<void>(checkpoint_schedule(options.checkpoint_every));  // refuses a text that is none at once
  std::optional<ClusterSpec> cluster;
  if (options.strategy == "multi-worker") cluster = resolve_cluster();
  // The chief writes the files of all workers.
  const bool is_chief = !cluster || cluster->is_chief();
  SampleLog sample_log(is_chief ? options.sample_log : "", !options.checkpoint_dir.empty(), options.resume);
  WholeFile json(is_chief ? options.json : "");
  for (const std::string* const file : {&options.export_file, &options.trace, &options.report}) {
    static_cast<void>(WholeFile(is_chief ? *file : ""));  // refuses a bad place before hours of training
  }
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
  if (is_chief && !options.quiet) {
    std::fputs(description.c_str(), stderr);
    std::fputs(fmt::format("data: {}", data.describe()).c_str(), stderr);
  }
  if (is_chief && options.describe) std::fputs(strategy->describe_variables().c_str(), stderr);

  const bool saves = !options.checkpoint_dir.empty();
  if (saves && !options.resume && newest_checkpoint(*strategy, options.checkpoint_dir)) {
    throw UsageError("LS-FLAG",
                     fmt::format("--checkpoint-dir {} has checkpoints of an earlier run", options.checkpoint_dir),
                     "go on from the newest with --resume, or choose another folder");
  }
  // The files may lie on several disks: where one cannot be written, the others still are.
  bool is_all_written = true;
  const auto attempt = [&](const char* what, const std::function<void()>& write) {
    is_all_written = write_or_say(is_chief, what, write) && is_all_written;
  };
  const auto watch = std::make_shared<TrainWatch>(options, sample_log);
  const auto style = options.quiet ? callbacks::ProgressStyle::kOff : callbacks::ProgressStyle::kAuto;
  std::vector<std::shared_ptr<Callback>> beside{watch, callbacks::stop_on_not_finite(),
                                                callbacks::progress({.style = style})};
  if (!options.trace.empty()) {
    beside.push_back(callbacks::trace({.file = options.trace, .on_failed_write = [&](const std::exception& error) {
                                         say_disk_error(is_chief, "the trace could not be written", error);
                                         is_all_written = false;
                                       }}));
  }
  if (!options.tensorboard.empty()) {
    beside.push_back(callbacks::tensor_board({.directory = options.tensorboard, .gradients_every = 1}));
  }
  if (!options.report.empty()) {
    beside.push_back(callbacks::html_report({.file = options.report, .checkpoints = options.checkpoint_dir}));
  }
  if (saves) {
    beside.push_back(
        saving(*strategy, options.checkpoint_dir, options.checkpoint_every, [&] { is_all_written = false; }));
  }
  Trainer trainer(*strategy, model, optimizer, {.loss = mean_loss_of});
  std::optional<std::string> failure;
  try {
    FitOptions fit{.steps = steps, .callbacks = beside};
    if (options.steps == 0) fit.epochs = options.epochs;
    trainer.fit(data, fit);
  } catch (const ReplicaError& error) {
    failure = not_finite(error);
    if (!failure) throw;
  }
  TrainReport report;
  report.seconds = watch->seconds();
  report.input_stall = trainer.status().input_seconds / std::max(report.seconds, 1e-9);
  report.steps = strategy->step();
  report.samples = trainer.status().samples;
  report.samples_of_process = watch->samples();
  report.train_loss = watch->train_loss();
  const std::string saved =
      saves && !failure && is_all_written
          ? fmt::format("; saved as {}", newest_checkpoint(*strategy, options.checkpoint_dir).value_or("").string())
          : "";
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
  // In a trainer of its own, because a fit would count the metric in its steps too.
  const Logs evaluation = Trainer(*strategy, model, optimizer, {.loss = mean_loss_of, .metrics = {loss_and_accuracy()}})
                              .evaluate(strategy->distribute(split.evaluate, {.global_batch = text ? 64 : 1000}));
  report.eval_loss = evaluation.at("eval_loss");
  report.eval_accuracy = evaluation.at("eval_accuracy");
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
