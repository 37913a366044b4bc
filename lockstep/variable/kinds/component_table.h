// A loop over many components that does not wait for memory at each of them: with thousands of small ones a step is
// otherwise one cache miss after the other.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "lockstep/variable/kinds/component.h"
#include "lockstep/variable/variable_state.h"

namespace lockstep::internal::inline variable {

/// A piece of memory behind a component. Its address is read from the component, or from a piece listed before it.
enum class Piece {
  kTensorHead,       // the part of its tensor that points to all else
  kTensor,           // all of its tensor
  kVersion,          // its version counter
  kStorage,          // where its memory is
  kGradientHandle,   // where its gradient is
  kGradientHead,     // the gradient's reference count
  kGradient,         // all of the gradient's tensor
  kGradientStorage,  // where the gradient's memory is
};

template <Piece... kPieces>
struct Pieces {};

/// For Component::as_left.
using OfCheck = Pieces<Piece::kTensor, Piece::kVersion, Piece::kStorage>;
/// For as_left and a look at the gradient.
using OfCollect = Pieces<Piece::kTensor, Piece::kVersion, Piece::kStorage, Piece::kGradientHandle, Piece::kGradient,
                         Piece::kGradientStorage>;
/// For Component::updated and letting go of the gradient.
using OfSettle = Pieces<Piece::kTensorHead, Piece::kVersion, Piece::kGradientHandle, Piece::kGradientHead>;

/// The components of a list of variables, by replica. The variables outlive the table. A step that finds nothing wrong
/// reads the components only, and not the variables.
class ComponentTable {
 public:
  void add(VariableState& variable) {
    variables_.push_back(&variable);
    components_.resize(static_cast<std::size_t>(variable.num_components()));
    for (int64_t r = 0; r < variable.num_components(); ++r) of_replica(r).push_back(&variable.component_at(r));
  }
  void clear() {
    variables_.clear();
    for (auto& components : components_) components.clear();
  }

  VariableState& variable(std::size_t i) const { return *variables_[i]; }
  Component& component(std::size_t i, int64_t r) const { return *components_[static_cast<std::size_t>(r)][i]; }

  /// Calls visit(i, component) for each component of replica r, in order. Where there are many, it visits them in
  /// groups, and prefetches the pieces of a group first: one piece of all its components, then the next piece. Call
  /// from replica r's thread, or while replica r is at rest.
  template <Piece... kPieces, class Visit>
  void for_each(Pieces<kPieces...>, int64_t r, const Visit& visit) const {
    if (variables_.empty()) return;
    const std::vector<Component*>& components = components_[static_cast<std::size_t>(r)];
    constexpr std::size_t kAtATime = 8;  // with 32 the first cache (32 KiB) no longer holds all that was prefetched
    for (std::size_t first = 0; first < components.size(); first += kAtATime) {
      const std::size_t last = std::min(first + kAtATime, components.size());
      // The addresses of the next group's components are known without waiting for this group.
      for (std::size_t i = last; i < std::min(last + kAtATime, components.size()); ++i) {
        __builtin_prefetch(components[i]);
      }
      if (components.size() > kAtATime) {
        const auto fetch_of_all = [&]<Piece kPiece>(Pieces<kPiece>) {
          for (std::size_t i = first; i < last; ++i) fetch<kPiece>(*components[i]);
        };
        (fetch_of_all(Pieces<kPieces>()), ...);
      }
      for (std::size_t i = first; i < last; ++i) visit(i, *components[i]);
    }
  }

 private:
  std::vector<Component*>& of_replica(int64_t r) { return components_[static_cast<std::size_t>(r)]; }

  template <Piece kPiece>
  static void fetch(const Component& component) {
    constexpr std::size_t kLine = 64;
    const auto ask = [](const void* from, std::size_t bytes) {
      const char* const begin = static_cast<const char*>(from);
      if (!begin) return;
      for (std::size_t at = 0; at < bytes; at += kLine) __builtin_prefetch(begin + at);
      __builtin_prefetch(begin + bytes - 1);
    };
    const c10::TensorImpl* const tensor = component.tensor.unsafeGetTensorImpl();
    const auto storage_of = [](const c10::TensorImpl* of) { return of->unsafe_storage().unsafeGetStorageImpl(); };
    if constexpr (kPiece == Piece::kTensorHead) ask(tensor, kLine);
    if constexpr (kPiece == Piece::kTensor) ask(tensor, sizeof(c10::TensorImpl));
    if constexpr (kPiece == Piece::kVersion) tensor->version_counter().current_version();  // no address: loaded
    if constexpr (kPiece == Piece::kStorage) ask(storage_of(tensor), kLine);
    if constexpr (kPiece == Piece::kGradientHandle) ask(tensor->autograd_meta(), kLine);
    if constexpr (kPiece == Piece::kGradientHead) ask(tensor->grad().unsafeGetTensorImpl(), kLine);
    if constexpr (kPiece == Piece::kGradient) ask(tensor->grad().unsafeGetTensorImpl(), sizeof(c10::TensorImpl));
    if constexpr (kPiece == Piece::kGradientStorage) {
      if (tensor->grad().defined()) ask(storage_of(tensor->grad().unsafeGetTensorImpl()), kLine);
    }
  }

  std::vector<VariableState*> variables_;
  std::vector<std::vector<Component*>> components_;  // by replica, then variable
};

}  // namespace lockstep::internal::variable
