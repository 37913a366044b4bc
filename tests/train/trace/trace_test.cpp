// What a trace of some steps has in it.
#include "lockstep/train/trace/trace.h"

#include <gtest/gtest.h>
#include <torch/optim/sgd.h>
#include <torch/types.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <stdexcept>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "lockstep/core/trace/recorder.h"
#include "tests/support/errors.h"
#include "tests/support/programs.h"
#include "tests/support/run_program.h"
#include "tests/support/scratch_folder.h"
#include "tests/support/trace_rules.h"

namespace lockstep {
namespace {

using testing::expect_error;
using testing::lanes;
using Json = nlohmann::json;

/// Some steps of a small program, with samples that are read ahead.
class TraceOf : public testing::ScratchFolder {
 protected:
  explicit TraceOf(int64_t replicas = 4, int num_lanes = 2)
      : strategy_({.devices = lanes(num_lanes), .replicas = replicas, .seed = 5}) {}

  void train(int64_t steps) {
    for (const auto& batch : data_.take(steps)) {
      strategy_.run(batch, [&](ReplicaContext& ctx, const Batch& part) {
        ctx.scale_loss((part.input * weights_.value(ctx)).pow(2).mean()).backward();
        optimizer_.step(ctx);
      });
    }
  }

  const std::string file_ = path("trace.json");
  MirroredStrategy strategy_;
  Variable weights_ = strategy_.make_variable(torch::ones({8}), {.name = "w"});
  Optimizer optimizer_ = strategy_.make_optimizer(std::vector{weights_}, torch::optim::SGDOptions(0.1));
  struct Data {
    DistributedDataset dealt;
    std::vector<PerReplica<Batch>> take(int64_t steps) const {
      std::vector<PerReplica<Batch>> batches;
      for (const auto& batch : dealt.epoch(0)) {
        if (static_cast<int64_t>(batches.size()) == steps) break;
        batches.push_back(batch);
      }
      return batches;
    }
  };
  Data data_{
      strategy_.distribute(data::from_tensors(torch::arange(800).to(torch::kFloat).view({100, 8}), torch::arange(100)),
                           {.global_batch = 8, .prefetch = 2})};
};

std::vector<Json> slices_in(const std::string& file) {
  std::ifstream stream(file);
  std::vector<Json> slices;
  const Json document = Json::parse(stream);
  for (const Json& event : document["traceEvents"])
    if (event["ph"] == "X") slices.push_back(event);
  return slices;
}

/// The names of tracks by their numbers.
std::map<int64_t, std::string> track_names_in(const std::string& file) {
  std::ifstream stream(file);
  std::map<int64_t, std::string> names;
  const Json document = Json::parse(stream);
  for (const Json& event : document["traceEvents"]) {
    if (event["name"] == "thread_name") names[event["tid"]] = event["args"]["name"];
  }
  return names;
}

TEST_F(TraceOf, HasEachReplicasForwardAndBackwardOfEachStep) {
  train(1);
  Trace trace(strategy_, {.file = file_});
  train(3);
  trace.write();
  std::map<std::pair<std::string, int64_t>, int> seen;
  std::vector<int64_t> steps;
  for (const Json& slice : slices_in(file_)) {
    if (slice["cat"] == "compute") ++seen[{slice["name"], slice["args"]["replica"]}];
    if (slice["cat"] == "step") steps.push_back(slice["args"]["step"]);
  }
  EXPECT_EQ(steps, (std::vector<int64_t>{1, 2, 3}));
  for (int64_t r = 0; r < 4; ++r) {
    EXPECT_EQ((seen[{"forward", r}]), 3) << r;
    EXPECT_EQ((seen[{"backward", r}]), 3) << r;
  }
}

TEST_F(TraceOf, HasTheUpdateOnEachLaneAndWhoReadAhead) {
  Trace trace(strategy_, {.file = file_});
  train(2);
  trace.write();
  std::map<std::string, int> updates;  // by track
  int reads = 0;
  auto names = track_names_in(file_);
  for (const Json& slice : slices_in(file_)) {
    if (slice["cat"] == "meeting" && slice["name"] == "update") ++updates[names[slice["tid"]]];
    if (slice["cat"] == "input") ++reads;
  }
  EXPECT_EQ(updates, (std::map<std::string, int>{{"lane 0 (cpu:0)", 2}, {"lane 1 (cpu:1)", 2}}));
  EXPECT_GE(reads, 2);
}

TEST_F(TraceOf, KeepsTheRulesOfTheFormat) {
  Trace trace(strategy_, {.file = file_});
  train(4);
  strategy_.evaluate([&](ReplicaContext& ctx) { return weights_.value(ctx).sum(); });
  EXPECT_THROW(strategy_.run([](ReplicaContext& ctx) {
    if (ctx.replica_id() == 3) throw std::runtime_error("no");
    ctx.all_reduce(Reduction::kSum, torch::ones({1}));
  }),
               ReplicaError);
  train(2);
  trace.write();
  EXPECT_EQ(testing::TraceRules::broken_in(testing::text_of(file_)), std::vector<std::string>());
  for (const auto& [number, name] : track_names_in(file_)) {
    EXPECT_EQ(name.find("(2)"), std::string::npos) << "a slice overlaps another one: " << name;
  }
}

TEST_F(TraceOf, ChangesNoBits) {
  const auto trained = [](bool traced, const std::string& file) {
    MirroredStrategy strategy({.devices = lanes(2), .replicas = 3, .seed = 5});
    const Variable weights = strategy.make_variable(torch::ones({5}), {.name = "w"});
    const Optimizer optimizer = strategy.make_optimizer(std::vector{weights}, torch::optim::SGDOptions(0.1));
    std::optional<Trace> trace;
    if (traced) trace.emplace(strategy, TraceOptions{.file = file});
    for (int i = 0; i < 4; ++i) {
      strategy.run([&](ReplicaContext& ctx) {
        (weights.value(ctx) * torch::rand({5})).sum().backward();
        optimizer.step(ctx);
      });
    }
    return weights.read();
  };
  EXPECT_TRUE(torch::equal(trained(true, file_), trained(false, "")));
}

TEST_F(TraceOf, AFailedStepEndsItsSlices) {
  Trace trace(strategy_, {.file = file_});
  EXPECT_THROW(strategy_.run([](ReplicaContext& ctx) {
    if (ctx.replica_id() == 1) throw std::runtime_error("no");
    ctx.all_reduce(Reduction::kSum, torch::ones({1}));
  }),
               ReplicaError);
  train(1);
  trace.write();
  std::set<int64_t> replicas;
  for (const Json& slice : slices_in(file_)) {
    if (slice["cat"] == "compute") replicas.insert(slice["args"]["replica"].get<int64_t>());
  }
  EXPECT_EQ(replicas.size(), 4);
}

TEST_F(TraceOf, OneIsRecordedAtATimeAndWrittenOnce) {
  Trace trace(strategy_, {.file = file_});
  expect_error<UsageError>([&] { Trace(strategy_, {.file = "other.json"}); }, "LS-TRACE", {"another one"});
  train(1);
  trace.write();
  expect_error<UsageError>([&] { trace.write(); }, "LS-TRACE", {"written already"});
  expect_error<UsageError>([&] { Trace(strategy_, {}); }, "LS-TRACE", {"without a file"});
  EXPECT_NO_THROW(Trace(strategy_, {.file = file_}));
}

TEST_F(TraceOf, WithoutWriteLeavesNoFile) {
  {
    Trace trace(strategy_, {.file = file_});
    train(1);
  }
  EXPECT_FALSE(std::filesystem::exists(file_));
  EXPECT_FALSE(internal::is_traced());
}

TEST_F(TraceOf, AFullOneSaysSoAndKeepsItsBegin) {
  std::string line;
  set_log_sink([&](LogLevel, std::string_view text) { line += text; });
  Trace trace(strategy_, {.file = file_, .most = 5});
  train(2);
  trace.write();
  set_log_sink({});
  EXPECT_EQ(slices_in(file_).size(), 5);
  EXPECT_NE(line.find("is full"), std::string::npos) << line;
}

TEST_F(TraceOf, AFolderThatIsNotThereIsNamed) {
  Trace trace(strategy_, {.file = path("none/trace.json")});
  train(1);
  expect_error<DataError>([&] { trace.write(); }, "LS-FILE", {"none/trace.json"});
}

}  // namespace
}  // namespace lockstep
