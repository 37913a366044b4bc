// The program `lockstep train`, as a user runs it.
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>
#include <string>

#include "tests/support/run_program.h"

namespace {

namespace fs = std::filesystem;

using lockstep::testing::Result;
using lockstep::testing::run;
using lockstep::testing::text_of;

class Train : public ::testing::Test {
 protected:
  Train() : folder_(fs::temp_directory_path() / ("lockstep-train-" + std::to_string(getpid()))) {
    fs::create_directories(folder_);
  }
  ~Train() override { fs::remove_all(folder_); }

  std::string path(const std::string& name) const { return (folder_ / name).string(); }

  /// Runs a short training and gives its report.
  nlohmann::json report(const std::string& flags, const std::string& model = "mlp", int global_batch = 33) const {
    const Result result =
        run("train --model " + model + " --global-batch " + std::to_string(global_batch) + " --json " + path("r.json") +
            " " + flags + (flags.find("--steps") == std::string::npos ? " --steps 12" : ""));
    EXPECT_EQ(result.code, 0) << result.output;
    return result.code == 0 ? nlohmann::json::parse(text_of(path("r.json"))) : nlohmann::json();
  }

  /// Bad input: one line that holds `part`, an exit code, and nothing left behind.
  void expect_refused(const std::string& flags, int code, const std::string& part) const {
    const Result result =
        run("train --json " + path("never.json") + " --sample-log " + path("never.log") + " " + flags);
    EXPECT_EQ(result.code, code) << flags << "\n" << result.output;
    EXPECT_EQ(std::count(result.output.begin(), result.output.end(), '\n'), 1) << flags << "\n" << result.output;
    EXPECT_NE(result.output.find(part), std::string::npos) << flags << "\n" << result.output;
    for (const auto& entry : fs::directory_iterator(folder_)) {
      EXPECT_EQ(entry.path().filename().string().rfind("never", 0), std::string::npos)
          << "left behind: " << entry.path();
    }
  }
  const fs::path folder_;
};

TEST_F(Train, ReportsWhatItWasAndGave) {
  const auto json = report("--strategy mirrored --devices cpu:0,cpu:1 --replicas 4");
  for (const char* key : {"strategy", "replicas", "devices", "workers", "engine", "steps", "samples",
                          "samples_per_second", "input_stall", "train_loss", "eval_loss", "eval_accuracy",
                          "weights_sha256", "optimizer_sha256", "state_sha256", "fingerprint", "findings"}) {
    EXPECT_TRUE(json.contains(key)) << key;
  }
  EXPECT_EQ(json["replicas"], 4);
  EXPECT_EQ(json["devices"], (std::vector<std::string>{"cpu:0", "cpu:1"}));
  EXPECT_EQ(json["steps"], 12);
  EXPECT_EQ(json["samples"], 12 * 33);
  EXPECT_GT(json["eval_accuracy"], 0.3);
}

TEST_F(Train, GivesTheSameDigestsOnAnyNumberOfLanes) {
  const auto digests = [&](const std::string& flags) {
    const auto json = report("--replicas 4 " + flags, "cnn");
    return std::vector<nlohmann::json>{json["weights_sha256"], json["optimizer_sha256"], json["state_sha256"],
                                       json["eval_loss"]};
  };
  const auto one = digests("--devices cpu:0");
  EXPECT_EQ(digests("--devices cpu:0,cpu:1"), one);
  EXPECT_EQ(digests("--devices cpu:3,cpu:1,cpu:0,cpu:9"), one);
  EXPECT_NE(digests("--devices cpu:0 --seed 1"), one);
}

TEST_F(Train, ReadsAheadWithoutAnEffectOnResults) {
  const auto ahead = report("--devices cpu:0 --steps 40 --prefetch 2");
  const auto asked = report("--devices cpu:0 --steps 40");
  EXPECT_EQ(ahead["weights_sha256"], asked["weights_sha256"]);
  EXPECT_GE(ahead["input_stall"], 0.0);
  EXPECT_GT(asked["input_stall"], 0.0);
  EXPECT_LT(asked["input_stall"], 1.0);
  const Result result = run("train --model mlp --steps 2 --prefetch 3");
  EXPECT_NE(result.output.find("at most 4 steps"), std::string::npos) << result.output;
  EXPECT_NE(run("train --model mlp --prefetch -1").code, 0);
}

TEST_F(Train, FactoredGradientsAreASwitchThatChangesNoBit) {
  // The first weight is large enough for its gradient to stay factors.
  const auto digests = [&](const std::string& flag) {
    const auto json = report("--devices cpu:0 --replicas 2 --widths 784,512,10 --factored-gradients " + flag);
    return std::vector<nlohmann::json>{json["weights_sha256"], json["optimizer_sha256"]};
  };
  EXPECT_EQ(digests("off"), digests("auto"));
  const Result off = run("train --model mlp --steps 1 --describe --factored-gradients off");
  EXPECT_NE(off.output.find("factored gradients: off"), std::string::npos) << off.output;
  EXPECT_EQ(run("train --model mlp --steps 1 --factored-gradients on").code, 2);
}

TEST_F(Train, CentralStorageGivesTheBitsOfMirrored) {
  const auto digests = [&](const std::string& flags) {
    const auto json = report("--replicas 4 --devices cpu:0,cpu:1 " + flags, "cnn");
    return std::vector<nlohmann::json>{json["weights_sha256"], json["optimizer_sha256"], json["state_sha256"],
                                       json["eval_loss"]};
  };
  EXPECT_EQ(digests("--strategy central-storage"), digests("--strategy mirrored"));
}

TEST_F(Train, OneDeviceIsOneReplica) {
  const auto json = report("--strategy one-device");
  EXPECT_EQ(json["replicas"], 1);
  EXPECT_EQ(json["weights_sha256"], report("--strategy mirrored --devices cpu:0")["weights_sha256"]);
}

TEST_F(Train, EveryOptimizerTrains) {
  std::set<std::string> digests;
  for (const char* optimizer : {"sgd", "momentum", "adam", "adamw", "rmsprop", "adagrad"}) {
    const auto json = report(std::string("--devices cpu:0 --steps 60 --optimizer ") + optimizer, "mlp", 64);
    EXPECT_GT(json["eval_accuracy"], 0.5) << optimizer;
    digests.insert(json["weights_sha256"].get<std::string>());
  }
  EXPECT_EQ(digests.size(), 6u);
}

TEST_F(Train, LogsEverySampleOfAnEpochOnceWithItsReplica) {
  const Result result = run(
      "train --model mlp --epochs 1 --global-batch 3000 --devices cpu:0 --replicas 3 --sample-log " + path("samples"));
  ASSERT_EQ(result.code, 0) << result.output;
  std::istringstream lines(text_of(path("samples")));
  std::set<int64_t> ids;
  std::map<std::pair<int64_t, int64_t>, int> sizes;
  int64_t epoch = 0, step = 0, replica = 0, id = 0, count = 0;
  while (lines >> epoch >> step >> replica >> id) {
    EXPECT_EQ(epoch, 0);
    ids.insert(id);
    ++sizes[{step, replica}];
    ++count;
  }
  EXPECT_EQ(count, 10000);
  EXPECT_EQ(ids.size(), 10000u);
  EXPECT_EQ((sizes[{0, 0}]), 1000);
  EXPECT_EQ((sizes[{3, 0}]), 334) << "the last batch of 1,000 in three parts";
  EXPECT_EQ((sizes[{3, 2}]), 333);
}

/// A text whose next character follows from those before it, but for its numbers.
std::string counting_text(int lines) {
  std::string text;
  for (int i = 0; i < lines; ++i) text += "line " + std::to_string(i * 7919 % 1000) + " of a small text\n";
  return text;
}

class TrainOnText : public Train {
 protected:
  TrainOnText() { std::ofstream(folder_ / "text") << counting_text(300); }
  std::string flags(const std::string& more) const {
    return "--data text:" + path("text") + " --layers 1 --width 32 --heads 2 --context 16 --learning-rate 3e-3 " + more;
  }
};

TEST_F(TrainOnText, TheGptLearns) {
  const auto json = report(flags("--steps 150 --devices cpu:0,cpu:1 --dropout 0.05"), "gpt", 16);
  EXPECT_LT(json["eval_loss"], 1.2) << "nats of a character; guessing by frequency gives about 2.9";
  EXPECT_GT(json["eval_accuracy"], 0.6);
}

TEST_F(TrainOnText, TheGptGivesTheSameDigestsOnAnyNumberOfLanes) {
  const auto digests = [&](const std::string& devices) {
    const auto json = report(flags("--replicas 4 --dropout 0.2 --devices " + devices), "gpt", 10);
    return std::vector<nlohmann::json>{json["weights_sha256"], json["optimizer_sha256"], json["eval_loss"]};
  };
  EXPECT_EQ(digests("cpu:0,cpu:1"), digests("cpu:0"));
}

TEST_F(TrainOnText, TheGptTakesABatchSmallerThanTheReplicas) {
  const auto json = report(flags("--replicas 8 --devices cpu:0,cpu:1"), "gpt", 3);
  EXPECT_TRUE(json["train_loss"].is_number());
  EXPECT_TRUE(json["eval_loss"].is_number());
}

TEST_F(TrainOnText, TheGptMakesUpSoManyCharacters) {
  const auto sample = [&](const std::string& devices) {
    const Result result = run("train --model gpt --global-batch 16 --steps 30 --sample 100 --replicas 2 --devices " +
                              devices + " " + flags(""));
    EXPECT_EQ(result.code, 0) << result.output;
    const std::string heading = "\nsample:\n";
    const std::size_t at = result.output.find(heading);
    EXPECT_NE(at, std::string::npos) << result.output;
    return at == std::string::npos ? "" : result.output.substr(at + heading.size());
  };
  const std::string text = sample("cpu:0,cpu:1");
  ASSERT_EQ(text.size(), 101u) << "and a line's end";
  const std::string vocabulary = counting_text(300);
  for (const char c : text) EXPECT_NE(vocabulary.find(c), std::string::npos) << c;
  EXPECT_EQ(sample("cpu:0"), text);
}

TEST_F(TrainOnText, ImagesAndTextAreNotMixed) {
  expect_refused("--model mlp --data text:" + path("text"), 2, "--model mlp learns from images");
  expect_refused("--model gpt --data digits", 2, "--model gpt learns from text");
  expect_refused("--model gpt --data idx:x", 2, "--model gpt learns from text");
  expect_refused("--model cnn --sample 10", 2, "--sample");
  expect_refused("--model gpt --width 30 --heads 4 --data text:" + path("text"), 2, "no multiple of --heads 4");
  expect_refused("--model gpt --context 0 --data text:" + path("text"), 2, "context");
  expect_refused("--model gpt --context 5000 --data text:" + path("text"), 3, "a window of 5000");
  expect_refused("--model gpt --data text:" + path("nowhere"), 3, "cannot be opened");
}

TEST_F(Train, TheResnetTakesStepsOnImagesOfOneChannel) {
  const auto json = report("--devices cpu:0,cpu:1 --steps 1", "resnet18", 4);
  EXPECT_EQ(json["samples"], 4);
  EXPECT_TRUE(json["eval_loss"].is_number());
}

TEST_F(Train, ABatchSmallerThanTheReplicasIsLegal) {
  const auto json = report("--devices cpu:0 --replicas 8", "cnn", 3);
  EXPECT_EQ(json["samples"], 36);
  EXPECT_TRUE(json["train_loss"].is_number());
}

TEST_F(Train, SaysWhereCoresStayIdle) {
  const Result result = run("train --model mlp --steps 1 --devices cpu:0");
  if (sysconf(_SC_NPROCESSORS_ONLN) < 2) GTEST_SKIP() << "one core: none can stay idle";
  EXPECT_NE(result.output.find("idle"), std::string::npos) << result.output;
}

TEST_F(Train, PrintsTheTableOfVariablesWhereItIsAskedFor) {
  const Result plain = run("train --model mlp --steps 1 --devices cpu:0");
  EXPECT_EQ(plain.output.find("in one copy of each"), std::string::npos) << plain.output;
  EXPECT_NE(plain.output.find("1 replica on 1 lane"), std::string::npos) << "what it runs on, it says always";
  const Result described = run("train --model mlp --steps 1 --devices cpu:0 --describe");
  EXPECT_NE(described.output.find("in one copy of each"), std::string::npos) << described.output;
}

TEST_F(Train, PrintsPlainLinesWhereThereIsNoTerminal) {
  const Result result = run("train --model mlp --epochs 2 --global-batch 2000");
  EXPECT_NE(result.output.find("epoch 2/2  loss "), std::string::npos) << result.output;
  EXPECT_NE(result.output.find(" samples/s"), std::string::npos) << result.output;
  EXPECT_EQ(result.output.find('\r'), std::string::npos);
  EXPECT_EQ(result.output.find('\x1b'), std::string::npos);
}

TEST_F(Train, SaysNothingMeanwhileWhereItIsQuiet) {
  const Result result = run("train --model mlp --epochs 2 --global-batch 2000 --quiet");
  EXPECT_EQ(result.output.find("epoch"), std::string::npos) << result.output;
  EXPECT_EQ(result.output.find("MirroredStrategy:"), std::string::npos) << result.output;
  EXPECT_NE(result.output.find("weights sha256"), std::string::npos) << result.output;
}

TEST_F(Train, BadFlagsAreOneLineAndExitCodeTwo) {
  expect_refused("--nonsense", 2, "nonsense");
  expect_refused("--model vgg", 2, "vgg");
  expect_refused("--strategy mirror", 2, "mirror");
  expect_refused("--optimizer lion", 2, "lion");
  expect_refused("--devices gpu:0", 2, "'gpu:0' is not a device");
  expect_refused("--devices cuda:0", 2, "'cuda:0'");
  expect_refused("--devices cpu:0,cpu:0", 2, "stands twice");
  expect_refused("--devices cpu:0,,cpu:1", 2, "--devices: element 2 of the 3 of 'cpu:0,,cpu:1' is empty");
  expect_refused("--devices=cpu:0,", 2, "--devices: element 2 of the 2 of 'cpu:0,' is empty");
  expect_refused("--widths ,784,10", 2, "--widths: element 1 of the 3");
  expect_refused("--model mlp --widths 64,10", 2, "widths begin with 64, and a sample of --data digits has 784");
  expect_refused("--model mlp --widths 784,16,9", 2, "[LS-FLAG] give --widths that end with at least 10");
  expect_refused("--devices cpu:0,cpu:1 --replicas 1", 2, "LS-LANES");
  expect_refused("--strategy one-device --replicas 2", 2, "one-device");
  expect_refused("--replicas 0", 2, "replicas");
  expect_refused("--replicas many", 2, "many");
  expect_refused("--global-batch -4", 2, "global-batch");
  expect_refused("--learning-rate -1", 2, "learning-rate");
  expect_refused("--learning-rate nan", 2, "--learning-rate: nan is not a finite number above 0");
  expect_refused("--dropout nan", 2, "--dropout: nan is not a number from 0 to 0.99");
  expect_refused("--steps 0", 2, "--steps: 0 is not a whole number from 1 to 9223372036854775807");
  expect_refused("--steps 99999999999999999999", 2, "--steps: 99999999999999999999 is not a whole number");
  expect_refused("--seed -1", 2, "--seed: -1 is not a whole number from 0 to 18446744073709551615");
  expect_refused("--seed 18446744073709551616", 2, "--seed: 18446744073709551616");
  expect_refused("--dropout 1.5", 2, "dropout");
  expect_refused("--steps 3 --epochs 2", 2, "excludes");
  expect_refused("--data mnist", 2, "--data mnist");
  expect_refused("--checkpoint-every 5", 2, "checkpoint-dir");
}

TEST_F(Train, BadSurroundingsAreOneLineAndExitCodeThree) {
  const auto write = [&](const std::string& name, const std::string& bytes) {
    fs::create_directories(folder_ / "data");
    std::ofstream(folder_ / "data" / name, std::ios::binary) << bytes;
  };
  const std::string data = "--data idx:" + path("data");
  expect_refused(data, 3, "is not a folder");
  fs::create_directories(folder_ / "data");
  expect_refused(data, 3, "holds no pair");
  const std::string labels("\0\0\x08\x01\0\0\0\x02\x01\x02", 10);
  write("t10k-labels-idx1-ubyte", labels);
  write("t10k-images-idx3-ubyte",
        std::string("\0\0\x08\x03\0\0\0\x02\0\0\0\x1c\0\0\0\x1c", 16) + std::string(100, 'x'));
  expect_refused(data, 3, "100 bytes of data where its header promises 1568");
  write("t10k-labels-idx1-ubyte", std::string("\0\0\x08\x01\0\0\0\x01\x01", 9));
  write("t10k-images-idx3-ubyte",
        std::string("\0\0\x08\x03\0\0\0\x01\0\0\0\x1c\0\0\0\x1c", 16) + std::string(784, 'x'));
  expect_refused(data, 3, "no sample to train on");
  write("t10k-labels-idx1-ubyte", labels);
  write("t10k-images-idx3-ubyte", "GIF89a, not digits");
  expect_refused(data, 3, "not an IDX file");
  write("t10k-images-idx3-ubyte",
        std::string("\0\0\x08\x03\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff", 16) + "x");
  expect_refused(data, 3, "promises");
  const Result result = run("train --steps 1 --json " + path("no/such/folder/r.json"));
  EXPECT_EQ(result.code, 3) << result.output;
  EXPECT_EQ(std::count(result.output.begin(), result.output.end(), '\n'), 1) << result.output;
  const std::string steps = "--model mlp --devices cpu:0 --steps 1 ";
  expect_refused(steps + "--export " + path("no/such/folder/w.safetensors"), 3, "No such file or directory");
  expect_refused(steps + "--export " + folder_.string(), 3, "it is a folder");
  // A file that is renamed to the name of a device takes the device from every program.
  ASSERT_EQ(mkfifo(path("pipe").c_str(), 0600), 0);
  for (const char* flag : {"--json ", "--sample-log ", "--export "}) {
    const Result refused = run("train " + steps + flag + path("pipe"));
    EXPECT_EQ(refused.code, 3) << refused.output;
    EXPECT_NE(refused.output.find("it is a device or a pipe"), std::string::npos) << refused.output;
    EXPECT_TRUE(fs::is_fifo(path("pipe"))) << flag;
  }
}

TEST_F(Train, ALossThatIsNotFiniteEndsTheRunWithStepAndReplica) {
  const Result result =
      run("train --model mlp --devices cpu:0 --replicas 2 --optimizer sgd --learning-rate 1e25 --steps 50 --json " +
          path("nan.json"));
  EXPECT_EQ(result.code, 1) << result.output;
  EXPECT_NE(result.output.find("replica"), std::string::npos) << result.output;
  EXPECT_NE(result.output.find("step 1"), std::string::npos) << result.output;
  EXPECT_NE(result.output.find("was not applied"), std::string::npos) << result.output;
  EXPECT_FALSE(fs::exists(path("nan.json")));
}

TEST_F(Train, WritesAReportAndCurvesThatChangeNoBit) {
  const std::string flags = "--devices cpu:0 --replicas 2 --steps 20 ";
  const auto with = report(flags + "--report " + path("run.html") + " --tensorboard " + path("runs") + " --trace " +
                           path("trace.json"));
  const auto without = report(flags);
  for (const char* key : {"weights_sha256", "optimizer_sha256", "state_sha256", "train_loss", "eval_loss"}) {
    EXPECT_EQ(with[key], without[key]) << key;
  }
  const auto shown = nlohmann::json::parse(run("report --json " + path("run.html")).output);
  EXPECT_EQ(shown["runs"].size(), 1u) << shown;
  EXPECT_NE(text_of(path("run.html")).find("Norm of the gradient by variable"), std::string::npos);
  EXPECT_FALSE(fs::is_empty(fs::path(path("runs")) / "train"));
  EXPECT_TRUE(fs::exists(path("trace.json")));
  expect_refused("--model mlp --steps 1 --report " + path("no/such/folder/r.html"), 3, "No such file or directory");
  expect_refused("--model mlp --steps 1 --trace " + path("no/such/folder/t.json"), 3, "No such file or directory");
}

TEST_F(Train, HelpAndVersionAreNoErrors) {
  EXPECT_EQ(run("--help").code, 0);
  const Result help = run("train --help");
  EXPECT_EQ(help.code, 0);
  for (const char* flag :
       {"--model",  "--data",       "--strategy",  "--devices",       "--replicas",   "--global-batch",
        "--epochs", "--steps",      "--optimizer", "--learning-rate", "--seed",       "--dropout",
        "--sample", "--sample-log", "--json",      "--describe",      "--layers",     "--width",
        "--heads",  "--context",    "--trace",     "--report",        "--tensorboard"}) {
    EXPECT_NE(help.output.find(flag), std::string::npos) << flag;
  }
  EXPECT_EQ(run("--version").code, 0);
  EXPECT_EQ(run("").code, 2);
  EXPECT_EQ(run("trian").code, 2);
}

TEST_F(Train, ReachesNinetySevenPercentOnMnistInFiveEpochs) {
  const char* shared = std::getenv("LOCKSTEP_SHARED_DATA");
  if (!shared || !fs::exists(fs::path(shared) / "mnist-10k"))
    GTEST_SKIP() << "LOCKSTEP_SHARED_DATA names no folder with mnist-10k in it";
  const Result result = run("train --data idx:" + (fs::path(shared) / "mnist-10k").string() +
                            " --model cnn --strategy mirrored --devices cpu:0,cpu:1 --replicas 4 --epochs 5 --json " +
                            path("mnist.json"));
  ASSERT_EQ(result.code, 0) << result.output;
  EXPECT_GE(nlohmann::json::parse(text_of(path("mnist.json")))["eval_accuracy"], 0.97);
}

}  // namespace
