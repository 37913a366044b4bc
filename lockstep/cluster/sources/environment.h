// A snapshot of the environment's variables. Whatever decides who this process is, is a function of such a snapshot.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>

namespace lockstep {

/// Variables by name. A variable with an empty value counts as not set. A snapshot may hold the job's secret: do not
/// print it. Any thread may read it.
class Environment {
 public:
  using Variables = std::map<std::string, std::string>;

  Environment() = default;
  explicit Environment(Variables variables) : variables_(std::move(variables)) {}

  /// The variables of this process, as they are now. No other thread may call setenv meanwhile.
  static Environment of_process();

  bool has(const std::string& name) const { return get(name).has_value(); }
  /// The value; nothing where the variable is not set.
  std::optional<std::string> get(const std::string& name) const;
  /// The value as a decimal number from `least` to `most`, both at least 0; nothing where the variable is not set.
  /// Anything else is a ClusterError (LS-CLUSTER-VALUE) that names the variable, its value, the place and the bounds.
  std::optional<int64_t> integer(const std::string& name, int64_t least, int64_t most) const;
  /// All of them, by name; also those whose value is empty.
  const Variables& variables() const { return variables_; }

 private:
  Variables variables_;
};

namespace internal::inline cluster {
/// "WORLD_SIZE=4", for messages; empty where the variable is not set.
std::string shown(const Environment& environment, const std::string& name);
}  // namespace internal::cluster

}  // namespace lockstep
