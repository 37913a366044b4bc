#include "lockstep/variable/module_binding.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <torch/nn/module.h>

#include <algorithm>
#include <map>
#include <set>

#include "lockstep/core/error.h"
#include "lockstep/core/torch_compat.h"
#include "lockstep/replica/replica_group.h"
#include "lockstep/variable/placement.h"
#include "lockstep/variable/registry.h"
#include "lockstep/variable/variable_state.h"

namespace lockstep::internal {

namespace {

/// A tensor of a module, under one of its names.
struct Registered {
  std::string name;
  at::Tensor tensor;
  bool is_buffer;
};

std::vector<Registered> registered_in(const torch::nn::Module& module) {
  std::vector<Registered> all;
  for (const auto& item : module.named_parameters()) {
    if (item.value().defined()) all.push_back({item.key(), item.value(), false});
  }
  for (const auto& item : module.named_buffers()) {
    if (item.value().defined()) all.push_back({item.key(), item.value(), true});
  }
  return all;
}

std::string text_of(const std::string& name, const at::Tensor& tensor) {
  return fmt::format("{} {} [{}]", name, c10::toString(tensor.scalar_type()), fmt::join(tensor.sizes(), ", "));
}

std::string signature(const Registered& one) {
  return fmt::format("{} {}", one.is_buffer ? "buffer" : "parameter", text_of(one.name, one.tensor));
}

constexpr const char* kFactoryRule =
    "the factory must build a new module of the same kind at each call, from LibTorch's random operators or fixed "
    "values alone";

void check_alike(const std::string& module, const std::vector<std::vector<Registered>>& all, int64_t first_replica) {
  for (std::size_t r = 1; r < all.size(); ++r) {
    const std::size_t count = std::max(all[0].size(), all[r].size());
    for (std::size_t i = 0; i < count; ++i) {
      const std::string here = i < all[0].size() ? signature(all[0][i]) : "nothing";
      const std::string there = i < all[r].size() ? signature(all[r][i]) : "nothing";
      if (here == there) continue;
      throw UsageError(fmt::format("module '{}' differs between replicas: replica {} has {} where replica {} has {}",
                                   module, first_replica, here, first_replica + static_cast<int64_t>(r), there),
                       kFactoryRule);
    }
  }
}

void check_share_nothing(const std::string& module, const std::vector<std::shared_ptr<torch::nn::Module>>& modules,
                         const std::vector<std::vector<Registered>>& all, int64_t first_replica) {
  std::map<const void*, std::pair<std::size_t, std::string>> owners;
  const auto claim = [&](const void* what, std::size_t r, const std::string& name) {
    const auto [owner, fresh] = owners.try_emplace(what, r, name);
    if (fresh || owner->second.first == r) return;
    throw UsageError(fmt::format("replicas {} and {} share {} of module '{}'",
                                 first_replica + static_cast<int64_t>(owner->second.first),
                                 first_replica + static_cast<int64_t>(r), name, module),
                     kFactoryRule);
  };
  for (std::size_t r = 0; r < modules.size(); ++r) {
    for (const auto& part : modules[r]->modules()) claim(part.get(), r, "a module (" + part->name() + ")");
    for (const Registered& one : all[r]) {
      if (one.tensor.numel() > 0) claim(one.tensor.storage().unsafeGetStorageImpl(), r, "the tensor " + one.name);
    }
  }
}

void check_equal(const std::string& module, const Registered& first, const Registered& other, int64_t first_replica,
                 std::size_t r) {
  if (same_bits(first.tensor, other.tensor)) return;
  throw DivergenceError(fmt::format("variable '{}.{}' has other initial values on replica {} than on replica {}",
                                    module, first.name, first_replica + static_cast<int64_t>(r), first_replica),
                        kFactoryRule);
}

VariableAggregation aggregation_of_buffer(const at::Tensor& buffer) {
  return at::isFloatingType(buffer.scalar_type()) ? VariableAggregation::kMean : VariableAggregation::kOnlyFirstReplica;
}

/// Where a tensor of a module lives.
struct Home {
  std::vector<VariableCopy> copies = {};  // of an on-write variable
  bool apart = false;
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
  if (what.trainable && registry.synchronization().trains_apart(what)) return {.apart = true};
  return {.copies = place(registry.placement(), what, lanes)};
}

VariableOptions options_of(const Registered& tensor, const std::string& module, const Home& home) {
  VariableOptions options{.name = module + "." + tensor.name,
                          .trainable = !tensor.is_buffer && tensor.tensor.requires_grad()};
  options.synchronization =
      tensor.is_buffer || home.apart ? VariableSynchronization::kOnRead : VariableSynchronization::kOnWrite;
  if (tensor.is_buffer) options.aggregation = aggregation_of_buffer(tensor.tensor);
  if (home.apart) options.aggregation = VariableAggregation::kMean;
  return options;
}

}  // namespace

ModuleBinding::ModuleBinding(std::shared_ptr<ReplicaGroup> group, std::string name,
                             std::vector<std::shared_ptr<torch::nn::Module>> modules, VariableRegistry& registry,
                             const std::source_location& place)
    : group_(std::move(group)),
      name_(std::move(name)),
      place_(place),
      modules_(std::move(modules)),
      training_(modules_.size()) {
  const at::NoGradGuard no_grad;
  const int64_t first_replica = group_->first_replica();
  for (std::size_t r = 0; r < modules_.size(); ++r) {
    if (!modules_[r]) {
      throw UsageError(fmt::format("the factory of module '{}' returned nothing for replica {}", name_,
                                   first_replica + static_cast<int64_t>(r)),
                       kFactoryRule);
    }
  }
  std::vector<std::vector<Registered>> all;
  for (const auto& module : modules_) all.push_back(registered_in(*module));
  check_alike(name_, all, first_replica);
  check_share_nothing(name_, modules_, all, first_replica);

  std::vector<std::size_t> distinct;                   // in all[0], each tensor once
  std::map<const at::TensorImpl*, std::size_t> known;  // replica 0's tensors, to find aliases
  for (std::size_t i = 0; i < all[0].size(); ++i) {
    const Registered& first = all[0][i];
    const auto [variable, fresh] = known.try_emplace(first.tensor.unsafeGetTensorImpl(), distinct.size());
    names_.push_back({first.name, variable->second});
    if (!fresh) continue;
    distinct.push_back(i);
    registry.require_fresh_variable(name_ + "." + first.name, place_);
    for (std::size_t r = 1; r < all.size(); ++r) check_equal(name_, first, all[r][i], first_replica, r);
  }
  std::vector<Home> homes;
  int64_t index = registry.num_placed();
  for (const std::size_t i : distinct) {
    homes.push_back(home_of(all[0][i], name_, index, registry, group_->plan().lanes()));
    if (!all[0][i].is_buffer) ++index;
  }
  // Nothing was touched so far, and nothing is refused from here on.
  for (std::size_t k = 0; k < distinct.size(); ++k) {
    const Registered& first = all[0][distinct[k]];
    Home& home = homes[k];
    std::vector<at::Tensor> components;
    for (const auto& registered : all) components.push_back(registered[distinct[k]].tensor);
    VariableState::Origin origin{.place = place_, .apart = home.apart};
    for (const VariableCopy& copy : home.copies) {
      origin.devices.push_back(copy.device);
      const at::Tensor memory = components[static_cast<std::size_t>(copy.replicas.front())].variable_data();
      for (const int64_t r : copy.replicas) {
        if (r != copy.replicas.front()) components[static_cast<std::size_t>(r)].set_data(memory);
      }
    }
    variables_.emplace_back(std::make_shared<VariableState>(group_, options_of(first, name_, home),
                                                            std::move(components), std::move(origin)));
  }
}

void ModuleBinding::require_sound() const {
  if (group_->damaged_variables().load(std::memory_order_acquire) == 0) return;
  for (const Variable& variable : variables_) variable.state().require_sound();
}

const ModuleBinding::Name* ModuleBinding::find(const std::string& in_module) const {
  const auto found =
      std::find_if(names_.begin(), names_.end(), [&](const Name& name) { return name.in_module == in_module; });
  return found == names_.end() ? nullptr : &*found;
}

void ModuleBinding::load(const std::map<std::string, at::Tensor>& named) const {
  // Names may begin with the module's: all or none, because a module "a" may have a part "a" of its own.
  const std::string prefix = name_ + ".";
  const bool prefixed = std::all_of(named.begin(), named.end(), [&](const auto& item) {
    return item.first.starts_with(prefix) && find(item.first.substr(prefix.size()));
  });
  std::vector<const at::Tensor*> values(variables_.size(), nullptr);
  std::vector<std::string> problems;
  for (const auto& [key, value] : named) {
    const Name* name = find(prefixed ? key.substr(prefix.size()) : key);
    if (!name) {
      problems.push_back(fmt::format("unexpected '{}'", key));
      continue;
    }
    const at::Tensor*& slot = values[name->variable];
    const std::string why = misfit(variables_[name->variable].state(), value);
    if (!why.empty()) {
      problems.push_back(fmt::format("'{}' {}", key, why));
    } else if (slot && slot->defined() && !same_bits(*slot, value)) {
      problems.push_back(fmt::format("'{}' is another name of a tensor that was given with other values", key));
    }
    slot = &value;
  }
  for (const Name& name : names_) {
    if (!values[name.variable]) problems.push_back(fmt::format("missing '{}'", name.in_module));
  }
  if (!problems.empty()) {
    throw UsageError(fmt::format("the tensors given to module '{}' do not fit: {}", name_, fmt::join(problems, ", ")),
                     "give exactly the names and shapes that state() gives; nothing was loaded");
  }
  for (std::size_t i = 0; i < variables_.size(); ++i) variables_[i].assign(*values[i]);
}

std::map<std::string, at::Tensor> ModuleBinding::state() const {
  std::map<std::string, at::Tensor> result;
  for (const Name& name : names_) result.emplace(name.in_module, variables_[name.variable].state().read());
  return result;
}

void ModuleBinding::copy_to(torch::nn::Module& module) const {
  const at::NoGradGuard no_grad;
  const auto targets = registered_in(module);
  for (std::size_t i = 0; i < std::max(targets.size(), names_.size()); ++i) {
    const std::string here =
        i < names_.size() ? text_of(names_[i].in_module, variables_[names_[i].variable].state().like()) : "nothing";
    const std::string there = i < targets.size() ? text_of(targets[i].name, targets[i].tensor) : "nothing";
    if (here == there) continue;
    throw UsageError(fmt::format("the factory of module '{}' now makes {} where it made {}", name_, there, here),
                     kFactoryRule);
  }
  for (std::size_t i = 0; i < targets.size(); ++i) {
    at::Tensor target = targets[i].tensor;
    target.copy_(variables_[names_[i].variable].state().read());
  }
}

void ModuleBinding::enter_evaluation(int64_t r) {
  training_[r].clear();
  for (const auto& part : modules_[r]->modules()) training_[r].push_back(part->is_training());
  modules_[r]->eval();
}

void ModuleBinding::leave_evaluation(int64_t r) {
  std::size_t i = 0;
  // train() sets a module's children too; they stand after it in this list, so each has its own mode in the end.
  for (const auto& part : modules_[r]->modules()) {
    if (i < training_[r].size()) part->train(training_[r][i++]);
  }
}

}  // namespace lockstep::internal
