// For the tests of `lockstep train --checkpoint-dir`: how a run is started, and how it is compared with another one.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <vector>

#include "tests/support/run_program.h"
#include "tests/tools/run_support.h"

namespace lockstep::testing {

namespace fs = std::filesystem;

inline constexpr const char* kTraining =
    "train --model mlp --replicas 2 --devices cpu:0 --global-batch 700 --learning-rate 1e-3 --seed 3 ";

class TrainCheckpoint : public RunProgram {
 protected:
  std::string outputs(const std::string& name) const {
    return " --json " + path(name + ".json") + " --sample-log " + path(name + ".log") + " ";
  }
  std::vector<std::string> words(const std::string& text) const {
    std::vector<std::string> all{LOCKSTEP_PROGRAM};
    std::istringstream in(text);
    for (std::string word; in >> word;) all.push_back(word);
    return all;
  }
  /// The step of the newest checkpoint, or -1.
  int64_t last_step(const std::string& directory) const {
    int64_t last = -1;
    std::error_code ignored;
    for (const auto& one : fs::directory_iterator(path(directory), ignored)) {
      const std::string name = one.path().filename().string();
      if (name.starts_with("step-") && fs::exists(one.path() / "manifest.json"))
        last = std::max<int64_t>(last, std::stol(name.substr(5)));
    }
    return last;
  }
  /// Whether it has ended and was not waited for.
  static bool has_ended(pid_t process) {
    const std::string status = text_of("/proc/" + std::to_string(process) + "/stat");
    return status.find(") Z") != std::string::npos;
  }
  /// Both runs have the same digests, losses and samples.
  void expect_same(const std::string& name, const std::string& expected) const {
    const auto found = nlohmann::json::parse(text_of(path(name + ".json")));
    const auto whole = nlohmann::json::parse(text_of(path(expected + ".json")));
    for (const char* key : {"steps", "samples", "train_loss", "eval_loss", "eval_accuracy", "weights_sha256",
                            "optimizer_sha256", "state_sha256"}) {
      EXPECT_EQ(found[key], whole[key]) << key;
    }
    const auto sorted = [&](const std::string& of) {
      auto lines = lines_of(text_of(path(of + ".log")));
      std::sort(lines.begin(), lines.end());
      return lines;
    };
    EXPECT_TRUE(sorted(name) == sorted(expected)) << "the samples differ";
    EXPECT_FALSE(fs::exists(path(name + ".log.part")));
  }
};

}  // namespace lockstep::testing
