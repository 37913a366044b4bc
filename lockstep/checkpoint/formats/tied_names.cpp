#include "lockstep/checkpoint/formats/tied_names.h"

#include <algorithm>

#include "lockstep/checkpoint/take_image.h"

namespace lockstep::internal::inline checkpoint {

void TiedNames::add(const Others& others) {
  for (const auto& [other, own] : others) {
    std::vector<std::string> group{own, other};
    for (const std::string& one : {own, other}) {
      const auto known = groups_.find(one);
      if (known != groups_.end()) group.insert(group.end(), known->second.begin(), known->second.end());
    }
    std::sort(group.begin(), group.end());
    group.erase(std::unique(group.begin(), group.end()), group.end());
    for (const std::string& one : group) groups_[one] = group;
  }
}

std::vector<std::string> TiedNames::all(const std::string& name) const {
  std::vector<std::string> names{name};
  for (std::size_t end = name.size(); end != std::string::npos && end > 0; end = name.rfind('/', end - 1)) {
    const auto group = groups_.find(name.substr(0, end));
    if (group != groups_.end()) {
      for (const std::string& one : group->second) {
        if (one.size() != end || !name.starts_with(one)) names.push_back(one + name.substr(end));
      }
      break;
    }
  }
  return names;
}

bool TiedNames::are_wanted(const std::vector<std::string>& patterns, const std::string& name) const {
  const std::vector<std::string> names = all(name);
  return std::any_of(names.begin(), names.end(), [&](const std::string& one) { return is_wanted(patterns, one); });
}

}  // namespace lockstep::internal::checkpoint
