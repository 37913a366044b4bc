// The harness for tests with worker processes: what workers and their test tell each other, and that none is left.
#include "tests/support/worker_processes.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <fstream>
#include <iostream>
#include <string>
#include <thread>

#include "tests/support/errors.h"

namespace lockstep {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using std::chrono::steady_clock;
using testing::report;
using testing::wait_for;
using testing::WorkerProcesses;
using testing::WorkerProcessesError;

/// The state of a process as the kernel calls it, such as 'R' or 'T'; 'X' where there is none.
char state_of(pid_t process) {
  std::ifstream file("/proc/" + std::to_string(process) + "/stat");
  std::string line;
  std::getline(file, line);
  const auto end = line.rfind(')');
  return end == std::string::npos ? 'X' : line[end + 2];
}

bool is_over(pid_t process) {
  const char state = state_of(process);
  return state == 'X' || state == 'Z';
}

/// Waits until `holds()`, for at most 20 s.
template <class Condition>
bool eventually(const Condition& holds) {
  const auto end = steady_clock::now() + seconds(20);
  while (!holds()) {
    if (steady_clock::now() > end) return false;
    std::this_thread::yield();
  }
  return true;
}

WORKER_BODY(talks) {
  report("ready");
  wait_for("go");
  report("worker " + std::to_string(testing::my_worker_index()) + " has " + std::getenv("FRUIT") + "\nand two lines");
  std::cout << "printed" << std::endl;
  std::cerr << "and complained" << std::endl;
}

TEST(WorkerProcesses, TalkWithTheTestAndEnd) {
  const auto before = steady_clock::now();
  WorkerProcesses workers("talks", 3, [](int64_t worker) -> WorkerProcesses::Environment {
    return {{"FRUIT", worker == 1 ? "pears" : "apples"}};
  });
  for (const auto& ready : workers.expect_all("ready")) {
    EXPECT_GE(ready.when, before);
    EXPECT_LE(ready.when, steady_clock::now());
  }
  EXPECT_EQ(workers.reports(1).size(), 1u) << "they wait";
  workers.tell_all("go");
  EXPECT_EQ(workers.expect(0, "worker").text, "worker 0 has apples\nand two lines");
  EXPECT_EQ(workers.expect(1, "worker").text, "worker 1 has pears\nand two lines");
  for (int64_t w = 0; w < workers.size(); ++w) {
    const auto ending = workers.wait(w);
    EXPECT_EQ(ending.code, 0);
    EXPECT_EQ(ending.signal, 0);
    EXPECT_GE(ending.when, workers.reports(w).back().when);
    EXPECT_EQ(workers.output(w), "printed\nand complained\n");
  }
  workers.tell_all("nobody hears this");
}

TEST(WorkerProcesses, AreKilledOneByOne) {
  WorkerProcesses workers("talks", 2, {{"FRUIT", "plums"}});
  workers.expect_all("ready");
  const auto killed = workers.signal(1, SIGKILL);
  const auto ending = workers.wait(1);
  EXPECT_EQ(ending.signal, SIGKILL);
  EXPECT_EQ(ending.code, -1);
  EXPECT_GE(ending.when, killed);
  EXPECT_LT(ending.when - killed, seconds(10));
  workers.signal(1, SIGKILL);  // to a worker that has ended
  workers.tell(0, "go");
  EXPECT_EQ(workers.wait(0).code, 0);
}

TEST(WorkerProcesses, StandStillBetweenSigstopAndSigcont) {
  WorkerProcesses workers("talks", 1, {{"FRUIT", "plums"}});
  workers.expect(0, "ready");
  workers.signal(0, SIGSTOP);
  ASSERT_TRUE(eventually([&] { return state_of(workers.pid(0)) == 'T'; }));
  workers.tell(0, "go");
  EXPECT_EQ(state_of(workers.pid(0)), 'T');
  const auto continued = workers.signal(0, SIGCONT);
  EXPECT_GE(workers.expect(0, "worker 0").when, continued);
}

WORKER_BODY(throws) { throw std::runtime_error("no such luck"); }
WORKER_BODY(exits) { std::exit(7); }

TEST(WorkerProcesses, ShowExceptionsAndExitCodes) {
  WorkerProcesses throwing("throws", 1);
  EXPECT_EQ(throwing.wait(0).code, 3);
  EXPECT_EQ(throwing.output(0), "no such luck\n");
  WorkerProcesses exiting("exits", 1);
  EXPECT_EQ(exiting.wait(0).code, 7);
  WorkerProcesses unknown("there_is_none", 1);
  EXPECT_EQ(unknown.wait(0).code, 3);
  EXPECT_NE(unknown.output(0).find("there_is_none"), std::string::npos);
}

TEST(WorkerProcesses, ThatHearAnotherWordSaySo) {
  WorkerProcesses workers("talks", 1);
  workers.tell(0, "stop");
  EXPECT_EQ(workers.wait(0).code, 3);
  EXPECT_EQ(workers.output(0), "the test said 'stop' where the worker waits for 'go'\n");
}

TEST(WorkerProcesses, AreNotWaitedForWhenTheyHaveEndedOrTheTimeIsOver) {
  WorkerProcesses workers("talks", 2);
  workers.expect_all("ready");
  workers.signal(1, SIGKILL);
  const auto text_of = [&](const auto& call) { return testing::message_from<WorkerProcessesError>(call); };
  EXPECT_EQ(text_of([&] { workers.expect(1, "worker"); }), "worker 1 did not report 'worker' before it ended");
  EXPECT_EQ(text_of([&] { workers.expect(0, "worker", milliseconds(20)); }),
            "worker 0 did not report 'worker' within 20 ms");
  EXPECT_EQ(text_of([&] { workers.wait(0, milliseconds(20)); }), "worker 0 did not end within 20 ms");
}

WORKER_BODY(has_a_child) {
  const pid_t child = fork();
  if (child == 0) {
    while (true) pause();
  }
  report(std::to_string(child));
  wait_for("the end");
}

TEST(WorkerProcesses, LeaveNothingOfWhatTheyStarted) {
  pid_t worker = 0;
  pid_t child = 0;
  {
    WorkerProcesses workers("has_a_child", 1);
    worker = workers.pid(0);
    child = std::stoi(workers.expect(0, "").text);
    EXPECT_FALSE(is_over(child));
  }
  EXPECT_EQ(state_of(worker), 'X') << "it was reaped";
  EXPECT_TRUE(eventually([&] { return is_over(child); }));
}

WORKER_BODY(is_a_test) {
  WorkerProcesses workers("talks", 1);
  workers.expect(0, "ready");
  report(std::to_string(workers.pid(0)));
  wait_for("the end");
}

TEST(WorkerProcesses, EndWithATestThatIsKilled) {
  WorkerProcesses tests("is_a_test", 1);
  const pid_t worker = std::stoi(tests.expect(0, "").text);
  tests.signal(0, SIGKILL);
  tests.wait(0);
  EXPECT_TRUE(eventually([&] { return is_over(worker); }));
}

}  // namespace
}  // namespace lockstep
