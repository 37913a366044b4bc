#include "lockstep/core/tuning/wire_format.h"

namespace lockstep::internal::inline core {

const char* name_of(WireFormat format) {
  switch (format) {
    case WireFormat::kExact: return "exact";
    case WireFormat::kBFloat16: return "bfloat16";
  }
  return "unknown";
}

}  // namespace lockstep::internal::core
