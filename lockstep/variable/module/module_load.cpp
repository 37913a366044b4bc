// How a module takes values from named tensors: which name means which of its tensors, and what does not fit.
#include <ATen/ATen.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <map>
#include <set>

#include "lockstep/comm/agreement.h"
#include "lockstep/core/error.h"
#include "lockstep/replica/replica_group.h"
#include "lockstep/variable/kinds/derived_states.h"
#include "lockstep/variable/kinds/written_memory.h"
#include "lockstep/variable/module/module_binding.h"
#include "lockstep/variable/update.h"
#include "lockstep/variable/value_digests.h"
#include "lockstep/variable/variable_state.h"

namespace lockstep::internal::inline variable {

const ModuleBinding::Name* ModuleBinding::find_given(std::string_view given) const {
  if (const Name* const name = find(std::string(given))) return name;
  constexpr std::string_view kCompiled = "_orig_mod.";
  std::string text(given);
  for (std::size_t at = text.find(kCompiled); at != std::string::npos; at = text.find(kCompiled, at)) {
    const bool is_whole = at == 0 || text[at - 1] == '.';
    if (is_whole) {
      text.erase(at, kCompiled.size());
    } else {
      ++at;
    }
  }
  return find(text);
}

std::string ModuleBinding::prefix_of(const std::map<std::string, at::Tensor>& named) const {
  // A module "a" may have a submodule "a", or "module": what lets most names fit is meant.
  std::string best;
  int64_t most = 0;
  std::string prefix;
  for (bool goes_on = !named.empty(); goes_on;) {
    const auto fits = [&](const auto& item) {
      return find_given(std::string_view(item.first).substr(prefix.size())) != nullptr;
    };
    const int64_t count = std::count_if(named.begin(), named.end(), fits);
    if (count > most) most = count, best = prefix;
    goes_on = false;
    for (const std::string& next : {name_ + ".", std::string("module."), std::string("_orig_mod.")}) {
      const std::string longer = prefix + next;
      goes_on =
          std::all_of(named.begin(), named.end(), [&](const auto& item) { return item.first.starts_with(longer); });
      if (!goes_on) continue;
      prefix = longer;
      break;
    }
  }
  return best;
}

std::string ModuleBinding::strange_prefix(const std::vector<std::string>& unexpected) const {
  std::map<std::string, int64_t> counts;
  for (const std::string& name : unexpected) {
    for (std::size_t dot = name.find('.'); dot != std::string::npos; dot = name.find('.', dot + 1)) {
      if (find_given(std::string_view(name).substr(dot + 1))) ++counts[name.substr(0, dot + 1)];
    }
  }
  const auto most =
      std::max_element(counts.begin(), counts.end(), [](const auto& a, const auto& b) { return a.second < b.second; });
  if (most == counts.end()) return {};
  return fmt::format("'{}' stands before {} of the names, which would fit without it", most->first, most->second);
}

LoadInfo ModuleBinding::load(const std::map<std::string, at::Tensor>& named, const LoadOptions& options) const {
  UpdateScope::require_none("Replicated::load");
  std::vector<at::Tensor> values;
  LoadInfo info;
  ValueDigests digests(*group_);
  // All that can fail happens before the first write, on all workers.
  const auto all = agree_on_call(group_->rounds(), {.call = "Replicated::load", .name = name_, .step = group_->step()},
                                 [&](Proposal& mine) {
                                   values = fitting(named, options, info);
                                   for (std::size_t i = 0; i < variables_.size(); ++i) {
                                     if (values[i].defined()) digests.add(variables_[i].name(), values[i]);
                                   }
                                   digests.fill_in(mine);
                                 });
  digests.require_equal(all, "Replicated::load");
  std::set<const VariableState*> loaded;
  for (std::size_t i = 0; i < variables_.size(); ++i) {
    if (!values[i].defined()) continue;
    variables_[i].assign(values[i]);
    loaded.insert(&variables_[i].state());
  }
  derived_->start_anew(loaded);
  return info;
}

std::vector<at::Tensor> ModuleBinding::fitting(const std::map<std::string, at::Tensor>& named,
                                               const LoadOptions& options, LoadInfo& info) const {
  check_registered();
  for (const Variable& variable : variables_) variable.state().require_own_value("Replicated::load");
  const std::string prefix = prefix_of(named);
  struct Given {
    const std::string* key = nullptr;
    at::Tensor value = {};  // as the variable can hold it
  };
  std::vector<Given> given(variables_.size());
  std::vector<std::string> problems;
  for (const auto& [key, value] : named) {
    const Name* const name = find_given(std::string_view(key).substr(prefix.size()));
    if (!name) {
      info.unexpected.push_back(key);
      continue;
    }
    Given& slot = given[name->variable];
    const VariableState& variable = variables_[name->variable].state();
    const Misfit found = misfit(variable, value);
    const at::Tensor own = found.fits() ? value_for(variable, value, "Replicated::load") : at::Tensor();
    if (!found.fits()) {
      problems.push_back(fmt::format("'{}' {}", key, found.why));
    } else if (slot.value.defined() && !same_bits(slot.value, own)) {
      problems.push_back(
          fmt::format("'{}' and '{}' are names of one tensor, and were given different values", *slot.key, key));
    }
    slot = {&key, own};
  }
  std::vector<bool> is_listed(variables_.size());
  for (const Name& name : names_) {
    if (given[name.variable].key || is_listed[name.variable]) continue;
    is_listed[name.variable] = true;
    info.missing.push_back(name.in_module);
  }
  const auto refuse = [&](const char* what, const std::vector<std::string>& names) {
    constexpr std::size_t kShown = 20;
    for (std::size_t i = 0; i < names.size() && i < kShown; ++i) {
      problems.push_back(fmt::format("{} '{}'", what, names[i]));
    }
    if (names.size() > kShown) problems.push_back(fmt::format("{} more that are {}", names.size() - kShown, what));
  };
  const bool is_unexpected = !info.unexpected.empty() && !options.allow_unexpected;
  const bool is_missing = !info.missing.empty() && !options.allow_missing;
  const std::string strange = is_unexpected || is_missing ? strange_prefix(info.unexpected) : std::string();
  if (!strange.empty()) problems.push_back(strange);
  if (is_unexpected) refuse("unexpected", info.unexpected);
  if (is_missing) refuse("missing", info.missing);
  if (!problems.empty()) {
    throw UsageError("LS-STATE-MISFIT",
                     fmt::format("the tensors given to module '{}' do not fit: {}", name_, fmt::join(problems, ", ")),
                     strange.empty()
                         ? "give the names and shapes that state() gives, or choose LoadOptions: allow_missing, "
                           "allow_unexpected; nothing was loaded"
                         : "take that off the names: load_tensors takes a function that names tensors; nothing was "
                           "loaded");
  }
  std::vector<at::Tensor> values(variables_.size());
  WrittenMemory written;
  for (std::size_t i = 0; i < variables_.size(); ++i) {
    if (given[i].value.defined()) values[i] = written.copied_if_inside(given[i].value);
    written.add(variables_[i].state());
  }
  return values;
}

}  // namespace lockstep::internal::variable
