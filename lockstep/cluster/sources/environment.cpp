#include "lockstep/cluster/sources/environment.h"

#include <unistd.h>

#include <string_view>

#include "lockstep/cluster/named_text.h"

namespace lockstep {

Environment Environment::of_process() {
  std::map<std::string, std::string> variables;
  for (char** entry = environ; entry != nullptr && *entry != nullptr; ++entry) {
    const std::string_view text = *entry;
    const std::size_t equals = text.find('=');
    if (equals == std::string_view::npos) continue;
    // The first one counts where a name stands twice, as for getenv.
    variables.emplace(text.substr(0, equals), text.substr(equals + 1));
  }
  return Environment(std::move(variables));
}

std::optional<std::string> Environment::get(const std::string& name) const {
  const auto found = variables_.find(name);
  if (found == variables_.end() || found->second.empty()) return std::nullopt;
  return found->second;
}

std::optional<int64_t> Environment::integer(const std::string& name, int64_t least, int64_t most) const {
  const std::optional<std::string> text = get(name);
  if (!text) return std::nullopt;
  return internal::whole_number({name, *text}, least, most);
}

namespace internal::inline cluster {

std::string shown(const Environment& environment, const std::string& name) {
  const std::optional<std::string> text = environment.get(name);
  if (!text) return "";
  // Without the quotes where nothing needed to be cut or written differently.
  const std::string safe = in_quotes(*text);
  return name + "=" + (safe == "'" + *text + "'" ? *text : safe);
}

}  // namespace internal::cluster
}  // namespace lockstep
