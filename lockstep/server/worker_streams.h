// A stream of its own for each worker.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <utility>

#include "lockstep/data/batch.h"
#include "lockstep/data/distribute_options.h"
#include "lockstep/data/stream.h"

namespace lockstep {

class WorkerContext;

/// A handle that steps use. A step that is given to another worker takes the next batch of that worker's stream.
class WorkerStreams {
 public:
  /// The next batch of this worker's stream; in a step, on its thread. Throws EndOfStream at the end: a step that lets
  /// it pass is closed without an error, and the worker gets no more of these steps; where the streams of all workers
  /// have ended, schedule() throws it.
  Batch next(WorkerContext& context) const;

  /// For the library's own use.
  WorkerStreams(int64_t number, int64_t workers, std::function<data::Stream(const InputContext&)> make)
      : number_(number), workers_(workers), make_(std::move(make)) {}

 private:
  int64_t number_;
  int64_t workers_;
  std::function<data::Stream(const InputContext&)> make_;
};

}  // namespace lockstep
