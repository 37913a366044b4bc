// Whether an object is destroyed by an exception that leaves its scope.
#pragma once

#include <exception>

namespace lockstep::internal {

/// A member of the object. The thread that destroys the object asks in its destructor.
class Unwinding {
 public:
  /// Whether this thread has more exceptions under way than there were when the mark was made.
  bool is_on() const noexcept { return std::uncaught_exceptions() > before_; }

 private:
  const int before_ = std::uncaught_exceptions();
};

}  // namespace lockstep::internal
