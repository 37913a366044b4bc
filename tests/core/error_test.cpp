#include "lockstep/core/error.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

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

TEST(Error, EndsWithItsRemedy) {
  const UsageError error("something is wrong", "do this");
  EXPECT_STREQ(error.what(), "something is wrong; do this");
  EXPECT_EQ(error.remedy(), "do this");
}

}  // namespace
}  // namespace lockstep
