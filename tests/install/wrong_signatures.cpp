// A program that must not compile: each mistake ends in one readable line, marked below, and in no other error.
// Compiled by signatures_test.sh, which finds the lines by their numbers.
#include <torch/data/datasets/base.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/lbfgs.h>
#include <torch/optim/sgd.h>
#include <torch/serialize.h>

#include <memory>
#include <sstream>
#include <string>
#include <vector>

#include "lockstep/lockstep.h"

using lockstep::Batch;
using lockstep::ReplicaContext;
using lockstep::Strategy;
using torch::nn::Linear;

struct Net : torch::nn::Module {};

void steps(Strategy& strategy, const lockstep::PerReplica<Batch>& batch) {
  strategy.run([] { return 1; });                                     // expect: must be a ReplicaContext&
  strategy.run(batch, [](const Batch&) {});                           // expect: must be a ReplicaContext&
  strategy.run(batch, [](ReplicaContext&) {});                        // expect: no parameter for what run was given
  strategy.run(batch, [](ReplicaContext, const Batch&) {});           // expect: takes the context by reference
  strategy.run(batch, [](ReplicaContext&, Batch&) {});                // expect: by const reference
  strategy.run(batch, [](ReplicaContext&, int) {});                   // expect: one parameter for each argument
  strategy.run([](ReplicaContext&, const Batch&) {}, batch);          // expect: stands last in run
  strategy.evaluate(batch, 3, [](ReplicaContext&, const Batch&) {});  // expect: one parameter for each argument
  strategy.run(batch, [](auto&) {});                                  // expect: one parameter for each argument
  strategy.run(batch, [](const auto& ctx, auto part, auto) {});       // expect: one parameter for each argument
  strategy.run(batch, [](ReplicaContext& ctx, const Batch& part) {
    ctx.merge_call([](Strategy&) {}, part.input);  // expect: merge_call must be callable as fn(Strategy&
  });
}

struct ByName : torch::data::datasets::BatchDataset<ByName, std::vector<int>, std::string> {
  std::vector<int> get_batch(std::string) override { return {}; }
  torch::optional<size_t> size() const override { return 1; }
};

void samples(Strategy& strategy, const lockstep::Dataset& dataset) {
  strategy.distribute(dataset, {.collate = [](const Batch& one) { return one; }});  // expect: a std::vector of
  strategy.distribute(dataset, {.collate = [](std::vector<int>) { return 1; }});    // expect: give a Batch
  strategy.distribute(dataset,
                      {.collate = [](std::vector<Batch>, int) { return Batch(); }});  // expect: callable as fn(std
  lockstep::data::from_torch(ByName());                                               // expect: read by indices
}

void modules(Strategy& strategy) {
  strategy.make_module([](int) { return Linear(2, 1); });        // expect: callable without arguments
  strategy.make_module([] {});                                   // expect: must return a module holder
  strategy.make_module([] { return std::make_unique<Net>(); });  // expect: must return a module holder
  strategy.make_module([] { return Net(); });                    // expect: returns a module by value
}

void optimizers(Strategy& strategy, const std::vector<lockstep::Variable>& variables) {
  const auto model = strategy.make_module([] { return Linear(2, 1); });
  strategy.make_optimizer(model, torch::optim::LBFGSOptions(0.1));  // expect: make_optimizer takes torch::optim's
  strategy.make_optimizer(variables, 0.1);                          // expect: make_optimizer takes torch::optim's
  const auto optimizer = strategy.make_optimizer(variables, torch::optim::SGDOptions(0.1));
  std::stringstream stream;
  torch::save(model, stream);      // expect: save model.export_module()
  torch::save(optimizer, stream);  // expect: save the tensors of optimizer.state()
}
