// From torch::nn's batch normalisation to SyncBatchNorm, everywhere in a module.
#pragma once

#include <memory>
#include <type_traits>
#include <utility>

#include "lockstep/layers/sync_batch_norm.h"

namespace torch::nn {
class Module;
class BatchNorm1dImpl;
class BatchNorm2dImpl;
class BatchNorm3dImpl;
}  // namespace torch::nn

namespace lockstep {

namespace internal::inline layers {

/// The class of the module that a holder, or a shared_ptr, holds.
template <class M>
struct ModuleHeldBy {
  using Type = typename M::ContainedType;
};
template <class T>
struct ModuleHeldBy<std::shared_ptr<T>> {
  using Type = T;
};

template <class Type>
inline constexpr bool kIsBatchNorm =
    std::is_same_v<Type, torch::nn::BatchNorm1dImpl> || std::is_same_v<Type, torch::nn::BatchNorm2dImpl> ||
    std::is_same_v<Type, torch::nn::BatchNorm3dImpl>;

/// Converts all parts of a module, not the module itself.
void convert_parts(torch::nn::Module& module);
/// The module, or what it becomes where it is batch normalisation itself, with all of its parts converted.
std::shared_ptr<torch::nn::Module> converted(std::shared_ptr<torch::nn::Module> module);
[[noreturn]] void throw_nothing_to_convert();

}  // namespace internal::layers

/// `module`, a module holder or a shared_ptr to a module, with a SyncBatchNorm in the place of each
/// torch::nn::BatchNorm1d, 2d and 3d in it, like torch.nn.SyncBatchNorm.convert_sync_batchnorm of Python:
///
///     auto model = strategy.make_module([] { return lockstep::convert_batch_norm(make_net()); });
///
/// Options, values, modes (training or not, trainable or not) and all names stay, so files of either load into the
/// other. A layer that is used in several places stays one layer. Where the module is batch normalisation itself, the
/// result is the SyncBatchNorm. Classes derived from BatchNorm stay as they are.
///
/// It replaces layers in torch::nn's containers (Sequential, ModuleList, ModuleDict) and those that a module has
/// registered and keeps nowhere else. Throws a UsageError (LS-BATCH-NORM-HELD) that names a layer that is held
/// elsewhere too, such as by a member `torch::nn::BatchNorm2d bn{nullptr}`, which forward would go on using; then
/// nothing has changed. Such a member is to be a `lockstep::SyncBatchNorm bn{nullptr}`. Where the layer is in a
/// container too, make_module throws that error, if something still holds it when the factory has returned.
template <class M>
auto convert_batch_norm(M module) {
  using Type = typename internal::ModuleHeldBy<M>::Type;
  if constexpr (requires { module.is_empty(); }) {
    if (module.is_empty()) internal::throw_nothing_to_convert();
  } else {
    if (!module) internal::throw_nothing_to_convert();
  }
  if constexpr (internal::kIsBatchNorm<Type>) {
    return SyncBatchNorm(std::make_shared<SyncBatchNormImpl>(*module));
  } else if constexpr (std::is_same_v<Type, torch::nn::Module>) {
    return internal::converted(std::move(module));
  } else {
    internal::convert_parts(*module);
    return module;
  }
}

}  // namespace lockstep
