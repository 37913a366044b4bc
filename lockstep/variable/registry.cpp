#include "lockstep/variable/registry.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <c10/core/InferenceMode.h>
#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <string>

#include "lockstep/comm/agreement.h"
#include "lockstep/comm/rounds.h"
#include "lockstep/core/digest.h"
#include "lockstep/core/error.h"
#include "lockstep/replica/pool/compute_settings.h"
#include "lockstep/replica/random_streams.h"
#include "lockstep/replica/replica_group.h"
#include "lockstep/variable/kinds/waiting_values.h"
#include "lockstep/variable/value_digests.h"

namespace lockstep::internal::inline variable {

namespace {

/// The living one of that name, or null.
template <class T>
const T* find_by_name(const std::vector<std::shared_ptr<T>>& all, const std::string& name) {
  const auto found = std::find_if(all.begin(), all.end(), [&](const auto& one) { return one->name() == name; });
  return found == all.end() ? nullptr : found->get();
}

void throw_taken(const char* what, const std::string& name, const std::source_location& here,
                 const std::source_location& there, const char* remedy) {
  throw UsageError("LS-NAME-TAKEN",
                   fmt::format("a second {} named '{}' was asked for at {}; the first one is from {}", what, name,
                               name_of(here), name_of(there)),
                   remedy);
}

/// What names of variables without one begin with.
constexpr const char* kUnnamed = "variable";

}  // namespace

std::string name_of(const std::source_location& place) {
  return place.line() == 0 ? "the library" : fmt::format("{}:{}", place.file_name(), place.line());
}

bool can_be_added(at::ScalarType type) {
  switch (type) {
    case at::kByte:
    case at::kChar:
    case at::kShort:
    case at::kInt:
    case at::kLong:
    case at::kComplexHalf:
    case at::kComplexFloat:
    case at::kComplexDouble: return true;
    default: return is_trainable_type(type);
  }
}

VariableOptions resolved(VariableOptions options, at::ScalarType type) {
  using enum VariableSynchronization;
  using enum VariableAggregation;
  const auto refuse = [&](ErrorCode code, const std::string& what, const char* remedy) {
    throw UsageError(code, fmt::format("variable '{}' of {} was given {}", options.name, c10::toString(type), what),
                     remedy);
  };
  if (options.synchronization == kAuto) options.synchronization = kOnWrite;
  if (options.synchronization != kOnWrite && options.synchronization != kOnRead) {
    refuse("LS-OPTION", fmt::format("synchronization {}", static_cast<int>(options.synchronization)),
           "choose kOnWrite or kOnRead");
  }
  switch (options.aggregation) {
    case kNone:
    case kOnlyFirstReplica: break;
    case kSum:
      if (can_be_added(type)) break;
      refuse("LS-DTYPE", "aggregation kSum", "choose kOnlyFirstReplica, or a dtype that can be added");
      break;
    case kMean:
      if (is_trainable_type(type) && !at::isComplexType(type)) break;
      refuse("LS-DTYPE", "aggregation kMean", "choose kOnlyFirstReplica, or a floating-point dtype of 16 bits or more");
      break;
    default:
      refuse("LS-OPTION", fmt::format("aggregation {}", static_cast<int>(options.aggregation)),
             "choose kNone, kSum, kMean or kOnlyFirstReplica");
  }
  options.trainable = options.trainable && is_trainable_type(type) && options.synchronization == kOnWrite;
  return options;
}

VariableRegistry::VariableRegistry(std::shared_ptr<ReplicaGroup> group, std::shared_ptr<const Placement> placement,
                                   std::shared_ptr<const Synchronization> synchronization)
    : group_(std::move(group)),
      placement_(std::move(placement)),
      synchronization_(std::move(synchronization)),
      buffers_(group_) {}

std::shared_ptr<VariableState> VariableRegistry::make(VariableOptions options, FunctionRef<at::Tensor()> initial,
                                                      const std::source_location& place) {
  add(create(std::move(options), initial, place));
  begin_runs(1);
  return variables_.back();
}

std::shared_ptr<VariableState> VariableRegistry::create(VariableOptions options, FunctionRef<at::Tensor()> initial,
                                                        const std::source_location& place) {
  if (variables_.size() >= forget_at_) {
    forget_unused();
    forget_at_ = 2 * variables_.size() + 1;  // so that making many variables takes time in proportion to their number
  }
  if (options.name.empty()) options.name = fresh_name();
  // The caller's modes and threads decide nothing: a tensor of inference mode could not be trained.
  const ComputeSettingsGuard settings(group_->plan().compute);
  const c10::InferenceMode normal(false);
  const at::NoGradGuard no_grad;
  RandomStream stream;
  stream.restart(StreamKey::of_variable(group_->seed(), options.name));
  VariableState::Origin origin{.place = place};
  std::vector<at::Tensor> components;
  ValueDigests digests(*group_);
  // Where one worker cannot make the variable, none makes it.
  const auto all = agree_on_call(
      group_->rounds(), {.call = "make_variable", .name = options.name, .step = group_->step()}, [&](Proposal& mine) {
        require_fresh_variable(options.name, place);
        at::Tensor value;
        {
          const WorkScope work(group_->rounds(), WorkerPhase::Kind::kFunction, group_->step(), options.limit);
          const DefaultGeneratorGuard callers;
          const RandomScope scope(stream);
          value = initial();
        }
        if (const Misfit found = unsuited(value); !found.fits()) {
          throw UsageError(found.code,
                           fmt::format("variable '{}' was given an initial value that {}", options.name, found.why),
                           "give a dense tensor in the host's memory");
        }
        value = plain(value);
        require_fresh_variable(options.name, place);  // the function may have made one of that name itself
        options = resolved(std::move(options), value.scalar_type());
        components = options.synchronization == VariableSynchronization::kOnWrite
                         ? on_write_components(value, options, origin.devices)
                         : on_read_components(value, options);
        mine.detail = fmt::format("make_variable of '{}', {}, {}{}", options.name, shape_text(value), kind_of(options),
                                  options.trainable ? "" : ", not trainable");
        digests.add(options.name, value);
        digests.fill_in(mine);
        mine.signature = Digest().with(mine.detail).value();
      });
  digests.require_equal(all, "make_variable");
  return make_variable_state(group_, counts_, std::move(options), components, origin);
}

std::vector<at::Tensor> VariableRegistry::on_read_components(const at::Tensor& value,
                                                             const VariableOptions& options) const {
  const bool sum = options.aggregation == VariableAggregation::kSum;
  std::vector<at::Tensor> components;
  for (int64_t r = 0; r < group_->num_local_replicas(); ++r) {
    components.push_back(value.clone(at::MemoryFormat::Contiguous));
    // A sum over replicas reads back what it was given: replica 0, over all workers, holds it.
    if (sum && group_->first_replica() + r > 0) fill_with_additive_identity(components.back());
  }
  return components;
}

std::vector<at::Tensor> VariableRegistry::on_write_components(const at::Tensor& value, const VariableOptions& options,
                                                              std::vector<std::string>& devices) const {
  const NewVariable what{.name = options.name,
                         .sizes = value.sizes(),
                         .dtype = value.scalar_type(),
                         .trainable = options.trainable,
                         .index = num_placed_};
  std::vector<at::Tensor> components(static_cast<std::size_t>(group_->num_local_replicas()));
  for (const VariableCopy& copy : place(*placement_, what, group_->plan().lanes())) {
    devices.push_back(copy.device);
    const at::Tensor memory = value.clone(at::MemoryFormat::Contiguous);
    for (const int64_t r : copy.replicas) {
      components[static_cast<std::size_t>(r)] = memory.variable_data().set_requires_grad(options.trainable);
    }
  }
  return components;
}

std::shared_ptr<VariableState> VariableRegistry::make_in_step(const VariableOptions& options,
                                                              FunctionRef<at::Tensor()> initial,
                                                              const std::source_location& place) {
  auto made = make(options, initial, place);
  made_in_steps_.emplace(made->name(), made);
  return made;
}

std::shared_ptr<VariableState> VariableRegistry::find_made_in_step(const std::string& name) const {
  const auto found = made_in_steps_.find(name);
  return found == made_in_steps_.end() ? nullptr : found->second;
}

bool VariableRegistry::has_variable(const std::string& name) {
  if (!names_.contains(name)) return false;
  forget_unused();  // perhaps nobody has it any more
  return names_.contains(name);
}

void VariableRegistry::require_fresh_variable(const std::string& name, const std::source_location& place) {
  if (!has_variable(name)) return;
  if (const VariableState* taken = find_by_name(variables_, name)) {
    throw_taken("variable", name, place, taken->place(), "give each variable a name of its own");
  }
}

void VariableRegistry::require_fresh_module(const std::string& name, const std::source_location& place) {
  forget_unused();
  if (const ModuleBinding* taken = find_by_name(modules_, name)) {
    throw_taken("module", name, place, taken->place(),
                "name each module: make_module(factory, {.name = \"generator\"})");
  }
}

std::string VariableRegistry::fresh_name() {
  for (;;) {
    const int64_t number = next_number_++;
    std::string name = number == 0 ? kUnnamed : fmt::format("{}_{}", kUnnamed, number);
    if (like_fresh_.insert(name).second) return name;
  }
}

void VariableRegistry::add(std::shared_ptr<VariableState> variable) {
  if (has_variable(variable->name())) {
    throw UsageError("LS-NAME-TAKEN", fmt::format("a second variable named '{}' was made", variable->name()),
                     "give each variable a name of its own");
  }
  if (const auto waiting = waiting_) {
    waiting->give(variable);
    variable->end_run();  // in a run too, what it begins with is this value
  }
  const bool placed = variable->on_write() || variable->is_trained_locally();
  if (placed && !variable->is_slot()) ++num_placed_;
  names_.insert(variable->name());
  if (variable->name().starts_with(kUnnamed)) like_fresh_.insert(variable->name());
  list(*variable);
  variables_.push_back(std::move(variable));
}

void VariableRegistry::list(VariableState& variable) {
  if (variable.component_at(0).watch != Watch::kNothing) watched_.add(variable);
  if (!variable.on_write()) on_read_.push_back(&variable.as_on_read());
}

void VariableRegistry::add_together(const std::vector<Variable>& variables) {
  if (const auto waiting = waiting_) {
    for (const Variable& variable : variables) waiting->check(variable.shared_state());
  }
  for (const Variable& variable : variables) add(variable.shared_state());
}

void VariableRegistry::add(std::shared_ptr<ModuleBinding> module) {
  add_together(module->variables());
  buffers_.note(*module);
  modules_.push_back(std::move(module));
  begin_runs(modules_.back()->variables().size());
}

void VariableRegistry::begin_runs(std::size_t count) {
  if (!group_->running()) return;
  for (auto variable = variables_.end() - static_cast<std::ptrdiff_t>(count); variable != variables_.end();
       ++variable) {
    for (int64_t r = 0; r < group_->num_local_replicas(); ++r) (*variable)->begin_run(r);
  }
}

void VariableRegistry::forget_unused() {
  std::erase_if(modules_, [](const auto& module) { return module.use_count() == 1; });
  const std::size_t forgotten = std::erase_if(variables_, [this](const auto& variable) {
    if (variable.use_count() > 1) return false;
    names_.erase(variable->name());
    return true;
  });
  if (forgotten == 0) return;
  watched_.clear();
  on_read_.clear();
  for (const auto& variable : variables_) list(*variable);
}

void VariableRegistry::begin_run(int64_t r) const {
  for (OnReadState* variable : on_read_) variable->begin_run(r);
}

void VariableRegistry::check_components(int64_t r) const {
  const bool all_sound = counts_->damaged == 0;
  watched_.for_each(OfCheck(), r, [&](std::size_t i, const Component& component) {
    if (!all_sound || !component.as_left()) watched_.variable(i).check_component(r);  // throws what is amiss
  });
}

void VariableRegistry::undo_run() const noexcept {
  for (const auto& variable : variables_) variable->undo_run();
}

void VariableRegistry::end_run() const noexcept {
  for (OnReadState* variable : on_read_) variable->end_run();
  if (counts_->written == 0) return;
  for (const auto& variable : variables_) variable->end_run();
}

void VariableRegistry::drop_gradients() const noexcept {
  for (const auto& variable : variables_) variable->drop_gradients();
}

void VariableRegistry::add_mirrored(ValueDigests& digests) const {
  for (const auto& variable : variables_) {
    if (!variable->on_write() || variable->is_sliced()) continue;
    digests.add(variable->name(), variable->copies().front());
  }
}

void VariableRegistry::verify() const {
  for (const auto& module : modules_) module->check_registered();
  for (const auto& variable : variables_) variable->check_memory();
}

}  // namespace lockstep::internal::variable
