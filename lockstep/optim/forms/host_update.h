// An update that all workers of a host share: each updates a part of one copy of everything.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "lockstep/exchange/host_gradients.h"
#include "lockstep/exchange/hosts.h"
#include "lockstep/optim/forms/asked_form.h"
#include "lockstep/optim/fused_update.h"

namespace lockstep::internal::inline replica {
class ReplicaGroup;
}  // namespace lockstep::internal::replica

namespace lockstep::internal::inline optim {

/// An update that the workers of each host share. Weights with their checksums, and slots, lie in memory that all
/// workers map, each in two halves. In a step each worker updates its share of the blocks: it reads the one half, and
/// writes the other. Then all vote, and where all have done their share, each lets its tensors point to the other half.
/// So a step is applied whole or not at all, wherever a worker is killed, and the others all have the values of one
/// step. With several hosts each has its own copy, and gradients travel between them (host_gradients.h).
///
/// Each function is called on every worker, in the order below, on one thread, while all replicas are at rest;
/// move() is called by each lane for its share.
class HostUpdate {
 public:
  /// Agrees with all workers whether the optimizer `name` of these variables has this form. Null where it has not;
  /// `why_not` then says why. Every worker gets the same. On all workers a ClusterError (LS-CLUSTER-MEMORY) where one
  /// gets no memory, a UsageError where they ask for different forms, and one (LS-UPDATE-FORM) where they ask for host
  /// memory and cannot have it.
  static std::unique_ptr<HostUpdate> agree(const ReplicaGroup& group, const std::vector<UpdateTarget>& targets,
                                           const std::string& name, const AskedForm& asked, std::string& why_not);

  /// Of this worker, among those of its host's workers.
  LaneRange lanes() const { return lanes_; }
  /// A place for each block, in the memory of this host.
  std::span<double> squares() const { return squares_; }

  HostGradients& gradients() { return gradients_; }
  const Hosts& hosts() const { return hosts_; }

  /// `present[i]` says whether the step updates target i, the same on all workers. Throws on all workers a
  /// DivergenceError where values that are not in the memory of a host yet differ between workers.
  void begin_step(const std::vector<char>& present);
  /// Tells all workers that this one has done its share. Throws on all of them, so that none moves: the DivergenceError
  /// of a foreign write that `update` has found on any worker; a PeerError where a worker has failed.
  void vote(FusedUpdate& update) const;
  /// From now on the new values are the values.
  void move(const FusedUpdate& update, int lane, int num_lanes) const noexcept;

 private:
  HostUpdate(const ReplicaGroup& group, const std::vector<UpdateTarget>& targets, std::string name, Hosts hosts,
             LaneRange lanes);
  void make_room();

  const ReplicaGroup& group_;
  const std::vector<UpdateTarget> targets_;
  const std::string name_;
  const Hosts hosts_;
  const LaneRange lanes_;
  std::shared_ptr<std::byte> slots_memory_;  // of slots and squares
  std::span<double> squares_;
  HostGradients gradients_;
};

}  // namespace lockstep::internal::optim
