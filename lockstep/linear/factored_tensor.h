// A gradient that stays a pair of factors until somebody looks at it.
#pragma once

#include <ATen/core/TensorBody.h>

#include <cstdint>
#include <memory>

#include "lockstep/reduce/factors.h"

namespace lockstep::internal::inline variable {
class VariableState;
}  // namespace lockstep::internal::variable

namespace lockstep::internal::inline linear {

/// The most samples, of all terms together, that a gradient keeps as factors. LibTorch's product adds more of them in
/// another order.
inline constexpr int64_t kMostSamples = 192;

/// Tells LibTorch, once in the process, what operators do with the tensors that make_factored() makes. Call before a
/// replica computes.
void register_factored_tensors();

/// A tensor with the shape of the factors' matrix and without memory. It behaves as the matrix does: the first LibTorch
/// operator that reads or writes it, or a view of it, materializes the matrix, and from then on it is an ordinary
/// tensor. Only t(), detach() and alias() leave it as it is, because autograd uses them on the way to .grad(); and
/// add() and add_() of two such tensors join their factors, as accumulation over micro-batches does.
///
/// One thread at a time uses the tensors of one matrix until it is materialized, because that changes all of them.
///
/// data_ptr() and accessor() use no operator. Before the first operator they throw a c10::Error; from LibTorch 2.4 on
/// it names the variable and says what to do. `variable` is the one whose gradient it is: its gradient_form() is set to
/// kRead when the matrix is materialized.
///
/// Requires register_factored_tensors().
at::Tensor make_factored(std::shared_ptr<const Factors> factors, const std::shared_ptr<VariableState>& variable);

/// Computes the matrix of a tensor that make_factored() made, which gives the tensor its memory. Other tensors stay as
/// they are. A UsageError for a tensor that was given such a gradient by set_data() or .data.
void materialize(const at::Tensor& tensor);

/// The update reads the gradient of `variable` from memory: materializes it where it has none. Notes in the variable of
/// a large matrix that it was computed otherwise, unless an earlier backward left a reason why gradients are written.
void require_in_memory(const at::Tensor& gradient, VariableState& variable);

/// The factors of a tensor that make_factored() made, or of a sum of such tensors, where nobody has looked at it and it
/// is not transposed; otherwise null.
std::shared_ptr<const Factors> factors_of(const at::Tensor& tensor);

}  // namespace lockstep::internal::linear
