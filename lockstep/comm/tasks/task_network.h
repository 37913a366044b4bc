// Messages between the tasks of a run of parameter servers: one chief, workers and servers, each a process or a thread.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "lockstep/comm/network/join/listener.h"
#include "lockstep/comm/network/join/refusal.h"
#include "lockstep/comm/network/wire/asio.h"
#include "lockstep/comm/tasks/task_hello.h"
#include "lockstep/comm/tasks/task_link.h"

namespace lockstep::internal::inline comm {

/// How this task takes part.
struct TaskJob {
  TaskId self;
  int64_t workers = 0;
  int64_t servers = 0;
  /// At which number of this host the chief, or a server, listens; port 0 is any that is free. A worker listens
  /// nowhere.
  std::string address = {};
  uint16_t port = 0;
  /// Keeps jobs apart that use the same secret.
  std::string id = {};
  std::string secret = {};
  /// Whether messages go on without TLS once both sides have proved that they know the secret.
  bool plaintext = false;
  /// A task from which nothing has come for so long is lost.
  std::chrono::milliseconds lost = std::chrono::seconds(5);
};

/// What happened on the links of a task.
struct TaskEvent {
  enum class Kind : uint8_t {
    kConnected,    // a link is there
    kReceived,     // `text` is a message
    kLost,         // the link is over; `text` says why
    kUnreachable,  // connect() has found nobody in time, or was refused; `text` says why
  };
  Kind kind = Kind::kReceived;
  uint64_t link = 0;     // of kUnreachable: 0
  uint64_t refusal = 0;  // of kUnreachable: kDiffers, also where another secret is there, or kTaken; 0: neither
  TaskHello peer = {};
  std::string text = {};
};

/// A message on a link of this process, for tests that let a task or a link fail there.
struct WatchedMessage {
  TaskId self = {};
  TaskId peer = {};
  bool is_sent = false;         // it is about to be sent; otherwise it has come, and is about to be told
  std::string_view bytes = {};  // valid during the call
};

/// The links of this task with others, and a thread that moves their messages. Only who knows the secret gets a link.
///
/// The chief and each server listen. Workers and servers connect to the chief, and workers to servers. A server has one
/// link with the chief. A worker may come again, as a new process: its older link is closed then.
class TaskNetwork {
 public:
  using Clock = std::chrono::steady_clock;

  /// Listens, unless this is a worker. A ClusterError (LS-CLUSTER-SOCKET) where the system refuses.
  explicit TaskNetwork(TaskJob job);
  /// Closes all links.
  ~TaskNetwork();
  TaskNetwork(const TaskNetwork&) = delete;
  TaskNetwork& operator=(const TaskNetwork&) = delete;

  // Any thread may call these. They do not wait, but for next().

  /// Where it listens.
  uint16_t port() const { return port_; }
  const TaskJob& job() const { return job_; }
  /// The run that this task belongs to: workers of another one are refused by a server. 0: not known yet.
  void set_run(uint64_t run);
  /// Looks for a task at one of these numbers until `end`. A kConnected or a kUnreachable follows.
  void connect(TaskId to, std::vector<std::string> addresses, uint16_t port, Clock::time_point end);
  /// On a link that is over it does nothing.
  void send(uint64_t link, std::string message);
  /// Closes the link when all that was sent is written. A kLost follows.
  void close(uint64_t link);
  /// The next event; nothing where none has come until `end`, or after stop().
  std::optional<TaskEvent> next(Clock::time_point end);
  /// next() gives nothing from now on.
  void stop();

  /// For tests: is called with each message, by the threads of all networks. Where it gives false, the link is closed
  /// in place of sending or telling the message. It is set while there is no network.
  static inline std::function<bool(const WatchedMessage&)> watch;

 private:
  struct Link {
    std::shared_ptr<TaskLink> link;
    TaskHello peer;
    bool has_spoken = false;  // who has accepted a connection says nothing before the other side has
    int silent_ticks = 0;
  };

  void run();
  void tell(TaskEvent event);
  bool passes(const Link& link, std::string_view message, bool is_sent) const;
  void welcome(const std::shared_ptr<Connection>& connection, const Frame& frame);
  std::string objection_to(const TaskHello& hello) const;
  /// The same, where another process is that task already.
  std::string taken_by(const TaskHello& hello) const;
  asio::awaitable<void> accept(std::shared_ptr<Connection> connection, TaskHello hello);
  asio::awaitable<void> find(TaskId to, std::vector<std::string> addresses, uint16_t port, Clock::time_point end);
  asio::awaitable<Frame> attach(TaskId to, std::string address, uint16_t port, Clock::time_point end);
  void add(const std::shared_ptr<Connection>& connection, const TaskHello& peer, bool has_spoken);
  asio::awaitable<void> listen(uint64_t number);
  asio::awaitable<void> beat();
  void lose(uint64_t number, const std::string& why);
  TaskHello hello_to(TaskId to) const;

  const TaskJob job_;
  const TlsContext keys_;
  asio::io_context context_;
  std::unique_ptr<Listener> listener_;  // null for a worker
  uint16_t port_ = 0;
  // Used by the thread alone:
  uint64_t run_ = 0;
  uint64_t next_link_ = 1;
  std::map<uint64_t, Link> links_;

  std::mutex mutex_;
  std::condition_variable came_;
  std::deque<TaskEvent> events_;  // guarded by mutex_
  bool is_stopped_ = false;       // guarded by mutex_
  std::thread thread_;
};

}  // namespace lockstep::internal::comm
