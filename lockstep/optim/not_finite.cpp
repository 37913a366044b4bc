#include "lockstep/optim/not_finite.h"

#include <cstring>
#include <map>
#include <set>
#include <utility>

namespace lockstep::internal {

namespace {

void append(std::string& bytes, uint64_t number) {
  bytes.append(reinterpret_cast<const char*>(&number), sizeof number);
}

bool take(std::string_view& bytes, uint64_t& number) {
  if (bytes.size() < sizeof number) return false;
  std::memcpy(&number, bytes.data(), sizeof number);
  bytes.remove_prefix(sizeof number);
  return true;
}

}  // namespace

std::string encode(const std::vector<NotFinite>& found) {
  std::string bytes;
  for (const NotFinite& one : found) {
    append(bytes, one.variable);
    append(bytes, one.in_sum ? 1 : 0);
    append(bytes, one.replicas.size());
    for (const uint64_t replica : one.replicas) append(bytes, replica);
  }
  return bytes;
}

std::vector<NotFinite> decode_not_finite(std::string_view bytes) {
  std::vector<NotFinite> found;
  uint64_t variable = 0;
  uint64_t in_sum = 0;
  uint64_t count = 0;
  while (take(bytes, variable) && take(bytes, in_sum) && take(bytes, count)) {
    NotFinite one{variable, {}, in_sum != 0};
    uint64_t replica = 0;
    for (; count > 0 && take(bytes, replica); --count) one.replicas.push_back(replica);
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

}  // namespace lockstep::internal
