#include "lockstep/server/worker_streams.h"

#include <fmt/format.h>

#include "lockstep/core/error.h"
#include "lockstep/server/local/worker_task.h"

namespace lockstep {

Batch WorkerStreams::next(WorkerContext& context) const {
  const auto make = [&] {
    return make_({.num_input_pipelines = workers_,
                  .input_pipeline_id = context.worker_index(),
                  .num_replicas_in_sync = workers_,
                  .num_local_replicas = 1,
                  .first_replica = context.worker_index()});
  };
  context.take_own_stream();
  Batch batch;
  internal::WorkerTask& task = context.task();
  data::StreamReader& reader = task.reader_of(number_, make);
  if (!reader.next(batch)) {
    task.shared().places.ended(number_, task.index());
    throw EndOfStream("LS-END-OF-STREAM", fmt::format("the stream of worker {} has ended", context.worker_index()),
                      "let the step end by this error: the worker then gets no more of these steps");
  }
  task.shared().places.took(number_, task.index(), context.step(), reader.position());
  batch.global_size = batch.size() - batch.padding;
  context.note_batch(batch);
  return batch;
}

}  // namespace lockstep
