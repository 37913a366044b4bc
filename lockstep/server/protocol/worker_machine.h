// A worker of a parameter-server run as a state machine: steps that it was given, pulls, pushes and reports.
#pragma once

#include <deque>
#include <optional>
#include <set>
#include <vector>

#include "lockstep/server/protocol/messages.h"
#include "lockstep/server/protocol/rules.h"

namespace lockstep::internal::inline server {

/// The step's function is to be called.
struct StepBegins {
  StepAttempt step = {};
  uint32_t kind = 0;
  Payload arguments = {};
};
/// The answer to the pull with this number. It comes once for each pull.
struct ValuesArrived {
  StepAttempt step = {};
  uint32_t pull = 0;
  int32_t server = 0;
  Position position = 0;
  Payload values = {};
};
/// The chief has given this incarnation up. The machine does nothing more.
struct Replaced {};

using WorkerEvent = std::variant<StepBegins, ValuesArrived, Replaced>;

struct WorkerOutput {
  std::vector<ToServer> to_servers;
  std::vector<ChiefMessage> to_chief;
  std::vector<WorkerEvent> events;
};

/// How a step's function ended; of StepOutcome one of the first three.
struct StepEnd {
  StepOutcome outcome = StepOutcome::kDone;
  bool apply = true;
  double coefficient = 1;
  Payload payload = {};
  uint32_t data = 0;  // StepReport::data
  uint32_t push = 0;  // StepReport::push
  auto operator<=>(const StepEnd&) const = default;
};

/// A value: copies are independent, and equal ones do the same. Of this incarnation alone.
template <class Rules>
class BasicWorkerMachine {
 public:
  BasicWorkerMachine(uint64_t epoch, WorkerId id, int32_t num_servers);

  void receive(const WorkerMessage& message, WorkerOutput& out);

  // What the function of the step at hand does. Each of these is called between StepBegins and finish(), on the step
  // that began last. After Replaced they do nothing, so that the function may run to its end; its pulls have no answer.

  /// Asks a server; returns the pull's number.
  uint32_t pull(int32_t server, Payload request, WorkerOutput& out);
  /// What is pushed to each server, one payload for each; at most once in a step.
  void push(std::vector<Payload> pushes, WorkerOutput& out);
  /// The function has returned or thrown. A step that is done is reported when all servers hold its push.
  void finish(StepEnd end, WorkerOutput& out);

  /// Sends again what has no answer yet, after the connection was made again.
  void repeat_to_server(int32_t server, WorkerOutput& out) const;
  void repeat_to_chief(WorkerOutput& out) const;

  WorkerId id() const { return id_; }
  bool is_replaced() const { return is_replaced_; }
  /// The step that is at hand, from StepBegins until its report.
  std::optional<StepAttempt> at_hand() const { return at_hand_ ? std::optional(at_hand_->step) : std::nullopt; }

  auto operator<=>(const BasicWorkerMachine&) const = default;

 private:
  struct Pull {
    int32_t server = 0;
    Payload request = {};
    std::optional<Position> answered = {};  // the position of the first answer
    auto operator<=>(const Pull&) const = default;
  };
  struct AtHand {
    StepAttempt step = {};
    uint32_t kind = 0;
    Position position = 0;
    std::optional<int64_t> after = {};
    std::vector<Pull> pulls = {};
    std::vector<Payload> pushes = {};  // one for each server, or none
    std::vector<uint8_t> answered = {};
    bool is_too_late = false;
    bool is_refused = false;
    Payload refusal = {};
    std::optional<StepEnd> end = {};
    auto operator<=>(const AtHand&) const = default;
  };

  void on(const GiveStep& give, WorkerOutput& out);
  void on(const WithdrawStep& withdraw, WorkerOutput& out);
  void on(const ReportsNoted& noted, WorkerOutput& out);
  void on(const WorkerReplaced& replaced, WorkerOutput& out);
  void on(const PulledValues& values, WorkerOutput& out);
  void on(const PushAnswer& answer, WorkerOutput& out);
  PullRequest pull_request(uint32_t number) const;
  PushRequest push_request(int32_t server) const;
  void begin_next(WorkerOutput& out);
  void report_if_ended(WorkerOutput& out);
  void withdraw_all_of(uint32_t kind, WorkerOutput& out);
  void report(StepReport report, WorkerOutput& out);
  void note_reports(uint64_t reports);

  uint64_t epoch_;
  WorkerId id_;
  int32_t num_servers_;
  bool is_replaced_ = false;
  uint64_t gives_ = 0;
  uint64_t reported_ = 0;
  std::optional<AtHand> at_hand_;
  std::deque<GiveStep> waiting_;
  std::deque<StepReport> reports_;  // which the chief has not noted, as far as is known here
  std::optional<int64_t> last_pushed_;
  std::set<uint32_t> ended_;  // kinds of steps for which it has no more data
};

using WorkerMachine = BasicWorkerMachine<ProtocolRules>;
extern template class BasicWorkerMachine<ProtocolRules>;

}  // namespace lockstep::internal::server
