// What becomes of a variable's gradients between backward and the optimizer's step, for people to read.
#pragma once

#include <cstdint>

namespace lockstep::internal::inline variable {

enum class GradientForm : uint8_t {
  kOrdinary,  // written to memory: no optimizer has had the variable, or it is not a large dense float32 matrix
  // Of large matrices. Decided when the optimizer is made: written to memory by every backward.
  kSwitchedOff,
  kUnknownNode,
  kNoMultiplyAdd,
  kLocal,
  kReduced,
  kLongRows,
  // Decided by each backward that computes it as one product, and by what the program does with the gradient then.
  kNoProduct,     // there was none so far
  kManySamples,   // the product had too many
  kOtherBits,     // the product has bits that the library does not make
  kOtherProduct,  // not one product with the weight as second factor, or computed under autocast or create_graph
  kRead,          // it was kept as factors until an operator read or changed it
  kFactors,
};

/// "factors", "written: factors are switched off", ...; nothing for kOrdinary.
constexpr const char* text_of(GradientForm form) {
  switch (form) {
    case GradientForm::kOrdinary: return "";
    case GradientForm::kSwitchedOff: return "written: factors are switched off";
    case GradientForm::kUnknownNode: return "written: this LibTorch does not say whose gradient it computes";
    case GradientForm::kNoMultiplyAdd: return "written: no fused multiply-add";
    case GradientForm::kLocal: return "written: each replica trains its own";
    case GradientForm::kReduced: return "written: the sum is made before the update";
    case GradientForm::kLongRows: return "written: long rows";
    case GradientForm::kNoProduct: return "written: no matrix product so far";
    case GradientForm::kManySamples: return "written: many samples";
    case GradientForm::kOtherBits: return "written: LibTorch's product has other bits";
    case GradientForm::kOtherProduct: return "written: not one product with the weight as second factor";
    case GradientForm::kRead: return "written: an operator read it";
    case GradientForm::kFactors: return "factors";
  }
  return "";
}

}  // namespace lockstep::internal::variable
