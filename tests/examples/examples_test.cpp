// The programs of examples/ print what their READMEs show, and the broken ones get the error that they demonstrate.
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <ostream>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include "tests/support/python.h"
#include "tests/support/run_program.h"

namespace lockstep::testing {
namespace {

const std::filesystem::path kSources = LOCKSTEP_EXAMPLE_SOURCES;

struct Example {
  std::string program;
  std::string folder;
  std::string output = "output.txt";     // the file that has it
  std::vector<std::string> errors = {};  // what its users get to see; here too, so that no new output.txt loses them
  int workers = 1;                       // more than one: started by `lockstep run`
  std::string log = "warning";           // from where on; information has numbers that differ between processors
};

const std::vector<Example>& examples() {
  static const std::vector<Example> all{
      {"train", "01_train"},
      {"where_variables_live", "02_where_variables_live"},
      {.program = "differing_values",
       .folder = "03_differing_values",
       .errors = {"variable 'model.weight' has other initial values on replica 1 than on replica 0",
                  "assign of variable 'temperature' was given different values for replicas 0 and 1"}},
      {.program = "missing_aggregation",
       .folder = "04_missing_aggregation",
       .errors = {"step 0, replicas 0, 1: assign_add of variable 'mistakes' inside a step"}},
      {.program = "one_replica_updates_all",
       .folder = "05_one_replica_updates_all",
       .errors = {"replica 2 came to assign of variable 'threshold' as its meeting 1",
                  "Strategy::update_from was called inside a step, by replica 2 at step 0"}},
      {"round_robin", "06_round_robin"},
      {"local_sgd", "07_local_sgd"},
      {.program = "several_workers",
       .folder = "08_several_workers",
       .errors = {"'temperature' has other bits on worker 1 than on worker 0",
                  "worker 0 came to Strategy::reduce in step 121, worker 1 came to Variable::assign of 'total'"},
       .workers = 2},
      {.program = "pipeline",
       .folder = "09_pipeline",
       .errors = {"replicas 0 and 1 read the same 4 samples at step 0: the input is not sharded"}},
      {"stop_and_resume", "10_stop_and_resume"},
      {.program = "fine_tuning",
       .folder = "11_fine_tuning",
       .errors = {"that fit no name, here or there: model.trunc.*"}},
      {.program = "images", .folder = "12_images", .errors = {"dots/7.png' cannot be used as an image"}},
      {.program = "tokens", .folder = "13_tokens", .errors = {"'train.bin' has changed"}},
      {.program = "records", .folder = "14_records", .workers = 2},
      {.program = "same_samples",
       .folder = "15_same_samples",
       .errors = {"replicas 0 and 1 read the same 4 samples at step 4: the input is not sharded"},
       .workers = 2},
      {"to_python", "16_to_python"},
      {"fit", "17_fit"},
      {"frozen_trunk", "18_frozen_trunk"},
      // A table warns that checkpoints do not have it yet.
      {.program = "parameter_servers", .folder = "19_parameter_servers", .log = "error"},
      {.program = "recommender", .folder = "20_recommender", .log = "error"},
      {.program = "captured_step",
       .folder = "21_captured_step",
       .errors = {"a captured step runs as it is, without a replay: the step calls aten::_local_scalar_dense"}},
      {"collating", "training", "collating.txt"},
      {"gan_by_step", "training", "gan_by_step.txt"},
      {"networks_that_change", "training", "networks_that_change.txt"},
      {"whole_batch", "training", "whole_batch.txt"},
      {"ported_digits", "porting", "digits.txt"},
      {"ported_regression", "porting", "regression.txt"},
      {"ported_gan", "porting", "gan.txt"},
  };
  return all;
}

std::ostream& operator<<(std::ostream& stream, const Example& example) { return stream << example.program; }

class ExamplePrograms : public ::testing::TestWithParam<Example> {
 protected:
  std::filesystem::path file(const std::string& name) const { return kSources / GetParam().folder / name; }
};

TEST_P(ExamplePrograms, PrintWhatTheirReadmeShows) {
  std::string program = std::string(LOCKSTEP_EXAMPLE_PROGRAMS) + "/" + GetParam().program;
  if (GetParam().workers > 1) {
    if (!*LOCKSTEP_LAUNCHER) GTEST_SKIP() << "the program lockstep, which starts workers, is not built";
    program = std::string(LOCKSTEP_LAUNCHER) + " run -n " + std::to_string(GetParam().workers) + " -- " + program;
  }
  const Result result = run_program("LOCKSTEP_LOG=" + GetParam().log + " " + program);
  EXPECT_EQ(result.code, 0);
  EXPECT_EQ(result.output, text_of(file(GetParam().output)))
      << "if the change is meant: " << program << " > " << file(GetParam().output).string() << ", and its README";
  EXPECT_NE(text_of(file("README.md")).find("```text\n" + result.output + "```\n"), std::string::npos)
      << "the README does not show the output";
  for (const std::string& error : GetParam().errors) {  // what, of whom and where; the sentences around it may change
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
    // No programs: the tests of the cluster resolve what its files set.
    EXPECT_TRUE(folder == "launchers" || tested.contains(folder)) << folder;
    EXPECT_NE(index.find("(" + folder + "/)"), std::string::npos) << folder << " is not in examples/README.md";
  }
}

TEST(Examples, AnAsynchronousRunIsRepeatedByItsRecord) {
  if (!*LOCKSTEP_LAUNCHER) GTEST_SKIP() << "the program lockstep is not built";
  const auto folder = std::filesystem::temp_directory_path() / ("lockstep-replayed-" + std::to_string(getpid()));
  std::filesystem::create_directory(folder);
  const std::string readme = text_of(kSources / "19_parameter_servers/README.md");
  /// Runs a command that the README shows.
  const auto shown = [&](const std::string& command) {
    EXPECT_NE(readme.find("\n" + command + " "), std::string::npos) << "the README does not show: " << command;
    return run_program("cd " + folder.string() + " && PATH=" + LOCKSTEP_EXAMPLE_PROGRAMS + ":" +
                       std::filesystem::path(LOCKSTEP_LAUNCHER).parent_path().string() + ":$PATH LOCKSTEP_LOG=error " +
                       command);
  };
  const Result original = run_program("cd " + folder.string() + " && LOCKSTEP_LOG=error " + LOCKSTEP_EXAMPLE_PROGRAMS +
                                      "/parameter_servers run.rec");
  EXPECT_EQ(original.code, 0) << original.output;
  EXPECT_NE(original.output.find("the loss is "), std::string::npos) << original.output;
  const Result has = shown("lockstep replay run.rec");
  EXPECT_EQ(has.code, 0) << has.output;
  EXPECT_NE(has.output.find("600"), std::string::npos) << has.output;
  const Result again = shown("lockstep replay run.rec -- parameter_servers run.rec");
  EXPECT_EQ(again.code, 0) << again.output;
  EXPECT_EQ(again.output, original.output);
  const Result stopped = shown("lockstep replay run.rec --until 300 -- parameter_servers run.rec");
  EXPECT_EQ(stopped.code, 0) << stopped.output;
  EXPECT_EQ(stopped.output.find("the loss is"), std::string::npos) << stopped.output;
  std::filesystem::remove_all(folder);
}

/// The first block of code in a language.
std::string first_block_of(const std::string& text, const std::string& language) {
  const std::string fence = "\n```" + language + "\n";
  const std::size_t begin = text.find(fence) + fence.size();
  return text.substr(begin, text.find("\n```\n", begin) + 1 - begin);
}

TEST(Examples, PythonGetsTheOutputsOfHere) {
  const std::string python = python_with_torch();
  if (python.empty())
    GTEST_SKIP() << "no Python with PyTorch: name one by LOCKSTEP_PYTHON, or make one by bench/compare --setup";
  const auto folder = std::filesystem::temp_directory_path() / ("lockstep-to-python-" + std::to_string(getpid()));
  EXPECT_EQ(run_program(std::string(LOCKSTEP_EXAMPLE_PROGRAMS) + "/to_python " + folder.string()).code, 0);
  const Result result =
      run_program("'" + python + "' " + (kSources / "16_to_python/load.py").string() + " " + folder.string());
  EXPECT_EQ(result.code, 0) << result.output;
  EXPECT_EQ(result.output, "the outputs are the same\n");
  std::filesystem::remove_all(folder);
}

TEST(Examples, FitReachesNinetyEightPercentOnMnistInTheEpochsOfItsReadme) {
  const char* const shared = std::getenv("LOCKSTEP_SHARED_DATA");
  if (!shared || !std::filesystem::exists(std::filesystem::path(shared) / "mnist-10k"))
    GTEST_SKIP() << "LOCKSTEP_SHARED_DATA names no folder with mnist-10k in it";
  const Result result = run_program("LOCKSTEP_LOG=warning " + std::string(LOCKSTEP_EXAMPLE_PROGRAMS) + "/fit " +
                                    (std::filesystem::path(shared) / "mnist-10k").string());
  EXPECT_EQ(result.code, 0) << result.output;
  const std::size_t line = result.output.find("accuracy ");
  ASSERT_NE(line, std::string::npos) << result.output;
  std::istringstream words(result.output.substr(line));
  std::string word;
  double accuracy = 0;
  int epochs = 0;
  words >> word >> accuracy >> word >> epochs;
  EXPECT_GE(accuracy, 0.98) << result.output;
  EXPECT_LE(epochs, 20) << result.output;
}

TEST(Examples, TheFirstIsTheProgramOfTheReadme) {
  EXPECT_EQ(text_of(kSources / "01_train/main.cpp"), first_block_of(text_of(kSources / "../README.md"), "cpp"));
}

/// What a source has between two lines `// [name]`, without the indentation of these.
std::string marked_in(const std::string& source, const std::string& name) {
  const std::string mark = "// [" + name + "]\n";
  const std::size_t begin = source.find(mark);
  const std::size_t end = source.find(mark, begin + 1);
  if (begin == std::string::npos || end == std::string::npos) return "";
  const std::string indentation(begin - source.rfind('\n', begin) - 1, ' ');
  std::istringstream lines(source.substr(begin + mark.size(), end - indentation.size() - begin - mark.size()));
  std::string text;
  for (std::string line; std::getline(lines, line);) {
    text += (line.starts_with(indentation) ? line.substr(indentation.size()) : line) + "\n";
  }
  return text;
}

/// Expects that a page quotes the marked lines of programs.
void expect_quoted(const std::string& page, const std::map<std::string, std::vector<std::string>>& programs) {
  const std::string guide = text_of(kSources / "../docs" / page);
  for (const auto& [program, marks] : programs) {
    for (const std::string& mark : marks) {
      const std::string quoted = marked_in(text_of(kSources / program), mark);
      ASSERT_NE(quoted, "") << program << " has no lines marked " << mark;
      EXPECT_NE(guide.find("```cpp\n" + quoted + "```\n"), std::string::npos)
          << "docs/" << page << " does not quote " << mark << " of " << program << ":\n"
          << quoted;
    }
  }
}

TEST(Examples, ThePortingGuideQuotesTheProgramsAsTheyAre) {
  expect_quoted("porting.md", {{"porting/digits.cpp", {"main", "save", "load", "resume"}},
                               {"porting/regression.cpp", {"main"}},
                               {"porting/gan.cpp", {"main"}}});
}

TEST(Examples, TheTrainingAndDataGuidesQuoteTheProgramsAsTheyAre) {
  expect_quoted("training.md",
                {{"training/whole_batch.cpp", {"gradients", "clipping", "steps", "lbfgs", "natural", "across"}},
                 {"training/networks_that_change.cpp", {"carried", "target", "growing"}}});
  expect_quoted("trainer.md", {{"training/gan_by_step.cpp", {"step"}}});
  expect_quoted("data.md", {{"training/collating.cpp", {"samples", "distribute"}}});
}

}  // namespace
}  // namespace lockstep::testing
