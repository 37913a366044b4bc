// The programs of examples/ print what their READMEs show, and the broken ones get the error that they are there for.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <ostream>
#include <set>
#include <string>
#include <vector>

#include "tests/support/run_program.h"

namespace lockstep::testing {
namespace {

const std::filesystem::path kSources = LOCKSTEP_EXAMPLE_SOURCES;

struct Example {
  std::string program;
  std::string folder;
  std::string output;               // the file that has it
  std::vector<std::string> errors;  // what its users get to see; here too, so that no new output.txt loses them
};

const std::vector<Example>& examples() {
  static const std::vector<Example> all{
      {"differing_values",
       "differing_values",
       "output.txt",
       {"DivergenceError: variable 'model.weight' has other initial values on replica 1 than on replica 0; the factory "
        "must build a new module of the same kind at each call, from LibTorch's random operators or fixed values alone",
        "DivergenceError: assign of variable 'temperature' was given different values for replicas 0 and 1, and it is "
        "on-write: its components are equal at any time; reduce the values first, or use strategy.update_from to take "
        "one replica's"}},
      {"missing_aggregation",
       "missing_aggregation",
       "output.txt",
       {"ReplicaError: step 0, replica 0: assign_add of variable 'mistakes' inside a step, by replica 0: it is "
        "on-write "
        "and has no aggregation, so the replicas' values cannot become one; create it with .aggregation = kSum, kMean "
        "or kOnlyFirstReplica, or with .synchronization = kOnRead if each replica keeps its own"}},
      {"one_replica_updates_all",
       "one_replica_updates_all",
       "output.txt",
       {"replicas do not meet in the same order: replicas 0 to 1 returned after 0 meetings, replica 2 came to assign "
        "of "
        "variable 'threshold' as its meeting 1, replica 3 returned after 0 meetings; every replica must make the same "
        "calls, in the same order",
        "Strategy::update_from was called inside a step, by replica 2 at step 0; inside a step"}},
      {"where_variables_live", "where_variables_live", "output.txt", {}},
      {"round_robin", "custom_strategy", "round_robin.txt", {}},
      {"local_sgd", "custom_strategy", "local_sgd.txt", {}},
  };
  return all;
}

std::ostream& operator<<(std::ostream& stream, const Example& example) { return stream << example.program; }

class ExamplePrograms : public ::testing::TestWithParam<Example> {
 protected:
  std::filesystem::path file(const std::string& name) const { return kSources / GetParam().folder / name; }
};

TEST_P(ExamplePrograms, PrintWhatTheirReadmeShows) {
  const std::string program = std::string(LOCKSTEP_EXAMPLE_PROGRAMS) + "/" + GetParam().program;
  const Result result = run_program(program);
  EXPECT_EQ(result.code, 0);
  EXPECT_EQ(result.output, text_of(file(GetParam().output)))
      << "if the change is meant: " << program << " > " << file(GetParam().output).string() << ", and its README";
  EXPECT_NE(text_of(file("README.md")).find("```text\n" + result.output + "```\n"), std::string::npos)
      << "the README does not show the output";
  for (const std::string& error : GetParam().errors) {
    EXPECT_NE(result.output.find(error), std::string::npos) << "without the error: " << error;
  }
}

INSTANTIATE_TEST_SUITE_P(All, ExamplePrograms, ::testing::ValuesIn(examples()),
                         [](const auto& each) { return each.param.program; });

TEST(Examples, AreInTheIndexAndTestedHere) {
  std::set<std::string> tested;
  for (const Example& example : examples()) tested.insert(example.folder);
  const std::string index = text_of(kSources / "README.md");
  for (const auto& entry : std::filesystem::directory_iterator(kSources)) {
    if (!entry.is_directory()) continue;
    const std::string folder = entry.path().filename().string();
    EXPECT_TRUE(tested.contains(folder)) << folder;
    EXPECT_NE(index.find("(" + folder + "/)"), std::string::npos) << folder << " is not in examples/README.md";
  }
}

}  // namespace
}  // namespace lockstep::testing
