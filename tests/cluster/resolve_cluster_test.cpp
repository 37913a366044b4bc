#include "lockstep/cluster/resolve_cluster.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>

#include "lockstep/core/error.h"
#include "tests/support/errors.h"

namespace lockstep {
namespace {

using testing::expect_error;
using testing::has_value;
using Variables = Environment::Variables;

ClusterSpec resolve(const Variables& variables, const ClusterOptions& options = {}) {
  return resolve_cluster(options, Environment(variables));
}

Variables joined(const std::vector<Variables>& all) {
  Variables result;
  for (const Variables& variables : all) result.insert(variables.begin(), variables.end());
  return result;
}

/// Each source by itself: worker 1 of 3, the chief on host "a".
const Variables kLockstep = {
    {"LOCKSTEP_NUM_WORKERS", "3"}, {"LOCKSTEP_WORKER_INDEX", "1"}, {"LOCKSTEP_CHIEF_ADDRESS", "a:2222"}};
const Variables kTfConfig = {
    {"TF_CONFIG",
     R"({"cluster": {"worker": ["a:2222", "b:2222", "c:2222"]}, "task": {"type": "worker", "index": 1}})"}};
const Variables kTorchrun = {{"RANK", "1"}, {"WORLD_SIZE", "3"}, {"MASTER_ADDR", "a"}, {"MASTER_PORT", "2222"}};
const Variables kPet = {
    {"PET_NNODES", "3"}, {"PET_NODE_RANK", "1"}, {"PET_MASTER_ADDR", "a"}, {"PET_MASTER_PORT", "2222"}};
const Variables kOpenMpi = {{"OMPI_COMM_WORLD_RANK", "1"}, {"OMPI_COMM_WORLD_SIZE", "3"}, {"MASTER_ADDR", "a"}};
const Variables kPmi = {{"PMI_RANK", "1"}, {"PMI_SIZE", "3"}, {"MASTER_ADDR", "a"}};
const Variables kSlurm = {{"SLURM_PROCID", "1"},
                          {"SLURM_STEP_NUM_TASKS", "3"},
                          {"SLURM_STEP_NODELIST", "a,b,c"},
                          {"SLURM_STEP_TASKS_PER_NODE", "1(x3)"},
                          {"SLURM_JOB_ID", "9"}};
const Variables kKubernetes = {{"JOB_COMPLETION_INDEX", "1"}, {"WORLD_SIZE", "3"}, {"MASTER_ADDR", "a"}};

/// One sentence has all of the values.
void expect_disagreement(const ClusterSpec& spec, const std::vector<std::string_view>& values) {
  const bool found = std::any_of(spec.disagreements.begin(), spec.disagreements.end(), [&](const std::string& text) {
    return std::all_of(values.begin(), values.end(), [&](std::string_view value) { return has_value(text, value); });
  });
  std::string all;
  for (const std::string& text : spec.disagreements) all += text + "\n";
  EXPECT_TRUE(found) << "no '" << values.front() << "' in:\n" << all;
}

TEST(ResolveCluster, WithoutAnySourceIsAlone) {
  const ClusterSpec spec = resolve({});
  EXPECT_EQ(spec.source, "alone");
  EXPECT_EQ(spec.num_workers(), 1);
  EXPECT_TRUE(spec.is_chief());
  EXPECT_TRUE(spec.disagreements.empty());
}

TEST(ResolveCluster, TheFirstOfTheSourcesWins) {
  const std::pair<const char*, Variables> sources[] = {{"LOCKSTEP_*", kLockstep}, {"TF_CONFIG", kTfConfig},
                                                       {"torchrun", kTorchrun},   {"PET_*", kPet},
                                                       {"Open MPI", kOpenMpi},    {"PMI", kPmi},
                                                       {"Slurm", kSlurm},         {"Kubernetes", kKubernetes}};
  for (std::size_t first = 0; first < std::size(sources); ++first) {
    std::vector<Variables> all;
    for (std::size_t i = first; i < std::size(sources); ++i) all.push_back(sources[i].second);
    const ClusterSpec spec = resolve(joined(all));
    // A job's index with WORLD_SIZE and MASTER_ADDR is also what torchrun's variables would be, but for RANK.
    EXPECT_EQ(spec.source, sources[first].first);
    EXPECT_EQ(spec.num_workers(), 3) << spec.source;
    EXPECT_EQ(spec.worker_index(), 1) << spec.source;
    EXPECT_TRUE(spec.chief_address().starts_with("a:")) << spec.source;
    EXPECT_TRUE(spec.disagreements.empty()) << spec.source << ": " << spec.disagreements.front();
  }
}

TEST(ResolveCluster, OptionsWin) {
  const ClusterSpec spec = resolve(joined({kLockstep, kTfConfig}), {.num_workers = 2,
                                                                    .worker_index = 0,
                                                                    .chief_address = "z:1",
                                                                    .local_worker = 3,
                                                                    .job_id = "mine",
                                                                    .interface_name = "ib0"});
  EXPECT_EQ(spec.source, "options");
  EXPECT_EQ(spec.num_workers(), 2);
  EXPECT_EQ(spec.worker_index(), 0);
  EXPECT_EQ(spec.chief_address(), "z:1");
  EXPECT_EQ(spec.local_worker, 3);
  EXPECT_EQ(spec.job_id, "mine");
  EXPECT_EQ(spec.interface_name, "ib0");
  expect_disagreement(spec, {".num_workers = 2", "LOCKSTEP_NUM_WORKERS=3"});
  expect_disagreement(spec, {".worker_index = 0", "LOCKSTEP_WORKER_INDEX=1"});
  expect_disagreement(spec, {"options", "TF_CONFIG", "2 workers"});
}

TEST(ResolveCluster, OptionsMustBeCompleteAndWithinBounds) {
  expect_error<ClusterError>([] { resolve({}, {.num_workers = 2}); }, "LS-CLUSTER-INCOMPLETE", {".worker_index"});
  expect_error<ClusterError>([] { resolve({}, {.worker_index = 0}); }, "LS-CLUSTER-INCOMPLETE", {".num_workers"});
  expect_error<ClusterError>([] { resolve({}, {.num_workers = 2, .worker_index = 1}); }, "LS-CLUSTER-INCOMPLETE");
  expect_error<ClusterError>([] { resolve({}, {.num_workers = 2, .worker_index = 2}); }, "LS-CLUSTER-SPEC");
  expect_error<ClusterError>([] { resolve({}, {.num_workers = 0, .worker_index = 0}); }, "LS-CLUSTER-SPEC");
  expect_error<ClusterError>([] { resolve({}, {.num_workers = int64_t{1} << 62, .worker_index = 0}); },
                             "LS-CLUSTER-SPEC");
  expect_error<ClusterError>([] { resolve({}, {.num_workers = 1, .chief_address = "z"}); }, "LS-CLUSTER-VALUE",
                             {".chief_address"});
  expect_error<ClusterError>([] { resolve({}, {.num_workers = 1, .local_worker = -1}); }, "LS-CLUSTER-SPEC");
}

TEST(ResolveCluster, OneWorkerBesideSeveralIsAnError) {
  const Variables one_by_tf = {
      {"TF_CONFIG", R"({"cluster": {"worker": ["a:1"]}, "task": {"type": "worker", "index": 0}})"}};
  expect_error<ClusterError>(
      [&] {
        resolve(joined({one_by_tf, kSlurm}));
      },
      "LS-CLUSTER-ONE-WORKER", {"TF_CONFIG", "SLURM_STEP_NUM_TASKS=3"});
  expect_error<ClusterError>(
      [&] {
        resolve(joined({Variables{{"LOCKSTEP_NUM_WORKERS", "1"}}, kTorchrun}));
      },
      "LS-CLUSTER-ONE-WORKER", {"LOCKSTEP_NUM_WORKERS=1", "WORLD_SIZE=3"});
  const ClusterSpec spec = resolve(kSlurm, {.num_workers = 1});
  EXPECT_EQ(spec.num_workers(), 1);
  expect_disagreement(spec, {".num_workers = 1", "SLURM_STEP_NUM_TASKS=3"});
}

TEST(ResolveCluster, SaysWhyAnotherSourcesChiefIsNotTaken) {
  expect_error<ClusterError>(
      [] {
        resolve({{"LOCKSTEP_NUM_WORKERS", "2"},
                 {"LOCKSTEP_WORKER_INDEX", "0"},
                 {"RANK", "1"},
                 {"WORLD_SIZE", "2"},
                 {"MASTER_ADDR", "node1"},
                 {"MASTER_PORT", "4000"}});
      },
      "LS-CLUSTER-INCOMPLETE", {"LOCKSTEP_WORKER_INDEX=0", "RANK=1"});
}

TEST(ResolveCluster, NamesEachDifferenceWithBothVariables) {
  Variables torchrun = kTorchrun;
  torchrun["RANK"] = "2";
  torchrun["WORLD_SIZE"] = "4";
  torchrun["MASTER_ADDR"] = "z";
  torchrun["LOCAL_RANK"] = "2";
  Variables slurm = kSlurm;
  slurm["SLURM_LOCALID"] = "0";
  const ClusterSpec spec = resolve(joined({torchrun, slurm}));
  EXPECT_EQ(spec.source, "torchrun");
  EXPECT_EQ(spec.disagreements.size(), 4u);
  expect_disagreement(spec, {"WORLD_SIZE=4", "SLURM_STEP_NUM_TASKS=3"});
  expect_disagreement(spec, {"RANK=2", "SLURM_PROCID=1"});
  expect_disagreement(spec, {"MASTER_ADDR=z", "SLURM_STEP_NODELIST=a,b,c"});
  expect_disagreement(spec, {"LOCAL_RANK=2", "SLURM_LOCALID=0"});
}

TEST(ResolveCluster, PortsAreComparedWhereBothSourcesSayThem) {
  Variables pet = kPet;
  pet["PET_MASTER_PORT"] = "3333";
  expect_disagreement(resolve(joined({kTfConfig, pet})), {"2222", "PET_MASTER_PORT=3333"});
  pet.erase("PET_MASTER_PORT");
  EXPECT_TRUE(resolve(joined({kTfConfig, pet})).disagreements.empty());
}

TEST(ResolveCluster, ALauncherOnEachHostUnderALauncherOfHostsAgrees) {
  // srun started torchrun once on each of 3 hosts, and each torchrun started 4 workers.
  const Variables torchrun = {{"RANK", "6"},        {"WORLD_SIZE", "12"},        {"MASTER_ADDR", "a"},
                              {"LOCAL_RANK", "2"},  {"GROUP_RANK", "1"},         {"GROUP_WORLD_SIZE", "3"},
                              {"MASTER_PORT", "1"}, {"TORCHELASTIC_RUN_ID", "x"}};
  EXPECT_TRUE(resolve(joined({torchrun, kSlurm})).disagreements.empty());
  Variables other = torchrun;
  other["GROUP_RANK"] = "2";
  EXPECT_FALSE(resolve(joined({other, kSlurm})).disagreements.empty());
}

TEST(ResolveCluster, AMalformedLoserIsADisagreementAndAMalformedWinnerAnError) {
  Variables slurm = kSlurm;
  slurm["SLURM_STEP_NODELIST"] = "a[";
  const ClusterSpec spec = resolve(joined({kTorchrun, slurm}));
  EXPECT_EQ(spec.source, "torchrun");
  expect_disagreement(spec, {"Slurm cannot be read", "SLURM_STEP_NODELIST", "offset 2"});
  for (const std::string& text : spec.disagreements) EXPECT_EQ(text.find('\n'), std::string::npos) << text;
  Variables tf_config = {{"TF_CONFIG", "{"}};
  expect_error<ClusterError>([&] { resolve(joined({tf_config, kTorchrun})); }, "LS-CLUSTER-VALUE", {"TF_CONFIG"});
}

TEST(ResolveCluster, AnEvaluatorIsNotComparedWithWorkers) {
  const Variables evaluator = {
      {"TF_CONFIG", R"({"cluster": {"worker": ["a:1", "b:1"]}, "task": {"type": "evaluator", "index": 0}})"}};
  const ClusterSpec spec = resolve(joined({evaluator, kSlurm}));
  EXPECT_EQ(spec.job, "evaluator");
  EXPECT_TRUE(spec.disagreements.empty());
}

TEST(ResolveCluster, TheJobsIdComesFromTheFirstSourceThatAgreesAndHasOne) {
  EXPECT_EQ(resolve(joined({kTfConfig, kSlurm})).job_id, "9");
  Variables slurm = kSlurm;
  slurm["SLURM_PROCID"] = "2";
  EXPECT_EQ(resolve(joined({kTfConfig, slurm})).job_id, "");
}

TEST(ResolveCluster, NoMessageHasTheSecret) {
  const std::string secret = "hush-hush-hush-hush";
  for (const Variables& variables :
       {kLockstep, Variables{}, Variables{{"TF_CONFIG", "{"}}, joined({kTorchrun, kSlurm})}) {
    Variables all = joined({variables, {{"LOCKSTEP_SECRET", secret}}});
    all["SLURM_PROCID"] = "2";
    std::string text;
    try {
      const ClusterSpec spec = resolve(all);
      EXPECT_EQ(spec.secret.reveal(), secret);
      text = spec.source + spec.job_id;
      for (const std::string& sentence : spec.disagreements) text += sentence;
    } catch (const ClusterError& error) {
      text = error.what();
    }
    EXPECT_EQ(text.find("hush"), std::string::npos) << text;
  }
}

/// A source of one's own, as a user writes it.
class HtCondor : public ClusterResolver {
 public:
  std::string name() const override { return "HTCondor"; }
  std::optional<ClusterSpec> resolve(const Environment& environment) const override {
    const auto index = environment.integer("_CONDOR_PROCNO", 0, 1);
    if (!index) return std::nullopt;
    return ClusterSpec{.jobs = {{"worker", {"x:1", "y:1"}}}, .task = *index};
  }
};

TEST(ClusterResolver, OfOnesOwnIsAskedBeforeTheLibrarys) {
  const ClusterOptions options{.resolvers = {std::make_shared<HtCondor>()}};
  EXPECT_EQ(resolve({}, options).source, "alone");
  EXPECT_EQ(resolve(kSlurm, options).source, "Slurm");
  const ClusterSpec spec = resolve(joined({kTfConfig, {{"_CONDOR_PROCNO", "1"}}}), options);
  EXPECT_EQ(spec.source, "HTCondor");
  EXPECT_EQ(spec.num_workers(), 2);
  EXPECT_EQ(spec.worker_index(), 1);
  expect_disagreement(spec, {"HTCondor", "TF_CONFIG", "2 workers"});
  expect_disagreement(spec, {"HTCondor", "x:1", "a:2222"});
  expect_error<ClusterError>(
      [&] {
        resolve({{"_CONDOR_PROCNO", "2"}}, options);
      },
      "LS-CLUSTER-VALUE", {"_CONDOR_PROCNO"});
}

TEST(ClusterResolver, ThatContradictsItselfOrIsMissingIsRefused) {
  class Wrong : public ClusterResolver {
   public:
    std::string name() const override { return "Wrong"; }
    std::optional<ClusterSpec> resolve(const Environment&) const override { return ClusterSpec{.task = 4}; }
  };
  expect_error<ClusterError>([] { resolve({}, {.resolvers = {std::make_shared<Wrong>()}}); }, "LS-CLUSTER-SPEC",
                             {"task 4"});
  expect_error<UsageError>([] { resolve({}, {.resolvers = {nullptr}}); }, "LS-EMPTY-HANDLE");
}

}  // namespace
}  // namespace lockstep
