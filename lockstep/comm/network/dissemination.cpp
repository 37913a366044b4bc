#include "lockstep/comm/network/dissemination.h"

#include <algorithm>
#include <bit>
#include <utility>

#include "lockstep/core/bytes.h"

namespace lockstep::internal::inline comm {

namespace {

/// In front of each run of a message: how many workers have the record, and its bytes.
constexpr uint64_t kHeadOfRun = 2 * sizeof(uint64_t);

}  // namespace

int Dissemination::num_rounds() const { return std::bit_width(static_cast<uint64_t>(workers_ - 1)); }

int64_t Dissemination::count(int round) const { return std::min(distance(round), workers_ - distance(round)); }

std::vector<int64_t> Dissemination::partners() const {
  std::vector<int64_t> all;
  for (int round = 0; round < num_rounds(); ++round) {
    all.push_back(to(round));
    all.push_back(from(round));
  }
  std::sort(all.begin(), all.end());
  all.erase(std::unique(all.begin(), all.end()), all.end());
  return all;
}

std::vector<int64_t> children_in_tree(int64_t workers, int64_t self) {
  std::vector<int64_t> children;
  const int64_t nearest = self == 0 ? 1 : 2 * (self - parent_in_tree(self));
  for (int64_t bit = nearest; self + bit < workers; bit *= 2) children.push_back(self + bit);
  return children;
}

int64_t parent_in_tree(int64_t self) {
  return self - static_cast<int64_t>(std::bit_floor(static_cast<uint64_t>(self)));
}

GatheredRecords::GatheredRecords(int64_t workers, int64_t self, std::string mine) : workers_(workers), self_(self) {
  runs_.push_back({.count = 1, .record = std::move(mine)});
}

void GatheredRecords::append(int64_t count, std::string_view record) {
  if (!runs_.empty() && runs_.back().record == record) {
    runs_.back().count += count;
  } else {
    runs_.push_back({.count = count, .record = std::string(record)});
  }
}

std::string GatheredRecords::message(int64_t count) const {
  std::string bytes;
  for (const Run& run : runs_) {
    if (count == 0) break;
    const int64_t of_run = std::min(run.count, count);
    count -= of_run;
    ByteWriter(bytes).put(static_cast<uint64_t>(of_run));
    ByteWriter(bytes).put_text(run.record);
  }
  return bytes;
}

bool GatheredRecords::add(std::string_view message, int64_t count) {
  auto left = static_cast<uint64_t>(count);
  ByteReader reader(message);
  while (left > 0) {
    uint64_t of_run = 0;
    std::string_view record;
    if (!reader.get(of_run) || of_run == 0 || of_run > left || !reader.get_text(record)) return false;
    append(static_cast<int64_t>(of_run), record);
    left -= of_run;
  }
  return reader.at_end();
}

std::vector<std::string> GatheredRecords::by_worker() const {
  std::vector<std::string> all(static_cast<std::size_t>(workers_));
  auto w = static_cast<std::size_t>(self_);
  for (const Run& run : runs_) {
    for (int64_t i = 0; i < run.count; ++i) {
      all[w] = run.record;
      w = w + 1 == all.size() ? 0 : w + 1;
    }
  }
  return all;
}

uint64_t GatheredRecords::longest_message(int64_t count, uint64_t longest) {
  return static_cast<uint64_t>(count) * (kHeadOfRun + longest);
}

}  // namespace lockstep::internal::comm
