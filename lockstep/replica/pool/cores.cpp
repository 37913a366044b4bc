#include "lockstep/replica/pool/cores.h"

#include <dlfcn.h>
#include <pthread.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <map>
#include <mutex>
#include <set>
#include <utility>

#include "lockstep/core/process/control_group.h"

namespace lockstep::internal::inline replica {

namespace {

/// What strategies of this process have done to cores. Never destroyed: static strategies end while the process ends.
struct Record {
  std::mutex mutex;
  // Guarded by mutex.
  std::map<pid_t, cpu_set_t> wide;  // for each thread that is narrowed now, its affinity before
  std::map<int, int> holders;       // for each core, how many lanes are pinned to it

  static Record& of_this_process() {
    static Record& record = *new Record;
    return record;
  }

 private:
  Record() {
    // A child that is forked while another thread holds the lock would find it locked for ever.
    const auto unlock = [] { of_this_process().mutex.unlock(); };
    pthread_atfork([] { of_this_process().mutex.lock(); }, unlock, unlock);
  }
};

std::vector<int> cores_in(const cpu_set_t& mask) {
  std::vector<int> cores;
  for (int core = 0; core < CPU_SETSIZE; ++core) {
    if (CPU_ISSET(core, &mask)) cores.push_back(core);
  }
  return cores;
}

/// The cores of the main thread, whose mask is the process's: the calling thread may be pinned.
std::vector<int> mask_of_main_thread() {
  Record& record = Record::of_this_process();
  {
    const std::lock_guard<std::mutex> lock(record.mutex);
    const auto wide = record.wide.find(getpid());
    if (wide != record.wide.end()) return cores_in(wide->second);
  }
  cpu_set_t mask;
  CPU_ZERO(&mask);
  if (sched_getaffinity(getpid(), sizeof mask, &mask) != 0) return {};
  return cores_in(mask);
}

/// The places of the OpenMP library that is loaded; empty where it has none, or where there is no OpenMP.
std::vector<std::vector<int>> places_of_openmp() {
  const auto count = reinterpret_cast<int (*)()>(dlsym(RTLD_DEFAULT, "omp_get_num_places"));
  const auto size = reinterpret_cast<int (*)(int)>(dlsym(RTLD_DEFAULT, "omp_get_place_num_procs"));
  const auto get = reinterpret_cast<void (*)(int, int*)>(dlsym(RTLD_DEFAULT, "omp_get_place_proc_ids"));
  std::vector<std::vector<int>> places;
  if (count == nullptr || size == nullptr || get == nullptr) return places;
  for (int place = 0; place < count(); ++place) {
    std::vector<int>& cores = places.emplace_back(static_cast<std::size_t>(std::max(size(place), 0)));
    if (!cores.empty()) get(place, cores.data());
    std::sort(cores.begin(), cores.end());
  }
  return places;
}

/// The index of the first core among those that the fewest lanes are pinned to.
int64_t first_core_for_a_strategy(const std::vector<int>& cores) {
  Record& record = Record::of_this_process();
  const std::lock_guard<std::mutex> lock(record.mutex);
  const auto holders = [&](int core) {
    const auto found = record.holders.find(core);
    return found == record.holders.end() ? 0 : found->second;
  };
  const auto first =
      std::min_element(cores.begin(), cores.end(), [&](int a, int b) { return holders(a) < holders(b); });
  return first - cores.begin();
}

}  // namespace

std::vector<int> cores_without_binding(std::vector<int> mask, const std::vector<std::vector<int>>& places) {
  if (places.empty() || mask != places.front()) return mask;
  std::set<int> all;
  for (const std::vector<int>& place : places) all.insert(place.begin(), place.end());
  return {all.begin(), all.end()};
}

std::vector<int> cores_of_this_process() {
  std::vector<int> cores = cores_without_binding(mask_of_main_thread(), places_of_openmp());
  if (cores.empty()) cores.push_back(0);
  return cores;
}

std::optional<int64_t> cpu_quota(const std::string& root) {
  std::optional<int64_t> smallest;
  for_each_control_group(root, "cpu", [&](const std::string& folder, bool unified) {
    int64_t quota = 0;
    int64_t period = 0;
    if (unified) {
      std::ifstream file(folder + "/cpu.max");  // "max 100000" where there is none
      if (!(file >> quota >> period)) return;
    } else {
      std::ifstream(folder + "/cpu.cfs_quota_us") >> quota;  // -1 where there is none
      std::ifstream(folder + "/cpu.cfs_period_us") >> period;
    }
    if (quota <= 0 || period <= 0) return;
    const int64_t cores = quota / period + (quota % period > 0 ? 1 : 0);
    smallest = std::min(smallest.value_or(cores), cores);
  });
  return smallest;
}

Host this_host() {
  Host host{.cores = cores_of_this_process()};
  host.cpu_quota = cpu_quota().value_or(0);
  host.first_core = first_core_for_a_strategy(host.cores);
  return host;
}

WideAffinity::WideAffinity(const cpu_set_t& before) {
  Record& record = Record::of_this_process();
  const std::lock_guard<std::mutex> lock(record.mutex);
  first_ = record.wide.emplace(gettid(), before).second;
}

WideAffinity::~WideAffinity() {
  if (!first_) return;
  Record& record = Record::of_this_process();
  const std::lock_guard<std::mutex> lock(record.mutex);
  record.wide.erase(gettid());
}

CoreHold::CoreHold(std::vector<std::vector<int>> cores) : cores_(std::move(cores)) {
  Record& record = Record::of_this_process();
  const std::lock_guard<std::mutex> lock(record.mutex);
  for (const std::vector<int>& lane : cores_) {
    for (const int core : lane) ++record.holders[core];
  }
}

CoreHold::~CoreHold() {
  Record& record = Record::of_this_process();
  const std::lock_guard<std::mutex> lock(record.mutex);
  for (const std::vector<int>& lane : cores_) {
    for (const int core : lane) --record.holders[core];
  }
}

bool set_affinity_of_this_thread(const std::vector<int>& cores) {
  cpu_set_t mask;
  CPU_ZERO(&mask);
  for (const int core : cores) CPU_SET(core, &mask);
  return sched_setaffinity(0, sizeof mask, &mask) == 0;
}

}  // namespace lockstep::internal::replica
