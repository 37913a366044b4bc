// The chief's log: entries by position, and how much of it each server was sent and has read.
#pragma once

#include <algorithm>
#include <cstdint>
#include <deque>
#include <optional>
#include <utility>
#include <vector>

#include "lockstep/server/protocol/messages.h"

namespace lockstep::internal::inline server {

/// Keeps the entries that a server may still need.
class EntryLog {
 public:
  EntryLog(std::size_t num_servers, Position begin)
      : first_(begin), sent_(num_servers, begin), read_(num_servers, begin) {}

  /// The position behind the last entry.
  Position end() const { return first_ + entries_.size(); }
  /// Returns the position that has seen the entry.
  Position append(LogEntry entry) {
    entries_.push_back(std::move(entry));
    return end();
  }

  /// The server has read so far. Entries that all have read are dropped.
  void note_read(std::size_t server, Position position) {
    if (position <= read_[server] || position > end()) return;
    read_[server] = position;
    sent_[server] = std::max(sent_[server], position);
    const Position least = *std::min_element(read_.begin(), read_.end());
    while (first_ < least) {
      entries_.pop_front();
      ++first_;
    }
  }
  /// How far the slowest server is behind, as far as is known here.
  Position most_behind() const { return read_.empty() ? 0 : end() - *std::min_element(read_.begin(), read_.end()); }
  /// All that the server has not read is sent again.
  void send_again(std::size_t server) { sent_[server] = read_[server]; }

  /// The entries up to the end that the server was not sent yet, which are sent now. Nothing while it has not read
  /// `eager` of those that it was sent: what comes meanwhile goes together when it has.
  std::optional<LogEntries> next_for(std::size_t server, uint64_t eager) {
    if (sent_[server] == end() || sent_[server] - read_[server] >= eager) return std::nullopt;
    LogEntries next{.first = sent_[server]};
    next.entries.assign(entries_.begin() + static_cast<std::ptrdiff_t>(next.first - first_), entries_.end());
    sent_[server] = end();
    return next;
  }
  const std::deque<LogEntry>& kept() const { return entries_; }

  auto operator<=>(const EntryLog&) const = default;

 private:
  Position first_;  // of the entries that are kept
  std::deque<LogEntry> entries_;
  std::vector<Position> sent_;  // by server
  std::vector<Position> read_;
};

}  // namespace lockstep::internal::server
