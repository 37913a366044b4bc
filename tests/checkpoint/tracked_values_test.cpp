// Values of the program's own that a checkpoint saves, and the functions that it restores them by.
#include <gtest/gtest.h>
#include <torch/types.h>

#include <stdexcept>
#include <string>

#include "lockstep/checkpoint/checkpoint.h"
#include "tests/checkpoint/training.h"
#include "tests/support/errors.h"
#include "tests/support/scratch_folder.h"

namespace lockstep {
namespace {

using testing::expect_error;
using testing::OneTraining;

class TrackedValues : public testing::ScratchFolder {};

TEST_F(TrackedValues, AValueThatCouldNotBeRestoredIsNotSaved) {
  OneTraining run;
  const auto attempt = [&](const std::string& text) {
    Checkpoint checkpoint(run.strategy);
    std::string loaded;
    checkpoint.track(
        "mine", [&] { return text; }, [&](const std::string& value) { loaded = value; });
    checkpoint.save(path("values"));
    checkpoint.restore(path("values"));
    return loaded;
  };
  const auto nested = [](std::size_t depth) { return std::string(depth, '[') + std::string(depth, ']'); };
  EXPECT_EQ(attempt(R"({"a":[1,2.5,null]})"), R"({"a":[1,2.5,null]})");
  EXPECT_EQ(attempt(nested(55)), nested(55));
  for (const std::string& bad :
       {std::string(R"({"x":1,"x":2})"), nested(70), nested(100000), std::string("1e400"), std::string("a")}) {
    expect_error<UsageError>([&] { attempt(bad); }, "LS-NAME", {"mine"});
  }
}

TEST_F(TrackedValues, ValuesOfTheProgramMayBeTextsOfJson) {
  MirroredStrategy strategy({.devices = testing::lanes(1), .replicas = 1});
  Checkpoint checkpoint(strategy);
  std::string value = R"({"a":[1,2.5,null]})";
  checkpoint.track(
      "value", [&] { return value; }, [&](const std::string& text) { value = text; });
  expect_error<UsageError>(
      [&] {
        checkpoint.track(
            "value", [] { return std::string(); }, [](const std::string&) {});
      },
      "LS-NAME-TAKEN", {"value"});
  checkpoint.save(path("one"));
  value = "not JSON";
  expect_error<UsageError>([&] { checkpoint.save(path("one")); }, "LS-NAME", {"value"});
  checkpoint.restore(path("one"));
  EXPECT_EQ(value, R"({"a":[1,2.5,null]})");
}

TEST_F(TrackedValues, ALoadThatThrowsChangesNothing) {
  OneTraining run;
  run.training.steps(1);
  bool refuses = false;
  std::string value = "1";
  run.training.checkpoint().track(
      "z", [&] { return value; },
      [&](const std::string& text) {
        if (refuses) throw std::runtime_error("no");
        value = text;
      });
  run.training.checkpoint().save(path("one"));
  run.training.steps(1);
  const std::string before = run.training.digest();
  refuses = true;
  EXPECT_THROW(run.training.checkpoint().restore(path("one")), std::runtime_error);
  EXPECT_EQ(run.training.digest(), before);
}

TEST_F(TrackedValues, ALoadSeesTheVariablesThatWereRestored) {
  MirroredStrategy strategy({.devices = testing::lanes(2), .replicas = 2});
  const Variable weight = strategy.make_variable(torch::ones({3}), {.name = "weight"});
  Checkpoint checkpoint(strategy);
  torch::Tensor seen;
  checkpoint.track(
      "z", [] { return std::string("1"); }, [&](const std::string&) { seen = weight.read(); });
  checkpoint.save(path("one"));
  weight.assign(torch::zeros({3}));
  checkpoint.restore(path("one"));
  EXPECT_TRUE(torch::equal(seen, torch::ones({3})));
}

}  // namespace
}  // namespace lockstep
