// The classic mistake: every worker shuffles the whole data set by the same seed, and none takes its shard. Beside it
// the right program. On two workers: `lockstep run -n 2 -- same_samples`.
#include <torch/torch.h>

#include <iostream>
#include <sstream>

#include "lockstep/lockstep.h"

namespace {

using lockstep::Batch;

lockstep::Dataset samples() {
  const auto numbers = torch::arange(16);
  return lockstep::data::from_tensors(numbers.to(torch::kFloat).view({16, 1}), numbers);
}

/// Goes through an epoch, and prints which samples the replicas of all workers used.
void use(lockstep::Strategy& strategy, const lockstep::DistributedDataset& data, const char* title) {
  std::ostringstream text;
  text << title << "\n";
  int64_t step = 0;
  for (const auto& batch : data.epoch(0)) {
    strategy.run(batch, [](lockstep::ReplicaContext&, const Batch&) { /* a training step */ });
    const auto ids = strategy.per_replica([&](lockstep::ReplicaId r) { return batch[r].target.view({1, -1}); });
    text << "  step " << step++ << ":";
    const auto all = strategy.gather(ids);
    for (int64_t r = 0; r < all.size(0); ++r) {
      text << " [";
      for (int64_t i = 0; i < all.size(1); ++i) text << (i == 0 ? "" : " ") << all[r][i].item<int64_t>();
      text << "]";
    }
    text << "\n";
  }
  for (const auto& finding : strategy.findings()) text << "  " << finding.text << " [" << finding.code << "]\n";
  if (strategy.is_chief()) std::cout << text.str();
}

}  // namespace

int main() try {
  lockstep::set_log_sink([](lockstep::LogLevel, std::string_view) {});  // the findings are printed here
  lockstep::MultiWorkerMirroredStrategy strategy({.devices = {"cpu:0"}, .seed = 7});

  // Right: the program says nothing of workers. Which sample goes where is derived.
  const auto right = strategy.distribute(samples(), {.global_batch = 8, .shuffle = true});
  use(strategy, right, "right: distribute");

  // Right too, for a program that insists: each worker takes its own part.
  const auto by_hand = strategy.distribute_from_function(
      [](const lockstep::InputContext& context) {
        return samples().shard(context.num_input_pipelines, context.input_pipeline_id).shuffle(7);
      },
      {.global_batch = 8});
  use(strategy, by_hand, "right: each worker shards by hand");

  // Wrong: the same seed, and no shard. Both workers use all samples in one order: twice the work for the same result.
  const auto wrong = strategy.distribute_from_function(
      [](const lockstep::InputContext&) { return samples().shuffle(7); }, {.global_batch = 8});
  use(strategy, wrong, "wrong: the same seed on each worker, and no shard");
} catch (const std::exception& error) {
  std::cerr << error.what() << "\n";
  return static_cast<int>(lockstep::exit_code_of(error));
}
