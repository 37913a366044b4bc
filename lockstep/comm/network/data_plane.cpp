#include "lockstep/comm/network/data_plane.h"

#include <fmt/format.h>
#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <ctime>
#include <new>
#include <utility>

#include "lockstep/comm/failure/run_failure.h"
#include "lockstep/comm/message.h"
#include "lockstep/comm/service_thread.h"
#include "lockstep/comm/world.h"
#include "lockstep/core/log.h"

namespace lockstep::internal::inline comm {

namespace {

using std::chrono::milliseconds;
using Kind = MessageHead::Kind;
using Noticed = PeerError::Noticed;

/// Whether nothing moves any more on a stream that this worker waits for.
bool is_done(const DataStream& stream) { return stream.has_received() && stream.is_taken() && stream.has_sent(); }

}  // namespace

DataPlane::DataPlane(const std::vector<Member>& members, int64_t worker,
                     std::vector<std::unique_ptr<DataStream>> streams, const WorkerTimeouts& timeouts,
                     int64_t most_direct, NetworkRunState& state, Control& control)
    : members_(members),
      worker_(worker),
      timeouts_(timeouts),
      spin_(longest_spin()),
      dissemination_(static_cast<int64_t>(members.size()), worker),
      relays_(static_cast<int64_t>(members.size()) > most_direct),
      state_(state),
      control_(control),
      streams_(std::move(streams)) {
  for (const auto& one : streams_) {
    if (!one) continue;
    one->set_windows(&windows_);
    others_.push_back(one.get());
  }
}

void DataPlane::carry(int64_t other, std::unique_ptr<Channel> channel) {
  auto& place = streams_[static_cast<std::size_t>(other)];
  auto next = std::make_unique<DataStream>(worker_, other, std::move(channel));
  next->set_windows(&windows_);
  std::replace(others_.begin(), others_.end(), place.get(), next.get());
  place = std::move(next);
}

void DataPlane::abort(std::string_view reason) noexcept try {
  has_failed_ = true;
  state_.freeze();  // a call of this worker that begins now fails
  control_.notice(fmt::format("worker {} aborted the run: {}", worker_, reason), worker_, Noticed::kAborted);
} catch (const std::exception&) {  // no memory for the text
  control_.notice_no_memory();
}

std::vector<std::string> DataPlane::agree(const std::string& mine) {
  require_record_size(mine.size());
  std::vector<std::string> all;
  call([&] {
    if (relays_) return gather(mine, all);
    all.resize(members_.size());
    all[static_cast<std::size_t>(worker_)] = mine;
    begin_with_all();
    for (DataStream* const one : others_) {
      one->send(Kind::kRecord, std::as_bytes(std::span(mine)));
      one->expect(all[static_cast<std::size_t>(one->other())]);
    }
    return wait_for({others_});
  });
  return all;
}

void DataPlane::exchange(std::span<const std::span<const std::byte>> to, std::span<const std::span<std::byte>> from) {
  call([&] {
    begin_with_all();
    for (DataStream* const one : others_) {
      const auto w = static_cast<std::size_t>(one->other());
      one->send(Kind::kBytes, to[w]);
      one->expect(from[w]);
    }
    return wait_for({others_});
  });
}

void DataPlane::begin_with_all() {
  for (DataStream* const one : others_) one->begin(calls_);
  with_puts_.clear();  // what was put goes out before what all send now
}

/// One call in which all workers take part; `move` moves its bytes, and is false where the run has ended before.
void DataPlane::call(FunctionRef<bool()> move) {
  if (process_.is_in_child()) process_.throw_forked("worker", worker_, worker_);
  throw_if_ended(calls_ + 1);
  is_in_call_ = true;
  std::erase_if(with_puts_, [](const DataStream* one) { return !one->has_puts(); });
  try {
    if (state_.begin(++calls_) && move() && state_.take(calls_) && tell_taken() && state_.finish(calls_)) {
      is_in_call_ = false;
      return;
    }
  } catch (const std::bad_alloc&) {
    control_.notice_no_memory();
    wait_for_end();
    throw;
  }
  wait_for_end();
  throw_if_ended(calls_);
}

/// The records of all, in rounds.
bool DataPlane::gather(const std::string& mine, std::vector<std::string>& all) {
  GatheredRecords gathered(static_cast<int64_t>(members_.size()), worker_, mine);
  for (const int64_t w : dissemination_.partners()) stream(w).begin(calls_);
  for (int round = 0; round < dissemination_.num_rounds(); ++round) {
    const int64_t count = dissemination_.count(round);
    const std::string sent = gathered.message(count);
    std::string received;
    const std::array<DataStream*, 2> both{&stream(dissemination_.to(round)), &stream(dissemination_.from(round))};
    both[0]->send(Kind::kRecord, std::as_bytes(std::span(sent)));
    both[1]->expect(received, GatheredRecords::longest_message(count, kLongestRecord));
    if (!wait_for({.streams = both, .is_round = true})) return false;
    if (gathered.add(received, count)) continue;
    control_.notice(objection_to({}, {}, both[1]->other(), worker_), both[1]->other(), Noticed::kMessage);
    return false;
  }
  all = gathered.by_worker();
  return true;
}

/// Returns when all have taken the call.
bool DataPlane::tell_taken() {
  if (!relays_) {
    for (DataStream* const one : others_) {
      one->send_taken();
      one->expect_taken();
    }
    return wait_for({others_});
  }
  // Who hears "taken" in a round hears it of all from whom the sender has heard it before.
  for (int round = 0; round < dissemination_.num_rounds(); ++round) {
    const std::array<DataStream*, 2> both{&stream(dissemination_.to(round)), &stream(dissemination_.from(round))};
    both[0]->send_taken();
    both[1]->expect_taken();
    if (!wait_for({.streams = both, .is_round = true})) return false;
  }
  return true;
}

/// Moves what can be moved. False where the run must end because of it.
bool DataPlane::advance(DataStream& stream, bool& has_more) {
  const bool stopped_at_bound = stream.advance();
  if (!stream.problem().empty()) {
    control_.notice(stream.problem(), stream.other(), Noticed::kMessage);
    return false;
  }
  if (is_done(stream)) return true;
  if (!stream.broken().empty()) {
    control_.notice_broken(stream.other(), stream.broken());
    return false;
  }
  has_more |= stopped_at_bound;
  return true;
}

/// Moves bytes until nothing moves any more on these streams. False where the run ends before.
bool DataPlane::wait_for(const Wait& waits) {
  const auto heartbeat = heartbeat_interval(timeouts_.lost);
  std::chrono::duration<double> tells_at = std::min({timeouts_.lost, timeouts_.stalled, timeouts_.patience}) / 2;
  CallWait wait(timeouts_);
  auto spin_end = CallWait::Clock::now() + spin_;
  bool has_told = false;
  while (true) {
    bool has_more = false;
    for (DataStream* const one : waits.streams) {
      if (!is_done(*one) && !advance(*one, has_more)) return false;
    }
    const auto is_over = [](const DataStream* one) { return is_done(*one); };
    if (std::all_of(waits.streams.begin(), waits.streams.end(), is_over)) {
      if (has_told) tell_for_whom_it_waits({});
      return true;
    }
    bool ignored = false;
    for (DataStream* const one : with_puts_) {
      if (one->has_puts() && !advance(*one, ignored)) return false;
    }
    auto longest = CallWait::Clock::duration::max();
    switch (wait.count([&] { return limit_of_work(waits); })) {
      case CallWait::Verdict::kGoOn: longest = wait.longest_sleep(); break;
      case CallWait::Verdict::kWarn:
        log(LogLevel::kWarning, fmt::format("worker {} has waited {:.0f} s: {}", worker_, wait.seconds(),
                                            missing_text(who_is_missing(waits))));
        longest = wait.longest_sleep();
        break;
      case CallWait::Verdict::kGiveUp:
        if (give_up(waits, wait)) return false;
        break;
    }
    if (relays_) {
      longest = std::min<CallWait::Clock::duration>(longest, heartbeat);
      if (wait.seconds() >= tells_at.count()) {
        has_told = true;
        tells_at = std::chrono::duration<double>(wait.seconds()) + heartbeat;
        tell_for_whom_it_waits(waits);
      }
    }
    // Also where there is more to move, the end of the run is looked for.
    const bool may_sleep = !has_more && CallWait::Clock::now() >= spin_end;
    if (sleep(waits, may_sleep ? longest : CallWait::Clock::duration::zero())) return false;
    if (may_sleep) spin_end = CallWait::Clock::now() + spin_;
  }
}

/// Sleeps until bytes can be moved. True where the run has ended.
bool DataPlane::sleep(const Wait& wait, CallWait::Clock::duration longest) {
  files_.assign(1, {.fd = state_.event(), .events = POLLIN, .revents = 0});
  std::chrono::nanoseconds time = std::min<std::chrono::nanoseconds>(longest, std::chrono::minutes(1));
  const auto watch = [&](DataStream& one) {
    if (time.count() > 0) time = std::min(time, one.watch(files_));
  };
  for (DataStream* const one : wait.streams) {
    if (!is_done(*one)) watch(*one);
  }
  for (DataStream* const one : with_puts_) {
    if (one->has_puts()) watch(*one);
  }
  constexpr int64_t kSecond = 1'000'000'000;
  const timespec limit{.tv_sec = time.count() / kSecond, .tv_nsec = time.count() % kSecond};
  ppoll(files_.data(), files_.size(), &limit, nullptr);
  return files_.front().revents != 0;
}

/// False where another worker knows better who is missing: it gives up, or in the end this one does.
bool DataPlane::give_up(const Wait& wait, const CallWait& time) {
  const Missing missing = who_is_missing(wait);
  const std::chrono::duration<double> end = timeouts_.patience + timeouts_.lost;
  if (missing.have_come && wait.is_round && time.silent_seconds() < end.count()) return false;
  control_.notice(fmt::format("after {:.1f} s {}; {}", time.seconds(), missing_text(missing), time.bound()),
                  missing.workers.empty() ? -1 : missing.workers.front(), Noticed::kAbsent);
  return true;
}

/// Of those who have not come to this call. Whoever has come is not at work.
std::optional<milliseconds> DataPlane::limit_of_work(const Wait& wait) const {
  const Missing missing = who_is_missing(wait);
  if (missing.have_come) return std::nullopt;
  return control_.phases().limit_of_work(missing.workers, timeouts_.work);
}

/// Those who wait for this worker learn by its heartbeats for whom it waits. Whoever has sent nothing since this worker
/// told that last is asked for heartbeats.
void DataPlane::tell_for_whom_it_waits(const Wait& wait) {
  std::vector<int64_t> missing;
  if (!wait.streams.empty()) missing = who_is_missing(wait).workers;
  state_.set_waits_for(missing.empty() ? -1 : missing.front());
  if (!wait.is_round) {
    bytes_read_.resize(members_.size());
    std::erase_if(missing, [&](int64_t w) {
      return std::exchange(bytes_read_[static_cast<std::size_t>(w)], stream(w).bytes_read()) != stream(w).bytes_read();
    });
  }
  control_.ask(std::move(missing));
}

/// Who has not come to this call, or else whoever has come and not finished it.
DataPlane::Missing DataPlane::who_is_missing(const Wait& wait) const {
  Missing missing;
  const auto all_where = [&](auto is_missing) {
    for (const DataStream* const one : wait.streams) {
      if (is_missing(*one)) missing.workers.push_back(one->other());
    }
    return !missing.workers.empty();
  };
  if (all_where([](const DataStream& one) { return !one.has_begun(); })) {
    if (!wait.is_round) return missing;
    // The other one may have come, and wait itself.
    const int64_t culprit = control_.calls().who_holds_up(missing.workers.front(), calls_);
    missing.have_come = culprit < 0 || culprit == worker_;
    if (!missing.have_come) missing.workers = {culprit};
    return missing;
  }
  missing.have_come = true;
  if (!all_where([](const DataStream& one) { return !one.has_received(); })) {
    all_where([](const DataStream& one) { return !one.is_taken(); });
  }
  return missing;
}

/// "worker 2 has not come to call 17", and what it does.
std::string DataPlane::missing_text(const Missing& missing) const {
  if (missing.workers.empty()) return fmt::format("what worker {} sends in call {} does not arrive", worker_, calls_);
  return internal::missing_text(missing.workers, missing.have_come ? "finished" : "come to", calls_, control_.phases());
}

/// The workers decide in a time that depends on heartbeats alone. A bound stands here all the same.
void DataPlane::wait_for_end() {
  constexpr milliseconds kLongest = std::chrono::hours(24 * 365);
  const auto workers = static_cast<int64_t>(members_.size());
  const auto longest = std::min(timeouts_.lost, kLongest / (workers + 2)) * (workers + 2);
  pollfd file{.fd = state_.event(), .events = POLLIN, .revents = 0};
  const auto end = CallWait::Clock::now() + longest;
  while (!state_.end() && CallWait::Clock::now() < end) poll(&file, 1, 1000);
  if (state_.end()) return;
  state_.set_end({.calls = state_.freeze().returned,
                  .reason = encode(RunFailure{
                      .text = fmt::format("worker {} could not learn from the others how the run ended", worker_)})});
}

/// Throws where the run has ended before `call`, or without this worker: where one connection broke between two
/// workers that live, the others may count a call that this worker has not taken.
void DataPlane::throw_if_ended(uint64_t call) {
  const std::optional<RunEnd> end = state_.end();
  const uint64_t taken = state_.calls().taken;
  if (!end || (end->calls >= call && taken >= call)) return;
  has_failed_ = true;
  const RunFailure failure = decode_failure(end->reason);
  throw error_of(failure, end->calls > taken
                              ? fmt::format("the others went on without worker {}: {}", worker_, failure.text)
                              : failure.text);
}

/// To be woken up takes longer than most answers of a worker that is in the call, too. Only where each worker of this
/// host has a core.
CallWait::Clock::duration DataPlane::longest_spin() const {
  const std::string& here = members_[static_cast<std::size_t>(worker_)].host_id;
  const auto workers =
      std::count_if(members_.begin(), members_.end(), [&](const Member& one) { return one.host_id == here; });
  return sysconf(_SC_NPROCESSORS_ONLN) >= workers ? std::chrono::microseconds(50) : std::chrono::microseconds(0);
}

void DataPlane::open(uint64_t window, std::vector<std::span<std::byte>> memory, std::shared_ptr<void> owner) {
  require_one_for_each_worker(memory.size(), memory.size(), static_cast<int64_t>(members_.size()));
  windows_.open(window, std::move(memory), std::move(owner));
}

void DataPlane::put(uint64_t window, int64_t worker, std::size_t offset, Bytes bytes) {
  if (process_.is_in_child()) process_.throw_forked("worker", worker_, worker_);
  if (is_in_call_) return;
  DataStream& to = stream(worker);
  if (!to.has_puts()) with_puts_.push_back(&to);
  to.put(window, offset, std::move(bytes));
}

void DataPlane::progress() noexcept try {
  if (process_.is_in_child() || is_in_call_) return;
  for (DataStream* const one : others_) {
    if (one->problem().empty() && one->broken().empty()) one->advance();
  }
} catch (const std::exception&) {
  abort("it had no memory for what the others sent");
}

}  // namespace lockstep::internal::comm
