#include "lockstep/variable/module/replicated.h"

#include <ATen/core/grad_mode.h>
#include <c10/core/InferenceMode.h>
#include <fmt/format.h>

#include "lockstep/core/error.h"
#include "lockstep/replica/pool/compute_settings.h"
#include "lockstep/replica/random_streams.h"
#include "lockstep/replica/replica_group.h"

namespace lockstep::internal::inline variable {

void throw_empty_replicated() {
  throw UsageError("LS-EMPTY-HANDLE", "an empty Replicated was used", "take one from make_module");
}

int64_t module_index(const ModuleBinding& binding, const ReplicaContext& context) {
  ContextAccess::check_is_current(context, "a module");
  if (&ContextAccess::group(context) != binding.group().get()) {
    throw UsageError("LS-OTHER-STRATEGY",
                     fmt::format("module '{}' was given a context of another strategy", binding.name()),
                     "use a module in steps of the strategy that made it");
  }
  binding.require_sound();
  return ContextAccess::local_index(context);
}

void throw_other_module(const ModuleBinding& binding, int64_t r) {
  throw UsageError("LS-LATE-REGISTRATION",
                   fmt::format("replica {} of module '{}' holds another module now than the one that make_module made",
                               binding.group()->first_replica() + r, binding.name()),
                   "leave model(ctx) as it is, and change values only: Replicated::load");
}

std::map<std::string, at::Tensor> module_state(const ModuleBinding& binding) {
  const CallScope call(*binding.group(), "Replicated::state", "read the module's parameters themselves", Workers::kAll,
                       binding.name());
  const ComputeSettingsGuard settings(binding.group()->plan().compute);
  return binding.state();
}

LoadInfo load_module(const ModuleBinding& binding, const std::map<std::string, at::Tensor>& named,
                     const LoadOptions& options) {
  const CallScope call(*binding.group(), "Replicated::load", "use Variable::assign(ctx, value)", Workers::kAll,
                       binding.name());
  const ComputeSettingsGuard settings(binding.group()->plan().compute);
  return binding.load(named, options);
}

void export_into(const ModuleBinding& binding, FunctionRef<torch::nn::Module&()> make) {
  const CallScope call(*binding.group(), "Replicated::export_module", "use the replica's module itself", Workers::kAll,
                       binding.name());
  const ComputeSettingsGuard settings(binding.group()->plan().compute);
  // As in make_module: a tensor of inference mode could not be trained, and the caller's grad mode is kept.
  const bool with_gradient = at::GradMode::is_enabled();
  const c10::InferenceMode normal(false);
  const at::AutoGradMode gradient(with_gradient);
  RandomStream stream;
  stream.restart(StreamKey::of_module(binding.group()->seed(), binding.name()));
  const DefaultGeneratorGuard callers;
  const RandomScope scope(stream);
  binding.copy_to(make());
}

}  // namespace lockstep::internal::variable
