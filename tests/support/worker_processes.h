// Workers that are processes, for tests: copies of the test program that run a function of the test and nothing else.
//
//   WORKER_BODY(meets) {                                     // in the child
//     const auto world = join(std::getenv("JOB"));
//     report("ready");
//     wait_for("go");
//     try { while (true) world->agree("again"); } catch (const PeerError& error) { report(error.what()); }
//   }
//
//   TEST(Job, NamesAWorkerThatIsKilled) {
//     WorkerProcesses workers("meets", 3, {{"JOB", job}});
//     for (int64_t w = 0; w < 3; ++w) workers.expect(w, "ready");
//     workers.tell_all("go");
//     const auto killed = workers.signal(1, SIGKILL);
//     const Report lost = workers.expect(0, "worker 1 is gone");
//     EXPECT_LT(lost.when - killed, std::chrono::seconds(1));
//   }
#pragma once

#include <sys/types.h>

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

namespace lockstep::testing {

/// Of CLOCK_MONOTONIC, which all processes of a machine share.
using Time = std::chrono::steady_clock::time_point;

// In a worker.

/// Defines what a worker process does. It runs before gtest begins. When it returns, the process ends with code 0; when
/// it throws, with code 3 and the message on stderr. Names are unique in a test program.
#define WORKER_BODY(name)                                                                         \
  static void worker_body_##name();                                                               \
  static const ::lockstep::testing::WorkerBody registered_body_##name{#name, worker_body_##name}; \
  static void worker_body_##name()

/// From 0.
int64_t my_worker_index();
/// Tells the test something, with the time of now. Any thread may call it. At most 64 KiB.
void report(const std::string& text);
/// Waits for the next word of the test, which is not empty. Where the test has ended, so does this process.
std::string next_word();
/// The same, and throws where it is another one.
void wait_for(const std::string& word);

struct WorkerBody {
  WorkerBody(const char* name, void (*body)());
};

// In the test.

struct Report {
  std::string text;
  Time when;  // when the worker reported it
};

/// How a process ended.
struct Ending {
  int code = -1;   // of exit, or -1
  int signal = 0;  // that killed it, or 0
  Time when;
};

/// A worker did not do what a test waits for.
class WorkerProcessesError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// Processes that each run one body. One thread makes, uses and destroys it. The destructor kills the workers and what
/// they have started; where the test has failed, it prints first what they have reported and printed. Where the test
/// itself is killed, or the thread that made them ends, the workers are killed too.
class WorkerProcesses {
 public:
  using Environment = std::map<std::string, std::string>;

  /// Starts the workers. `environment` is added to that of the test.
  WorkerProcesses(const std::string& body, int64_t workers, const Environment& environment = {});
  /// The same, with an environment for each.
  WorkerProcesses(const std::string& body, int64_t workers, const std::function<Environment(int64_t)>& environment);
  ~WorkerProcesses();
  WorkerProcesses(const WorkerProcesses&) = delete;
  WorkerProcesses& operator=(const WorkerProcesses&) = delete;

  int64_t size() const;
  pid_t pid(int64_t worker) const;

  /// Waits for the first report of the worker that begins with `beginning`. Throws where the worker ends without it, or
  /// has not made it within `bound`.
  Report expect(int64_t worker, const std::string& beginning,
                std::chrono::milliseconds bound = std::chrono::seconds(30));
  /// The same for all workers; by worker.
  std::vector<Report> expect_all(const std::string& beginning,
                                 std::chrono::milliseconds bound = std::chrono::seconds(30));
  /// What the worker has reported until now.
  std::vector<Report> reports(int64_t worker) const;
  /// Gives the worker a word for wait_for(). It may have ended, or wait later.
  void tell(int64_t worker, const std::string& word);
  void tell_all(const std::string& word);

  /// Sends a signal, as SIGKILL, SIGSTOP, SIGCONT; nothing to a worker that has ended. Gives the time just before.
  Time signal(int64_t worker, int signal);
  /// Waits until the process has ended. Throws where it has not within `bound`.
  Ending wait(int64_t worker, std::chrono::milliseconds bound = std::chrono::seconds(30));
  /// What the worker has printed until now, to stdout and stderr.
  std::string output(int64_t worker) const;

 private:
  class Processes;
  const std::unique_ptr<Processes> processes_;
};

/// Where this process is a worker: runs its body, and does not return. To be called first in main().
void run_body_of_worker();

}  // namespace lockstep::testing
