// The order of events in a recording. At the beginning it lists the strategy's variables of the replica. Each operator
// comes to hear(): its arguments get numbers, it is computed, and its results get numbers. A call of the library comes
// to begin_call() and end_call(); before it, take_books() compares each variable's gradient with what it was. end()
// does so once more and gives numbers to what the step has returned.
#include "lockstep/capture/recorder.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <string_view>
#include <utility>

#include "lockstep/core/loops/checksum.h"
#include "lockstep/core/tensors/host_bytes.h"
#include "lockstep/core/torch_compat.h"
#include "lockstep/replica/replica_group.h"
#include "lockstep/replica/step_host.h"
#include "lockstep/variable/registry.h"

namespace lockstep::internal::inline capture {

namespace {

/// Operators that change what a tensor is, and not what is in its memory.
bool changes_view(std::string_view name) {
  static constexpr std::array<std::string_view, 8> kAll{"aten::t_",          "aten::transpose_", "aten::squeeze_",
                                                        "aten::unsqueeze_",  "aten::swapdims_",  "aten::swapaxes_",
                                                        "aten::as_strided_", "aten::detach_"};
  return std::ranges::find(kAll, name) != kAll.end();
}

/// Operators that change where a tensor has its memory.
bool changes_memory(std::string_view name) {
  return name == "aten::set_" || name.starts_with("aten::resize") || name == "aten::_resize_output_";
}

bool makes_empty(std::string_view name) {
  return name.starts_with("aten::empty") || name.starts_with("aten::new_empty");
}

/// Whether its result's shape depends on values. An index by numbers has the tag too, and does not.
bool has_shape_of_values(OperatorCall& call) {
  if (!call.op().hasTag(at::Tag::dynamic_output_shape)) return false;
  if (!call.name().starts_with("aten::index")) return true;
  for (const c10::IValue& input : call.inputs()) {
    if (!input.isList()) continue;
    for (const c10::IValue& one : input.toListRef()) {
      if (!one.isTensor() || !one.toTensor().defined()) continue;
      const at::ScalarType dtype = one.toTensor().scalar_type();
      if (dtype == at::kBool || dtype == at::kByte) return true;
    }
  }
  return false;
}

/// A result that is no tensor is for the host.
bool gives_to_host(const c10::FunctionSchema& schema) {
  return std::ranges::any_of(schema.returns(), [](const c10::Argument& one) {
    const std::string type = one.type()->str();
    return type.find("Tensor") == std::string::npos;
  });
}

bool is_dense_memory(const at::Tensor& tensor) { return tensor.layout() == at::kStrided && !has_no_memory(tensor); }

uint64_t state_sum(const at::Generator& generator) {
  const at::Tensor state = generator.get_state();
  return checksum(host_bytes(state).data(), static_cast<int64_t>(state.nbytes()));
}

template <class Fn>
void for_each_tensor_in(const c10::IValue& value, const Fn& fn) {
  if (value.isTensor()) {
    fn(value.toTensor());
  } else if (value.isList()) {
    for (const c10::IValue& one : value.toListRef()) {
      if (one.isTensor()) fn(one.toTensor());
    }
  }
}

}  // namespace

Recorder::Recorder(const ReplicaContext& context, std::span<const at::Tensor> arguments, const StepForm* known)
    : context_(context),
      replica_(ContextAccess::local_index(context)),
      unheard_(num_calls_unheard()),
      variables_(ContextAccess::group(context).host().variables().variables()),
      numbers_(form_, variables_, replica_, known, [this](const std::string& why) { refuse(why); }),
      backwards_(ContextAccess::scaled_backwards(context)) {
  gradients_.assign(variables_.size(), kUndefined);
  for (const auto& variable : variables_) {
    if (!variable->component(replica_).unsafeGetTensorImpl()->grad().defined()) continue;
    is_postponed_ = true;
    refuse("begins with a gradient that an earlier run has left, of '" + variable->name() + "'");
  }
  numbers_.add_arguments(arguments);
  ReplicaGroup& group = ContextAccess::group(context);
  for (RandomStream* const stream : {&group.stream(replica_), &group.shared_stream(replica_)})
    drawn_.emplace_back(stream->generator(), state_sum(stream->generator()));
}

void Recorder::refuse(const std::string& why) {
  if (refusal_.empty()) refusal_ = why;
}

bool Recorder::may_be_recorded(OperatorCall& call) {
  const std::string& name = call.name();
  if (!name.starts_with("aten::")) {
    refuse("calls " + name + ", which is no operator of LibTorch's own");
  } else if (gives_to_host(call.op().schema())) {
    refuse("calls " + name + ", which hands a value to the host (item(), or a comparison as a bool)");
  } else if (name == "aten::_local_scalar_dense" || name == "aten::nonzero" || has_shape_of_values(call)) {
    refuse("calls " + name + ", whose result's shape depends on values");
  } else if (changes_memory(name)) {
    refuse("calls " + name + ", which changes where a tensor has its memory");
  }
  return refusal_.empty();
}

void Recorder::hear(OperatorCall& call) {
  if (!refusal_.empty() || !may_be_recorded(call)) return;  // the others compute it
  Node node;
  node.op = call.op();
  node.has_grad_mode = at::GradMode::is_enabled();
  node.what = call.overload().empty() ? call.name() : call.name() + "." + call.overload();
  numbers_.begin_node();
  const std::vector<Given> given = note_inputs(call, node);
  check_generators();
  try {
    call.go_on();
  } catch (...) {
    refuse("calls " + node.what + ", which threw");
    throw;
  }
  if (makes_empty(call.name())) {
    const at::Tensor& made = call.outputs().front().toTensor();
    if (is_dense_memory(made)) {
      empty_.insert_or_assign(made.storage().unsafeGetStorageImpl(),
                              Empty{std::move(node), made.storage().getWeakStorageImpl()});
      return;
    }
  }
  note_outputs(call, given, node);
  note_generators(node);
  // A detach() of what is a tensor of its own already says nothing; hooks of gradients make more of them.
  const bool is_same = node.is_view && node.outputs.size() == 1 && node.outputs[0].tensors == node.inputs[0].tensors;
  if (refusal_.empty() && !is_same) form_.nodes.push_back(std::move(node));
}

void Recorder::use_empty(const at::Tensor& tensor) {
  if (!tensor.defined() || !is_dense_memory(tensor)) return;
  auto waiting = empty_.extract(tensor.storage().unsafeGetStorageImpl());
  if (!waiting) return;
  Node node = std::move(waiting.mapped().node);
  numbers_.begin_node();
  node.outputs.push_back(value_of(tensor, static_cast<int64_t>(form_.nodes.size())));
  numbers_.note_empty(tensor);
  numbers_.begin_node();
  form_.nodes.push_back(std::move(node));
}

void Recorder::check_generators() {
  for (const auto& [generator, sum] : drawn_) {
    if (sum != state_sum(generator)) refuse("sets the state of a random generator");
  }
}

void Recorder::note_generators(const Node& node) {
  for (const StepValue& input : node.inputs) {
    if (!input.constant.isGenerator()) continue;
    const at::Generator generator = input.constant.toGenerator();
    const auto is_same = [&](const auto& one) { return one.first == generator; };
    if (std::ranges::none_of(drawn_, is_same)) drawn_.emplace_back(generator, 0);
  }
  // Some kernels draw and are given no generator.
  for (auto& [generator, sum] : drawn_) sum = state_sum(generator);
}

std::vector<Recorder::Given> Recorder::note_inputs(OperatorCall& call, Node& node) {
  std::vector<Given> all;
  std::size_t k = 0;
  for (const c10::IValue& input : call.inputs()) {
    const auto* const alias = call.op().schema().arguments()[k++].alias_info();
    const bool is_written = alias != nullptr && alias->isWrite() && !changes_view(call.name());
    for_each_tensor_in(input, [&](const at::Tensor& tensor) { use_empty(tensor); });
    node.inputs.push_back(value_of(input, -1));
    std::size_t t = 0;
    for_each_tensor_in(input, [&](const at::Tensor& tensor) {
      const int32_t number = node.inputs.back().tensors[t++];
      if (number == kUndefined) return;
      if (is_written) node.written.push_back(number);
      numbers_.check_before(number, tensor, is_written);
      all.push_back({number, tensor, tensor.sizes().vec(), is_written});
    });
  }
  return all;
}

void Recorder::note_outputs(OperatorCall& call, const std::vector<Given>& given, Node& node) {
  const auto place = static_cast<int64_t>(form_.nodes.size());
  bool shows_known_memory = !call.outputs().empty();
  for (const c10::IValue& output : call.outputs()) {
    for_each_tensor_in(output, [&](const at::Tensor& tensor) {
      if (tensor.defined() && !numbers_.knows_memory_of(tensor)) shows_known_memory = false;
    });
    node.outputs.push_back(value_of(output, place));
    if (node.outputs.back().kind == StepValue::Kind::kConstant) shows_known_memory = false;
  }
  node.is_view = shows_known_memory && node.written.empty();
  for (const Given& one : given) {
    if (one.is_written && one.tensor.sizes() != one.sizes)
      refuse("calls " + node.what + ", which gives a tensor another shape in place");
    numbers_.note_after(one.number, one.tensor, one.is_written);
  }
  std::size_t o = 0;
  for (const c10::IValue& output : call.outputs()) {
    const StepValue& value = node.outputs[o++];
    std::size_t t = 0;
    for_each_tensor_in(output, [&](const at::Tensor& tensor) { note_output(call, node, value.tensors[t++], tensor); });
  }
}

void Recorder::note_output(OperatorCall& call, Node& node, int32_t number, const at::Tensor& tensor) {
  if (number == kUndefined) return;
  if (numbers_.source_of(number).kind == Source::Kind::kFactors) {
    if (call.name() != "aten::mm") return;
    const at::Tensor weight = weight_of_running_product();
    if (weight.defined()) node.weight = numbers_.variable_with(weight);
    if (node.weight < 0) refuse("has a gradient that stays factors, of an unknown weight");
  } else if (!node.is_view && node.written.empty()) {
    numbers_.note_result(number, tensor);
  }
}

StepValue Recorder::value_of(const c10::IValue& value, int64_t node) {
  using Kind = StepValue::Kind;
  if (value.isTensor()) return {.kind = Kind::kTensor, .tensors = {numbers_.number_of(value.toTensor(), node)}};
  if (value.isTensorList() || value.isOptionalTensorList()) {
    StepValue all{.kind = value.isTensorList() ? Kind::kTensors : Kind::kOptionalTensors};
    for (const c10::IValue& one : value.toListRef())
      all.tensors.push_back(one.isTensor() ? numbers_.number_of(one.toTensor(), node) : kUndefined);
    return all;
  }
  if (value.isList()) {
    for (const c10::IValue& one : value.toListRef()) {
      if (one.isTensor()) refuse("calls an operator with a list of tensors of a kind that is not known");
    }
    return {.constant = value.deepcopy()};  // a list is shared with whoever has made it
  }
  if (value.isObject() || value.isCapsule() || value.isStorage()) {
    refuse("calls an operator with an argument that is no tensor, number or text");
    return {};
  }
  return {.constant = value};
}

BackwardBooks Recorder::take_books() {
  BackwardBooks books;
  for (std::size_t i = 0; i < variables_.size(); ++i) {
    const at::Tensor& gradient = variables_[i]->component(replica_).unsafeGetTensorImpl()->grad();
    use_empty(gradient);
    const int32_t tensor = numbers_.number_of(gradient, -1);
    if (tensor == std::exchange(gradients_[i], tensor)) continue;
    if (tensor != kUndefined) {
      numbers_.check_before(tensor, gradient, false);
      if (numbers_.source_of(tensor).kind == Source::Kind::kOuter)
        refuse("has a gradient that no operator made, of '" + variables_[i]->name() + "'");
    }
    books.gradients.push_back({.variable = numbers_.number_of_variable(i), .tensor = tensor});
  }
  const auto& losses = ContextAccess::losses(context_);
  books.backwards = losses->counts().since(backwards_);
  backwards_ = losses->counts();
  books.asked_for_counts = losses->asked_for_counts() && !std::exchange(asked_, losses->asked_for_counts());
  return books;
}

void Recorder::begin_call(std::string what, std::span<const at::Tensor> inputs, CallAgain again) {
  if (!refusal_.empty()) return;
  const DeafScope deaf;
  Node node{.what = std::move(what), .again = std::move(again), .before = take_books()};
  for (const at::Tensor& one : inputs) {
    use_empty(one);
    node.inputs.push_back({.kind = StepValue::Kind::kTensor, .tensors = {numbers_.number_of(one, -1)}});
    if (node.inputs.back().tensors.front() != kUndefined)
      numbers_.check_before(node.inputs.back().tensors.front(), one, false);
  }
  form_.nodes.push_back(std::move(node));
}

void Recorder::end_call(std::span<const at::Tensor> results) {
  if (!refusal_.empty()) return;
  const DeafScope deaf;
  numbers_.begin_node();
  Node& node = form_.nodes.back();
  const auto place = static_cast<int64_t>(form_.nodes.size() - 1);
  for (const at::Tensor& one : results) {
    const int32_t number = numbers_.number_of(one, place);
    node.outputs.push_back({.kind = StepValue::Kind::kTensor, .tensors = {number}});
    if (number != kUndefined) numbers_.note_result(number, one);
  }
  // What it did to variables and their gradients is its own.
  for (std::size_t i = 0; i < variables_.size(); ++i)
    gradients_[i] = numbers_.number_of(variables_[i]->component(replica_).unsafeGetTensorImpl()->grad(), -1);
  numbers_.forget_variables();
  backwards_ = ContextAccess::scaled_backwards(context_);
}

void Recorder::end(std::span<const at::Tensor> results) {
  if (!refusal_.empty()) return;
  form_.at_end = take_books();
  bool has_graph = false;
  for (const at::Tensor& one : results) {
    use_empty(one);
    form_.results.push_back(numbers_.number_of(one, -1));
    if (form_.results.back() != kUndefined) numbers_.check_before(form_.results.back(), one, false);
    has_graph = has_graph || (one.defined() && one.requires_grad() && !one.is_leaf());
  }
  numbers_.settle_scalars();
  for (const auto& one : form_.variables) form_.are_trained.push_back(one->component(replica_).requires_grad());
  const auto changes_gradients = [](const Node& node) { return !node.before.gradients.empty(); };
  const bool has_backward = !form_.at_end.gradients.empty() || std::ranges::any_of(form_.nodes, changes_gradients);
  if (has_graph && !has_backward) refuse("returns a tensor with a graph, and did not go backward through it");
  if (num_calls_unheard() != unheard_) refuse("calls operators on threads of its own, or in very deep graphs");
}

}  // namespace lockstep::internal::capture
