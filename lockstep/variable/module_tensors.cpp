#include "lockstep/variable/module_tensors.h"

#include <ATen/ATen.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <torch/nn/module.h>

#include <algorithm>
#include <map>
#include <utility>

#include "lockstep/core/error.h"
#include "lockstep/core/torch_compat.h"
#include "lockstep/variable/values.h"

namespace lockstep::internal {

const char* const kFactoryRule =
    "the factory must build a new module of the same kind at each call, from LibTorch's random operators or fixed "
    "values alone";

namespace {

std::string signature(const Registered& one) {
  return fmt::format("{} {}", one.is_buffer ? "buffer" : "parameter", text_of(one.name, one.tensor));
}

const void* storage_of(const at::Tensor& tensor) { return tensor.storage().unsafeGetStorageImpl(); }

/// The positions of all bytes of a tensor's elements in its storage.
at::Tensor bytes_of(const at::Tensor& tensor) {
  at::Tensor positions = at::zeros({1}, at::kLong);
  for (int64_t d = 0; d < tensor.dim(); ++d) {
    const int64_t size = tensor.stride(d) == 0 ? 1 : tensor.size(d);
    positions = (positions.unsqueeze(1) + at::arange(size, at::kLong) * tensor.stride(d)).flatten();
  }
  const auto width = static_cast<int64_t>(tensor.element_size());
  return ((positions + tensor.storage_offset()).unsqueeze(1) * width + at::arange(width, at::kLong)).flatten();
}

/// The stretch of its storage in which a tensor lies, in bytes.
std::pair<int64_t, int64_t> stretch_of(const at::Tensor& tensor) {
  int64_t last = tensor.storage_offset();
  for (int64_t d = 0; d < tensor.dim(); ++d) last += (tensor.size(d) - 1) * tensor.stride(d);
  const auto width = static_cast<int64_t>(tensor.element_size());
  return {tensor.storage_offset() * width, (last + 1) * width};
}

bool share_an_element(const at::Tensor& a, const at::Tensor& b) {
  const auto [a_begin, a_end] = stretch_of(a);
  const auto [b_begin, b_end] = stretch_of(b);
  if (a_end <= b_begin || b_end <= a_begin) return false;
  // The stretches overlap: the elements are interleaved, as columns of one matrix are, or really shared.
  const int64_t end = std::max(a_end, b_end);
  const at::Tensor taken = at::zeros({end}, at::kBool).index_fill_(0, bytes_of(a), true);
  return taken.index_select(0, bytes_of(b)).any().item<bool>();
}

/// By storage, the different tensors in it. A tensor with several names is listed once.
std::map<const void*, std::vector<const Registered*>> by_storage(const std::vector<Registered>& tensors) {
  std::map<const void*, std::vector<const Registered*>> result;
  for (const Registered& one : tensors) {
    if (one.tensor.numel() == 0) continue;
    auto& known = result[storage_of(one.tensor)];
    const auto same = [&](const Registered* other) { return other->tensor.is_same(one.tensor); };
    if (std::none_of(known.begin(), known.end(), same)) known.push_back(&one);
  }
  return result;
}

bool needs_own_memory(const at::Tensor& tensor) {
  return !tensor.is_non_overlapping_and_dense() || tensor.is_conj() || tensor.is_neg() || tensor.is_view() ||
         !tensor.is_leaf() || tensor.is_inference();
}

}  // namespace

std::vector<Registered> registered_in(const torch::nn::Module& module) {
  std::vector<Registered> all;
  for (const auto& item : module.named_parameters()) {
    if (item.value().defined()) all.push_back({item.key(), item.value(), false});
  }
  for (const auto& item : module.named_buffers()) {
    if (item.value().defined()) all.push_back({item.key(), item.value(), true});
  }
  return all;
}

std::string text_of(const std::string& name, const at::Tensor& tensor) {
  return fmt::format("{} {} [{}]", name, c10::toString(tensor.scalar_type()), fmt::join(tensor.sizes(), ", "));
}

void check_kinds(const std::string& module, const std::vector<std::vector<Registered>>& all, int64_t first_replica) {
  for (std::size_t r = 0; r < all.size(); ++r) {
    for (const Registered& one : all[r]) {
      const Misfit found = unsuited(one.tensor);
      if (found.fits()) continue;
      throw UsageError(found.code,
                       fmt::format("{} '{}.{}' of replica {} {}", one.is_buffer ? "buffer" : "parameter", module,
                                   one.name, first_replica + static_cast<int64_t>(r), found.why),
                       "let the factory make it a dense tensor in the host's memory");
    }
  }
}

void check_alike(const std::string& module, const std::vector<std::vector<Registered>>& all, int64_t first_replica) {
  for (std::size_t r = 1; r < all.size(); ++r) {
    const std::size_t count = std::max(all[0].size(), all[r].size());
    for (std::size_t i = 0; i < count; ++i) {
      const std::string here = i < all[0].size() ? signature(all[0][i]) : "nothing";
      const std::string there = i < all[r].size() ? signature(all[r][i]) : "nothing";
      if (here == there) continue;
      throw UsageError("LS-FACTORY",
                       fmt::format("module '{}' differs between replicas: replica {} has {} where replica {} has {}",
                                   module, first_replica, here, first_replica + static_cast<int64_t>(r), there),
                       kFactoryRule);
    }
  }
}

void check_share_nothing(const std::string& module, const std::vector<std::shared_ptr<torch::nn::Module>>& modules,
                         const std::vector<std::vector<Registered>>& all, int64_t first_replica) {
  std::map<const void*, std::pair<std::size_t, std::string>> owners;
  const auto claim = [&](const void* what, std::size_t r, const std::string& name) {
    const auto [owner, fresh] = owners.try_emplace(what, r, name);
    if (fresh || owner->second.first == r) return;
    throw UsageError("LS-FACTORY",
                     fmt::format("replicas {} and {} share {} of module '{}'",
                                 first_replica + static_cast<int64_t>(owner->second.first),
                                 first_replica + static_cast<int64_t>(r), name, module),
                     kFactoryRule);
  };
  for (std::size_t r = 0; r < modules.size(); ++r) {
    for (const auto& part : modules[r]->modules()) claim(part.get(), r, "a module (" + part->name() + ")");
    for (const Registered& one : all[r]) {
      if (one.tensor.numel() > 0) claim(storage_of(one.tensor), r, "the tensor " + one.name);
    }
  }
}

void check_no_aliases(const std::string& module, const std::vector<Registered>& tensors) {
  for (const auto& [storage, sharing] : by_storage(tensors)) {
    for (std::size_t j = 1; j < sharing.size(); ++j) {
      for (std::size_t i = 0; i < j; ++i) {
        const Registered& a = *sharing[i];
        const Registered& b = *sharing[j];
        if ((a.is_buffer && b.is_buffer) || !share_an_element(a.tensor, b.tensor)) continue;
        throw UsageError(
            "LS-SHARED-MEMORY",
            fmt::format("'{}.{}' and '{}.{}' are different tensors that share memory, and {}", module, a.name, module,
                        b.name, b.is_buffer ? "one is a parameter" : "both are parameters"),
            "register one tensor under both names, which is one variable, or give each its own: clone()");
      }
    }
  }
}

void own_memory(std::vector<Registered>& tensors, const std::vector<Registered>& firsts) {
  const auto sharing = by_storage(tensors);
  const auto shares = [&](const at::Tensor& tensor) {
    return tensor.numel() > 0 && sharing.at(storage_of(tensor)).size() > 1;
  };
  std::vector<std::pair<at::Tensor*, const at::Tensor*>> found;  // decided before the first one is moved
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    at::Tensor& tensor = tensors[i].tensor;
    const at::Tensor& first = firsts[i].tensor;
    if (tensors[i].is_buffer) continue;
    if (needs_own_memory(tensor) || shares(tensor) || tensor.strides() != first.strides()) {
      found.emplace_back(&tensor, &first);
    }
  }
  for (const auto& [tensor, first] : found) {
    const bool dense = first->is_non_overlapping_and_dense();
    const at::Tensor values = plain(*tensor);
    const at::Tensor own = dense ? at::empty_strided(first->sizes(), first->strides(), first->options())
                                 : at::empty(first->sizes(), first->options());
    own.copy_(values);
    const bool requires_grad = tensor->requires_grad();
    c10::TensorImpl* const impl = tensor->unsafeGetTensorImpl();
    const bool plain_leaf = tensor->is_leaf() && !tensor->is_view() && !tensor->is_inference();
    tensor->set_data(own);
    impl->set_version_counter(c10::VariableVersion(/*version=*/0));
    if (plain_leaf) continue;
    // The tensor is no longer a view, and no longer the result of an operation.
    impl->set_autograd_meta(nullptr);
    tensor->set_requires_grad(requires_grad);
  }
}

}  // namespace lockstep::internal
