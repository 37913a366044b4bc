// Tensors that are not plain memory of a common dtype: every collective gives the right values, or refuses them by
// name.
#include <gtest/gtest.h>
#include <torch/types.h>
#include <torch/utils.h>

#include <limits>

#include "tests/support/errors.h"
#include "tests/support/programs.h"

namespace lockstep {
namespace {

using testing::lanes;
using torch::Tensor;

constexpr int64_t kReplicas = 4;

/// The code of the UsageError that a step ends with; "" where it ends well. Anything else that is thrown fails.
template <class Step>
std::string code_of_step(Strategy& strategy, const Step& step) {
  try {
    strategy.run(step);
    return "";
  } catch (const ReplicaError& error) {
    try {
      std::rethrow_if_nested(error);
    } catch (const UsageError& cause) {
      return cause.code();
    } catch (...) {
    }
    ADD_FAILURE() << error.what();
  }
  return "no UsageError";
}

template <class Call>
std::string code_of(const Call& call) {
  try {
    call();
    return "";
  } catch (const UsageError& error) {
    return error.code();
  } catch (const std::exception& other) {
    ADD_FAILURE() << other.what();
  }
  return "no UsageError";
}

class OddTensors : public ::testing::Test {
 protected:
  MirroredStrategy strategy_{{.devices = lanes(2), .replicas = kReplicas}};

  template <class Make>
  PerReplica<Tensor> of_each(const Make& make) {
    return strategy_.per_replica([&](ReplicaId r) { return make(r.value()); });
  }
};

TEST_F(OddTensors, OutsideOfTheHostsMemoryAreNamedWithTheirDevice) {
  const Tensor away = torch::ones({3}, torch::kMeta);
  const auto meet = [&](ReplicaContext& ctx) { ctx.all_reduce(Reduction::kSum, away); };
  testing::expect_step_error<UsageError>([&] { strategy_.run(meet); }, "LS-NOT-HOST", {"all_reduce", "meta"});
  const auto expect = [&](const char* call, auto step) {
    EXPECT_EQ(code_of_step(strategy_, step), "LS-NOT-HOST") << call;
  };
  expect("all_reduce", [&](ReplicaContext& ctx) { ctx.all_reduce(Reduction::kSum, away); });
  expect("all_reduce of min", [&](ReplicaContext& ctx) { ctx.all_reduce(Reduction::kMin, away); });
  expect("all_reduce of a list", [&](ReplicaContext& ctx) {
    ctx.all_reduce(Reduction::kSum, std::vector<Tensor>{torch::ones({2}), away});
  });
  expect("all_reduce with gradient", [&](ReplicaContext& ctx) {
    ctx.all_reduce(Reduction::kSum, std::vector<Tensor>{torch::ones({2}).requires_grad_(), away});
  });
  expect("all_gather", [&](ReplicaContext& ctx) { ctx.all_gather(away); });
  expect("broadcast", [&](ReplicaContext& ctx) { ctx.broadcast(1, away); });

  const auto values = of_each([&](int64_t) { return away; });
  EXPECT_EQ(code_of([&] { strategy_.reduce(Reduction::kMean, values); }), "LS-NOT-HOST");
  EXPECT_EQ(code_of([&] { strategy_.reduce(Reduction::kMean, values, 0); }), "LS-NOT-HOST");
  EXPECT_EQ(code_of([&] { strategy_.gather(values); }), "LS-NOT-HOST");
  EXPECT_EQ(code_of([&] { strategy_.broadcast(0, away); }), "LS-NOT-HOST");
}

/// Tensors whose elements do not lie in memory as they read, and what they read as.
std::vector<std::pair<const char*, Tensor>> not_plain(double of) {
  const Tensor base = torch::tensor({1.0, -2.0, 0.5}) * of;
  const Tensor complex = torch::complex(base, base.flip({0}) + 1);
  return {{"negative bit", base._neg_view()},
          {"conjugate bit", complex.conj()},
          {"negative and conjugate bit", complex.conj()._neg_view()},
          {"imaginary part of a conjugate", torch::imag(complex.conj())},
          {"expanded", base.slice(0, 0, 1).expand({5})},
          {"expanded rows", base.expand({4, 3})},
          {"every other", torch::cat({base, base}).slice(0, 0, 6, 2)},
          {"transposed", torch::stack({base, base * 2}).t()},
          {"zeros without memory", torch::_efficientzerotensor({3}, base.options())},
          {"no dimensions", base[1]},
          {"no elements", base.slice(0, 0, 0)},
          {"no elements in two dimensions", torch::empty({2, 0})},
          {"requires gradient", base.clone().requires_grad_()}};
}

Tensor plain(const Tensor& value) { return value.detach().resolve_conj().resolve_neg().contiguous().clone(); }

TEST_F(OddTensors, InAnyFormAreReducedAsWhatTheyReadAs) {
  const std::size_t kinds = not_plain(1).size();
  for (std::size_t kind = 0; kind < kinds; ++kind) {
    SCOPED_TRACE(not_plain(1)[kind].first);
    for (const auto reduction : {Reduction::kSum, Reduction::kMean, Reduction::kMax}) {
      const auto odd = of_each([&](int64_t r) { return not_plain(1 + 0.1 * static_cast<double>(r))[kind].second; });
      if (odd[0].is_complex() && reduction == Reduction::kMax) continue;
      const Tensor expected = strategy_.reduce(reduction, of_each([&](int64_t r) { return plain(odd[r]); }));
      EXPECT_TRUE(torch::equal(plain(strategy_.reduce(reduction, odd)), expected)) << name_of(reduction);
      for (const Tensor& result : strategy_.run([&](ReplicaContext& ctx) {
             const torch::NoGradGuard no_grad;
             return ctx.all_reduce(reduction, odd[ctx.replica_id()]);
           })) {
        EXPECT_TRUE(torch::equal(plain(result), expected)) << name_of(reduction);
      }
    }
  }
}

TEST_F(OddTensors, InAnyFormAreGatheredAndBroadcastAsWhatTheyReadAs) {
  const std::size_t kinds = not_plain(1).size();
  for (std::size_t kind = 0; kind < kinds; ++kind) {
    SCOPED_TRACE(not_plain(1)[kind].first);
    const auto odd = of_each([&](int64_t r) { return not_plain(static_cast<double>(1 + r))[kind].second; });
    const Tensor second = plain(odd[1]);
    EXPECT_TRUE(torch::equal(plain(strategy_.broadcast(1, odd[1])), second));
    EXPECT_FALSE(strategy_.broadcast(1, odd[1]).is_neg());
    for (const Tensor& result :
         strategy_.run([&](ReplicaContext& ctx) { return ctx.broadcast(1, odd[ctx.replica_id()]); })) {
      EXPECT_TRUE(torch::equal(plain(result), second));
    }
    if (odd[0].dim() == 0) continue;
    std::vector<Tensor> parts;
    for (const Tensor& one : odd) parts.push_back(plain(one));
    const Tensor expected = torch::cat(parts);
    EXPECT_TRUE(torch::equal(plain(strategy_.gather(odd)), expected));
    for (const Tensor& result : strategy_.run([&](ReplicaContext& ctx) {
           const torch::NoGradGuard no_grad;
           return ctx.all_gather(odd[ctx.replica_id()]);
         })) {
      EXPECT_TRUE(torch::equal(plain(result), expected));
    }
  }
}

TEST_F(OddTensors, OfInferenceModeAreReducedInAndOutsideOfIt) {
  const auto values = of_each([](int64_t r) {
    const c10::InferenceMode inference;
    return torch::full({2}, static_cast<double>(r), torch::kInt);  // reduced whole, not by slices
  });
  const Tensor expected = torch::full({2}, 6, torch::kInt);
  EXPECT_TRUE(torch::equal(strategy_.reduce(Reduction::kSum, values), expected));
  EXPECT_EQ(strategy_.gather(values).numel(), 8);
  // One replica's step has inference mode on where another's has not, on any lane.
  for (const Tensor& result : strategy_.run([&](ReplicaContext& ctx) {
         const c10::InferenceMode inference(ctx.replica_id() % 2 == 1);
         Tensor sum = ctx.all_reduce(Reduction::kSum, values[ctx.replica_id()]);
         ctx.all_gather(values[ctx.replica_id()]);
         ctx.broadcast(0, values[ctx.replica_id()]);
         return sum;
       })) {
    EXPECT_TRUE(torch::equal(result, expected));
  }
}

/// Three elements of a dtype, all of zero bits; undefined where LibTorch itself makes no such tensor.
Tensor zeros_of(at::ScalarType type) {
  if (type == at::ScalarType::Undefined) return {};
  alignas(64) static const char memory[64] = {};
  try {
    return torch::from_blob(const_cast<char*>(memory), {3}, type);
  } catch (const c10::Error&) {
    return {};
  }
}

TEST_F(OddTensors, OfEveryDtypeAreReducedOrRefusedByName) {
  const std::vector<at::ScalarType> numbers{at::kByte,   at::kChar,        at::kShort,        at::kInt,
                                            at::kLong,   at::kHalf,        at::kBFloat16,     at::kFloat,
                                            at::kDouble, at::kComplexHalf, at::kComplexFloat, at::kComplexDouble};
  for (int i = 0; i < static_cast<int>(at::ScalarType::NumOptions); ++i) {
    const auto type = static_cast<at::ScalarType>(i);
    const Tensor value = zeros_of(type);
    if (!value.defined()) continue;
    SCOPED_TRACE(c10::toString(type));
    const bool number = std::find(numbers.begin(), numbers.end(), type) != numbers.end();
    const auto values = of_each([&](int64_t) { return value; });
    for (const auto reduction : {Reduction::kSum, Reduction::kMean, Reduction::kMin}) {
      const bool adds = reduction != Reduction::kMin;
      const bool legal = adds ? number : (number && !at::isComplexType(type)) || type == at::kBool;
      const std::string expected = legal ? "" : "LS-DTYPE";
      EXPECT_EQ(code_of_step(strategy_, [&](ReplicaContext& ctx) { ctx.all_reduce(reduction, value); }), expected)
          << name_of(reduction);
      EXPECT_EQ(code_of([&] { strategy_.reduce(reduction, values); }), expected) << name_of(reduction);
      EXPECT_EQ(code_of([&] { strategy_.reduce(reduction, values, 0); }), expected) << name_of(reduction);
    }
    const std::string expected = at::isQIntType(type) ? "LS-DTYPE" : "";
    EXPECT_EQ(code_of([&] { EXPECT_EQ(strategy_.gather(values).scalar_type(), type); }), expected);
    EXPECT_EQ(code_of([&] { EXPECT_EQ(strategy_.broadcast(0, value).scalar_type(), type); }), expected);
    EXPECT_EQ(code_of_step(strategy_, [&](ReplicaContext& ctx) { EXPECT_EQ(ctx.all_gather(value).numel(), 12); }),
              expected);
    EXPECT_EQ(code_of_step(strategy_, [&](ReplicaContext& ctx) { EXPECT_EQ(ctx.broadcast(0, value).numel(), 3); }),
              expected);
  }
}

TEST_F(OddTensors, QuantizedAreRefusedByName) {
  const Tensor value = torch::quantize_per_tensor(torch::ones({3}), 0.5, 0, torch::kQInt8);
  EXPECT_EQ(code_of_step(strategy_, [&](ReplicaContext& ctx) { ctx.all_reduce(Reduction::kSum, value); }), "LS-DTYPE");
  EXPECT_EQ(code_of_step(strategy_, [&](ReplicaContext& ctx) { ctx.all_gather(value); }), "LS-DTYPE");
  EXPECT_EQ(code_of_step(strategy_, [&](ReplicaContext& ctx) { ctx.broadcast(0, value); }), "LS-DTYPE");
}

// What adds up to less than a byte's, or 64 bits', limit is no special case; what does not must not wrap.
TEST_F(OddTensors, MeansOfIntegersDoNotWrap) {
  const auto expect = [&](at::ScalarType type, int64_t number, double mean) {
    SCOPED_TRACE(c10::toString(type));
    const auto values = of_each([&](int64_t) { return torch::full({2, 2}, number, type); });
    const auto check = [&](const Tensor& result) {
      EXPECT_EQ(result.scalar_type(), at::kDouble);
      EXPECT_TRUE(result.eq(mean).all().item<bool>()) << result;
    };
    check(strategy_.reduce(Reduction::kMean, values));
    check(strategy_.reduce(Reduction::kMean, values, 0));
    check(strategy_.reduce(Reduction::kMean, values, {0, 1}));
    for (const Tensor& result : strategy_.run(
             [&](ReplicaContext& ctx) { return ctx.all_reduce(Reduction::kMean, values[ctx.replica_id()]); })) {
      check(result);
    }
  };
  expect(at::kByte, 200, 200);
  expect(at::kChar, -100, -100);
  expect(at::kShort, 32767, 32767);
  expect(at::kInt, std::numeric_limits<int32_t>::min(), -0x1p31);
  expect(at::kLong, std::numeric_limits<int64_t>::max(), 0x1p63);
  expect(at::kLong, std::numeric_limits<int64_t>::min(), -0x1p63);
}

TEST_F(OddTensors, MeansOfLargeIntegersAreOfTheExactSum) {
  // 2^60 + 1, 2^60 + 1, -2^60, -2^60: each is rounded to a multiple of 2^8 by float64, their sum is 2.
  const auto values = of_each([](int64_t r) {
    const int64_t large = int64_t{1} << 60;
    return torch::full({1}, r < 2 ? large + 1 : -large, torch::kLong);
  });
  EXPECT_EQ(strategy_.reduce(Reduction::kMean, values).item<double>(), 0.5);
  EXPECT_EQ(strategy_.reduce(Reduction::kMean, values, 0).item<double>(), 0.5);
}

TEST_F(OddTensors, SumsOfIntegersKeepTheirDtypeAndWrapAsLibTorchsAddition) {
  const auto values = of_each([](int64_t) { return torch::full({2}, 200, torch::kByte); });
  EXPECT_EQ(strategy_.reduce(Reduction::kSum, values)[0].item<int64_t>(), 4 * 200 % 256);
  EXPECT_EQ(strategy_.reduce(Reduction::kSum, values, 0).item<int64_t>(), 8 * 200 % 256);
  EXPECT_EQ(strategy_.reduce(Reduction::kSum, values, 0).scalar_type(), at::kByte);
}

}  // namespace
}  // namespace lockstep
