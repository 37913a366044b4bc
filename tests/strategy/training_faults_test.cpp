// Workers that fail at random moments of real training, in each form of the step: who is named, how soon, and what
// weights the others have then.
#include <gtest/gtest.h>
#include <torch/optim/adamw.h>
#include <torch/types.h>
#include <torch/utils.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <memory>
#include <ostream>
#include <random>
#include <set>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/comm/join/join.h"
#include "tests/support/fault_seeds.h"
#include "tests/support/free_port.h"
#include "tests/support/hosts.h"
#include "tests/support/scarce_memory.h"
#include "tests/support/worker_processes.h"
#include "tests/support/workers.h"

namespace lockstep {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using testing::fault_seeds;
using testing::OneOfSeveral;
using testing::report;
using testing::Report;
using testing::Time;
using testing::WorkerProcesses;
using Clock = std::chrono::steady_clock;

constexpr int64_t kWorkers = 3;
constexpr int64_t kReplicas = 4;  // worker 0 has two of them
constexpr int64_t kFirst = 5;     // faults come in this step, or soon after it
constexpr milliseconds kLost{600};
constexpr milliseconds kPatience{2000};

int64_t number_of(const char* name) {
  const char* const text = std::getenv(name);
  return text ? std::stoll(text) : 0;
}

/// Lets so much time pass in which this thread computes: a fault comes at a moment, and not after something.
void pass(std::chrono::microseconds time) {
  const Time until = Clock::now() + time;
  while (Clock::now() < until) {
  }
}

/// The places of a step at which a worker fails by itself, "before" and "after" it.
const std::vector<std::string>& places() {
  static const std::vector<std::string> all{"before", "forward", "backward", "merge", "updated", "after"};
  return all;
}

struct Training {
  explicit Training(Strategy& strategy)
      : weight(
            strategy.make_variable(torch::arange(64 * 48).to(torch::kFloat).sin().view({64, 48}), {.name = "weight"})),
        bias(strategy.make_variable(torch::arange(64).to(torch::kFloat).cos(), {.name = "bias"})),
        optimizer(strategy.make_optimizer({weight, bias}, torch::optim::AdamWOptions(0.01))) {}

  /// Calls fault(place) at each place of the step, on the thread of the first replica of this worker. Where `memory` is
  /// given, that of the optimizer's step.
  template <class Fault>
  void step(Strategy& strategy, const Fault& fault, testing::ScarceMemory* memory = nullptr) const {
    fault("before");
    const int64_t first = *strategy.per_replica([](ReplicaId r) { return r.value(); }).begin();
    strategy.run([&](ReplicaContext& ctx) {
      const bool is_first = ctx.replica_id().value() == first;
      if (is_first) fault("forward");
      const torch::Tensor x =
          torch::arange(3 * 48).view({3, 48}).add(ctx.replica_id().value() + 7 * ctx.step()).to(torch::kFloat).sin();
      const torch::Tensor y = torch::linear(x, weight.value(ctx), bias.value(ctx));
      if (is_first && y.requires_grad()) y.register_hook([&](const torch::Tensor&) { fault("backward"); });
      y.pow(2).mean().backward();
      ctx.merge_call([&](Strategy&) {
        fault("merge");
        return 0;
      });
      {
        const testing::ScarceMemory::Scope scope(memory);
        optimizer.step(ctx, {.clip_global_norm = 1});
      }
      if (is_first) fault("updated");
    });
    fault("after");
  }
  /// Of weights and slots. Calls no other worker.
  std::string digest() const {
    std::vector<std::pair<std::string, torch::Tensor>> named{{"weight", weight.read()}, {"bias", bias.read()}};
    for (const Variable& slot : optimizer.slots()) named.emplace_back(slot.name(), slot.read());
    return sha256_of(named);
  }

  Variable weight;
  Variable bias;
  Optimizer optimizer;
};

/// By the engine of the test; "mixed" are two hosts, of which the first has two workers.
std::shared_ptr<World> join_job() {
  const WorkerTimeouts timeouts{.lost = kLost, .patience = kPatience};
  const std::string engine = std::getenv("ENGINE");
  if (engine != "mixed") return join(resolve_cluster(), {.engine = engine, .timeouts = timeouts});
  const std::string chief = std::getenv("LOCKSTEP_CHIEF_ADDRESS");
  return testing::join_from_host(
      {.hosts = std::string("0011").substr(0, static_cast<std::size_t>(number_of("LOCKSTEP_NUM_WORKERS"))),
       .worker = testing::my_worker_index(),
       .port = static_cast<uint16_t>(std::stoi(chief.substr(chief.find(':') + 1))),
       .timeouts = timeouts});
}

/// Trains until it fails. Worker FAILS does HOW at PLACE of step kFirst, or tells the test that it has come to that
/// step, and the test does it. Where HOW is "scarce", PLACE says which allocation of its optimizer's step fails.
WORKER_BODY(trains_until_a_fault) {
  torch::set_num_threads(1);
  const std::string how = std::getenv("HOW");
  const std::string fault_at = std::getenv("PLACE");
  const bool fails = testing::my_worker_index() == number_of("FAILS");
  OneOfSeveral strategy(join_job(), kReplicas, 1, nullptr);
  const Training training(strategy);
  testing::ScarceMemory memory(how == "scarce" ? std::stoll(fault_at) : 0);
  int64_t made = 0;
  const auto fault = [&](const std::string& place) {
    if (!fails || made != kFirst || place != fault_at) return;
    report("the fault comes");
    if (how == "exit") std::exit(0);
    if (how == "exception") throw std::runtime_error("a mistake of the program");
    if (how == "slow") pass(kLost * 5 / 4);
    if (how == "absent") testing::wait_for("never");
  };
  try {
    while (how != "slow" || made < 2 * kFirst) {
      const bool is_scarce = fails && how == "scarce" && made == kFirst;
      if (is_scarce) report("the fault comes");
      training.step(strategy, fault, is_scarce ? &memory : nullptr);
      ++made;
    }
    report("made " + std::to_string(made) + " " + training.digest());
  } catch (const Error& error) {
    report(std::string("failed: ") + error.what());
    report("has " + std::to_string(made) + " " + training.digest());
  }
}

/// The digests that training has after each number of steps, by one process.
class Expected {
 public:
  const std::string& after(int64_t steps) {
    while (static_cast<int64_t>(digests_.size()) <= steps) {
      if (!digests_.empty()) training_.step(strategy_, [](const char*) {});
      digests_.push_back(training_.digest());
    }
    return digests_[static_cast<std::size_t>(steps)];
  }

 private:
  OneOfSeveral strategy_{nullptr, kReplicas, 1, nullptr};
  Training training_{strategy_};
  std::vector<std::string> digests_;
};

std::string text_of_file(const char* path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), {}};
}

/// How the gradients of a step go from worker to worker.
struct Form {
  const char* name;
  const char* engine;
  const char* factored;
};

std::ostream& operator<<(std::ostream& out, const Form& form) { return out << form.name; }

class TrainingFaults : public ::testing::TestWithParam<Form> {
 protected:
  std::unique_ptr<WorkerProcesses> start(const std::string& how, int64_t fails, const std::string& place,
                                         int64_t count = kWorkers) {
    const uint16_t port = testing::free_port();
    job_ = "training-faults-" + std::to_string(getpid()) + "-" + std::to_string(++jobs_);
    return std::make_unique<WorkerProcesses>("trains_until_a_fault", count, [&](int64_t w) {
      return WorkerProcesses::Environment{{"ENGINE", GetParam().engine},
                                          {"LOCKSTEP_FACTORED_GRADIENTS", GetParam().factored},
                                          {"LOCKSTEP_NUM_WORKERS", std::to_string(count)},
                                          {"LOCKSTEP_WORKER_INDEX", std::to_string(w)},
                                          {"LOCKSTEP_LOCAL_WORKER", std::to_string(w)},
                                          {"LOCKSTEP_CHIEF_ADDRESS", "127.0.0.1:" + std::to_string(port)},
                                          {"LOCKSTEP_JOB_ID", job_},
                                          {"LOCKSTEP_SECRET", "a secret of the test"},
                                          {"LOCKSTEP_UPDATE_FORM", is_mixed() ? "host-memory" : "auto"},
                                          {"HOW", how},
                                          {"FAILS", std::to_string(fails)},
                                          {"PLACE", place}};
    });
  }
  /// A fault that the test makes: `signal`, a moment after the worker has come to step kFirst.
  void signal_in_training(int signal, milliseconds bound) {
    std::mt19937 random(static_cast<unsigned>(signal));
    for (int64_t seed = 0; seed < fault_seeds() && !HasFailure(); ++seed) {
      const int64_t fails = seed % kWorkers;
      const auto workers = start("signal", fails, "before");
      workers->expect(fails, "the fault comes", seconds(120));
      pass(std::chrono::microseconds(random() % 6000));
      const Time when = workers->signal(fails, signal);
      expect_named(*workers, {{fails, process_of(*workers, fails)}}, when, bound);
      if (signal == SIGSTOP) {  // it goes on, finds that the run has ended, and ends too
        workers->signal(fails, SIGCONT);
        workers->expect(fails, "failed: ");
        EXPECT_EQ(workers->wait(fails).code, 0) << workers->output(fails);
      } else {
        EXPECT_EQ(workers->wait(fails).signal, signal);
      }
      expect_nothing_left();
    }
  }
  /// A fault of the program itself, at a random place of step kFirst. `words` and `code`, by place, are what the others
  /// say, and how the worker ends.
  template <class Words, class Code>
  void fault_of_the_program(const std::string& how, milliseconds bound, const Words& words, const Code& code) {
    std::mt19937 random(static_cast<unsigned>(how.size()));
    for (int64_t seed = 0; seed < fault_seeds() && !HasFailure(); ++seed) {
      const int64_t fails = (seed + 1) % kWorkers;
      const std::string place = places()[random() % places().size()];
      SCOPED_TRACE(how + " at the place " + place);
      const auto workers = start(how, fails, place);
      const Time when = workers->expect(fails, "the fault comes", seconds(120)).when;
      expect_named(*workers, {{fails, words(place)}}, when, bound);
      if (how == "absent") workers->signal(fails, SIGKILL);
      EXPECT_EQ(workers->wait(fails).code, code(place)) << workers->output(fails);
      expect_nothing_left();
    }
  }
  /// A worker that fails, and what the others say of it.
  struct Culprit {
    int64_t worker;
    std::string words;
  };
  /// The survivors give a reason in time, which names one of the culprits and has its words, all the same one; and all
  /// have the weights and slots of one completed step, the last that they counted, or that which was under way.
  void expect_named(WorkerProcesses& workers, const std::vector<Culprit>& culprits, Time when, milliseconds bound) {
    std::vector<std::string> found;
    std::set<int64_t> named;
    for (int64_t w = 0; w < workers.size(); ++w) {
      const auto is_w = [&](const Culprit& one) { return one.worker == w; };
      if (std::any_of(culprits.begin(), culprits.end(), is_w)) continue;
      const Report failed = workers.expect(w, "failed: ", bound + seconds(10));
      const auto said = std::find_if(culprits.begin(), culprits.end(), [&](const Culprit& one) {
        return failed.text.find("worker " + std::to_string(one.worker)) != std::string::npos &&
               failed.text.find(one.words) != std::string::npos;
      });
      EXPECT_NE(said, culprits.end()) << failed.text;
      if (said != culprits.end()) named.insert(said->worker);
      EXPECT_LT(failed.when - when, bound) << failed.text;
      found.push_back(workers.expect(w, "has ").text);
      EXPECT_EQ(workers.wait(w).code, 0) << workers.output(w);
    }
    EXPECT_EQ(named.size(), 1u) << "the survivors name different workers";
    for (const std::string& one : found) {
      EXPECT_EQ(digest_of(one), digest_of(found.front())) << one << " and " << found.front();
      const int64_t made = std::stoll(one.substr(4));
      ASSERT_GE(made, kFirst);
      EXPECT_TRUE(digest_of(one) == expected().after(made) || digest_of(one) == expected().after(made + 1)) << one;
    }
  }
  static bool is_mixed() { return std::string(GetParam().engine) == "mixed"; }
  /// Whether a fault that only waiting finds would be the same test a second time.
  static bool waits_as_sums() {
    return fault_seeds() == 1 && (std::string(GetParam().factored) == "always" || is_mixed());
  }
  /// Every process of the job has been waited for, and no name of it is left on this host.
  void expect_nothing_left() const { EXPECT_EQ(text_of_file("/proc/net/unix").find(job_), std::string::npos) << job_; }
  static std::string process_of(const WorkerProcesses& workers, int64_t worker) {
    return "worker " + std::to_string(worker) + " (process " + std::to_string(workers.pid(worker));
  }
  static std::string digest_of(const std::string& text) { return text.substr(text.rfind(' ') + 1); }
  /// Of all forms: they have the same bits.
  static Expected& expected() {
    static Expected all;
    return all;
  }

 private:
  inline static int jobs_ = 0;
  std::string job_;
};

TEST_P(TrainingFaults, AKilledWorkerIsNamedAndTheOthersHaveACompletedStep) { signal_in_training(SIGKILL, seconds(2)); }

// Of four workers, so that two are left. The second one dies with the first, or while the others find out about it.
TEST_P(TrainingFaults, OneOfTwoWorkersThatAreKilledAtOnceIsNamedAndTheOthersHaveACompletedStep) {
  std::mt19937 random(2);
  for (int64_t seed = 0; seed < 2 * fault_seeds() && !HasFailure(); ++seed) {
    const int64_t one = seed % 4;
    const auto other = static_cast<int64_t>((one + 1 + random() % 3) % 4);
    SCOPED_TRACE("workers " + std::to_string(one) + " and " + std::to_string(other));
    const auto workers = start("signal", one, "before", 4);
    workers->expect(one, "the fault comes", seconds(120));
    pass(std::chrono::microseconds(random() % 6000));
    const Time when = workers->signal(one, SIGKILL);
    pass(std::chrono::microseconds(seed % 2 == 0 ? 0 : random() % 3000));
    workers->signal(other, SIGKILL);
    expect_named(*workers, {{one, process_of(*workers, one)}, {other, process_of(*workers, other)}}, when, seconds(2));
    for (const int64_t killed : {one, other}) EXPECT_EQ(workers->wait(killed).signal, SIGKILL);
    expect_nothing_left();
  }
}

TEST_P(TrainingFaults, AStoppedWorkerIsNamedAndTheOthersHaveACompletedStep) {
  if (waits_as_sums()) GTEST_SKIP() << "it waits as the sums do; LOCKSTEP_FAULT_SEEDS runs it";
  signal_in_training(SIGSTOP, 4 * kLost);
}

TEST_P(TrainingFaults, AWorkerThatExitsIsNamedAndTheOthersHaveACompletedStep) {
  fault_of_the_program(
      "exit", seconds(2), [](const auto&) { return "ended its program"; }, [](const auto&) { return 0; });
}

TEST_P(TrainingFaults, AnExceptionIsToldToAllAndTheyHaveACompletedStep) {
  const auto is_between_steps = [](const std::string& place) { return place == "before" || place == "after"; };
  fault_of_the_program(
      "exception", seconds(2),
      [&](const auto& place) { return is_between_steps(place) ? "ended by an exception" : "a mistake of the program"; },
      [&](const auto& place) { return is_between_steps(place) ? 3 : 0; });
}

TEST_P(TrainingFaults, AWorkerWithoutMemoryIsNamedAndTheOthersHaveACompletedStep) {
  std::mt19937 random(7);
  for (int64_t seed = 0; seed < fault_seeds() && !HasFailure(); ++seed) {
    const int64_t fails = (seed + 2) % kWorkers;
    const std::string allocation = std::to_string(1 + random() % 40);  // each form makes more
    SCOPED_TRACE("allocation " + allocation);
    const auto workers = start("scarce", fails, allocation);
    const Time when = workers->expect(fails, "the fault comes", seconds(120)).when;
    expect_named(*workers, {{fails, "no memory"}}, when, seconds(2));
    EXPECT_EQ(workers->wait(fails).code, 0) << workers->output(fails);
    expect_nothing_left();
  }
}

TEST_P(TrainingFaults, AWorkerThatNeverComesIsNamedAndTheOthersHaveACompletedStep) {
  if (waits_as_sums()) GTEST_SKIP() << "it waits as the sums do; LOCKSTEP_FAULT_SEEDS runs it";
  fault_of_the_program(
      "absent", kPatience + seconds(2), [](const auto&) { return "has not come to"; }, [](const auto&) { return -1; });
}

TEST_P(TrainingFaults, ASlowWorkerIsWaitedForAndNobodyIsNamed) {
  if (waits_as_sums()) GTEST_SKIP() << "it waits as the sums do; LOCKSTEP_FAULT_SEEDS runs it";
  std::mt19937 random(9);
  for (int64_t seed = 0; seed < fault_seeds() && !HasFailure(); ++seed) {
    const auto workers = start("slow", seed % kWorkers, places()[random() % places().size()]);
    for (const Report& made : workers->expect_all("made ", seconds(120)))
      EXPECT_EQ(made.text, "made " + std::to_string(2 * kFirst) + " " + expected().after(2 * kFirst));
    for (int64_t w = 0; w < kWorkers; ++w) EXPECT_EQ(workers->wait(w).code, 0) << workers->output(w);
    expect_nothing_left();
  }
}

INSTANTIATE_TEST_SUITE_P(Forms, TrainingFaults,
                         ::testing::Values(Form{"HostMemory", "shared-memory", "off"}, Form{"Sums", "tcp", "off"},
                                           Form{"Factors", "tcp", "always"}, Form{"SeveralHosts", "mixed", "off"},
                                           Form{"FactorsBetweenHosts", "mixed", "always"}),
                         [](const auto& one) { return std::string(one.param.name); });

}  // namespace
}  // namespace lockstep
