// Stands for core/error.cpp, which needs LibTorch, where only errors that are thrown are of interest.
#include "lockstep/core/error.h"

namespace lockstep {

std::string message_of(const std::exception_ptr&) { return {}; }

}  // namespace lockstep
