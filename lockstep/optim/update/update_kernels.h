// The arithmetic of an update on the memory that holds variables: what a device's plug-in brings, and what the host
// has.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "lockstep/core/function_ref.h"
#include "lockstep/gradient/gradient_table.h"
#include "lockstep/optim/loops/clip.h"
#include "lockstep/optim/update/bound_update.h"

namespace lockstep::internal::inline optim {

/// What a lane's pass over its blocks reads beside their memory.
struct UpdatePass {
  const GradientTable& gradients;
  Clip clip = {};
  bool is_measured = false;  // the squares of this step are there, and other workers may be reading them
};

/// Where the new weights of a block go that begins at this byte of a target; there is room for them.
using PlaceOfBlock = FunctionRef<char*(std::size_t target, int64_t offset)>;

/// Memory for a call of a rule of the program's own: elements in the order of their variable's memory, float64 for
/// float64 and otherwise float32. `weights` and `slots` have all elements of the variable.
struct RuleMemory {
  void* gradient;  // of the elements that the call is for
  void* weights;
  std::span<void* const> slots;
};

/// The kernels of one plan, with the memory that its lanes need. They execute the plan of the BoundUpdate that they
/// were made for, with the bits of the loops in loops/. Lanes of this process, counted from 0, call side by side.
///
/// A call is for all blocks of a lane, or for a range of them: how a memory works through them is its own business. A
/// pass writes the squares of its blocks unless they are measured. One that writes new values compares the checksums of
/// all copies, keeps those of what it wrote, and notes foreign writes.
class UpdateKernels {
 public:
  virtual ~UpdateKernels() = default;

  // While all replicas are at rest: gets the memory that later calls then need not get.

  /// Gradients of target i, a matrix, are made from factors.
  virtual void expect_factors(const BoundUpdate& update, std::size_t i, int64_t rows, int64_t columns) = 0;
  /// Clip::limits() will hold.
  virtual void expect_limit() = 0;

  /// Writes squares, and nothing else.
  virtual void measure(BoundUpdate& update, const GradientTable& gradients, int lane) = 0;
  /// Writes new weights and slots, except of targets with rules of their own.
  virtual void update(BoundUpdate& update, const UpdatePass& pass, int lane) = 0;
  /// Does what update() does, but changes no value, slot or checksum: new weights go to `place`.
  virtual void prepare(BoundUpdate& update, const UpdatePass& pass, int lane, PlaceOfBlock place) = 0;

  // For rules of the program's own, of which a call is for some of the lane's blocks of one target.

  /// Before a lane's first load() of a pass.
  virtual void begin_loads(int lane) = 0;
  /// Writes what a rule reads: the clipped sum of these blocks, and their weights and slots. Writes squares.
  virtual void load(BoundUpdate& update, const UpdatePass& pass, int lane, const BlockRange& blocks,
                    const RuleMemory& memory) = 0;
  /// Writes what the rule has left of these blocks over weights and slots; or, where there is a `place`, the weights
  /// alone to there, as prepare() does.
  virtual void store(BoundUpdate& update, int lane, const BlockRange& blocks, const RuleMemory& memory,
                     const PlaceOfBlock* place) = 0;
};

/// Those of the host's memory: loops on the calling thread.
std::unique_ptr<UpdateKernels> host_update_kernels(const BoundUpdate& update);

}  // namespace lockstep::internal::optim
