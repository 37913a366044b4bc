// The workers' output behind `lockstep run`: every line whole, none lost, and nobody waits for ever.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <random>
#include <sstream>

#include "tests/tools/run_support.h"

namespace {

namespace fs = std::filesystem;
using lockstep::testing::command;
using lockstep::testing::StartedProgram;

std::string output_of(const std::vector<std::string>& words) {
  StartedProgram program(words);
  EXPECT_EQ(program.wait(), 0) << program.errors();
  return program.output();
}

/// Lines "[w] <word> <number> end" with each worker's numbers in order; gives how many each worker has.
std::vector<int> whole_lines(const std::string& text, const std::string& word, int workers) {
  std::vector<int> next(static_cast<std::size_t>(workers), 1);
  std::istringstream in(text);
  int wrong = 0;
  for (std::string line; std::getline(in, line);) {
    if (line.find(word) == std::string::npos) continue;
    const auto worker = static_cast<std::size_t>(line.size() > 1 ? line[1] - '0' : 9);
    if (worker >= next.size() ||
        line != "[" + std::to_string(worker) + "] " + word + " " + std::to_string(next[worker]) + " end") {
      if (++wrong < 5) ADD_FAILURE() << "not whole, or not in order: " << line.substr(0, 200);
      continue;
    }
    ++next[worker];
  }
  for (int& count : next) --count;
  return next;
}

constexpr const char* kFlood = "seq -f 'out %.0f end' 20000 & seq -f 'err %.0f end' 20000 >&2; wait";

TEST(RunOutput, EveryLineOfAFloodIsWholeAndInOrder) {
  StartedProgram program(command({"-n", "4"}, kFlood));
  EXPECT_EQ(program.wait(), 0);
  EXPECT_EQ(whole_lines(program.output(), "out", 4), std::vector<int>(4, 20000));
  EXPECT_EQ(whole_lines(program.errors(), "err", 4), std::vector<int>(4, 20000));
}

TEST(RunOutput, BothStreamsInOneFileDoNotCutEachOther) {
  StartedProgram program(command({"-n", "4"}, kFlood), [] { dup2(STDOUT_FILENO, STDERR_FILENO); });
  EXPECT_EQ(program.wait(), 0);
  EXPECT_EQ(whole_lines(program.output(), "out", 4), std::vector<int>(4, 20000));
  EXPECT_EQ(whole_lines(program.output(), "err", 4), std::vector<int>(4, 20000));
}

TEST(RunOutput, ALastLineWithoutANewlineGetsOne) {
  EXPECT_EQ(output_of(command({"-n", "1"}, "printf abc")), "[0] abc\n");
  EXPECT_EQ(output_of(command({"-n", "1", "--no-prefix"}, "printf abc")), "abc");
  EXPECT_EQ(output_of(command({"-n", "1"}, "printf '\\n\\nx\\n'")), "[0] \n[0] \n[0] x\n");
}

TEST(RunOutput, ALongLineComesInPieces) {
  const std::string script = "head -c 200000 /dev/zero | tr '\\0' x; echo; head -c 65536 /dev/zero | tr '\\0' y; echo";
  std::string all;
  std::istringstream lines(output_of(command({"-n", "1"}, script)));
  for (std::string line; std::getline(lines, line);) {
    EXPECT_EQ(line.substr(0, 4), "[0] ");
    EXPECT_LE(line.size(), 65536u + 4);
    all += line.substr(4);
  }
  EXPECT_EQ(all, std::string(200000, 'x') + std::string(65536, 'y'));
}

TEST(RunOutput, AnyBytesPass) {
  const fs::path file = fs::temp_directory_path() / ("lockstep-run-bytes-" + std::to_string(getpid()));
  std::string bytes;
  std::mt19937 random(1);
  for (int i = 0; i < 300000; ++i) bytes.push_back(static_cast<char>(random() % 256));
  std::ofstream(file, std::ios::binary) << bytes;
  EXPECT_TRUE(output_of({LOCKSTEP_PROGRAM, "run", "-n", "1", "--no-prefix", "cat", file.string()}) == bytes);
  fs::remove(file);
  const std::string odd("a\0b\xff\x1b\n", 6);
  EXPECT_EQ(output_of(command({"-n", "1"}, "printf 'a\\000b\\377\\033\\n'")), "[0] " + odd);
}

TEST(RunOutput, AReaderWhoWaitsHoldsUpNoSignal) {
  StartedProgram program(command({"-n", "2"}, "echo ready >&2; exec yes"));
  program.read_until_errors_have("ready");
  // From here on nobody reads: the pipes fill.
  program.signal(SIGTERM);
  EXPECT_EQ(program.wait(), 128 + SIGTERM);
  EXPECT_TRUE(program.is_nobody_left());
}

TEST(RunOutput, WhoNeverReadsIsNotWaitedForAfterASecondSignal) {
  StartedProgram program(command({"-n", "2"}, "trap '' TERM; echo ready >&2; yes"));
  program.read_until_errors_have("ready");
  program.signal(SIGTERM);
  program.read_until_errors_have("SIGTERM goes to all workers");
  program.signal(SIGTERM);
  EXPECT_EQ(program.wait_unread(), 128 + SIGTERM);
  EXPECT_TRUE(program.is_nobody_left());
}

TEST(RunOutput, WhenNobodyReadsAnyMoreTheWorkersNotice) {
  StartedProgram program(command({"-n", "2"}, "exec yes"));
  program.read_until_output_has("y\n");
  program.close_output();
  EXPECT_EQ(program.wait(), 128 + SIGPIPE);
  EXPECT_NE(program.errors().find("nobody reads the output"), std::string::npos) << program.errors();
  EXPECT_TRUE(program.is_nobody_left());
}

TEST(RunOutput, ItStartsWithoutStandardStreams) {
  StartedProgram program(command({"-n", "2"}, "echo x; echo y >&2; exit 4"), [] {
    for (const int stream : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) close(stream);
  });
  EXPECT_EQ(program.wait(), 4);
}

}  // namespace
