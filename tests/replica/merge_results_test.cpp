// The result of a merge function reaches each replica as its own tensors.
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <array>
#include <map>
#include <optional>
#include <set>

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
  expect_own([&] { return std::vector{std::optional(std::pair(one, std::vector{one}))}; },
             [](auto& v) {
               return std::vector{v[0]->first, v[0]->second[0]};
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

TEST_P(MergeResults, AComponentThatIsTheReplicasOwnIsNotCopied) {
  const auto same = strategy_.run([](ReplicaContext& ctx) {
    const Tensor given = torch::ones({3});
    return ctx.merge_call([](Strategy&, PerReplica<Tensor> all) { return all; }, given).is_same(given);
  });
  for (const bool one : same) EXPECT_TRUE(one);
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
