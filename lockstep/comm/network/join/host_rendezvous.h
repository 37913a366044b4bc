// How workers of one host, which have met over a network, come to share memory: a ring in each direction for every
// pair, and host memory that all of them map.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/comm/host_memory.h"
#include "lockstep/comm/network/join/members.h"
#include "lockstep/comm/network/wire/memory_channel.h"
#include "lockstep/comm/shared_memory/shared_memory.h"
#include "lockstep/core/function_ref.h"
#include "lockstep/core/process/file_descriptor.h"

namespace lockstep::internal::inline comm {

/// Whether some of the workers share a host, and not all of them.
bool is_mixed(const std::vector<Member>& members);

/// One worker's part. Each goes to the local sockets of those before it, and gives memory to those that come after it.
/// Both sides refuse processes of other users, and prove by an HMAC that they know a key that the workers of this run
/// have and nobody else. The sockets have no files; nobody can guess their names before they are there. The first
/// worker of a host gives the host memory to the others, beside the memory of the pair.
///
/// It consists of steps. All workers of the run make one before any of them makes the next: so nobody waits, and nobody
/// who does not belong can make them wait. A step does not throw: it notes why two workers cannot share memory.
class HostRendezvous {
 public:
  /// Waits at this worker's place from now on. `members` are all workers of the run, by worker;
  /// they outlive this object.
  HostRendezvous(const std::vector<Member>& members, int64_t self, const std::string& key);

  void go_to_others();  // to the places of those before this worker
  void give_memory();   // to those that have come
  void take_memory();   // from those before this worker

  /// What this worker tells the others at the end.
  std::string outcome() const;
  /// The channel with another worker; null where `outcomes`, of all workers, say that one of both has no memory. To be
  /// called once for each.
  std::unique_ptr<MemoryChannel> channel(int64_t other, const std::vector<std::string>& outcomes);
  /// The memory of this host, as HostMemory says. Null on all workers where `outcomes` say that one of them has none.
  /// To be called once.
  std::unique_ptr<HostMemory> host_memory(const std::vector<std::string>& outcomes);
  /// Why it is null, in the words of one worker that has none; empty where it is not.
  std::string missing_host_memory(const std::vector<std::string>& outcomes) const;
  /// One line that says with whom this worker shares no memory though it is on the same host; empty where there is
  /// nobody. `outcomes` as before.
  std::string missing(const std::vector<std::string>& outcomes) const;

 private:
  struct Other {
    FileDescriptor connection = {};
    std::unique_ptr<MemoryChannel> channel = {};
    std::string problem = "it did not come";
  };
  /// Does a part for one other worker; an error becomes its problem.
  template <class Part>
  void attempt(Other& other, const Part& part);
  void welcome(FileDescriptor connection);
  /// Whether this worker makes the host memory, which the others of its host get from it.
  bool is_first() const { return others_.empty() || self_ < others_.begin()->first; }
  void make_host_memory();
  std::vector<int64_t> workers_of_host() const;
  void give_host_memory(const FileDescriptor& connection, int64_t worker) const;
  void take_host_memory(const FileDescriptor& connection, int64_t worker);
  /// Why both have no memory by what this worker and the other one say; empty where they have.
  static std::string problem_of(int64_t self, int64_t other, const std::vector<std::string>& outcomes);

  const std::vector<Member>& members_;
  const int64_t self_;
  const std::string key_;
  std::map<int64_t, Other> others_;  // of this host, by worker
  std::size_t ring_size_ = 0;
  std::optional<SharedMemory> beginning_;  // of the file of the host memory; only on the first worker
  std::unique_ptr<HostMemory> host_memory_;
  std::string no_host_memory_ = "the first worker of its host gave it none";
  FileDescriptor listener_;
};

/// What a worker has in common with the others of its host when all have met.
struct SharedOnHost {
  std::vector<std::unique_ptr<MemoryChannel>> channels = {};  // by worker; null where both have no memory
  std::unique_ptr<HostMemory> host_memory = nullptr;          // null on all workers, or on none
  std::string description = {};                               // what World::describe() says of it, behind the rest
  std::vector<std::string> warnings = {};
};

/// Makes all steps of a HostRendezvous. `agree` is a call of all workers of the run, and returns their records.
SharedOnHost share_on_host(const std::vector<Member>& members, int64_t self, const std::string& key,
                           FunctionRef<std::vector<std::string>(const std::string&)> agree);

}  // namespace lockstep::internal::comm
