#include "lockstep/reduce/reduction.h"

namespace lockstep {

const char* name_of(Reduction reduction) {
  switch (reduction) {
    case Reduction::kSum: return "sum";
    case Reduction::kMean: return "mean";
    case Reduction::kMin: return "min";
    case Reduction::kMax: return "max";
  }
  return "unknown reduction";
}

}  // namespace lockstep
