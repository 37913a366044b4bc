// How the values of a module are set from named tensors.
#pragma once

#include <string>
#include <vector>

namespace lockstep {

struct LoadOptions {
  bool allow_missing = false;     // what is not given stays as it is, in place of an error
  bool allow_unexpected = false;  // what the module does not have is passed over, in place of an error
};

struct LoadInfo {
  std::vector<std::string> missing = {};     // what the module has and was not given, by the first of its names
  std::vector<std::string> unexpected = {};  // what was given and the module does not have, as it was given
};

}  // namespace lockstep
