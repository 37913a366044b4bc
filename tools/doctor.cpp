// The order of events of a program: a file is made, to which the program's processes add a line for each strategy and
// each finding (lockstep/core/process/told_findings.h); the program runs, and signals that would end the doctor end it;
// the lines are read and printed.
#include "tools/doctor.h"

#include <fmt/format.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>

#include "lockstep/core/counted.h"
#include "lockstep/core/error.h"
#include "lockstep/train/report/report_page.h"
#include "lockstep/train/report/run_report.h"
#include "tools/exit_status.h"
#include "tools/whole_file.h"

extern char** environ;

namespace lockstep::tools {

namespace {

using Json = nlohmann::ordered_json;

struct Observed {
  struct One {
    std::string code = {};
    std::string text = {};
    std::set<int64_t> processes = {};  // that noticed it, where a program was run
  };
  std::vector<One> findings = {};
  std::vector<std::string> strategies = {};  // that the program has made
  std::set<int64_t> processes = {};          // that have made one

  void add(std::string code, std::string text, std::optional<int64_t> process) {
    auto found = std::ranges::find_if(findings, [&](const One& one) { return one.code == code && one.text == text; });
    if (found == findings.end()) found = findings.insert(found, {std::move(code), std::move(text)});
    if (process) found->processes.insert(*process);
  }
};

/// Where the page of errors has a code.
std::string place_of(const std::string& code) {
  std::string anchor;
  for (const char c : code) anchor += c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
  return "docs/errors.md#" + anchor;
}

// A report.

std::string contents_of(const std::string& file) {
  std::ifstream in(file, std::ios::binary);
  std::string text{std::istreambuf_iterator<char>(in), {}};
  if (in.is_open() && !in.bad()) return text;
  throw DataError("LS-DATA-FILE", fmt::format("'{}' cannot be read: {}", file, std::strerror(errno)),
                  "name what `lockstep train --json` or html_report has written");
}

Observed found_in_report(const std::string& file) {
  const std::string text = contents_of(file);
  Observed all;
  const Json report = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (report.is_discarded()) {
    for (const auto& one : internal::run_in_page(text, "'" + file + "'").findings) all.add(one.code, one.text, {});
    return all;
  }
  const Json none = Json::array();
  const Json& findings = report.is_object() && report.contains("findings") ? report["findings"] : none;
  if (&findings == &none || !findings.is_array()) {
    throw DataError("LS-DATA-FILE", fmt::format("'{}' is JSON without a list of findings", file),
                    "name what `lockstep train --json` or html_report has written");
  }
  for (const Json& one : findings) {
    const std::string line = one.is_string() ? one.get<std::string>() : one.dump();
    const std::size_t colon = line.find(": ");
    all.add(line.substr(0, colon), colon == std::string::npos ? "" : line.substr(colon + 2), {});
  }
  return all;
}

// A program.

/// An empty file that goes with its object.
class ToldFile {
 public:
  ToldFile() {
    const int fd = mkstemp(name_.data());
    if (fd < 0) {
      throw DataError("LS-FILE", fmt::format("'{}' cannot be made: {}", name_, std::strerror(errno)),
                      "set TMPDIR to a folder that can be written to");
    }
    close(fd);
  }
  ~ToldFile() { unlink(name_.c_str()); }
  ToldFile(const ToldFile&) = delete;
  ToldFile& operator=(const ToldFile&) = delete;
  const std::string& name() const { return name_; }

 private:
  static std::string folder() {
    const char* const text = std::getenv("TMPDIR");
    return text && *text ? text : "/tmp";
  }
  std::string name_ = folder() + "/lockstep-doctor-XXXXXX";
};

volatile std::sig_atomic_t running = 0;  // the program's process, which gets the doctor's signals

void pass_on(int signal) {
  if (running > 0) kill(static_cast<pid_t>(running), signal);
}

/// Waits for the program's end; gives what waitpid() says.
int run(const std::vector<std::string>& program) {
  std::vector<std::string> words = program;
  std::vector<char*> arguments;
  for (std::string& word : words) arguments.push_back(word.data());
  arguments.push_back(nullptr);
  // A terminal's ^C reaches both; the doctor outlives it to tell what was found.
  struct sigaction passing = {};
  passing.sa_handler = pass_on;
  sigaction(SIGTERM, &passing, nullptr);
  sigaction(SIGHUP, &passing, nullptr);
  std::signal(SIGINT, SIG_IGN);
  // What comes before there is a process to pass it on to waits.
  sigset_t passed;
  sigset_t before;
  sigemptyset(&passed);
  sigaddset(&passed, SIGTERM);
  sigaddset(&passed, SIGHUP);
  sigprocmask(SIG_BLOCK, &passed, &before);
  sigset_t defaults;
  sigemptyset(&defaults);
  sigaddset(&defaults, SIGINT);
  posix_spawnattr_t attributes;
  posix_spawnattr_init(&attributes);
  posix_spawnattr_setsigdefault(&attributes, &defaults);
  posix_spawnattr_setsigmask(&attributes, &before);
  posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSIGDEF | POSIX_SPAWN_SETSIGMASK);
  pid_t process = 0;
  const int error = posix_spawnp(&process, arguments.front(), nullptr, &attributes, arguments.data(), environ);
  posix_spawnattr_destroy(&attributes);
  if (error != 0) {
    throw UsageError("LS-FLAG", fmt::format("'{}' cannot be started: {}", program.front(), std::strerror(error)),
                     "give the path of the program, and its arguments, behind '--'");
  }
  running = process;
  sigprocmask(SIG_SETMASK, &before, nullptr);
  int status = 0;
  while (waitpid(process, &status, 0) < 0 && errno == EINTR) {
  }
  running = 0;
  return status;
}

Observed found_by_program(const std::string& told) {
  Observed all;
  std::ifstream in(told);
  for (std::string line; std::getline(in, line);) {
    const Json one = Json::parse(line, nullptr, /*allow_exceptions=*/false);
    if (!one.is_object()) continue;  // a process was killed while it wrote
    const int64_t process = one.value("process", int64_t{0});
    if (one.contains("strategy")) {
      all.strategies.push_back(one.value("strategy", ""));
      all.processes.insert(process);
    } else {
      all.add(one.value("code", ""), one.value("text", ""), process);
    }
  }
  return all;
}

std::string text_of_end(int status) {
  if (WIFSIGNALED(status))
    return fmt::format("was ended by signal {} ({})", WTERMSIG(status), strsignal(WTERMSIG(status)));
  return fmt::format("ended with exit code {}", WEXITSTATUS(status));
}

// What was found.

void print(const Observed& all) {
  for (const Observed::One& one : all.findings) {
    std::string of = {};
    if (all.processes.size() > 1)
      of = fmt::format(", noticed by {} of {} processes", one.processes.size(), all.processes.size());
    std::fputs(fmt::format("\n{}: {}\n  {}{}\n", one.code, one.text, place_of(one.code), of).c_str(), stdout);
  }
}

void write_json(const std::string& path, const Observed& all, std::optional<int> status) {
  WholeFile file(path);
  if (!file.wanted()) return;
  Json json{{"findings", Json::array()}};
  for (const Observed::One& one : all.findings)
    json["findings"].push_back({{"code", one.code}, {"text", one.text}, {"place", place_of(one.code)}});
  if (status) {
    json["strategies"] = all.strategies;
    json["processes"] = all.processes.size();
    json["program"] = text_of_end(*status);
    json["exit_code"] = WIFEXITED(*status) ? Json(WEXITSTATUS(*status)) : Json();
  }
  file.write(json.dump(2, ' ', false, Json::error_handler_t::replace) + "\n");
  file.commit();
}

}  // namespace

int run_doctor(const DoctorOptions& options, const std::vector<std::string>& program) {
  if (options.report.empty() == program.empty()) {
    throw UsageError("LS-FLAG",
                     program.empty() ? "neither a report nor a program was given" : "a report and a program were given",
                     "write lockstep doctor REPORT, or lockstep doctor -- PROGRAM ARGS");
  }
  if (program.empty()) {
    const Observed all = found_in_report(options.report);
    std::fputs(fmt::format("{} in '{}'\n", internal::counted(static_cast<int64_t>(all.findings.size()), "finding"),
                           options.report)
                   .c_str(),
               stdout);
    print(all);
    write_json(options.json, all, {});
    return all.findings.empty() ? kClean : kFindings;
  }
  const ToldFile told;
  setenv("LOCKSTEP_DOCTOR", told.name().c_str(), 1);
  const int status = run(program);
  const Observed all = found_by_program(told.name());
  const bool failed = !WIFEXITED(status) || WEXITSTATUS(status) != 0;
  std::string line = fmt::format("\nlockstep doctor: {} in '{}', which {}",
                                 internal::counted(static_cast<int64_t>(all.findings.size()), "finding"),
                                 program.front(), text_of_end(status));
  if (all.strategies.empty()) {
    line += "; it has made no strategy of a Lockstep that has this command, so that nothing was looked at";
  } else {
    line += fmt::format("; looked at: {}", all.strategies.front());
    if (all.strategies.size() > 1) line += fmt::format(" and {} more", all.strategies.size() - 1);
    line += "; replicas were compared after every step";
  }
  std::fputs((line + "\n").c_str(), stdout);
  print(all);
  write_json(options.json, all, status);
  return all.findings.empty() && !failed && !all.strategies.empty() ? kClean : kFindings;
}

}  // namespace lockstep::tools
