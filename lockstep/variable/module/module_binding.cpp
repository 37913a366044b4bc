#include "lockstep/variable/module/module_binding.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <torch/nn/module.h>

#include <algorithm>
#include <map>

#include "lockstep/core/error.h"
#include "lockstep/core/log.h"
#include "lockstep/layers/norm_layers.h"
#include "lockstep/replica/replica_group.h"
#include "lockstep/variable/module/module_tensors.h"
#include "lockstep/variable/placement.h"
#include "lockstep/variable/registry.h"
#include "lockstep/variable/variable_state.h"

namespace lockstep::internal::inline variable {

namespace {

void check_equal(const std::string& module, const Registered& first, const Registered& other, int64_t first_replica,
                 std::size_t r) {
  if (same_bits(first.tensor, other.tensor)) return;
  throw DivergenceError("LS-DIVERGED",
                        fmt::format("variable '{}.{}' has other initial values on replica {} than on replica {}",
                                    module, first.name, first_replica + static_cast<int64_t>(r), first_replica),
                        kFactoryRule);
}

/// What becomes of this buffer of a module with `chosen`. Running statistics are averages: their sum over replicas
/// means nothing.
Buffers buffers_of(const Registered& buffer, const torch::nn::Module& module, Buffers chosen) {
  if (chosen != Buffers::kSum) return chosen;
  return has_running_statistics(*owner_of(module, buffer.name).first) ? Buffers::kAuto : chosen;
}

VariableAggregation aggregation_of_buffer(const at::Tensor& buffer, Buffers buffers) {
  if (are_settled(buffers)) return VariableAggregation::kOnlyFirstReplica;  // all replicas' are equal
  const at::ScalarType type = buffer.scalar_type();
  const bool has_mean = is_trainable_type(type) && at::isFloatingType(type);
  return has_mean ? VariableAggregation::kMean : VariableAggregation::kOnlyFirstReplica;
}

/// Where a tensor of a module lives.
struct Home {
  std::vector<VariableCopy> copies = {};  // of an on-write variable
  bool local = false;
};

Home home_of(const Registered& tensor, const std::string& module, int64_t index, const VariableRegistry& registry,
             const Lanes& lanes) {
  if (tensor.is_buffer) return {};
  const NewVariable what{.name = module + "." + tensor.name,
                         .sizes = tensor.tensor.sizes(),
                         .dtype = tensor.tensor.scalar_type(),
                         .trainable = tensor.tensor.requires_grad(),
                         .parameter = true,
                         .index = index};
  if (what.trainable && registry.synchronization().trains_locally(what)) return {.local = true};
  return {.copies = place(registry.placement(), what, lanes)};
}

/// Whether a tensor that is not registered shares the parameter's memory on some replica, such as a transpose that the
/// module's constructor has kept. It shows the weights only as long as the parameter stays in that memory. Components
/// of several replicas may lie in one memory.
bool has_alias(const std::vector<at::Tensor>& components) {
  return std::any_of(components.begin(), components.end(), [&](const at::Tensor& one) {
    if (one.numel() == 0) return false;
    const auto shares = [&](const at::Tensor& other) { return other.storage().is_alias_of(one.storage()); };
    return static_cast<std::ptrdiff_t>(one.storage().use_count()) >
           std::count_if(components.begin(), components.end(), shares);
  });
}

/// The replica whose memory local replica r's component is to have, if the placement's copies are in `copies`.
int64_t holder_of(int64_t r, const std::vector<VariableCopy>& copies) {
  for (const VariableCopy& copy : copies) {
    if (std::find(copy.replicas.begin(), copy.replicas.end(), r) != copy.replicas.end()) return copy.replicas.front();
  }
  return r;
}

/// "parameter 'a' was" or "parameters 'a', 'b' were"
std::string named(const std::vector<std::string>& parameters) {
  const bool one = parameters.size() == 1;
  return fmt::format("parameter{} '{}' {}", one ? "" : "s", fmt::join(parameters, "', '"), one ? "was" : "were");
}

std::vector<VariableCopy> one_for_each_replica(const std::vector<VariableCopy>& copies) {
  std::vector<VariableCopy> all;
  for (const VariableCopy& copy : copies) {
    for (const int64_t r : copy.replicas) all.push_back({copy.device, {r}});
  }
  return all;
}

VariableOptions options_of(const Registered& tensor, const std::string& module, const Home& home, Buffers buffers) {
  VariableOptions options{.name = module + "." + tensor.name,
                          .trainable = !tensor.is_buffer && tensor.tensor.requires_grad()};
  options.synchronization =
      tensor.is_buffer || home.local ? VariableSynchronization::kOnRead : VariableSynchronization::kOnWrite;
  if (tensor.is_buffer) options.aggregation = aggregation_of_buffer(tensor.tensor, buffers);
  if (home.local) options.aggregation = VariableAggregation::kMean;
  return options;
}

}  // namespace

ModuleBinding::ModuleBinding(std::shared_ptr<ReplicaGroup> group, std::string name, Buffers buffers,
                             FunctionRef<std::shared_ptr<torch::nn::Module>()> next, VariableRegistry& registry,
                             const std::source_location& place)
    : group_(std::move(group)), name_(std::move(name)), place_(place), derived_(registry.derived()) {
  if (name_.empty()) {
    throw UsageError("LS-NAME", "make_module was given an empty .name", "leave it out, or name it");
  }
  if (buffers < Buffers::kAuto || buffers > Buffers::kEqual) {
    throw UsageError("LS-OPTION", fmt::format("make_module was given .buffers {}", static_cast<int>(buffers)),
                     "choose kAuto, kMean, kFirstReplica, kSum or kEqual");
  }
  const bool with_gradient = at::GradMode::is_enabled();
  const at::NoGradGuard no_grad;
  const int64_t first_replica = group_->first_replica();
  const auto count = static_cast<std::size_t>(group_->num_local_replicas());
  modes_.resize(count);
  std::vector<std::vector<Registered>> all;
  std::vector<std::size_t> distinct;  // in all[0], each tensor once
  std::vector<Home> homes;            // by `distinct`
  std::vector<bool> is_early;         // by all[0]: whether other replicas' may be put into one memory early
  SharesNothing shares_nothing(name_, first_replica);
  registry.forget_unused();  // a layer of a model that is gone may be used again
  for (std::size_t r = 0; r < count; ++r) {
    const int64_t replica = first_replica + static_cast<int64_t>(r);
    {
      // The factory may build graphs, and does so under the caller's mode.
      const at::AutoGradMode callers(with_gradient);
      const ReplacedLayers replaced;
      modules_.push_back(next());
      replaced.require_gone();
    }
    if (!modules_.back()) {
      throw UsageError("LS-FACTORY",
                       fmt::format("the factory of module '{}' returned nothing for replica {}", name_, replica),
                       kFactoryRule);
    }
    all.push_back(registered_in(*modules_.back()));
    std::vector<Registered>& mine = all.back();
    check_kinds(name_, mine, replica);
    check_alike(name_, all.front(), first_replica, mine, replica);
    // This comes before what is shared: the replicas of another model may have been given one memory.
    check_others_memory(name_, mine, replica, registry.variables());
    shares_nothing.add(*modules_.back(), mine);
    check_no_aliases(name_, mine);
    if (r == 0) {
      std::map<const at::TensorImpl*, std::size_t> known;  // to find aliases
      int64_t index = registry.num_placed();
      for (std::size_t i = 0; i < mine.size(); ++i) {
        const auto [variable, fresh] = known.try_emplace(mine[i].tensor.unsafeGetTensorImpl(), distinct.size());
        names_.push_back({mine[i].name, variable->second});
        is_early.push_back(fresh && is_alone_in_memory(mine[i]));
        if (!fresh) continue;
        distinct.push_back(i);
        registry.require_fresh_variable(name_ + "." + mine[i].name, place_);
        homes.push_back(home_of(mine[i], name_, index, registry, group_->plan().lanes()));
        if (!mine[i].is_buffer) ++index;
      }
      continue;
    }
    for (const std::size_t i : distinct) check_equal(name_, all.front()[i], mine[i], first_replica, r);
    // What was compared makes room for the next replica's.
    std::vector<bool> is_moved(distinct.size(), false);
    for (std::size_t k = 0; k < distinct.size(); ++k) {
      const std::size_t i = distinct[k];
      const auto holder = static_cast<std::size_t>(holder_of(static_cast<int64_t>(r), homes[k].copies));
      is_moved[k] = holder < r && is_early[i] && is_alone_in_memory(mine[i]) &&
                    mine[i].tensor.strides() == all[holder][i].tensor.strides();
      if (is_moved[k]) mine[i].tensor.set_data(all[holder][i].tensor.variable_data());
    }
    std::vector<bool> is_given;  // under each of its names
    for (const Name& one : names_) is_given.push_back(is_moved[one.variable]);
    shares_nothing.forget_last(is_given);
  }
  // Nothing is refused from here on.
  for (std::size_t r = 0; r < all.size(); ++r) {
    const std::vector<std::string> stale = own_memory(all[r], all.front());
    if (r > 0 || stale.empty()) continue;
    log(LogLevel::kWarning,
        fmt::format("module '{}': {} moved to memory of {} own (parameters that are views of a part of another tensor, "
                    "or not dense): another tensor still shows the old memory, and will not show the trained weights; "
                    "register a dense tensor, such as a clone(), before you take views of it",
                    name_, named(stale), stale.size() == 1 ? "its" : "their"));
  }
  for (std::size_t k = 0; k < distinct.size(); ++k) {
    const Registered& first = all[0][distinct[k]];
    Home& home = homes[k];
    std::vector<at::Tensor> components;
    for (const auto& registered : all) components.push_back(registered[distinct[k]].tensor);
    VariableState::Origin origin{.place = place_, .local = home.local};
    if (first.is_buffer) origin.buffers = buffers_of(first, *modules_.front(), buffers);
    if (has_alias(components)) {
      home.copies = one_for_each_replica(home.copies);
      for (std::size_t r = 1; r < components.size(); ++r) {
        const auto shares = [&](const at::Tensor& other) { return other.is_alias_of(components[r]); };
        const bool is_given =
            std::any_of(components.begin(), components.begin() + static_cast<std::ptrdiff_t>(r), shares);
        if (is_given) components[r].set_data(components[r].variable_data().clone());
      }
    }
    for (const VariableCopy& copy : home.copies) {
      origin.devices.push_back(copy.device);
      const at::Tensor memory = components[static_cast<std::size_t>(copy.replicas.front())].variable_data();
      for (const int64_t r : copy.replicas) {
        if (r != copy.replicas.front()) components[static_cast<std::size_t>(r)].set_data(memory);
      }
    }
    variables_.emplace_back(make_variable_state(group_, registry.counts(),
                                                options_of(first, name_, home, origin.buffers), components, origin));
  }
}

void ModuleBinding::require_sound() const {
  if (variables_.empty() || variables_.front().state().counts()->damaged == 0) return;
  for (const Variable& variable : variables_) variable.state().require_sound();
}

void ModuleBinding::check_registered() const {
  for (std::size_t r = 0; r < modules_.size(); ++r) {
    const auto refuse = [&](const std::string& what) {
      throw UsageError("LS-LATE-REGISTRATION",
                       fmt::format("on replica {} {}, since make_module made it",
                                   group_->first_replica() + static_cast<int64_t>(r), what),
                       "register all parameters, buffers and submodules in the module's constructor, and change their "
                       "values only: no optimizer trains what is registered later, and it differs between replicas");
    };
    std::size_t found = 0;
    for (const Registered& one : registered_in(*modules_[r])) {
      const bool in_order = found < names_.size() && names_[found].in_module == one.name;
      const Name* const name = in_order ? &names_[found] : find(one.name);
      const char* const kind = one.is_buffer ? "buffer" : "parameter";
      if (!name) refuse(fmt::format("module '{}' has got {} '{}'", name_, kind, one.name));
      const at::Tensor& bound = variables_[name->variable].state().component(static_cast<int64_t>(r));
      if (!one.tensor.is_same(bound)) {
        refuse(fmt::format("{} '{}' of module '{}' was replaced by another tensor", kind, one.name, name_));
      }
      ++found;
    }
    if (found < names_.size()) refuse(fmt::format("module '{}' has lost a parameter or buffer", name_));
  }
}

const ModuleBinding::Name* ModuleBinding::find(const std::string& in_module) const {
  const auto found =
      std::find_if(names_.begin(), names_.end(), [&](const Name& name) { return name.in_module == in_module; });
  return found == names_.end() ? nullptr : &*found;
}

std::map<std::string, std::string> ModuleBinding::other_names() const {
  std::map<std::string, std::string> names;
  for (const Name& name : names_) {
    const std::string full = name_ + "." + name.in_module;
    const std::string& own = variables_[name.variable].name();
    if (full != own) names.emplace(full, own);
  }
  return names;
}

std::map<std::string, at::Tensor> ModuleBinding::state() const {
  check_registered();
  std::map<std::string, at::Tensor> result;
  for (const Variable& one : variables_) one.state().check_memory();
  for (const Name& name : names_) result.emplace(name.in_module, variables_[name.variable].state().read());
  return result;
}

std::vector<std::pair<Variable, at::Tensor>> ModuleBinding::tensors_of(const torch::nn::Module& module) const {
  check_registered();
  const auto targets = registered_in(module);
  for (std::size_t i = 0; i < std::max(targets.size(), names_.size()); ++i) {
    const std::string here =
        i < names_.size() ? text_of(names_[i].in_module, variables_[names_[i].variable].state().like()) : "nothing";
    const std::string there = i < targets.size() ? text_of(targets[i].name, targets[i].tensor) : "nothing";
    if (here == there) continue;
    throw UsageError("LS-FACTORY",
                     fmt::format("the factory of module '{}' now makes {} where it made {}", name_, there, here),
                     kFactoryRule);
  }
  std::vector<std::pair<Variable, at::Tensor>> pairs;
  for (std::size_t i = 0; i < targets.size(); ++i)
    pairs.emplace_back(variables_[names_[i].variable], targets[i].tensor);
  return pairs;
}

void ModuleBinding::copy_to(torch::nn::Module& module) const {
  const at::NoGradGuard no_grad;
  const auto pairs = tensors_of(module);
  for (const Variable& one : variables_) one.state().check_memory();
  for (const auto& [variable, tensor] : pairs) {
    at::Tensor target = tensor;
    const at::Tensor value = variable.state().read();
    // A buffer may have grown in training, and elements that share memory cannot take different values.
    if (target.sizes() == value.sizes() && !elements_overlap(target)) {
      target.copy_(value);
    } else {
      target.set_data(value.to(target.scalar_type()));
    }
  }
}

void ModuleBinding::enter_evaluation(int64_t r) {
  auto& modes = modes_[static_cast<std::size_t>(r)];
  modes.clear();
  for (auto& part : modules_[static_cast<std::size_t>(r)]->modules()) {
    const bool training = part->is_training();
    modes.emplace_back(std::move(part), training);
  }
  modules_[static_cast<std::size_t>(r)]->eval();
}

void ModuleBinding::leave_evaluation(int64_t r) noexcept {
  auto& modes = modes_[static_cast<std::size_t>(r)];
  // train() sets a module's children too; they stand after it in this list, so each has its own mode in the end.
  for (const auto& [part, training] : modes) {
    try {
      part->train(training);
    } catch (const std::exception& error) {
      try {
        log(LogLevel::kError,
            fmt::format("module '{}': its mode could not be put back after an evaluation: {}", name_, error.what()));
      } catch (...) {  // NOLINT(bugprone-empty-catch): there is no memory for a message
      }
    } catch (...) {  // NOLINT(bugprone-empty-catch): an exception of unknown type has no text
    }
  }
  modes.clear();
}

}  // namespace lockstep::internal::variable
