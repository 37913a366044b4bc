// The order of events in a run: the sources of tensors that are there before it are bound, arguments and variables;
// then each node that computes something runs. An operator is called with the tensors of its arguments, and its results
// become the sources of those after it. Before a call of the library, variables get the gradients that they had there,
// and after it variables are bound anew, because an update may give them other memory.
#include "lockstep/capture/replayer.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <ATen/core/jit_type.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <map>
#include <set>
#include <utility>

#include "lockstep/core/error.h"
#include "lockstep/linear/factored_weights.h"
#include "lockstep/replica/replica_group.h"

namespace lockstep::internal::inline capture {

namespace {

/// Results up to this size keep their memory until the next run: to give it back costs as much as to compute them.
constexpr int64_t kMostKept = 64 << 10;

/// A new tensor over `storage`.
at::Tensor over(const c10::Storage& storage, const StepTensor& as, int64_t offset) {
  at::Tensor tensor = at::detail::make_tensor<c10::TensorImpl>(
      c10::Storage(storage), c10::DispatchKeySet(c10::DispatchKey::CPU), c10::scalarTypeToTypeMeta(as.dtype));
  tensor.unsafeGetTensorImpl()->set_sizes_and_strides(as.sizes, as.strides, offset);
  if (as.is_number) tensor.unsafeGetTensorImpl()->set_wrapped_number(true);
  return tensor;
}

bool is_as(const at::Tensor& tensor, const StepTensor& as) {
  return tensor.sizes() == as.sizes && tensor.strides() == as.strides && tensor.scalar_type() == as.dtype;
}

}  // namespace

/// While it lives, operators of the calling thread are those that a recorder hears.
class Replayer::BelowAutograd {
 public:
  BelowAutograd() = default;

 private:
  const at::AutoGradMode own_grad_mode_{at::GradMode::is_enabled()};
  const at::AutoDispatchBelowADInplaceOrView below_;
  const c10::impl::ExcludeDispatchKeyGuard no_autocast_{c10::DispatchKeySet(
      {c10::DispatchKey::AutocastCPU, c10::DispatchKey::AutocastCUDA, c10::DispatchKey::AutocastXPU})};
};

Replayer::Replayer(StepForm form, int64_t replica)
    : form_(std::move(form)),
      replica_(replica),
      nothing_(c10::Storage::use_byte_size_t(), 0, c10::GetAllocator(c10::kCPU), false),
      tensors_(form_.tensors.size()),
      sources_(form_.sources.size()),
      nodes_(form_.nodes.size()) {
  for (std::size_t t = 0; t < form_.tensors.size(); ++t) {
    const StepTensor& tensor = form_.tensors[t];
    SourceState& source = sources_[static_cast<std::size_t>(tensor.source)];
    const Source& recorded = form_.sources[static_cast<std::size_t>(tensor.source)];
    const auto number = static_cast<int32_t>(t);
    // The first tensor of a source is the source's own, but of memory that was there before the step.
    bool is_own = source.own == kUndefined && source.views.empty() && recorded.kind != Source::Kind::kOuter;
    if (recorded.kind == Source::Kind::kVariable) {
      const at::Tensor& component = form_.variables[static_cast<std::size_t>(recorded.index)]->component(replica_);
      is_own = source.own == kUndefined && tensor.offset == 0 && !tensor.is_number && is_as(component, tensor);
    }
    if (is_own) {
      source.own = number;
    } else {
      source.views.push_back({.tensor = number, .offset = tensor.offset, .extent = tensor.extent()});
      tensors_[t] = over(nothing_, tensor, 0);
    }
  }
  for (std::size_t s = 0; s < form_.sources.size(); ++s) {
    const Source& source = form_.sources[s];
    const auto number = static_cast<int32_t>(s);
    switch (source.kind) {
      case Source::Kind::kOuter: outer_sources_.push_back(number); break;
      case Source::Kind::kScalar: {
        at::Tensor value = at::scalar_tensor(form_.scalars[static_cast<std::size_t>(source.index)],
                                             form_.tensors[static_cast<std::size_t>(sources_[s].own)].dtype);
        value.unsafeGetTensorImpl()->set_wrapped_number(
            form_.tensors[static_cast<std::size_t>(sources_[s].own)].is_number);
        bind(number, value);
        break;
      }
      case Source::Kind::kVariable: variable_sources_.push_back(number); break;
      case Source::Kind::kResult:
      case Source::Kind::kFactors: nodes_[static_cast<std::size_t>(source.index)].sources.push_back(number); break;
      case Source::Kind::kArgument: break;
    }
  }
  for (std::size_t n = 0; n < form_.nodes.size(); ++n) {
    const Node& node = form_.nodes[n];
    const bool has_factors = std::ranges::any_of(nodes_[n].sources, [&](int32_t source) {
      return form_.sources[static_cast<std::size_t>(source)].kind == Source::Kind::kFactors;
    });
    nodes_[n].is_run = !node.is_view || has_factors;
  }
  for (const Node& node : form_.nodes) {
    for (const StepValue& input : node.inputs) {
      if (input.constant.isGenerator()) generators_.push_back(input.constant.toGenerator());
    }
  }
  plan_drops();
}

/// A stream begins anew in each run, when its generator is asked for.
void Replayer::begin_streams(const ReplicaContext& context) const {
  if (generators_.empty()) return;
  ReplicaGroup& group = ContextAccess::group(context);
  const at::Generator& own = group.stream(replica_).generator();
  if (std::ranges::all_of(generators_, [&](const at::Generator& one) { return one == own; })) return;
  group.shared_stream(replica_).generator();
}

void Replayer::plan_drops() {
  std::map<int32_t, std::size_t> last;  // use of each source
  std::set<std::pair<int32_t, std::size_t>> by_gradients;
  const auto use = [&](int32_t tensor, std::size_t place) {
    if (tensor != kUndefined) last[form_.tensors[static_cast<std::size_t>(tensor)].source] = place;
  };
  for (std::size_t n = 0; n < form_.nodes.size(); ++n) {
    const Node& node = form_.nodes[n];
    for (const GradientChange& change : node.before.gradients) {
      use(change.tensor, n);
      if (change.tensor != kUndefined)
        by_gradients.emplace(form_.tensors[static_cast<std::size_t>(change.tensor)].source, n);
    }
    if (!nodes_[n].is_run) continue;
    const auto use_all = [&](const std::vector<StepValue>& values) {
      for (const StepValue& value : values) {
        for (const int32_t one : value.tensors) {
          use(one, n);
          if (one != kUndefined) by_gradients.erase({form_.tensors[static_cast<std::size_t>(one)].source, n});
        }
      }
    };
    use_all(node.inputs);
    use_all(node.outputs);
  }
  for (const int32_t one : form_.results) use(one, form_.nodes.size());
  for (const GradientChange& change : form_.at_end.gradients) use(change.tensor, form_.nodes.size());
  std::map<int32_t, int64_t> bytes;
  for (const StepTensor& one : form_.tensors) bytes[one.source] = std::max(bytes[one.source], one.bytes());
  for (const auto& [source, place] : last) {
    const Source::Kind kind = form_.sources[static_cast<std::size_t>(source)].kind;
    const bool is_result = kind == Source::Kind::kResult || kind == Source::Kind::kFactors;
    if (!is_result || place == nodes_.size()) continue;
    if (by_gradients.contains({source, place})) {
      nodes_[place].given.push_back(source);
    } else if (bytes[source] > kMostKept || kind == Source::Kind::kFactors) {
      nodes_[place].dropped.push_back(source);
    }
  }
}

Replayer::Readiness Replayer::readiness() const {
  for (const auto& weak : form_.outer) {
    if (weak.expired()) return Readiness::kOutdated;
  }
  for (std::size_t i = 0; i < form_.variables.size(); ++i) {
    const at::Tensor& component = form_.variables[i]->component(replica_);
    if (component.requires_grad() != form_.are_trained[i]) return Readiness::kOutdated;
    if (component.unsafeGetTensorImpl()->grad().defined()) return Readiness::kNotNow;
  }
  for (const int32_t source : variable_sources_) {
    const SourceState& state = sources_[static_cast<std::size_t>(source)];
    const auto index = static_cast<std::size_t>(form_.sources[static_cast<std::size_t>(source)].index);
    if (state.own != kUndefined &&
        !is_as(form_.variables[index]->component(replica_), form_.tensors[static_cast<std::size_t>(state.own)]))
      return Readiness::kOutdated;
  }
  return Readiness::kReady;
}

void Replayer::bind(int32_t source, const at::Tensor& own) {
  SourceState& state = sources_[static_cast<std::size_t>(source)];
  if (state.own != kUndefined) tensors_[static_cast<std::size_t>(state.own)] = own;
  if (!state.views.empty())
    bind_views(state, own.storage(), own.storage_offset() * static_cast<int64_t>(own.element_size()));
}

void Replayer::bind_views(SourceState& source, const c10::Storage& storage, int64_t offset) {
  const bool has_same = source.bound == storage.unsafeGetStorageImpl();
  if (has_same && source.offset == offset && storage.nbytes() == source.bytes) return;
  for (const View& view : source.views) {
    const auto t = static_cast<std::size_t>(view.tensor);
    const StepTensor& as = form_.tensors[t];
    c10::TensorImpl* const impl = tensors_[t].unsafeGetTensorImpl();
    const int64_t begin = offset + view.offset;
    if (begin < 0 || begin + view.extent > static_cast<int64_t>(storage.nbytes())) {
      throw DivergenceError("LS-CAPTURE-SHAPE",
                            "a captured step departs from its recording: a view lies outside of its tensor's memory",
                            "keep the memory of tensors that the step refers to, or run it without capture()");
    }
    if (!has_same) impl->set_storage_keep_dtype(storage);
    if (source.offset == offset) continue;
    impl->set_sizes_and_strides(as.sizes, as.strides, begin / static_cast<int64_t>(c10::elementSize(as.dtype)));
  }
  source.bound = storage.unsafeGetStorageImpl();
  source.bytes = storage.nbytes();
  source.offset = offset;
}

void Replayer::bind_outer() {
  for (const int32_t source : outer_sources_) {
    const auto index = static_cast<std::size_t>(form_.sources[static_cast<std::size_t>(source)].index);
    bind_views(sources_[static_cast<std::size_t>(source)], c10::Storage(form_.outer[index].lock()), 0);
  }
}

void Replayer::bind_variables() {
  for (const int32_t source : variable_sources_) {
    const auto index = static_cast<std::size_t>(form_.sources[static_cast<std::size_t>(source)].index);
    bind(source, form_.variables[index]->component(replica_));
  }
}

void Replayer::drop(int32_t source) {
  SourceState& state = sources_[static_cast<std::size_t>(source)];
  if (state.own != kUndefined) tensors_[static_cast<std::size_t>(state.own)].reset();
  for (const View& view : state.views)
    tensors_[static_cast<std::size_t>(view.tensor)].unsafeGetTensorImpl()->set_storage_keep_dtype(nothing_);
  state.bound = nullptr;
}

at::Tensor Replayer::tensor_of(int32_t number) const {
  return number == kUndefined ? at::Tensor() : tensors_[static_cast<std::size_t>(number)];
}

at::Tensor Replayer::shown(int32_t number) const {
  if (number == kUndefined) return {};
  const at::Tensor& tensor = tensors_[static_cast<std::size_t>(number)];
  const StepTensor& as = form_.tensors[static_cast<std::size_t>(number)];
  if (form_.sources[static_cast<std::size_t>(as.source)].kind == Source::Kind::kFactors) return tensor;
  return over(tensor.storage(), as, tensor.storage_offset());
}

std::string Replayer::name_of(std::size_t place) const {
  return fmt::format("operator {}, {}", place, form_.nodes[place].what);
}

void Replayer::take_result(std::size_t place, int32_t source, const at::Tensor& result) {
  SourceState& state = sources_[static_cast<std::size_t>(source)];
  if (form_.sources[static_cast<std::size_t>(source)].kind == Source::Kind::kFactors) {
    tensors_[static_cast<std::size_t>(state.own)] = result;
    return;
  }
  if (state.own != kUndefined && !is_as(result, form_.tensors[static_cast<std::size_t>(state.own)])) {
    throw DivergenceError(
        "LS-CAPTURE-SHAPE",
        fmt::format("a captured step departs from its recording: the result of {} is [{}] now and was [{}]",
                    name_of(place), fmt::join(result.sizes(), ", "),
                    fmt::join(form_.tensors[static_cast<std::size_t>(state.own)].sizes, ", ")),
        "run this step without capture(): a shape in it depends on values");
  }
  bind(source, result);
}

void Replayer::take_results(std::size_t place, at::ArrayRef<c10::IValue> results) {
  const Node& node = form_.nodes[place];
  const NodeState& state = nodes_[place];
  std::size_t made = 0;
  const auto take = [&](const c10::IValue& result, int32_t number) {
    if (number == kUndefined || made == state.sources.size()) return;
    const int32_t source = form_.tensors[static_cast<std::size_t>(number)].source;
    if (source != state.sources[made]) return;  // it shows memory that was there before
    ++made;
    take_result(place, source, result.toTensor());
  };
  for (std::size_t o = 0; o < node.outputs.size() && made < state.sources.size(); ++o) {
    const StepValue& output = node.outputs[o];
    if (output.kind == StepValue::Kind::kTensor) {
      take(results[o], output.tensors.front());
    } else if (output.kind != StepValue::Kind::kConstant) {
      std::size_t t = 0;
      for (const c10::IValue& one : results[o].toListRef()) take(one, output.tensors[t++]);
    }
  }
}

void Replayer::run_operator(std::size_t place) {
  const Node& node = form_.nodes[place];
  stack_.clear();
  for (const StepValue& input : node.inputs) {
    switch (input.kind) {
      case StepValue::Kind::kConstant: stack_.push_back(input.constant); break;
      case StepValue::Kind::kTensor: {
        const int32_t one = input.tensors.front();
        // A result that stays factors keeps its arguments.
        stack_.emplace_back(node.weight < 0 ? tensor_of(one) : shown(one));
        break;
      }
      case StepValue::Kind::kTensors: {
        c10::List<at::Tensor> list;
        list.reserve(input.tensors.size());
        for (const int32_t one : input.tensors) list.push_back(tensor_of(one));
        stack_.emplace_back(std::move(list));
        break;
      }
      case StepValue::Kind::kOptionalTensors: {
        c10::impl::GenericList list(c10::OptionalType::create(c10::TensorType::get()));
        for (const int32_t one : input.tensors)
          list.push_back(one == kUndefined ? c10::IValue() : c10::IValue(tensor_of(one)));
        stack_.emplace_back(std::move(list));
        break;
      }
    }
  }
  if (at::GradMode::is_enabled() != node.has_grad_mode) at::GradMode::set_enabled(node.has_grad_mode);
  if (node.weight >= 0) {
    const WeightOfProductScope weight(form_.variables[static_cast<std::size_t>(node.weight)]->component(replica_));
    node.op->callBoxed(stack_);
  } else {
    node.op->callBoxed(stack_);
  }
  take_results(place, stack_);
  // LibTorch counts a write in place above this level, for all that shows the memory. Foreign writes are found by it.
  for (const int32_t one : node.written) {
    const Source& source = form_.sources[static_cast<std::size_t>(form_.tensors[static_cast<std::size_t>(one)].source)];
    if (source.kind != Source::Kind::kVariable) continue;
    form_.variables[static_cast<std::size_t>(source.index)]->component(replica_).unsafeGetTensorImpl()->bump_version();
  }
}

void Replayer::keep_books(const BackwardBooks& books, const ReplicaContext& context) {
  for (const GradientChange& change : books.gradients) {
    const at::Tensor& variable = form_.variables[static_cast<std::size_t>(change.variable)]->component(replica_);
    variable.mutable_grad() = shown(change.tensor);
  }
  const auto& losses = ContextAccess::losses(context);
  for (int64_t i = 0; i < books.backwards.all; ++i) {
    const ScaledLosses::Loss loss{.weight = i < books.backwards.weighted ? 1.0 : 0.0};
    ScaledLosses::went_through(losses, loss, nullptr, {});
  }
  if (books.asked_for_counts) losses->ask_for_counts();
}

void Replayer::run_call(std::size_t place, const ReplicaContext& context) {
  const Node& node = form_.nodes[place];
  keep_books(node.before, context);
  std::vector<at::Tensor> inputs;
  for (const StepValue& input : node.inputs) inputs.push_back(shown(input.tensors.front()));
  // Who takes the gradients takes their memory over where nobody else has it.
  for (const int32_t source : nodes_[place].given) drop(source);
  const std::vector<at::Tensor> results = node.again(context, inputs);
  const std::vector<c10::IValue> values(results.begin(), results.end());
  take_results(place, values);
  bind_variables();
}

void Replayer::forget_run() noexcept {
  stack_.clear();
  for (std::size_t s = 0; s < form_.sources.size(); ++s) {
    const Source::Kind kind = form_.sources[s].kind;
    if (kind == Source::Kind::kArgument || kind == Source::Kind::kOuter) drop(static_cast<int32_t>(s));
  }
}

std::vector<at::Tensor> Replayer::run(const ReplicaContext& context, std::span<const at::Tensor> arguments) {
  struct AtEnd {
    Replayer& replayer;
    ~AtEnd() { replayer.forget_run(); }
  };
  const AtEnd at_end{*this};
  for (std::size_t s = 0; s < form_.sources.size(); ++s) {
    if (form_.sources[s].kind == Source::Kind::kArgument)
      bind(static_cast<int32_t>(s), arguments[static_cast<std::size_t>(form_.sources[s].index)]);
  }
  for (const auto& variable : form_.variables) variable->require_sound();
  begin_streams(context);
  bind_outer();
  bind_variables();
  std::optional<BelowAutograd> below(std::in_place);
  for (std::size_t n = 0; n < form_.nodes.size(); ++n) {
    if (!nodes_[n].is_run) continue;
    if (form_.nodes[n].op) {
      run_operator(n);
    } else {
      below.reset();
      run_call(n, context);
      below.emplace();
    }
    for (const int32_t source : nodes_[n].dropped) drop(source);
  }
  below.reset();
  keep_books(form_.at_end, context);
  std::vector<at::Tensor> results;
  for (const int32_t one : form_.results) results.push_back(shown(one));
  return results;
}

}  // namespace lockstep::internal::capture
