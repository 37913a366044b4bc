// Gives the tensors of a recorded run numbers, and notices memory that is written without an operator.
#pragma once

#include <ATen/core/TensorBody.h>
#include <c10/core/StorageImpl.h>
#include <c10/util/intrusive_ptr.h>

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "lockstep/capture/step_form.h"

namespace lockstep::internal::inline capture {

/// Whether a tensor is a gradient that stays factors (linear/factored_tensor.h).
bool has_no_memory(const at::Tensor& tensor);

/// One replica's, for one run. A tensor is known by its memory, by weak reference, and by the way in which it shows
/// that.
class TensorNumbers {
 public:
  using Refuse = std::function<void(const std::string& why)>;

  /// Adds sources, tensors and variables to `form`, which outlives it, as do `variables`, all of the strategy's.
  /// `known` is the recording of an earlier run, if there is one: what its function refers to must not be written
  /// before it is read. `refuse` is called for what cannot be recorded.
  TensorNumbers(StepForm& form, std::span<const std::shared_ptr<VariableState>> variables, int64_t replica,
                const StepForm* known, Refuse refuse);
  /// Before everything else: the tensors that the step is given.
  void add_arguments(std::span<const at::Tensor> arguments);

  /// The number of a tensor, which may be new; kUndefined of an undefined one. `node` has made it where nothing has its
  /// memory yet; -1: it was there before.
  int32_t number_of(const at::Tensor& tensor, int64_t node);
  /// From here on another node makes tensors.
  void begin_node() { made_ = 0; }
  /// Whether a tensor with this memory has a number.
  bool knows_memory_of(const at::Tensor& tensor) const;
  /// In StepForm::variables: the variable that `tensor` is, or is a part of; -1: none.
  int32_t variable_with(const at::Tensor& tensor);
  /// The same for the i-th of the strategy's variables.
  int32_t number_of_variable(std::size_t i);
  const Source& source_of(int32_t number) const;

  // Checksums. An operator reads what the last one has left, or else somebody has written it meanwhile.

  void check_before(int32_t number, const at::Tensor& tensor, bool is_written);
  void note_after(int32_t number, const at::Tensor& tensor, bool is_written);
  void note_result(int32_t number, const at::Tensor& tensor);
  /// Its memory has nothing yet.
  void note_empty(const at::Tensor& tensor);
  /// At the end of the run: a number without dimensions that LibTorch has made without an operator, and that is gone,
  /// is a number of the function's own.
  void settle_scalars();
  /// A call of the library has perhaps written variables, and given them other memory.
  void forget_variables();

 private:
  /// A memory that was seen in this run.
  struct Memory {
    std::optional<c10::weak_intrusive_ptr<c10::StorageImpl>> storage = {};
    std::vector<int32_t> tensors = {};  // that show it
    bool is_shared = false;             // of arguments or variables: others may use other parts of it
    std::optional<uint64_t> sum = {};   // of all of it, where it is not shared
    bool is_written = true;             // false: made empty, and no operator has written it since
  };

  int32_t number_of_factors(const at::Tensor& tensor, int64_t node);
  int32_t number_of_new_memory(const at::Tensor& tensor, int64_t node);
  int32_t add_tensor(Memory& memory, const at::Tensor& tensor, int32_t source);
  /// `offset` is where the source's own tensor begins in its memory.
  int32_t add_source(const Source& source, int64_t offset);
  Memory* seen_memory(const at::Tensor& tensor);

  StepForm& form_;
  const std::span<const std::shared_ptr<VariableState>> variables_;
  const int64_t replica_;
  const Refuse refuse_;
  std::unordered_map<const c10::StorageImpl*, Memory> memories_;
  std::unordered_map<const c10::TensorImpl*, int32_t> factors_;        // tensors without memory
  std::vector<c10::weak_intrusive_ptr<c10::TensorImpl>> kept_;         // theirs, whose addresses no other tensor gets
  std::map<int32_t, c10::Scalar> outer_scalars_;                       // by source: what it was
  std::vector<int64_t> origins_;                                       // by source: its offset, in bytes
  std::vector<std::optional<uint64_t>> sums_;                          // by tensor, of shared memory
  std::unordered_map<const c10::StorageImpl*, uint64_t> sums_before_;  // of what an earlier run referred to
  std::unordered_map<const c10::StorageImpl*, std::vector<std::size_t>> variables_in_;
  std::vector<c10::weak_intrusive_ptr<c10::StorageImpl>> variable_memories_;  // whose addresses no other memory gets
  std::map<std::size_t, int32_t> variable_numbers_;                           // in form_.variables
  int64_t made_ = 0;                                                          // tensors of the node under way
};

}  // namespace lockstep::internal::capture
