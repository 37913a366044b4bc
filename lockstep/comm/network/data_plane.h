// The data plane of a run: the calls that all workers make together, and what they put into each other's windows.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/comm/failure/call_wait.h"
#include "lockstep/comm/network/control.h"
#include "lockstep/comm/network/dissemination.h"
#include "lockstep/comm/network/join/members.h"
#include "lockstep/comm/network/run_state.h"
#include "lockstep/comm/network/wire/data_stream.h"
#include "lockstep/comm/timeouts.h"
#include "lockstep/comm/window_table.h"
#include "lockstep/comm/windows.h"
#include "lockstep/core/function_ref.h"
#include "lockstep/core/process/forks.h"

namespace lockstep::internal::inline comm {

/// This worker's side of the calls of a World. A call has two parts. In the first one the bytes travel: those of
/// exchange() from each worker to each other one; records too, or, with more than `most_direct` workers, in the rounds
/// of a Dissemination. Then this worker has *taken* the call, which all tell each other in the same way. It returns
/// when it knows that all have.
///
/// One thread at a time uses it, as World and Windows say.
class DataPlane final : public Windows {
 public:
  /// `members`, `state` and `control` outlive it.
  DataPlane(const std::vector<Member>& members, int64_t worker, std::vector<std::unique_ptr<DataStream>> streams,
            const WorkerTimeouts& timeouts, int64_t most_direct, NetworkRunState& state, Control& control);

  // See World.
  std::vector<std::string> agree(const std::string& mine);
  void exchange(std::span<const std::span<const std::byte>> to, std::span<const std::span<std::byte>> from);
  void abort(std::string_view reason) noexcept;

  /// From now on the channel carries what goes between this worker and the other one. Between calls.
  void carry(int64_t other, std::unique_ptr<Channel> channel);
  /// Whether the run has ended, as far as a call of this worker has found it.
  bool has_failed() const { return has_failed_; }

  // See Windows.
  uint64_t unused() const override { return windows_.unused(); }
  void open(uint64_t window, std::vector<std::span<std::byte>> memory, std::shared_ptr<void> owner) override;
  void close(uint64_t window) noexcept override { windows_.close(window); }
  void put(uint64_t window, int64_t worker, std::size_t offset, Bytes bytes) override;
  void progress() noexcept override;
  uint64_t arrived(uint64_t window, int64_t worker) const override { return windows_.arrived(window, worker); }

 private:
  /// What this worker waits for: streams on which something moves. Of two in a round, one brings and one takes.
  struct Wait {
    std::span<DataStream* const> streams;
    bool is_round = false;
  };
  /// Who keeps this worker waiting. They have come to the call or not.
  struct Missing {
    std::vector<int64_t> workers;
    bool have_come = false;
  };

  void call(FunctionRef<bool()> move);
  bool gather(const std::string& mine, std::vector<std::string>& all);
  bool tell_taken();
  void begin_with_all();
  DataStream& stream(int64_t worker) { return *streams_[static_cast<std::size_t>(worker)]; }
  bool wait_for(const Wait& wait);
  bool advance(DataStream& stream, bool& has_more);
  bool sleep(const Wait& wait, CallWait::Clock::duration longest);
  bool give_up(const Wait& wait, const CallWait& time);
  std::optional<std::chrono::milliseconds> limit_of_work(const Wait& wait) const;
  void tell_for_whom_it_waits(const Wait& wait);
  Missing who_is_missing(const Wait& wait) const;
  std::string missing_text(const Missing& missing) const;
  void wait_for_end();
  void throw_if_ended(uint64_t call);
  CallWait::Clock::duration longest_spin() const;

  const ProcessMark process_;
  const std::vector<Member>& members_;
  const int64_t worker_;
  const WorkerTimeouts timeouts_;
  const CallWait::Clock::duration spin_;  // before it sleeps
  const Dissemination dissemination_;
  const bool relays_;  // records go in rounds
  NetworkRunState& state_;
  Control& control_;
  WindowTable windows_;
  std::vector<std::unique_ptr<DataStream>> streams_;  // by worker; null for this one
  std::vector<DataStream*> others_;                   // all of them
  std::vector<DataStream*> with_puts_;                // what was put may not be on its way yet
  std::vector<uint64_t> bytes_read_;                  // by worker, when this one told last for whom it waits
  uint64_t calls_ = 0;
  bool is_in_call_ = false;  // or the last one has failed: streams still refer to memory of its caller
  std::atomic<bool> has_failed_ = false;
  std::vector<pollfd> files_;  // of sleep(), kept so that a call allocates nothing
};

}  // namespace lockstep::internal::comm
