#include "lockstep/variable/replicated.h"

#include <fmt/format.h>

#include "lockstep/core/error.h"
#include "lockstep/replica/random_streams.h"
#include "lockstep/replica/replica_group.h"

namespace lockstep::internal {

int64_t module_index(const ModuleBinding& binding, const ReplicaContext& context) {
  ContextAccess::check_is_current(context, "a module");
  if (&ContextAccess::group(context) != binding.group().get()) {
    throw UsageError(fmt::format("module '{}' was given a context of another strategy", binding.name()),
                     "use a module in steps of the strategy that made it");
  }
  binding.require_sound();
  return ContextAccess::local_index(context);
}

std::map<std::string, at::Tensor> module_state(const ModuleBinding& binding) {
  const CallScope call(*binding.group(), "Replicated::state", "read the module's parameters themselves");
  return binding.state();
}

void load_module(const ModuleBinding& binding, const std::map<std::string, at::Tensor>& named) {
  const CallScope call(*binding.group(), "Replicated::load", "use Variable::assign(ctx, value)");
  binding.load(named);
}

void under_module_stream(const ModuleBinding& binding, const std::function<void()>& make) {
  const CallScope call(*binding.group(), "Replicated::export_module", "use the replica's module itself");
  RandomStream stream;
  stream.restart(StreamKey::of_module(binding.group()->seed(), binding.name()));
  const RandomScope scope(stream);
  make();
}

void copy_module(const ModuleBinding& binding, torch::nn::Module& module) {
  const CallScope call(*binding.group(), "Replicated::export_module", "use the replica's module itself");
  binding.copy_to(module);
}

}  // namespace lockstep::internal
