// A trace: what each lane of each worker did in some steps, as a file that Perfetto (ui.perfetto.dev) opens.
#pragma once

#include <cstddef>
#include <memory>
#include <string>

namespace lockstep {

class Strategy;

struct TraceOptions {
  std::string file = {};         // written by the chief; it appears when it is whole
  std::size_t most = 1'000'000;  // slices kept of each worker, the first ones; a step of one lane has 5 to 50
};

/// Records from its construction to write(): for each lane when a replica's forward and backward pass ran, when the
/// lane waited for other lanes, workers or input, and each stage of a meeting (sums, updates, exchanges); for each
/// thread that reads ahead when it read. A process records one trace at a time.
///
///     lockstep::Trace trace(strategy, {.file = "trace.json"});
///     for (...) strategy.run(...);     // some steps: 20 are many to look at
///     trace.write();
///
/// What is recorded changes no bits. It costs some tens of nanoseconds a slice; without a trace, a load and a branch.
/// With several workers all of them make a trace and write it, at the same steps. Times of other hosts are those of the
/// chief's clock; the file says how far they may be off. Outside of steps, by one thread.
class Trace {
 public:
  /// A UsageError (LS-TRACE) without a file's name, and where this process records another trace. It keeps a reference
  /// to the strategy.
  Trace(Strategy& strategy, TraceOptions options);
  /// Without write() nothing is written.
  ~Trace();
  Trace(const Trace&) = delete;
  Trace& operator=(const Trace&) = delete;

  /// Ends the recording, brings what all workers have recorded to the chief, which writes the file. A DataError
  /// (LS-FILE) on all workers where it cannot be written; a UsageError (LS-TRACE) at a second call.
  void write();

 private:
  struct Recorded;
  Strategy& strategy_;
  const TraceOptions options_;
  const std::unique_ptr<Recorded> recorded_;
};

}  // namespace lockstep
