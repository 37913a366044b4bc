// The tensors that a replica's module has registered: whether replicas agree on them, and memory of their own.
#pragma once

#include <ATen/core/TensorBody.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace torch::nn {
class Module;
}

namespace lockstep::internal {

/// A tensor of a module, under one of its names.
struct Registered {
  std::string name;  // "fc1.weight"
  at::Tensor tensor;
  bool is_buffer;
};

/// Parameters, then buffers, each in order of registration; undefined ones are left out.
std::vector<Registered> registered_in(const torch::nn::Module& module);

/// "weight Float [4, 2]"
std::string text_of(const std::string& name, const at::Tensor& tensor);

/// What a factory of modules must do.
extern const char* const kFactoryRule;

// Checks of what a factory made; `all[r]` is local replica r's. Each throws a UsageError that names the module and the
// tensor, and replicas where they matter.

/// Each tensor is a dense or strided one in the host's memory.
void check_kinds(const std::string& module, const std::vector<std::vector<Registered>>& all, int64_t first_replica);
/// Replicas have the same names, shapes and dtypes.
void check_alike(const std::string& module, const std::vector<std::vector<Registered>>& all, int64_t first_replica);
/// Replicas share neither parts nor memory.
void check_share_nothing(const std::string& module, const std::vector<std::shared_ptr<torch::nn::Module>>& modules,
                         const std::vector<std::vector<Registered>>& all, int64_t first_replica);
/// No element of a parameter lies in the memory of another tensor of the module; parts of one tensor (chunk, split)
/// may.
void check_no_aliases(const std::string& module, const std::vector<Registered>& tensors);

/// Gives each parameter of a replica's module memory and a version counter of its own, values kept, where it needs
/// them: where it is not dense, has a conjugate or negative bit, is a view of another tensor, a result of other tensors
/// or of inference mode, shares its memory with another tensor of the module, or is laid out unlike the first
/// replica's. `firsts` are the first replica's tensors, which are given their own memory first.
///
/// Updates go over a parameter's memory from its first byte to its last, and a version counter tells who wrote it: both
/// rest on this.
void own_memory(std::vector<Registered>& tensors, const std::vector<Registered>& firsts);

}  // namespace lockstep::internal
