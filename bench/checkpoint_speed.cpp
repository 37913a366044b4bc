// Measures what checkpoints cost, on the state of an MLP with AdamW: how long a save holds the training, how long it
// takes until it is durable, and how long a restore takes; beside a plain copy of the state and a plain write of it.
// Under `lockstep run -n 2` each worker has one of two replicas and writes its share; the chief prints its times.
#include <ATen/ATen.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <sys/resource.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/adamw.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <filesystem>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "lockstep/core/process/file_descriptor.h"
#include "lockstep/lockstep.h"

namespace {

namespace fs = std::filesystem;
using namespace lockstep;

double seconds_of(const std::function<void()>& work) {
  const auto begin = std::chrono::steady_clock::now();
  work();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

double peak_mib() {
  rusage usage = {};
  getrusage(RUSAGE_SELF, &usage);
  return static_cast<double>(usage.ru_maxrss) / 1024;
}

/// Bytes into a new file in large writes, and a sync, as dd does it.
void write_plainly(const fs::path& path, const std::vector<at::Tensor>& tensors) {
  const internal::FileDescriptor file(::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666));
  for (const at::Tensor& tensor : tensors) {
    const auto* bytes = static_cast<const char*>(tensor.data_ptr());
    for (std::size_t done = 0; done < tensor.nbytes();) {
      const ssize_t written =
          ::write(file.get(), bytes + done, std::min<std::size_t>(16 << 20, tensor.nbytes() - done));
      if (written <= 0) throw std::runtime_error("cannot write " + path.string());
      done += static_cast<std::size_t>(written);
    }
  }
  if (::fsync(file.get()) != 0) throw std::runtime_error("cannot sync " + path.string());
}

}  // namespace

int main(int argc, char** argv) {
  int64_t layers = 4;
  int64_t width = 4096;
  int rounds = 5;
  fs::path directory;
  CLI::App app("What a checkpoint of an MLP with AdamW costs", "checkpoint_speed");
  app.add_option("--layers", layers)->check(CLI::PositiveNumber)->capture_default_str();
  app.add_option("--width", width)->check(CLI::PositiveNumber)->capture_default_str();
  app.add_option("--rounds", rounds)->check(CLI::PositiveNumber)->capture_default_str();
  app.add_option("--directory", directory, "on the disk that is measured; what is written there is removed")
      ->required();
  CLI11_PARSE(app, argc, argv);

  const int64_t workers = resolve_cluster().num_workers();
  std::vector<std::string> lanes{"cpu:0"};
  if (workers == 1) lanes.emplace_back("cpu:1");
  MultiWorkerMirroredStrategy strategy({.devices = lanes, .replicas = std::max<int64_t>(2, workers)});
  const auto model = strategy.make_module([&] {
    torch::nn::Sequential layers_of_model;
    for (int64_t i = 0; i < layers; ++i) {
      layers_of_model->push_back(torch::nn::Linear(torch::nn::LinearOptions(width, width).bias(false)));
    }
    return layers_of_model;
  });
  const Optimizer optimizer = strategy.make_optimizer(model, torch::optim::AdamWOptions(1e-3));
  const auto train = [&] {
    strategy.run([&](ReplicaContext& ctx) {
      model(ctx)->forward(at::ones({1, width})).sum().backward();
      optimizer.step(ctx);
    });
  };
  train();

  std::vector<at::Tensor> state;
  int64_t bytes = 0;
  for (const StateItem& item : strategy.state_items()) {
    for (const at::Tensor& value : item.read()) {
      if (value.dim() == 0) continue;
      state.push_back(value);
      bytes += static_cast<int64_t>(value.nbytes());
    }
  }
  std::vector<at::Tensor> kept;
  for (const at::Tensor& value : state) kept.push_back(value.clone());

  fs::create_directories(directory);
  const Checkpoint checkpoint(strategy);
  std::map<std::string, std::vector<double>> seconds;
  {
    CheckpointManager manager(checkpoint, {.directory = directory / "managed", .keep = 1});
    for (int round = 0; round <= rounds; ++round) {
      const auto note = [&](const char* what, double value) {
        if (round > 0) seconds[what].push_back(value);  // the first round makes the kept memory
      };
      note("plain copy", seconds_of([&] {
             for (std::size_t i = 0; i < state.size(); ++i) kept[i].copy_(state[i]);
           }));
      train();
      note("hold", seconds_of([&] { manager.save(); }));
      manager.wait();
      note("save", manager.last_save_seconds());  // until it was durable; the one before is removed after that
      if (strategy.is_chief()) {
        note("plain write", seconds_of([&] { write_plainly(directory / "plain", state); }));
        fs::remove(directory / "plain");
      }
      strategy.on_chief([] {});  // so that all begin at once
      note("restore", seconds_of([&] { manager.restore_latest(); }));
    }
  }
  if (!strategy.is_chief()) return 0;
  fs::remove_all(directory / "managed");

  fmt::print("{{\"bytes\": {}, \"peak_mib\": {:.0f}", bytes, peak_mib());
  for (auto& [what, values] : seconds) fmt::print(", \"{}\": [{:.4f}]", what, fmt::join(values, ", "));
  fmt::print("}}\n");
  return 0;
}
