#include "tools/bench/pinned_threads.h"

#include <pthread.h>
#include <sched.h>

#include <barrier>
#include <chrono>
#include <thread>

#include "lockstep/replica/pool/compute_settings.h"
#include "lockstep/replica/pool/lanes.h"

namespace lockstep::tools {

namespace {

void pin_this_thread(int index) {
  const std::vector<int> cores = internal::cores_of_this_process();
  if (cores.empty()) return;
  cpu_set_t set;
  CPU_ZERO(&set);
  CPU_SET(static_cast<std::size_t>(cores[static_cast<std::size_t>(index) % cores.size()]), &set);
  pthread_setaffinity_np(pthread_self(), sizeof set, &set);
}

}  // namespace

Timing measure_on_threads(int threads, const std::function<void(int, int64_t)>& work, const TimingOptions& options) {
  const internal::ComputeSettingsGuard one({});  // for libraries whose number is the process's
  std::barrier<> meet(threads + 1);
  int64_t calls = 0;  // 0: end
  std::vector<std::thread> team;
  for (int t = 0; t < threads; ++t) {
    team.emplace_back([&, t] {
      pin_this_thread(t);
      internal::set_compute_settings_of_this_thread({});
      while (true) {
        meet.arrive_and_wait();
        if (calls == 0) return;
        meet.arrive_and_wait();  // all are awake
        work(t, calls);
        meet.arrive_and_wait();
      }
    });
  }
  const auto seconds_of = [&](int64_t wanted) {
    calls = wanted;
    meet.arrive_and_wait();
    meet.arrive_and_wait();
    const auto start = std::chrono::steady_clock::now();
    meet.arrive_and_wait();
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  };
  const Timing timing = measure_seconds(seconds_of, options);
  calls = 0;
  meet.arrive_and_wait();
  for (std::thread& thread : team) thread.join();
  return timing;
}

}  // namespace lockstep::tools
