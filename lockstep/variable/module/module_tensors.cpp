#include "lockstep/variable/module/module_tensors.h"

#include <ATen/ATen.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/variable.h>
#include <torch/nn/module.h>

#include <algorithm>
#include <map>
#include <optional>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include "lockstep/core/error.h"
#include "lockstep/core/torch_compat.h"
#include "lockstep/variable/kinds/written_memory.h"
#include "lockstep/variable/values.h"
#include "lockstep/variable/variable_state.h"

namespace lockstep::internal::inline variable {

const char* const kFactoryRule =
    "the factory must build a new module of the same kind at each call, from LibTorch's random operators or fixed "
    "values alone";

namespace {

std::string signature(const Registered& one) {
  return fmt::format("{} {}", one.is_buffer ? "buffer" : "parameter", text_of(one.name, one.tensor));
}

const void* storage_of(const at::Tensor& tensor) { return tensor.storage().unsafeGetStorageImpl(); }

/// The elements of `mask`, one for each byte from the address `base` on, in which a tensor's elements lie.
at::Tensor bytes_of(const at::Tensor& tensor, const at::Tensor& mask, std::uintptr_t base) {
  const auto width = static_cast<int64_t>(tensor.element_size());
  std::vector<int64_t> sizes = tensor.sizes().vec();
  std::vector<int64_t> strides = tensor.strides().vec();
  for (int64_t& stride : strides) stride *= width;
  sizes.push_back(width);
  strides.push_back(1);
  return mask.as_strided(sizes, strides, static_cast<int64_t>(address_range_of(tensor).begin - base));
}

bool share_an_element(const at::Tensor& a, const at::Tensor& b) {
  const AddressRange left = address_range_of(a);
  const AddressRange right = address_range_of(b);
  if (!left.overlaps(right)) return false;
  // The ranges overlap: the elements are interleaved, as columns of one matrix are, or really shared.
  const std::uintptr_t begin = std::min(left.begin, right.begin);
  const auto bytes = static_cast<int64_t>(std::max(left.end, right.end) - begin);
  const at::Tensor mask = at::zeros({bytes}, at::kBool);
  bytes_of(a, mask, begin).fill_(true);
  return bytes_of(b, mask, begin).any().item<bool>();
}

/// Two ranges of different owners that overlap, the lower owner's first, or nothing. Which of
/// several such pairs it is depends on their addresses. Takes time in proportion to n log n.
std::optional<std::pair<OwnedRange, OwnedRange>> overlap_of_two_owners(std::vector<OwnedRange> ranges) {
  std::erase_if(ranges, [](const OwnedRange& range) { return range.where.empty(); });
  std::sort(ranges.begin(), ranges.end(),
            [](const OwnedRange& a, const OwnedRange& b) { return a.where.begin < b.where.begin; });
  std::optional<std::pair<OwnedRange, OwnedRange>> found;
  const auto note = [&](OwnedRange first, OwnedRange second) {
    if (first.owner > second.owner) std::swap(first, second);
    const bool earlier =
        !found || std::pair(second.owner, second.item) < std::pair(found->second.owner, found->second.item);
    if (earlier) found = {first, second};
  };
  // Of the ranges so far: the one that reaches furthest, and of the other owners' the one that reaches furthest.
  const OwnedRange* furthest = nullptr;
  const OwnedRange* others = nullptr;
  for (const OwnedRange& range : ranges) {
    const OwnedRange* const rival = furthest && furthest->owner == range.owner ? others : furthest;
    if (rival && rival->where.overlaps(range.where)) note(*rival, range);
    if (!furthest || range.where.end > furthest->where.end) {
      if (furthest && furthest->owner != range.owner) others = furthest;
      furthest = &range;
    } else if (range.owner != furthest->owner && (!others || range.where.end > others->where.end)) {
      others = &range;
    }
  }
  return found;
}

/// The different tensors with elements, in groups whose ranges of memory hang together. A tensor with several names
/// is listed once; a group is in order of registration.
std::vector<std::vector<const Registered*>> by_range(const std::vector<Registered>& tensors) {
  std::vector<const Registered*> all;
  std::unordered_set<const at::TensorImpl*> known;
  for (const Registered& one : tensors) {
    if (one.tensor.numel() > 0 && known.insert(one.tensor.unsafeGetTensorImpl()).second) all.push_back(&one);
  }
  std::sort(all.begin(), all.end(), [](const Registered* a, const Registered* b) {
    return address_range_of(a->tensor).begin < address_range_of(b->tensor).begin;
  });
  std::vector<std::vector<const Registered*>> groups;
  std::uintptr_t end = 0;
  for (const Registered* one : all) {
    const AddressRange range = address_range_of(one->tensor);
    if (range.begin >= end) groups.emplace_back();
    groups.back().push_back(one);
    end = std::max(end, range.end);
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

/// Whether the tensor has a version counter and a place in autograd of its own, and can be written in place.
bool is_plain_leaf(const at::Tensor& tensor) { return tensor.is_leaf() && !tensor.is_view() && !tensor.is_inference(); }

/// Whether an update may write the tensor's memory from its first byte to its last. What is a view, or the result of an
/// operation, may lie in memory that others have a part of, unless it fills its storage.
bool can_stay(const at::Tensor& tensor) {
  if (!tensor.is_non_overlapping_and_dense() || tensor.is_conj() || tensor.is_neg()) return false;
  const bool fills_storage = tensor.storage_offset() == 0 && tensor.storage().nbytes() == tensor.nbytes();
  return is_plain_leaf(tensor) || fills_storage;
}

/// Gives the tensor the memory of `own`, with a new version counter. It is a leaf then, neither a view nor the result
/// of an operation, and keeps its hooks.
void give_memory(at::Tensor& tensor, const at::Tensor& own) {
  using torch::autograd::AutogradMeta;
  const bool requires_grad = tensor.requires_grad();
  const bool plain_leaf = is_plain_leaf(tensor);
  c10::TensorImpl* const impl = tensor.unsafeGetTensorImpl();
  tensor.set_data(own);
  impl->set_version_counter(c10::VariableVersion(/*version=*/0));
  if (plain_leaf) return;
  decltype(AutogradMeta::hooks_) hooks;
  decltype(AutogradMeta::cpp_hooks_list_) list;
  if (AutogradMeta* const meta = torch::autograd::impl::get_autograd_meta(tensor)) {
    hooks = std::move(meta->hooks_);
    list = meta->cpp_hooks_list_;
  }
  impl->set_autograd_meta(nullptr);
  tensor.set_requires_grad(requires_grad);
  if (hooks.empty()) return;
  AutogradMeta* const meta = torch::autograd::impl::materialize_autograd_meta(tensor);
  meta->hooks_ = std::move(hooks);
  meta->cpp_hooks_list_ = std::move(list);
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

std::pair<const torch::nn::Module*, std::string> owner_of(const torch::nn::Module& module, std::string_view tensor) {
  const torch::nn::Module* owner = &module;
  std::string path;
  for (std::size_t dot = tensor.find('.'); dot != std::string_view::npos; dot = tensor.find('.')) {
    const std::string name(tensor.substr(0, dot));
    const auto children = owner->named_children();
    const auto* const child = children.find(name);
    if (child == nullptr) break;
    owner = child->get();
    path.append(path.empty() ? "" : ".").append(name);
    tensor.remove_prefix(dot + 1);
  }
  return {owner, path};
}

std::string text_of(const std::string& name, const at::Tensor& tensor) {
  return fmt::format("{} {} [{}]", name, c10::toString(tensor.scalar_type()), fmt::join(tensor.sizes(), ", "));
}

void check_kinds(const std::string& module, const std::vector<Registered>& tensors, int64_t replica) {
  for (const Registered& one : tensors) {
    const Misfit found = unsuited(one.tensor);
    if (found.fits()) continue;
    throw UsageError(found.code,
                     fmt::format("{} '{}.{}' of replica {} {}", one.is_buffer ? "buffer" : "parameter", module,
                                 one.name, replica, found.why),
                     "let the factory make it a dense tensor in the host's memory");
  }
}

void check_alike(const std::string& module, const std::vector<Registered>& first, int64_t first_replica,
                 const std::vector<Registered>& tensors, int64_t replica) {
  const std::size_t count = std::max(first.size(), tensors.size());
  for (std::size_t i = 0; i < count; ++i) {
    const std::string here = i < first.size() ? signature(first[i]) : "nothing";
    const std::string there = i < tensors.size() ? signature(tensors[i]) : "nothing";
    if (here == there) continue;
    throw UsageError("LS-FACTORY",
                     fmt::format("module '{}' differs between replicas: replica {} has {} where replica {} has {}",
                                 module, first_replica, here, replica, there),
                     kFactoryRule);
  }
}

void SharesNothing::add(const torch::nn::Module& module, const std::vector<Registered>& tensors) {
  const std::size_t r = count_++;
  const auto refuse = [&](std::size_t owner, const std::string& what) {
    throw UsageError("LS-FACTORY",
                     fmt::format("replicas {} and {} share {} of module '{}'", first_ + static_cast<int64_t>(owner),
                                 first_ + static_cast<int64_t>(r), what, module_),
                     kFactoryRule);
  };
  for (const auto& part : module.modules()) {
    const std::size_t owner = owners_.try_emplace(part.get(), r).first->second;
    if (owner != r) refuse(owner, "a module (" + part->name() + ")");
  }
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    const at::Tensor& tensor = tensors[i].tensor;
    ranges_.push_back({address_range_of_storage(tensor), r, i});
    if (tensor.numel() == 0) continue;
    const std::size_t owner = owners_.try_emplace(tensor.unsafeGetTensorImpl(), r).first->second;
    if (owner != r) refuse(owner, "the tensor " + tensors[i].name);
  }
  const auto overlap = overlap_of_two_owners(ranges_);
  if (overlap) refuse(overlap->first.owner, "the tensor " + tensors[overlap->second.item].name);
}

void SharesNothing::forget_last(const std::vector<bool>& is_given) {
  std::erase_if(ranges_, [&](const OwnedRange& range) { return range.owner + 1 == count_ && is_given[range.item]; });
}

void check_no_aliases(const std::string& module, const std::vector<Registered>& tensors) {
  for (const auto& sharing : by_range(tensors)) {
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

void check_others_memory(const std::string& module, const std::vector<Registered>& tensors, int64_t replica,
                         const std::vector<std::shared_ptr<VariableState>>& others) {
  const auto refuse = [&](std::size_t item, const VariableState& other) {
    throw UsageError(
        "LS-FACTORY",
        fmt::format("variable '{}.{}' would share its tensor or memory, on replica {}, with variable '{}'", module,
                    tensors[item].name, replica, other.name()),
        "let each factory make its own layers; for a layer that two models use, make one module that contains both");
  };
  std::unordered_map<const at::TensorImpl*, std::size_t> ours;
  std::vector<OwnedRange> ranges;
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    ours.emplace(tensors[i].tensor.unsafeGetTensorImpl(), i);
    ranges.push_back({address_range_of(tensors[i].tensor), 1, i});
  }
  for (std::size_t v = 0; v < others.size(); ++v) {
    for (int64_t r = 0; r < others[v]->num_components(); ++r) {
      // A tensor without elements has no memory, but its version counter would be shared.
      const auto same = ours.find(others[v]->component(r).unsafeGetTensorImpl());
      if (same != ours.end()) refuse(same->second, *others[v]);
      ranges.push_back({address_range_of(others[v]->component(r)), 0, v});
    }
  }
  if (const auto overlap = overlap_of_two_owners(std::move(ranges)))
    refuse(overlap->second.item, *others[overlap->first.item]);
}

bool is_alone_in_memory(const Registered& one) {
  if (one.is_buffer || one.tensor.numel() == 0 || !is_plain_leaf(one.tensor) || !can_stay(one.tensor)) return false;
  const at::Storage& storage = one.tensor.storage();
  return storage.use_count() == 1 && storage.resizable();  // memory of from_blob, or of a file, cannot be resized
}

std::vector<std::string> own_memory(std::vector<Registered>& tensors, const std::vector<Registered>& firsts) {
  const auto sharing = by_storage(tensors);
  const auto shares = [&](const at::Tensor& tensor) {
    return tensor.numel() > 0 && sharing.at(storage_of(tensor)).size() > 1;
  };
  std::vector<std::size_t> moved;  // decided before the first one is moved
  std::vector<std::size_t> stay;
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    const at::Tensor& tensor = tensors[i].tensor;
    if (tensors[i].is_buffer) continue;
    const bool moves = !can_stay(tensor) || shares(tensor) || tensor.strides() != firsts[i].tensor.strides();
    if (moves) {
      moved.push_back(i);
    } else if (!is_plain_leaf(tensor)) {
      stay.push_back(i);
    }
  }
  for (const std::size_t i : stay) {
    at::Tensor& tensor = tensors[i].tensor;
    const at::Tensor same = at::empty({0}, firsts[i].tensor.options());
    give_memory(tensor, same.set_(tensor.storage(), 0, tensor.sizes(), tensor.strides()));
  }
  std::vector<at::Storage> left;  // by `moved`
  for (const std::size_t i : moved) {
    at::Tensor& tensor = tensors[i].tensor;
    const at::Tensor& first = firsts[i].tensor;
    const at::Tensor own = first.is_non_overlapping_and_dense()
                               ? at::empty_strided(first.sizes(), first.strides(), first.options())
                               : at::empty(first.sizes(), first.options());
    own.copy_(plain(tensor));
    left.push_back(tensor.storage());
    give_memory(tensor, own);
  }
  const auto now = by_storage(tensors);
  std::vector<std::string> shown;
  for (std::size_t k = 0; k < moved.size(); ++k) {
    const void* const storage = left[k].unsafeGetStorageImpl();
    const auto ours = std::count_if(left.begin(), left.end(),
                                    [&](const at::Storage& one) { return one.unsafeGetStorageImpl() == storage; });
    const bool registered = now.contains(storage);
    if (!registered && static_cast<int64_t>(left[k].use_count()) > ours) shown.push_back(tensors[moved[k]].name);
  }
  return shown;
}

}  // namespace lockstep::internal::variable
