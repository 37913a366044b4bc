#include "lockstep/comm/failure/exits.h"

#include <cstdlib>
#include <map>
#include <mutex>
#include <utility>

#include "lockstep/core/process/forks.h"

namespace lockstep::internal::inline comm {

namespace {

class Exits {
 public:
  static Exits& all() {
    static auto* const exits = [] {
      auto* const made = new Exits;  // never destroyed: a World may outlive all static objects
      std::atexit([] { Exits::all().run(); });
      return made;
    }();
    return *exits;
  }
  void add(const void* world, std::function<void()> leave) {
    const std::lock_guard<std::mutex> lock(mutex_);
    entries_.try_emplace(world, Entry{.process = {}, .leave = std::move(leave)});
  }
  void remove(const void* world) {
    const std::lock_guard<std::mutex> lock(mutex_);
    entries_.erase(world);
  }

 private:
  struct Entry {
    ProcessMark process;
    std::function<void()> leave;
  };

  void run() {
    const std::lock_guard<std::mutex> lock(mutex_);
    for (const auto& [world, entry] : entries_) {
      if (!entry.process.is_in_child()) entry.leave();
    }
  }

  std::mutex mutex_;
  std::map<const void*, Entry> entries_;  // guarded by mutex_
};

}  // namespace

void at_exit(const void* world, std::function<void()> leave) { Exits::all().add(world, std::move(leave)); }
void forget_at_exit(const void* world) { Exits::all().remove(world); }

}  // namespace lockstep::internal::comm
