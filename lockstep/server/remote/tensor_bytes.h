// Tensors, values of steps and errors as bytes between tasks, and readers that believe nothing of what came.
#pragma once

#include <ATen/core/TensorBody.h>

#include <exception>
#include <string>

#include "lockstep/core/bytes.h"
#include "lockstep/server/step_value.h"

namespace lockstep::internal::inline server {

/// A UsageError (LS-STEP-VALUE) for a tensor whose dtype or layout has no bytes here.
void require_sendable(const at::Tensor& tensor);

/// An undefined tensor, a dense one, or a sparse one of a gradient; in the host's memory, without its graph. The error
/// of require_sendable() for any other one.
void put(std::string& bytes, const at::Tensor& tensor);
/// Throws the PeerError of `from` where the bytes are none. Memory is taken for what has come, and no more.
at::Tensor get_tensor(MessageReader& from);

void put(std::string& bytes, const StepValue& value);
StepValue get_step_value(MessageReader& from);

/// An exception by the name of its type and its text.
void put_error(std::string& bytes, const std::exception_ptr& error);
/// One of the same type where that is the library's or of the standard library; otherwise a std::runtime_error whose
/// text begins with the type's name.
std::exception_ptr get_error(MessageReader& from);

}  // namespace lockstep::internal::server
