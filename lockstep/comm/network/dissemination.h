// How many workers tell each other their records without a message from each to each other one.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace lockstep::internal::inline comm {

/// Up to so many workers each send their record to each other one. That is one hop, and takes about as long as the
/// rounds would (docs/scaling.md).
inline constexpr int64_t kMostDirect = 16;

/// The rounds in which W workers gather what each of them has, in a ring: in round k a worker sends what it has to the
/// one that is 2^k places before it, and gets as much from the one 2^k places behind it. After ceil(log2 W) rounds each
/// has everything, for any W (Bruck et al., "Efficient algorithms for all-to-all communications in multiport
/// message-passing systems", 1997). Without contents it is the dissemination barrier of Hensgen, Finkel and Manber
/// ("Two algorithms for barrier synchronization", 1988). No worker has more to do than another one.
class Dissemination {
 public:
  Dissemination(int64_t workers, int64_t self) : workers_(workers), self_(self) {}

  int num_rounds() const;
  /// To whom this worker sends in a round, and from whom it gets. In all rounds of one gathering there is at most one
  /// message from a worker to another one.
  int64_t to(int round) const { return (self_ + workers_ - distance(round)) % workers_; }
  int64_t from(int round) const { return (self_ + distance(round)) % workers_; }
  /// The records of how many workers a message of the round has: they begin with the sender's.
  int64_t count(int round) const;
  /// All of to() and from(), once each and in their order.
  std::vector<int64_t> partners() const;

 private:
  static int64_t distance(int round) { return int64_t{1} << round; }

  const int64_t workers_;
  const int64_t self_;
};

/// The binomial tree in which worker 0 tells all others something: to whom a worker tells it on, and from whom it hears
/// it (not for worker 0). Nobody tells it more than log2 W others.
std::vector<int64_t> children_in_tree(int64_t workers, int64_t self);
int64_t parent_in_tree(int64_t self);

/// What a worker has gathered so far: the records of workers that follow each other in the ring, from its own on. Equal
/// records in a row are kept, and sent, once.
class GatheredRecords {
 public:
  GatheredRecords(int64_t workers, int64_t self, std::string mine);

  /// The records of the first `count` workers, as one message. There are so many.
  std::string message(int64_t count) const;
  /// A message of `count` workers came, whose records follow. False where the bytes are none that message() makes.
  bool add(std::string_view message, int64_t count);
  /// By worker, when all are here.
  std::vector<std::string> by_worker() const;

  /// No message of so many workers is longer, where each record has at most `longest` bytes.
  static uint64_t longest_message(int64_t count, uint64_t longest);

 private:
  struct Run {
    int64_t count = 0;  // how many workers in a row have it
    std::string record;
  };
  void append(int64_t count, std::string_view record);

  const int64_t workers_;
  const int64_t self_;
  std::vector<Run> runs_;
};

}  // namespace lockstep::internal::comm
