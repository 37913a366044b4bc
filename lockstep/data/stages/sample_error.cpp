#include "lockstep/data/stages/sample_error.h"

#include <c10/util/Exception.h>

#include <new>
#include <string_view>

#include "lockstep/core/error.h"
#include "lockstep/data/formats/records/readers.h"

namespace lockstep::internal::inline data {

bool is_about_sample(const std::exception_ptr& error) {
  try {
    std::rethrow_exception(error);
  } catch (const std::bad_alloc&) {
    return false;
  } catch (const c10::Error& of_torch) {
    // LibTorch has no type of its own for this.
    return std::string_view(of_torch.what_without_backtrace()).find("DefaultCPUAllocator: can't allocate memory") ==
           std::string_view::npos;
  } catch (const std::exception& one) {
    const auto* const ours = dynamic_cast<const Error*>(&one);
    if (ours != nullptr && ours->code() == "LS-FILE-LIMIT") return false;
    const auto* const outer = dynamic_cast<const std::nested_exception*>(&one);
    return outer == nullptr || outer->nested_ptr() == nullptr || is_about_sample(outer->nested_ptr());
  } catch (...) {
    return true;
  }
}

bool loses_rest(const std::exception_ptr& error) {
  try {
    std::rethrow_exception(error);
  } catch (const RestOfFileError&) {
    return true;
  } catch (...) {
    return false;
  }
}

}  // namespace lockstep::internal::data
