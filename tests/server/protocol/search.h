// Searches over what can happen to a Cluster: all orders of events, breadth first, or many that are drawn.
#pragma once

#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "lockstep/core/error.h"
#include "tests/server/protocol/cluster_moves.h"

namespace lockstep::internal::inline server {

struct Found {
  std::string wrong = {};              // empty: all promises hold
  std::vector<std::string> path = {};  // the shortest way to it, or a drawn one
  uint64_t states = 0;
  uint64_t moves = 0;
  uint64_t ends = 0;
  bool is_complete = true;  // false: stopped at the limit

  std::string text() const {
    std::string text = wrong + ", " + std::to_string(states) + " states, " + std::to_string(moves) + " moves, " +
                       std::to_string(ends) + " ends" + (is_complete ? "" : ", stopped");
    for (const std::string& one : path) text += "\n  " + one;
    return text;
  }
};

/// All states that were seen, each in a few words of one array.
class SeenStates {
 public:
  std::size_t size() const { return begins_.size() - 1; }

  /// True where the state is new.
  bool add(const State& state) {
    const std::size_t begin = words_.size();
    pack(state);
    if (2 * begins_.size() > table_.size()) grow();
    std::size_t at = hash(begin, words_.size()) & (table_.size() - 1);
    while (table_[at] != 0) {
      const std::size_t other = table_[at] - 1;
      if (std::equal(words_.begin() + static_cast<std::ptrdiff_t>(begins_[other]),
                     words_.begin() + static_cast<std::ptrdiff_t>(begins_[other + 1]),
                     words_.begin() + static_cast<std::ptrdiff_t>(begin), words_.end())) {
        words_.resize(begin);
        return false;
      }
      at = (at + 1) & (table_.size() - 1);
    }
    begins_.push_back(words_.size());
    table_[at] = static_cast<uint32_t>(begins_.size() - 1);
    return true;
  }

  State operator[](std::size_t number) const {
    const uint32_t* word = &words_[begins_[number]];
    State state{.chief = *word++};
    for (uint32_t& server : state.servers) server = *word++;
    state.disk = *word++;
    for (uint8_t& left : state.left) left = static_cast<uint8_t>(*word++);
    state.processes.assign(word + 1, word + 1 + *word);
    word += 1 + *word;
    state.net.assign(word, &words_[0] + begins_[number + 1]);
    return state;
  }

 private:
  void pack(const State& state) {
    words_.push_back(state.chief);
    words_.insert(words_.end(), state.servers.begin(), state.servers.end());
    words_.push_back(state.disk);
    words_.insert(words_.end(), state.left.begin(), state.left.end());
    words_.push_back(static_cast<uint32_t>(state.processes.size()));
    words_.insert(words_.end(), state.processes.begin(), state.processes.end());
    words_.insert(words_.end(), state.net.begin(), state.net.end());
  }
  std::size_t hash(std::size_t begin, std::size_t end) const {
    uint64_t hash = 0x9e3779b97f4a7c15;
    for (std::size_t at = begin; at < end; ++at) {
      hash = (hash ^ words_[at]) * 0xff51afd7ed558ccd;
      hash ^= hash >> 32;
    }
    return hash;
  }
  void grow() {
    table_.assign(std::max<std::size_t>(1 << 16, 2 * table_.size()), 0);
    for (std::size_t number = 0; number < size(); ++number) {
      std::size_t at = hash(begins_[number], begins_[number + 1]) & (table_.size() - 1);
      while (table_[at] != 0) at = (at + 1) & (table_.size() - 1);
      table_[at] = static_cast<uint32_t>(number + 1);
    }
  }

  std::vector<uint32_t> words_;
  std::vector<std::size_t> begins_{0};
  std::vector<uint32_t> table_;  // number of a state + 1, or 0
};

/// Goes through all states that can be reached, at most `limit` of them.
inline Found explore(const Setup& setup, std::size_t limit = 20'000'000) {
  Cluster cluster(setup);
  SeenStates seen;
  struct From {
    uint32_t state = 0;
    Move move = {};
  };
  std::vector<From> from{{}};
  Found found;
  seen.add(cluster.first());
  std::size_t at = 0;
  Move move;
  bool is_moving = false;
  try {
    for (; at < seen.size() && seen.size() < limit; ++at) {
      const State state = seen[at];
      is_moving = false;
      cluster.check(state);
      const bool is_finished = cluster.is_finished(state);
      if (is_finished) {
        ++found.ends;
        cluster.check_end(state);
      }
      bool goes_on = false;
      for (const Move& one : cluster.moves(state)) {
        move = one;
        is_moving = true;
        const auto next = cluster.after(state, one);
        if (!next) continue;
        ++found.moves;
        goes_on |= one.must;
        if (seen.add(*next)) from.push_back({.state = static_cast<uint32_t>(at), .move = one});
      }
      is_moving = false;
      if (!is_finished && !goes_on) throw Wrong{"nothing must happen any more, but the work is not done"};
    }
    found.is_complete = at == seen.size();
  } catch (const Wrong& wrong) {
    found.wrong = wrong.what;
  } catch (const InternalError& error) {
    found.wrong = error.what();
  }
  found.states = seen.size();
  if (!found.wrong.empty()) {
    if (is_moving) found.path.push_back(cluster.describe(seen[at], move));
    for (; at > 0; at = from[at].state) {
      found.path.insert(found.path.begin(), cluster.describe(seen[from[at].state], from[at].move));
    }
  }
  return found;
}

/// Makes drawn moves from the beginning to an end, `walks` times.
inline Found walk(const Setup& setup, int walks, uint64_t seed) {
  std::mt19937_64 draw(seed);
  Found found;
  Cluster cluster(setup);
  for (int k = 0; k < walks; ++k) {
    if (k % 200 == 199) cluster = Cluster(setup);  // its memory grows with what it has seen
    found.path.clear();
    try {
      State state = cluster.first();
      // Some walks are slow to do what must happen, others quick.
      const auto chance = std::array<uint64_t, 3>{2, 10, 40}[draw() % 3];
      for (int length = 0; length < 5000; ++length) {
        ++found.states;
        cluster.check(state);
        const bool is_finished = cluster.is_finished(state);
        if (is_finished) cluster.check_end(state);
        if (is_finished && draw() % 4 == 0) break;
        std::vector<Move> moves = cluster.moves(state);
        std::optional<State> next;
        bool has_must = false;
        while (!next && !moves.empty()) {
          std::size_t at = draw() % moves.size();
          if (!moves[at].must && draw() % chance != 0) at = draw() % moves.size();
          const Move move = moves[at];
          moves[at] = moves.back();
          moves.pop_back();
          found.path.push_back(cluster.describe(state, move));
          next = cluster.after(state, move);
          if (!next) found.path.pop_back();
          if (next && !move.must && !is_finished) {
            // Nothing may stand still just because something need not happen.
            for (const Move& other : moves) {
              if (has_must) break;
              has_must = other.must && cluster.after(state, other);
            }
            if (!has_must) throw Wrong{"nothing must happen any more, but the work is not done"};
          }
        }
        if (!next && !is_finished) throw Wrong{"nothing can happen any more, but the work is not done"};
        if (!next) break;
        ++found.moves;
        state = std::move(*next);
      }
      ++found.ends;
    } catch (const Wrong& wrong) {
      found.wrong = wrong.what;
      return found;
    } catch (const InternalError& error) {
      found.wrong = error.what();
      return found;
    }
  }
  found.path.clear();
  return found;
}

}  // namespace lockstep::internal::server
