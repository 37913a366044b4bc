// ReplicaContext::make_variable: the first step that asks for a variable makes it. The context declares this function,
// but the folder replica/ must not use variables, so it is defined here.
#include <ATen/core/TensorBody.h>
#include <fmt/format.h>

#include "lockstep/core/digest.h"
#include "lockstep/core/error.h"
#include "lockstep/replica/meeting.h"
#include "lockstep/replica/replica_context.h"
#include "lockstep/replica/replica_group.h"
#include "lockstep/variable/registry.h"
#include "lockstep/variable/variable.h"

namespace lockstep {

using internal::ContextAccess;
using internal::VariableRegistry;
using internal::VariableState;

namespace {

std::string text_of(const VariableOptions& options) {
  return fmt::format("{}{}", internal::kind_of(options), options.trainable ? "" : ", not trainable");
}

/// The meeting of all replicas at the first use of a name.
class CreationMeeting final : public internal::Meeting {
 public:
  CreationMeeting(const ReplicaContext& context, const VariableOptions& options,
                  const std::function<at::Tensor()>& initial, const std::source_location& place)
      : context_(context), options_(options), initial_(initial), place_(place) {}

  const char* what() const override { return "make_variable"; }
  std::string_view name() const override { return options_.name; }
  uint64_t signature() const override { return internal::Digest().with(describe()).value(); }
  std::string describe() const override {
    return fmt::format("make_variable('{}', {})", options_.name, text_of(options_));
  }

  std::span<const internal::Stage> stages() const override {
    static constexpr internal::Stage all[] = {internal::once<&CreationMeeting::make>("make")};
    return all;
  }
  void make(std::span<Meeting* const> all) {
    const internal::MergeScope outside(context_);
    const auto made = ContextAccess::group(context_).host().variables().make_in_step(options_, initial_, place_);
    for (Meeting* meeting : all) static_cast<CreationMeeting*>(meeting)->made_ = made;
  }
  const std::shared_ptr<VariableState>& made() const { return made_; }

 private:
  const ReplicaContext& context_;
  const VariableOptions& options_;
  const std::function<at::Tensor()>& initial_;
  const std::source_location& place_;
  std::shared_ptr<VariableState> made_;
};

/// Throws a UsageError where a later use of the name asks for other options.
void require_same_options(const VariableState& made, const VariableOptions& options,
                          const std::source_location& place) {
  const VariableOptions asked = internal::resolved(options, made.like().scalar_type());
  const VariableOptions& known = made.options();
  if (asked.synchronization == known.synchronization && asked.aggregation == known.aggregation &&
      asked.trainable == known.trainable) {
    return;
  }
  throw UsageError("LS-NAME-TAKEN",
                   fmt::format("make_variable at {} asks for variable '{}' as {}, and it was made as {} at {}",
                               internal::name_of(place), options.name, text_of(asked), text_of(known),
                               internal::name_of(made.place())),
                   "ask for it with the same options everywhere");
}

}  // namespace

Variable ReplicaContext::find_or_make(const std::string& name, const std::function<at::Tensor()>& initial,
                                      const VariableOptions& options, const std::source_location& place) const {
  check_is_current("make_variable");
  if (name.empty() || !(options.name.empty() || options.name == name)) {
    throw UsageError(
        "LS-NAME",
        fmt::format("make_variable in a step was given the name '{}' and, in its options, '{}'", name, options.name),
        "give a name, by which later steps find the variable, and leave that of the options empty");
  }
  VariableOptions named = options;
  named.name = name;
  if (named.synchronization == VariableSynchronization::kAuto) {
    named.synchronization = VariableSynchronization::kOnWrite;
  }
  if (auto made = group_.host().variables().find_made_in_step(name)) {
    require_same_options(*made, named, place);
    return Variable(std::move(made));
  }
  CreationMeeting meeting(*this, named, initial, place);
  group_.meet(*this, meeting);
  return Variable(meeting.made());
}

}  // namespace lockstep
