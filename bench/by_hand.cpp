// Data parallelism written by hand: a process for each rank, MPI_Allreduce of a flat buffer that all gradients are
// views of, then torch::optim. Start it with mpirun, each rank bound to a core. Prints one line of JSON.
#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <fmt/format.h>
#include <mpi.h>
#include <torch/optim/adamw.h>

#include <CLI/CLI.hpp>
#include <chrono>
#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "tools/bench/bench_report.h"
#include "tools/bench/made_data.h"
#include "tools/bench/shapes.h"
#include "tools/models/models.h"

namespace {

using namespace lockstep;
using namespace lockstep::tools;

int rank_of() {
  int rank = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  return rank;
}

int world_size() {
  int size = 1;
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  return size;
}

void all_reduce(at::Tensor& flat) {
  constexpr int64_t kMost = int64_t{1} << 28;  // MPI counts in int
  for (int64_t from = 0; from < flat.numel(); from += kMost) {
    const auto count = static_cast<int>(std::min(kMost, flat.numel() - from));
    MPI_Allreduce(MPI_IN_PLACE, flat.data_ptr<float>() + from, count, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
  }
}

/// All gradients in one buffer.
at::Tensor flatten_gradients(const std::vector<at::Tensor>& parameters) {
  int64_t total = 0;
  for (const at::Tensor& parameter : parameters) total += parameter.numel();
  at::Tensor flat = at::zeros({total});
  int64_t offset = 0;
  for (at::Tensor parameter : parameters) {
    parameter.mutable_grad() = flat.narrow(0, offset, parameter.numel()).view(parameter.sizes());
    offset += parameter.numel();
  }
  return flat;
}

/// The same number of calls on all ranks, whatever their clocks say: rank 0's counts.
Timing measure_together(const std::function<void(int64_t)>& repeat, TimingOptions options) {
  return measure_seconds(
      [&](int64_t calls) {
        MPI_Barrier(MPI_COMM_WORLD);
        const auto start = std::chrono::steady_clock::now();
        repeat(calls);
        double took = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
        MPI_Bcast(&took, 1, MPI_DOUBLE, 0, MPI_COMM_WORLD);
        return took;
      },
      options);
}

/// Copies a dumped file's float32 into tensors, one after the other.
void read_into(const std::string& path, const std::vector<at::Tensor>& tensors) {
  std::ifstream in(path, std::ios::binary);
  for (const at::Tensor& tensor : tensors) {
    if (!in.read(static_cast<char*>(tensor.data_ptr()), static_cast<std::streamsize>(tensor.nbytes()))) {
      throw std::runtime_error(path + " does not hold what this model needs");
    }
  }
}

std::vector<at::Tensor> like(const std::vector<at::Tensor>& tensors) {
  std::vector<at::Tensor> made;
  for (const at::Tensor& tensor : tensors) made.push_back(at::empty_like(tensor.detach()));
  return made;
}

double distance(const at::Tensor& a, const at::Tensor& b) {
  return (a.detach().to(at::kDouble) - b.detach().to(at::kDouble)).norm().item<double>();
}

struct Options {
  std::string mode;
  int64_t bytes = 4096;
  std::string shapes;
  ModelOptions model = {.name = "mlp"};
  int64_t batch = 32;
  std::string dump;
  TimingOptions timing;
};

nlohmann::ordered_json time_all_reduce(const Options& options) {
  at::Tensor buffer = at::full({options.bytes / 4}, static_cast<float>(rank_of() + 1));
  all_reduce(buffer);
  const double sum = world_size() * (world_size() + 1) / 2.0;
  if (buffer.min().item<double>() != sum || buffer.max().item<double>() != sum)
    throw std::runtime_error("the sum is wrong");
  buffer.zero_();
  const auto repeat = [&](int64_t calls) {
    for (int64_t i = 0; i < calls; ++i) all_reduce(buffer);
  };
  return {{"ms", json_of(measure_together(repeat, options.timing), 1e3)}};
}

/// Two ranks send so many bytes to each other.
nlohmann::ordered_json time_exchange(const Options& options) {
  const auto bytes = static_cast<std::size_t>(options.bytes);
  const int other = 1 - rank_of();
  std::vector<unsigned char> sent(bytes, static_cast<unsigned char>(rank_of() + 1)), got(bytes);
  const auto repeat = [&](int64_t calls) {
    for (int64_t i = 0; i < calls; ++i) {
      MPI_Sendrecv(sent.data(), static_cast<int>(bytes), MPI_BYTE, other, 0, got.data(), static_cast<int>(bytes),
                   MPI_BYTE, other, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    }
  };
  repeat(1);
  for (const unsigned char one : got) {
    if (one != other + 1) throw std::runtime_error("what came is not what was sent");
  }
  return {{"ms", json_of(measure_together(repeat, options.timing), 1e3)}};
}

nlohmann::ordered_json time_step(const Options& options) {
  std::vector<at::Tensor> parameters;
  if (options.shapes.empty()) {
    parameters = make_model(options.model)->parameters();
  } else {
    for (const Shape& shape : parse_shapes("--shapes", options.shapes))
      parameters.push_back(at::ones(shape).requires_grad_());
  }
  torch::optim::AdamW optimizer(parameters, torch::optim::AdamWOptions(1e-3));
  at::Tensor flat = flatten_gradients(parameters).fill_(1e-3 * (rank_of() + 1));
  const auto repeat = [&](int64_t calls) {
    for (int64_t i = 0; i < calls; ++i) {
      flat.div_(world_size());
      all_reduce(flat);
      optimizer.step();
    }
  };
  return {{"ms", json_of(measure_together(repeat, options.timing), 1e3)}};
}

nlohmann::ordered_json time_training(const Options& options) {
  nlohmann::ordered_json report;
  const auto model = make_model(options.model);
  const std::vector<at::Tensor> parameters = model->parameters();
  Batch batch = made_batch(options.model, options.batch, static_cast<uint64_t>(rank_of()));
  if (!options.dump.empty()) {
    read_into(options.dump + "/weights.bin", parameters);
    read_into(fmt::format("{}/batch{}.bin", options.dump, rank_of()), {batch.input, batch.target});
  }
  torch::optim::AdamW optimizer(parameters, torch::optim::AdamWOptions(1e-4));
  at::Tensor flat = flatten_gradients(parameters);
  const auto backward = [&] {
    flat.zero_();
    (mean_loss(*model, batch.input, batch.target) / world_size()).backward();
    all_reduce(flat);
  };
  const auto steps = [&](int64_t count) {
    for (int64_t i = 0; i < count; ++i) {
      backward();
      optimizer.step();
    }
  };
  const std::vector<at::Tensor> start = like(parameters);
  for (std::size_t i = 0; i < start.size(); ++i) start[i].copy_(parameters[i].detach());
  backward();
  if (!options.dump.empty()) {
    const std::vector<at::Tensor> theirs = like(parameters);
    read_into(options.dump + "/gradients.bin", theirs);
    double worst = 0;
    for (std::size_t i = 0; i < theirs.size(); ++i) {
      worst =
          std::max(worst, distance(parameters[i].grad(), theirs[i]) / theirs[i].to(at::kDouble).norm().item<double>());
    }
    report["gradient_error"] = worst;
  }
  optimizer.step();
  steps(19);
  if (!options.dump.empty()) {
    const std::vector<at::Tensor> theirs = like(parameters);
    read_into(options.dump + "/weights20.bin", theirs);
    double off = 0, way = 0;
    for (std::size_t i = 0; i < theirs.size(); ++i) {
      off += std::pow(distance(parameters[i], theirs[i]), 2);
      way += std::pow(distance(start[i], theirs[i]), 2);
    }
    report["weight_error"] = std::sqrt(off / way);
  }
  TimingOptions timing = options.timing;
  timing.warm_up_calls = 2;
  const Timing took = measure_together(steps, timing);
  report["ms"] = json_of(took, 1e3);
  report["samples_per_second"] = static_cast<double>(options.batch * world_size()) / took.median;
  return report;
}

}  // namespace

int main(int argc, char** argv) {
  Options options;
  CLI::App app("Data parallelism by hand, with MPI and torch::optim", "by_hand");
  app.add_option("mode", options.mode)->required()->check(CLI::IsMember({"all-reduce", "exchange", "step", "train"}));
  app.add_option("--bytes", options.bytes)->check(CLI::PositiveNumber)->capture_default_str();
  app.add_option("--shapes", options.shapes);
  app.add_option("--model", options.model.name)->check(CLI::IsMember(model_names()))->capture_default_str();
  app.add_option("--widths", options.model.widths)->delimiter(',')->capture_default_str();
  app.add_option("--batch", options.batch)->check(CLI::PositiveNumber)->capture_default_str();
  app.add_option("--dump", options.dump, "begin with what `lockstep bench train --dump` wrote, and compare");
  app.add_option("--blocks", options.timing.blocks)->check(CLI::PositiveNumber)->capture_default_str();
  app.add_option("--block-seconds", options.timing.block_seconds)->check(CLI::PositiveNumber)->capture_default_str();
  CLI11_PARSE(app, argc, argv);
  MPI_Init(&argc, &argv);
  at::set_num_threads(1);
  at::globalContext().setFlushDenormal(true);  // as Lockstep does
  try {
    if (options.mode == "exchange" && world_size() != 2) throw std::runtime_error("an exchange is between two ranks");
    nlohmann::ordered_json report = options.mode == "all-reduce" ? time_all_reduce(options)
                                    : options.mode == "exchange" ? time_exchange(options)
                                    : options.mode == "step"     ? time_step(options)
                                                                 : time_training(options);
    char version[MPI_MAX_LIBRARY_VERSION_STRING];
    int length = 0;
    MPI_Get_library_version(version, &length);
    report["peak_memory_mib"] = static_cast<double>(peak_memory()) / (1 << 20);
    report["version"] =
        std::string(version, static_cast<std::size_t>(length)).substr(0, std::string(version).find(','));
    if (rank_of() == 0) fmt::print("{}\n", report.dump());
  } catch (const std::exception& error) {
    fmt::print(stderr, "by_hand: {}\n", error.what());
    MPI_Abort(MPI_COMM_WORLD, 1);
  }
  MPI_Finalize();
  return 0;
}
