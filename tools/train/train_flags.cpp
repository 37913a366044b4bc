// The flags of `lockstep train`.
#include <CLI/CLI.hpp>
#include <cstdint>
#include <limits>
#include <memory>

#include "lockstep/choice/make_strategy.h"
#include "tools/number_flags.h"
#include "tools/subcommands.h"
#include "tools/train/optimizers.h"
#include "tools/train/train.h"

namespace lockstep::tools {

void add_train(CLI::App& app, Action& chosen) {
  const auto kept = std::make_shared<TrainOptions>();
  TrainOptions& options = *kept;
  CLI::App* train = app.add_subcommand("train", "Train a built-in model on real data under any strategy");
  add_model_flags(*train, options.model);
  train->add_option("--data", options.data, "digits, idx:DIR with a folder of MNIST's files, or text:FILE for the gpt")
      ->capture_default_str();
  train->add_option("--strategy", options.strategy, "the strategy")
      ->check(CLI::IsMember(strategy_names()))
      ->capture_default_str();
  train->add_option("--engine", options.engine, "what moves the bytes between the workers of multi-worker")
      ->check(CLI::IsMember({"auto", "shared-memory", "tls", "tcp", "ucx", "mpi"}))
      ->capture_default_str();
  train->add_option("--wire", options.wire, "in which numbers gradients travel between the workers of multi-worker")
      ->check(CLI::IsMember({"exact", "bfloat16"}))
      ->capture_default_str();
  train->add_option("--slots", options.slots, "what each worker of multi-worker has of the optimizer's slots")
      ->check(CLI::IsMember({"whole", "sliced"}))
      ->capture_default_str();
  train->add_option("--devices", options.devices, "lanes, such as cpu:0,cpu:1; by default as many as cores")
      ->delimiter(',');
  train->add_option("--replicas", options.replicas, "replicas, at least as many as lanes; by default one for each lane")
      ->transform(whole_number());
  train->add_option("--threads-per-replica", options.threads_per_replica, "intra-op threads of each replica")
      ->transform(whole_number(1, 1024))
      ->capture_default_str();
  train->add_option("--global-batch", options.global_batch, "samples of a step over all replicas")
      ->transform(whole_number())
      ->capture_default_str();
  CLI::Option* epochs =
      train->add_option("--epochs", options.epochs, "passes over the data; 5 where --steps is not given")
          ->transform(whole_number());
  train->add_option("--steps", options.steps, "training steps, instead of epochs")
      ->transform(whole_number())
      ->excludes(epochs);
  train->add_option("--optimizer", options.optimizer, "the optimizer")
      ->check(CLI::IsMember(optimizer_names()))
      ->capture_default_str();
  train->add_option("--learning-rate", options.learning_rate, "by default the optimizer's usual one")
      ->check(positive_number());
  train
      ->add_option(
          "--prefetch", options.prefetch,
          "steps that are read ahead on a thread of their own; 0: read when they are needed; no result depends "
          "on it")
      ->transform(whole_number(0, 1 << 20))
      ->capture_default_str();
  train->add_option("--seed", options.seed, "of initial values, dropout and order")
      ->transform(whole_number(0, std::numeric_limits<uint64_t>::max()))
      ->capture_default_str();
  train->add_option("--dropout", options.model.dropout, "probability")
      ->check(number_between(0, 0.99))
      ->capture_default_str();
  train
      ->add_option_function<std::string>(
          "--factored-gradients", [kept](const std::string& value) { kept->factored_gradients = value == "auto"; },
          "auto, or off: write all gradients to memory; no result depends on it")
      ->check(CLI::IsMember({"auto", "off"}))
      ->default_str("auto");
  CLI::Option* const directory = train->add_option(
      "--checkpoint-dir", options.checkpoint_dir, "save checkpoints into this folder, also where SIGTERM ends the run");
  train
      ->add_option("--checkpoint-every", options.checkpoint_every,
                   "steps (100), or a time (90s, 10m, 2h); by default as often as it costs at most 1 % of the time")
      ->needs(directory);
  train
      ->add_flag("--resume", options.resume,
                 "go on from the folder's newest checkpoint; from the beginning where there is none")
      ->needs(directory);
  train->add_option("--export", options.export_file,
                    "write the trained weights to this file, as safetensors; as PyTorch's torch.save does where it "
                    "ends with .pt or .pth");
  train->add_flag("--describe", options.describe, "print a table of all variables before training");
  train->add_flag("--quiet", options.quiet, "say neither what the strategy is nor how far the training is");
  train->add_option("--sample", options.sample, "characters of text that the trained gpt makes up at the end")
      ->transform(whole_number(1, 1 << 20));
  train->add_option("--sample-log", options.sample_log,
                    "write a line for each sample used: epoch, step, replica, sample");
  train->add_option("--json", options.json, "write the report to this file");
  train->add_option("--trace", options.trace,
                    "write what lanes and workers did in some steps to this file, for Perfetto and `lockstep trace`");
  train->add_option("--report", options.report,
                    "write a page about the run to this file, which `lockstep report` compares with others");
  train->add_option("--tensorboard", options.tensorboard, "write the run's curves into this folder for TensorBoard");
  train->callback([kept, &chosen] {
    if (kept->steps == 0 && kept->epochs == 0) kept->epochs = 5;
    chosen = [kept] { return lockstep::tools::train(*kept); };
  });
}

}  // namespace lockstep::tools
