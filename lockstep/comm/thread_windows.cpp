#include "lockstep/comm/thread_windows.h"

#include <cstring>

#include "lockstep/comm/window_table.h"

namespace lockstep::internal::inline comm {

std::string ThreadPuts::bring(int64_t to, WindowTable& windows) {
  std::vector<Put> all;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    all.swap(to_[static_cast<std::size_t>(to)]);
  }
  for (const Put& put : all) {
    const auto bytes = put.bytes.bytes;
    const WindowTable::Place place = windows.place_of(put.window, put.from, put.offset, bytes.size());
    if (!place.fits) return objection_to_put(put.from, to, put.offset, bytes.size());
    if (!place.owner) continue;
    if (!bytes.empty()) std::memcpy(place.memory.data(), bytes.data(), bytes.size());
    windows.count(put.window, put.from);
  }
  return {};
}

}  // namespace lockstep::internal::comm
