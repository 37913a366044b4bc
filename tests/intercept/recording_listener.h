// A listener that writes down the operator calls that it hears, as a recorder of a step would.
#pragma once

#include <cstddef>
#include <ostream>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/intercept/operator_listener.h"

namespace lockstep::testing {

/// One operator call.
struct HeardCall {
  std::string name;  // "aten::add.Tensor"
  std::size_t inputs = 0;
  std::size_t outputs = 0;
  bool is_in_place = false;  // its first result is its first argument
  bool is_view = false;      // its first result has the memory of an argument, and is another tensor
  bool operator==(const HeardCall&) const = default;
};

inline std::ostream& operator<<(std::ostream& stream, const HeardCall& one) {
  return stream << one.name << '(' << one.inputs << " in, " << one.outputs << " out"
                << (one.is_in_place ? ", in place" : "") << (one.is_view ? ", view" : "") << ')';
}

inline std::string full_name(const internal::OperatorCall& call) {
  return call.overload().empty() ? call.name() : call.name() + "." + call.overload();
}

class RecordingListener final : public internal::OperatorListener {
 public:
  void hear(internal::OperatorCall& call) override {
    HeardCall heard{.name = full_name(call), .inputs = call.inputs().size()};
    std::vector<at::Tensor> tensors;
    for (const c10::IValue& input : call.inputs()) {
      if (input.isTensor() && input.toTensor().defined()) tensors.push_back(input.toTensor());
    }
    call.go_on();
    heard.outputs = call.outputs().size();
    if (!tensors.empty() && !call.outputs().empty() && call.outputs()[0].isTensor()) {
      const at::Tensor& result = call.outputs()[0].toTensor();
      heard.is_in_place = result.is_same(tensors[0]);
      heard.is_view = !heard.is_in_place && result.has_storage() && tensors[0].has_storage() &&
                      result.storage().unsafeGetStorageImpl() == tensors[0].storage().unsafeGetStorageImpl();
    }
    calls_.push_back(std::move(heard));
  }

  const std::vector<HeardCall>& calls() const { return calls_; }
  std::vector<std::string> names() const {
    std::vector<std::string> all;
    for (const HeardCall& one : calls_) all.push_back(one.name);
    return all;
  }
  /// The first call of an operator, whatever its overload; one without a name where there is none.
  HeardCall first(const std::string& name) const {
    for (const HeardCall& one : calls_) {
      if (one.name == name || one.name.rfind(name + ".", 0) == 0) return one;
    }
    return {};
  }
  std::size_t count(const std::string& name) const {
    std::size_t n = 0;
    for (const HeardCall& one : calls_) n += one.name == name || one.name.rfind(name + ".", 0) == 0;
    return n;
  }
  void forget() { calls_.clear(); }

 private:
  std::vector<HeardCall> calls_;
};

}  // namespace lockstep::testing
