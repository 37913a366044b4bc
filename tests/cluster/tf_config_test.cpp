// TF_CONFIG, as TensorFlow's users and Kubeflow write it.
#include <gtest/gtest.h>

#include "lockstep/cluster/resolve_cluster.h"
#include "lockstep/core/error.h"
#include "tests/support/errors.h"

namespace lockstep {
namespace {

using Variables = Environment::Variables;
using testing::expect_error;

ClusterSpec resolve(const std::string& text) {
  return resolve_cluster({}, Environment(Variables{{"TF_CONFIG", text}}));
}

TEST(TfConfig, OfTwoWorkers) {
  const ClusterSpec spec = resolve(
      R"({"cluster": {"worker": ["localhost:12345", "localhost:23456"]}, "task": {"type": "worker", "index": 1}})");
  EXPECT_EQ(spec.source, "TF_CONFIG");
  EXPECT_EQ(spec.num_workers(), 2);
  EXPECT_EQ(spec.worker_index(), 1);
  EXPECT_EQ(spec.chief_address(), "localhost:12345");
  EXPECT_EQ(spec.address(), "localhost:23456");
  EXPECT_EQ(spec.local_worker, 1) << "the second worker of this host";
}

TEST(TfConfig, OfAKubeflowTFJob) {
  const std::string cluster = R"("cluster":{"chief":["j-chief-0.ns.svc:2222"],"ps":["j-ps-0.ns.svc:2222"],)"
                              R"("worker":["j-worker-0.ns.svc:2222","j-worker-1.ns.svc:2222"]})";
  const auto of = [&](const std::string& task) {
    return resolve("{" + cluster + R"(,"task":)" + task + R"(,"environment":"cloud"})");
  };
  const ClusterSpec worker = of(R"({"type":"worker","index":1})");
  EXPECT_EQ(worker.num_workers(), 3);
  EXPECT_EQ(worker.worker_index(), 2);
  EXPECT_FALSE(worker.is_chief());
  EXPECT_EQ(worker.chief_address(), "j-chief-0.ns.svc:2222");
  EXPECT_EQ(worker.local_worker, 0);
  const ClusterSpec chief = of(R"({"type":"chief","index":0})");
  EXPECT_TRUE(chief.is_chief());
  EXPECT_EQ(chief.worker_index(), 0);
  const ClusterSpec ps = of(R"({"type":"ps","index":0})");
  EXPECT_EQ(ps.job, "ps");
  EXPECT_EQ(ps.address(), "j-ps-0.ns.svc:2222");
  // The evaluator is not in the cluster's description.
  const ClusterSpec evaluator = of(R"({"type":"evaluator","index":0})");
  EXPECT_TRUE(evaluator.is_chief());
  EXPECT_EQ(evaluator.num_workers(), 1);
}

TEST(TfConfig, OfAKubeflowTFJobWithDynamicWorkers) {
  const ClusterSpec spec =
      resolve(R"({"sparseCluster":{"worker":{"2":"j-worker-2.ns.svc:2222"},"ps":["j-ps-0.ns.svc:2222"]},)"
              R"("task":{"type":"ps","index":0}})");
  EXPECT_EQ(spec.jobs.at("worker"), (std::vector<std::string>{"", "", "j-worker-2.ns.svc:2222"}));
  EXPECT_EQ(spec.num_workers(), 3);
  EXPECT_EQ(spec.chief_address(), "");
  const ClusterSpec first =
      resolve(R"({"sparseCluster":{"worker":{"0":"a:1","2":"c:1"}},"task":{"type":"worker","index":"2"}})");
  EXPECT_EQ(first.worker_index(), 2);
  EXPECT_EQ(first.chief_address(), "a:1");
}

TEST(TfConfig, WithoutAClusterSaysNothing) {
  for (const char* text : {"{}", R"({"cluster": {}})", R"({"task": {"type": "worker", "index": 0}})",
                           R"({"cluster": null})", R"({"cluster": {"worker": []}})", R"({"environment": "cloud"})"}) {
    EXPECT_EQ(resolve(text).source, "alone") << text;
  }
  EXPECT_EQ(resolve(R"({"task": {"type": "evaluator", "index": 0}})").job, "evaluator");
}

TEST(TfConfig, ATaskThatTheClusterDoesNotHaveIsRefused) {
  for (const char* text : {R"({"cluster": {"worker": []}, "task": {"type": "worker", "index": 0}})",
                           R"({"cluster": {"worker": []}, "task": {"type": "worker", "index": "0"}})",
                           R"({"cluster": {"worker": {}}, "task": {"type": "worker", "index": 0}})",
                           R"({"cluster": {"worker": [], "ps": []}, "task": {"type": "ps", "index": 0}})",
                           R"({"cluster": {}, "task": {"type": "worker", "index": 0}})",
                           R"({"sparseCluster": {"worker": []}, "task": {"type": "worker", "index": 0}})",
                           R"({"cluster": {"worker": ["a:1"], "chief": []}, "task": {"type": "chief", "index": 0}})",
                           R"({"cluster": {"ps": ["a:1"]}, "task": {"type": "worker", "index": 0}})",
                           R"({"cluster": {"worker": ["a:1"], "chief": ["b:1", "c:1"]},)"
                           R"( "task": {"type": "worker", "index": 0}})"}) {
    expect_error<ClusterError>([&] { resolve(text); }, "LS-CLUSTER-SPEC", {"TF_CONFIG"});
  }
  EXPECT_EQ(resolve(R"({"cluster": {"worker": []}, "task": {"type": "evaluator", "index": 0}})").job, "evaluator");
}

TEST(TfConfig, OneOfSeveralTasksWithoutAClusterIsAnError) {
  expect_error<ClusterError>([] { resolve(R"({"task": {"type": "worker", "index": 1}})"); }, "LS-CLUSTER-INCOMPLETE",
                             {"'worker' 1", "no cluster"});
}

TEST(TfConfig, WhatIsMalformedIsNamedWithItsPlace) {
  struct Row {
    const char* text;
    std::vector<std::string_view> values;
  };
  const Row rows[] = {
      {"{", {"it ends at offset 1"}},
      {"nonsense", {"offset 1", "JSON"}},
      {R"({"cluster": })", {"offset 12"}},
      {R"({"a": 1} x)", {"offset 9"}},
      {"{\"a\": \"\xff\"}", {"offset 7"}},
      {R"({"a": 1e999})", {"TF_CONFIG"}},
      {"[]", {"'[]'", "JSON object", "\"cluster\"", "\"task\""}},
      {"3", {"'3'"}},
      {R"({"cluster": 3})", {"cluster", "'3'"}},
      {R"({"cluster": {"worker": "a:1"}})", {"cluster.'worker'", "a:1"}},
      {R"({"cluster": {"worker": ["a:1", 3]}})", {"cluster.'worker'[1]", "'3'"}},
      {R"({"cluster": {"worker": ["a:1", "b"]}})", {"cluster.'worker'[1]", "offset 1"}},
      {R"({"cluster": {"worker": {"x": "a:1"}}})", {"cluster.'worker'", "'x'"}},
      {R"({"cluster": {"worker": {"65536": "a:1"}}})", {"cluster.'worker'", "'65536'"}},
      {R"({"cluster": {"worker": {"1": "a:1", "01": "b:1"}}})", {"task 1 once"}},
      {R"({"cluster": {"worker": ["a:1"]}, "task": 3})", {"task", "'3'"}},
      {R"({"cluster": {"worker": ["a:1"]}, "task": {"type": 3, "index": 0}})", {"task.type"}},
      {R"({"cluster": {"worker": ["a:1"]}, "task": {"type": "worker"}})", {"task.index", "'null'"}},
      {R"({"cluster": {"worker": ["a:1"]}, "task": {"index": 0}})", {"task.type", "'null'"}},
      {R"({"cluster": {"worker": ["a:1"]}, "task": {"type": "worker", "index": -1}})", {"task.index", "'-1'"}},
      {R"({"cluster": {"worker": ["a:1"]}, "task": {"type": "worker", "index": 0.0}})", {"task.index", "'0.0'"}},
      {R"({"cluster": {"worker": ["a:1"]}, "task": {"type": "worker", "index": "x"}})", {"task.index", "'x'"}},
      {R"({"cluster": {"worker": ["a:1"]}, "cluster": {"worker": ["b:1"]}})", {"twice"}},
      {"[[[[[[[[[[[]]]]]]]]]]]", {"nested"}},
  };
  for (const Row& row : rows) {
    const auto error = testing::caught_from<ClusterError>([&] { resolve(row.text); });
    if (!error) continue;
    EXPECT_EQ(error->code(), "LS-CLUSTER-VALUE") << error->what();
    for (const auto value : row.values) EXPECT_TRUE(testing::has_value(error->what(), value)) << error->what();
  }
}

TEST(TfConfig, ThatContradictsItselfIsRefused) {
  for (const char* text :
       {R"({"cluster": {"worker": ["a:1"]}, "task": {"type": "worker", "index": 1}})",
        R"({"cluster": {"worker": ["a:1"]}, "task": {"type": "chief", "index": 0}})",
        R"({"cluster": {"worker": ["a:1", "a:1"]}, "task": {"type": "worker", "index": 0}})",
        R"({"cluster": {"master": ["a:1"]}, "task": {"type": "master", "index": 0}})",
        R"({"cluster": {"worker": ["a:1"], "\u0000": ["b:1"]}, "task": {"type": "worker", "index": 0}})"}) {
    expect_error<ClusterError>([&] { resolve(text); }, "LS-CLUSTER-SPEC", {"TF_CONFIG"});
  }
  expect_error<ClusterError>([] { resolve(R"({"cluster": {"worker": ["a:1"]}})"); }, "LS-CLUSTER-INCOMPLETE", {"task"});
}

TEST(TfConfig, IsBoundedInSizeAndDepth) {
  const std::string deep(1 << 20, '[');
  expect_error<ClusterError>([&] { resolve(deep); }, "LS-CLUSTER-VALUE", {"nested"});
  expect_error<ClusterError>([&] { resolve("{}" + std::string(1 << 20, ' ')); }, "LS-CLUSTER-VALUE", {"at most"});
}

TEST(TfConfig, AGapAtTheChiefNeedsItsAddress) {
  const std::string text = R"({"sparseCluster":{"worker":{"1":"b:1"}},"task":{"type":"worker","index":1}})";
  expect_error<ClusterError>([&] { resolve(text); }, "LS-CLUSTER-INCOMPLETE", {"TF_CONFIG"});
  const ClusterSpec spec =
      resolve_cluster({}, Environment(Variables{{"TF_CONFIG", text}, {"LOCKSTEP_CHIEF_ADDRESS", "a:1"}}));
  EXPECT_EQ(spec.jobs.at("worker"), (std::vector<std::string>{"a:1", "b:1"}));
}

}  // namespace
}  // namespace lockstep
