// Stands for what the folders cluster and comm use of core/ that knows LibTorch: the text of its errors, its version,
// and its first calls.
#include <new>

#include "lockstep/core/error.h"
#include "lockstep/core/fingerprint.h"
#include "lockstep/core/process/warm_up.h"

namespace lockstep {

std::string message_of(const std::exception_ptr& exception) {
  try {
    std::rethrow_exception(exception);
  } catch (const std::bad_alloc& error) {
    return std::string("no memory: ") + error.what();
  } catch (const std::exception& error) {
    return error.what();
  } catch (...) {
    return "an exception that is not a std::exception";
  }
}

}  // namespace lockstep

namespace lockstep::internal::inline core {

const std::string& platform_description() {
  static const std::string description = "no LibTorch";
  return description;
}

const std::string& platform_fingerprint() {
  static const std::string fingerprint = "0000000000000000";
  return fingerprint;
}

void warm_up_math() {}

}  // namespace lockstep::internal::core
