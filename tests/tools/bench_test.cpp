// The program `lockstep bench`, as a user runs it.
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>

#include "tests/support/run_program.h"

namespace {

namespace fs = std::filesystem;
using lockstep::testing::Result;
using lockstep::testing::run;
using lockstep::testing::text_of;

class Bench : public ::testing::Test {
 protected:
  Bench() : folder_(fs::temp_directory_path() / ("lockstep-bench-" + std::to_string(getpid()))) {
    fs::create_directories(folder_);
  }
  ~Bench() override { fs::remove_all(folder_); }
  std::string path(const std::string& name) const { return (folder_ / name).string(); }

  nlohmann::json report(const std::string& flags) const {
    const Result result = run("bench " + flags + " --blocks 3 --block-seconds 0.01 --json " + path("r.json"));
    EXPECT_EQ(result.code, 0) << flags << "\n" << result.output;
    return result.code == 0 ? nlohmann::json::parse(text_of(path("r.json"))) : nlohmann::json();
  }
  void expect_refused(const std::string& flags, const std::string& part) const {
    const Result result = run("bench " + flags + " --json " + path("never.json"));
    EXPECT_EQ(result.code, 2) << flags << "\n" << result.output;
    EXPECT_EQ(std::count(result.output.begin(), result.output.end(), '\n'), 1) << flags << "\n" << result.output;
    EXPECT_NE(result.output.find(part), std::string::npos) << flags << "\n" << result.output;
    EXPECT_FALSE(fs::exists(path("never.json"))) << flags;
  }
  const fs::path folder_;
};

void expect_spread(const nlohmann::json& timing) {
  EXPECT_GT(timing["p10"], 0);
  EXPECT_LE(timing["p10"], timing["median"]);
  EXPECT_LE(timing["median"], timing["p90"]);
}

TEST_F(Bench, AllReduceMeasuresEachSizeHotAndCold) {
  const auto json = report("all-reduce --no-calibration --sizes 8,4KiB --replicas 4 --devices cpu:0,cpu:1");
  ASSERT_EQ(json["sizes"].size(), 4u);
  EXPECT_EQ(json["sizes"][0]["bytes"], 8);
  EXPECT_EQ(json["sizes"][3]["bytes"], 4096);
  EXPECT_EQ(json["sizes"][3]["buffers"], "cold");
  for (const auto& row : json["sizes"]) expect_spread(row["us"]);
  expect_spread(json["empty_run_us"]);
  EXPECT_EQ(json["replicas"], 4);
}

TEST_F(Bench, SaysTheMachineAndItsLimits) {
  const auto json = report("step --tensors 100x64");
  for (const char* key : {"processor", "cores", "software", "fingerprint"}) EXPECT_TRUE(json.contains(key)) << key;
  const auto& limits = json["calibration"];
  for (const auto& row : limits["bandwidth"]) {
    EXPECT_GT(row["copy_gb_per_second"]["median"], 0.1);
    EXPECT_GT(row["triad_gb_per_second"]["median"], 0.1);
  }
  EXPECT_GT(limits["gflops_of_one"]["median"], 0.1);
  EXPECT_GT(json["share_of_triad_bandwidth"], 0);
}

TEST_F(Bench, StepTakesShapesTensorsOrAModel) {
  EXPECT_EQ(report("step --no-calibration --shapes 64x32*3,10 --optimizer momentum")["parameters"], 3 * 64 * 32 + 10);
  EXPECT_EQ(report("step --no-calibration --tensors 1000x256")["tensors"], 1000);
  EXPECT_EQ(report("step --no-calibration --model mlp --widths 20,30,10")["parameters"], 20 * 30 + 30 + 30 * 10 + 10);
}

TEST_F(Bench, StepOfSamplesKeepsTheGradientsOfLargeMatricesAsFactors) {
  const std::string flags = "step --no-calibration --shapes 512x512*2,64x64,10 --samples ";
  const auto json = report(flags + "4");
  const bool tells_node = json["software"].get<std::string>().find("LibTorch 1.") == std::string::npos;
  EXPECT_EQ(json["tensors_as_factors"], tells_node ? 2 : 0);
  EXPECT_EQ(json["samples"], 4);
  EXPECT_EQ(report(flags + "1000")["tensors_as_factors"], 0) << "too many samples";
  EXPECT_EQ(report("step --no-calibration --shapes 512x512")["tensors_as_factors"], 0) << "gradients are given";
}

TEST_F(Bench, TrainDumpsWhatARivalNeeds) {
  const auto json = report("train --no-calibration --model mlp --widths 8,4,3 --batch 5 --devices cpu:0,cpu:1 --dump " +
                           path("dump"));
  expect_spread(json["ms_per_step"]);
  EXPECT_EQ(json["parameters"], 8 * 4 + 4 + 4 * 3 + 3);
  const auto list = [&](const std::string& stem) {
    return nlohmann::json::parse(text_of(path("dump/" + stem + ".json")));
  };
  for (const char* stem : {"weights", "gradients", "weights20"}) {
    EXPECT_EQ(list(stem).size(), 4u) << stem;
    EXPECT_EQ(list(stem)[1]["name"], "model.fc1.bias");
    EXPECT_EQ(list(stem)[1]["offset"], 8 * 4 * 4);
    EXPECT_EQ(fs::file_size(path(std::string("dump/") + stem + ".bin")), 51 * 4u) << stem;
  }
  EXPECT_NE(text_of(path("dump/weights.bin")), text_of(path("dump/weights20.bin")));
  EXPECT_EQ(list("batch1")[0]["shape"], (std::vector<int>{5, 8}));
  EXPECT_EQ(list("batch1")[1]["dtype"], "Long");
  EXPECT_NE(text_of(path("dump/batch0.bin")), text_of(path("dump/batch1.bin")));
}

TEST_F(Bench, WireMeasuresTwoWorkersOfAHostInAJobOfSeveralHosts) {
  const auto json = report("wire --engine tls --workers 3 --hosts 2 --pair --sizes 4KiB,1MiB");
  EXPECT_NE(json["describe"].get<std::string>().find("through memory"), std::string::npos) << json["describe"];
  ASSERT_EQ(json["sizes"].size(), 2U);
  for (const auto& row : json["sizes"]) expect_spread(row["us"]);
}

TEST_F(Bench, WireMeasuresEachEngine) {
  for (const std::string engine : {"shared-memory", "tls", "tcp", "ucx"}) {
    const std::string flags = "wire --workers 3 --sizes 0,13 --engine " + engine;
    if (engine == "ucx") {
      const Result result = run("bench " + flags + " --blocks 1 --block-seconds 0.001");
      if (result.output.find("LS-CLUSTER-ENGINE") != std::string::npos) GTEST_SKIP() << result.output;
    }
    const auto json = report(flags);
    EXPECT_TRUE(json["describe"].get<std::string>().starts_with(engine + ":")) << json["describe"];
    ASSERT_EQ(json["sizes"].size(), 2U) << engine;
    EXPECT_EQ(json["sizes"][1]["bytes"], 13) << engine;
    for (const auto& row : json["sizes"]) expect_spread(row["us"]);
  }
}

TEST_F(Bench, EveryModelTrains) {
  for (const char* model : {"cnn", "resnet18", "gpt --layers 1 --width 16 --heads 2 --context 8"}) {
    EXPECT_GT(
        report(std::string("train --no-calibration --batch 1 --devices cpu:0 --model ") + model)["samples_per_second"],
        0);
  }
}

TEST_F(Bench, BadFlagsAreOneLineAndExitCodeTwo) {
  expect_refused("", "subcommand");
  expect_refused("reduce", "reduce");
  expect_refused("all-reduce --sizes 6", "6 bytes");
  expect_refused("all-reduce --sizes many", "many");
  expect_refused("all-reduce --sizes 900GiB", "takes");
  expect_refused("all-reduce --devices cpu:0,cpu:1 --replicas 1", "LS-LANES");
  expect_refused("all-reduce --sizes 4KiB,,8KiB", "--sizes: element 2 of the 3");
  expect_refused("step", "--shapes, --tensors or --model");
  expect_refused("step --shapes 64x", "--shapes has ''");
  expect_refused("step --shapes 64x-3", "'-3'");
  expect_refused("step --shapes 4096*2*2", "4096*2*2");
  expect_refused("step --shapes 99999999999999999999", "99999999999999999999");
  expect_refused("step --shapes 1000000x1000000", "takes");
  expect_refused("step --tensors 100", "--tensors has '100'");
  expect_refused("step --tensors 10x10 --shapes 4", "excludes");
  expect_refused("step --model vgg", "vgg");
  expect_refused("step --shapes 4x4 --samples 0", "--samples");
  expect_refused("wire --hosts 2", "--hosts 2");
  expect_refused("wire --hosts 3 --engine tls", "--workers 2");
  expect_refused("train --optimizer lion", "lion");
  expect_refused("train --model gpt --width 30 --heads 4", "no multiple of --heads 4");
}

}  // namespace
