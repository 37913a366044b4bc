// The plug-in liblockstep_mpi.so: messages by MPI, in jobs that mpirun or srun has started.
#include <mpi.h>
#include <pthread.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <condition_variable>
#include <csignal>
#include <cstdlib>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "lockstep/comm/messenger.h"

namespace lockstep::internal::inline comm {

namespace {

using State = Message::State;
using Clock = std::chrono::steady_clock;

std::string error_text(int error) {
  std::array<char, MPI_MAX_ERROR_STRING> text{};
  int size = 0;
  MPI_Error_string(error, text.data(), &size);
  return "MPI: " + std::string(text.data(), static_cast<std::size_t>(size));
}

void check(int error) {
  if (error != MPI_SUCCESS) throw std::runtime_error(error_text(error));
}

/// What a process has of MPI, which begins and ends once. The thread that joins or calls a World uses it.
struct Process {
  bool is_used = false;  // by a messenger that lives
  bool has_failed = false;
  bool has_communicator = false;
  MPI_Comm communicator = MPI_COMM_NULL;  // of all workers, and of no other part of the program
  int64_t runs = 0;                       // that have begun to connect
};
Process process;

/// Where a worker has died MPI_Finalize() may wait for it for ever, so that it is left out after a failed run. A worker
/// that dies only now is not waited for either.
void finalize_at_exit(int status, void* /*unused*/) {
  int is_over = 1;
  MPI_Finalized(&is_over);
  if (is_over != 0 || process.has_failed || process.is_used) return;
  std::thread([status] {
    std::this_thread::sleep_for(std::chrono::seconds(10));
    _exit(status);
  }).detach();
  MPI_Finalize();
}

/// MPI_Init_thread() on a thread of its own, which may stay there for ever: it waits for all ranks, also for one that
/// has died.
class Beginning {
 public:
  Beginning() {
    // MPI's own threads have this mask too: signals go to those of the program.
    sigset_t all;
    sigset_t before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    std::thread([state = state_] {
      int threads = MPI_THREAD_SINGLE;
      const int error = MPI_Init_thread(nullptr, nullptr, MPI_THREAD_SERIALIZED, &threads);
      const std::lock_guard<std::mutex> lock(state->mutex);
      state->error = error;
      state->is_over = true;
      state->changed.notify_all();
    }).detach();
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
  }

  bool is_over_within(std::chrono::milliseconds time) {
    std::unique_lock<std::mutex> lock(state_->mutex);
    return state_->changed.wait_for(lock, time, [&] { return state_->is_over; });
  }
  int error() {
    const std::lock_guard<std::mutex> lock(state_->mutex);
    return state_->error;
  }

 private:
  struct State {
    std::mutex mutex;
    std::condition_variable changed;
    bool is_over = false;
    int error = MPI_SUCCESS;
  };
  const std::shared_ptr<State> state_ = std::make_shared<State>();
};

/// Whether MPI has begun. Waits for it for some milliseconds.
bool has_begun() {
  static std::optional<Beginning> beginning;
  static bool is_begun_here = false;
  int is_begun = 0;
  if (!beginning) {
    MPI_Initialized(&is_begun);
    if (is_begun != 0) return true;  // by the program
    const auto is_set = [](const char* name) { return std::getenv(name) != nullptr; };
    if (!is_set("OMPI_COMM_WORLD_SIZE") && !is_set("PMI_SIZE") && !is_set("PMIX_RANK")) {
      throw std::runtime_error("it was started neither by mpirun nor by srun --mpi");
    }
    beginning.emplace();
  }
  if (!beginning->is_over_within(std::chrono::milliseconds(5))) return false;
  check(beginning->error());
  if (!std::exchange(is_begun_here, true)) {
    MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
    on_exit(finalize_at_exit, nullptr);
  }
  return true;
}

void require_threads() {
  int threads = MPI_THREAD_SINGLE;
  check(MPI_Query_thread(&threads));
  // A World is called by one thread at a time, and not always by the same one.
  if (threads < MPI_THREAD_SERIALIZED) {
    throw std::runtime_error("MPI was begun without MPI_THREAD_SERIALIZED, by MPI_Init_thread");
  }
}

/// A message with what is needed when it is done.
struct MpiMessage : Message {
  std::vector<std::byte> bytes;
  std::size_t index = 0;            // of its request
  int64_t* moving_there = nullptr;  // of a message to send: how many move to its worker
};

class MpiMessenger final : public Messenger {
 public:
  explicit MpiMessenger(const MessengerSetup& setup)
      : me_(setup.worker_index), moving_(static_cast<std::size_t>(setup.num_workers)) {
    if (process.has_failed) throw std::runtime_error("an earlier run of this process by MPI has failed");
    if (std::exchange(process.is_used, true)) throw std::runtime_error("this process has a World by MPI already");
  }

  ~MpiMessenger() override {
    end(!process.has_communicator);
    // MPI may still write into messages: their memory stays for ever.
    if (process.has_failed) static_cast<void>(new std::deque<MpiMessage>(std::move(messages_)));
    process.is_used = false;
  }
  MpiMessenger(const MpiMessenger&) = delete;
  MpiMessenger& operator=(const MpiMessenger&) = delete;

  std::string describe() const override {
    return "mpi: MPI moves the bytes; the workers have authenticated each other by the job's secret, and the bytes are "
           "neither encrypted nor authenticated by Lockstep";
  }

  bool is_ready() override { return has_begun(); }

  std::string address() override {
    require_threads();
    int rank = -1;
    int size = 0;
    check(MPI_Comm_rank(MPI_COMM_WORLD, &rank));
    check(MPI_Comm_size(MPI_COMM_WORLD, &size));
    if (rank == me_ && size == static_cast<int>(moving_.size())) return std::to_string(process.runs);
    throw std::runtime_error("it is rank " + std::to_string(rank) + " of " + std::to_string(size) +
                             " of MPI, which must be its index and the number of workers");
  }

  void connect(const std::vector<std::string>& addresses) override {
    // Who leaves a run does not take the last messages that come, and MPI keeps them: the next run has another tag. The
    // workers may have begun different numbers of runs, where one of them could not join, and take the largest.
    for (const std::string& runs : addresses) process.runs = std::max<int64_t>(process.runs, std::stoll(runs));
    tag_ = static_cast<int>(process.runs++ % kTags);
    if (!process.has_communicator) check(MPI_Comm_idup(MPI_COMM_WORLD, &process.communicator, &connecting_));
  }

  std::vector<int64_t> unconnected() override {
    int is_done = 1;
    if (!process.has_communicator) check(MPI_Test(&connecting_, &is_done, MPI_STATUS_IGNORE));
    if (is_done != 0) {
      process.has_communicator = true;
      check(MPI_Comm_set_errhandler(process.communicator, MPI_ERRORS_RETURN));
      return {};
    }
    std::vector<int64_t> missing;
    for (int64_t w = 0; w < static_cast<int64_t>(moving_.size()); ++w) {
      if (w != me_) missing.push_back(w);
    }
    return missing;
  }

  Message& new_message(std::size_t bytes) override {
    MpiMessage& message = messages_.emplace_back();
    message.bytes.resize(bytes);
    message.memory = message.bytes;
    message.index = requests_.size();
    requests_.push_back(MPI_REQUEST_NULL);
    done_.resize(requests_.size());
    statuses_.resize(requests_.size());
    return message;
  }

  void send(int64_t worker, Message& message) override {
    auto& one = static_cast<MpiMessage&>(message);
    one.state = State::kMoving;
    one.moving_there = &moving_[static_cast<std::size_t>(worker)];
    ++*one.moving_there;
    const int error = MPI_Isend(one.memory.data(), static_cast<int>(one.size), MPI_BYTE, static_cast<int>(worker), tag_,
                                process.communicator, &requests_[one.index]);
    if (error != MPI_SUCCESS) finish(one, error);
  }

  void receive(int64_t worker, Message& message) override {
    auto& one = static_cast<MpiMessage&>(message);
    one.state = State::kMoving;
    const int error = MPI_Irecv(one.memory.data(), static_cast<int>(one.memory.size()), MPI_BYTE,
                                static_cast<int>(worker), tag_, process.communicator, &requests_[one.index]);
    if (error != MPI_SUCCESS) finish(one, error);
  }

  void progress() override {
    int count = 0;
    const int result =
        MPI_Testsome(static_cast<int>(requests_.size()), requests_.data(), &count, done_.data(), statuses_.data());
    if (count == MPI_UNDEFINED) return;  // nothing moves
    for (std::size_t i = 0; i < static_cast<std::size_t>(count); ++i) {
      MpiMessage& one = messages_[static_cast<std::size_t>(done_[i])];
      const MPI_Status& status = statuses_[i];
      int size = 0;
      if (one.moving_there == nullptr && MPI_Get_count(&status, MPI_BYTE, &size) == MPI_SUCCESS) {
        one.size = static_cast<std::size_t>(size);
      }
      // A longer message than the memory is such an error.
      finish(one, result == MPI_ERR_IN_STATUS ? status.MPI_ERROR : result);
      pause_ = kShortestPause;
    }
  }

  bool flush(int64_t worker) override {
    const int64_t& moving = moving_[static_cast<std::size_t>(worker)];
    if (moving > 0) progress();
    return moving == 0;
  }

  Sleep sleep() override {
    // MPI has nothing that poll() could watch.
    return {.longest = std::exchange(pause_, std::min(2 * pause_, kLongestPause))};
  }

  void end(bool has_failed) override {
    if (std::exchange(has_ended_, true)) return;
    process.has_failed = process.has_failed || has_failed;
    if (process.has_failed) return;
    for (MpiMessage& one : messages_) {
      if (one.state == State::kMoving) MPI_Cancel(&requests_[one.index]);
    }
    const auto until = Clock::now() + std::chrono::milliseconds(100);
    const auto is_moving = [](const MpiMessage& one) { return one.state == State::kMoving; };
    progress();
    while (std::any_of(messages_.begin(), messages_.end(), is_moving)) {
      if (Clock::now() >= until) {
        process.has_failed = true;
        return;
      }
      std::this_thread::sleep_for(kShortestPause);
      progress();
    }
  }

 private:
  static constexpr int64_t kTags = 32768;  // every MPI has so many
  static constexpr std::chrono::microseconds kShortestPause{50};
  static constexpr std::chrono::microseconds kLongestPause{1000};

  static void finish(MpiMessage& one, int error) {
    if (one.moving_there != nullptr) --*one.moving_there;
    one.state = error == MPI_SUCCESS ? State::kDone : State::kFailed;
    if (error != MPI_SUCCESS) one.failure = error_text(error);
  }

  const int64_t me_;
  int tag_ = 0;                  // of this run's messages
  std::vector<int64_t> moving_;  // by worker: messages that go there
  MPI_Request connecting_ = MPI_REQUEST_NULL;
  std::deque<MpiMessage> messages_;
  std::vector<MPI_Request> requests_;  // by message, as are those below; what MPI_Testsome() reads and writes
  std::vector<int> done_;
  std::vector<MPI_Status> statuses_;
  std::chrono::microseconds pause_ = kShortestPause;
  bool has_ended_ = false;
};

}  // namespace

extern "C" Messenger* lockstep_messenger_2(const MessengerSetup& setup) { return new MpiMessenger(setup); }

}  // namespace lockstep::internal::comm
