// The conformance checks of values: collectives of any layout, size and dtype, of NaN and infinities, and variables of
// any size and name.
#include <ATen/ATen.h>
#include <torch/optim/sgd.h>

#include <array>
#include <limits>
#include <vector>

#include "lockstep/testing/conformance/conformance_checks.h"

namespace lockstep::internal::inline testing {

namespace {

constexpr std::array<Reduction, 4> kReductions{Reduction::kSum, Reduction::kMean, Reduction::kMin, Reduction::kMax};
constexpr std::array<Reduction, 2> kAdding{Reduction::kSum, Reduction::kMean};

/// Requires that reduce() outside of steps gives `expected`, and that all_reduce() in a step gives the same bits on
/// each replica; only the bits of NaN may differ.
void expect_reduced(Strategy& strategy, Reduction reduction, const std::string& of,
                    const PerReplica<at::Tensor>& values, const at::Tensor& expected) {
  const at::Tensor found = strategy.reduce(reduction, values);
  expect_close(fmt::format("reduce({}) of {}", name_of(reduction), of), found, expected);
  const auto expect_same = found.isnan().any().item<bool>() ? expect_tensor : expect_bits;
  for (const at::Tensor& one : strategy.run(
           values, [&](ReplicaContext&ctx, const at::Tensor&mine) { return ctx.all_reduce(reduction, mine); })) {
    expect_same(fmt::format("all_reduce({}) in a step of {}", name_of(reduction), of), one, found);
  }
}

/// The same for values that are `one(replica)`, with the expected value in `type`.
template <class One>
void expect_reduced_of_each(Strategy& strategy, Reduction reduction, const std::string& of, const One& one,
                            at::ScalarType type) {
  expect_reduced(strategy, reduction, of, strategy.per_replica(one),
                 reduced(reduction, of_all(strategy, one)).to(type));
}

/// The same elements, laid out in one of four ways.
at::Tensor laid_out(const at::Tensor& value, int64_t way) {
  switch (way % 4) {
    case 0: return value.t().contiguous().t();
    case 1: return at::zeros({value.size(0), 2 * value.size(1)}, value.options()).slice(1, 0, {}, 2).copy_(value);
    case 2:
      return at::zeros({value.numel() + 1}, value.options()).narrow(0, 1, value.numel()).view_as(value).copy_(value);
    default: return value;
  }
}

// Each replica has another layout, and over the turns each replica has every layout.
void any_layout(Strategy& strategy) {
  const std::vector<int64_t> shape{6, 10};
  for (int64_t turn = 0; turn < 4; ++turn) {
    const auto dense = of_all(strategy, [&](int64_t r) { return small_integers(r, shape, at::kFloat); });
    const auto values = strategy.per_replica(
        [&](ReplicaId r) { return laid_out(dense[static_cast<std::size_t>(r)], r.value() + turn); });
    for (const Reduction reduction : kReductions) {
      const at::Tensor expected = reduced(reduction, dense).to(at::kFloat);
      expect_reduced(strategy, reduction, "values of which none lies as another", values, expected);
    }
    expect_tensor("gather of values of which none lies as another", strategy.gather(values), at::cat(dense));
  }
  const auto expanded = [](int64_t r) { return small_integers(r, {1, 10}, at::kFloat).expand({6, 10}); };
  const auto transposed = [](int64_t r) { return small_integers(r, {10, 6}, at::kFloat).t(); };
  for (const Reduction reduction : kReductions) {
    expect_reduced_of_each(strategy, reduction, "expanded values", expanded, at::kFloat);
    expect_reduced_of_each(strategy, reduction, "transposed values", transposed, at::kFloat);
  }
}

// More than one block, one cache and one message hold: 5 thousand elements, and 4 megabytes.
void any_size(Strategy& strategy) {
  for (const int64_t repeats : {500, 100'000}) {
    const int64_t count = 11 * repeats;
    const auto few = [](int64_t r) { return small_integers(r, {11}, at::kFloat); };
    const auto values = strategy.per_replica([&](ReplicaId r) { return few(r).repeat({repeats}); });
    const auto expected = [&](Reduction reduction) {
      return reduced(reduction, of_all(strategy, few)).to(at::kFloat).repeat({repeats});
    };
    for (const Reduction reduction : kAdding) {
      expect_reduced(strategy, reduction, fmt::format("{} elements", count), values, expected(reduction));
    }
    const Variable variable = strategy.make_variable(at::zeros({count}), {.name = fmt::format("of_{}", count)});
    const auto optimizer = strategy.make_optimizer(std::vector<Variable>{variable}, torch::optim::SGDOptions(1.0));
    strategy.run(values, [&](ReplicaContext& ctx, const at::Tensor& mine) {
      (variable.value(ctx) * mine).sum().backward();
      optimizer.step(ctx);
    });
    expect_tensor(fmt::format("a variable of {} elements after a step", count), variable.read(),
                  expected(Reduction::kSum).neg());
  }
}

void any_dtype(Strategy& strategy) {
  const int64_t n = strategy.num_replicas();
  const std::vector<int64_t> shape{3, 5};
  // Bytes have no sign. Sums need small values, so that a byte can hold them; least and greatest values do not.
  if (n <= 25) {
    const auto small = [&](int64_t r) { return small_integers(r, shape, at::kInt).add(5).to(at::kByte); };
    for (const Reduction reduction : kAdding) {
      expect_reduced_of_each(strategy, reduction, "bytes", small,
                             reduction == Reduction::kMean ? at::kDouble : at::kByte);
    }
  }
  const auto bytes = [&](int64_t r) {
    return (at::arange(15, at::kLong) * 37 + r * 91).remainder(256).to(at::kByte).view(shape);
  };
  for (const Reduction reduction : {Reduction::kMin, Reduction::kMax}) {
    expect_reduced_of_each(strategy, reduction, "bytes", bytes, at::kByte);
  }
  // Doubles and longs that no narrower dtype represents exactly.
  const auto doubles = [&](int64_t r) { return small_integers(r, shape, at::kDouble) + 0x1p40; };
  for (const Reduction reduction : kReductions) {
    expect_reduced_of_each(strategy, reduction, "doubles near 2^40", doubles, at::kDouble);
  }
  const auto longs = [&](int64_t r) { return small_integers(r, shape, at::kLong) + (int64_t{1} << 53) + 1; };
  expect_reduced(strategy, Reduction::kSum, "integers above 2^53", strategy.per_replica(longs),
                 at::stack(of_all(strategy, longs)).sum(0));
  const auto large = [&](int64_t r) { return small_integers(r, shape, at::kFloat) * 0x1p60; };
  for (const Reduction reduction : kReductions) {
    expect_reduced_of_each(strategy, reduction, "floats near 2^60", large, at::kFloat);
  }
  for (const auto type : {at::kFloat, at::kDouble}) {
    const auto parts = [&](int64_t r) { return small_integers(r, {3, 5, 2}, type); };
    const auto numbers = strategy.per_replica([&](ReplicaId r) { return at::view_as_complex(parts(r)); });
    for (const Reduction reduction : kAdding) {
      expect_reduced(strategy, reduction, "complex numbers", numbers,
                     at::view_as_complex(reduced(reduction, of_all(strategy, parts)).to(type).contiguous()));
    }
  }
}

// Elements are NaN or infinite on some replica: NaN stays NaN, and opposite infinities give NaN.
void no_number(Strategy& strategy) {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  const double nan = std::numeric_limits<double>::quiet_NaN();
  const int64_t last = strategy.num_replicas() - 1;
  for (const auto type : {at::kFloat, at::kDouble}) {
    const auto value = [&](int64_t r) {
      const auto own = static_cast<double>(r);
      if (r == last) return at::tensor({nan, kInfinity, -kInfinity, kInfinity, own, -0.0}).to(type);
      return at::tensor({own, own, own, -kInfinity, nan, own}).to(type);
    };
    for (const Reduction reduction : kReductions) {
      expect_reduced_of_each(strategy, reduction, "values with NaN and infinities", value, type);
    }
  }
}

// Variables may have any name and size, and each replica has its component of them.
void any_variable(Strategy& strategy) {
  const std::vector<std::string> names{"w",
                                       "0",
                                       "weight",
                                       "bias",
                                       "layers.0.weight",
                                       "encoder/kernel",
                                       "momentum",
                                       "average",
                                       "two words",
                                       "embedding.table",
                                       std::string(200, 'x')};
  const std::vector<std::vector<int64_t>> shapes{{}, {0}, {1}, {5003}, {300, 1000}};
  const auto n = strategy.num_replicas();
  for (const std::string& name : names) {
    // The first name is tested with all shapes, the others with the first shape.
    for (std::size_t i = 0; i < (name == names.front() ? shapes.size() : 1); ++i) {
      const std::string own = i == 0 ? name : fmt::format("{}.{}", name, i);
      const at::Tensor expected = at::full(shapes[i], static_cast<double>(n));
      const std::string what = fmt::format("the variable '{}' of shape [{}]", own, fmt::join(shapes[i], ", "));
      const auto found = thrown_by([&] {
        const Variable variable =
            strategy.make_variable(at::zeros(shapes[i]), {.name = own, .aggregation = VariableAggregation::kSum});
        const auto seen = strategy.run([&](ReplicaContext& ctx) {
          variable.assign_add(ctx, at::ones(shapes[i]));
          return variable.value(ctx).sum().item<double>();
        });
        for (const double sum : seen) expect_equal("what a replica sees of it", sum, expected.sum().item<double>());
        expect_tensor("what an addition of 1 by each replica leaves", variable.read(), expected);
      });
      if (found) throw Finding(fmt::format("{}: {}", what, message_of(found)));
    }
  }
}

constexpr const char* kReducer =
    "look at the strategy's Reducer: it adds values of any strides, size and dtype, and what is no number stays none; "
    "LibTorch's operators do, loops over data_ptr() see to it themselves";
constexpr const char* kPlacement =
    "look at the strategy's Placement: whatever a variable's size and name, each replica stands in exactly one copy";

constexpr std::array<StrategyCheck, 5> kValuesChecks{{
    {"ReduceTakesValuesHoweverTheyLie", any_layout, kReducer},
    {"ReduceTakesLargeValues", any_size, kReducer},
    {"ReduceTakesEveryDtype", any_dtype, kReducer},
    {"ReduceKeepsWhatIsNoNumber", no_number, kReducer},
    {"VariablesHaveAnySizeAndName", any_variable, kPlacement},
}};

}  // namespace

std::span<const StrategyCheck> values_checks() { return kValuesChecks; }

}  // namespace lockstep::internal::testing
