// Listeners below autograd: what they hear, in which order, on which threads, and what they may do with a call.
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <gtest/gtest.h>
#include <torch/autograd.h>
#include <torch/types.h>
#include <torch/utils.h>

#include <cstdint>
#include <functional>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "lockstep/core/torch_compat.h"
#include "lockstep/intercept/keys.h"
#include "lockstep/intercept/scopes.h"
#include "tests/intercept/recording_listener.h"
#include "tests/support/errors.h"
#include "tests/support/programs.h"

namespace lockstep {
namespace {

using internal::ListeningScope;
using internal::OperatorCall;
using internal::OperatorListener;
using testing::RecordingListener;
using torch::Tensor;
using Names = std::vector<std::string>;

/// Does what a test says.
class Hearing final : public OperatorListener {
 public:
  explicit Hearing(std::function<void(OperatorCall&)> hear) : hear_(std::move(hear)) {}
  void hear(OperatorCall& call) override { hear_(call); }

 private:
  std::function<void(OperatorCall&)> hear_;
};

TEST(ListeningScope, HearsInputsBeforeAndOutputsAfter) {
  const Tensor a = torch::ones({2}), b = torch::ones({2});
  Names heard;
  Hearing listener([&](OperatorCall& call) {
    heard.push_back(testing::full_name(call));
    ASSERT_EQ(call.inputs().size(), 3U);
    EXPECT_TRUE(call.inputs()[0].toTensor().is_same(a));
    EXPECT_EQ(call.inputs()[2].toScalar().toDouble(), 2);
    EXPECT_FALSE(call.is_answered());
    call.go_on();
    EXPECT_TRUE(call.is_answered());
    ASSERT_EQ(call.outputs().size(), 1U);
    EXPECT_EQ(call.outputs()[0].toTensor()[0].item<float>(), 3);
    call.go_on();  // nothing is left to do
  });
  const ListeningScope scope(listener);
  const Tensor sum = torch::add(a, b, 2);
  EXPECT_EQ(heard, Names{"aten::add.Tensor"});
}

TEST(ListeningScope, HearsCallsInPlaceViewsFactoriesAndListsOfTensors) {
  RecordingListener listener;
  const ListeningScope scope(listener);
  Tensor x = torch::ones({2, 3});
  x.add_(x);
  x.t();
  x.unbind(1);
  torch::cat({x, x});
  const auto is = [](const char* name, std::size_t inputs, bool is_in_place, bool is_view) {
    return testing::HeardCall{name, inputs, 1, is_in_place, is_view};
  };
  EXPECT_EQ(listener.calls(), (std::vector{is("aten::ones", 5, false, false), is("aten::add_.Tensor", 3, true, false),
                                           is("aten::t", 1, false, true), is("aten::unbind.int", 2, false, false),
                                           is("aten::cat", 2, false, false)}));
}

TEST(ListeningScope, HearsBackwardToo) {
  RecordingListener listener;
  Tensor x = torch::ones({3}, torch::requires_grad());
  const ListeningScope scope(listener);
  const Tensor loss = x.exp().sum();
  EXPECT_TRUE(loss.requires_grad()) << "the graph is LibTorch's business";
  EXPECT_EQ(listener.count("aten::mul"), 0U);
  loss.backward();
  EXPECT_EQ(listener.count("aten::mul"), 1U) << "the gradient of exp";
}

TEST(ListeningScope, LeavesVersionCountersToLibTorch) {
  RecordingListener listener;
  Tensor x = torch::ones({3}, torch::requires_grad());
  const ListeningScope scope(listener);
  Tensor y = x.exp();
  y.add_(1);
  EXPECT_THROW(y.sum().backward(), c10::Error) << "what backward needs has been overwritten";
}

TEST(ListeningScope, HearsWithoutGradientsAndInInferenceMode) {
  RecordingListener listener;
  const ListeningScope scope(listener);
  {
    const torch::NoGradGuard no_grad;
    torch::ones({2}).exp();
  }
  EXPECT_EQ(listener.count("aten::exp"), 1U);
  {
    const c10::InferenceMode inference;
    torch::ones({2}).exp();
  }
  EXPECT_EQ(listener.count("aten::exp"), 2U);
  torch::ones({2}).exp();
  EXPECT_EQ(listener.count("aten::exp"), 3U);
}

TEST(ListeningScope, DoesNotHearWhatKernelsAndListenersCall) {
  const Tensor a = torch::ones({2});
  Names heard;
  Hearing listener([&](OperatorCall& call) {
    heard.push_back(call.name());
    a.exp();
    call.go_on();
    a.exp();
  });
  const ListeningScope scope(listener);
  torch::stack({a, a});  // whose kernel calls cat or others
  EXPECT_EQ(heard, Names{"aten::stack"});
}

TEST(ListeningScope, NestedHearsBeforeTheOuterOne) {
  Names order;
  const auto named = [&](const std::string& name) {
    return Hearing([&order, name](OperatorCall& call) {
      order.push_back(name + " before");
      call.go_on();
      order.push_back(name + " after");
    });
  };
  Hearing outer = named("outer"), inner = named("inner");
  const Tensor a = torch::ones({2});
  const ListeningScope scope(outer);
  {
    const ListeningScope nested(inner);
    a.exp();
  }
  EXPECT_EQ(order, (Names{"inner before", "outer before", "outer after", "inner after"}));
  order.clear();
  a.exp();
  EXPECT_EQ(order, (Names{"outer before", "outer after"}));
}

TEST(ListeningScope, AnAnswerReplacesTheResultAndTheListenersBehindIt) {
  RecordingListener outer;
  const Tensor a = torch::ones({2}), other = torch::full({2}, 7);
  Hearing inner([&](OperatorCall& call) {
    if (call.name() == "aten::exp") call.answer(other);
  });
  const ListeningScope scope(outer);
  const ListeningScope nested(inner);
  EXPECT_TRUE(a.exp().is_same(other));
  a.sin();  // left to those behind
  EXPECT_EQ(outer.names(), Names{"aten::sin"});
}

TEST(ListeningScope, SeesWhatAnInnerListenerAnswers) {
  const Tensor a = torch::ones({2}), other = torch::full({2}, 7);
  Hearing answers([&](OperatorCall& call) { call.answer(other); });
  bool seen = false;
  Hearing sees([&](OperatorCall& call) {
    call.go_on();
    seen = call.outputs()[0].toTensor().is_same(other);
  });
  const ListeningScope scope(answers);
  const ListeningScope nested(sees);
  a.exp();
  EXPECT_TRUE(seen);
}

TEST(ListeningScope, PassesOnWhatAListenerThrows) {
  const Tensor a = torch::ones({2});
  for (const bool before : {true, false}) {
    int calls = 0;
    Hearing listener([&](OperatorCall& call) {
      if (++calls > 1) return;
      if (!before) call.go_on();
      throw std::runtime_error("no more");
    });
    RecordingListener outer;
    const ListeningScope scope(outer);
    {
      const ListeningScope nested(listener);
      EXPECT_THROW(a.exp(), std::runtime_error);
      EXPECT_TRUE(torch::equal(a.sin(), a.sin())) << "the next calls are heard as before";
      EXPECT_EQ(calls, 4);
    }
    a.cos();
    EXPECT_EQ(outer.count("aten::cos"), 1U);
    EXPECT_EQ(outer.count("aten::exp"), before ? 0U : 1U);
  }
}

TEST(ListeningScope, PassesOnWhatAnOperatorThrows) {
  RecordingListener listener;
  const ListeningScope scope(listener);
  const Tensor a = torch::ones({2, 3});
  EXPECT_THROW(a.mm(a), c10::Error);
  a.exp();
  EXPECT_EQ(listener.names().back(), "aten::exp");
}

TEST(ListeningScope, RefusesAListenerThatKeepsAnExceptionBack) {
  Hearing listener([&](OperatorCall& call) {
    try {
      call.go_on();
    } catch (const std::exception&) {
    }
  });
  const Tensor a = torch::ones({2, 3});
  const ListeningScope scope(listener);
  testing::expect_error<InternalError>([&] { a.mm(a); }, "LS-INTERNAL", {"aten::mm"});
}

TEST(ListeningScope, LeavesOtherThreadsAndLaterCallsAlone) {
  const internal::ThreadModes before = internal::thread_modes();
  RecordingListener listener;
  {
    const ListeningScope scope(listener);
    EXPECT_NE(internal::thread_modes(), before);
    std::thread([&] {
      EXPECT_FALSE(c10::impl::tls_is_dispatch_key_included(internal::kBelowAutograd));
      torch::ones({2}).exp();
    }).join();
  }
  torch::ones({2}).exp();
  EXPECT_TRUE(listener.calls().empty());
  EXPECT_EQ(internal::thread_modes(), before);
}

TEST(UnheardScope, LeavesCallsToLibTorchUntilItEnds) {
  RecordingListener listener, own;
  const Tensor a = torch::ones({2});
  const ListeningScope scope(listener);
  {
    const internal::UnheardScope unheard;
    a.exp();
    const ListeningScope nested(own);
    a.sin();
  }
  a.cos();
  EXPECT_EQ(listener.names(), Names{"aten::cos"});
  EXPECT_EQ(own.names(), Names{"aten::sin"});
}

TEST(UnheardScope, TakesNoNumbersOfTheReplicasStream) {
  MirroredStrategy strategy({.devices = testing::lanes(1), .replicas = 1});
  const auto drawn = [&](bool unheard) {
    torch::manual_seed(3);
    return strategy.evaluate([&](ReplicaContext&) {
      if (!unheard) return torch::randn({4});
      const internal::UnheardScope scope;
      return torch::randn({4});
    })[0];
  };
  torch::manual_seed(3);
  const Tensor callers = torch::randn({4});
  EXPECT_TRUE(torch::equal(drawn(true), callers));
  EXPECT_FALSE(torch::equal(drawn(false), callers));
}

/// Its backward runs a whole backward inside, `depth` deep.
struct DeepBackward : torch::autograd::Function<DeepBackward> {
  static Tensor forward(torch::autograd::AutogradContext* ctx, const Tensor& x, int64_t depth) {
    ctx->saved_data["depth"] = depth;
    return x.clone();
  }
  static torch::autograd::tensor_list backward(torch::autograd::AutogradContext* ctx,
                                               torch::autograd::tensor_list gradients) {
    const int64_t depth = ctx->saved_data["depth"].toInt();
    if (depth > 0) {
      const at::AutoGradMode grad(true);
      const Tensor inner = torch::ones({1}, torch::requires_grad());
      apply(inner, depth - 1).backward();
    } else {
      torch::ones({1}).cos();
    }
    return {gradients[0], Tensor()};
  }
};

TEST(ListeningScope, CountsTheCallsThatAutogradsOwnThreadsMake) {
  RecordingListener listener;
  const ListeningScope scope(listener);
  const auto run = [&](int64_t depth) {
    listener.forget();
    const int64_t before = internal::num_calls_unheard();
    DeepBackward::apply(torch::ones({1}, torch::requires_grad()), depth).backward();
    return internal::num_calls_unheard() - before;
  };
  EXPECT_EQ(run(10), 0);
  EXPECT_EQ(listener.count("aten::cos"), 1U);
  EXPECT_GT(run(100), 0) << "LibTorch goes on in a thread of its own after 60 levels";
  EXPECT_EQ(listener.count("aten::cos"), 0U);
}

}  // namespace
}  // namespace lockstep
