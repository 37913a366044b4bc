// For tests that compare with Python's PyTorch, where it is there.
#pragma once

#include <cstdlib>
#include <string>
#include <vector>

namespace lockstep::testing {

/// A Python that has PyTorch: $LOCKSTEP_PYTHON, the one that `bench/compare --setup` makes, or python3; empty where
/// none has.
inline std::string python_with_torch() {
  std::vector<std::string> choices;
  if (const char* const named = std::getenv("LOCKSTEP_PYTHON")) choices.emplace_back(named);
  if (const char* const home = std::getenv("HOME"))
    choices.push_back(std::string(home) + "/.cache/lockstep/rivals/torch/bin/python");
  choices.emplace_back("python3");
  for (const std::string& one : choices) {
    if (std::system(("'" + one + "' -c 'import torch' >/dev/null 2>&1").c_str()) == 0) return one;
  }
  return {};
}

}  // namespace lockstep::testing
