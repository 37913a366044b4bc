// Whether gradients of weight matrices may be kept as factors until the optimizer's step: docs/factored-gradients.md.
#pragma once

namespace lockstep {

/// The choice changes speed and memory, and no bit of any result, unless WireFormat::kBFloat16 rounds what travels as
/// sums: factors travel as they are.
enum class FactoredGradients {
  kAuto,  // where a backward computes the gradient of a large matrix as one product of few samples
  kOff,
};

namespace internal::inline core {

/// Which matrices' gradients may be kept as factors.
enum class Factoring { kOff, kAuto, kAlways };

/// What is done where a strategy's options ask for `asked`. LOCKSTEP_FACTORED_GRADIENTS=off in the environment wins
/// over the options; "always" lets small matrices through too, for tests, unless the options say off; "auto" is as if
/// unset. Throws a UsageError for any other text.
Factoring factoring(FactoredGradients asked);

/// "off", "auto" or "always".
const char* name_of(Factoring factoring);

}  // namespace internal::core
}  // namespace lockstep
