#include "lockstep/optim/rule_agreement.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "lockstep/comm/agreement.h"
#include "lockstep/core/bytes.h"
#include "lockstep/core/error.h"
#include "lockstep/replica/replica_group.h"

namespace lockstep::internal::inline optim {

namespace {

/// By worker: the digests that each has sent, `count` of them.
std::vector<std::vector<uint64_t>> digests_in(const std::vector<Proposal>& all, std::size_t count) {
  std::vector<std::vector<uint64_t>> sent;
  for (const Proposal& one : all) {
    MessageReader reader(one.data, static_cast<int64_t>(sent.size()), "digests of new values");
    sent.push_back(reader.get_rest<uint64_t>());
    reader.expect(sent.back().size() == count);
  }
  return sent;
}

/// Of the values of one variable, or of all, whose digests all workers have sent: those workers that have others than
/// worker 0.
std::vector<int64_t> workers_with_others(const Form& form, std::span<const uint64_t> digest_of_worker) {
  // Workers that compute together have a part of the values each.
  std::vector<uint64_t> of_computation(static_cast<std::size_t>(form.num_computations()), 0);
  const auto computation_of = [&](std::size_t worker) {
    return static_cast<std::size_t>(form.computation_of(static_cast<int64_t>(worker)));
  };
  for (std::size_t w = 0; w < digest_of_worker.size(); ++w) of_computation[computation_of(w)] += digest_of_worker[w];
  std::vector<int64_t> others;
  for (std::size_t w = 0; w < digest_of_worker.size(); ++w) {
    if (of_computation[computation_of(w)] != of_computation[computation_of(0)])
      others.push_back(static_cast<int64_t>(w));
  }
  return others;
}

[[noreturn]] void throw_rules_differ(const UpdateWork& work, const Form& form, const std::vector<int64_t>& workers) {
  ReplicaGroup& group = *work.group;
  const FusedUpdate& update = work.parts.front().update;
  std::vector<uint64_t> mine;  // by variable
  for (std::size_t i = 0; i < work.variables.size(); ++i) mine.push_back(update.digest_of_rule(i));
  const auto all = agree_on_call(group.rounds(), {.call = "rules that differ", .name = work.name, .step = group.step()},
                                 [&](Proposal& proposal) { ByteWriter(proposal.data).put_all(mine); });
  const auto sent = digests_in(all, work.variables.size());
  std::string values = "values";
  std::vector<int64_t> others = workers;
  for (std::size_t i = 0; i < work.variables.size(); ++i) {
    std::vector<uint64_t> digests;
    for (const auto& of_worker : sent) digests.push_back(of_worker[i]);
    const auto found = workers_with_others(form, digests);
    if (found.empty()) continue;
    values = fmt::format("values of '{}', by rule '{}',", work.variables[i]->name(), work.targets[i].own_rule->name());
    others = found;
    break;
  }
  throw DivergenceError(
      "LS-RULE-DIFFERS",
      fmt::format("step {}: '{}' got other new {} on worker{} {} than on worker 0, from the same input; the step was "
                  "not applied",
                  group.step(), work.name, values, others.size() == 1 ? "" : "s", fmt::join(others, ", ")),
      "make UpdateRule::update a function of its input: keep state in slots, draw nothing at random, and depend on "
      "nothing of one worker or host");
}

}  // namespace

void agree_on_rules(const UpdateWork& work, const Form& form) {
  ReplicaGroup& group = *work.group;
  const bool compares = form.num_computations() > 1;
  const auto fill_in = [&](Proposal& mine) {
    for (const UpdatePart& part : work.parts) part.update.require_rules();
    if (compares) ByteWriter(mine.data).put(work.parts.front().update.digest_of_rules());
  };
  const auto all =
      agree_on_call(group.rounds(), {.call = "rules of an update", .name = work.name, .step = group.step()}, fill_in);
  if (!compares) return;
  std::vector<uint64_t> digests;  // by worker
  for (const auto& sent : digests_in(all, 1)) digests.push_back(sent.front());
  if (const auto workers = workers_with_others(form, digests); !workers.empty()) {
    throw_rules_differ(work, form, workers);
  }
}

}  // namespace lockstep::internal::optim
