#include "lockstep/variable/module_tensors.h"

#include <ATen/ATen.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <torch/nn/module.h>

#include <algorithm>
#include <map>
#include <optional>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include "lockstep/core/error.h"
#include "lockstep/core/torch_compat.h"
#include "lockstep/variable/values.h"
#include "lockstep/variable/variable_state.h"
#include "lockstep/variable/written_memory.h"

namespace lockstep::internal {

const char* const kFactoryRule =
    "the factory must build a new module of the same kind at each call, from LibTorch's random operators or fixed "
    "values alone";

namespace {

std::string signature(const Registered& one) {
  return fmt::format("{} {}", one.is_buffer ? "buffer" : "parameter", text_of(one.name, one.tensor));
}

const void* storage_of(const at::Tensor& tensor) { return tensor.storage().unsafeGetStorageImpl(); }

/// How far all bytes of a tensor's elements lie behind the address `base`.
at::Tensor bytes_of(const at::Tensor& tensor, std::uintptr_t base) {
  at::Tensor positions = at::zeros({1}, at::kLong);
  for (int64_t d = 0; d < tensor.dim(); ++d) {
    const int64_t size = tensor.stride(d) == 0 ? 1 : tensor.size(d);
    positions = (positions.unsqueeze(1) + at::arange(size, at::kLong) * tensor.stride(d)).flatten();
  }
  const auto width = static_cast<int64_t>(tensor.element_size());
  const auto begin = static_cast<int64_t>(stretch_of(tensor).begin - base);
  return ((positions * width).unsqueeze(1) + at::arange(width, at::kLong) + begin).flatten();
}

bool share_an_element(const at::Tensor& a, const at::Tensor& b) {
  const Stretch left = stretch_of(a);
  const Stretch right = stretch_of(b);
  if (!left.overlaps(right)) return false;
  // The stretches overlap: the elements are interleaved, as columns of one matrix are, or really shared.
  const std::uintptr_t begin = std::min(left.begin, right.begin);
  const auto bytes = static_cast<int64_t>(std::max(left.end, right.end) - begin);
  const at::Tensor taken = at::zeros({bytes}, at::kBool).index_fill_(0, bytes_of(a, begin), true);
  return taken.index_select(0, bytes_of(b, begin)).any().item<bool>();
}

/// A stretch of memory and whose it is.
struct Claim {
  Stretch where;
  std::size_t owner;
  std::size_t item;  // which of the owner's
};

/// Two claims of different owners that overlap, the lower owner's first, or nothing. Of several such pairs it is the
/// one whose second claim has the lowest owner and item. Takes time in proportion to n log n.
std::optional<std::pair<Claim, Claim>> dispute_in(std::vector<Claim> claims) {
  std::erase_if(claims, [](const Claim& claim) { return claim.where.empty(); });
  std::sort(claims.begin(), claims.end(), [](const Claim& a, const Claim& b) { return a.where.begin < b.where.begin; });
  std::optional<std::pair<Claim, Claim>> found;
  const auto note = [&](Claim first, Claim second) {
    if (first.owner > second.owner) std::swap(first, second);
    const bool earlier =
        !found || std::pair(second.owner, second.item) < std::pair(found->second.owner, found->second.item);
    if (earlier) found = {first, second};
  };
  // Of the claims so far: the one that reaches furthest, and of the other owners' the one that reaches furthest.
  const Claim* furthest = nullptr;
  const Claim* others = nullptr;
  for (const Claim& claim : claims) {
    const Claim* const rival = furthest && furthest->owner == claim.owner ? others : furthest;
    if (rival && rival->where.overlaps(claim.where)) note(*rival, claim);
    if (!furthest || claim.where.end > furthest->where.end) {
      if (furthest && furthest->owner != claim.owner) others = furthest;
      furthest = &claim;
    } else if (claim.owner != furthest->owner && (!others || claim.where.end > others->where.end)) {
      others = &claim;
    }
  }
  return found;
}

/// The different tensors with elements, in groups whose stretches of memory hang together. A tensor with several names
/// is listed once; a group is in order of registration.
std::vector<std::vector<const Registered*>> by_stretch(const std::vector<Registered>& tensors) {
  std::vector<const Registered*> all;
  std::unordered_set<const at::TensorImpl*> known;
  for (const Registered& one : tensors) {
    if (one.tensor.numel() > 0 && known.insert(one.tensor.unsafeGetTensorImpl()).second) all.push_back(&one);
  }
  std::sort(all.begin(), all.end(), [](const Registered* a, const Registered* b) {
    return stretch_of(a->tensor).begin < stretch_of(b->tensor).begin;
  });
  std::vector<std::vector<const Registered*>> groups;
  std::uintptr_t end = 0;
  for (const Registered* one : all) {
    const Stretch stretch = stretch_of(one->tensor);
    if (stretch.begin >= end) groups.emplace_back();
    groups.back().push_back(one);
    end = std::max(end, stretch.end);
  }
  for (auto& group : groups) std::sort(group.begin(), group.end());  // pointers into one vector
  return groups;
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
  const auto refuse = [&](std::size_t r, std::size_t s, const std::string& what) {
    throw UsageError("LS-FACTORY",
                     fmt::format("replicas {} and {} share {} of module '{}'", first_replica + static_cast<int64_t>(r),
                                 first_replica + static_cast<int64_t>(s), what, module),
                     kFactoryRule);
  };
  std::unordered_map<const torch::nn::Module*, std::size_t> owners;
  std::vector<Claim> claims;
  for (std::size_t r = 0; r < modules.size(); ++r) {
    for (const auto& part : modules[r]->modules()) {
      const std::size_t owner = owners.try_emplace(part.get(), r).first->second;
      if (owner != r) refuse(owner, r, "a module (" + part->name() + ")");
    }
    for (std::size_t i = 0; i < all[r].size(); ++i) claims.push_back({stretch_of_storage(all[r][i].tensor), r, i});
  }
  if (const auto dispute = dispute_in(std::move(claims))) {
    const auto& [first, second] = *dispute;
    refuse(first.owner, second.owner, "the tensor " + all[second.owner][second.item].name);
  }
}

void check_no_aliases(const std::string& module, const std::vector<Registered>& tensors) {
  for (const auto& sharing : by_stretch(tensors)) {
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

void check_others_memory(const std::string& module, const std::vector<std::vector<Registered>>& all,
                         int64_t first_replica, const std::vector<std::shared_ptr<VariableState>>& others) {
  const std::size_t count = all.front().size();
  const auto refuse = [&](std::size_t item, const VariableState& other) {
    throw UsageError(
        "LS-FACTORY",
        fmt::format("variable '{}.{}' would share its tensor or memory, on replica {}, with variable '{}'", module,
                    all[item / count][item % count].name, first_replica + static_cast<int64_t>(item / count),
                    other.name()),
        "let each factory make its own layers; for a layer that two models use, make one module that contains both");
  };
  std::unordered_map<const at::TensorImpl*, std::size_t> ours;
  std::vector<Claim> claims;
  for (std::size_t r = 0; r < all.size(); ++r) {
    for (std::size_t i = 0; i < count; ++i) {
      const at::Tensor& tensor = all[r][i].tensor;
      ours.emplace(tensor.unsafeGetTensorImpl(), r * count + i);
      claims.push_back({stretch_of(tensor), 1, r * count + i});
    }
  }
  for (std::size_t v = 0; v < others.size(); ++v) {
    for (int64_t r = 0; r < others[v]->num_components(); ++r) {
      // A tensor without elements has no memory, but its version counter would be shared.
      const auto same = ours.find(others[v]->component(r).unsafeGetTensorImpl());
      if (same != ours.end()) refuse(same->second, *others[v]);
      claims.push_back({stretch_of(others[v]->component(r)), 0, v});
    }
  }
  if (const auto dispute = dispute_in(std::move(claims))) refuse(dispute->second.item, *others[dispute->first.item]);
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
