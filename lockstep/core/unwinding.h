// Whether an object is destroyed by an exception that leaves its scope.
#pragma once

#include <exception>

namespace lockstep::internal::inline core {

/// A member of the object, which is made where no exception is under way, or is destroyed by the thread that made it.
/// The destructor asks.
class Unwinding {
 public:
  /// Whether this thread has more exceptions under way than the thread that made this object had then.
  bool is_on() const noexcept { return std::uncaught_exceptions() > before_; }

 private:
  const int before_ = std::uncaught_exceptions();
};

}  // namespace lockstep::internal::core
