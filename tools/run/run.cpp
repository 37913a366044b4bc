#include "tools/run/run.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <sched.h>
#include <sys/random.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/comm/join/reserved_port.h"
#include "lockstep/core/counted.h"
#include "lockstep/core/error.h"
#include "lockstep/core/process/oom_kills.h"
#include "tools/run/attempt.h"
#include "tools/run/end_notice.h"
#include "tools/run/job.h"
#include "tools/run/plans.h"
#include "tools/run/run_report.h"
#include "tools/run/stop_notices.h"
#include "tools/run/worker/descendants.h"
#include "tools/whole_file.h"

namespace lockstep::tools {

namespace {

using Clock = std::chrono::steady_clock;

[[noreturn]] void refuse(const std::string& what, const std::string& remedy) {
  throw ClusterError("LS-LAUNCH", fmt::format("{}: {}", what, std::strerror(errno)), remedy);
}

std::string random_hex(std::size_t bytes) {
  std::array<unsigned char, 32> buffer;
  if (getrandom(buffer.data(), bytes, 0) != static_cast<ssize_t>(bytes)) {
    refuse("the system gave no random bytes", "start again");
  }
  std::string text;
  for (std::size_t i = 0; i < bytes; ++i) text += fmt::format("{:02x}", buffer[i]);
  return text;
}

void check(const RunOptions& options) {
  if (options.command.empty()) {
    throw UsageError("LS-FLAG", "lockstep run was given no program", "name it after --: lockstep run -n 2 -- ./prog");
  }
  const bool plain = std::all_of(options.job_id.begin(), options.job_id.end(), [](unsigned char c) {
    return std::isalnum(c) != 0 || c == '-' || c == '_' || c == '.';
  });
  if (!plain || options.job_id.size() > 128) {
    throw UsageError("LS-FLAG", fmt::format("--job-id is '{}'", options.job_id),
                     "use at most 128 letters, digits, dots, dashes and underscores");
  }
}

/// So that no pipe gets the number of a standard stream that the launcher was started without.
void open_standard_streams() {
  int fd = 0;
  do {
    fd = open("/dev/null", O_RDWR);
  } while (fd >= 0 && fd <= STDERR_FILENO);
  if (fd >= 0) close(fd);
}

/// Three pipes for each worker are more than the usual soft limit allows. Gives the limit as it was.
rlimit raise_open_files() {
  rlimit before = {};
  getrlimit(RLIMIT_NOFILE, &before);
  const rlimit raised = {before.rlim_max, before.rlim_max};
  setrlimit(RLIMIT_NOFILE, &raised);
  return before;
}

/// Ports for a start: given ones, or free ones, which stay reserved as long as the object lives.
class StartPorts {
 public:
  explicit StartPorts(const Job& job) {
    for (int i = 0; i < ports_of(job); ++i) {
      if (job.port != 0) {
        const int local = job.tasks ? job.places[static_cast<std::size_t>(i)].local : 0;
        numbers_.push_back(static_cast<uint16_t>(job.port + local));
      } else {
        numbers_.push_back(reserved_.emplace_back().number());
      }
    }
  }
  const std::vector<uint16_t>& numbers() const { return numbers_; }

 private:
  std::vector<internal::ReservedPort> reserved_;
  std::vector<uint16_t> numbers_;
};

/// What is known of the cause of a failure beyond the way in which the worker ended; often nothing.
std::string cause_of(const AttemptResult& result, const std::optional<int64_t>& kills_before, bool is_output_lost) {
  if (!result.first_failure) return "";
  const WorkerEnd& end = *result.first_failure;
  if (result.was_killed) return "it was killed on the second signal";
  if (end.kind != WorkerEnd::Kind::kSignalled) return "";
  if (end.value == SIGPIPE && is_output_lost) return "nobody reads the output any more";
  if (end.value != SIGKILL) return "";
  const std::optional<int64_t> kills = internal::oom_kills();
  if (kills_before && kills && *kills > *kills_before) {
    return fmt::format(
        "the kernel's out-of-memory killer has killed {} of this control group's processes since the start",
        *kills - *kills_before);
  }
  return "lockstep did not send it: the kernel's out-of-memory killer may have, or another process (dmesg may tell)";
}

/// What the launcher says last.
std::string last_words_of(const AttemptResult& result, const RunOptions& options, const std::string& cause) {
  std::string text;
  for (const pid_t pid : result.left) text += fmt::format("lockstep run: process {} does not die of SIGKILL\n", pid);
  if (!result.first_failure) return text;
  const WorkerEnd& end = *result.first_failure;
  if (!result.last_errors.empty()) {
    text += fmt::format("lockstep run: what {} wrote to standard error last:\n", name_of(end));
    const std::string prefix = end.task.empty() ? fmt::to_string(end.worker) : end.task;
    for (const std::string& line : result.last_errors) text += fmt::format("[{}] {}\n", prefix, line);
  }
  text += fmt::format("lockstep run: {}{}",
                      result.was_asked_first    ? fmt::format("after {}: ", signal_text(result.end_signal))
                      : result.was_worker_asked ? "after a worker was asked to stop: "
                                                : "first failure: ",
                      text_of(end, options.command.front()));
  if (!cause.empty()) text += fmt::format("; {}", cause);
  if (result.stopped > 0) text += fmt::format("; {} stopped", internal::counted(result.stopped, "other"));
  if (result.failed_later > 0) text += fmt::format(", {} of them by a later failure", result.failed_later);
  return text + "\n";
}

int exit_code_of(const AttemptResult& result) {
  if (!result.first_failure) return 0;
  return result.was_killed ? 128 + result.end_signal : exit_code_of(*result.first_failure);
}

/// Waits; gives the first signal that asks the job to end, or 0.
int pause_for(std::chrono::milliseconds pause, SignalQueue& signals) {
  const Clock::time_point end = Clock::now() + pause;
  for (;;) {
    for (SignalQueue::ReceivedSignal received; signals.next(received);) {
      if (asks_to_end(received.signal)) return received.signal;
    }
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(end - Clock::now()).count();
    if (left <= 0) return 0;
    pollfd queue{signals.fd(), POLLIN, 0};
    poll(&queue, 1, static_cast<int>(left));
  }
}

double seconds_since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

/// The job has ended, so a report that cannot be written changes nothing of its exit code.
void write_report(const RunReport& report, const RunOptions& options, const Job& job) try {
  WholeFile file(options.json);
  file.write(json_of(report, options, job));
  file.commit();
} catch (const DataError& error) {
  const std::string text = fmt::format("lockstep run: {}\n", error.what());
  if (write(STDERR_FILENO, text.data(), text.size()) < 0) return;
}

/// Starts the workers, again where that may help, fills in the report but for its end, and gives the exit code.
int run_attempts(const RunOptions& options, const Job& job, RunReport& report) {
  SignalQueue signals;
  adopt_orphans();
  Watchdog watchdog;
  StartSettings settings = {&options.command, &signals, raise_open_files()};
  Sink output(STDOUT_FILENO);
  Sink own_errors(STDERR_FILENO);
  const Outputs outputs = {&output, are_same_file(STDOUT_FILENO, STDERR_FILENO) ? &output : &own_errors};
  const std::chrono::milliseconds grace(static_cast<int64_t>(options.grace * 1000));

  int restarts = 0;
  for (int epoch = 0;; ++epoch) {
    const std::optional<int64_t> kills_before = internal::oom_kills();
    const Clock::time_point start = Clock::now();
    const StartPorts ports(job);  // until all workers have ended
    StopNotices stops;
    settings.stop_notices = stops.sender();
    std::optional<EndNotice> end;
    if (job.tasks && job.tasks->has_evaluator) end.emplace();
    const std::vector<WorkerPlan> plans = plans_of(options, job,
                                                   {.restarts = restarts,
                                                    .epoch = epoch,
                                                    .ports = ports.numbers(),
                                                    .secret = job.has_own_secret ? "" : random_hex(32),
                                                    .stop_notices = stops.address(),
                                                    .end_notice = end ? end->address() : ""});
    const TaskSettings tasks = settings_of(options, job, restarts, end ? &*end : nullptr);
    if (options.json.empty()) report.attempts.clear();  // nobody will read them
    report.attempts.push_back(
        {.result = Attempt(settings, signals, stops, watchdog, outputs, grace, tasks).run(plans)});
    AttemptReport& attempt = report.attempts.back();
    const AttemptResult& result = attempt.result;
    attempt.seconds = seconds_since(start);
    attempt.cause = cause_of(result, kills_before, output.is_lost());
    const bool failed = result.first_failure.has_value();
    outputs.errors->add(last_words_of(result, options, attempt.cause));
    restarts += result.restarts_alone;
    const bool again = failed && result.end_signal == 0 && result.left.empty() && restarts < options.max_restarts &&
                       is_restartable(*result.first_failure);
    if (!again) {
      flush(outputs, signals, result.was_forced);
      return exit_code_of(result);
    }
    const std::chrono::milliseconds pause = pause_before(epoch + 1, options.restart_pause);
    ++restarts;
    outputs.errors->add(fmt::format("lockstep run: starting all again in {} s, restart {} of {}\n",
                                    static_cast<double>(pause.count()) / 1000, restarts, options.max_restarts));
    int signal = flush(outputs, signals, false);
    if (signal == 0) signal = pause_for(pause, signals);
    if (signal != 0) return 128 + signal;
  }
}

}  // namespace

int run(const RunOptions& options) {
  check(options);
  open_standard_streams();
  // A name that is wrong is told before hours of work. The file is closed again, so that no worker inherits it.
  { const WholeFile writable(options.json); }
  Job job = job_of(options);
  if (job.id.empty()) job.id = random_hex(8);
  const Clock::time_point start = Clock::now();
  RunReport report;
  report.exit_code = run_attempts(options, job, report);
  report.seconds = seconds_since(start);
  write_report(report, options, job);
  return report.exit_code;
}

}  // namespace lockstep::tools
