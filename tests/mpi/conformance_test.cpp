// The conformance suite of worlds for the engine mpi. Its workers are processes that mpirun starts: each check runs in
// all of them at the same time. After a run that fails a process has no other one by MPI, so that a check of several
// such runs goes on in new processes.
#include <gtest/gtest.h>

#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "lockstep/testing/worlds/world_job.h"
#include "tests/mpi/mpi_job.h"
#include "tests/support/fault_seeds.h"

namespace lockstep {
namespace {

using testing::MpiJob;

/// How many runs of a check fail at most, each in new processes; all of them by scripts/test-faults.
int64_t most_starts(int64_t workers) { return testing::all_engines() ? 1000 : workers == 2 ? 2 : 1; }
/// These in the suite, all by scripts/test-faults.
std::vector<int64_t> workers() {
  return testing::all_engines() ? testing::WorldConformance{}.workers : std::vector<int64_t>{2, 4};
}
std::vector<std::string> names() {
  std::vector<std::string> names;
  for (const internal::WorldCheck& check : internal::all_world_checks()) names.emplace_back(check.name);
  return names;
}

class MpiWorldConforms : public ::testing::TestWithParam<std::tuple<std::string, int64_t>> {};

/// Ends the test where a worker has found something; the outcome that all workers have.
std::string common_outcome(MpiJob& job) {
  bool have_all_said = true;
  for (int64_t w = 0; w < static_cast<int64_t>(job.places().size()); ++w) {
    have_all_said = job.wait_for(w, &testing::WorkerPlace::has_said, std::chrono::seconds(120)) && have_all_said;
  }
  // A worker that has left such a run before it failed may wait for the others in MPI_Finalize() as long as it may.
  if (job.has_failed_run() || !have_all_said) job.kill_all();
  const int code = job.wait();
  std::string outcome;
  for (const testing::WorkerPlace& one : job.places()) {
    const std::string said = one.has_said() ? one.text.data() : "it said nothing";
    if (outcome.empty()) outcome = said;
    if (said != outcome) outcome = fmt::format("failed: a worker says '{}', and another one '{}'", outcome, said);
  }
  if (!job.has_failed_run() && code != 0 && !outcome.starts_with("failed")) {
    outcome = fmt::format("failed: mpirun has ended with code {}", code);
  }
  const std::vector<std::string> left = job.left();
  if (!left.empty()) outcome = fmt::format("failed: it has left {}; {}", fmt::join(left, ", "), outcome);
  if (outcome.starts_with("failed") || outcome.starts_with("it said")) outcome += "\n" + job.output();
  return outcome;
}

TEST_P(MpiWorldConforms, To) {
  const auto& [name, count] = GetParam();
  std::string first_job = "0";
  for (int64_t start = 0; start < most_starts(count); ++start) {
    MpiJob job(count, {"check", name, first_job});
    const std::string outcome = common_outcome(job);
    if (outcome == "passed") return;
    if (outcome.starts_with("skipped")) GTEST_SKIP() << outcome;
    ASSERT_TRUE(outcome.starts_with("job ")) << "from job " << first_job << ": " << outcome;
    ASSERT_GT(std::stoll(outcome.substr(4)), std::stoll(first_job)) << "it goes on where it was";
    first_job = outcome.substr(4);
  }
}

INSTANTIATE_TEST_SUITE_P(Mpi, MpiWorldConforms,
                         ::testing::Combine(::testing::ValuesIn(names()), ::testing::ValuesIn(workers())),
                         [](const auto& one) {
                           return fmt::format("{}_{}Workers", std::get<0>(one.param), std::get<1>(one.param));
                         });

/// What TwoJobsDoNotMix tests where a process has one job at a time.
TEST(MpiWorlds, OfTwoStartsAtATimeDoNotMix) {
  MpiJob first(2, {"check", "AgreementsAndExchangesMayAlternate", "0"});
  MpiJob second(2, {"check", "AgreementsAndExchangesMayAlternate", "0"});
  EXPECT_EQ(common_outcome(first), "passed");
  EXPECT_EQ(common_outcome(second), "passed");
}

}  // namespace
}  // namespace lockstep
