// What a module consists of, as text: its layers with their parameters.
#pragma once

#include <string>
#include <type_traits>

#include "lockstep/variable/module/replicated.h"

namespace torch::nn {
class Module;
}

namespace lockstep {

/// A table of the module's parameters by layer, and in all: a line for each module that has parameters or buffers of
/// its own, or no submodules, with its name, its type, the names and shapes of its parameters, their number of
/// elements, and how many of these are trained. A tensor or submodule that is registered in several places counts once,
/// under its first name; the others say whose it is. The last two lines have the sums. Not while a step runs.
std::string summary(const torch::nn::Module& module);

/// Of what a factory returns: a module holder, or a shared_ptr to a module.
template <class M>
requires(!std::is_base_of_v<torch::nn::Module, M>) std::string summary(const M& made) {
  return summary(*internal::module_in(made));
}
/// Of each replica's module, which are alike: of one of them. Outside of steps.
template <class M>
std::string summary(const Replicated<M>& model) {
  return summary(model.binding()->first_module());
}

}  // namespace lockstep
