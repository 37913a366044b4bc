// What a pickle makes by the classes and functions that it names. None of them is called: those that build dictionaries
// and PyTorch's tensors are understood, and what any other one would give is a value that nobody looks into.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "lockstep/checkpoint/formats/pickle_stack.h"

namespace lockstep::internal::inline checkpoint {

/// Pushes the class or function `module`.`name`. Its length is bounded, because a pickle may make objects without end
/// of one class, and each has its name.
void push_name(PickleStack& stack, std::string module, const std::string& name);

/// Takes ('storage', torch.FloatStorage, '0', 'cpu', elements), and pushes that storage.
void push_storage(PickleStack& stack);

/// Takes a function and its arguments, and pushes what the function would give.
void push_result(PickleStack& stack);

/// Pushes an object of the class with this index. An object of torch::save's is its attributes, and one of a
/// dictionary's class is a dictionary.
void push_object(PickleStack& stack, std::size_t type, std::vector<std::size_t> arguments);

/// Takes attributes, and gives them to the object that is on top then.
void set_attributes(PickleStack& stack);

}  // namespace lockstep::internal::checkpoint
