// How many steps of parameter servers a second: a chief schedules them, workers pull, compute and push. Tasks are
// threads, or processes where a launcher has started them. The chief prints one line of JSON.
//
//   parameter_servers dense                                              two workers that are threads
//   lockstep run --ps 1 -n 2 -- parameter_servers recommender            a chief, two workers and a server
//   lockstep run --ps 1 -n 1 -- parameter_servers rows --known 10000     a pull and a push of 1,000 rows by themselves
#include <ATen/ATen.h>
#include <fmt/format.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/adagrad.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <fstream>
#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "lockstep/lockstep.h"
#include "tools/bench/made_data.h"
#include "tools/bench/timing.h"
#include "tools/models/models.h"

namespace {

using namespace lockstep;
using namespace lockstep::tools;
using Clock = std::chrono::steady_clock;

constexpr int64_t kDim = 32;
constexpr double kRate = 0.01;

struct Options {
  std::string work;
  int64_t workers = 2;  // that are threads
  std::string engine = "tcp";
  std::vector<int64_t> widths{784, 1024, 1024, 10};
  int64_t batch = 32;
  int64_t table_rows = 1'000'000;
  int64_t known = 100'000;
  int64_t rows = 1000;
  std::string json;
  TimingOptions timing;
};

using Report = nlohmann::ordered_json;

double microseconds_since(Clock::time_point begin) {
  return std::chrono::duration<double, std::micro>(Clock::now() - begin).count();
}

/// Times steps from the first one's schedule() to the return of join().
template <class Fn>
Report time_steps(Coordinator& coordinator, const Step<Fn>& step, const TimingOptions& timing) {
  const auto repeat = [&](int64_t steps) {
    for (int64_t i = 0; i < steps; ++i) coordinator.schedule(step);
    coordinator.join();
  };
  const Timing took = measure(repeat, timing);
  return {{"ms_per_step", json_of(took, 1e3)}, {"samples_per_second", 1 / took.median}};
}

/// Steps without a pull or a push.
int run_empty(ParameterServerStrategy& strategy, const Options& options, Report& report) {
  const auto step = strategy.step("empty", [](WorkerContext&) {});
  return strategy.coordinate([&](Coordinator& coordinator) { report = time_steps(coordinator, step, options.timing); });
}

int run_dense(ParameterServerStrategy& strategy, const Options& options, Report& report) {
  const ModelOptions model_options{.name = "mlp", .widths = options.widths};
  const auto model = strategy.make_module([&] { return make_model(model_options); });
  const auto optimizer = strategy.make_optimizer(model, torch::optim::AdagradOptions(kRate));
  const auto step = strategy.step("dense", [&](WorkerContext& ctx) {
    static thread_local const Batch batch =
        made_batch(model_options, options.batch, static_cast<uint64_t>(ctx.worker_index()));
    const at::Tensor loss = mean_loss(*model(ctx), batch.input, batch.target);
    ctx.scale_loss(loss).backward();
    ctx.push();
    return loss.detach();
  });
  return strategy.coordinate([&](Coordinator& coordinator) { report = time_steps(coordinator, step, options.timing); });
}

struct Ranking : torch::nn::Module {
  Ranking() : first(register_module("first", torch::nn::Linear(2 * kDim, 64))) {
    last = register_module("last", torch::nn::Linear(64, 1));
  }
  torch::nn::Linear first;
  torch::nn::Linear last{nullptr};
};

/// Two tables, whose rows are drawn anew in each step, and two dense layers.
int run_recommender(ParameterServerStrategy& strategy, const Options& options, Report& report) {
  const auto model = strategy.make_module([] { return std::make_shared<Ranking>(); });
  const auto users = strategy.make_embedding({.name = "users", .rows = options.table_rows, .dim = kDim});
  const auto items = strategy.make_embedding({.name = "items", .rows = options.table_rows, .dim = kDim});
  const torch::optim::AdagradOptions adagrad(kRate);
  const auto optimizer = strategy.make_optimizer(model, adagrad);
  const auto of_users = strategy.make_optimizer(users, adagrad);
  const auto of_items = strategy.make_optimizer(items, adagrad);
  const auto step = strategy.step("recommender", [&](WorkerContext& ctx) {
    const auto ids = [&] { return at::randint(options.table_rows, {options.batch}, at::kLong); };
    const at::Tensor labels = at::rand({options.batch, 1}).round();
    const at::Tensor rows = at::cat({users.look_up(ctx, ids()), items.look_up(ctx, ids())}, 1);
    const auto net = model(ctx);
    const at::Tensor loss = at::binary_cross_entropy_with_logits(net->last(at::relu(net->first(rows))), labels);
    ctx.scale_loss(loss).backward();
    ctx.push();
    return loss.detach();
  });
  return strategy.coordinate([&](Coordinator& coordinator) { report = time_steps(coordinator, step, options.timing); });
}

double median_of(std::vector<double> values) {
  std::ranges::nth_element(values, values.begin() + std::ssize(values) / 2);
  return values[values.size() / 2];
}

/// A worker looks up so many rows of a table that has more of them, and pushes them. It knows that the server has the
/// push when a look-up of one further row, which follows it on the same connection, is answered. The step is waited for
/// before the next one, so that nothing else is under way.
int run_rows(ParameterServerStrategy& strategy, const Options& options, Report& report) {
  const auto table = strategy.make_embedding({.name = "t", .dim = kDim});
  const auto optimizer = strategy.make_optimizer(table, torch::optim::AdagradOptions(kRate));
  const auto fill = strategy.step("fill", [&](WorkerContext& ctx, int64_t from, int64_t to) {
    table.look_up(ctx, at::arange(from, to)).sum().backward();
    ctx.push();
  });
  const auto step = strategy.step("rows", [&](WorkerContext& ctx) {
    static thread_local const at::Tensor order = at::randperm(options.known, at::kLong);
    const int64_t from = at::randint(options.known - options.rows + 1, {1}, at::kLong).item<int64_t>();
    const at::Tensor ids = order.narrow(0, from, options.rows).clone();
    const at::Tensor one = at::full({1}, options.known, at::kLong);
    const auto begin = Clock::now();
    const at::Tensor rows = table.look_up(ctx, ids);
    const double pull = microseconds_since(begin);
    rows.sum().backward();
    const auto pushes = Clock::now();
    ctx.push();
    table.look_up(ctx, one);
    return at::tensor({pull, microseconds_since(pushes)}, at::kDouble);
  });
  return strategy.coordinate([&](Coordinator& coordinator) {
    for (int64_t from = 0; from < options.known; from += options.rows)
      coordinator.schedule(fill, from, std::min(options.known, from + options.rows));
    coordinator.join();
    std::vector<double> pulls, pushes, both;
    for (int i = 0; i < 300 * options.timing.blocks; ++i) {
      const at::Tensor took = coordinator.schedule(step).get();
      pulls.push_back(took[0].item<double>());
      pushes.push_back(took[1].item<double>());
      both.push_back(pulls.back() + pushes.back());
    }
    const Timing took = summarize(both);
    report = {{"ms_per_step", json_of(took, 1e-3)},
              {"samples_per_second", 1e6 / took.median},
              {"pull_us", median_of(pulls)},
              {"push_us", median_of(pushes)}};
  });
}

int run(const Options& options) {
  ParameterServerStrategy strategy({.workers = options.workers, .seed = 7, .engine = options.engine});
  Report report;
  const auto work = options.work == "empty"         ? run_empty
                    : options.work == "dense"       ? run_dense
                    : options.work == "recommender" ? run_recommender
                                                    : run_rows;
  const int code = work(strategy, options, report);
  if (report.is_null()) return code;  // another task than the chief
  report["bench"] = "parameter_servers";
  report["work"] = options.work;
  report["tasks"] = strategy.has_processes() ? "processes" : "threads";
  if (options.json.empty()) {
    fmt::print("{}\n", report.dump());
  } else {
    std::ofstream(options.json) << report.dump() << "\n";
  }
  return code;
}

}  // namespace

int main(int argc, char** argv) {
  Options options;
  CLI::App app("Steps of parameter servers: how many a second", "parameter_servers");
  app.add_option("work", options.work)->required()->check(CLI::IsMember({"empty", "dense", "recommender", "rows"}));
  app.add_option("--workers", options.workers, "threads; a launcher says how many processes")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  app.add_option("--engine", options.engine, "how processes are connected: tcp, tls or auto")->capture_default_str();
  app.add_option("--widths", options.widths, "of the dense model")->delimiter(',')->capture_default_str();
  app.add_option("--batch", options.batch)->check(CLI::PositiveNumber)->capture_default_str();
  app.add_option("--table-rows", options.table_rows)->check(CLI::PositiveNumber)->capture_default_str();
  app.add_option("--known", options.known, "rows: of the table")->check(CLI::PositiveNumber)->capture_default_str();
  app.add_option("--rows", options.rows, "rows: of one step")->check(CLI::PositiveNumber)->capture_default_str();
  app.add_option("--blocks", options.timing.blocks)->check(CLI::PositiveNumber)->capture_default_str();
  app.add_option("--block-seconds", options.timing.block_seconds)->check(CLI::PositiveNumber)->capture_default_str();
  app.add_option("--json", options.json, "the chief writes the report to this file");
  CLI11_PARSE(app, argc, argv);
  at::globalContext().setFlushDenormal(true);
  try {
    return run(options);
  } catch (const std::exception& error) {
    fmt::print(stderr, "parameter_servers: {}\n", error.what());
    return 1;
  }
}
