// What says that data is dealt right: the watch over replicas that read the same, the ledger, and cursors.
#include "lockstep/data/cursor.h"

#include <gtest/gtest.h>
#include <torch/types.h>

#include <algorithm>
#include <functional>

#include "tests/data/dealt_numbers.h"
#include "tests/data/records_in_memory.h"
#include "tests/support/errors.h"
#include "tests/support/programs.h"
#include "tests/support/workers.h"

namespace lockstep {
namespace {

using testing::expect_error;
using testing::joined;
using testing::lanes;
using testing::Numbers;
using testing::numbers;
using testing::numbers_in;
using testing::run_workers;
using testing::sorted;
using testing::Steps;
using testing::steps_of;
using testing::up_to;
using testing::WorkersCase;

bool has(const Strategy& strategy, const std::string& code) {
  const auto findings = strategy.findings();
  return std::any_of(findings.begin(), findings.end(), [&](const Finding& one) { return one.code == code; });
}

TEST(FromFunction, DealsEachWorkersOwn) {
  const auto all = run_workers(WorkersCase{2, 4}, [](Strategy& strategy) {
    const auto data = strategy.distribute_from_function(
        [](const InputContext& context) {
          EXPECT_EQ(context.num_input_pipelines, 2);
          EXPECT_EQ(context.num_replicas_in_sync, 4);
          EXPECT_EQ(context.get_per_replica_batch_size(8), 2);
          expect_error<UsageError>([&] { context.get_per_replica_batch_size(6); }, "LS-OPTION", {"6", "4 replicas"});
          return numbers(13).shard(context.num_input_pipelines, context.input_pipeline_id);
        },
        {.global_batch = 4});
    Steps steps = steps_of(data, 0);
    EXPECT_FALSE(has(strategy, "LS-INPUT-NOT-SHARDED"));
    EXPECT_FALSE(has(strategy, "LS-INPUT-REPEATS"));
    steps_of(data, 1);
    EXPECT_TRUE(has(strategy, "LS-INPUT-REPEATS"));
    return steps;
  });
  EXPECT_EQ(sorted(joined(all)), up_to(13));
  EXPECT_EQ(all[0][0], (std::vector<Numbers>{{0}, {2}}));
}

TEST(FromFunction, IsWatchedForWorkersThatReadTheSame) {
  run_workers(WorkersCase{2, 2}, [](Strategy& strategy) {
    const auto data =
        strategy.distribute_from_function([](const InputContext&) { return numbers(10); }, {.global_batch = 4});
    steps_of(data, 0);
    EXPECT_TRUE(has(strategy, "LS-INPUT-NOT-SHARDED"));
    return 0;
  });
  MirroredStrategy strategy({.devices = lanes(1), .replicas = 2});
  const auto elements =
      strategy.distribute_from_function([](const InputContext&) { return numbers_in({10}).batch(3); });
  EXPECT_EQ(steps_of(elements, 0), (Steps{{{0, 1, 2}, {3, 4, 5}}, {{6, 7, 8}, {9}}}));
}

TEST(Run, NoticesReplicasThatWereGivenTheSameSamples) {
  const auto run = [](bool same) {
    MirroredStrategy strategy({.devices = lanes(1), .replicas = 2});
    const auto batch = strategy.per_replica([&](ReplicaId r) {
      const auto first = same ? 0 : 4 * r.value();
      return Batch{
          .input = torch::arange(first, first + 4).to(torch::kFloat), .target = {}, .ids = {}, .global_size = 8};
    });
    strategy.run(batch, [](ReplicaContext&, const Batch&) {});
    return has(strategy, "LS-INPUT-NOT-SHARDED");
  };
  EXPECT_TRUE(run(true));
  EXPECT_FALSE(run(false));
}

TEST(Run, TakesBatchesThatCannotBeCompared) {
  for (const int64_t workers : {1, 2}) {
    run_workers(WorkersCase{workers, 2}, [](Strategy& strategy) {
      const auto batch = strategy.per_replica([](ReplicaId) {
        return Batch{.input = torch::ones({3, 2}).to(at::kComplexHalf),
                     .target = {},
                     .ids = torch::ones({3, 2}).to_sparse(),
                     .global_size = 6};
      });
      strategy.run(batch, [](ReplicaContext&, const Batch&) {});
      EXPECT_TRUE(strategy.findings().empty());
      return 0;
    });
  }
}

TEST(Run, NoticesWorkersThatWereGivenTheSameSamples) {
  const auto run = [](int64_t workers, bool same) {
    return run_workers(WorkersCase{workers, 4}, [&](Strategy& strategy) {
      const auto batch = strategy.per_replica([&](ReplicaId r) {
        // Without sharding each worker's first replica begins at sample 0.
        const auto first = 4 * (same ? r.value() % (4 / workers) : r.value());
        return Batch{
            .input = torch::arange(first, first + 4).to(torch::kFloat), .target = {}, .ids = {}, .global_size = 16};
      });
      for (int i = 0; i < 2; ++i) strategy.run(batch, [](ReplicaContext&, const Batch&) {});
      const std::vector<Finding> findings = strategy.findings();
      return findings.empty() ? std::string() : findings.front().text;
    });
  };
  for (const int64_t workers : {2, 4}) {
    for (const std::string& text : run(workers, true)) {
      EXPECT_NE(text.find("replicas 0 and " + std::to_string(4 / workers) + " read the same 4 samples at step 0"),
                std::string::npos)
          << text;
    }
    for (const std::string& text : run(workers, false)) EXPECT_EQ(text, "");
  }
  for (const std::string& text : run(1, true)) EXPECT_EQ(text, "");
}

TEST(Run, TakesWorkersThatDealByThemselvesForNoMistake) {
  for (const bool by_function : {false, true}) {
    run_workers(WorkersCase{2, 2}, [&](Strategy& strategy) {
      const auto own = [](const InputContext& context) { return numbers(16).shard(2, context.input_pipeline_id); };
      const auto data = by_function ? strategy.distribute_from_function(own, {.global_batch = 4, .shuffle = true})
                                    : strategy.distribute(numbers(8), {.global_batch = 4, .sharding = Sharding::kOff});
      for (const auto& batch : data.epoch(0)) strategy.run(batch, [](ReplicaContext&, const Batch&) {});
      EXPECT_FALSE(has(strategy, "LS-INPUT-NOT-SHARDED"));
      return 0;
    });
  }
}

TEST(Run, NamesTheReplicasThatWereGivenTheSameDealtSamples) {
  run_workers(WorkersCase{2, 4}, [](Strategy& strategy) {
    const auto parts = strategy.split(torch::arange(32).to(torch::kFloat).view({32, 1}), {});
    const auto twice = strategy.per_replica([&](ReplicaId) { return *parts.begin(); });
    strategy.run(twice, [](ReplicaContext&, const Batch&) {});
    const std::string first = std::to_string(2 * strategy.worker_index());
    const std::string second = std::to_string(2 * strategy.worker_index() + 1);
    EXPECT_NE(strategy.findings().at(0).text.find("replicas " + first + " and " + second), std::string::npos)
        << strategy.findings().at(0).text;
    return 0;
  });
}

TEST(Ledger, ProvesThatWorkersUsedEachSampleOnce) {
  const auto ledgers = run_workers(WorkersCase{3, 4}, [](Strategy& strategy) {
    const auto data = strategy.distribute(numbers(29), {.global_batch = 7, .shuffle = true});
    steps_of(data, 0);
    steps_of(data, 1);
    return data.ledger();
  });
  ASSERT_EQ(ledgers[0].size(), 2u);
  for (std::size_t epoch = 0; epoch < 2; ++epoch) {
    const data::LedgerEntry all = ledgers[0][epoch] + ledgers[1][epoch] + ledgers[2][epoch];
    EXPECT_EQ(all.samples, 29);
    EXPECT_TRUE(all.has_each_once(29));
    EXPECT_FALSE(ledgers[0][epoch].has_each_once(29));
  }
  EXPECT_NE(ledgers[0][0].order, ledgers[0][1].order);
}

TEST(Cursors, AreJson) {
  const data::Cursor cursor{.epoch = 3,
                            .position = 7,
                            .size = 9,
                            .seed = ~uint64_t{0},
                            .shuffle = true,
                            .digest = 5,
                            .digest_by_file = 6,
                            .stream = {1, -2}};
  EXPECT_EQ(data::cursor_from_json(data::to_json(cursor)), cursor);
  EXPECT_EQ(data::cursor_from_json(data::to_json(cursor)).digest, 5u);
  for (const std::string& text : {std::string(), std::string("{}"), std::string("[1]"),
                                  std::string(R"({"epoch":1.5,"position":0,"size":0,"seed":0,"shuffle":false})"),
                                  std::string(R"({"epoch":1,"position":0,"size":0,"seed":"x","shuffle":false})")}) {
    expect_error<UsageError>([&] { data::cursor_from_json(text); }, "LS-STATE-MISFIT");
  }
}

TEST(Cursors, AreNotWhatAProgramChangedInThem) {
  const auto expect_refused = [](const std::string& members, std::string_view value) {
    expect_error<UsageError>([&] { data::cursor_from_json("{" + members + "}"); }, "LS-STATE-MISFIT", {value});
  };
  const std::string whole = R"("epoch":1,"position":2,"size":3,"shuffle":true)";
  EXPECT_EQ(data::cursor_from_json("{" + whole + R"(,"seed":18446744073709551615})").seed, ~uint64_t{0});
  expect_refused(whole, "seed");
  expect_refused(whole + R"(,"seed":-1)", "seed");
  expect_refused(whole + R"(,"seed":18446744073709551616)", "seed");
  expect_refused(R"("seed":4,"position":2,"size":3,"shuffle":true,"epoch":9223372036854775808)", "epoch");
  expect_refused(R"("seed":4,"position":2,"size":3,"shuffle":1,"epoch":1)", "shuffle");
  expect_refused(whole + R"(,"seed":4,"digest":-1)", "digest");
  for (const char* stream : {"5", "{\"a\":5}", "[1.5]", "[18446744073709551615]", "null"}) {
    expect_refused(whole + R"(,"seed":4,"stream":)" + stream, "stream");
  }
}

TEST(Cursors, ThatAreNoneAreRefusedInTwoPrintableLines) {
  for (const std::string& text : {std::string("\xff\xfe"), "{\"epoch\":\"\n" + std::string(100000, '\x80') + "\"}"}) {
    try {
      data::cursor_from_json(text);
      ADD_FAILURE() << "it was taken";
    } catch (const UsageError& error) {
      const std::string message = error.what();
      EXPECT_LT(message.size(), 300u);
      EXPECT_TRUE(
          std::all_of(message.begin(), message.end(), [](char c) { return c == '\n' || (c >= ' ' && c <= '~'); }));
    }
  }
}

TEST(Cursors, OfOtherDataAreRefused) {
  MirroredStrategy strategy({.devices = lanes(1)});
  const auto data = strategy.distribute(numbers(10), {.global_batch = 4});
  const auto other =
      strategy.distribute(data::from_tensors(torch::ones({10, 1}), torch::arange(10)), {.global_batch = 4});
  expect_error<DataError>([&] { other.seek(data.cursor()); }, "LS-DATA-CHANGED");
}

}  // namespace
}  // namespace lockstep
