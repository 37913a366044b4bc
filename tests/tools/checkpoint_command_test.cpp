// `lockstep checkpoint`: what it exports, and what it says of checkpoints made by hand.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <torch/types.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/checkpoint/exchange.h"
#include "lockstep/checkpoint/image.h"
#include "lockstep/core/tensors/host_bytes.h"
#include "tests/tools/run_support.h"

namespace {

using lockstep::load_tensors;
using lockstep::testing::has;
using lockstep::testing::run;
using lockstep::testing::run_to_end;
using lockstep::testing::RunProgram;

class CheckpointCommand : public RunProgram {
 protected:
  /// Makes a checkpoint with these tensors; gives its path.
  std::string saved(const std::string& name, std::vector<lockstep::internal::ImageTensor> tensors) const {
    lockstep::internal::save_image(lockstep::internal::host_files(), path(name),
                                   {.run = {.replicas = 2, .workers = 1}, .tensors = std::move(tensors)});
    return path(name);
  }
  static nlohmann::json json_of(const std::string& command, int code) {
    const auto result = run("checkpoint " + command + " --json");
    EXPECT_EQ(result.code, code) << result.output;
    return nlohmann::json::parse(result.output, nullptr, false);
  }
};

TEST_F(CheckpointCommand, AModulesExportIsThatOfTheTrainingRun) {
  const auto trained =
      run("train --model cnn --replicas 4 --devices cpu:0 --global-batch 32 --steps 3 --seed 3 --checkpoint-dir " +
          path("c") + " --export " + path("train.pt"));
  ASSERT_EQ(trained.code, 0) << trained.output;
  const auto exported = run("checkpoint export " + path("c") + " " + path("checkpoint.pt") + " --module model");
  EXPECT_EQ(exported.code, 0) << exported.output;
  const auto expected = load_tensors(path("train.pt"));
  const auto found = load_tensors(path("checkpoint.pt"));
  EXPECT_TRUE(found.contains("conv1.weight") && found.contains("norm1.running_mean"));
  EXPECT_EQ(found.size(), expected.size());
  for (const auto& [name, value] : expected) {
    ASSERT_TRUE(found.contains(name)) << name;
    EXPECT_TRUE(torch::equal(found.at(name), value)) << name;
  }
}

TEST_F(CheckpointCommand, AnExportHasTheValueThatReplicasStandForAndAModulesHasNothingElse) {
  const auto one = torch::tensor({1.0F, 2.0F});
  const auto three = torch::tensor({3.0F, 6.0F});
  const std::string made =
      saved("c", {{.kind = "mirrored", .name = "net.w", .value = one},
                  {.kind = "mirrored", .name = "net.w/average", .value = three},
                  {.kind = "mirrored", .name = "net.w/average_updates", .value = torch::tensor(7)},
                  {.kind = "mirrored", .name = "net.w/own", .value = three},
                  {.kind = "mirrored", .name = "network.w", .value = three},
                  {.kind = "slot", .name = "net.w/exp_avg", .value = three},
                  {.kind = "on-read", .name = "net.mean", .replica = 0, .value = one},
                  {.kind = "on-read", .name = "net.mean", .replica = 1, .value = three},
                  {.kind = "on-read", .name = "count", .replica = 0, .value = torch::tensor({9, 4})},
                  {.kind = "on-read", .name = "count", .replica = 1, .value = torch::tensor({6, 7})},
                  {.kind = "on-read", .name = "sum", .replica = 0, .value = one, .aggregation = "sum"},
                  {.kind = "on-read", .name = "sum", .replica = 1, .value = three, .aggregation = "sum"},
                  {.kind = "on-read", .name = "first", .replica = 0, .value = one, .aggregation = "first"},
                  {.kind = "on-read", .name = "first", .replica = 1, .value = three, .aggregation = "first"}});
  const auto names_and_values = [&](const std::string& flags) {
    const auto result = run("checkpoint export " + made + " " + path("w.safetensors") + flags);
    EXPECT_EQ(result.code, 0) << result.output;
    std::map<std::string, float> firsts;
    for (const auto& [name, value] : load_tensors(path("w.safetensors")))
      firsts[name] = value.flatten()[-1].item<float>();
    return firsts;
  };
  EXPECT_EQ(names_and_values(""), (std::map<std::string, float>{{"count", 4},  // numbers without a mean are replica 0's
                                                                {"first", 2},
                                                                {"net.mean", 4},  // older checkpoints do not say it
                                                                {"net.w", 2},
                                                                {"net.w/average", 6},
                                                                {"net.w/average_updates", 7},
                                                                {"net.w/own", 6},
                                                                {"network.w", 6},
                                                                {"sum", 8}}));
  EXPECT_EQ(names_and_values(" --module net"), (std::map<std::string, float>{{"mean", 4}, {"w", 2}, {"w/own", 6}}))
      << "of names with a slash only moving averages are left out";
  const auto none = run("checkpoint export " + made + " " + path("x.pt") + " --module other");
  EXPECT_EQ(none.code, 2) << none.output;
  EXPECT_TRUE(has(none.output, "LS-FLAG") && has(none.output, "--module other")) << none.output;
  EXPECT_EQ(run("checkpoint export " + made + " " + path("x.pt") + " --module ''").code, 2) << "an unset variable";
}

TEST_F(CheckpointCommand, AModulesExportHasATiedTensorUnderEachOfItsNames) {
  lockstep::internal::Image image{
      .run = {.replicas = 2, .workers = 1, .other_names = {{"net.out.weight", "net.in.weight"}}},
      .tensors = {{.kind = "mirrored", .name = "net.in.weight", .value = torch::tensor({1.0F, 2.0F})}}};
  lockstep::internal::save_image(lockstep::internal::host_files(), path("c"), image);
  for (const char* file : {"w.safetensors", "w.pt"}) {
    const auto result = run("checkpoint export " + path("c") + " " + path(file) + " --module net");
    EXPECT_EQ(result.code, 0) << result.output;
    const auto found = load_tensors(path(file));
    ASSERT_EQ(found.size(), 2u) << file;
    for (const char* name : {"in.weight", "out.weight"}) {
      ASSERT_TRUE(found.contains(name)) << file;
      EXPECT_TRUE(torch::equal(found.at(name), image.tensors[0].value)) << name;
    }
  }
}

TEST_F(CheckpointCommand, AnAggregationThatIsNotKnownIsDamageInEachCommand) {
  const auto one = torch::tensor({1.0F, 2.0F});
  const std::string odd =
      saved("odd", {{.kind = "on-read", .name = "m", .replica = 0, .value = one, .aggregation = "most"},
                    {.kind = "on-read", .name = "m", .replica = 1, .value = one, .aggregation = "most"}});
  for (const auto& [command, code] : {std::pair("list ", 1), std::pair("verify ", 1), std::pair("show ", 3)}) {
    const auto result = run(std::string("checkpoint ") + command + odd);
    EXPECT_EQ(result.code, code) << result.output;
    EXPECT_TRUE(has(result.output, "'most'")) << result.output;
  }
  EXPECT_TRUE(has(run("checkpoint export " + odd + " " + path("x.pt")).output, "'most'"));
}

TEST_F(CheckpointCommand, WhatAnIncompleteCheckpointLacksIsNamed) {
  const std::string made = saved("c/step-0000000007", {{.kind = "mirrored", .name = "w", .value = torch::ones({3})}});
  const std::string list_around = path("c");
  std::filesystem::remove(made + "/manifest.json");
  for (const std::string& given : {made, made + "/", list_around}) {
    const auto list = json_of("list " + given, 0)["checkpoints"];
    ASSERT_EQ(list.size(), 1u) << list;
    EXPECT_EQ(list[0]["state"], "not complete");
    EXPECT_EQ(list[0]["step"], 7);
    for (const std::string& text : {list[0]["problem"].get<std::string>(), run("checkpoint list " + given).output}) {
      EXPECT_TRUE(has(text, "has no manifest.json") && has(text, "weights.safetensors")) << text;
    }
  }
  const auto verified = run("checkpoint verify " + made);
  EXPECT_EQ(verified.code, 3) << verified.output;
  EXPECT_TRUE(has(verified.output, "is not complete") && has(verified.output, "manifest.json")) << verified.output;
  std::filesystem::remove(made + "/weights.safetensors");
  EXPECT_TRUE(has(run("checkpoint list " + made).output, "it has no file at all"));
  std::filesystem::create_directories(path("d"));
  EXPECT_TRUE(has(run("checkpoint list " + path("d")).output, "there is no checkpoint in"));
}

TEST_F(CheckpointCommand, WithoutAFileDescriptorNothingIsCalledDamaged) {
  const std::string made = saved("c/step-0000000007", {{.kind = "mirrored", .name = "w", .value = torch::ones({3})},
                                                       {.kind = "slot", .name = "w/m", .value = torch::ones({3})}});
  for (const std::string command : {"verify", "list", "show", "export"}) {
    std::vector<std::string> words{LOCKSTEP_PROGRAM, "checkpoint", command, path("c")};
    if (command == "export") words.push_back(path("x.pt"));
    const auto ended = run_to_end(words, [] {
      // Whoever started the test may have left it other descriptors; the program must not inherit them.
      for (int fd = STDERR_FILENO + 1; fd < 1024; ++fd) fcntl(fd, F_SETFD, FD_CLOEXEC);
      constexpr rlimit kThreeStreamsAndOne{4, 4};
      setrlimit(RLIMIT_NOFILE, &kThreeStreamsAndOne);
    });
    EXPECT_EQ(ended.code, 3) << ended.errors;
    EXPECT_TRUE(has(ended.errors, "no file descriptor is left") && has(ended.errors, "[LS-FILE-LIMIT]") &&
                has(ended.errors, "ulimit -n"))
        << ended.errors;
    EXPECT_FALSE(has(ended.errors, "damaged") || has(ended.output, "damaged")) << ended.errors << ended.output;
  }
}

TEST_F(CheckpointCommand, RowsOfTablesAreComparedByIdAndExported) {
  const auto saved_rows = [&](const std::string& name, const torch::Tensor& ids, const torch::Tensor& weights) {
    lockstep::internal::Image image{.run = {.replicas = 2, .workers = 1}};
    image.run.tables["users"] = R"({"dim":"2"})";
    image.tensors.push_back({.kind = "mirrored", .name = "net.w", .value = torch::ones({2})});
    const std::pair<std::string, torch::Tensor> parts[] = {{"ids", ids}, {"weights", weights}, {"sum", weights * 2}};
    for (const auto& [part, rows] : parts) {
      image.rows.push_back({"users/" + part, rows.scalar_type(), rows.sizes().vec(),
                            [rows = rows](uint64_t begin, std::span<std::byte> to) {
                              std::ranges::copy(lockstep::internal::host_bytes(rows).subspan(begin, to.size()),
                                                to.begin());
                            }});
    }
    lockstep::internal::save_image(lockstep::internal::host_files(), path(name), image);
    return path(name);
  };
  const auto ids = torch::tensor({-4, 2, 9});
  const auto weights = torch::arange(6, torch::kFloat).view({3, 2});
  const std::string a = saved_rows("a", ids, weights);
  const std::string b = saved_rows("b", torch::tensor({-4, 3, 9, 10}),
                                   torch::cat({weights, torch::zeros({1, 2})}) + torch::tensor({0.0F, 0.5F}));
  EXPECT_EQ(run("checkpoint diff " + a + " " + a).code, 0);
  const auto json = json_of("diff " + a + " " + b, 1);
  ASSERT_EQ(json["differences"].size(), 1u) << json;
  const auto& rows = json["differences"][0];
  EXPECT_EQ(rows["name"], "users");
  EXPECT_EQ(rows["rows"], 2);
  EXPECT_EQ(rows["differing"], 2);
  EXPECT_EQ(rows["largest_difference"], 0.5);
  EXPECT_EQ(rows["only_in_first"], 1);
  EXPECT_EQ(rows["only_in_second"], 2);
  EXPECT_EQ(run("checkpoint verify " + a).code, 0);
  EXPECT_TRUE(has(run("checkpoint show " + a).output, "users/weights"));
  for (const std::string file : {"x.safetensors", "x.pt"}) {
    EXPECT_EQ(run("export " + a + " " + path(file)).code, 0);
    const auto all = load_tensors(path(file));
    EXPECT_EQ(all.size(), 3u);
    EXPECT_TRUE(torch::equal(all.at("users/ids"), ids));
    EXPECT_TRUE(torch::equal(all.at("users/weights"), weights));
    EXPECT_TRUE(torch::equal(all.at("net.w"), torch::ones({2})));
    EXPECT_EQ(run("checkpoint export " + a + " " + path(file) + " --table users").code, 0);
    EXPECT_TRUE(torch::equal(load_tensors(path(file)).at("weights"), weights));
    EXPECT_EQ(load_tensors(path(file)).size(), 2u);
  }
  EXPECT_EQ(run("export " + a + " " + path("y.pt") + " --table items").code, 2);
}

TEST_F(CheckpointCommand, ADifferenceIsThatOfTheElementsThatDiffer) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  const double inf = std::numeric_limits<double>::infinity();
  const auto mirrored = [](const std::string& name, const torch::Tensor& value) {
    return lockstep::internal::ImageTensor{.kind = "mirrored", .name = name, .value = value};
  };
  const auto doubles = [](const std::vector<double>& values) { return torch::tensor(values, torch::kDouble); };
  const std::string a =
      saved("a", {mirrored("equal", doubles({1, nan, inf})), mirrored("finite", doubles({1, 2, -8, nan, inf})),
                  mirrored("first", doubles({1})), mirrored("form", doubles({1, 2})), mirrored("nan", doubles({1, 2})),
                  mirrored("infinite", doubles({1, inf})), mirrored("whole", torch::tensor({1, 2, 3}))});
  const std::string b =
      saved("b", {mirrored("equal", doubles({1, nan, inf})), mirrored("finite", doubles({1, 4, -7, nan, inf})),
                  mirrored("form", doubles({1, 2, 3})), mirrored("nan", doubles({1, nan})),
                  mirrored("infinite", doubles({2, -inf})), mirrored("second", doubles({1})),
                  mirrored("whole", torch::tensor({1, 2, 6}))});
  std::map<std::string, nlohmann::json> found;
  const auto differences = json_of("diff " + a + " " + b, 1)["differences"];
  for (const auto& one : differences) found[one["name"]] = one;
  EXPECT_EQ(found.size(), 7u) << "all but the equal one";
  EXPECT_FALSE(found.contains("equal"));
  EXPECT_EQ(found["first"]["only_in"], a);
  EXPECT_EQ(found["second"]["only_in"], b);
  EXPECT_EQ(found["form"]["forms"], (nlohmann::json{"Double [2]", "Double [3]"}));
  const auto expect = [&](const char* name, int64_t elements, int64_t differing, const nlohmann::json& difference,
                          double value) {
    EXPECT_EQ(found[name]["elements"], elements) << name;
    EXPECT_EQ(found[name]["differing"], differing) << name;
    EXPECT_EQ(found[name]["largest_difference"], difference) << name;
    EXPECT_EQ(found[name]["largest_value"], value) << name;
  };
  expect("finite", 5, 2, 2, 8);
  expect("whole", 3, 1, 3, 3);
  expect("nan", 2, 1, "nan", 2);
  expect("infinite", 2, 2, "inf", 1);
  EXPECT_EQ(run("checkpoint diff " + a + " " + a).code, 0);
}

TEST_F(CheckpointCommand, AListOfACheckpointsOwnFolderHasThatOne) {
  const std::string made = saved("best", {{.kind = "mirrored", .name = "w", .value = torch::ones({3})}});
  const auto list = json_of("list " + made, 0)["checkpoints"];
  ASSERT_EQ(list.size(), 1u) << list;
  EXPECT_EQ(list[0]["path"], made);
  EXPECT_EQ(list[0]["state"], "whole");
  EXPECT_TRUE(has(run("checkpoint list " + made).output, "best"));
  EXPECT_TRUE(has(run("checkpoint list " + made + "/").output, "best"));
  std::filesystem::resize_file(made + "/weights.safetensors", 20);
  EXPECT_EQ(json_of("list " + made, 1)["checkpoints"][0]["state"], "damaged");
}

}  // namespace
