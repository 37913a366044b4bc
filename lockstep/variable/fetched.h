// Going through many variables without waiting for memory at each: with thousands of small ones a step is otherwise one
// cache miss after the other.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "lockstep/variable/variable_state.h"

namespace lockstep::internal {

/// A piece of memory behind a variable and one replica. Each is found through one that stands before it.
enum class Piece {
  kVariable,         // the state's own members
  kExpected,         // what the library left of the component, and where the component is
  kComponentHead,    // the part of the component's tensor that points to all else
  kComponent,        // all of the component's tensor
  kVersion,          // the component's version counter
  kStorage,          // where the component's memory is
  kGradientHandle,   // where the component's gradient is
  kGradientHead,     // the gradient's reference count
  kGradient,         // all of the gradient's tensor
  kGradientStorage,  // where the gradient's memory is
};

template <Piece... kPieces>
struct Pieces {};

/// What reads and writes no more than the state itself.
using OfVariable = Pieces<Piece::kVariable>;
/// For check_component(r).
using OfCheck = Pieces<Piece::kVariable, Piece::kExpected, Piece::kComponent, Piece::kVersion, Piece::kStorage>;
/// For check_component(r) and a look at the gradient.
using OfCollect = Pieces<Piece::kVariable, Piece::kExpected, Piece::kComponent, Piece::kVersion, Piece::kStorage,
                         Piece::kGradientHandle, Piece::kGradient, Piece::kGradientStorage>;
/// For updated_component(r) and letting go of the gradient.
using OfSettle = Pieces<Piece::kVariable, Piece::kExpected, Piece::kComponentHead, Piece::kVersion,
                        Piece::kGradientHandle, Piece::kGradientHead>;

template <Piece kPiece>
void VariableState::fetch(int64_t r) const {
  constexpr std::size_t kLine = 64;
  const auto ask = [](const void* from, std::size_t bytes) {
    const char* const begin = static_cast<const char*>(from);
    if (!begin) return;
    for (std::size_t at = 0; at < bytes; at += kLine) __builtin_prefetch(begin + at);
    __builtin_prefetch(begin + bytes - 1);
  };
  if constexpr (kPiece == Piece::kVariable) return ask(this, kFetched);
  const auto replica = static_cast<std::size_t>(r);
  if constexpr (kPiece == Piece::kExpected) {
    ask(&components_[replica], sizeof(at::Tensor));
    if (!expected_.empty()) ask(&expected_[replica], sizeof(Expected));
    return;
  }
  const c10::TensorImpl* const component = components_[replica].unsafeGetTensorImpl();
  const auto storage_of = [](const c10::TensorImpl* tensor) { return tensor->unsafe_storage().unsafeGetStorageImpl(); };
  if constexpr (kPiece == Piece::kComponentHead) ask(component, kLine);
  if constexpr (kPiece == Piece::kComponent) ask(component, sizeof(c10::TensorImpl));
  if constexpr (kPiece == Piece::kVersion) component->version_counter().current_version();  // hidden, so a load
  if constexpr (kPiece == Piece::kStorage) ask(storage_of(component), kLine);
  if constexpr (kPiece == Piece::kGradientHandle) ask(component->autograd_meta(), kLine);
  if constexpr (kPiece == Piece::kGradientHead) ask(component->grad().unsafeGetTensorImpl(), kLine);
  if constexpr (kPiece == Piece::kGradient) ask(component->grad().unsafeGetTensorImpl(), sizeof(c10::TensorImpl));
  if constexpr (kPiece == Piece::kGradientStorage) {
    if (component->grad().defined()) ask(storage_of(component->grad().unsafeGetTensorImpl()), kLine);
  }
}

/// Calls visit(i, *variables[i]) for each in order. Where there are many, the pieces of some at a time are asked for
/// beforehand, each piece of all of them before the next.
template <Piece... kPieces, class Visit>
void for_each_fetched(Pieces<kPieces...>, const std::vector<std::shared_ptr<VariableState>>& variables, int64_t r,
                      const Visit& visit) {
  constexpr std::size_t kAtATime = 8;  // with 32 the first cache (32 KiB) no longer holds all that was asked for
  for (std::size_t first = 0; first < variables.size(); first += kAtATime) {
    const std::size_t last = std::min(first + kAtATime, variables.size());
    if (variables.size() > kAtATime) {
      const auto fetch_of_all = [&]<Piece kPiece>(Pieces<kPiece>) {
        for (std::size_t i = first; i < last; ++i) variables[i]->template fetch<kPiece>(r);
      };
      (fetch_of_all(Pieces<kPieces>()), ...);
    }
    for (std::size_t i = first; i < last; ++i) visit(i, *variables[i]);
  }
}

}  // namespace lockstep::internal
