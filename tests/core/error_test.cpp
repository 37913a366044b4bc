#include "lockstep/core/error.h"

#include <gtest/gtest.h>
#include <torch/types.h>

namespace lockstep {
namespace {

ReplicaError make(const std::vector<std::pair<int64_t, std::exception_ptr>>& failed) {
  std::vector<ReplicaError::Failure> failures;
  for (const auto& [replica, exception] : failed) failures.push_back({replica, message_of(exception), exception});
  try {
    std::rethrow_exception(failures.front().exception);
  } catch (...) {
    return ReplicaError(17, std::move(failures));
  }
}

TEST(ReplicaError, NamesStepReplicaAndEachMessage) {
  const auto error = make({{2, std::make_exception_ptr(std::out_of_range("two"))},
                           {5, std::make_exception_ptr(std::runtime_error("five"))}});
  const std::string text = error.what();
  EXPECT_NE(text.find("step 17, replica 2: two"), std::string::npos) << text;
  EXPECT_NE(text.find("replica 5: five"), std::string::npos) << text;
  EXPECT_EQ(error.replica(), 2);
  EXPECT_EQ(error.step(), 17);
  EXPECT_EQ(error.messages(), (std::vector<std::string>{"two", "five"}));
  EXPECT_EQ(error.exceptions().size(), 2u);
}

TEST(ReplicaError, GivesTheUsersOwnTypeBack) {
  const auto error = make({{0, std::make_exception_ptr(std::out_of_range("mine"))}});
  EXPECT_THROW(std::rethrow_if_nested(error), std::out_of_range);
}

TEST(ReplicaError, SaysEqualMessagesOnce) {
  const auto same = std::make_exception_ptr(std::runtime_error("alike"));
  const std::string text = make({{0, same}, {1, same}, {3, same}}).what();
  EXPECT_NE(text.find("replicas 0, 1, 3: alike"), std::string::npos) << text;
  EXPECT_EQ(text.find("alike"), text.rfind("alike")) << text;
}

TEST(ReplicaError, SaysManyMessagesThatDifferByTheReplicasOwnNumberOnce) {
  std::vector<std::pair<int64_t, std::exception_ptr>> failed;
  const auto fails = [&](int64_t r, const std::string& text) {
    failed.emplace_back(r, std::make_exception_ptr(std::runtime_error(text)));
  };
  for (int64_t r = 1; r < 10; ++r) fails(r, "'w' on replica " + std::to_string(r) + " is wrong");
  fails(10, "something else");
  fails(11, "'w' on replica 1 is wrong");
  fails(12, "'w' on replica 12 is wrong");
  const std::string text = make(failed).what();
  EXPECT_NE(text.find("step 17, replicas 1, 2, 3, 4, 5, 6, 7, 8, 9, 12: 'w' on replica 1 is wrong\n"),
            std::string::npos)
      << text;
  EXPECT_NE(text.find("replica 10: something else\n"), std::string::npos) << text;
  EXPECT_NE(text.find("replica 11: 'w' on replica 1 is wrong"), std::string::npos) << text;
}

TEST(ReplicaError, MergesTwoMessagesThatDifferByTheReplicasOwnNumber) {
  const std::string text = make({{4, std::make_exception_ptr(std::runtime_error("of replica 4"))},
                                 {5, std::make_exception_ptr(std::runtime_error("of replica 5"))}})
                               .what();
  EXPECT_NE(text.find("step 17, replicas 4, 5: of replica 4\n"), std::string::npos) << text;
  EXPECT_EQ(text.find("of replica 5"), std::string::npos) << text;
}

TEST(ReplicaError, SaysOnceWhatAllReplicasSayOfOneOfThem) {
  const auto same = std::make_exception_ptr(std::runtime_error("not finite on replica 2, replica 0 is fine"));
  const std::string text = make({{0, same}, {1, same}, {2, same}, {3, same}}).what();
  EXPECT_NE(text.find("step 17, replicas 0, 1, 2, 3: not finite on replica 2, replica 0 is fine\n"), std::string::npos)
      << text;
  EXPECT_EQ(text.find("not finite"), text.rfind("not finite")) << text;
}

TEST(ReplicaError, HasTheRemedyOfItsFirstFailure) {
  const auto error = make({{1, std::make_exception_ptr(UsageError("LS-TEST", "a fact", "a cure"))}});
  EXPECT_EQ(error.remedy(), "a cure");
  EXPECT_STREQ(error.what(), "step 17, replica 1: a fact [LS-TEST]\na cure");
  const auto foreign = make({{1, std::make_exception_ptr(std::runtime_error("mine"))}});
  EXPECT_NE(foreign.remedy().find("std::rethrow_if_nested"), std::string::npos);
  EXPECT_TRUE(std::string(foreign.what()).ends_with(foreign.remedy())) << foreign.what();
}

TEST(ReplicaError, QuotesFewOfManyDifferentMessagesAndKeepsAll) {
  std::vector<std::pair<int64_t, std::exception_ptr>> failed;
  for (int64_t r = 0; r < 30; ++r) {
    failed.emplace_back(r, std::make_exception_ptr(std::runtime_error("own " + std::to_string(r * 1000))));
  }
  const auto error = make(failed);
  const std::string text = error.what();
  EXPECT_NE(text.find("replica 7: own 7000"), std::string::npos) << text;
  EXPECT_EQ(text.find("own 8000"), std::string::npos) << text;
  EXPECT_NE(text.find("and 22 more messages: see failures()"), std::string::npos) << text;
  EXPECT_EQ(error.messages().back(), "own 29000");
}

TEST(MessageOf, LeavesTheBacktraceOfLibTorchOut) {
  std::exception_ptr caught;
  try {
    torch::ones({2}) + torch::ones({3});
  } catch (...) {
    caught = std::current_exception();
  }
  const std::string text = message_of(caught);
  EXPECT_NE(text.find("size"), std::string::npos) << text;
  EXPECT_EQ(text.find("frame #"), std::string::npos) << text;
}

TEST(Error, HasItsCodeAndItsRemedyOnALineOfItsOwn) {
  const UsageError error("LS-TEST", "something is wrong", "do this");
  EXPECT_STREQ(error.what(), "something is wrong [LS-TEST]\ndo this");
  EXPECT_EQ(error.remedy(), "do this");
  EXPECT_EQ(error.code(), "LS-TEST");
}

TEST(Error, OfAUsersProgramHasNoCode) {
  const UsageError error("something is wrong", "do this");
  EXPECT_STREQ(error.what(), "something is wrong\ndo this");
  EXPECT_EQ(error.code(), "");
}

}  // namespace
}  // namespace lockstep
