// The flags of `lockstep bench`.
#include <CLI/CLI.hpp>
#include <memory>

#include "tools/bench/bench.h"
#include "tools/number_flags.h"
#include "tools/subcommands.h"
#include "tools/train/optimizers.h"

namespace lockstep::tools {

namespace {

template <class Options>
void add_timing_flags(CLI::App& bench, Options& options) {
  bench.add_option("--blocks", options.blocks, "measurements, of which the median is given")
      ->transform(whole_number(1, 10000))
      ->capture_default_str();
  bench.add_option("--block-seconds", options.block_seconds, "how long each takes, at least")
      ->check(number_between(0.001, 3600))
      ->capture_default_str();
  bench.add_option("--json", options.json, "write the report to this file");
}

void add_common_flags(CLI::App& bench, BenchOptions& options) {
  bench.add_option("--devices", options.devices, "lanes, such as cpu:0,cpu:1; by default as many as cores")
      ->delimiter(',');
  bench.add_option("--replicas", options.replicas, "replicas, at least as many as lanes; by default one for each lane")
      ->transform(whole_number());
  bench.add_option("--threads-per-replica", options.threads_per_replica, "intra-op threads of each replica")
      ->transform(whole_number(1, 1024))
      ->capture_default_str();
  bench.add_flag("--no-calibration", options.no_calibration,
                 "measure without the machine's own limits, some seconds faster");
  add_timing_flags(bench, options);
}

void add_optimizer_flag(CLI::App& bench, std::string& optimizer) {
  bench.add_option("--optimizer", optimizer, "the optimizer")
      ->check(CLI::IsMember(optimizer_names()))
      ->capture_default_str();
}

template <class Options>
CLI::App* add_bench(CLI::App& app, const char* name, const char* what, const std::shared_ptr<Options>& options,
                    int (*run)(const Options&), Action& chosen) {
  CLI::App* const bench = app.add_subcommand(name, what);
  add_common_flags(*bench, *options);
  bench->callback([options, run, &chosen] { chosen = [options, run] { return run(*options); }; });
  return bench;
}

}  // namespace

void add_bench(CLI::App& app, Action& chosen) {
  CLI::App* bench =
      app.add_subcommand("bench", "Measure this machine, and what Lockstep makes of it")->require_subcommand(1);

  const auto train = std::make_shared<BenchTrainOptions>();
  CLI::App* train_app = add_bench(*bench, "train", "Whole training steps on made data", train, bench_train, chosen);
  add_model_flags(*train_app, train->model);
  train_app->add_option("--batch", train->batch, "samples of each replica")
      ->transform(whole_number())
      ->capture_default_str();
  add_optimizer_flag(*train_app, train->optimizer);
  train_app
      ->add_option("--strategy", train->strategy, "multi-worker measures a job of workers; start them by lockstep run")
      ->check(CLI::IsMember({"mirrored", "multi-worker"}))
      ->capture_default_str();
  train_app->add_option("--engine", train->engine, "what moves the bytes of multi-worker; by default as join() chooses")
      ->check(CLI::IsMember({"auto", "shared-memory", "tls", "tcp", "ucx", "mpi"}));
  train_app->add_option("--wire", train->wire, "in which numbers gradients travel between the workers of multi-worker")
      ->check(CLI::IsMember({"exact", "bfloat16"}))
      ->capture_default_str();
  train_app->add_option("--dump", train->dump,
                        "write initial weights, data, first gradients and the weights after 20 steps to this folder");

  const auto all_reduce = std::make_shared<BenchAllReduceOptions>();
  CLI::App* all_reduce_app = add_bench(*bench, "all-reduce", "Sums over replicas, of buffers in and out of the caches",
                                       all_reduce, bench_all_reduce, chosen);
  all_reduce_app
      ->add_option("--sizes", all_reduce->sizes,
                   "of each replica's tensor, such as 4KiB,64MiB; by default 8 B to 256 MiB")
      ->delimiter(',')
      ->transform(CLI::AsSizeValue(/*kb_is_1000=*/false))
      ->check(CLI::Range(uint64_t{4}, uint64_t{1} << 40));

  const auto step = std::make_shared<BenchStepOptions>();
  CLI::App* step_app =
      add_bench(*bench, "step", "Reduce-and-step on gradients that are ready: --shapes, --tensors or --model", step,
                bench_step, chosen);
  CLI::Option* model = add_model_flags(*step_app, step->model)->default_str("");
  CLI::Option* shapes =
      step_app->add_option("--shapes", step->shapes, "of the gradients, such as 4096x4096*4,1000")->excludes(model);
  step_app->add_option("--tensors", step->tensors, "COUNTxELEMENTS, such as 10000x256")
      ->excludes(model)
      ->excludes(shapes);
  step_app
      ->add_option("--samples", step->samples,
                   "compute the gradients of matrices by linear layers with this many samples on each replica, so that "
                   "they may be kept as factors; by default gradients are given")
      ->transform(whole_number(1, 1 << 20));
  add_optimizer_flag(*step_app, step->optimizer);

  const auto wire = std::make_shared<BenchWireOptions>();
  CLI::App* wire_app = bench->add_subcommand("wire", "Bytes between workers that are processes of this machine");
  wire_app->footer(
      "Each exchange is shown beside a memcpy of as many bytes. bench/compare compares it with ucx_perftest and Open "
      "MPI.");
  wire_app->add_option("--workers", wire->workers, "processes")->transform(whole_number(2, 64))->capture_default_str();
  wire_app->add_option("--engine", wire->engine, "what moves the bytes")
      ->check(CLI::IsMember({"shared-memory", "tls", "tcp", "ucx"}))
      ->capture_default_str();
  wire_app
      ->add_option("--hosts", wire->hosts,
                   "the workers say that they are on so many hosts, in blocks, so that a job of several hosts can be "
                   "measured on one machine; engines tls and tcp only")
      ->transform(whole_number(1, 64))
      ->capture_default_str();
  wire_app->add_flag("--pair", wire->pair, "only workers 0 and 1 send bytes; the others take part in the calls");
  wire_app->add_option("--sizes", wire->sizes, "from each worker to each other one, such as 4KiB,64MiB")
      ->delimiter(',')
      ->transform(CLI::AsSizeValue(/*kb_is_1000=*/false))
      ->check(CLI::Range(uint64_t{0}, uint64_t{1} << 40));
  add_timing_flags(*wire_app, *wire);
  wire_app->callback([wire, &chosen] { chosen = [wire] { return bench_wire(*wire); }; });
}

}  // namespace lockstep::tools
