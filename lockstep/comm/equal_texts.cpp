#include "lockstep/comm/equal_texts.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "lockstep/comm/rounds.h"
#include "lockstep/core/bytes.h"
#include "lockstep/core/counted.h"
#include "lockstep/core/digest.h"
#include "lockstep/core/error.h"

namespace lockstep::internal::inline comm {

namespace {

std::string digests_of(std::span<const std::string> texts) {
  std::string bytes;
  for (const std::string& text : texts) {
    ByteWriter(bytes).put(Digest().with(text).value());
  }
  return bytes;
}

/// Whether all have sent the same digest at this place, or all none.
bool are_equal_at(std::span<const std::vector<uint64_t>> all, std::size_t at) {
  const auto is_like_first = [&](const std::vector<uint64_t>& one) {
    if (at >= one.size() || at >= all.front().size()) return one.size() == all.front().size();
    return one[at] == all.front()[at];
  };
  return std::all_of(all.begin(), all.end(), is_like_first);
}

}  // namespace

std::string text_of_workers(std::span<const int64_t> workers) {
  constexpr std::size_t kShown = 6;
  if (workers.size() == 1) return fmt::format("worker {}", workers.front());
  if (workers.back() - workers.front() == static_cast<int64_t>(workers.size()) - 1) {
    return fmt::format("workers {} to {}", workers.front(), workers.back());
  }
  const bool is_cut = workers.size() > kShown;
  const std::size_t shown = is_cut ? kShown : workers.size() - 1;
  return fmt::format("workers {} and {}", fmt::join(workers.first(shown), ", "),
                     is_cut ? fmt::format("{} more", workers.size() - shown) : fmt::to_string(workers.back()));
}

std::string text_of_sides(std::span<const std::string> by_worker, const std::string& preposition) {
  constexpr std::size_t kMostSides = 4;
  std::vector<std::pair<std::string, std::vector<int64_t>>> sides;
  int64_t others = 0;
  for (std::size_t w = 0; w < by_worker.size(); ++w) {
    auto side = std::find_if(sides.begin(), sides.end(), [&](const auto& one) { return one.first == by_worker[w]; });
    if (side == sides.end() && sides.size() == kMostSides) {
      ++others;
      continue;
    }
    if (side == sides.end()) side = sides.insert(sides.end(), {by_worker[w], {}});
    side->second.push_back(static_cast<int64_t>(w));
  }
  std::string text;
  for (std::size_t i = 0; i < sides.size(); ++i) {
    const bool is_last = i + 1 == sides.size() && others == 0;
    text += fmt::format("{}{} {} {}",
                        i == 0    ? ""
                        : is_last ? ", and "
                                  : ", ",
                        sides[i].first, preposition, text_of_workers(sides[i].second));
  }
  return others == 0 ? text : fmt::format("{}, and others {} {}", text, preposition, counted(others, "more worker"));
}

void require_equal_texts(Rounds& rounds, const Proposal& call, std::span<const std::string> texts,
                         const std::string& subject, const std::string& thing, const std::string& remedy) {
  if (rounds.num_workers() == 1) return;
  std::vector<std::vector<uint64_t>> all;
  std::size_t longest = 0;
  for (const Proposal& one : agree_on_call(rounds, call, [&](Proposal& mine) { mine.data = digests_of(texts); })) {
    MessageReader reader(one.data, static_cast<int64_t>(all.size()), "digests of texts");
    all.push_back(reader.get_rest<uint64_t>());
    longest = std::max(longest, all.back().size());
  }
  // Every worker reads the same proposals, so every worker finds the same place.
  std::size_t first = 0;
  while (first < longest && are_equal_at(all, first)) ++first;
  if (first == longest) return;
  int64_t differing = 0;
  for (std::size_t at = first; at < longest; ++at) differing += are_equal_at(all, at) ? 0 : 1;
  const std::string own = first < texts.size() ? texts[first] : fmt::format("no further {}", thing);
  std::vector<std::string> said;
  for (Proposal& one :
       agree_on_call(rounds, call, [&](Proposal& mine) { mine.data = own.substr(0, kLongestDetail); })) {
    said.push_back(std::move(one.data));
  }
  const std::string more = differing == 1 ? "" : fmt::format("; {} differ", counted(differing, thing));
  throw UsageError(
      "LS-WORKER-ORDER",
      fmt::format("{} differs between workers: {} {} is {}{}", subject, thing, first, text_of_sides(said, "on"), more),
      remedy);
}

}  // namespace lockstep::internal::comm
