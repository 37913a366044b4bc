// Workers that wait for one of them that is at work in code of the program's own: how long, and what ends that.
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/linear.h>
#include <torch/types.h>
#include <unistd.h>

#include <chrono>
#include <condition_variable>
#include <filesystem>
#include <functional>
#include <memory>
#include <mutex>
#include <ostream>
#include <stdexcept>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "lockstep/core/log.h"
#include "tests/support/workers.h"

namespace lockstep {
namespace {

using std::chrono::milliseconds;

/// Lines of the log that threads wait for.
class LogLines {
 public:
  LogLines() {
    set_log_sink([this](LogLevel, std::string_view line) {
      const std::lock_guard lock(mutex_);
      lines_.emplace_back(line);
      changed_.notify_all();
    });
  }
  ~LogLines() { set_log_sink({}); }
  LogLines(const LogLines&) = delete;
  LogLines& operator=(const LogLines&) = delete;

  /// The first line with this text, when it is there. Throws where it does not come.
  std::string wait_for(const std::string& text) {
    std::unique_lock lock(mutex_);
    std::string found;
    const auto is_there = [&] {
      for (const std::string& line : lines_) {
        if (found.empty() && line.find(text) != std::string::npos) found = line;
      }
      return !found.empty();
    };
    if (!changed_.wait_for(lock, std::chrono::seconds(60), is_there))
      throw std::runtime_error(fmt::format("no line has: {}", text));
    return found;
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<std::string> lines_;  // guarded by mutex_
};

std::filesystem::path folder() {
  return std::filesystem::temp_directory_path() / fmt::format("lockstep-work-{}", getpid());
}

/// A program in which one worker calls `work`, and the other one waits for it.
struct Program {
  const char* name;
  std::function<void(Strategy&, milliseconds limit, const std::function<void()>& work)> run;
  const char* phase;      // of the worker at work
  const char* call;       // in which the other one waits
  bool has_limit = true;  // of its own
};
std::ostream& operator<<(std::ostream& out, const Program& program) { return out << program.name; }

const std::vector<Program>& programs() {
  constexpr const char* kFunction = "worker 1 is at work in a function of the program after 0 steps";
  constexpr const char* kOnChief = "worker 0 is at work in on_chief after 0 steps";
  static const auto only_on_1 = [](const Strategy& strategy, const std::function<void()>& work) {
    if (strategy.worker_index() == 1) work();
  };
  static const auto numbers = [] { return data::from_tensors(torch::arange(8), torch::arange(8)); };
  static const std::vector<Program> all{
      {"OnChief",
       [](Strategy& strategy, milliseconds limit, const auto& work) {
         EXPECT_EQ(strategy.on_chief([&] { return work(), 7; }, {.limit = limit}), 7);
       },
       kOnChief, "; it is waited for in Strategy::on_chief at "},
      {"OnChiefWithoutAValue",
       [](Strategy& strategy, milliseconds limit, const auto& work) { strategy.on_chief(work, {.limit = limit}); },
       kOnChief, "work_test.cpp:"},
      {"OnChiefInAMergeFunction",
       [](Strategy& strategy, milliseconds limit, const auto& work) {
         strategy.run([&](ReplicaContext& ctx) {
           ctx.merge_call([&](Strategy& inside) { inside.on_chief(work, {.limit = limit}); });
         });
       },
       kOnChief, "; it is waited for in Strategy::on_chief at "},
      {"MakeModule",
       [](Strategy& strategy, milliseconds limit, const auto& work) {
         const auto make = [&, is_first = true]() mutable {
           if (std::exchange(is_first, false)) only_on_1(strategy, work);
           return torch::nn::Linear(2, 2);
         };
         strategy.make_module(make, {.name = "net", .limit = limit});
       },
       kFunction, "; it is waited for in make_module of 'net' at "},
      {"MakeVariable",
       [](Strategy& strategy, milliseconds limit, const auto& work) {
         const auto make = [&] {
           only_on_1(strategy, work);
           return torch::ones({2});
         };
         strategy.make_variable(make, {.name = "table", .limit = limit});
       },
       kFunction, "; it is waited for in make_variable of 'table' at "},
      {"DistributeFromFunction",
       [](Strategy& strategy, milliseconds limit, const auto& work) {
         const auto make = [&](const InputContext& context) {
           only_on_1(strategy, work);
           return numbers().shard(2, context.input_pipeline_id);
         };
         const auto data = strategy.distribute_from_function(make, {.global_batch = 4, .limit = limit});
         for (const auto& batch : data.epoch(0)) strategy.run(batch, [](ReplicaContext&, const Batch&) {});
       },
       kFunction, "worker 0 has waited"},
      {"AReaderThatIsSlow",
       [](Strategy& strategy, milliseconds limit, const auto& work) {
         auto is_first = std::make_shared<bool>(true);
         const auto read = [&, is_first](Batch one) {
           if (std::exchange(*is_first, false)) only_on_1(strategy, work);
           return one;
         };
         const auto data = strategy.distribute(numbers().map(read), {.global_batch = 4, .limit = limit});
         for (const auto& batch : data.epoch(0)) strategy.run(batch, [](ReplicaContext&, const Batch&) {});
         EXPECT_EQ(strategy.step(), 2);
       },
       "worker 1 is waiting for its input, before step 0", "; it is waited for in Strategy::run"},
      {"ASave",
       [](Strategy& strategy, milliseconds, const auto& work) {
         Checkpoint checkpoint(strategy);
         const auto state = [&] {
           if (strategy.is_chief()) work();
           return std::string("7");
         };
         checkpoint.track("value", state, [](const std::string&) {});
         checkpoint.save(folder());
       },
       "worker 0 is saving a checkpoint after 0 steps", "has waited", false},
  };
  return all;
}

/// Runs the program on two workers.
void run(const Program& program, const WorkerTimeouts& timeouts, milliseconds limit, const std::function<void()>& work,
         const std::function<void(Strategy&, const std::function<void()>&)>& around) {
  ThreadWorkers workers(2, timeouts);
  std::vector<std::thread> threads;
  for (int64_t w = 0; w < 2; ++w) {
    threads.emplace_back([&, world = workers.world(w)]() mutable {
      testing::OneOfSeveral strategy(std::move(world), 2, 1, nullptr);
      around(strategy, [&] { program.run(strategy, limit, work); });
    });
  }
  for (std::thread& thread : threads) thread.join();
}

class Work : public ::testing::TestWithParam<Program> {
 protected:
  void SetUp() override { std::filesystem::remove_all(folder()); }
  void TearDown() override { std::filesystem::remove_all(folder()); }
};

TEST_P(Work, MayTakeLongerThanThePatienceOfTheOthersWhoSayForWhomTheyWait) {
  constexpr milliseconds kPatience(1000);
  LogLines log;
  std::string line;
  const auto work = [&] { line = log.wait_for("has waited"); };
  run(GetParam(), {.stalled = 5 * kPatience / 2, .patience = kPatience}, {}, work,
      [](Strategy& strategy, const auto& body) { EXPECT_NO_THROW(body()) << strategy.worker_index(); });
  EXPECT_NE(line.find(GetParam().phase), std::string::npos) << line;
  EXPECT_NE(line.find(", for "), std::string::npos) << line;
  EXPECT_NE(line.find(GetParam().call), std::string::npos) << line;
}

TEST_P(Work, EndsTheRunForAllWhenItsLimitHasPassed) {
  for (const bool has_own_limit : {true, false}) {
    if (has_own_limit && !GetParam().has_limit) continue;
    LogLines log;
    Strategy* at_work = nullptr;
    std::mutex mutex;
    const WorkerTimeouts timeouts{.work = has_own_limit ? milliseconds(3'600'000) : milliseconds(300)};
    const std::string worker = std::string(GetParam().phase).substr(0, 8);  // "worker 1"
    bool was_told = false;
    const auto work = [&] {
      const std::string line = log.wait_for(fmt::format("the run has ended while {} is ", worker));
      EXPECT_NE(line.find("the bound is .limit of that call, otherwise .timeouts.work"), std::string::npos) << line;
      const std::lock_guard lock(mutex);
      EXPECT_THROW(at_work->check_workers(), PeerError);
      was_told = true;
    };
    run(GetParam(), timeouts, has_own_limit ? milliseconds(300) : milliseconds(0), work,
        [&](Strategy& strategy, const auto& body) {
          if (worker.back() == std::to_string(strategy.worker_index()).back()) {
            const std::lock_guard lock(mutex);
            at_work = &strategy;
          }
          EXPECT_NO_THROW(strategy.check_workers());
          std::string text;
          try {
            body();
          } catch (const std::exception& error) {
            text = error.what();
          }
          for (const std::string& part :
               {fmt::format("{} has not come to call", worker), std::string(GetParam().phase).substr(12),
                std::string("the bound is .limit of that call, otherwise .timeouts.work")}) {
            EXPECT_NE(text.find(part), std::string::npos) << text;
          }
        });
    EXPECT_TRUE(was_told);
  }
}

INSTANTIATE_TEST_SUITE_P(Programs, Work, ::testing::ValuesIn(programs()),
                         [](const auto& info) { return std::string(info.param.name); });

TEST(WorkLimits, AreRefusedWhereNoWaitCanHaveThem) {
  testing::run_workers({2, 2, 1}, [](Strategy& strategy) {
    const milliseconds negative(-1);
    const milliseconds endless = std::chrono::hours(366 * 24);
    const auto expect_refused = [&](const std::function<void()>& call) {
      std::string text;
      try {
        call();
      } catch (const Error& error) {
        text = error.what();
      }
      EXPECT_NE(text.find(".limit is "), std::string::npos) << text;
    };
    expect_refused([&] { strategy.on_chief([] {}, {.limit = negative}); });
    expect_refused([&] { strategy.make_module([] { return torch::nn::Linear(2, 2); }, {.limit = endless}); });
    expect_refused([&] { strategy.make_variable(torch::ones({2}), {.limit = negative}); });
    const auto numbers = data::from_tensors(torch::arange(8), torch::arange(8));
    expect_refused([&] { strategy.distribute(numbers, {.global_batch = 4, .limit = negative}); });
    EXPECT_EQ(strategy.on_chief([] { return 3; }, {.limit = std::chrono::hours(1)}), 3);  // all go on
    return 0;
  });
}

}  // namespace
}  // namespace lockstep
