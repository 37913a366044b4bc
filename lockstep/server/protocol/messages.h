// What the chief, the workers and the servers of a parameter-server run tell each other: plain structs. What is in
// their payloads is the business of those who make and use them.
//
// How a runtime drives the three machines, whether its tasks are threads or processes:
// - A machine belongs to one thread at a time. No call of it waits, reads a clock or starts anything. A call appends
//   what follows from it to the Output that the caller gives: messages to be carried, and events to be acted on.
// - A task's loop is: wait for a message or for a call of the program; give it to the machine; act on the events; carry
//   the messages; clear the Output; again. The order in which one machine sends to another should be kept, but
//   correctness does not depend on that: messages may come late, repeated, in another order, or never.
// - The chief's loop handles everything that is there, and then calls ChiefMachine::collect() once. Only that gives
//   steps and sends entries of the log, so that both travel in batches. It calls worker_joined() when a worker is
//   connected, worker_lost() when the worker's connection or process has ended, and step_overdue() by its clock.
//   `schedule` of the program waits while has_room() is false; `join` first calls complete_round(), and then waits
//   until settled() has passed the last step that was scheduled. The death of a server ends the run: the machines of
//   the next epoch begin with the ChiefCut and the servers' files of the last checkpoint that is whole.
// - A server's loop receives all messages that are there, so that pulls are answered first, and then reads one entry
//   with ServerMachine::read_entry() while has_entries(). Now and then (about once in a millisecond) it sends report().
//   A ServerStore has the values. The machine calls it on the loop's thread, and never opens a payload. When what
//   freeze() kept is written, the loop calls saved().
// - A worker's loop starts the step's function on a thread of its own at the event StepBegins, and calls pull(), push()
//   and finish() as the function asks for values, pushes and returns. ValuesArrived answers a pull. The machine begins
//   at most one step at a time; another one may wait in it. After Replaced the worker joins anew with a new machine.
// - Threads of one process hand payloads over as they are. Where a connection was lost and made again, both sides call
//   their repeat functions for it, and a server first sends report(); nothing needs to know what had arrived.
#pragma once

#include <compare>
#include <cstdint>
#include <memory>
#include <optional>
#include <variant>
#include <vector>

namespace lockstep::internal::inline server {

/// Tensors, rows, arguments, results or errors that travel with a message. Whoever holds one keeps it alive; nobody
/// changes what is in it. Two are equal if they are the same object.
using Payload = std::shared_ptr<const void>;

/// How many entries of the log come before a place in it. A server "at position p" has read the first p entries.
/// Counting goes on from epoch to epoch: a restore begins at the position of the checkpoint's cut.
using Position = uint64_t;

/// One attempt at one scheduled step. Steps have the numbers by which programs know them; attempts of a step count
/// from 0.
struct StepAttempt {
  int64_t step = 0;
  uint32_t attempt = 0;
  auto operator<=>(const StepAttempt&) const = default;
};

/// A worker since it joined. Who joins later in its place has a higher incarnation, so that a worker that was given up
/// and its successor are never taken for each other.
struct WorkerId {
  int32_t worker = 0;
  uint32_t incarnation = 0;
  auto operator<=>(const WorkerId&) const = default;
};

/// One decision of the chief. All servers read all entries in the order of their positions.
struct LogEntry {
  enum class Kind : uint8_t {
    kCommit,   // this attempt of the step counts: apply what it pushed
    kClose,    // the step never counts
    kPart,     // this attempt is a part of the round that is decided next
    kSquares,  // answer with the squares of the sum of the parts; `number` is the round
    kRound,    // apply the sum of the parts; `number` is the round
    kChange,   // apply `payload`: the chief assigns values, evicts rows and the like
    kCut,      // keep the state as it is here; `number` is the cut's id
    kRelease,  // what was kept for the cut `number` is not needed any more
  };
  Kind kind = Kind::kCommit;
  /// Of kCommit and kRound. Where false, what was pushed is dropped.
  bool apply = true;
  uint32_t attempt = 0;
  int64_t number = 0;
  /// Of kCommit and kRound: what gradients are multiplied by.
  double coefficient = 1;
  /// Of kCommit and kRound: the learning rates and the like, as they were when the step was scheduled.
  Payload payload = {};
  auto operator<=>(const LogEntry&) const = default;
};

// From the chief to a worker.

struct GiveStep {
  uint64_t epoch = 0;
  WorkerId to = {};
  uint64_t number = 0;         // counts the messages of this kind to this incarnation, from 1
  uint64_t reports_noted = 0;  // as ReportsNoted
  StepAttempt step = {};
  uint32_t kind = 0;  // which function it is
  Position position = 0;
  /// The step must also see what this worker has pushed for its steps before, as far as these count.
  bool follows_own = true;
  Payload arguments = {};
  auto operator<=>(const GiveStep&) const = default;
};

/// The step is not wanted any more. Who has begun it goes on to its end.
struct WithdrawStep {
  uint64_t epoch = 0;
  WorkerId to = {};
  StepAttempt step = {};
  auto operator<=>(const WithdrawStep&) const = default;
};

/// The worker's reports up to this number have arrived.
struct ReportsNoted {
  uint64_t epoch = 0;
  WorkerId to = {};
  uint64_t reports = 0;
  auto operator<=>(const ReportsNoted&) const = default;
};

/// The worker was given up, and what it does counts no more.
struct WorkerReplaced {
  uint64_t epoch = 0;
  WorkerId to = {};
  auto operator<=>(const WorkerReplaced&) const = default;
};

// From a worker to the chief.

/// Which state a pull saw, for the record of the run.
struct PulledAt {
  uint32_t pull = 0;
  int32_t server = 0;
  Position position = 0;
  auto operator<=>(const PulledAt&) const = default;
};

/// How a step of a worker has ended.
enum class StepOutcome : uint8_t {
  kDone,         // the function returned, and all servers hold what it pushed
  kFailed,       // the function threw, or a server refused the push; `payload` is the error
  kStreamEnded,  // the worker has no more data for steps of this kind
  kTooLate,      // a server answered that the step is decided already
  kWithdrawn,    // it was withdrawn before it began
};

struct StepReport {
  uint64_t epoch = 0;
  WorkerId from = {};
  uint64_t number = 0;  // counts the reports of this incarnation, from 1
  StepAttempt step = {};
  StepOutcome outcome = StepOutcome::kDone;
  bool pushed = false;
  /// What a kDone asks of the entry that makes it count.
  bool apply = true;
  double coefficient = 1;
  Payload payload = {};  // the result or the error, and what else the runtime sends with it
  std::vector<PulledAt> pulled = {};
  // For the record too: digests, of 24 bits, of the batches that the step has taken and of what it has pushed.
  uint32_t data = 0;
  uint32_t push = 0;
  auto operator<=>(const StepReport&) const = default;
};

// From a worker to a server.

struct PullRequest {
  uint64_t epoch = 0;
  WorkerId from = {};
  StepAttempt step = {};
  uint32_t number = 0;    // counts the pulls of this attempt, from 0
  Position position = 0;  // the answer has seen so many entries
  /// The answer has also seen the decision on this step, which the same worker pushed for.
  std::optional<int64_t> after = {};
  Payload request = {};
  auto operator<=>(const PullRequest&) const = default;
};

struct PushRequest {
  uint64_t epoch = 0;
  WorkerId from = {};
  StepAttempt step = {};
  Payload push = {};
  auto operator<=>(const PushRequest&) const = default;
};

// From a server to a worker.

struct PulledValues {
  uint64_t epoch = 0;
  WorkerId to = {};
  int32_t server = 0;
  StepAttempt step = {};
  uint32_t number = 0;    // of the pull
  Position position = 0;  // at which the server was
  Payload values = {};
  auto operator<=>(const PulledValues&) const = default;
};

enum class PushVerdict : uint8_t {
  kHeld,     // it is kept until the step is decided
  kTooLate,  // the step is decided already
  kRefused,  // the store cannot apply it; `error` says why
};

struct PushAnswer {
  uint64_t epoch = 0;
  WorkerId to = {};
  int32_t server = 0;
  StepAttempt step = {};
  PushVerdict verdict = PushVerdict::kHeld;
  Payload error = {};
  auto operator<=>(const PushAnswer&) const = default;
};

// From the chief to a server.

struct LogEntries {
  uint64_t epoch = 0;
  Position first = 0;  // the position of the first one
  std::vector<LogEntry> entries = {};
  /// Who has read all of these knows that all steps below this number are decided.
  int64_t floor = 0;
  auto operator<=>(const LogEntries&) const = default;
};

// From a server to the chief.

struct ServerRead {
  uint64_t epoch = 0;
  int32_t server = 0;
  Position position = 0;
  auto operator<=>(const ServerRead&) const = default;
};

struct RoundSquares {
  uint64_t epoch = 0;
  int32_t server = 0;
  int64_t round = 0;
  Payload squares = {};
  auto operator<=>(const RoundSquares&) const = default;
};

/// What the server kept for a cut is written, or could not be: the payload says it.
struct CutSaved {
  uint64_t epoch = 0;
  int32_t server = 0;
  int64_t cut = 0;
  Payload saved = {};
  auto operator<=>(const CutSaved&) const = default;
};

using ChiefMessage = std::variant<StepReport, ServerRead, RoundSquares, CutSaved>;
using ServerMessage = std::variant<PullRequest, PushRequest, LogEntries>;
using WorkerMessage = std::variant<GiveStep, WithdrawStep, ReportsNoted, WorkerReplaced, PulledValues, PushAnswer>;

struct ToServer {
  int32_t server = 0;
  ServerMessage message = {};
  auto operator<=>(const ToServer&) const = default;
};
struct ToWorker {
  WorkerId worker = {};
  WorkerMessage message = {};
  auto operator<=>(const ToWorker&) const = default;
};

}  // namespace lockstep::internal::server
