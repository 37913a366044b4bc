// Payloads of messages as bytes, and bytes that are none.
#include "lockstep/server/remote/payload_codec.h"

#include <gtest/gtest.h>
#include <torch/types.h>

#include <memory>
#include <random>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/core/error.h"
#include "lockstep/server/parameter_server.h"
#include "lockstep/server/remote/evaluation_codec.h"
#include "lockstep/server/remote/task_messages.h"
#include "lockstep/server/remote/tensor_bytes.h"

namespace lockstep::internal {
namespace {

using torch::Tensor;

MessageReader reader_of(const std::string& bytes) { return MessageReader(bytes, -1, "a test"); }

Tensor there_and_back(const Tensor& tensor) {
  std::string bytes;
  put(bytes, tensor);
  MessageReader from = reader_of(bytes);
  Tensor back = get_tensor(from);
  from.expect_end();
  return back;
}

TEST(TensorBytes, TensorsOfAllFormsComeBack) {
  EXPECT_FALSE(there_and_back(Tensor()).defined());
  for (const auto type : {torch::kFloat, torch::kDouble, torch::kHalf, torch::kBFloat16, torch::kLong, torch::kBool,
                          torch::kByte, torch::kComplexFloat}) {
    for (const std::vector<int64_t>& sizes : {std::vector<int64_t>{}, {0}, {3}, {2, 0, 4}, {4, 5}}) {
      const Tensor tensor = torch::rand(sizes).mul(3).to(type);
      const Tensor back = there_and_back(tensor);
      EXPECT_EQ(back.scalar_type(), type);
      EXPECT_EQ(back.sizes(), tensor.sizes());
      EXPECT_TRUE(torch::equal(back, tensor));
    }
  }
  const Tensor turned = torch::rand({3, 4}).t();
  EXPECT_TRUE(torch::equal(there_and_back(turned), turned));
  const Tensor sparse = torch::tensor({{0.0F, 2.0F}, {0.0F, 0.0F}, {3.0F, 0.0F}}).to_sparse(1);
  EXPECT_TRUE(there_and_back(sparse).is_sparse());
  EXPECT_TRUE(torch::equal(there_and_back(sparse).to_dense(), sparse.to_dense()));
}

template <class E>
void expect_error_back(const E& error) {
  std::string bytes;
  put_error(bytes, std::make_exception_ptr(error));
  MessageReader from = reader_of(bytes);
  try {
    std::rethrow_exception(get_error(from));
  } catch (const E& back) {
    EXPECT_STREQ(back.what(), error.what());
  } catch (const std::exception& other) {
    ADD_FAILURE() << "another type came: " << other.what();
  }
}

TEST(TensorBytes, ErrorsComeBackWithTypeAndText) {
  expect_error_back(UsageError("LS-OPTION", "a fact", "a remedy"));
  expect_error_back(EndOfStream("LS-END-OF-STREAM", "a fact", "a remedy"));
  expect_error_back(NonFiniteError("LS-NOT-FINITE", "a fact", "a remedy"));
  expect_error_back(std::out_of_range("far"));
  expect_error_back(std::runtime_error("text"));
  std::string bytes;
  put_error(bytes, std::make_exception_ptr(std::bad_alloc()));
  MessageReader from = reader_of(bytes);
  EXPECT_NE(message_of(get_error(from)).find("std::bad_alloc: "), std::string::npos);
}

/// What a step may push and ask for, as bytes.
class Payloads : public ::testing::Test {
 protected:
  Payloads() {
    auto push = std::make_shared<StepPush>();
    push->gradients.push_back({a_, torch::rand({3, 2})});
    push->buffers.push_back({b_, torch::rand({2})});
    push->changes.push_back({a_, WorkerValues::Change::kAdd, torch::rand({3, 2})});
    push->rows.push_back({table_.state(), {1, 5}, torch::rand({2, 4})});
    push->options = {.clip_global_norm = 0.5, .check_finite = true};
    codec_.put(PayloadKind::kPush, push, push_);
    Wanted variables = WantedVariables{.variables = {a_, b_}, .have = {{7}, {}}, .part = 0};
    codec_.put(PayloadKind::kRequest, std::make_shared<Wanted>(variables), variables_);
    Wanted rows = WantedRows{.table = table_.state(), .ids = {4, 9, 1}};
    codec_.put(PayloadKind::kRequest, std::make_shared<Wanted>(rows), rows_);
    auto values = std::make_shared<PulledTensors>();
    values->at = 9;
    values->values = {torch::rand({2}), Tensor()};
    codec_.put(PayloadKind::kValues, values, values_);
  }

  ParameterServerStrategy strategy_{{.cluster = ClusterSpec(), .seed = 3}};
  Variable a_ = strategy_.make_variable(torch::zeros({3, 2}), {.name = "a"});
  Variable b_ = strategy_.make_variable(torch::zeros({2}), {.name = "b",
                                                            .trainable = false,
                                                            .synchronization = VariableSynchronization::kOnRead,
                                                            .aggregation = VariableAggregation::kMean});
  Embedding table_ = strategy_.make_embedding({.name = "t", .rows = 10, .dim = 4});
  Catalog catalog_{{a_, b_}, {{{0, 3, 0}}, {{0, 2, 0}}}, {table_.state()}};
  RemotePayloads codec_{catalog_, 0, 1};
  std::string push_, variables_, rows_, values_;
};

TEST_F(Payloads, ComeBack) {
  const auto push = as<StepPush>(codec_.get(PayloadKind::kPush, push_));
  EXPECT_EQ(push.gradients.at(0).variable.name(), "a");
  EXPECT_EQ(push.buffers.at(0).variable.name(), "b");
  EXPECT_EQ(push.changes.at(0).change, WorkerValues::Change::kAdd);
  EXPECT_EQ(push.rows.at(0).ids, (std::vector<int64_t>{1, 5}));
  EXPECT_EQ(push.options.clip_global_norm, 0.5);
  EXPECT_TRUE(push.options.check_finite);
  const auto wanted = std::get<WantedVariables>(as<Wanted>(codec_.get(PayloadKind::kRequest, variables_)));
  EXPECT_EQ(wanted.have, (std::vector<HadAt>{{7}, {}}));
  EXPECT_EQ(std::get<WantedRows>(as<Wanted>(codec_.get(PayloadKind::kRequest, rows_))).ids,
            (std::vector<int64_t>{4, 9, 1}));
  EXPECT_FALSE(as<PulledTensors>(codec_.get(PayloadKind::kValues, values_)).values.at(1).defined());
}

TEST_F(Payloads, BytesThatAreNoneAreRefusedAndNothingElseHappens) {
  const std::vector<std::pair<PayloadKind, std::string>> all{{PayloadKind::kPush, push_},
                                                             {PayloadKind::kRequest, variables_},
                                                             {PayloadKind::kRequest, rows_},
                                                             {PayloadKind::kValues, values_}};
  std::mt19937 random(11);
  int64_t refused = 0;
  for (const auto& [kind, bytes] : all) {
    for (std::size_t size = 0; size < bytes.size(); ++size) {
      EXPECT_THROW(codec_.get(kind, std::string_view(bytes).substr(0, size)), PeerError);
    }
    for (int i = 0; i < 5000; ++i) {
      std::string changed = bytes;
      for (int k = 0; k < 1 + i % 3; ++k) changed[random() % changed.size()] = static_cast<char>(random());
      try {
        codec_.get(kind, changed);
      } catch (const PeerError&) {
        ++refused;
      }
    }
  }
  EXPECT_GT(refused, 1000);
}

TEST_F(Payloads, WhatLiesOnAnotherServerIsRefused) {
  const Catalog elsewhere({a_, b_}, {{{0, 3, 1}}, {{0, 2, 1}}}, {table_.state()});
  RemotePayloads codec(elsewhere, 0, 2);
  EXPECT_THROW(codec.get(PayloadKind::kPush, push_), PeerError);
  EXPECT_THROW(codec.get(PayloadKind::kRequest, variables_), PeerError);
}

TEST_F(Payloads, OfAVariableThatIsCutAServerTakesItsPartAlone) {
  const Catalog cut({a_, b_}, {{{0, 2, 0}, {2, 1, 1}}, {{0, 2, 0}}}, {table_.state()});
  const auto pushed = [&](const Tensor& gradient) {
    auto push = std::make_shared<StepPush>();
    push->gradients.push_back({a_, gradient});
    push->changes.push_back({a_, WorkerValues::Change::kAssign, gradient});
    std::string bytes;
    RemotePayloads(cut, -1, 2).put(PayloadKind::kPush, push, bytes);
    return bytes;
  };
  for (int32_t server = 0; server < 2; ++server) {
    RemotePayloads codec(cut, server, 2);
    const int64_t rows = server == 0 ? 2 : 1;
    EXPECT_EQ(as<StepPush>(codec.get(PayloadKind::kPush, pushed(torch::ones({rows, 2})))).gradients.size(), 1);
    EXPECT_THROW(codec.get(PayloadKind::kPush, pushed(torch::ones({3, 2}))), PeerError);
    EXPECT_THROW(codec.get(PayloadKind::kPush, pushed(torch::ones({3 - rows, 2}))), PeerError);
  }
}

/// A part of an evaluation, and its result, as bytes.
class EvaluatedParts : public Payloads {
 protected:
  EvaluatedParts() {
    auto part = std::make_shared<EvaluationPart>();
    part->batch = {.input = torch::rand({3, 2}),
                   .target = torch::arange(3),
                   .ids = torch::arange(3),
                   .global_size = 5,
                   .more = {{"boxes/left", torch::rand({3})}},
                   .padding = 1,
                   .origin = "samples at 0 to 2"};
    part->part = 1;
    part->step = 40;
    part->stream = {3, StreamPurpose::kEvaluate, 1, 20, 6};
    codec_.put(PayloadKind::kArguments, part, part_);
    auto result = std::make_shared<EvaluatedPart>();
    result->result = {torch::rand({2}), Tensor()};
    result->changes.push_back({a_, WorkerValues::Change::kAdd, torch::rand({3, 2})});
    codec_.put(PayloadKind::kResult, result, result_);
  }
  EvaluationPayloads codec_{catalog_, 2, 3};
  std::string part_, result_;
};

TEST_F(EvaluatedParts, ComeBack) {
  const Payload payload = codec_.get(PayloadKind::kArguments, part_);
  const auto& part = as<EvaluationPart>(payload);
  EXPECT_EQ(part.part, 1);
  EXPECT_EQ(part.step, 40);
  EXPECT_EQ(part.stream.seed, 3);
  EXPECT_EQ(part.stream.replica, 1);
  EXPECT_EQ(part.stream.step, 20);
  EXPECT_EQ(part.stream.draw, 6);
  EXPECT_EQ(part.batch.samples(), 2);
  EXPECT_EQ(part.batch.global_size, 5);
  EXPECT_EQ(part.batch.origin, "samples at 0 to 2");
  EXPECT_EQ(part.batch.more.at("boxes/left").size(0), 3);
  const Payload result = codec_.get(PayloadKind::kResult, result_);
  EXPECT_EQ(as<EvaluatedPart>(result).result.size(), 2);
  EXPECT_EQ(as<EvaluatedPart>(result).changes.at(0).change, WorkerValues::Change::kAdd);
}

TEST_F(EvaluatedParts, BytesThatAreNoneAreRefusedAndNothingElseHappens) {
  std::mt19937 random(12);
  int64_t refused = 0;
  for (const auto& [kind, bytes] :
       {std::pair(PayloadKind::kArguments, part_), std::pair(PayloadKind::kResult, result_)}) {
    for (std::size_t size = 0; size < bytes.size(); ++size) {
      EXPECT_THROW(codec_.get(kind, std::string_view(bytes).substr(0, size)), PeerError);
    }
    for (int i = 0; i < 5000; ++i) {
      std::string changed = bytes;
      for (int k = 0; k < 1 + i % 3; ++k) changed[random() % changed.size()] = static_cast<char>(random());
      try {
        const Payload payload = codec_.get(kind, changed);
        if (kind == PayloadKind::kArguments) {
          EXPECT_LT(as<EvaluationPart>(payload).part, 2);
          EXPECT_GE(as<EvaluationPart>(payload).batch.samples(), 0);
        }
      } catch (const PeerError&) {
        ++refused;
      }
    }
    EXPECT_THROW(codec_.get(PayloadKind::kPush, bytes), PeerError);
  }
  EXPECT_GT(refused, 1000);
}

TEST(EvaluationMessages, AreKeptApartFromThoseOfSteps) {
  const Payload something = std::make_shared<EvaluationPart>();
  const GiveStep part{.step = {.step = kFirstEvaluated}, .arguments = something};
  const GiveStep step{.step = {.step = 5}, .arguments = something};
  EXPECT_NO_THROW(require_evaluation(WorkerMessage(part)));
  EXPECT_THROW(require_evaluation(WorkerMessage(step)), PeerError);
  EXPECT_THROW(require_evaluation(WorkerMessage(GiveStep{.step = {.step = kFirstEvaluated}})), PeerError);
  EXPECT_THROW(require_evaluation(WorkerMessage(PulledValues())), PeerError);
  EXPECT_NO_THROW(require_payloads(WorkerMessage(step)));
  EXPECT_THROW(require_payloads(WorkerMessage(part)), PeerError);
  const StepReport report{.step = {.step = kFirstEvaluated}, .payload = something};
  EXPECT_NO_THROW(require_evaluation(ChiefMessage(report)));
  EXPECT_THROW(require_evaluation(ChiefMessage(StepReport{.step = {.step = kFirstEvaluated}})), PeerError);
  EXPECT_THROW(require_evaluation(ChiefMessage(StepReport{.payload = something})), PeerError);
  EXPECT_THROW(require_evaluation(ChiefMessage(ServerRead())), PeerError);
}

TEST(TaskMessages, ShowBothSidesOfTheFirstDifference) {
  EXPECT_EQ(difference_of_programs("a\nb\n", "a\nb\n", "worker 1"), "");
  EXPECT_EQ(difference_of_programs("a\nc\n", "a\nb\n", "worker 1"), "worker 1 has \"c\", and the chief has \"b\"");
  EXPECT_EQ(difference_of_programs("a\n", "a\nb\n", "worker 1"),
            "worker 1 has \"nothing more\", and the chief has \"b\"");
  EXPECT_EQ(difference_of_programs("a\n", "a\ndata set 0: x\n", "worker 1"), "");
  EXPECT_EQ(difference_of_programs("a\ndata set 0: x\n", "a\n", "worker 1"), "");
  EXPECT_EQ(difference_of_programs("a\ndata set 0: y\n", "a\ndata set 0: x\ndata set 1: z\n", "worker 1"),
            "worker 1 has \"data set 0: y\", and the chief has \"data set 0: x\"");
  EXPECT_EQ(without_schedules("a\nschedule: b\nc\n"), "a\nc\n");
}

TEST(TaskMessages, ComeBack) {
  const std::string welcome = to_bytes(TaskWelcome{.epoch = 5,
                                                   .incarnation = 2,
                                                   .begin = {.counted = 7, .floor = 6, .counted_above = {8}},
                                                   .servers = {{.address = "10.0.0.1", .port = 99}}});
  std::string_view text = welcome;
  EXPECT_EQ(take_word(text), TaskWord::kWelcome);
  const TaskWelcome back = task_welcome(text);
  EXPECT_EQ(back.incarnation, 2);
  EXPECT_EQ(back.begin.counted_above, std::vector<int64_t>{8});
  EXPECT_EQ(back.servers.at(0).port, 99);
  for (std::size_t size = 0; size < text.size(); ++size) EXPECT_THROW(task_welcome(text.substr(0, size)), PeerError);
  const std::string end = to_bytes(TaskEnd{.code = 3, .failure = "why"});
  text = end;
  EXPECT_EQ(take_word(text), TaskWord::kEnd);
  EXPECT_EQ(task_end(text).failure, "why");
}

TEST(RemotePayloads, AMessageWithoutWhatItMustHaveIsRefused) {
  EXPECT_THROW(require_payloads(ServerMessage(PullRequest())), PeerError);
  EXPECT_THROW(require_payloads(ServerMessage(PushRequest())), PeerError);
  EXPECT_THROW(require_payloads(WorkerMessage(PulledValues())), PeerError);
  EXPECT_THROW(require_payloads(WorkerMessage(PushAnswer{.verdict = PushVerdict::kRefused})), PeerError);
  EXPECT_THROW(require_payloads(ChiefMessage(StepReport{.outcome = StepOutcome::kFailed})), PeerError);
  EXPECT_NO_THROW(require_payloads(ChiefMessage(StepReport())));
  EXPECT_NO_THROW(require_payloads(WorkerMessage(PushAnswer())));
}

}  // namespace
}  // namespace lockstep::internal
