// Calls into C libraries that report errors by longjmp.
#pragma once

#include <csetjmp>

namespace lockstep::internal::inline data {

/// Calls `fn`; false where a longjmp to `jump` ended it. Invariant: between the jump and here there are only frames of
/// the C library, its callbacks and `fn`, and none of them has an object with a destructor at that moment.
template <class Fn>
__attribute__((noinline)) bool finished(std::jmp_buf& jump, const Fn& fn) {
  if (setjmp(jump) != 0) return false;
  fn();
  return true;
}

}  // namespace lockstep::internal::data
