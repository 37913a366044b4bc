// Messages between tasks over real connections, and who gets none.
#include "lockstep/comm/tasks/task_network.h"

#include <gtest/gtest.h>

#include <chrono>
#include <optional>
#include <string>

#include "lockstep/comm/tasks/task_place.h"
#include "tests/support/errors.h"
#include "tests/support/free_port.h"

namespace lockstep::internal {
namespace {

using Clock = TaskNetwork::Clock;
using Kind = TaskEvent::Kind;
using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr TaskId kChief{.job = TaskId::Job::kChief, .task = 0};
constexpr TaskId kServer{.job = TaskId::Job::kServer, .task = 0};

TaskId worker(int64_t task) { return {.job = TaskId::Job::kWorker, .task = task}; }

TaskJob job_of(TaskId self) {
  return {.self = self, .workers = 2, .servers = 1, .address = "127.0.0.1", .secret = "a secret of the test"};
}

/// The next event of this kind; others are passed over.
TaskEvent next(TaskNetwork& network, Kind kind) {
  while (const auto event = network.next(Clock::now() + seconds(20))) {
    if (event->kind == kind) return *event;
  }
  throw std::runtime_error("no event came");
}

void look_for(TaskNetwork& from, TaskId to, uint16_t port, milliseconds longest = seconds(10)) {
  from.connect(to, {"127.0.0.1"}, port, Clock::now() + longest);
}

class TwoTasks : public ::testing::TestWithParam<bool> {
 protected:
  TaskJob job(TaskId self) const {
    TaskJob job = job_of(self);
    job.plaintext = GetParam();
    return job;
  }
};

TEST_P(TwoTasks, MessagesOfAnyLengthComeInTheirOrder) {
  TaskNetwork chief(job(kChief));
  TaskNetwork task(job(worker(1)));
  look_for(task, kChief, chief.port());
  const TaskEvent connected = next(task, Kind::kConnected);
  EXPECT_EQ(connected.peer.from, kChief);
  const std::vector<std::size_t> sizes{1, 5, 70'000, 3, 9'000'000, 262'143, 262'144, 2};
  for (const std::size_t size : sizes) task.send(connected.link, std::string(size, static_cast<char>('a' + size % 20)));
  for (const std::size_t size : sizes) {
    const TaskEvent event = next(chief, Kind::kReceived);
    EXPECT_EQ(event.peer.from, worker(1));
    EXPECT_TRUE(event.text == std::string(size, static_cast<char>('a' + size % 20))) << size;
    chief.send(event.link, event.text);
  }
  for (const std::size_t size : sizes) EXPECT_EQ(next(task, Kind::kReceived).text.size(), size);
}

TEST_P(TwoTasks, WhatWasSentArrivesBeforeALinkIsClosed) {
  TaskNetwork chief(job(kChief));
  TaskNetwork task(job(worker(0)));
  look_for(task, kChief, chief.port());
  const uint64_t link = next(task, Kind::kConnected).link;
  task.send(link, std::string(3'000'000, 'x'));
  task.close(link);
  EXPECT_EQ(next(chief, Kind::kReceived).text.size(), 3'000'000);
  EXPECT_EQ(next(chief, Kind::kLost).peer.from, worker(0));
}

INSTANTIATE_TEST_SUITE_P(Engines, TwoTasks, ::testing::Values(false, true),
                         [](const auto& one) { return one.param ? "Tcp" : "Tls"; });

TEST(TaskNetwork, ATaskThatComesLaterIsFound) {
  const uint16_t port = testing::free_port();
  TaskNetwork task(job_of(worker(0)));
  look_for(task, kChief, port);
  TaskJob late = job_of(kChief);
  late.port = port;
  TaskNetwork chief(late);
  EXPECT_EQ(next(task, Kind::kConnected).peer.from, kChief);
}

TEST(TaskNetwork, NobodyIsFoundInTime) {
  TaskNetwork task(job_of(worker(0)));
  look_for(task, kChief, testing::free_port(), milliseconds(100));
  EXPECT_EQ(next(task, Kind::kUnreachable).peer.from, kChief);
}

TEST(TaskNetwork, RefusesAnotherSecretAndTellsOthersWhy) {
  TaskNetwork chief(job_of(kChief));
  const auto refusal_of = [&](TaskJob job, TaskId to) {
    TaskNetwork task(std::move(job));
    look_for(task, to, chief.port());
    const TaskEvent event = next(task, Kind::kUnreachable);
    EXPECT_EQ(event.refusal, kDiffers) << event.text;
    return event.text;
  };
  TaskJob other = job_of(worker(0));
  other.secret = "another secret of it";
  EXPECT_NE(refusal_of(other, kChief).find("secret"), std::string::npos);
  other = job_of(worker(0));
  other.workers = 3;
  EXPECT_NE(refusal_of(other, kChief).find("has a number of workers of 3, and the chief has 2"), std::string::npos);
  EXPECT_NE(refusal_of(job_of(worker(0)), kServer).find("looked for server 0 where the chief is"), std::string::npos);
  EXPECT_NE(refusal_of(job_of(worker(2)), kChief).find("is no task that the chief waits for"), std::string::npos);
  other = job_of(worker(0));
  other.plaintext = true;
  EXPECT_NE(refusal_of(other, kChief).find("has encryption off"), std::string::npos);
}

TEST(TaskNetwork, AServerTakesWorkersOfItsRunAlone) {
  TaskNetwork server(job_of(kServer));
  server.set_run(7);
  const auto look = [&](uint64_t run) {
    TaskNetwork task(job_of(worker(0)));
    task.set_run(run);
    look_for(task, kServer, server.port());
    return task.next(Clock::now() + seconds(20))->kind;
  };
  EXPECT_EQ(look(8), Kind::kUnreachable);
  EXPECT_EQ(look(7), Kind::kConnected);
}

TEST(TaskNetwork, AWorkerThatComesAgainTakesThePlaceOfTheFirstOne) {
  TaskNetwork chief(job_of(kChief));
  TaskNetwork first(job_of(worker(0)));
  look_for(first, kChief, chief.port());
  next(chief, Kind::kConnected);
  TaskNetwork second(job_of(worker(0)));
  look_for(second, kChief, chief.port());
  next(first, Kind::kLost);
  next(chief, Kind::kLost);
  second.send(next(second, Kind::kConnected).link, "I am the second one");
  EXPECT_EQ(next(chief, Kind::kReceived).text, "I am the second one");
}

TEST(TaskNetwork, ASecondServerFindsItsPlaceTaken) {
  TaskNetwork chief(job_of(kChief));
  TaskNetwork first(job_of(kServer));
  look_for(first, kChief, chief.port());
  next(chief, Kind::kConnected);
  TaskNetwork second(job_of(kServer));
  look_for(second, kChief, chief.port());
  const TaskEvent event = next(second, Kind::kUnreachable);
  EXPECT_EQ(event.refusal, kTaken);
  EXPECT_NE(event.text.find("has joined already"), std::string::npos) << event.text;
}

TEST(TaskNetwork, ATaskThatEndsIsLostAtOnce) {
  TaskNetwork chief(job_of(kChief));
  std::optional<TaskNetwork> task(job_of(worker(0)));
  look_for(*task, kChief, chief.port());
  next(chief, Kind::kConnected);
  const auto before = Clock::now();
  task.reset();
  EXPECT_EQ(next(chief, Kind::kLost).peer.from, worker(0));
  EXPECT_LT(Clock::now() - before, seconds(2));
}

TEST(TaskNetwork, StopsWhoWaitsForTheNextEvent) {
  TaskNetwork chief(job_of(kChief));
  chief.stop();
  EXPECT_FALSE(chief.next(Clock::now() + std::chrono::hours(1)));
}

TEST(TaskHello, IsWhatItsBytesAre) {
  const TaskHello hello{.from = worker(3),
                        .to = kServer,
                        .workers = 4,
                        .servers = 2,
                        .plaintext = true,
                        .run = 9,
                        .process = 77,
                        .host = "b",
                        .address = "10.0.0.1",
                        .port = 4711};
  const std::string bytes = encode(hello);
  EXPECT_EQ(decode_task_hello(bytes), hello);
  EXPECT_EQ(hello.name(), "worker 3 (process 77 on host b)");
  for (std::size_t size = 0; size < bytes.size(); ++size) EXPECT_FALSE(decode_task_hello(bytes.substr(0, size)));
  EXPECT_FALSE(decode_task_hello(bytes + "x"));
}

ClusterSpec some_cluster() {
  ClusterSpec spec;
  spec.jobs = {{"chief", {"127.0.0.1:4711"}}, {"worker", {"", ""}}, {"ps", {"127.0.0.1:4712"}}};
  spec.job = "ps";
  return spec;
}

TEST(TaskPlace, FollowsTheCluster) {
  const TaskPlace place = place_of_task(some_cluster(), {});
  EXPECT_EQ(place.job.self, kServer);
  EXPECT_EQ(place.job.workers, 2);
  EXPECT_EQ(place.job.servers, 1);
  EXPECT_EQ(place.job.port, 4712);
  EXPECT_EQ(place.chief, std::vector<std::string>{"127.0.0.1"});
  EXPECT_EQ(place.chief_port, 4711);
  EXPECT_FALSE(place.job.plaintext);
  EXPECT_TRUE(place_of_task(some_cluster(), {.engine = "tcp"}).job.plaintext);
}

TEST(TaskPlace, RefusesWhatIsMissing) {
  using testing::expect_error;
  ClusterSpec spec = some_cluster();
  spec.jobs.erase("chief");
  expect_error<ClusterError>([&] { place_of_task(spec, {}); }, "LS-CLUSTER-INCOMPLETE", {"'chief'"});
  spec = some_cluster();
  spec.jobs["chief"] = {""};
  expect_error<ClusterError>([&] { place_of_task(spec, {}); }, "LS-CLUSTER-INCOMPLETE", {"the chief's address"});
  expect_error<UsageError>([&] { place_of_task(some_cluster(), {.engine = "mpi"}); }, "LS-OPTION", {"'mpi'"});
}

}  // namespace
}  // namespace lockstep::internal
