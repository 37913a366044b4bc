#include "lockstep/layers/convert_batch_norm.h"

#include <fmt/format.h>
#include <torch/nn/functional/instancenorm.h>  // LibTorch 1.13 needs it before the modules
#include <torch/nn/module.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/container/any.h>
#include <torch/nn/modules/container/moduledict.h>
#include <torch/nn/modules/container/modulelist.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/instancenorm.h>

#include <algorithm>
#include <set>
#include <typeinfo>
#include <vector>

#include "lockstep/core/counted.h"
#include "lockstep/core/error.h"
#include "lockstep/layers/norm_layers.h"

namespace lockstep::internal::inline layers {

namespace {

using torch::nn::Module;

/// A layer of batch normalisation, and the modules that have registered it.
struct NormLayer {
  Module* layer;
  std::string path;  // the first one: "layer1.0.bn1"
  std::vector<std::pair<Module*, std::string>> parents;
};

/// Of exactly these classes: one derived from them may compute something else.
bool is_convertible(const Module& module) {
  return typeid(module) == typeid(torch::nn::BatchNorm1dImpl) || typeid(module) == typeid(torch::nn::BatchNorm2dImpl) ||
         typeid(module) == typeid(torch::nn::BatchNorm3dImpl);
}

std::shared_ptr<SyncBatchNormImpl> sync_of(const Module& module) {
  if (const auto* one = dynamic_cast<const torch::nn::BatchNorm1dImpl*>(&module))
    return std::make_shared<SyncBatchNormImpl>(*one);
  if (const auto* two = dynamic_cast<const torch::nn::BatchNorm2dImpl*>(&module))
    return std::make_shared<SyncBatchNormImpl>(*two);
  return std::make_shared<SyncBatchNormImpl>(dynamic_cast<const torch::nn::BatchNorm3dImpl&>(module));
}

void find_layers(Module& module, const std::string& path, std::set<const Module*>& seen,
                 std::vector<NormLayer>& layers) {
  for (const auto& item : module.named_children()) {
    Module* const child = item.value().get();
    if (child == nullptr) continue;
    const std::string child_path = path.empty() ? item.key() : fmt::format("{}.{}", path, item.key());
    if (is_convertible(*child)) {
      auto layer = std::find_if(layers.begin(), layers.end(), [&](const NormLayer& one) { return one.layer == child; });
      if (layer == layers.end()) layer = layers.insert(layers.end(), {child, child_path, {}});
      const bool is_known = std::any_of(layer->parents.begin(), layer->parents.end(),
                                        [&](const auto& parent) { return parent.first == &module; });
      if (!is_known) layer->parents.emplace_back(&module, path);
    } else if (seen.insert(child).second) {
      find_layers(*child, child_path, seen, layers);
    }
  }
}

/// Calls `fn(entry)` for each entry of a Sequential that is the layer, and for each of a ModuleList or ModuleDict.
template <class InSequential, class InList, class InDict>
void for_each_entry(Module& parent, const Module* layer, const InSequential& in_sequential, const InList& in_list,
                    const InDict& in_dict) {
  if (auto* sequential = dynamic_cast<torch::nn::SequentialImpl*>(&parent)) {
    for (torch::nn::AnyModule& entry : *sequential) {
      if (!entry.is_empty() && entry.ptr().get() == layer) in_sequential(entry);
    }
  } else if (auto* list = dynamic_cast<torch::nn::ModuleListImpl*>(&parent)) {
    for (std::shared_ptr<Module>& entry : *list) {
      if (entry.get() == layer) in_list(entry);
    }
  } else if (auto* dict = dynamic_cast<torch::nn::ModuleDictImpl*>(&parent)) {
    for (const auto& item : dict->items()) {
      if (item.second.get() == layer) in_dict(*dict, item.first);
    }
  }
}

/// Pointers to a layer that one of its parents has.
struct Pointers {
  int64_t children = 0;  // in what it has registered
  int64_t entries = 0;   // in the list that it keeps as a container
};

Pointers pointers_of(Module& parent, const Module* layer) {
  Pointers count;
  for (const auto& item : parent.named_children()) count.children += item.value().get() == layer ? 1 : 0;
  const auto add = [&](const auto&...) { ++count.entries; };
  for_each_entry(parent, layer, add, add, add);
  return count;
}

/// "'layer1' (Block)"
std::string text_of_parent(const Module& parent, const std::string& path) {
  return fmt::format("{} ({})", path.empty() ? "the module itself" : fmt::format("'{}'", path), type_of_module(parent));
}

void replace(Module& parent, const Module* layer, const std::shared_ptr<SyncBatchNormImpl>& sync) {
  std::vector<std::string> names;
  for (const auto& item : parent.named_children()) {
    if (item.value().get() == layer) names.push_back(item.key());
  }
  for_each_entry(
      parent, layer, [&](torch::nn::AnyModule& entry) { entry = torch::nn::AnyModule(sync); },
      [&](std::shared_ptr<Module>& entry) { entry = sync; },
      [&](torch::nn::ModuleDictImpl& dict, const std::string& key) {
        dict.update(std::vector<std::pair<std::string, std::shared_ptr<Module>>>{{key, sync}});
      });
  for (const std::string& name : names) parent.replace_module(name, sync);
}

[[noreturn]] void throw_held(const std::string& path, const Module& layer, const std::string& parent, int64_t more) {
  const std::string type = type_of_module(layer);
  throw UsageError(
      "LS-BATCH-NORM-HELD",
      fmt::format(
          "convert_batch_norm cannot replace layer '{}' ({}){}: beside its parent, {}, something else holds it, "
          "such as a member of a class, which would go on using it",
          path, type, more == 0 ? "" : fmt::format(", and {} of that kind", counted(more, "other layer")), parent),
      fmt::format("declare the member as `lockstep::SyncBatchNorm bn{{nullptr}}` and make it by "
                  "lockstep::SyncBatchNorm({}(...)), under the same name; where a variable outside of the module holds "
                  "the layer, let that end first",
                  type));
}

thread_local ReplacedLayers* current_layers = nullptr;

}  // namespace

bool is_batch_norm(const Module& module) {
  return dynamic_cast<const torch::nn::BatchNorm1dImpl*>(&module) != nullptr ||
         dynamic_cast<const torch::nn::BatchNorm2dImpl*>(&module) != nullptr ||
         dynamic_cast<const torch::nn::BatchNorm3dImpl*>(&module) != nullptr;
}

bool has_running_statistics(const Module& module) {
  return is_batch_norm(module) || dynamic_cast<const SyncBatchNormImpl*>(&module) != nullptr ||
         dynamic_cast<const torch::nn::InstanceNorm1dImpl*>(&module) != nullptr ||
         dynamic_cast<const torch::nn::InstanceNorm2dImpl*>(&module) != nullptr ||
         dynamic_cast<const torch::nn::InstanceNorm3dImpl*>(&module) != nullptr;
}

std::string type_of_module(const Module& module) {
  std::string name = module.name();
  constexpr std::string_view kImpl = "Impl";
  if (name.size() > kImpl.size() && name.ends_with(kImpl)) name.resize(name.size() - kImpl.size());
  return name;
}

void throw_nothing_to_convert() {
  throw UsageError("LS-EMPTY-HANDLE", "convert_batch_norm was given an empty module", "give it a module");
}

void convert_parts(Module& module) {
  std::set<const Module*> seen{&module};
  std::vector<NormLayer> layers;
  find_layers(module, "", seen, layers);
  std::vector<const NormLayer*> held;      // by members: forward uses these, because there is no list of the parent's
  std::vector<const NormLayer*> in_doubt;  // by members, or by temporaries of the expression that made the container
  for (const NormLayer& layer : layers) {
    int64_t known = 0;
    bool in_lists = true;
    for (const auto& [parent, path] : layer.parents) {
      const Pointers pointers = pointers_of(*parent, layer.layer);
      known += pointers.children + pointers.entries;
      in_lists = in_lists && pointers.entries > 0;
    }
    if (layer.layer->weak_from_this().use_count() > known) (in_lists ? in_doubt : held).push_back(&layer);
  }
  if (!held.empty()) {
    const NormLayer& first = *held.front();
    throw_held(first.path, *first.layer, text_of_parent(*first.parents.front().first, first.parents.front().second),
               static_cast<int64_t>(held.size()) - 1);
  }
  if (ReplacedLayers* const watched = ReplacedLayers::current()) {
    for (const NormLayer* layer : in_doubt) {
      const auto& [parent, path] = layer->parents.front();
      watched->add(layer->layer->weak_from_this(), layer->path, text_of_parent(*parent, path));
    }
  }
  for (const NormLayer& layer : layers) {
    const std::shared_ptr<Module> kept = layer.layer->shared_from_this();  // until its last parent has the new one
    const auto sync = sync_of(*kept);
    for (const auto& [parent, path] : layer.parents) replace(*parent, kept.get(), sync);
  }
}

ReplacedLayers::ReplacedLayers() { current_layers = this; }
ReplacedLayers::~ReplacedLayers() { current_layers = nullptr; }
ReplacedLayers* ReplacedLayers::current() { return current_layers; }

void ReplacedLayers::add(std::weak_ptr<Module> layer, std::string path, std::string parent) {
  replaced_.push_back({std::move(layer), std::move(path), std::move(parent)});
}

void ReplacedLayers::require_gone() const {
  for (const Replaced& one : replaced_) {
    if (const auto layer = one.layer.lock()) throw_held(one.path, *layer, one.parent, 0);
  }
}

std::shared_ptr<Module> converted(std::shared_ptr<Module> module) {
  if (is_convertible(*module)) return sync_of(*module);
  convert_parts(*module);
  return module;
}

}  // namespace lockstep::internal::layers
