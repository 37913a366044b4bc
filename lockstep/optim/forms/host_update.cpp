#include "lockstep/optim/forms/host_update.h"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <exception>
#include <string_view>
#include <utility>

#include "lockstep/comm/agreement.h"
#include "lockstep/comm/host_memory.h"
#include "lockstep/core/bytes.h"
#include "lockstep/core/digest.h"
#include "lockstep/core/error.h"
#include "lockstep/core/loops/checksum.h"
#include "lockstep/core/loops/simd.h"
#include "lockstep/core/switches.h"
#include "lockstep/exchange/row.h"
#include "lockstep/optim/forms/compare_values.h"
#include "lockstep/replica/replica_group.h"
#include "lockstep/variable/kinds/mirrored_state.h"

namespace lockstep::internal::inline optim {

namespace {

/// Calls visit(state) for each variable and slot of a target.
template <class Visit>
void for_each_state(const UpdateTarget& target, const Visit& visit) {
  visit(target.variable->as_mirrored());
  for (const auto& slot : target.slots) visit(slot->as_mirrored());
}

/// Why this worker cannot share the update; empty where it can.
std::string obstacle(const ReplicaGroup& group, const std::vector<UpdateTarget>& targets, const AskedForm& asked) {
  if (asked.form == UpdateForm::kSums || asked.form == UpdateForm::kFactors)
    return fmt::format("it is asked for {}", name_of(asked.form));
  // Inside a host nothing would travel and be rounded: results would depend on which workers share a host.
  if (asked.wire != WireFormat::kExact) return fmt::format("sums travel as {}", name_of(asked.wire));
  if (!asked.host_memory) return "LOCKSTEP_HOST_MEMORY is off";
  if (!group.rounds().host_memory()) return "the workers have no memory in common";
  for (const UpdateTarget& target : targets) {
    const at::ScalarType type = target.variable->number_type();
    if (type != at::kFloat && type != at::kDouble)
      return fmt::format("'{}' is {}", target.variable->name(), c10::toString(type));
    if (target.variable->copies().size() > 1) return fmt::format("'{}' has several copies", target.variable->name());
  }
  return blocks_in(targets) == 0 ? "there is nothing to update" : "";
}

/// What a worker tells the others before they decide.
struct ToldOfForm {
  int32_t lanes = 0;
  int64_t host = 0;           // its host's first worker
  std::string loops = {};     // its set of vector instructions, on which checksums depend
  std::string obstacle = {};  // why it cannot share the update; empty where it can
};

std::string encode(const ToldOfForm& told) {
  std::string bytes;
  ByteWriter to(bytes);
  to.put(told.lanes);
  to.put(told.host);
  to.put_text(told.loops);
  to.put_text(told.obstacle);
  return bytes;
}

ToldOfForm decode_told(std::string_view bytes, int64_t worker, int64_t num_workers) {
  MessageReader reader(bytes, worker, "whether it can share the update");
  ToldOfForm told;
  told.lanes = reader.get<int32_t>();
  told.host = reader.get<int64_t>();
  reader.expect(told.lanes > 0 && told.host >= 0 && told.host < num_workers);
  told.loops = reader.get_text();
  told.obstacle = reader.get_text();
  reader.expect_end();
  return told;
}

/// Why the workers do not share the update, by what all of them told; empty where they do. This is the one function
/// that decides.
std::string why_not_shared(const std::vector<ToldOfForm>& all, const Hosts& hosts, UpdateForm asked) {
  for (std::size_t w = 0; w < all.size(); ++w) {
    const int64_t first = hosts.workers_of(hosts.host_of(static_cast<int64_t>(w))).front();
    std::string why = all[w].obstacle;
    if (why.empty() && all[w].loops != all[static_cast<std::size_t>(first)].loops)
      why = fmt::format("it has other vector instructions than worker {} of its host", first);
    if (!why.empty()) return fmt::format("on worker {} {}", w, why);
  }
  if (hosts.count() == 1) return {};
  if (hosts.count() == hosts.num_workers()) return "no two workers share a host";
  // Where most hosts have one worker, little is saved, and all would lose what overlaps with backward.
  if (asked == UpdateForm::kAuto && 2 * hosts.count() > hosts.num_workers())
    return fmt::format("{} workers are on {} hosts, fewer than two on each", hosts.num_workers(), hosts.count());
  return {};
}

// What a worker says of a value as a step begins.
constexpr char kInHalves = 'h';  // it lies in the memory of its host
constexpr char kOut = 'o';       // in the worker's own memory

/// Lays out pieces one after another.
class Layout {
 public:
  int64_t place(int64_t bytes) { return std::exchange(bytes_, bytes_ + aligned(bytes)); }
  std::size_t bytes() const { return static_cast<std::size_t>(bytes_); }

 private:
  int64_t bytes_ = 0;
};

/// The halves of one variable or slot within a piece of memory.
struct Places {
  MirroredState* state;
  std::array<int64_t, 2> values;
  std::array<int64_t, 2> checksums;
};

Places place(Layout& layout, MirroredState& state) {
  Places places{&state, {}, {}};
  for (int64_t& one : places.values) one = layout.place(state.bytes());
  if (state.is_slot()) return places;
  for (int64_t& one : places.checksums)
    one = layout.place(blocks_of(state.bytes()) * static_cast<int64_t>(sizeof(uint64_t)));
  return places;
}

void give(const Places& places, const std::shared_ptr<std::byte>& memory, const std::vector<int64_t>& replicas) {
  std::array<HostHalves::Half, 2> halves;
  for (std::size_t h = 0; h < halves.size(); ++h) {
    halves[h].values = memory.get() + places.values[h];
    if (!places.state->is_slot()) halves[h].checksums = reinterpret_cast<uint64_t*>(memory.get() + places.checksums[h]);
  }
  places.state->give_halves(c10::make_intrusive<HostHalves>(memory, halves, replicas));
}

}  // namespace

std::unique_ptr<HostUpdate> HostUpdate::agree(const ReplicaGroup& group, const std::vector<UpdateTarget>& targets,
                                              const std::string& name, const AskedForm& asked, std::string& why_not) {
  const auto fill_in = [&](Proposal& mine) {
    mine.signature = static_cast<uint64_t>(asked.form);
    mine.detail = fmt::format("the form of '{}', which is asked for {}", name, name_of(asked.form));
    HostMemory* const memory = group.rounds().host_memory();
    const std::vector<int64_t> workers = memory ? memory->workers() : std::vector<int64_t>();
    mine.data = encode({.lanes = group.plan().num_lanes(),
                        .host = workers.empty() ? 0 : workers.front(),
                        .loops = name_of(simd()),
                        .obstacle = obstacle(group, targets, asked)});
  };
  std::vector<ToldOfForm> all;
  std::vector<int64_t> host_ids;
  for (const Proposal& one :
       agree_on_call(group.rounds(), {.call = "the form of an update", .name = name, .step = group.step()}, fill_in)) {
    all.push_back(decode_told(one.data, static_cast<int64_t>(all.size()), group.num_workers()));
    host_ids.push_back(all.back().host);
  }
  const Hosts hosts(host_ids);
  why_not = why_not_shared(all, hosts, asked.form);
  if (!why_not.empty()) {
    asked.require_no_host_memory(name, why_not);
    return nullptr;
  }
  LaneRange lanes{0, 0, 0};
  const int64_t self = group.rounds().worker_index();
  for (const int64_t w : hosts.workers_of(hosts.host_of(self))) {
    const int count = all[static_cast<std::size_t>(w)].lanes;
    if (w == self) {
      lanes.first = lanes.all;
      lanes.count = count;
    }
    lanes.all += count;
  }
  return std::unique_ptr<HostUpdate>(new HostUpdate(group, targets, name, hosts, lanes));
}

HostUpdate::HostUpdate(const ReplicaGroup& group, const std::vector<UpdateTarget>& targets, std::string name,
                       Hosts hosts, LaneRange lanes)
    : group_(group),
      targets_(targets),
      name_(std::move(name)),
      hosts_(std::move(hosts)),
      lanes_(lanes),
      gradients_(variables_of(targets), group, hosts_) {
  make_room();
}

void HostUpdate::make_room() {
  Layout of_variables;
  Layout of_slots;
  std::vector<Places> variables;
  std::vector<Places> slots;
  const int64_t blocks = blocks_in(targets_);
  const int64_t squares = of_slots.place(blocks * static_cast<int64_t>(sizeof(double)));
  for (const UpdateTarget& target : targets_) {
    // Another optimizer of the same variable has given it its halves.
    MirroredState& variable = target.variable->as_mirrored();
    if (!variable.has_halves()) variables.push_back(place(of_variables, variable));
    for (const auto& slot : target.slots) slots.push_back(place(of_slots, slot->as_mirrored()));
  }
  std::shared_ptr<std::byte> memory;
  // A worker that had made another call of the memory would get another piece of it.
  const uint64_t place =
      Digest().with(group_.rounds().host_memory()->calls()).with(of_variables.bytes()).with(of_slots.bytes()).value();
  const Proposal call{
      .call = "memory of an update", .name = name_, .signature = place, .step = group_.step(), .detail = "its memory"};
  agree_on_call(group_.rounds(), call, [&](Proposal&) {
    // Both calls are made, also where the first fails: all workers count the same.
    std::exception_ptr failed;
    const auto allocate = [&](std::size_t bytes) -> std::shared_ptr<std::byte> {
      try {
        return group_.rounds().host_memory()->allocate(bytes);
      } catch (...) {
        if (!failed) failed = std::current_exception();
        return nullptr;
      }
    };
    if (!variables.empty()) memory = allocate(of_variables.bytes());
    slots_memory_ = allocate(of_slots.bytes());
    if (failed) std::rethrow_exception(failed);
    for (const auto* all : {&variables, &slots}) {
      for (const Places& one : *all) {
        if (one.state->can_move_to_halves()) continue;
        const at::Tensor& now = one.state->copies().front();
        one.state->bind({at::empty_strided(now.sizes(), now.strides(), now.options())});
      }
    }
  });
  const std::vector<int64_t> replicas =
      hosts_.replicas(hosts_.host_of(group_.rounds().worker_index()), group_.num_replicas());
  for (const Places& one : variables) give(one, memory, replicas);
  for (const Places& one : slots) give(one, slots_memory_, replicas);
  squares_ = {reinterpret_cast<double*>(slots_memory_.get() + squares), static_cast<std::size_t>(blocks)};
}

void HostUpdate::begin_step(const std::vector<char>& present) {
  // Where a value has left the memory of a host on one worker, it leaves it on every worker.
  std::vector<MirroredState*> states;
  for (std::size_t i = 0; i < targets_.size(); ++i) {
    if (present[i]) for_each_state(targets_[i], [&](MirroredState& one) { states.push_back(&one); });
  }
  const auto fill_in = [&](Proposal& mine) {
    for (const MirroredState* one : states) mine.data.push_back(one->is_in_halves() ? kInHalves : kOut);
  };
  const auto all =
      agree_on_call(group_.rounds(), {.call = "places of an update", .name = name_, .step = group_.step()}, fill_in);
  bool all_in_halves = true;
  for (std::size_t i = 0; i < states.size(); ++i) {
    const bool is_out = std::any_of(
        all.begin(), all.end(), [&](const Proposal& one) { return i >= one.data.size() || one.data[i] != kInHalves; });
    if (!is_out) continue;
    states[i]->leave_halves();
    all_in_halves = false;
  }
  if (all_in_halves) return;
  // Each worker reads only its blocks of the values of this step: what the others have must be the same.
  std::erase_if(states, [](const MirroredState* one) { return one->is_in_halves(); });
  compare_values(group_, name_, states);
}

void HostUpdate::vote(FusedUpdate& update) const {
  const auto fill_in = [&](Proposal& mine) {
    for (const auto& [target, copy] : update.take_foreign_writes())
      ByteWriter(mine.data).put(static_cast<uint64_t>(target));
  };
  const auto all = agree_on_call(group_.rounds(),
                                 {.call = "new values of an update", .name = name_, .step = group_.step()}, fill_in);
  std::size_t first = targets_.size();
  for (std::size_t w = 0; w < all.size(); ++w) {
    MessageReader reader(all[w].data, static_cast<int64_t>(w), "which variables were written");
    while (!reader.at_end()) {
      const auto number = reader.get<uint64_t>();
      reader.expect(number < targets_.size());
      const int64_t host = hosts_.host_of(static_cast<int64_t>(w));
      targets_[number].variable->as_mirrored().damaged_in_memory_of(hosts_.replicas(host, group_.num_replicas()));
      first = std::min<std::size_t>(first, number);
    }
  }
  if (first < targets_.size()) targets_[first].variable->require_sound();  // throws
}

void HostUpdate::move(const FusedUpdate& update, int lane, int num_lanes) const noexcept {
  for (auto i = static_cast<std::size_t>(lane); i < targets_.size(); i += static_cast<std::size_t>(num_lanes)) {
    if (update.present(i)) for_each_state(targets_[i], [](MirroredState& one) { one.move_to_next_half(); });
  }
}

}  // namespace lockstep::internal::optim
