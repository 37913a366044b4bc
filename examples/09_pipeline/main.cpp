// A pipeline: samples that are changed at random, dealt to the replicas, stopped and continued; and the classic
// mistake.
#include <torch/torch.h>

#include <cstdio>
#include <iostream>

#include "lockstep/lockstep.h"

namespace {

using lockstep::Batch;

/// Numbers from 0 to 23, each with a little noise that differs in each epoch.
lockstep::Dataset samples() {
  const auto numbers = torch::arange(24);
  return lockstep::data::from_tensors(numbers.to(torch::kFloat).view({24, 1}), numbers)
      .map([](Batch sample, const at::Generator& random) {
        sample.input = sample.input + torch::rand({1, 1}, random);
        return sample;
      })
      .prefetch(2);
}

void print(const lockstep::PerReplica<Batch>& batch) {
  for (const Batch& part : batch) {
    std::printf(" [");
    for (int64_t i = 0; i < part.size(); ++i) {
      std::printf("%s%lld:%.2f", i == 0 ? "" : " ", static_cast<long long>(part.ids[i].item<int64_t>()),
                  part.input[i].item<double>());
    }
    std::printf("]");
  }
  std::printf("\n");
}

/// What the classic mistake looks like: each replica goes through the whole data set by itself.
void train_unsharded(lockstep::Strategy& strategy) {
  const auto batch = strategy.per_replica([](lockstep::ReplicaId) {
    Batch part = samples().read(std::vector<int64_t>{0, 1, 2, 3});
    part.global_size = 8;
    return part;
  });
  strategy.run(batch, [](lockstep::ReplicaContext&, const Batch&) { /* a training step */ });
}

}  // namespace

int main() {
  lockstep::set_log_sink([](lockstep::LogLevel, std::string_view) {});  // the findings are printed below

  lockstep::MirroredStrategy strategy({.devices = {"cpu:0"}, .replicas = 2, .seed = 7});
  const lockstep::DistributeOptions options{.global_batch = 8, .shuffle = true};
  auto data = strategy.distribute(samples(), options);

  std::string saved;
  for (const auto& batch : data.epoch(0)) {
    print(batch);
    data.used();                                                        // in place of a run() that is given the batch
    if (saved.empty()) saved = lockstep::data::to_json(data.cursor());  // a job that is stopped after its first step
  }
  std::cout << "each sample once: " << (data.ledger().front().has_each_once(24) ? "yes" : "no") << "\n";

  // Continued on other lanes and with other replicas: the same samples, with the same noise, in the same order.
  lockstep::MirroredStrategy other({.devices = {"cpu:0", "cpu:1"}, .replicas = 4, .seed = 7});
  auto rest = other.distribute(samples(), options);
  rest.seek(lockstep::data::cursor_from_json(saved));
  std::cout << "continued:\n";
  for (const auto& batch : rest.epoch(0)) print(batch);

  std::cout << "the classic mistake:\n";
  lockstep::MirroredStrategy mistaken({.devices = {"cpu:0"}, .replicas = 2});
  train_unsharded(mistaken);
  for (const auto& finding : mistaken.findings()) std::cout << finding.text << " [" << finding.code << "]\n";
}
