// What a restore says of a checkpoint that does not fit the program, or that was made on other replicas.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "tests/checkpoint/training.h"
#include "tests/support/errors.h"
#include "tests/support/scratch_folder.h"

namespace lockstep {
namespace {

using testing::OneTraining;

class Misfits : public testing::ScratchFolder {};

constexpr int kNames = 25;

std::string name_of(const std::string& what, int number) {
  return what + (number < 10 ? "0" : "") + std::to_string(number);
}

/// "new00" to "new24", say.
std::vector<std::string> names_of(const std::string& what) {
  std::vector<std::string> names;
  for (int i = 0; i < kNames; ++i) names.push_back(name_of(what, i));
  return names;
}

/// Variables of these names and of this size, alive as long as the result.
std::vector<Variable> make(Strategy& strategy, const std::vector<std::string>& names, int64_t size = 2) {
  std::vector<Variable> variables;
  for (const std::string& name : names)
    variables.push_back(strategy.make_variable(torch::zeros({size}), {.name = name}));
  return variables;
}

TEST_F(Misfits, OfManyNamesTheErrorSaysHowManyThereAreAndTwentyOfThem) {
  OneTraining run;
  const auto old = make(run.strategy, names_of("old"));
  const auto other = make(run.strategy, names_of("other"));
  run.training.checkpoint().save(path("one"));
  OneTraining second;
  const auto added = make(second.strategy, names_of("added"));
  const auto longer = make(second.strategy, names_of("other"), 3);
  const auto error = testing::caught_from<UsageError>([&] { second.training.checkpoint().restore(path("one")); });
  ASSERT_TRUE(error);
  EXPECT_EQ(error->code(), "LS-CHECKPOINT-MISFIT");
  const std::string text = error->what();
  std::size_t at = 0;
  for (const auto& [sort, what] : {std::pair("25 missing in it: ", "added"), std::pair("25 unexpected: ", "old"),
                                   std::pair("25 that do not fit: ", "other")}) {
    at = text.find(sort, at);
    ASSERT_NE(at, std::string::npos) << sort << " in " << text;
    const std::string part = text.substr(at, text.find(", ...", at) + 5 - at);
    for (int i = 0; i < kNames; ++i) {
      EXPECT_EQ(part.find(name_of(what, i)) != std::string::npos, i < 20) << name_of(what, i) << " in " << part;
    }
    EXPECT_TRUE(part.ends_with(", ...")) << part;
  }
}

TEST_F(Misfits, WhereTheyAreAllowedAllNamesAreGiven) {
  OneTraining run;
  const auto old = make(run.strategy, names_of("old"));
  run.training.checkpoint().save(path("one"));
  OneTraining second;
  const auto added = make(second.strategy, names_of("added"));
  const RestoreInfo info =
      second.training.checkpoint().restore(path("one"), {.allow_missing = true, .allow_unexpected = true});
  EXPECT_EQ(info.missing, names_of("added"));
  EXPECT_EQ(info.unexpected, names_of("old"));
}

/// Restores with `.allow_other_replicas`; gives what was logged.
std::vector<std::string> warnings_of(OneTraining& run, const std::string& path) {
  std::vector<std::string> lines;
  set_log_sink([&](LogLevel level, std::string_view line) {
    if (level == LogLevel::kWarning) lines.emplace_back(line);
  });
  run.training.checkpoint().restore(path, {.allow_other_replicas = true});
  set_log_sink({});
  return lines;
}

TEST_F(Misfits, AnotherNumberOfReplicasIsAWarningWithBothNumbersAndTheConsequence) {
  OneTraining run(3);
  run.training.steps(2);
  run.training.checkpoint().save(path("one"));
  for (const int64_t replicas : {1, 2, 5}) {
    OneTraining second(replicas);
    const auto lines = warnings_of(second, path("one"));
    ASSERT_EQ(lines.size(), 1u) << replicas;
    for (const std::string& part :
         {quoted("one"), std::string("of 3 replicas"), "restored on " + std::to_string(replicas),
          std::string("random numbers"), std::string("order of additions"), std::string("dealt anew")}) {
      EXPECT_NE(lines[0].find(part), std::string::npos) << part << " in " << lines[0];
    }
  }
  OneTraining same(3);
  EXPECT_TRUE(warnings_of(same, path("one")).empty()) << "there is nothing to say of the same number";
}

TEST_F(Misfits, OtherThreadsOfAReplicaAreAWarningWithBothNumbers) {
  const auto warnings_under = [&](int threads, bool saves) {
    MirroredStrategy strategy({.devices = {"cpu:0"}, .replicas = 2, .threads_per_replica = threads});
    const Variable variable = strategy.make_variable(torch::ones({2}), {.name = "v"});
    const Checkpoint checkpoint(strategy);
    if (saves) checkpoint.save(path("threads"));
    std::vector<std::string> lines;
    set_log_sink([&](LogLevel level, std::string_view line) {
      if (level == LogLevel::kWarning) lines.emplace_back(line);
    });
    checkpoint.restore(path("threads"));
    set_log_sink({});
    return lines;
  };
  EXPECT_TRUE(warnings_under(1, /*saves=*/true).empty());
  const auto lines = warnings_under(2, /*saves=*/false);
  ASSERT_EQ(lines.size(), 1u);
  for (const char* const part : {".threads_per_replica = 1", "has 2", "last bits"})
    EXPECT_NE(lines[0].find(part), std::string::npos) << part << " in " << lines[0];
}

}  // namespace
}  // namespace lockstep
