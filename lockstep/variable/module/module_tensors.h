// The tensors that a replica's module has registered: checks that replicas agree on them, and new memory for those that
// share theirs.
#pragma once

#include <ATen/core/TensorBody.h>

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "lockstep/variable/kinds/written_memory.h"

namespace torch::nn {
class Module;
}

namespace lockstep::internal::inline variable {

class VariableState;

/// A tensor of a module, under one of its names.
struct Registered {
  std::string name;  // "fc1.weight"
  at::Tensor tensor;
  bool is_buffer;
};

/// Parameters, then buffers, each in order of registration; undefined ones are left out.
std::vector<Registered> registered_in(const torch::nn::Module& module);

/// The submodule that has registered the tensor of this name, which may be `module` itself, and its name in `module`.
std::pair<const torch::nn::Module*, std::string> owner_of(const torch::nn::Module& module, std::string_view tensor);

/// "weight Float [4, 2]"
std::string text_of(const std::string& name, const at::Tensor& tensor);

/// The remedy in errors about a factory of modules: what it must do.
extern const char* const kFactoryRule;

// Checks of what a factory made for a replica. Each throws a UsageError that names the module and the tensor, and
// replicas where they matter.

/// Each tensor is strided, not nested, not quantized, and in the host's memory.
void check_kinds(const std::string& module, const std::vector<Registered>& tensors, int64_t replica);
/// The replica has the names, shapes and dtypes of the first one.
void check_alike(const std::string& module, const std::vector<Registered>& first, int64_t first_replica,
                 const std::vector<Registered>& tensors, int64_t replica);
/// No tensor is, or shares memory with, a component of the `others`: the strategy's other living variables.
void check_others_memory(const std::string& module, const std::vector<Registered>& tensors, int64_t replica,
                         const std::vector<std::shared_ptr<VariableState>>& others);

/// A range of memory and whose it is.
struct OwnedRange {
  AddressRange where;
  std::size_t owner;
  std::size_t item;  // which of the owner's
};

/// Replicas share neither submodules nor memory, be it under different storages (torch::from_blob).
class SharesNothing {
 public:
  SharesNothing(std::string module, int64_t first_replica) : module_(std::move(module)), first_(first_replica) {}
  /// The next local replica's module. Throws a UsageError that names both replicas where it shares something with one
  /// before. The modules that were added must live as long as this object.
  void add(const torch::nn::Module& module, const std::vector<Registered>& tensors);
  /// Those tensors of the replica that was added last have been given another replica's memory, by `is_given`[item].
  void forget_last(const std::vector<bool>& is_given);

 private:
  const std::string module_;
  const int64_t first_;
  std::size_t count_ = 0;                                // replicas so far
  std::unordered_map<const void*, std::size_t> owners_;  // of submodules, and of tensors with elements
  std::vector<OwnedRange> ranges_;
};

/// No parameter shares an element with another tensor of the module. Parts of one tensor (chunk, split) are allowed:
/// they share a storage, but no element.
void check_no_aliases(const std::string& module, const std::vector<Registered>& tensors);

/// Whether nothing but this parameter shows its memory, which belongs to an allocator, and own_memory() would leave it
/// where it is. Such a parameter can be given other memory of the same values before all modules have been made.
bool is_alone_in_memory(const Registered& one);

/// Moves parameters of a replica's module to new memory; they keep their values. A parameter is moved where it is not
/// dense, has a conjugate or negative bit, is a view of a part of a storage, shares its storage with another registered
/// tensor of the module, or has other strides than the first replica's. One that is a view, a result of other tensors,
/// or made in inference mode gets a version counter of its own and becomes a leaf, moved or not. `firsts` are the first
/// replica's tensors; call this for the first replica before the others.
///
/// Returns the names of moved parameters whose old memory is still shown by a tensor that is not registered. Such a
/// tensor does not see what is trained.
///
/// Invariant: afterwards each parameter is dense, and shares neither memory nor version counter with another registered
/// tensor of its module. Updates rely on it, as they write a parameter's memory from its first byte to its last; so
/// does the search for foreign writes.
std::vector<std::string> own_memory(std::vector<Registered>& tensors, const std::vector<Registered>& firsts);

}  // namespace lockstep::internal::variable
