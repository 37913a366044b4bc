#include "lockstep/gradient/not_finite.h"

#include <map>
#include <set>
#include <utility>

#include "lockstep/core/bytes.h"

namespace lockstep::internal::inline gradient {

std::string encode(const std::vector<NotFinite>& found) {
  std::string bytes;
  ByteWriter to(bytes);
  for (const NotFinite& one : found) {
    to.put(one.variable);
    to.put<uint64_t>(one.in_sum ? 1 : 0);
    to.put_list(one.replicas);
  }
  return bytes;
}

std::vector<NotFinite> decode_not_finite(std::string_view bytes) {
  ByteReader reader(bytes);
  std::vector<NotFinite> found;
  uint64_t variable = 0;
  uint64_t in_sum = 0;
  uint64_t count = 0;
  while (reader.get(variable) && reader.get(in_sum) && reader.get(count)) {
    NotFinite one{variable, {}, in_sum != 0};
    uint64_t replica = 0;
    for (; count > 0 && reader.get(replica); --count) one.replicas.push_back(replica);
    found.push_back(std::move(one));
  }
  return found;
}

std::vector<NotFinite> join(const std::vector<std::vector<NotFinite>>& by_worker) {
  std::map<uint64_t, std::set<uint64_t>> replicas;
  for (const auto& found : by_worker) {
    for (const NotFinite& one : found) replicas[one.variable].insert(one.replicas.begin(), one.replicas.end());
  }
  std::vector<NotFinite> all;
  for (const auto& [variable, ids] : replicas) all.push_back({variable, {ids.begin(), ids.end()}, ids.empty()});
  return all;
}

}  // namespace lockstep::internal::gradient
