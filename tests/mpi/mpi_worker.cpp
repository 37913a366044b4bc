// A worker that mpirun starts for the tests beside this file: it joins by the engine mpi, and either runs a check of
// the conformance suite together with the other ranks, or makes calls until one fails.
//
//   mpi_worker PAGE check NAME FIRST_JOB
//   mpi_worker PAGE calls KIND HOW CULPRIT LOST_MS JOIN_MS
#include <sys/prctl.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdlib>
#include <iostream>
#include <memory>
#include <span>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "lockstep/cluster/resolve_cluster.h"
#include "lockstep/comm/join/join.h"
#include "lockstep/core/error.h"
#include "lockstep/testing/worlds/world_job.h"
#include "tests/mpi/shared_page.h"

namespace lockstep {
namespace {

using internal::WorldCheck;
using std::chrono::milliseconds;
using testing::SharedPage;
using testing::WorkerPlace;

/// Bounds what waits for the other ranks at the end: one that is gone says nothing.
constexpr std::chrono::seconds kLongestEnd(20);

/// Where a rank ends, mpirun may end the others: all say first what they have to say.
void wait_for_others(const SharedPage& page, int64_t workers) {
  const auto end = std::chrono::steady_clock::now() + kLongestEnd;
  const auto all = std::span(page.workers).first(static_cast<std::size_t>(workers));
  while (!std::all_of(all.begin(), all.end(), [](const WorkerPlace& one) { return one.has_said(); })) {
    if (std::chrono::steady_clock::now() > end) return;
    std::this_thread::sleep_for(milliseconds(1));
  }
}

/// "passed", "job 7" where it goes on in new processes from there, "skipped: why" or "failed: why".
std::string outcome_of(const std::string& name, int64_t first_job, const ClusterSpec& cluster, SharedPage& page) {
  const auto checks = internal::all_world_checks();
  const auto check =
      std::find_if(checks.begin(), checks.end(), [&](const WorldCheck& one) { return one.name == name; });
  if (check == checks.end()) return "failed: there is no check " + name;
  const auto make = [&](milliseconds patience) {
    return join(cluster, {.engine = "mpi", .timeouts = {.join = std::chrono::seconds(60), .patience = patience}});
  };
  const auto process =
      std::make_shared<internal::OwnProcess>(internal::OwnProcess::Setup{.index = cluster.worker_index(),
                                                                         .processes = cluster.num_workers(),
                                                                         .make = make,
                                                                         .numbers = page.numbers,
                                                                         .first_job = first_job});
  try {
    internal::run_world_check({.conformance = std::make_shared<testing::WorldConformance>(),
                               .workers = cluster.num_workers(),
                               .process = process},
                              *check);
    return "passed";
  } catch (const internal::NeedsNewProcesses& needs) {
    return "job " + std::to_string(needs.job());
  } catch (const internal::NotInThisProcess& why) {
    return std::string("skipped: ") + why.what();
  } catch (const std::exception& error) {
    process->note_failed_check();
    return std::string("failed: ") + error.what();
  }
}

/// Why no call is made any more. The culprit does what it is told after its tenth call.
std::string end_of_calls(std::span<char*> words, const ClusterSpec& cluster, WorkerPlace& place) {
  const std::string kind = words[0];
  const std::string how = words[1];
  const bool is_culprit = std::stoll(words[2]) == cluster.worker_index();
  const WorkerTimeouts timeouts{.join = milliseconds(std::stoll(words[4])), .lost = milliseconds(std::stoll(words[3]))};
  auto world = join(cluster, {.engine = "mpi", .timeouts = timeouts});
  const auto count = static_cast<std::size_t>(world->num_workers());
  const std::vector<std::vector<std::byte>> sent(count, std::vector<std::byte>(2'000'003));
  std::vector<std::vector<std::byte>> got = sent;
  const std::vector<std::span<const std::byte>> to(sent.begin(), sent.end());
  const std::vector<std::span<std::byte>> from(got.begin(), got.end());
  try {
    while (true) {
      if (kind == "exchange") {
        world->exchange(to, from);
      } else {
        world->agree("again");
      }
      if (++place.calls < 10 || !is_culprit) continue;
      // The test ends it while the others wait for it.
      if (kind == "wait") std::this_thread::sleep_for(std::chrono::hours(1));
      if (how == "kill" || how == "stop") continue;  // the test does it at any moment
      place.say("does it");
      if (how == "exit") std::exit(0);
      if (how == "abort") world->abort("its data ended");
      if (how == "throw") {
        const std::shared_ptr<World> held = std::move(world);
        throw std::runtime_error("its own mistake");
      }
    }
  } catch (const PeerError& error) {
    return error.what();
  }
}

void run(std::span<char*> words) {
  SharedPage& page = SharedPage::at(words[1]);
  const ClusterSpec cluster = resolve_cluster();
  WorkerPlace& place = page.workers.at(static_cast<std::size_t>(cluster.worker_index()));
  place.pid = getpid();
  const std::string what = words[2];
  if (what == "check") {
    place.say(outcome_of(words[3], std::stoll(words[4]), cluster, page));
    wait_for_others(page, cluster.num_workers());
  } else {
    try {
      place.say(end_of_calls(words.subspan(3), cluster, place));
    } catch (const Error& error) {
      place.say(error.what());
      throw;
    }
  }
}

}  // namespace
}  // namespace lockstep

int main(int argc, char** argv) try {
  prctl(PR_SET_PDEATHSIG, SIGKILL);  // where the test is killed, and mpirun with it
  std::signal(SIGUSR1, SIG_IGN);     // by which MPICH's launcher tells ranks that one has died; they would die of it
  if (argc < 5) throw std::invalid_argument("mpi_worker is started by its tests");
  lockstep::run(std::span(argv, static_cast<std::size_t>(argc)));
  return 0;
} catch (const std::exception& error) {
  std::cerr << error.what() << std::endl;
  return 3;
}
