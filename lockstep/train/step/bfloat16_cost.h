// What it costs to compute in bfloat16 where the processor has no instructions for it.
#pragma once

#include <string>

namespace lockstep::internal::inline train {

bool has_bfloat16_instructions();

/// How many times as long a product of matrices takes in bfloat16 as in float32. It measures that, in some milliseconds
/// of the calling thread.
double measured_bfloat16_cost();

/// What a program hears that asked for Precision::kBFloat16 all the same, with the measured number.
std::string bfloat16_cost_text();

}  // namespace lockstep::internal::train
