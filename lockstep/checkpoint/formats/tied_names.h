// Tensors that have several names, as a module with tied weights has them: any of the names means all of them.
#pragma once

#include <map>
#include <string>
#include <vector>

namespace lockstep::internal::inline checkpoint {

class TiedNames {
 public:
  /// By each further name of a variable, the variable's own.
  using Others = std::map<std::string, std::string>;

  TiedNames() = default;
  void add(const Others& others);

  /// All names of an item, the given one first. What is kept for a variable, "<variable>/...", has as many names as the
  /// variable.
  std::vector<std::string> all(const std::string& name) const;
  /// Whether the patterns want an item by any of its names.
  bool are_wanted(const std::vector<std::string>& patterns, const std::string& name) const;

 private:
  std::map<std::string, std::vector<std::string>> groups_;  // by each name, all of its group
};

}  // namespace lockstep::internal::checkpoint
