// Measures what the number of workers costs one of them in a step, beside what travels: a World in which all others say
// what this one says, at once. In a run that does nothing, what is left is to make, read and compare what each of so
// many workers tells, in three agreements. A step has two more, and adds the partial sums of all workers.
#include <ATen/Parallel.h>
#include <fmt/format.h>
#include <torch/optim/sgd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cstring>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/comm/world.h"
#include "lockstep/lockstep.h"
#include "tools/bench/made_data.h"
#include "tools/bench/timing.h"
#include "tools/console.h"
#include "tools/models/models.h"

namespace {

using namespace lockstep;
using namespace lockstep::tools;
using Clock = std::chrono::steady_clock;

/// The gradients of the others are zero.
class Echo final : public World {
 public:
  explicit Echo(int64_t workers) : workers_(workers) {}

  int64_t num_workers() const override { return workers_; }
  int64_t worker_index() const override { return 0; }
  std::vector<std::string> agree(const std::string& mine) override {
    ++agreements;
    return std::vector<std::string>(static_cast<std::size_t>(workers_), mine);
  }
  void exchange(std::span<const std::span<const std::byte>>, std::span<const std::span<std::byte>> from) override {
    ++exchanges;
    for (std::size_t w = 1; w < from.size(); ++w) std::fill(from[w].begin(), from[w].end(), std::byte{0});
  }
  void abort(const std::string&) noexcept override {}

  int agreements = 0;
  int exchanges = 0;

 private:
  const int64_t workers_;
};

/// One replica of as many as there are workers.
class OneOfMany final : public Strategy {
 public:
  explicit OneOfMany(std::shared_ptr<World> world)
      : Strategy(StrategySetup{
            .name = "OneOfMany",
            .topology = std::make_shared<HostTopology>(std::vector<std::string>{"cpu:0"}, world->num_workers(), false),
            .world = world}) {}
};

}  // namespace

int main(int argc, char** argv) {
  ModelOptions model_options;
  std::vector<int64_t> workers{2, 16, 64, 256, 1024, 4096};
  int64_t batch_size = 32;
  int blocks = 15;
  int steps = 10;
  CLI::App app("A step of one worker of many, of which all others say what it says", "many_workers");
  app.add_option("--model", model_options.name)->check(CLI::IsMember(model_names()))->capture_default_str();
  app.add_option("--widths", model_options.widths)->delimiter(',')->capture_default_str();
  app.add_option("--workers", workers)->delimiter(',')->check(CLI::Range(2, 65536))->capture_default_str();
  app.add_option("--batch", batch_size, "of each worker")->check(CLI::PositiveNumber)->capture_default_str();
  app.add_option("--blocks", blocks)->check(CLI::PositiveNumber)->capture_default_str();
  app.add_option("--steps", steps, "of a block")->check(CLI::PositiveNumber)->capture_default_str();
  CLI11_PARSE(app, argc, argv);

  at::set_num_threads(1);  // what a replica has
  const Batch batch = made_batch(model_options, batch_size, 0);
  struct Job {
    std::shared_ptr<Echo> world;
    std::unique_ptr<OneOfMany> strategy;
    Replicated<std::shared_ptr<Classifier>> model;
    Optimizer optimizer;
    std::vector<double> seconds = {};
    std::vector<double> empty = {};
    std::string calls = {};
  };
  std::vector<Job> jobs;
  for (const int64_t count : workers) {
    const auto world = std::make_shared<Echo>(count);
    auto strategy = std::make_unique<OneOfMany>(world);
    auto model = strategy->make_module([&] { return make_model(model_options); });
    Optimizer optimizer = strategy->make_optimizer(model, torch::optim::SGDOptions(1e-3));
    jobs.push_back({world, std::move(strategy), std::move(model), std::move(optimizer)});
  }
  const auto seconds_per_step = [&](Job& job) {
    const auto start = Clock::now();
    for (int i = 0; i < steps; ++i) {
      job.strategy->run([&](ReplicaContext& ctx) {
        mean_loss(*job.model(ctx), batch.input, batch.target).backward();
        job.optimizer.step(ctx);
      });
    }
    return std::chrono::duration<double>(Clock::now() - start).count() / steps;
  };
  const auto seconds_per_empty_run = [&](const Job& job) {
    const auto start = Clock::now();
    for (int i = 0; i < steps; ++i) job.strategy->run([](ReplicaContext&) {});
    return std::chrono::duration<double>(Clock::now() - start).count() / steps;
  };
  for (Job& job : jobs) {
    seconds_per_step(job);
    job.world->agreements = job.world->exchanges = 0;
  }
  for (int i = 0; i < blocks; ++i) {
    for (Job& job : jobs) job.seconds.push_back(seconds_per_step(job));
  }
  for (Job& job : jobs)
    job.calls = fmt::format("{:.1f} agreements and {:.1f} exchanges", 1.0 * job.world->agreements / (steps * blocks),
                            1.0 * job.world->exchanges / (steps * blocks));
  for (int i = 0; i < blocks; ++i) {
    for (Job& job : jobs) job.empty.push_back(seconds_per_empty_run(job));
  }
  std::vector<std::pair<std::string, std::string>> rows;
  for (std::size_t i = 0; i < jobs.size(); ++i) {
    rows.emplace_back(
        fmt::format("{} workers", workers[i]),
        fmt::format("{:8.3f} ms of an empty run, {:8.3f} ms of a step, with {}", 1e3 * summarize(jobs[i].empty).median,
                    1e3 * summarize(jobs[i].seconds).median, jobs[i].calls));
  }
  print_table(rows);
  return 0;
}
