// What the blocks of code in the documentation stand in: each namespace has the names that a page's blocks use without
// declaring them. snippets_test.sh compiles the blocks and runs nothing, so most of these names are declared alone.
//
// A block below `<!-- snippet: loop -->` becomes a function in the namespace snippets::loop, and one below
// `<!-- snippet: loop, declarations -->` stands in that namespace itself.
#pragma once

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <iostream>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <source_location>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "lockstep/lockstep.h"
#include "lockstep/testing/conformance.h"
#include "lockstep/testing/local_replicas.h"
#include "lockstep/testing/local_workers.h"
#include "lockstep/testing/world_conformance.h"

/// Blocks that need no names but those of the library, and a program that trains.
namespace snippets::plain {

void train();

}  // namespace snippets::plain

/// A training loop: a strategy, what it has made, and a batch. Blocks that declare these names anew hide them.
namespace snippets::loop {

struct NetImpl : torch::nn::Module {
  torch::Tensor forward(const torch::Tensor& input);
  torch::Tensor weight;
  torch::nn::Sequential encoder;
};
TORCH_MODULE(Net);
using Generator = Net;
using Discriminator = Net;

extern lockstep::MultiWorkerMirroredStrategy& strategy;
extern lockstep::Replicated<Net>& model;
extern lockstep::Optimizer& optimizer;
extern lockstep::data::DistributedDataset& data;
extern lockstep::PerReplica<lockstep::Batch>& batch;
extern lockstep::Checkpoint& checkpoint;
extern lockstep::CheckpointManager& manager;
extern const std::vector<lockstep::Variable> weights;
extern const std::vector<lockstep::Variable> biases;
extern const int64_t epochs;
extern double best;
extern double running;

/// Steps, which `strategy.run` and `strategy.evaluate` take.
torch::Tensor step(lockstep::ReplicaContext& ctx, const lockstep::Batch& part);
torch::Tensor evaluation(lockstep::ReplicaContext& ctx, const lockstep::Batch& part);
torch::Tensor loss_of(Net& net, const lockstep::Batch& part);
torch::Tensor d_loss(const torch::Tensor& of_real, const torch::Tensor& of_fake);
torch::Tensor g_loss(const torch::Tensor& of_fake);
torch::Tensor noise(int64_t samples);
torch::Tensor cross_entropy(const torch::Tensor& logits, const torch::Tensor& target);
std::vector<lockstep::Batch> cut(const lockstep::Batch& part, int64_t pieces);

std::vector<std::string> read_lines(const std::string& path);
void tokenize(const std::string& path);
extern const std::vector<std::string> parts;
void convert(const std::string& part);

}  // namespace snippets::loop

/// A program with parameter servers.
namespace snippets::servers {

extern lockstep::ParameterServerStrategy& strategy;
extern lockstep::data::DistributedDataset& data;
extern const lockstep::Step<std::function<void(lockstep::WorkerContext&)>> train;
extern lockstep::Coordinator& coordinator;
extern const lockstep::data::Dataset& samples;
extern lockstep::Replicated<torch::nn::Linear>& model;
extern lockstep::Embedding& table;

}  // namespace snippets::servers

/// The body of a step.
namespace snippets::step {

using loop::cut;
using loop::model;
extern lockstep::ReplicaContext& ctx;
extern const lockstep::Batch& part;
extern const torch::Tensor& mean_loss;
int64_t tokens_in(const lockstep::Batch& micro);
torch::Tensor mean_over_tokens(const lockstep::Batch& micro);

}  // namespace snippets::step

/// A program around a Trainer.
namespace snippets::trainer {

struct NetImpl : torch::nn::Module {
  torch::Tensor forward(const torch::Tensor& input);
  torch::Tensor forward(const torch::Tensor& input, const torch::Tensor& mask);
};
TORCH_MODULE(Net);

extern lockstep::MirroredStrategy& strategy;
extern lockstep::Replicated<Net>& model;
extern lockstep::Replicated<Net>& generator;
extern lockstep::Replicated<Net>& discriminator;
extern lockstep::Optimizer& optimizer;
extern lockstep::Optimizer& generator_optimizer;
extern lockstep::DistributedDataset& train;
extern lockstep::DistributedDataset& validate;
extern lockstep::DistributedDataset& data;
torch::Tensor loss_of(Net& generator, Net& discriminator, const lockstep::Batch& batch);
torch::Tensor loss(const torch::Tensor& output, const lockstep::Batch& batch);

}  // namespace snippets::trainer

/// Tests of a program that trains.
namespace snippets::tests {

struct NetImpl : torch::nn::Module {
  explicit NetImpl(int64_t width);
};
TORCH_MODULE(Net);
lockstep::data::Dataset some_samples();
torch::Tensor train_step(lockstep::ReplicaContext& ctx, const lockstep::Batch& part, lockstep::Replicated<Net>& model,
                         lockstep::Optimizer& optimizer);
extern const lockstep::testing::TrainingProgram my_program;
void train(lockstep::Strategy& strategy);

}  // namespace snippets::tests

/// A strategy of one's own, and what makes it.
namespace snippets::own_strategy {

class HalfPrecisionReducer final : public lockstep::Reducer {
 public:
  std::string describe() const override;
  at::Tensor reduce(lockstep::Reduction reduction, std::span<const at::Tensor> values) const override;
};

class RoundRobinStrategy final : public lockstep::Strategy {
 public:
  RoundRobinStrategy(int64_t replicas, int lanes, uint64_t seed, std::shared_ptr<lockstep::World> world);
};
std::unique_ptr<lockstep::Strategy> make(int64_t replicas, int lanes, uint64_t seed);

}  // namespace snippets::own_strategy

/// A World of one's own.
namespace snippets::own_world {

class MyWorld final : public lockstep::World {
 public:
  MyWorld(int64_t worker, int64_t workers, std::chrono::milliseconds patience);
  int64_t num_workers() const override;
  int64_t worker_index() const override;
  std::vector<std::string> agree(const std::string& mine) override;
  void exchange(std::span<const std::span<const std::byte>> to, std::span<const std::span<std::byte>> from) override;
  void abort(const std::string& reason) noexcept override;
};

}  // namespace snippets::own_world
