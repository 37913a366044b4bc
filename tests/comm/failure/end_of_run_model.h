// A model of a run whose workers end it by EndOfRun: calls, a network between the workers, and faults at any moment.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/comm/network/dissemination.h"
#include "lockstep/comm/network/end_of_run.h"
#include "lockstep/comm/network/run_state.h"

namespace lockstep::internal {

using Gone = EndOfRun::Gone;
using Kind = Frame::Kind;

// A model of a run: workers that make calls, and a network between them. It has no clock. What comes next is drawn from
// a seed: an item arrives, a worker goes on in its call, or something happens to a worker.

/// What may happen to workers.
struct Faults {
  bool die = false;    // killed: of what it sent, a part of each link is lost; its connections break after the rest
  bool abort = false;  // one or several workers end the run
  bool leave = false;  // a worker says that it takes part no longer, and does nothing after that
  bool stop = false;   // frozen for ever: what it sent arrives, and then the others hear nothing
  bool reset = false;  // the connection for control between two workers that live breaks; datagrams take its place
  bool false_alarm = false;  // a worker takes another one for frozen that is not
};

/// What is to hold for the workers that are there to the last, the *survivors*.
enum Claim : uint8_t {
  kEnds,         // where anything has happened, the run ends on each
  kAgrees,       // with the same number of calls and the same reason
  kTrueReason,   // which a worker has noticed
  kOnlyTaken,    // no call counts that one of them has not taken
  kAllReturned,  // every call counts from which one of them has returned, or one that left
};
inline constexpr std::array<const char*, 5> kClaims = {
    "a survivor does not learn of the end", "survivors end differently", "nobody noticed this reason",
    "a call counts that one has not taken", "a call from which one has returned does not count"};

class Simulation {
 public:
  Simulation(uint64_t seed, const Faults& faults) : random_(seed) {
    if (faults.die) faults_.push_back(&Simulation::die);
    if (faults.abort) faults_.push_back(&Simulation::abort);
    if (faults.leave) faults_.push_back(&Simulation::leave);
    if (faults.stop) faults_.push_back(&Simulation::stop);
    if (faults.reset) faults_.push_back(&Simulation::reset);
    if (faults.false_alarm) faults_.push_back(&Simulation::raise_false_alarm);
    is_in_rounds_ = below(2) == 0;
    // Of nine workers in rounds each has strangers; runs of so many take long.
    const auto count = is_in_rounds_ && below(8) == 0 ? 9 : 2 + below(5);
    longest_run_ = 1 + below(4);
    faults_to_come_ = below(count + 1);
    steps_between_faults_ = std::array<uint64_t, 3>{10, 100, 1000}[below(3)];
    longest_quiet_ = static_cast<int>(count);
    links_.resize(2 * count * count);
    const uint64_t slow_links = below(4);
    for (Link& link : links_) link.is_slow = below(8) < slow_links;
    for (uint64_t w = 0; w < count; ++w) {
      workers_.push_back(std::make_unique<Worker>(count));
      workers_[w]->end_of_run = std::make_unique<EndOfRun>(
          static_cast<int64_t>(count), static_cast<int64_t>(w),
          EndOfRun::Effects{
              .freeze = [this, w] { return workers_[w]->state.freeze(); },
              .send = [this, w](int64_t to, const Frame& frame) { send(w, static_cast<uint64_t>(to), frame); },
              .end = [this, w](const RunEnd& end) { workers_[w]->state.set_end(end); }});
    }
  }

  /// Goes on until nothing can happen any more. Which claims are broken.
  std::set<Claim> run() {
    while (true) {
      const bool is_quiet = choices().empty();
      if (faults_to_come_ > 0 && (is_quiet || below(steps_between_faults_) == 0)) {
        happen_to(any_worker());
      } else if (is_quiet && quiet_rounds_++ > longest_quiet_) {
        return broken_claims();
      } else if (is_quiet) {
        // Heartbeats go on for as long as a worker is there.
        for (uint64_t w = 0; w < workers_.size(); ++w) beat(w);
      } else {
        step();
      }
    }
  }

 private:
  struct Item {
    enum class What : uint8_t { kData, kTaken, kFrame, kReset, kBroken, kNothingMore };
    What what = What::kData;
    uint64_t call = 0;  // of kData and kTaken
    Frame frame = {};   // of kFrame
  };
  using What = Item::What;

  /// All that one worker has on its way to another one, for data or for control. It arrives in order.
  struct Link {
    std::deque<Item> items = {};
    bool is_slow = false;
    bool is_lossy = false;  // frames are datagrams, of which some are lost
  };

  struct Worker {
    explicit Worker(uint64_t workers) : data(workers), taken(workers), heard(workers) {}
    NetworkRunState state;
    std::unique_ptr<EndOfRun> end_of_run;
    bool is_here = true;
    bool has_left = false;
    bool waits_for_end = false;   // it could not take a call, or not return from it
    uint64_t call = 0;            // the last one that it has begun
    int round = 0;                // where records and "taken" go in rounds
    std::vector<uint64_t> data;   // by worker: the last call whose data has come
    std::vector<uint64_t> taken;  // by worker: the last call that it is known to have taken
    std::vector<Calls> heard;     // by worker: its last heartbeat
  };

  // Calls.

  /// Whether worker `w` waits for nothing.
  bool can_go_on(uint64_t w) const {
    const Worker& worker = *workers_[w];
    const Calls calls = worker.state.calls();
    if (!worker.is_here || worker.waits_for_end) return false;
    if (worker.call == calls.returned) return worker.call < longest_run_;
    const std::vector<uint64_t>& have = worker.call > calls.taken ? worker.data : worker.taken;
    return is_in_rounds_ ? have[static_cast<uint64_t>(dissemination(w).from(worker.round))] >= worker.call
                         : all_others(w, have);
  }
  bool all_others(uint64_t w, const std::vector<uint64_t>& have) const {
    for (uint64_t other = 0; other < have.size(); ++other) {
      if (other != w && have[other] < workers_[w]->call) return false;
    }
    return true;
  }
  Dissemination dissemination(uint64_t w) const {
    return {static_cast<int64_t>(workers_.size()), static_cast<int64_t>(w)};
  }
  /// The worker begins to tell the others something in its call.
  void tell(uint64_t w, What what, int round = 0) {
    Worker& worker = *workers_[w];
    worker.round = round;
    const Item item{.what = what, .call = worker.call};
    if (is_in_rounds_) {
      put(w, static_cast<uint64_t>(dissemination(w).to(round)), item);
    } else {
      send_to_others(w, item);
    }
  }
  /// The worker begins a call, goes on to the next round of it, takes it or returns from it.
  void go_on(uint64_t w) {
    Worker& worker = *workers_[w];
    const Calls calls = worker.state.calls();
    if (worker.call == calls.returned) {
      ++worker.call;
      tell(w, What::kData);
    } else if (is_in_rounds_ && worker.round + 1 < dissemination(w).num_rounds()) {
      tell(w, worker.call > calls.taken ? What::kData : What::kTaken, worker.round + 1);
    } else if (worker.call > calls.taken) {
      worker.waits_for_end = !worker.state.take(worker.call);
      if (!worker.waits_for_end) tell(w, What::kTaken);
    } else {
      worker.waits_for_end = !worker.state.finish(worker.call);
    }
  }

  // The network.

  Link& link(bool is_control, uint64_t from, uint64_t to) {
    return links_[((is_control ? 1 : 0) * workers_.size() + from) * workers_.size() + to];
  }
  void put(uint64_t from, uint64_t to, Item item) {
    const bool is_control = item.what > What::kTaken;
    if (item.what == What::kFrame && link(true, from, to).is_lossy && below(3) == 0) return;
    if (workers_[to]->is_here) link(is_control, from, to).items.push_back(std::move(item));
  }
  void send(uint64_t from, uint64_t to, Frame frame) {
    put(from, to, {.what = What::kFrame, .frame = std::move(frame)});
  }
  void send_to_others(uint64_t from, const Item& item) {
    for (uint64_t to = 0; to < workers_.size(); ++to) {
      if (to != from) put(from, to, item);
    }
  }
  void beat(uint64_t w) {
    if (!workers_[w]->is_here) return;
    EndOfRun& end_of_run = *workers_[w]->end_of_run;
    const Item heartbeat{.what = What::kFrame, .frame = {.calls = workers_[w]->state.calls()}};
    if (is_in_rounds_ && end_of_run.reason().empty()) {
      for (const int64_t to : dissemination(w).partners()) put(w, static_cast<uint64_t>(to), heartbeat);
    } else {
      send_to_others(w, heartbeat);
    }
    for (uint64_t to = 0; to < workers_.size(); ++to) {
      if (!link(true, w, to).is_lossy) continue;
      end_of_run.ask_again(static_cast<int64_t>(to));
      if (end_of_run.has_ended()) send(w, to, end_of_run.end_frame());
    }
  }
  void receive(uint64_t from, uint64_t to, const Item& item) {
    Worker& worker = *workers_[to];
    switch (item.what) {
      case What::kData: worker.data[from] = item.call; return;
      case What::kTaken: worker.taken[from] = item.call; return;
      case What::kReset: return notice(to, "a connection broke");
      case What::kBroken:
        // Where it had broken before, nothing tells the death from a silence.
        if (link(true, from, to).is_lossy) break;
        return lose(to, from, Gone::kDead, {}, named(from, "is gone"));
      case What::kNothingMore:
      case What::kFrame: break;
    }
    if (item.what != What::kFrame) {
      return lose(to, from, Gone::kUnreachable, worker.heard[from], named(from, "is frozen"));
    }
    if (item.frame.kind == Kind::kHeartbeat) worker.heard[from] = item.frame.calls;
    if (item.frame.kind == Kind::kLeft) {
      lose(to, from, Gone::kLeft, item.frame.calls, item.frame.text);
    } else {
      worker.end_of_run->receive(static_cast<int64_t>(from), item.frame);
    }
  }
  void lose(uint64_t w, uint64_t gone, Gone how, const Calls& calls, const std::string& reason) {
    workers_[w]->end_of_run->set_gone(static_cast<int64_t>(gone), how, calls);
    notice(w, reason);
  }
  void notice(uint64_t w, const std::string& reason) {
    noticed_.insert(reason);
    workers_[w]->end_of_run->notice(reason);
  }

  // What happens next.

  /// Links on which something is, and after them workers that can go on.
  std::vector<uint64_t> choices() const {
    std::vector<uint64_t> all;
    for (uint64_t i = 0; i < links_.size(); ++i) {
      if (!links_[i].items.empty()) all.push_back(i);
    }
    for (uint64_t w = 0; w < workers_.size(); ++w) {
      if (can_go_on(w)) all.push_back(links_.size() + w);
    }
    return all;
  }
  void step() {
    const std::vector<uint64_t> all = choices();
    uint64_t choice = all[below(all.size())];
    for (int i = 0; i < 50 && choice < links_.size() && links_[choice].is_slow; ++i) choice = all[below(all.size())];
    if (choice >= links_.size()) return go_on(choice - links_.size());
    const uint64_t count = workers_.size();
    const Item item = links_[choice].items.front();
    links_[choice].items.pop_front();
    const uint64_t w = choice % count;
    const bool had_ended = workers_[w]->end_of_run->has_ended();
    receive(choice / count % count, w, item);
    // The moment at which a worker tells on that the run has ended is the one at which a fault can do most harm.
    const bool has_just_ended = !had_ended && workers_[w]->end_of_run->has_ended();
    if (has_just_ended && faults_to_come_ > 0 && below(8) != 0) happen_to(w);
    // A heartbeat is as many items as there are others, and each step takes one.
    if (below(2 * workers_.size()) == 0) beat(any_worker());
  }

  // Faults. The last worker stays.

  void happen_to(uint64_t w) {
    --faults_to_come_;
    (this->*faults_[below(faults_.size())])(w);
  }
  void die(uint64_t w) {
    if (!vanish(w)) return;
    const bool is_all_written = below(4) == 0;
    for (uint64_t to = 0; to < workers_.size(); ++to) {
      for (const bool is_control : {false, true}) {
        std::deque<Item>& items = link(is_control, w, to).items;
        link(is_control, w, to).is_slow = below(2) == 0;
        if (is_all_written || items.empty()) continue;
        // Often the last item alone: the worker dies while it tells all the same.
        items.resize(below(3) == 0 ? below(items.size()) : items.size() - below(2));
      }
    }
    send_to_others(w, {.what = What::kBroken});
  }
  void abort(uint64_t w) {
    notice(w, named(w, "aborts"));
    for (uint64_t other = 0; other < workers_.size(); ++other) {
      if (workers_[other]->is_here && below(2) == 0) notice(other, named(other, "aborts too"));
    }
  }
  void leave(uint64_t w) {
    if (!vanish(w)) return;
    Worker& worker = *workers_[w];
    worker.has_left = true;
    const std::string& known = worker.end_of_run->reason();
    send_to_others(w, {.what = What::kFrame,
                       .frame = {.kind = Kind::kLeft,
                                 .calls = worker.state.freeze(),
                                 .text = known.empty() ? named(w, "left") : known}});
    for (uint64_t to = 0; to < workers_.size(); ++to) {
      if (link(true, w, to).is_lossy) put(w, to, {.what = What::kNothingMore});
    }
  }
  void stop(uint64_t w) {
    if (vanish(w)) send_to_others(w, {.what = What::kNothingMore});
  }
  void reset(uint64_t w) {
    const uint64_t other = any_worker();
    if (other == w || link(true, w, other).is_lossy) return;
    longest_quiet_ = 25;
    for (const auto& [from, to] : {std::pair(w, other), std::pair(other, w)}) {
      Link& broken = link(true, from, to);
      broken.is_lossy = true;
      // What the other side had not read is lost.
      broken.items.resize(below(broken.items.size() + 1));
      put(from, to, {.what = What::kReset});
    }
  }
  void raise_false_alarm(uint64_t w) {
    const uint64_t other = any_worker();
    if (other != w) lose(w, other, Gone::kUnreachable, workers_[w]->heard[other], named(other, "seems frozen"));
  }
  bool vanish(uint64_t w) {
    const auto here = std::count_if(workers_.begin(), workers_.end(), [](const auto& one) { return one->is_here; });
    if (here < 2) return false;
    workers_[w]->is_here = false;
    for (uint64_t from = 0; from < workers_.size(); ++from) {
      for (const bool is_control : {false, true}) link(is_control, from, w).items.clear();
    }
    return true;
  }

  std::set<Claim> broken_claims() const {
    std::set<Claim> broken;
    std::vector<RunEnd> ends;
    uint64_t least_taken = UINT64_MAX;
    uint64_t most_returned = 0;
    for (const auto& worker : workers_) {
      const Calls calls = worker->state.calls();
      if (worker->is_here || worker->has_left) most_returned = std::max(most_returned, calls.returned);
      if (!worker->is_here) continue;
      least_taken = std::min(least_taken, calls.taken);
      const std::optional<RunEnd> end = worker->state.end();
      if (end.has_value() == noticed_.empty()) broken.insert(kEnds);
      if (!end && noticed_.empty() && calls.returned != longest_run_) broken.insert(kEnds);
      if (end) ends.push_back(*end);
    }
    for (const RunEnd& end : ends) {
      if (end != ends[0]) broken.insert(kAgrees);
      if (!noticed_.contains(end.reason)) broken.insert(kTrueReason);
      if (end.calls > least_taken) broken.insert(kOnlyTaken);
      if (end.calls < most_returned) broken.insert(kAllReturned);
    }
    return broken;
  }

  static std::string named(uint64_t w, const char* what) { return std::to_string(w) + " " + what; }
  uint64_t below(uint64_t bound) { return random_() % bound; }
  uint64_t any_worker() {
    while (true) {
      const uint64_t w = below(workers_.size());
      if (workers_[w]->is_here) return w;
    }
  }

  std::mt19937_64 random_;
  std::vector<void (Simulation::*)(uint64_t)> faults_;
  bool is_in_rounds_ = false;  // records, "taken" and heartbeats, as where there are many workers
  uint64_t longest_run_ = 0;
  uint64_t faults_to_come_ = 0;
  uint64_t steps_between_faults_ = 1;
  int quiet_rounds_ = 0;
  int longest_quiet_ = 0;    // so many rounds of heartbeats bring all that can come
  std::vector<Link> links_;  // for data, then for control; by the worker that sends, then by the one that receives
  std::vector<std::unique_ptr<Worker>> workers_;
  std::set<std::string> noticed_;
};

}  // namespace lockstep::internal
