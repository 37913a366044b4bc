// The result of a merge function reaches each replica as its own tensors.
#include <gtest/gtest.h>
#include <torch/data/example.h>
#include <torch/ordered_dict.h>
#include <torch/types.h>

#include <array>
#include <map>
#include <optional>
#include <set>
#include <variant>

#include "tests/support/programs.h"

namespace lockstep {
namespace {

using testing::lanes;
using torch::Tensor;

/// A struct of a program's own that says where its tensors are.
struct Own {
  Tensor one;
  std::vector<Tensor> more;
  int count = 0;
};
template <class Fn>
void for_each_tensor(Own& own, const Fn& fn) {
  fn(own.one);
  fn(own.more);
}

class MergeResults : public ::testing::TestWithParam<std::pair<int64_t, int>> {
 protected:
  MirroredStrategy strategy_{{.devices = lanes(GetParam().second), .replicas = GetParam().first}};

  /// Has each replica change the tensors that `pick` finds in what `make` returned to all, and expects that each finds
  /// in the end what it wrote itself.
  template <class Make, class Pick>
  void expect_own(const Make& make, const Pick& pick) {
    const auto kept = strategy_.run([&](ReplicaContext& ctx) {
      auto result = ctx.merge_call([&](Strategy&) { return make(); });
      std::vector<Tensor> tensors = pick(result);
      for (const Tensor& tensor : tensors) {
        EXPECT_TRUE(torch::equal(tensor, torch::ones({3})));
        tensor.fill_(static_cast<double>(ctx.replica_id().value()));
      }
      return tensors;
    });
    for (int64_t r = 0; r < strategy_.num_replicas(); ++r) {
      for (const Tensor& tensor : kept[r]) {
        EXPECT_TRUE(torch::equal(tensor, torch::full({3}, static_cast<double>(r)))) << r;
      }
    }
  }
};

TEST_P(MergeResults, ATensor) {
  expect_own([] { return torch::ones({3}); }, [](Tensor& t) { return std::vector{t}; });
}

TEST_P(MergeResults, ContainersOfTensorsAtAnyDepth) {
  const Tensor one = torch::ones({3});
  expect_own([&] { return std::vector{one, one}; }, [](auto& v) { return v; });
  expect_own([&] { return std::pair(1, one); }, [](auto& p) { return std::vector{p.second}; });
  expect_own([&] { return std::tuple(one, 2.0, std::string("x")); },
             [](auto& t) { return std::vector{std::get<0>(t)}; });
  expect_own([&] { return std::optional(one); }, [](auto& o) { return std::vector{*o}; });
  expect_own([&] { return std::array{one}; }, [](auto& a) { return std::vector{a[0]}; });
  expect_own([&] { return std::map<std::string, Tensor>{{"a", one}}; }, [](auto& m) { return std::vector{m.at("a")}; });
  expect_own(
      [&] {
        torch::OrderedDict<std::string, Tensor> dictionary;
        dictionary.insert("a", one);
        return dictionary;
      },
      [](auto& d) { return std::vector{d["a"]}; });
  expect_own([&] { return std::vector{std::optional(std::pair(one, std::vector{one}))}; },
             [](auto& v) {
               return std::vector{v[0]->first, v[0]->second[0]};
             });
}

TEST_P(MergeResults, VariantsAndExamples) {
  using Either = std::variant<int, Tensor>;
  expect_own([] { return Either(torch::ones({3})); }, [](Either& either) { return std::vector{std::get<1>(either)}; });
  expect_own([] { return torch::data::Example<>(torch::ones({3}), torch::ones({3})); },
             [](torch::data::Example<>& one) {
               return std::vector{one.data, one.target};
             });
}

TEST_P(MergeResults, BatchesAndStructsThatNameTheirTensors) {
  const Tensor one = torch::ones({3});
  expect_own([&] { return Batch{one, one, {}, 3}; }, [](Batch& b) { return std::vector{b.input, b.target}; });
  expect_own([&] { return Own{one, {one}, 1}; }, [](Own& own) { return std::vector{own.one, own.more[0]}; });
}

TEST_P(MergeResults, ComponentsOfAPerReplicaThatShareMemory) {
  const auto kept = strategy_.run([&](ReplicaContext& ctx) {
    const Tensor own = ctx.merge_call([](Strategy& strategy) {
      const Tensor one = torch::ones({3});
      return strategy.per_replica([&](ReplicaId) { return one; });
    });
    own.fill_(static_cast<double>(ctx.replica_id().value()));
    return own;
  });
  for (int64_t r = 0; r < strategy_.num_replicas(); ++r) {
    EXPECT_TRUE(torch::equal(kept[r], torch::full({3}, static_cast<double>(r))));
  }
}

TEST_P(MergeResults, AComponentThatNothingElseRefersToIsNotCopied) {
  const auto same = strategy_.run([](ReplicaContext& ctx) {
    Tensor given = torch::ones({3});
    const void* const memory = given.data_ptr();
    return ctx.merge_call([](Strategy&, PerReplica<Tensor> all) { return all; }, std::move(given)).data_ptr() == memory;
  });
  for (const bool one : same) EXPECT_TRUE(one);
}

/// Each replica gives a tensor of its own number and gets the next replica's, with gradient.
PerReplica<Tensor> turned(const PerReplica<Tensor>& all) {
  std::vector<Tensor> others;
  const auto size = static_cast<int64_t>(all.size());
  for (int64_t r = 0; r < size; ++r) others.push_back(all[(r + 1) % size]);
  return PerReplica<Tensor>(std::move(others));
}

TEST_P(MergeResults, WhatReplicasExchangeInAPerReplicaIsNoOthersOwn) {
  const int64_t replicas = strategy_.num_replicas();
  strategy_.run([&](ReplicaContext& ctx) {
    const auto own = static_cast<double>(ctx.replica_id().value());
    const auto next = static_cast<double>((ctx.replica_id().value() + 1) % replicas);
    const Tensor x = torch::full({3}, own).requires_grad_();
    const Tensor y = x * 1;
    Tensor got = ctx.merge_call([](Strategy&, const PerReplica<Tensor>& all) { return turned(all); }, x);
    auto nested = ctx.merge_call(
        [](Strategy&, const PerReplica<Tensor>& all) {
          std::vector<std::map<int, std::vector<Tensor>>> maps;
          for (const Tensor& one : turned(all)) maps.push_back({{1, {one, one.view({3, 1})}}});
          return PerReplica<std::map<int, std::vector<Tensor>>>(std::move(maps));
        },
        y);
    EXPECT_FALSE(got.requires_grad());
    got.add_(100);
    for (Tensor& one : nested.at(1)) {
      EXPECT_FALSE(one.requires_grad());
      one.add_(200);
    }
    ctx.all_reduce(Reduction::kSum, torch::ones({1}));  // every replica has written
    EXPECT_TRUE(torch::equal(x, torch::full({3}, own)));
    EXPECT_TRUE(torch::equal(y, torch::full({3}, own)));
    EXPECT_TRUE(torch::equal(got, torch::full({3}, next + 100)));
    EXPECT_TRUE(torch::equal(nested.at(1)[0], torch::full({3}, next + 200)));
    EXPECT_TRUE(torch::equal(nested.at(1)[1], torch::full({3, 1}, next + 200)));
  });
}

TEST_P(MergeResults, AReplicaThatGoesOnDoesNotChangeWhatOthersGet) {
  strategy_.run([](ReplicaContext& ctx) {
    const auto number = static_cast<double>(ctx.replica_id().value());
    const Tensor x = torch::full({3}, number);
    const Tensor got = ctx.merge_call([](Strategy&, const PerReplica<Tensor>& all) { return *all.begin(); }, x);
    x.fill_(-1);
    EXPECT_TRUE(torch::equal(got, torch::zeros({3}))) << number;
  });
}

TEST_P(MergeResults, ATensorOfTheCallersStaysTheCallers) {
  const Tensor outer = torch::ones({3}).requires_grad_();
  float memory[] = {1, 1, 1};
  const int64_t replicas = strategy_.num_replicas();
  strategy_.run([&](ReplicaContext& ctx) {
    const auto to_all = [&](const Tensor& one) {
      return PerReplica<Tensor>(std::vector<Tensor>(static_cast<std::size_t>(replicas), one));
    };
    for (Tensor got :
         {ctx.merge_call([&](Strategy&) { return outer; }), ctx.merge_call([&](Strategy&) { return to_all(outer); }),
          ctx.merge_call([&](Strategy&) { return torch::from_blob(memory, {3}); }),
          ctx.merge_call([&](Strategy&) { return to_all(torch::from_blob(memory, {3})); })}) {
      EXPECT_FALSE(got.requires_grad());
      EXPECT_TRUE(torch::equal(got, torch::ones({3})));
      got.fill_(7);
    }
  });
  EXPECT_TRUE(torch::equal(outer, torch::ones({3})));
  EXPECT_EQ(memory[0], 1);
}

TEST_P(MergeResults, AVariablesOwnValueIsNotHandedOut) {
  auto variable = strategy_.make_variable(torch::ones({3}), {.name = "v",
                                                             .trainable = false,
                                                             .synchronization = VariableSynchronization::kOnRead,
                                                             .aggregation = VariableAggregation::kMean});
  strategy_.run([&](ReplicaContext& ctx) {
    Tensor got = ctx.merge_call([](Strategy&, PerReplica<Tensor> all) { return all; }, variable.value(ctx));
    got.add_(5);
  });
  EXPECT_TRUE(torch::equal(variable.read(), torch::ones({3})));
}

TEST_P(MergeResults, AResultWithAGraphOfItsOwnOrOfOneElementCanBeWritten) {
  strategy_.run([&](ReplicaContext& ctx) {
    const Tensor x = torch::ones({3}).requires_grad_();
    for (const bool expanded : {false, true}) {
      Tensor got = ctx.merge_call(
          [&](Strategy&, const PerReplica<Tensor>& all) {
            std::vector<Tensor> results;
            for (const Tensor& one : all) results.push_back(expanded ? torch::ones({1}).expand({3}) : one.exp());
            return PerReplica<Tensor>(std::move(results));
          },
          x);
      EXPECT_FALSE(got.requires_grad());
      got.fill_(static_cast<double>(ctx.replica_id().value()));
      EXPECT_TRUE(torch::equal(got, torch::full({3}, static_cast<double>(ctx.replica_id().value()))));
    }
  });
}

TEST_P(MergeResults, AMergeFunctionMayRunAnotherStrategyWithMergesOfItsOwn) {
  OneDeviceStrategy other;
  const auto sums = strategy_.run([&](ReplicaContext& ctx) {
    return ctx.merge_call([&](Strategy& strategy) {
      other.run([](ReplicaContext& inner) { inner.merge_call([](Strategy&) { return 1; }); });
      return strategy.reduce(Reduction::kSum, strategy.per_replica([](ReplicaId) { return torch::ones({2}); }));
    });
  });
  for (const Tensor& sum : sums) EXPECT_EQ(sum[0].item<float>(), static_cast<float>(strategy_.num_replicas()));
}

TEST_P(MergeResults, APerReplicaOfAnotherSizeIsRefused) {
  for (const int64_t size : {int64_t{0}, GetParam().first - 1, GetParam().first + 1}) {
    try {
      strategy_.run([&](ReplicaContext& ctx) {
        return ctx.merge_call(
            [&](Strategy&) { return PerReplica<int>(std::vector<int>(static_cast<std::size_t>(size))); });
      });
      ADD_FAILURE() << "took " << size;
    } catch (const ReplicaError& error) {
      for (const auto& failure : error.failures()) {
        EXPECT_THROW(std::rethrow_exception(failure.exception), UsageError);
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Shapes, MergeResults,
                         ::testing::Values(std::pair<int64_t, int>{1, 1}, std::pair<int64_t, int>{3, 2},
                                           std::pair<int64_t, int>{4, 2}),
                         [](const auto& shape) {
                           return "V" + std::to_string(shape.param.first) + "D" + std::to_string(shape.param.second);
                         });

}  // namespace
}  // namespace lockstep
