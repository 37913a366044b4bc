// Joining samples that cannot be stacked: a function of the program's own makes one Batch of a replica's samples.
#pragma once

#include <concepts>
#include <cstddef>
#include <functional>
#include <memory>
#include <type_traits>
#include <typeinfo>
#include <utility>
#include <vector>

#include "lockstep/data/batch.h"

namespace lockstep {

namespace internal::inline data {

/// A sample of some type.
using AnySample = std::shared_ptr<void>;

template <class R, class A>
std::type_identity<std::remove_cvref_t<A>> only_argument(const std::function<R(A)>&);
template <class Argument>
auto element_of() {
  if constexpr (requires { typename Argument::value_type; }) {
    return std::type_identity<std::remove_cv_t<typename Argument::value_type>>();
  } else {
    return std::type_identity<void>();
  }
}

/// The samples that a function joins: the elements of the vector or span that it takes, void where it takes something
/// else. A generic function joins Batches.
template <class Fn>
struct SampleOf {
  using type = Batch;
};
template <class Fn>
requires requires(Fn& fn) { only_argument(std::function(fn)); }
struct SampleOf<Fn> {
  using Argument = typename decltype(only_argument(std::function(std::declval<Fn&>())))::type;
  using type = typename decltype(element_of<Argument>())::type;
};

}  // namespace internal::data

/// A function that makes a replica's part of a global batch of its samples: see DistributeOptions::collate. It is made
/// of a callable `Batch fn(std::vector<Sample>)`, which may take a const reference or a std::span as well. Copies share
/// the callable. Any thread may call, several at once where the callable may be.
class Collate {
 public:
  Collate() = default;
  template <class Fn>
  requires(!std::same_as<std::remove_cvref_t<Fn>, Collate>)
      Collate(Fn&& fn)  // NOLINT(google-explicit-constructor): an option is given as a function
  {
    using Kept = std::decay_t<Fn>;
    using Sample = typename internal::SampleOf<Kept>::type;
    static_assert(!std::is_void_v<Sample>,
                  "lockstep: the collate function must take a std::vector of samples, as fn(std::vector<Sample>)");
    if constexpr (!std::is_void_v<Sample>) {
      constexpr bool kTakesValues = std::is_invocable_r_v<Batch, Kept&, std::vector<Sample>>;
      constexpr bool kFits = kTakesValues || std::is_invocable_r_v<Batch, Kept&, std::vector<Sample>&>;
      static_assert(kFits,
                    "lockstep: the collate function must be callable as fn(std::vector<Sample>) and give a Batch, "
                    "where Sample is lockstep::Batch or the example of a torch::data data set");
      if constexpr (std::is_class_v<Kept> && std::is_constructible_v<Kept, std::nullptr_t>) {
        if (!fn) return;  // an empty std::function is none
      }
      type_ = &typeid(Sample);
      if constexpr (kFits) {
        call_ = [kept = std::make_shared<Kept>(std::forward<Fn>(fn))](std::vector<internal::AnySample>&& all) -> Batch {
          std::vector<Sample> samples;
          samples.reserve(all.size());
          for (const internal::AnySample& one : all) samples.push_back(std::move(*static_cast<Sample*>(one.get())));
          if constexpr (kTakesValues) {
            return (*kept)(std::move(samples));
          } else {
            return (*kept)(samples);
          }
        };
      }
    }
  }

  explicit operator bool() const { return call_ != nullptr; }
  /// The type of the samples that it joins.
  const std::type_info& sample_type() const { return *type_; }
  bool takes_batches() const { return *type_ == typeid(Batch); }
  /// For the library's own use: `samples` are of that type, and are moved from.
  Batch operator()(std::vector<internal::AnySample> samples) const { return call_(std::move(samples)); }

 private:
  const std::type_info* type_ = &typeid(Batch);
  std::function<Batch(std::vector<internal::AnySample>&&)> call_;
};

}  // namespace lockstep
