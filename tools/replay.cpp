// `lockstep replay`: what the record of a run of parameter servers has, and the program that repeats it.
#include <fmt/format.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/core/error.h"
#include "lockstep/server/record/run_record.h"
#include "lockstep/server/record/run_replay.h"
#include "tools/console.h"
#include "tools/exit_status.h"
#include "tools/number_flags.h"
#include "tools/subcommands.h"

namespace lockstep::tools {

namespace {

using Json = nlohmann::ordered_json;
using Event = internal::RecordEvent;

constexpr const char* kMore =
    "lockstep replay FILE [--until STEP] -- PROGRAM ARGS: starts the program, in which each ParameterServerStrategy "
    "repeats the recorded run bit for bit, on threads of this one process. A debugger may stand before the program. "
    "Without a program: what the record has.";

struct ReplayFlags {
  std::string file;
  std::optional<int64_t> until;
  bool list = false;
  bool json = false;
};

/// What happened, in a few words.
std::string outcome_of(const Event& event) {
  switch (event.kind) {
    case Event::Kind::kCancelled: return "cancel()";
    case Event::Kind::kRoundCompleted: return "round completed";
    case Event::Kind::kGivenUp: return "given up";
    case Event::Kind::kChanged: return "changes";
    case Event::Kind::kRead: return "read";
    case Event::Kind::kRan: break;
  }
  if (event.is_late) return "late";  // another worker had been given the step meanwhile
  switch (event.outcome) {
    case internal::StepOutcome::kDone: return event.pushed ? "pushed" : "returned";
    case internal::StepOutcome::kFailed: return "failed";
    case internal::StepOutcome::kStreamEnded: return "no more data";
    case internal::StepOutcome::kTooLate: return "too late";
    case internal::StepOutcome::kWithdrawn: break;
  }
  return "withdrawn";
}

/// One line of the list. For a step also the states that it saw, and how many applied steps it missed.
Json line_of(const Event& event, const std::vector<std::string>& names, internal::Position applied) {
  Json line;
  line["what"] = outcome_of(event);
  if (event.kind == Event::Kind::kRead) line["state"] = event.state;
  if (event.kind == Event::Kind::kGivenUp) line["step"] = event.step;
  if (event.kind != Event::Kind::kRan) return line;
  line["step"] = event.step;
  line["name"] = internal::name_of_function(event.function, names);
  line["worker"] = event.worker;
  if (event.states.empty()) return line;
  const auto [least, most] = std::ranges::minmax(event.states);
  line["saw"] = least == most ? fmt::format("{}", least) : fmt::format("{} to {}", least, most);
  line["missed"] = applied > least ? applied - least : 0;
  return line;
}

struct Shown {
  Json summary;
  Json lines = Json::array();
};

Shown shown(const internal::RunEvents& run) {
  Shown all;
  const Json program = Json::parse(run.program, nullptr, false);
  if (!program.is_object()) {
    throw DataError("LS-RUN-RECORD", "the record does not say which program it is of",
                    "give a record that is not damaged");
  }
  std::vector<std::string> names;
  if (const Json steps = program.value("steps", Json()); steps.is_array()) {
    for (const Json& one : steps) names.push_back(one.is_string() ? one.get<std::string>() : "?");
  }
  const bool in_step = program.value("staleness", Json()) == Json(0);
  int64_t steps = 0;
  internal::Position applied = 0;
  for (const Event& event : run.events) {
    all.lines.push_back(line_of(event, names, in_step ? 0 : applied));
    if (event.kind != Event::Kind::kRan || event.is_late) continue;
    if (event.outcome == internal::StepOutcome::kDone) ++steps;
    if (event.outcome == internal::StepOutcome::kDone && event.pushed) ++applied;
  }
  for (const char* key : {"workers", "servers", "staleness", "seed", "steps", "fingerprint", "lockstep"}) {
    if (program.contains(key)) all.summary[key] = program.at(key);
  }
  all.summary["steps_done"] = steps;
  all.summary["events"] = run.events.size();
  all.summary["whole"] = run.is_whole;
  return all;
}

std::string cell(const Json& line, const char* key) {
  if (!line.contains(key)) return "";
  return line.at(key).is_string() ? line.at(key).get<std::string>() : line.at(key).dump();
}

int show(const ReplayFlags& flags, const internal::ReplayRecord& record) {
  Json all;
  all["file"] = flags.file;
  if (!record.torn.empty()) all["torn"] = record.torn;
  all["runs"] = Json::array();
  for (const internal::RunEvents& run : record.runs) {
    Shown one = shown(run);
    if (!flags.json) {
      std::vector<std::pair<std::string, std::string>> rows;
      for (const auto& [key, value] : one.summary.items()) rows.emplace_back(key, cell(one.summary, key.c_str()));
      print_table(rows);
      if (!flags.list) continue;
      std::vector<std::vector<std::string>> lines{{"step", "name", "worker", "what", "saw", "missed"}};
      for (const Json& line : one.lines) {
        std::vector<std::string> cells;
        for (const std::string& key : lines.front()) cells.push_back(cell(line, key.c_str()));
        lines.push_back(std::move(cells));
      }
      print_columns(lines);
    }
    if (flags.list) one.summary["list"] = std::move(one.lines);
    all["runs"].push_back(std::move(one.summary));
  }
  if (flags.json) print_json(all);
  if (record.torn.empty()) return kClean;
  std::fputs(fmt::format("lockstep: '{}' is torn: {}\n", flags.file, record.torn).c_str(), stderr);
  return kFindings;
}

/// The highest step of which the record says something.
int64_t last_step(const internal::ReplayRecord& record) {
  int64_t last = -1;
  for (const internal::RunEvents& run : record.runs) {
    for (const Event& event : run.events) {
      if (event.kind == Event::Kind::kRan || event.kind == Event::Kind::kGivenUp) last = std::max(last, event.step);
    }
  }
  return last;
}

/// Becomes the program.
[[noreturn]] void start(const ReplayFlags& flags, const std::vector<std::string>& program) {
  setenv("LOCKSTEP_REPLAY", std::filesystem::absolute(flags.file).c_str(), 1);
  if (flags.until) {
    setenv("LOCKSTEP_REPLAY_UNTIL", std::to_string(*flags.until).c_str(), 1);
  } else {
    unsetenv("LOCKSTEP_REPLAY_UNTIL");
  }
  std::vector<std::string> words = program;
  std::vector<char*> arguments;
  for (std::string& word : words) arguments.push_back(word.data());
  arguments.push_back(nullptr);
  execvp(arguments.front(), arguments.data());
  throw UsageError("LS-FLAG", fmt::format("'{}' cannot be started: {}", program.front(), std::strerror(errno)),
                   "give the path of the program, and its arguments, behind '--'");
}

int replay(const ReplayFlags& flags, const std::vector<std::string>& program) {
  const internal::ReplayRecord record = internal::read_record(flags.file);
  const auto refuse = [](const char* flag, const char* when) {
    throw UsageError("LS-FLAG", fmt::format("{} was given {}", flag, when),
                     "write lockstep replay FILE [--list] [--json], or lockstep replay FILE [--until STEP] -- PROGRAM");
  };
  if (program.empty()) {
    if (flags.until) refuse("--until", "without a program");
    return show(flags, record);
  }
  if (flags.list || flags.json) refuse(flags.list ? "--list" : "--json", "with a program");
  if (flags.until && *flags.until > last_step(record)) {
    throw UsageError(
        "LS-FLAG",
        fmt::format("--until is {}, and the last step of '{}' is {}", *flags.until, flags.file, last_step(record)),
        "give a step of the record: lockstep replay FILE --list shows them");
  }
  if (!record.torn.empty()) {
    std::fputs(fmt::format("lockstep: '{}' is torn: {}; the replay stops there\n", flags.file, record.torn).c_str(),
               stderr);
  }
  start(flags, program);
}

}  // namespace

void add_replay(CLI::App& app, const std::vector<std::string>& program, Action& chosen) {
  const auto flags = std::make_shared<ReplayFlags>();
  CLI::App* const replayed = app.add_subcommand("replay", "Repeat a recorded run of parameter servers bit for bit");
  replayed->footer(kMore);
  replayed->add_option("FILE", flags->file, "the record, which .record of ParameterServerOptions has named")
      ->required();
  replayed->add_option("--until", flags->until, "end the run when this step was decided and applied")
      ->transform(whole_number(0));
  replayed->add_flag("--list", flags->list, "without a program: also what happened, in order");
  replayed->add_flag("--json", flags->json, "without a program: as JSON");
  replayed->callback([flags, &program, &chosen] { chosen = [flags, &program] { return replay(*flags, program); }; });
}

}  // namespace lockstep::tools
