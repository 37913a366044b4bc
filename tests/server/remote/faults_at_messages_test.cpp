// A task of a run of parameter servers dies, or a link is cut, at a message: at each kind of message, before or after
// it, on either side, at any of its times. Each step counts once all the same.
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <deque>
#include <filesystem>
#include <iostream>
#include <iterator>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <random>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "lockstep/comm/tasks/task_network.h"
#include "lockstep/server/remote/task_messages.h"
#include "tests/server/remote/counted_program.h"
#include "tests/server/remote/remote_tasks.h"
#include "tests/support/fault_seeds.h"
#include "tests/support/scratch_folder.h"
#include "tests/support/worker_processes.h"

namespace lockstep {
namespace {

using internal::TaskId;
using internal::TaskNetwork;
using internal::TaskWord;
using internal::WatchedMessage;
using testing::report;
using testing::WorkerProcesses;
using Job = TaskId::Job;
using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr int64_t kWorkers = 2;
constexpr int64_t kServers = 2;
constexpr int64_t kTasks = 1 + kWorkers + kServers;

/// A kind of message. `index` is that of the protocol's message in its variant. Not among them are WithdrawStep,
/// WorkerReplaced and ReportsNoted, which are sent only where steps are closed or messages come twice.
struct MessageKind {
  const char* name;
  Job from;
  Job to;
  TaskWord word;
  int index = -1;
};
constexpr std::array kKinds{
    MessageKind{"a worker's program", Job::kWorker, Job::kChief, TaskWord::kProgram},
    MessageKind{"a server's program", Job::kServer, Job::kChief, TaskWord::kProgram},
    MessageKind{"a worker's greeting", Job::kWorker, Job::kServer, TaskWord::kProgram},
    MessageKind{"a worker's welcome", Job::kChief, Job::kWorker, TaskWord::kWelcome},
    MessageKind{"a server's welcome", Job::kChief, Job::kServer, TaskWord::kWelcome},
    MessageKind{"GiveStep", Job::kChief, Job::kWorker, TaskWord::kProtocol, 0},
    MessageKind{"StepReport", Job::kWorker, Job::kChief, TaskWord::kProtocol, 0},
    MessageKind{"PullRequest", Job::kWorker, Job::kServer, TaskWord::kProtocol, 0},
    MessageKind{"PushRequest", Job::kWorker, Job::kServer, TaskWord::kProtocol, 1},
    MessageKind{"PulledValues", Job::kServer, Job::kWorker, TaskWord::kProtocol, 4},
    MessageKind{"PushAnswer", Job::kServer, Job::kWorker, TaskWord::kProtocol, 5},
    MessageKind{"LogEntries", Job::kChief, Job::kServer, TaskWord::kProtocol, 2},
    MessageKind{"ServerRead", Job::kServer, Job::kChief, TaskWord::kProtocol, 1},
    MessageKind{"RoundSquares", Job::kServer, Job::kChief, TaskWord::kProtocol, 2},
    MessageKind{"CutSaved", Job::kServer, Job::kChief, TaskWord::kProtocol, 3},
    MessageKind{"GiveStep of an evaluation", Job::kChief, Job::kWorker, TaskWord::kEvaluation, 0},
    MessageKind{"StepReport of an evaluation", Job::kWorker, Job::kChief, TaskWord::kEvaluation, 0},
    MessageKind{"which steps are settled", Job::kChief, Job::kWorker, TaskWord::kSettled},
    MessageKind{"a worker's end", Job::kChief, Job::kWorker, TaskWord::kEnd},
    MessageKind{"a server's end", Job::kChief, Job::kServer, TaskWord::kEnd},
};

/// -1: a kind that is not listed.
int kind_of(const WatchedMessage& message) {
  const Job from = message.is_sent ? message.self.job : message.peer.job;
  const Job to = message.is_sent ? message.peer.job : message.self.job;
  for (std::size_t k = 0; k < kKinds.size(); ++k) {
    const MessageKind& one = kKinds[k];
    if (one.from != from || one.to != to || message.bytes.empty()) continue;
    if (static_cast<TaskWord>(message.bytes[0]) != one.word) continue;
    if (one.index >= 0 && (message.bytes.size() < 2 || message.bytes[1] != one.index)) continue;
    return static_cast<int>(k);
  }
  return -1;
}

enum class Effect { kDies, kDiesAfter, kCuts };
constexpr std::array kEffects{"dies", "dies just after", "cuts the link"};

/// What happens to one task at one of its messages.
struct Fault {
  int kind = -1;  // none
  bool is_sender = false;
  int64_t number = 1;  // of the messages of this kind, from 1
  Effect effect = Effect::kDies;

  std::string text() const {
    return fmt::format("{} {} {} {}", kind, int{is_sender}, number, static_cast<int>(effect));
  }
};

[[noreturn]] void die() {
  kill(getpid(), SIGKILL);
  while (true) pause();
}

/// In a task: counts messages, and lets the fault happen.
class Watcher {
 public:
  Watcher(const Fault& fault, int64_t serial) : fault_(fault), serial_(serial) {}

  bool operator()(const WatchedMessage& message) {
    const int kind = kind_of(message);
    if (kind < 0) return true;
    const std::lock_guard<std::mutex> lock(mutex_);
    const int64_t number = ++counts_[{kind, message.is_sent}];
    if (kind != fault_.kind || message.is_sent != fault_.is_sender || number != fault_.number) return true;
    report(fmt::format("fault {}", serial_));
    switch (fault_.effect) {
      case Effect::kDies: die();
      case Effect::kDiesAfter:
        std::thread([number] {
          std::this_thread::sleep_for(std::chrono::microseconds(number * 37 % 1000));
          die();
        }).detach();
        return true;
      case Effect::kCuts: return false;
    }
    return true;
  }

  /// "KIND IS_SENT COUNT ..."
  std::string counts() const {
    const std::lock_guard<std::mutex> lock(mutex_);
    std::string text;
    for (const auto& [which, count] : counts_) {
      text += fmt::format("{} {} {} ", which.first, int{which.second}, count);
    }
    return text;
  }

 private:
  const Fault fault_;
  const int64_t serial_;  // of the run
  mutable std::mutex mutex_;
  std::map<std::pair<int, bool>, int64_t> counts_;  // guarded by mutex_
};

const TaskId& task_at(int64_t index) {
  static const std::vector<TaskId> all = [] {
    std::vector<TaskId> tasks{{.job = Job::kChief}};
    for (int64_t w = 0; w < kWorkers; ++w) tasks.push_back({.job = Job::kWorker, .task = w});
    for (int64_t s = 0; s < kServers; ++s) tasks.push_back({.job = Job::kServer, .task = s});
    return tasks;
  }();
  return all.at(static_cast<std::size_t>(index));
}

/// Each word of the test is a run: "SERIAL PORT STALENESS FAULT FOLDER".
WORKER_BODY(counts_with_faults) {
  const TaskId self = task_at(std::stoll(std::getenv("TASK")));
  while (true) {
    std::istringstream word(testing::next_word());
    int64_t serial = 0;
    uint16_t port = 0;
    int64_t staleness = -1;
    Fault fault;
    int effect = 0;
    std::string folder;
    word >> serial >> port >> staleness >> fault.kind >> fault.is_sender >> fault.number >> effect >> folder;
    fault.effect = static_cast<Effect>(effect);
    ClusterSpec spec = testing::cluster_of_tasks(kWorkers, kServers, port);
    spec.job = self.job == Job::kChief ? "chief" : self.job == Job::kWorker ? "worker" : "ps";
    spec.task = self.task;
    const auto watcher = std::make_shared<Watcher>(fault, serial);
    TaskNetwork::watch = [watcher](const WatchedMessage& message) { return (*watcher)(message); };
    std::string end;
    try {
      testing::CountedProgram program({.cluster = spec,
                                       .staleness = staleness < 0 ? std::optional<int64_t>() : staleness,
                                       .timeouts = {.join = seconds(30), .lost = seconds(2)},
                                       .attempts = 1000},
                                      {.steps = 24, .save_every = 8, .chunk = 4, .folder = folder});
      testing::CountedResult result;
      end = fmt::format("code {}", program.coordinate(result));
    } catch (const testing::NotExact& error) {
      end = fmt::format("not exact: {}", error.what());
    } catch (const std::exception& error) {
      end = fmt::format("error {}", error.what());
    }
    report(fmt::format("counts {} {}", serial, watcher->counts()));
    report(fmt::format("ended {} {}", serial, end));
  }
}

/// The process of one task, which is started again when it has died.
class TaskOfTest {
 public:
  explicit TaskOfTest(int64_t index) : index_(index) { start(); }

  const TaskId& id() const { return task_at(index_); }
  void begin(const std::string& run) {
    process_->tell(0, fmt::format("{} {}", ++serial_, run));
    has_fault_ = false;
  }
  /// How it has ended the run that it was told last; empty: it has not.
  std::string end() const { return reported("ended"); }
  std::string counts() const { return reported("counts"); }
  bool is_dead() const {
    siginfo_t info{};
    return waitid(P_PID, static_cast<id_t>(process_->pid(0)), &info, WEXITED | WNOHANG | WNOWAIT) == 0 &&
           info.si_pid == process_->pid(0);
  }
  /// Whether its fault has happened in that run.
  bool has_failed() {
    const auto reports = process_->reports(0);
    has_fault_ = has_fault_ || std::ranges::any_of(reports, [&](const auto& one) {
                   return one.text == fmt::format("fault {}", serial_);
                 });
    return has_fault_;
  }
  void start() {
    if (process_) has_failed();
    process_ = std::make_unique<WorkerProcesses>("counts_with_faults", 1,
                                                 WorkerProcesses::Environment{{"TASK", std::to_string(index_)}});
  }

 private:
  std::string reported(const char* what) const {
    const std::string beginning = fmt::format("{} {} ", what, serial_);
    for (const testing::Report& one : process_->reports(0)) {
      if (one.text.starts_with(beginning)) return one.text.substr(beginning.size());
    }
    return {};
  }

  const int64_t index_;
  std::unique_ptr<WorkerProcesses> process_;
  int64_t serial_ = 0;
  bool has_fault_ = false;
};

class FaultsAtMessages : public testing::ScratchFolder {
 protected:
  FaultsAtMessages() {
    for (int64_t i = 0; i < kTasks; ++i) tasks_.emplace_back(i);
  }

  /// A run of all tasks, of which `failing` has a fault; -1: none. Gives how the chief has ended it, or "died". Workers
  /// that end before it join again, and so do tasks that die.
  std::string run(int64_t staleness, int64_t failing, const Fault& fault) {
    const uint16_t port = testing::free_port();
    const auto begin = [&](int64_t index, const Fault& its_fault) {
      tasks_[index].begin(fmt::format("{} {} {} {}", port, staleness, its_fault.text(), path("checkpoints")));
    };
    for (int64_t i = 0; i < kTasks; ++i) begin(i, i == failing ? fault : Fault{});
    has_failed_ = false;
    const auto note_fault = [&] { has_failed_ = has_failed_ || (failing >= 0 && tasks_[failing].has_failed()); };
    const auto deadline = Clock::now() + seconds(60);
    std::string end;
    while (end.empty() && Clock::now() < deadline) {
      std::this_thread::sleep_for(milliseconds(1));
      note_fault();
      for (int64_t i = 0; i < kTasks && end.empty(); ++i) {
        TaskOfTest& one = tasks_[i];
        if (i == 0) {
          end = one.is_dead() ? "died" : one.end();
        } else if (one.is_dead()) {
          one.start();
          begin(i, {});
        } else if (one.id().job == Job::kWorker && one.end().starts_with("error ")) {
          ends_ += one.id().name() + ": " + one.end() + "\n";
          begin(i, {});
        }
      }
    }
    // All end with the chief. Who has come too late for this run waits for another one.
    const auto longest = Clock::now() + seconds(5);
    const bool dies_later = fault.effect == Effect::kDiesAfter;
    for (int64_t i = 0; i < kTasks; ++i) {
      TaskOfTest& one = tasks_[i];
      const auto is_over = [&] {
        if (i == failing && dies_later && !one.is_dead()) return !has_failed_;
        return one.is_dead() || !one.end().empty();
      };
      while (note_fault(), !is_over() && Clock::now() < longest) std::this_thread::sleep_for(milliseconds(1));
      if (!one.end().empty()) ends_ += one.id().name() + ": " + one.end() + "\n";
      if (one.is_dead() || one.end().empty()) one.start();
    }
    return end.empty() ? "the run stands still" : end;
  }

  /// Which messages there are in a run without faults.
  void count_messages(int64_t staleness) {
    ends_.clear();
    ASSERT_EQ(run(staleness, -1, {}), "code 0") << ends_;
    for (int64_t i = 0; i < kTasks; ++i) {
      std::istringstream counts(tasks_[i].counts());
      for (int64_t kind, is_sent, count; counts >> kind >> is_sent >> count;) {
        counts_[kind].push_back({.staleness = staleness, .task = i, .is_sender = is_sent != 0, .count = count});
      }
    }
    std::filesystem::remove_all(path("checkpoints"));
  }

  /// Every step counts once, whatever happens to the task at this message.
  void expect_exact(int64_t staleness, int64_t failing, const Fault& fault) {
    const MessageKind& kind = kKinds[static_cast<std::size_t>(fault.kind)];
    const TaskId& task = task_at(failing);
    const std::string what = fmt::format("{} {} when it {} message {} of the kind '{}', staleness {}", task.name(),
                                         kEffects[static_cast<std::size_t>(fault.effect)],
                                         fault.is_sender ? "sends" : "gets", fault.number, kind.name, staleness);
    ends_.clear();
    const std::string end = run(staleness, failing, fault);
    ++(has_failed_ ? happened_ : missed_);
    const bool is_workers_link = kind.from == Job::kWorker || kind.to == Job::kWorker;
    if (task.job == Job::kWorker || (fault.effect == Effect::kCuts && is_workers_link) || !has_failed_) {
      EXPECT_EQ(end, "code 0") << what << "\n" << ends_;  // the run has gone on
    } else if (end != "code 0") {
      // The others end with the name of a server that died. The second run begins at the last checkpoint.
      const bool names_it = end.find(task.job == Job::kServer ? task.name() : "server ") != std::string::npos;
      EXPECT_TRUE(names_it || (task.job == Job::kChief && end == "died")) << what << ": " << end;
      ++second_runs_;
      EXPECT_EQ(run(staleness, -1, {}), "code 0") << what << ", the second run\n" << ends_;
    }
    std::filesystem::remove_all(path("checkpoints"));
  }

  struct Counted {
    int64_t staleness = -1;
    int64_t task = 0;
    bool is_sender = false;
    int64_t count = 0;
  };
  using Clock = std::chrono::steady_clock;
  std::deque<TaskOfTest> tasks_;
  std::map<int64_t, std::vector<Counted>> counts_;  // by kind
  std::string ends_;                                // of tasks, for a person
  bool has_failed_ = false;                         // in the last run
  int64_t happened_ = 0;
  int64_t missed_ = 0;  // in a run that has fewer messages of the kind
  int64_t second_runs_ = 0;
};

TEST_F(FaultsAtMessages, EachStepCountsOnceOnAllServers) {
  for (const int64_t staleness : {-1, 1, 0}) count_messages(staleness);
  for (int64_t seed = 0; seed < testing::fault_seeds(); ++seed) {
    for (int kind = 0; kind < static_cast<int>(kKinds.size()); ++kind) {
      const std::vector<Counted>& all = counts_[kind];
      std::mt19937 random(static_cast<unsigned>(1000 * seed + kind));
      // The suite has one of the cases of each kind.
      const unsigned chosen = random() % 6;
      for (unsigned c = 0; c < 6; ++c) {
        if (c != chosen && !testing::all_engines()) continue;
        std::vector<Counted> fitting;
        std::ranges::copy_if(all, std::back_inserter(fitting),
                             [&](const Counted& one) { return one.is_sender == (c % 2 == 0); });
        if (fitting.empty()) {  // the runs that were counted had none on this side
          ++missed_;
          continue;
        }
        const Counted& one = fitting[random() % fitting.size()];
        expect_exact(one.staleness, one.task,
                     {.kind = kind,
                      .is_sender = one.is_sender,
                      .number = 1 + static_cast<int64_t>(random() % static_cast<unsigned>(one.count)),
                      .effect = static_cast<Effect>(c / 2)});
        if (HasFailure()) return;
      }
    }
  }
  std::cout << fmt::format("{} faults, and {} that a run was too short for; {} runs began again from a checkpoint\n",
                           happened_, missed_, second_runs_);
  EXPECT_LE(missed_, happened_ / 4) << "too few faults happen";
}

}  // namespace
}  // namespace lockstep
