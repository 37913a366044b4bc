// The dimensions that Strategy::reduce() reduces over.
#pragma once

#include <concepts>
#include <cstdint>
#include <initializer_list>
#include <optional>
#include <utility>
#include <vector>

namespace lockstep {

/// The dimensions over which reduce() aggregates the elements of each replica's tensor: none, one or several.
class Axes {
 public:
  Axes() = default;
  Axes(std::nullopt_t) {}  // NOLINT(google-explicit-constructor)
  template <std::integral Axis>
  Axes(Axis axis) : axes_({static_cast<int64_t>(axis)}) {}  // NOLINT(google-explicit-constructor)
  Axes(std::optional<int64_t> axis) {                       // NOLINT(google-explicit-constructor)
    if (axis) axes_.push_back(*axis);
  }
  Axes(std::initializer_list<int64_t> axes) : axes_(axes) {}
  Axes(std::vector<int64_t> axes) : axes_(std::move(axes)) {}  // NOLINT(google-explicit-constructor)
  const std::vector<int64_t>& values() const { return axes_; }

 private:
  std::vector<int64_t> axes_;
};

}  // namespace lockstep
