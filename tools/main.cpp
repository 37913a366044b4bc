// The program `lockstep`: one subcommand for each thing that it does. Exit codes: 0 clean, 1 findings, 2 usage,
// 3 environment.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <string>

#include "lockstep/core/error.h"
#include "lockstep/core/log.h"
#include "lockstep/strategy/make_strategy.h"
#include "lockstep/version.h"
#include "tools/bench/bench.h"
#include "tools/models/models.h"
#include "tools/optimizers.h"
#include "tools/train.h"

namespace {

using lockstep::tools::BenchTrainOptions;
using lockstep::tools::TrainOptions;

enum ExitCode { kClean = 0, kFindings = 1, kUsage = 2, kEnvironment = 3 };

void add_train(CLI::App& app, TrainOptions& options) {
  CLI::App* train = app.add_subcommand("train", "Train a built-in model on real data under any strategy");
  train->add_option("--model", options.model, "the model")
      ->check(CLI::IsMember(lockstep::tools::model_names()))
      ->capture_default_str();
  train->add_option("--data", options.data, "digits, or idx:DIR with a folder of MNIST's files")->capture_default_str();
  train->add_option("--strategy", options.strategy, "the strategy")
      ->check(CLI::IsMember(lockstep::strategy_names()))
      ->capture_default_str();
  train->add_option("--devices", options.devices, "lanes, such as cpu:0,cpu:1; by default as many as cores")
      ->delimiter(',');
  train->add_option("--replicas", options.replicas, "replicas, a multiple of the lanes; by default one for each lane")
      ->check(CLI::PositiveNumber);
  train->add_option("--threads-per-replica", options.threads_per_replica, "intra-op threads of each replica")
      ->check(CLI::Range(1, 1024))
      ->capture_default_str();
  train->add_option("--global-batch", options.global_batch, "samples of a step over all replicas")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  CLI::Option* epochs =
      train->add_option("--epochs", options.epochs, "passes over the data; 5 where --steps is not given")
          ->check(CLI::PositiveNumber);
  train->add_option("--steps", options.steps, "training steps, instead of epochs")
      ->check(CLI::PositiveNumber)
      ->excludes(epochs);
  train->add_option("--optimizer", options.optimizer, "the optimizer")
      ->check(CLI::IsMember(lockstep::tools::optimizer_names()))
      ->capture_default_str();
  train->add_option("--learning-rate", options.learning_rate, "by default the optimizer's usual one")
      ->check(CLI::PositiveNumber);
  train->add_option("--seed", options.seed, "of initial values, dropout and order")->capture_default_str();
  train->add_option("--dropout", options.dropout, "probability")->check(CLI::Range(0.0, 0.99))->capture_default_str();
  train->add_option("--sample-log", options.sample_log,
                    "write a line for each sample used: epoch, step, replica, sample");
  train->add_option("--json", options.json, "write the report to this file");
}

void add_bench(CLI::App& app, BenchTrainOptions& options) {
  CLI::App* bench =
      app.add_subcommand("bench", "Measure this machine, and what Lockstep makes of it")->require_subcommand(1);
  CLI::App* train = bench->add_subcommand("train", "Whole training steps on made data");
  train->add_option("--model", options.model.name, "the model")
      ->check(CLI::IsMember(lockstep::tools::model_names()))
      ->capture_default_str();
  train->add_option("--widths", options.model.widths, "of the mlp: input, hidden layers, classes")
      ->delimiter(',')
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  train->add_option("--batch", options.batch, "samples of each replica")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  train->add_option("--devices", options.devices, "lanes, such as cpu:0,cpu:1; by default as many as cores")
      ->delimiter(',');
  train->add_option("--replicas", options.replicas, "replicas, a multiple of the lanes; by default one for each lane")
      ->check(CLI::PositiveNumber);
  train->add_option("--threads-per-replica", options.threads_per_replica, "intra-op threads of each replica")
      ->check(CLI::Range(1, 1024))
      ->capture_default_str();
  train->add_option("--optimizer", options.optimizer, "the optimizer")
      ->check(CLI::IsMember(lockstep::tools::optimizer_names()))
      ->capture_default_str();
  train->add_option("--blocks", options.blocks, "measurements, of which the median is given")
      ->check(CLI::Range(1, 10000))
      ->capture_default_str();
  train->add_option("--block-seconds", options.block_seconds, "how long each takes, at least")
      ->check(CLI::Range(0.001, 3600.0))
      ->capture_default_str();
  train->add_option("--json", options.json, "write the report to this file");
}

/// One line, whatever the parser put into its text.
int refuse(const std::string& text, int code) {
  std::string line = text;
  for (char& c : line) c = c == '\n' ? ' ' : c;
  std::fputs(fmt::format("lockstep: {}\n", line).c_str(), stderr);
  return code;
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app("Lockstep: one training step on many replicas, for C++ programs built on LibTorch", "lockstep");
  app.set_version_flag("--version", LOCKSTEP_VERSION);
  app.require_subcommand(1);
  TrainOptions train_options;
  add_train(app, train_options);
  BenchTrainOptions bench_train_options;
  add_bench(app, bench_train_options);
  try {
    app.parse(argc, argv);
  } catch (const CLI::Success& done) {
    return app.exit(done);  // --help and --version
  } catch (const CLI::ParseError& error) {
    return refuse(fmt::format("{}; lockstep --help lists what there is", error.what()), kUsage);
  }
  // What the library says while all is well is in describe(), which is printed anyway.
  lockstep::set_log_sink([](lockstep::LogLevel level, std::string_view line) {
    if (level != lockstep::LogLevel::kInfo) std::fputs(fmt::format("lockstep: {}\n", line).c_str(), stderr);
  });
  try {
    if (app.got_subcommand("bench")) return lockstep::tools::bench_train(bench_train_options);
    if (train_options.steps == 0 && train_options.epochs == 0) train_options.epochs = 5;
    return lockstep::tools::train(train_options);
  } catch (const lockstep::UsageError& error) {
    return refuse(error.what(), kUsage);
  } catch (const lockstep::DataError& error) {
    return refuse(error.what(), kEnvironment);
  } catch (const lockstep::ClusterError& error) {
    return refuse(error.what(), kEnvironment);
  } catch (const std::exception& error) {
    return refuse(error.what(), kFindings);
  }
}
