#include "lockstep/comm/agreement.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <exception>
#include <optional>
#include <utility>

#include "lockstep/comm/equal_texts.h"
#include "lockstep/comm/failure/call_note.h"
#include "lockstep/comm/join/this_host.h"
#include "lockstep/comm/rounds.h"
#include "lockstep/core/bytes.h"
#include "lockstep/core/error.h"

namespace lockstep::internal::inline comm {

namespace {

constexpr uint64_t kFormat = 2;

bool same_call(const Proposal& a, const Proposal& b) {
  return a.call == b.call && a.name == b.name && a.signature == b.signature && a.step == b.step;
}

std::string action_of(const Proposal& one) {
  if (one.state == Proposal::State::kEnded) return fmt::format("ended step {}", one.step);
  return fmt::format("came to {}", one.detail.empty() ? one.call : one.detail);
}

/// The same with the place and the step.
std::string whole_action_of(const Proposal& one) {
  if (one.state == Proposal::State::kEnded) return action_of(one);
  const std::string place = one.places.empty() ? "" : " at " + one.places.front();
  return fmt::format("{}{} in step {}", action_of(one), place, one.step);
}

/// The same of calls whose texts are equal and whose arguments are not.
std::string action_with_digest_of(const Proposal& one) {
  return fmt::format("{}, where all of its arguments have the digest {:016x}", whole_action_of(one), one.signature);
}

/// The first arguments in which two long texts of one call differ; empty where they need not be searched for.
std::string first_difference_of(const Proposal& a, const Proposal& b) {
  constexpr std::size_t kShort = 100;  // bytes, in which a reader sees it
  if (a.call != b.call || a.name != b.name || a.detail == b.detail || a.detail.size() < kShort) return "";
  const auto next = [](std::string_view& rest) {
    const std::string_view part = rest.substr(0, rest.find(", "));
    rest.remove_prefix(std::min(rest.size(), part.size() + 2));
    return part;
  };
  std::string_view rest_a = a.detail;
  std::string_view rest_b = b.detail;
  while (!rest_a.empty() || !rest_b.empty()) {
    const std::string_view part_a = next(rest_a);
    const std::string_view part_b = next(rest_b);
    if (part_a != part_b) return fmt::format("; they differ first in '{}' and '{}'", part_a, part_b);
  }
  return "";
}

std::string who_did_what(std::span<const Proposal> proposals) {
  const std::string first = action_of(proposals.front());
  const bool alike = std::all_of(proposals.begin(), proposals.end(), [&](const Proposal& one) {
    return one.state == Proposal::State::kMeets && one.step == proposals.front().step && action_of(one) == first;
  });
  const auto text_of = alike ? action_with_digest_of : whole_action_of;
  struct Side {
    std::string action;
    std::vector<int64_t> workers;
  };
  constexpr std::size_t kMostSides = 4;
  std::vector<Side> sides;
  std::size_t others = 0;
  for (std::size_t w = 0; w < proposals.size(); ++w) {
    const std::string action = text_of(proposals[w]);
    auto side = std::find_if(sides.begin(), sides.end(), [&](const Side& one) { return one.action == action; });
    if (side == sides.end() && sides.size() == kMostSides) {
      ++others;
      continue;
    }
    if (side == sides.end()) side = sides.insert(sides.end(), {action, {}});
    side->workers.push_back(static_cast<int64_t>(w));
  }
  std::string text;
  for (const Side& side : sides) {
    text += fmt::format("{}{} {}", text.empty() ? "" : ", ", text_of_workers(side.workers), side.action);
  }
  if (others > 0) text += fmt::format(", and {} others do otherwise", others);
  if (sides.size() < 2) return text;
  return text + first_difference_of(proposals.front(), proposals[static_cast<std::size_t>(sides[1].workers.front())]);
}

/// What decode() gives. Takes no memory where each text fits into that of `proposal`.
void decode_into(Proposal& proposal, std::string_view bytes, int64_t worker) {
  MessageReader reader(bytes, worker, "what it is about to do");
  reader.expect(reader.get<uint64_t>() == kFormat);
  const auto state = reader.get<uint64_t>();
  reader.expect(state <= static_cast<uint64_t>(Proposal::State::kFailed));
  proposal.state = static_cast<Proposal::State>(state);
  proposal.call = reader.get_text();
  proposal.name = reader.get_text();
  proposal.signature = reader.get<uint64_t>();
  proposal.step = reader.get<int64_t>();
  proposal.replica = reader.get<int64_t>();
  proposal.detail = reader.get_text();
  proposal.places.resize(reader.get_count(sizeof(uint64_t)));
  for (std::string& place : proposal.places) place = reader.get_text();
  proposal.data = reader.get_text();
  reader.expect_end();
}

}  // namespace

std::string encode(const Proposal& proposal) {
  std::string bytes;
  ByteWriter to(bytes);
  to.put(kFormat);
  to.put(static_cast<uint64_t>(proposal.state));
  to.put_text(proposal.call);
  to.put_text(proposal.name);
  to.put(proposal.signature);
  to.put(proposal.step);
  to.put(proposal.replica);
  to.put_text(std::string_view(proposal.detail).substr(0, kLongestDetail));
  to.put(uint64_t{proposal.places.size()});
  for (const std::string& place : proposal.places) to.put_text(place);
  to.put_text(proposal.data);
  return bytes;
}

Proposal decode(std::string_view bytes, int64_t worker) {
  Proposal proposal;
  decode_into(proposal, bytes, worker);
  return proposal;
}

Agreement agreement_of(std::span<const Proposal> proposals) {
  using State = Proposal::State;
  for (std::size_t w = 0; w < proposals.size(); ++w) {
    if (proposals[w].state == State::kFailed) return {Agreement::Outcome::kFailed, static_cast<int64_t>(w), {}};
  }
  const Proposal& first = proposals.front();
  for (const Proposal& other : proposals) {
    const bool alike = other.state == first.state &&
                       (first.state == State::kEnded ? other.step == first.step : same_call(other, first));
    if (!alike) return {Agreement::Outcome::kDiffers, -1, who_did_what(proposals)};
  }
  return {first.state == State::kEnded ? Agreement::Outcome::kEnd : Agreement::Outcome::kGoOn, -1, {}};
}

void require_agreement(std::span<const Proposal> proposals, int64_t worker) {
  const Agreement agreement = agreement_of(proposals);
  if (agreement.outcome == Agreement::Outcome::kDiffers) {
    throw UsageError("LS-WORKER-ORDER", fmt::format("workers do not make the same calls: {}", agreement.who_did_what),
                     "every worker must run the same program: the same calls, in the same order, with the same shapes, "
                     "dtypes and options");
  }
  if (agreement.outcome != Agreement::Outcome::kFailed || agreement.worker == worker) return;
  const Proposal& proposal = proposals[static_cast<std::size_t>(agreement.worker)];
  std::string who = fmt::format("worker {}", agreement.worker);
  if (proposal.replica >= 0) who += fmt::format(", replica {}", proposal.replica);
  PeerError::Failed failed{.worker = agreement.worker,
                           .phase = fmt::format("in step {}", proposal.step),
                           .step = proposal.step,
                           .noticed = PeerError::Noticed::kFailed,
                           .replica = proposal.replica};
  const std::size_t host = proposal.data.find(' ');
  if (host != std::string::npos) {
    const char* const end = proposal.data.data() + host;
    if (std::from_chars(proposal.data.data(), end, failed.process).ptr == end)
      failed.host = proposal.data.substr(host + 1);
  }
  throw PeerError("LS-PEER-FAILED", fmt::format("{} failed in step {}: {}", who, proposal.step, proposal.detail),
                  "correct the error on that worker; after that all workers can go on with the next call",
                  std::move(failed));
}

std::vector<Proposal> propose(Rounds& rounds, const Proposal& mine, const std::exception_ptr& own) {
  auto all = rounds.or_end_run([&] {
    Proposal told = mine;
    if (told.state == Proposal::State::kFailed) told.data = fmt::format("{} {}", getpid(), host_name());
    const std::string record = encode(told);
    // The others mostly say the same, in texts of the same length. Then no memory is needed any more once the records
    // are there, and all workers decide alike: where one could not read a vote, it would not do what all others do.
    std::vector<Proposal> proposals(static_cast<std::size_t>(rounds.num_workers()), told);
    rounds.agree(record, [&](const std::vector<std::string>& records) {
      for (std::size_t w = 0; w < records.size(); ++w) {
        if (w > 0 && records[w] == records[w - 1]) {
          proposals.at(w) = proposals[w - 1];  // of thousands of workers most say the same
        } else {
          decode_into(proposals.at(w), records[w], static_cast<int64_t>(w));
        }
      }
      require_agreement(proposals, rounds.worker_index());
    });
    return proposals;
  });
  if (own) rounds.fail(own);
  return all;
}

std::vector<Proposal> agree_on_call(Rounds& rounds, Proposal mine, FunctionRef<void(Proposal&)> check) {
  const CallNote note(mine.call);  // which no check changes
  std::exception_ptr own;
  try {
    check(mine);
  } catch (...) {
    own = std::current_exception();
  }
  if (rounds.num_workers() == 1) {
    if (own) std::rethrow_exception(own);
    return {std::move(mine)};
  }
  if (own) {
    mine.state = Proposal::State::kFailed;
    try {
      rounds.or_end_run([&] { mine.detail = message_of(own); });
    } catch (...) {
      std::rethrow_exception(own);  // the run has ended for the others
    }
  }
  // Within a step, a save or a restore that phase says more.
  using Kind = WorkerPhase::Kind;
  const Kind now = rounds.phase().kind;
  std::optional<PhaseScope> phase;
  if (now == Kind::kStarting || now == Kind::kBetween)
    phase.emplace(rounds, WorkerPhase{.kind = Kind::kCall, .step = mine.step});
  std::vector<Proposal> all;
  try {
    all = propose(rounds, mine, own);
  } catch (...) {
    if (!own) throw;
  }
  if (own) std::rethrow_exception(own);  // the user's own error says more than what followed from it
  return all;
}

}  // namespace lockstep::internal::comm
