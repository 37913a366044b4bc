#include "lockstep/capture/step_form.h"

#include <ATen/core/Generator.h>
#include <c10/core/Scalar.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <bit>
#include <cstddef>
#include <sstream>

namespace lockstep::internal::inline capture {

namespace {

/// Of the same bits: a NaN is equal to itself, and 0 is not -0.
bool is_same_number(double one, double other) { return std::bit_cast<uint64_t>(one) == std::bit_cast<uint64_t>(other); }

bool is_same(const c10::IValue& one, const c10::IValue& other);

bool are_same(at::ArrayRef<c10::IValue> some, at::ArrayRef<c10::IValue> others) {
  return std::equal(some.begin(), some.end(), others.begin(), others.end(), is_same);
}

bool is_same(const c10::IValue& one, const c10::IValue& other) {
  if (one.isNone() || other.isNone()) return one.isNone() && other.isNone();
  if (one.isInt() && other.isInt()) return one.toInt() == other.toInt();
  if (one.isBool() && other.isBool()) return one.toBool() == other.toBool();
  if (one.isDouble() && other.isDouble()) return is_same_number(one.toDouble(), other.toDouble());
  if (one.isComplexDouble() && other.isComplexDouble()) {
    const c10::complex<double> a = one.toComplexDouble();
    const c10::complex<double> b = other.toComplexDouble();
    return is_same_number(a.real(), b.real()) && is_same_number(a.imag(), b.imag());
  }
  if (one.isString() && other.isString()) return one.toStringRef() == other.toStringRef();
  if (one.isDevice() && other.isDevice()) return one.toDevice() == other.toDevice();
  if (one.isGenerator() && other.isGenerator()) return one.toGenerator() == other.toGenerator();
  if (one.isList() && other.isList()) return are_same(one.toListRef(), other.toListRef());
  if (one.isTuple() && other.isTuple()) {
    const auto& some = one.toTupleRef().elements();
    const auto& others = other.toTupleRef().elements();
    return std::equal(some.begin(), some.end(), others.begin(), others.end(), is_same);
  }
  return false;
}

std::string text_of(const c10::IValue& value) {
  if (value.isGenerator()) return "generator";
  std::ostringstream out;
  out << value;
  return out.str();
}

std::string text_of(const StepValue& value) {
  if (value.kind == StepValue::Kind::kConstant) return text_of(value.constant);
  std::vector<std::string> all;
  for (const int32_t one : value.tensors) all.push_back(one == kUndefined ? "undefined" : fmt::format("%{}", one));
  if (value.kind == StepValue::Kind::kTensor) return all.front();
  return fmt::format("[{}]", fmt::join(all, ", "));
}

std::string text_of(const StepTensor& tensor) {
  return fmt::format("[{}] {}", fmt::join(tensor.sizes, ", "), c10::toString(tensor.dtype));
}

bool is_same(const StepValue& one, const StepValue& other) {
  if (one.kind != other.kind) return false;
  return one.kind == StepValue::Kind::kConstant ? is_same(one.constant, other.constant) : one.tensors == other.tensors;
}

std::string difference(std::size_t place, const Node& one, const Node& other) {
  const auto at = [&](const std::string& how) { return fmt::format("at operator {}, {}, {}", place, one.what, how); };
  if (one.what != other.what) return at("another run calls " + other.what);
  if (one.inputs.size() != other.inputs.size()) return at("the number of arguments differs");
  for (std::size_t i = 0; i < one.inputs.size(); ++i) {
    if (is_same(one.inputs[i], other.inputs[i])) continue;
    const std::string name = one.op ? one.op->schema().arguments()[i].name() : std::string("input");
    return at(fmt::format("the argument '{}' is {} in one run and {} in another", name, text_of(one.inputs[i]),
                          text_of(other.inputs[i])));
  }
  const bool are_outputs_same =
      std::equal(one.outputs.begin(), one.outputs.end(), other.outputs.begin(), other.outputs.end(),
                 [](const auto& a, const auto& b) { return is_same(a, b); });
  if (!are_outputs_same) return at("results differ");
  if (one.is_view != other.is_view || one.written != other.written || one.weight != other.weight ||
      one.has_grad_mode != other.has_grad_mode)
    return at("what it does beside its results differs");
  if (!(one.before == other.before)) return at("the gradients before it differ");
  return {};
}

}  // namespace

int64_t StepTensor::extent() const {
  int64_t last = 0;
  for (std::size_t d = 0; d < sizes.size(); ++d) {
    if (sizes[d] == 0) return 0;
    last += (sizes[d] - 1) * strides[d];
  }
  return (last + 1) * static_cast<int64_t>(c10::elementSize(dtype));
}

int64_t StepTensor::bytes() const {
  int64_t elements = 1;
  for (const int64_t size : sizes) elements *= size;
  return elements * static_cast<int64_t>(c10::elementSize(dtype));
}

bool BackwardBooks::operator==(const BackwardBooks& other) const {
  return gradients == other.gradients && backwards.all == other.backwards.all &&
         backwards.weighted == other.backwards.weighted && asked_for_counts == other.asked_for_counts;
}

int64_t StepForm::num_views() const {
  return std::count_if(nodes.begin(), nodes.end(), [](const Node& node) { return node.is_view; });
}

int64_t StepForm::num_calls() const {
  return std::count_if(nodes.begin(), nodes.end(), [](const Node& node) { return !node.op; });
}

std::string difference(const StepForm& one, const StepForm& other) {
  // In the order in which a reader of the step would come to it.
  for (std::size_t i = 0; i < std::min(one.nodes.size(), other.nodes.size()); ++i) {
    std::string how = difference(i, one.nodes[i], other.nodes[i]);
    if (!how.empty()) return how;
  }
  if (one.nodes.size() != other.nodes.size())
    return fmt::format("one run has {} operators and another one {}", one.nodes.size(), other.nodes.size());
  for (std::size_t i = 0; i < std::min(one.tensors.size(), other.tensors.size()); ++i) {
    if (one.tensors[i] == other.tensors[i]) continue;
    return fmt::format("tensor %{} is {} in one run and {} in another, or lies elsewhere", i, text_of(one.tensors[i]),
                       text_of(other.tensors[i]));
  }
  for (std::size_t i = 0; i < std::min(one.sources.size(), other.sources.size()); ++i) {
    if (one.sources[i] == other.sources[i]) continue;
    return "a tensor that the step refers to, and that is no argument and no variable, is another one in each run";
  }
  if (!std::equal(one.scalars.begin(), one.scalars.end(), other.scalars.begin(), other.scalars.end(),
                  [](const c10::Scalar& a, const c10::Scalar& b) { return is_same(c10::IValue(a), c10::IValue(b)); }))
    return "a number that the step computes with is another one in each run";
  const bool is_same_rest = one.tensors.size() == other.tensors.size() && one.sources.size() == other.sources.size() &&
                            one.variables == other.variables && one.are_trained == other.are_trained &&
                            one.at_end == other.at_end && one.results == other.results;
  return is_same_rest ? std::string() : "what the runs leave behind differs";
}

std::string text_of(const StepForm& form) {
  std::string text;
  for (const Node& node : form.nodes) {
    std::vector<std::string> made;
    std::vector<std::string> of;
    std::vector<std::string> given;
    for (const StepValue& value : node.outputs) {
      if (value.kind == StepValue::Kind::kConstant) continue;
      made.push_back(text_of(value));
      for (const int32_t one : value.tensors) {
        if (one != kUndefined) of.push_back(text_of(form.tensors[static_cast<std::size_t>(one)]));
      }
    }
    for (const StepValue& value : node.inputs) given.push_back(text_of(value));
    text +=
        fmt::format("  {}{}{}({})  {}{}\n", fmt::join(made, ", "), made.empty() ? "" : " = ", node.what,
                    fmt::join(given, ", "), fmt::join(of, ", "), node.is_view ? "  view" : (node.op ? "" : "  call"));
  }
  return text;
}

}  // namespace lockstep::internal::capture
