// A chief for tests of its rules: what it gave, what it wrote into the log, what it told the program.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/server/protocol/chief_machine.h"

namespace lockstep::internal::inline server {

/// A chief whose workers have all joined, unless told otherwise.
class ChiefBench {
 public:
  explicit ChiefBench(const ChiefOptions& options, const ChiefCut& restored = {}, bool with_workers = true)
      : options_(options), chief_(options, 1, restored) {
    for (int32_t worker = 0; worker < options.workers && with_workers; ++worker) join(worker);
  }

  ChiefMachine& chief() { return chief_; }

  WorkerId join(int32_t worker) {
    const WorkerId id{.worker = worker, .incarnation = chief_.worker_joined(worker, out_)};
    if (workers_.size() <= static_cast<std::size_t>(worker)) workers_.resize(static_cast<std::size_t>(worker) + 1);
    workers_[static_cast<std::size_t>(worker)] = {.id = id};
    collect();
    return id;
  }
  void lose(int32_t worker) {
    chief_.worker_lost(id(worker), out_);
    collect();
  }
  WorkerId id(int32_t worker) const { return workers_[static_cast<std::size_t>(worker)].id; }

  std::vector<int64_t> schedule(int count, uint32_t kind = 0) {
    std::vector<int64_t> numbers;
    for (int k = 0; k < count; ++k) numbers.push_back(chief_.schedule({.kind = kind}));
    collect();
    return numbers;
  }
  /// The steps that the worker was given and has not reported, in order.
  std::vector<StepAttempt> given(int32_t worker) const {
    std::vector<StepAttempt> steps;
    for (const GiveStep& give : workers_[static_cast<std::size_t>(worker)].gives) steps.push_back(give.step);
    return steps;
  }
  const GiveStep& last_give(int32_t worker) const { return workers_[static_cast<std::size_t>(worker)].gives.back(); }

  /// The worker reports the first of its steps, or `step`.
  StepReport report_of(int32_t worker, StepOutcome outcome = StepOutcome::kDone, bool pushed = true) {
    Worker& from = workers_[static_cast<std::size_t>(worker)];
    StepReport report{.epoch = 1, .from = from.id, .number = ++from.reports, .step = from.gives.front().step};
    from.gives.erase(from.gives.begin());
    report.outcome = outcome;
    report.pushed = pushed;
    return report;
  }
  void report(int32_t worker, StepOutcome outcome = StepOutcome::kDone, bool pushed = true) {
    receive(report_of(worker, outcome, pushed));
  }
  void receive(const ChiefMessage& message) {
    chief_.receive(message, out_);
    collect();
  }
  ChiefOutput& out() { return out_; }
  /// Sends what is decided, and takes note of it.
  void collect() {
    chief_.collect(out_);
    for (ToWorker& one : out_.to_workers) {
      if (auto* give = std::get_if<GiveStep>(&one.message)) {
        workers_[static_cast<std::size_t>(one.worker.worker)].gives.push_back(*give);
      } else {
        to_workers.push_back(one);
      }
    }
    for (ToServer& one : out_.to_servers) {
      if (one.server != 0) continue;
      const LogEntries& entries = std::get<LogEntries>(one.message);
      log.insert(log.end(), entries.entries.begin(), entries.entries.end());
    }
    for (ChiefEvent& one : out_.events) {
      if (const auto* counted_one = std::get_if<StepCounted>(&one)) counted.push_back(counted_one->step);
      if (const auto* closed_one = std::get_if<StepClosed>(&one)) closed.push_back(*closed_one);
      if (const auto* ended_one = std::get_if<StreamsEnded>(&one)) streams_ended.push_back(ended_one->kind);
      if (const auto* summed_one = std::get_if<RoundSummed>(&one)) summed.push_back(summed_one->round);
      if (const auto* whole_one = std::get_if<CutWhole>(&one)) whole.push_back(*whole_one);
    }
    out_ = {};
  }
  /// The log in short: "commit 3.0, close 4, part 5.1, round 1".
  std::string log_text() const {
    std::string text;
    for (const LogEntry& entry : log) {
      static constexpr const char* names[] = {"commit", "close",  "part", "squares",
                                              "round",  "change", "cut",  "release"};
      text += (text.empty() ? "" : ", ") + std::string(names[static_cast<std::size_t>(entry.kind)]);
      if (entry.kind == LogEntry::Kind::kChange) continue;
      text += " " + std::to_string(entry.number);
      if (entry.kind == LogEntry::Kind::kCommit || entry.kind == LogEntry::Kind::kPart) {
        text += "." + std::to_string(entry.attempt);
      }
      if (!entry.apply) text += " dropped";
    }
    return text;
  }
  std::vector<int64_t> closed_steps(ClosedBecause why) const {
    std::vector<int64_t> steps;
    for (const StepClosed& one : closed) {
      if (one.why == why) steps.push_back(one.step);
    }
    return steps;
  }

  std::vector<LogEntry> log;  // what server 0 was sent
  std::vector<int64_t> counted;
  std::vector<StepClosed> closed;
  std::vector<uint32_t> streams_ended;
  std::vector<int64_t> summed;
  std::vector<CutWhole> whole;
  std::vector<ToWorker> to_workers;  // but for steps that were given

 private:
  struct Worker {
    WorkerId id = {};
    uint64_t reports = 0;
    std::vector<GiveStep> gives = {};
  };

  ChiefOptions options_;
  ChiefMachine chief_;
  ChiefOutput out_;
  std::vector<Worker> workers_;
};

}  // namespace lockstep::internal::server
