// The program `lockstep`: one subcommand for each thing that it does. Exit codes: 0 clean, 1 findings, 2 usage,
// 3 environment; as a worker of `lockstep run` those of exit_code_of(), but 2 after a UsageError.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/core/error.h"
#include "lockstep/core/log.h"
#include "lockstep/version.h"
#include "tools/console.h"
#include "tools/exit_status.h"
#include "tools/list_flags.h"
#include "tools/subcommands.h"

namespace {

/// One line, whatever the parser put into its text.
int refuse(const std::string& text, int code) {
  std::string line = text;
  for (char& c : line) c = c == '\n' ? ' ' : c;
  std::fputs(fmt::format("lockstep: {}\n", line).c_str(), stderr);
  return code;
}

int refuse(const std::exception& error) {
  // LibTorch's own errors without their backtrace.
  return refuse(lockstep::message_of(std::current_exception()), lockstep::tools::exit_status(error));
}

/// The code with which the program ends. What was printed and has not arrived is an error, unless there is another one.
int ended(int code) {
  try {
    lockstep::tools::finish_output();
    return code;
  } catch (const std::exception& error) {
    const int lost = refuse(error);
    return code == lockstep::tools::kClean ? lost : code;
  }
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app("Lockstep: one training step on many replicas, for C++ programs built on LibTorch", "lockstep");
  app.set_version_flag("--version", LOCKSTEP_VERSION);
  app.require_subcommand(1);
  lockstep::tools::Action chosen;
  lockstep::tools::add_train(app, chosen);
  lockstep::tools::add_bench(app, chosen);
  lockstep::tools::add_checkpoint(app, chosen);
  lockstep::tools::add_report(app, chosen);
  lockstep::tools::add_cluster(app, chosen);
  lockstep::tools::add_trace(app, chosen);
  std::vector<std::string> program;  // of `lockstep run`, `lockstep doctor` and `lockstep replay`
  lockstep::tools::add_run(app, program, chosen);
  lockstep::tools::add_doctor(app, program, chosen);
  lockstep::tools::add_replay(app, program, chosen);
  try {
    std::vector<std::string> words(argv + std::min(argc, 1), argv + argc);
    program = lockstep::tools::cut_program(app, words);
    lockstep::tools::check_lists(app, words);
    std::reverse(words.begin(), words.end());  // as the parser wants them
    app.parse(std::move(words));
  } catch (const CLI::Success& done) {
    return ended(app.exit(done));  // --help and --version
  } catch (const CLI::ParseError& error) {
    // The parser does not name the word that it could not place.
    const std::vector<std::string> unknown = app.remaining(/*recurse=*/true);
    const std::string word = unknown.empty() ? "" : fmt::format(" ('{}' is none)", unknown.front());
    const std::string what = std::string(error.what()).find("subcommand") == std::string::npos ? "" : word;
    return refuse(fmt::format("{}{}; lockstep --help lists what there is", error.what(), what),
                  lockstep::tools::kUsage);
  }
  // What the library says while all is well is in describe(), which is printed anyway.
  lockstep::set_log_sink([](lockstep::LogLevel level, std::string_view line) {
    if (level != lockstep::LogLevel::kInfo) std::fputs(fmt::format("lockstep: {}\n", line).c_str(), stderr);
  });
  try {
    return ended(chosen());
  } catch (const std::exception& error) {
    return refuse(error);
  }
}
