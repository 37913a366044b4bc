// The flags of `lockstep run`, and where the words of the program begin.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "lockstep/cluster/cluster_spec.h"
#include "tools/number_flags.h"
#include "tools/run/hosts_file.h"
#include "tools/run/run.h"
#include "tools/subcommands.h"

namespace lockstep::tools {

namespace {

constexpr const char* kMore =
    "lockstep run -n N [FLAGS] -- PROGRAM ARGS: words after the program's name are the program's. Each line of output "
    "begins with its worker's index. When one worker fails, all are stopped, and the exit code is that of the worker "
    "that failed first. Worker 0 reads standard input, unless that is a terminal; the others read an empty one. With "
    "--hosts, start the same command on every host of the file: each starts its own share of the workers. "
    "lockstep run --ps K -n W starts a chief, W workers and K parameter servers, which find their roles in TF_CONFIG; "
    "lines of output begin with 'chief', 'worker 1', 'ps 0'. The job ends when its chief does, with its exit code. A "
    "worker that fails is started again alone, while --max-restarts allows it; when the chief or a server fails, all "
    "are.";

/// Whether this word is a flag whose value is the next word.
bool takes_next_word(const CLI::App& run, const std::string& word) {
  const bool is_long = word.rfind("--", 0) == 0;
  const bool has_own_value = is_long ? word.find('=') != std::string::npos : word.size() > 2;
  const CLI::Option* const flag = run.get_option_no_throw(word);
  return !has_own_value && flag != nullptr && flag->get_items_expected_min() > 0;
}

}  // namespace

std::vector<std::string> cut_program(const CLI::App& app, std::vector<std::string>& words) {
  if (words.empty() || (words.front() != "run" && words.front() != "doctor" && words.front() != "replay")) return {};
  const bool is_run = words.front() == "run";
  const CLI::App& run = *app.get_subcommand("run");
  auto word = is_run ? words.begin() + 1 : std::find(words.begin(), words.end(), "--");
  while (is_run && word != words.end() && *word != "--" && word->size() > 1 && word->front() == '-') {
    word += takes_next_word(run, *word) ? std::min<std::ptrdiff_t>(2, words.end() - word) : 1;
  }
  const auto begin = word;
  if (word != words.end() && *word == "--") ++word;
  std::vector<std::string> program(word, words.end());
  words.erase(begin, words.end());
  return program;
}

void add_run(CLI::App& app, const std::vector<std::string>& program, Action& chosen) {
  const auto kept = std::make_shared<RunOptions>();
  RunOptions& options = *kept;
  CLI::App* const run =
      app.add_subcommand("run", "Start N workers of any program on this machine, or on each of several");
  run->footer(kMore);
  run->add_option("-n", options.workers,
                  "workers to start; with --hosts, on each host whose line has no slots, and with --ps on all hosts")
      ->transform(whole_number(1, kMostLocalWorkers));
  CLI::Option* const servers =
      run->add_option("--ps", options.servers, "parameter servers to start, and a chief, beside the workers")
          ->transform(whole_number(1, kMostLocalWorkers));
  run->add_flag("--evaluator", options.has_evaluator,
                "start an evaluator too, which reads checkpoints, beside the chief")
      ->needs(servers);
  run->add_option(
         "--max-restarts", options.max_restarts,
         "when a worker fails, start all again, with --ps this worker alone, at most this many times; not after "
         "exit codes 2, 126 and 127 (command line), 65 (data) and 78 (configuration)")
      ->transform(whole_number(0, 1000000))
      ->capture_default_str();
  run->add_option("--restart-pause", options.restart_pause,
                  "seconds before the first restart; doubles with each one, up to 30")
      ->check(number_between(0, 30))
      ->capture_default_str();
  run->add_option("--grace", options.grace, "seconds between SIGTERM and SIGKILL when workers are stopped")
      ->check(number_between(0, 86400))
      ->capture_default_str();
  CLI::Option* const hosts = run->add_option("--hosts", options.hosts,
                                             "a file that names the job's hosts, one a line: host, host:slots or "
                                             "'host slots=K'; the first one is the chief's");
  run->add_option("--host-index", options.host_index,
                  "which of them this host is, from 0; by default found by its name and addresses")
      ->needs(hosts)
      ->transform(whole_number(0, internal::kMostTasks));
  run->add_option(
         "--port", options.port,
         fmt::format("the chief's port, with --ps the first of each host's tasks; by default free ones at each "
                     "start, with --hosts {}",
                     kPortOfHosts))
      ->transform(whole_number(1, 65535));
  run->add_option("--job-id", options.job_id,
                  "LOCKSTEP_JOB_ID; by default a random one, with --hosts one that follows from hosts and port");
  run->add_option("--json", options.json, "write a report to this file: how each worker ended, in each start");
  run->add_flag_callback(
      "--no-pin", [kept] { kept->pin = false; }, "let each worker use all cores; by default each has cores of its own");
  run->add_flag_callback(
      "--no-prefix", [kept] { kept->prefix = false; }, "pass output on as it is, without the worker's index");
  run->callback([kept, &program, &chosen] {
    kept->command = program;
    chosen = [kept] { return lockstep::tools::run(*kept); };
  });
}

}  // namespace lockstep::tools
