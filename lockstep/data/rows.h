// Checks and texts for tensors that have a row for each sample.
#pragma once

#include <ATen/core/TensorBody.h>

#include <cstdint>
#include <string>

namespace lockstep::internal::inline data {

/// The size of the first dimension; -1 where there is none.
int64_t rows_of(const at::Tensor& tensor);

/// "Float [3, 28, 28]" or "undefined", for messages.
std::string text_of(const at::Tensor& tensor);

/// Throws a UsageError unless `tensor` is dense, lies in the host's memory and has at least one dimension. The message
/// names `call` and `what`: "from_tensors", "the input".
void check_rows(const at::Tensor& tensor, const char* call, const char* what);

}  // namespace lockstep::internal::data
