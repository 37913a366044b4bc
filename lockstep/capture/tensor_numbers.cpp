#include "lockstep/capture/tensor_numbers.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <utility>

#include "lockstep/core/loops/checksum.h"
#include "lockstep/core/tensors/host_bytes.h"
#include "lockstep/intercept/keys.h"
#include "lockstep/intercept/scopes.h"

namespace lockstep::internal::inline capture {

bool has_no_memory(const at::Tensor& tensor) { return !tensor.has_storage() || tensor.key_set().has(kBelowAutograd); }

namespace {

bool is_plain(const at::Tensor& tensor) {
  return tensor.has_storage() && tensor.layout() == at::kStrided && tensor.device().is_cpu() && !tensor.is_conj() &&
         !tensor.is_neg() && !tensor.is_quantized();
}

int64_t offset_of(const at::Tensor& tensor) {
  return tensor.storage_offset() * static_cast<int64_t>(tensor.element_size());
}

/// Of a small tensor it is looked whether an operator writes what it does not say it writes, as batch normalisation
/// does with its statistics.
constexpr int64_t kSmall = 256 << 10;

/// Of all bytes of a tensor's memory.
std::optional<uint64_t> sum_of_memory(const c10::Storage& storage) {
  if (storage.nbytes() == 0) return std::nullopt;
  at::Tensor bytes = at::detail::make_tensor<c10::TensorImpl>(
      c10::Storage(storage), c10::DispatchKeySet(c10::DispatchKey::CPU), c10::scalarTypeToTypeMeta(at::kByte));
  bytes.unsafeGetTensorImpl()->set_sizes_contiguous({static_cast<int64_t>(storage.nbytes())});
  return checksum(host_bytes(bytes).data(), static_cast<int64_t>(storage.nbytes()));
}

std::optional<uint64_t> sum_of(const at::Tensor& tensor) {
  if (!tensor.defined() || has_no_memory(tensor) || tensor.numel() == 0) return std::nullopt;
  if (!tensor.is_non_overlapping_and_dense()) return std::nullopt;
  const std::span<const std::byte> bytes = host_bytes(tensor);
  return checksum(bytes.data(), static_cast<int64_t>(bytes.size()));
}

}  // namespace

TensorNumbers::TensorNumbers(StepForm& form, std::span<const std::shared_ptr<VariableState>> variables, int64_t replica,
                             const StepForm* known, Refuse refuse)
    : form_(form), variables_(variables), replica_(replica), refuse_(std::move(refuse)) {
  forget_variables();
  if (!known) return;
  for (const auto& weak : known->outer) {
    const c10::intrusive_ptr<c10::StorageImpl> storage = weak.lock();
    if (!storage) continue;
    const std::optional<uint64_t> sum = sum_of_memory(c10::Storage(storage));
    if (sum) sums_before_[storage.get()] = *sum;
  }
}

void TensorNumbers::add_arguments(std::span<const at::Tensor> arguments) {
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    const at::Tensor& one = arguments[i];
    if (!one.defined()) continue;
    if (!is_plain(one)) return refuse_("is given a tensor that is not dense in the host's memory");
    if (one.requires_grad()) refuse_("is given a tensor that requires a gradient");
    if (variable_with(one) >= 0) refuse_("is given a tensor that has the memory of a variable");
    // Each is a source of its own, also where several have one memory.
    Memory& memory = memories_[one.storage().unsafeGetStorageImpl()];
    if (memory.tensors.empty()) memory.storage = one.storage().getWeakStorageImpl();
    memory.is_shared = true;
    const Source source{.kind = Source::Kind::kArgument, .index = static_cast<int64_t>(i)};
    add_tensor(memory, one, add_source(source, offset_of(one)));
  }
}

bool TensorNumbers::knows_memory_of(const at::Tensor& tensor) const {
  return tensor.has_storage() && memories_.contains(tensor.storage().unsafeGetStorageImpl());
}

const Source& TensorNumbers::source_of(int32_t number) const {
  return form_.sources[static_cast<std::size_t>(form_.tensors[static_cast<std::size_t>(number)].source)];
}

int32_t TensorNumbers::add_source(const Source& source, int64_t offset) {
  form_.sources.push_back(source);
  origins_.push_back(offset);
  return static_cast<int32_t>(form_.sources.size() - 1);
}

int32_t TensorNumbers::add_tensor(Memory& memory, const at::Tensor& tensor, int32_t source) {
  form_.tensors.push_back({.source = source,
                           .offset = offset_of(tensor) - origins_[static_cast<std::size_t>(source)],
                           .sizes = tensor.sizes().vec(),
                           .strides = tensor.strides().vec(),
                           .dtype = tensor.scalar_type(),
                           .is_number = tensor.unsafeGetTensorImpl()->is_wrapped_number()});
  sums_.emplace_back();
  memory.tensors.push_back(static_cast<int32_t>(form_.tensors.size() - 1));
  return memory.tensors.back();
}

TensorNumbers::Memory* TensorNumbers::seen_memory(const at::Tensor& tensor) {
  if (has_no_memory(tensor)) return nullptr;
  const auto found = memories_.find(tensor.storage().unsafeGetStorageImpl());
  return found == memories_.end() ? nullptr : &found->second;
}

int32_t TensorNumbers::number_of(const at::Tensor& tensor, int64_t node) {
  if (!tensor.defined()) return kUndefined;
  if (has_no_memory(tensor) || factors_.contains(tensor.unsafeGetTensorImpl())) return number_of_factors(tensor, node);
  if (!is_plain(tensor)) {
    refuse_("has a tensor that is not dense in the host's memory");
    return kUndefined;
  }
  const auto found = memories_.find(tensor.storage().unsafeGetStorageImpl());
  if (found == memories_.end()) return number_of_new_memory(tensor, node);
  Memory& memory = found->second;
  for (const int32_t number : memory.tensors) {
    const StepTensor& known = form_.tensors[static_cast<std::size_t>(number)];
    const int64_t offset = origins_[static_cast<std::size_t>(known.source)] + known.offset;
    if (offset == offset_of(tensor) && tensor.sizes() == known.sizes && tensor.strides() == known.strides &&
        tensor.scalar_type() == known.dtype && tensor.unsafeGetTensorImpl()->is_wrapped_number() == known.is_number)
      return number;
  }
  // Another variable in the same memory is a source of its own: it may be moved alone.
  if (const int32_t variable = variable_with(tensor); variable >= 0) {
    const int64_t own = offset_of(form_.variables[static_cast<std::size_t>(variable)]->component(replica_));
    for (std::size_t s = form_.sources.size(); s-- > 0;) {  // the last one: it may have been moved meanwhile
      if (form_.sources[s] == Source{.kind = Source::Kind::kVariable, .index = variable})
        return add_tensor(memory, tensor, static_cast<int32_t>(s));
    }
    return add_tensor(memory, tensor, add_source({.kind = Source::Kind::kVariable, .index = variable}, own));
  }
  // Every view that a step makes is heard. What shows a part of this memory in another way was there before.
  if (node < 0) {
    refuse_("refers to a view that it did not make itself, of an argument or of a result");
    return kUndefined;
  }
  // The source of those before it that begins at or before it, as views of one argument of several in one memory do.
  int32_t best = form_.tensors[static_cast<std::size_t>(memory.tensors.front())].source;
  for (const int32_t number : memory.tensors) {
    const int32_t source = form_.tensors[static_cast<std::size_t>(number)].source;
    const int64_t offset = origins_[static_cast<std::size_t>(source)];
    if (offset <= offset_of(tensor) && offset > origins_[static_cast<std::size_t>(best)]) best = source;
  }
  return add_tensor(memory, tensor, best);
}

int32_t TensorNumbers::number_of_factors(const at::Tensor& tensor, int64_t node) {
  const auto found = factors_.find(tensor.unsafeGetTensorImpl());
  if (found != factors_.end()) {
    if (!has_no_memory(tensor)) refuse_("reads a gradient that stays factors, as the sum of two such gradients does");
    return found->second;
  }
  if (node < 0 || tensor.layout() != at::kStrided) {
    refuse_("has a tensor without memory");
    return kUndefined;
  }
  const int32_t source = add_source({.kind = Source::Kind::kFactors, .index = node, .output = made_++}, 0);
  form_.tensors.push_back({.source = source, .sizes = tensor.sizes().vec(), .dtype = tensor.scalar_type()});
  sums_.emplace_back();
  kept_.emplace_back(tensor.getIntrusivePtr());
  return factors_[tensor.unsafeGetTensorImpl()] = static_cast<int32_t>(form_.tensors.size() - 1);
}

int32_t TensorNumbers::variable_with(const at::Tensor& tensor) {
  const auto found = variables_in_.find(tensor.storage().unsafeGetStorageImpl());
  if (found == variables_in_.end()) return -1;
  for (const std::size_t i : found->second) {
    const at::Tensor& component = variables_[i]->component(replica_);
    if (!component.storage().is_alias_of(tensor.storage())) continue;  // an update has moved it
    // In bytes: a view may have another dtype.
    const int64_t begin = offset_of(component);
    const auto size = static_cast<int64_t>(std::max<std::size_t>(component.nbytes(), 1));
    if (offset_of(tensor) < begin || offset_of(tensor) >= begin + size) continue;
    return number_of_variable(i);
  }
  return -1;
}

int32_t TensorNumbers::number_of_variable(std::size_t i) {
  const auto [number, is_new] = variable_numbers_.emplace(i, static_cast<int32_t>(form_.variables.size()));
  if (is_new) form_.variables.push_back(variables_[i]);
  return number->second;
}

int32_t TensorNumbers::number_of_new_memory(const at::Tensor& tensor, int64_t node) {
  const c10::StorageImpl* const storage = tensor.storage().unsafeGetStorageImpl();
  Source source{.kind = Source::Kind::kResult, .index = node, .output = made_};
  int64_t offset = offset_of(tensor);
  if (node >= 0) {
    ++made_;
  } else if (const int32_t variable = variable_with(tensor); variable >= 0) {
    source = {.kind = Source::Kind::kVariable, .index = variable};
    offset = offset_of(form_.variables[static_cast<std::size_t>(variable)]->component(replica_));
  } else if (tensor.unsafeGetTensorImpl()->is_wrapped_number()) {
    source = {.kind = Source::Kind::kScalar, .index = static_cast<int64_t>(form_.scalars.size())};
    const DeafScope deaf;
    form_.scalars.push_back(tensor.item());
  } else {
    if (tensor.requires_grad()) refuse_("refers to a tensor that requires a gradient and is no variable");
    source = {.kind = Source::Kind::kOuter, .index = static_cast<int64_t>(form_.outer.size()), .storage = storage};
    offset = 0;
    form_.outer.emplace_back(tensor.storage().getWeakStorageImpl());
    if (tensor.dim() == 0) {
      const DeafScope deaf;
      outer_scalars_[static_cast<int32_t>(form_.sources.size())] = tensor.item();
    }
  }
  Memory& memory = memories_.emplace(storage, Memory{tensor.storage().getWeakStorageImpl()}).first->second;
  memory.is_shared = source.kind == Source::Kind::kVariable;
  if (const auto before = sums_before_.find(storage); before != sums_before_.end()) memory.sum = before->second;
  return add_tensor(memory, tensor, add_source(source, offset));
}

void TensorNumbers::check_before(int32_t number, const at::Tensor& tensor, bool is_written) {
  Memory* const found = seen_memory(tensor);
  if (!found) return;
  Memory& memory = *found;
  if (!memory.is_written) {
    if (is_written) return;
    if (tensor.numel() > 0)
      refuse_("makes a tensor and writes it without an operator (torch::tensor({...}), data_ptr() or accessor())");
    return;
  }
  std::optional<uint64_t>& known = memory.is_shared ? sums_[static_cast<std::size_t>(number)] : memory.sum;
  const std::optional<uint64_t> now = memory.is_shared ? sum_of(tensor) : sum_of_memory(tensor.storage());
  if (known && now && *known != *now)
    refuse_("writes a tensor without an operator (data_ptr() or accessor(), or on another thread)");
  known = now;
}

void TensorNumbers::note_after(int32_t number, const at::Tensor& tensor, bool is_written) {
  Memory* const found = seen_memory(tensor);
  if (!found) return;
  if (!is_written && static_cast<int64_t>(tensor.nbytes()) > kSmall) return;
  Memory& memory = *found;
  if (!memory.is_shared) {
    memory.is_written = memory.is_written || is_written;
    memory.sum = sum_of_memory(tensor.storage());
    return;
  }
  const std::optional<uint64_t> now = sum_of(tensor);
  if (!is_written && now == sums_[static_cast<std::size_t>(number)]) return;
  for (const int32_t other : memory.tensors) sums_[static_cast<std::size_t>(other)].reset();
  sums_[static_cast<std::size_t>(number)] = now;
}

void TensorNumbers::note_result(int32_t number, const at::Tensor& tensor) {
  Memory* const memory = seen_memory(tensor);
  if (memory && !memory->is_shared && source_of(number).kind == Source::Kind::kResult)
    memory->sum = sum_of_memory(tensor.storage());
}

void TensorNumbers::settle_scalars() {
  std::vector<c10::weak_intrusive_ptr<c10::StorageImpl>> left;
  for (std::size_t s = 0; s < form_.sources.size(); ++s) {
    Source& source = form_.sources[s];
    if (source.kind != Source::Kind::kOuter) continue;
    const auto& memory = form_.outer[static_cast<std::size_t>(source.index)];
    const auto scalar = outer_scalars_.find(static_cast<int32_t>(s));
    if (scalar != outer_scalars_.end() && memory.expired()) {
      source = {.kind = Source::Kind::kScalar, .index = static_cast<int64_t>(form_.scalars.size())};
      form_.scalars.push_back(scalar->second);
    } else {
      source.index = static_cast<int64_t>(left.size());
      left.push_back(memory);
    }
  }
  form_.outer = std::move(left);
}

void TensorNumbers::note_empty(const at::Tensor& tensor) {
  if (Memory* const memory = seen_memory(tensor)) memory->is_written = false;
}

void TensorNumbers::forget_variables() {
  for (std::size_t i = 0; i < variables_.size(); ++i) {
    const c10::Storage& storage = variables_[i]->component(replica_).storage();
    std::vector<std::size_t>& here = variables_in_[storage.unsafeGetStorageImpl()];
    if (here.empty()) variable_memories_.emplace_back(storage.getWeakStorageImpl());
    if (std::ranges::find(here, i) == here.end()) here.push_back(i);
  }
  for (std::size_t t = 0; t < sums_.size(); ++t) {
    if (source_of(static_cast<int32_t>(t)).kind == Source::Kind::kVariable) sums_[t].reset();
  }
}

}  // namespace lockstep::internal::capture
