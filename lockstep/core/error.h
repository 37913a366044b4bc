// The library's errors, in one hierarchy. An error's class says what the caller can do, not which part found the error.
#pragma once

#include <cstdint>
#include <exception>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/core/ids.h"

namespace lockstep {

/// A stable short name of one kind of mistake, such as "LS-MEETING-ORDER": docs/errors.md has the cause and the cure of
/// each. Programs and tests may compare codes; the sentences of a message may change.
class ErrorCode {
 public:
  /// A literal that begins with "LS-"; anything else does not compile.
  consteval ErrorCode(const char* text) : text_(text) {  // NOLINT(google-explicit-constructor)
    if (text[0] != 'L' || text[1] != 'S' || text[2] != '-') throw "an error code begins with LS-";
  }
  constexpr const char* text() const { return text_; }

 private:
  const char* text_;
};

/// Root of every error of the library. `what()` has two lines: what happened and to whom, with the code, then the
/// remedy.
class Error : public std::runtime_error {
 public:
  /// `fact` says what happened, to whom and where; `remedy` is the one thing to do about it.
  Error(ErrorCode code, const std::string& fact, const std::string& remedy)
      : std::runtime_error(fact + " [" + code.text() + "]\n" + remedy), code_(code.text()), remedy_(remedy) {}
  /// For errors of programs that use the library, which have no code.
  Error(const std::string& fact, const std::string& remedy)
      : std::runtime_error(fact + "\n" + remedy), remedy_(remedy) {}

  /// "LS-MEETING-ORDER"; empty where the error has none.
  const std::string& code() const noexcept { return code_; }
  /// The one thing to do about it, also the last line of `what()`.
  const std::string& remedy() const noexcept { return remedy_; }

 protected:
  /// All of `what()`. It is a separate type, so that the constructor takes no plain string for it.
  struct WholeText {
    std::string text;
  };
  Error(const WholeText& whole, ErrorCode code, const std::string& remedy)
      : std::runtime_error(whole.text), code_(code.text()), remedy_(remedy) {}

 private:
  std::string code_;
  std::string remedy_;
};

/// The program is wrong, in the same way on every worker: change the code or the flag that is named.
class UsageError : public Error {
 public:
  using Error::Error;
};

/// A scheduled step was closed before it counted, because the program cancelled it or another step failed: what
/// RemoteValue::get throws.
class CancelledError : public UsageError {
 public:
  using UsageError::UsageError;
};

/// The environment is wrong or contradicts itself: the variable, host, port or core is named.
class ClusterError : public Error {
 public:
  using Error::Error;
};

/// Another worker died, stalled or refused; its own message is included. Starting again may help. Where a
/// failure ends the run, all workers that can reach each other report the same one: the first that any has found.
class PeerError : public Error {
 public:
  /// How the failure was noticed.
  enum class Noticed : uint8_t {
    kUnknown,     // otherwise, or by a World of the program's own that does not say
    kGone,        // its process has ended: it was killed or crashed
    kExited,      // its program ended in the middle of the run
    kException,   // an exception ended its program, or its part in the run; it reports that itself
    kLeft,        // it took part no longer, though its program went on
    kSilent,      // nothing was heard of it for too long: it is frozen, or cut off
    kConnection,  // its connection with another worker broke; it is alive, or gives no answer
    kAbsent,      // it did not come to a call in time
    kAborted,     // it ended the run itself
    kFailed,      // its step or its call failed, and it said so
    kMessage,     // what it sent is not what was expected
  };
  /// The worker that failed, as far as it is known; the message says the same.
  struct Failed {
    int64_t worker = -1;     // its index; -1: no single worker, or not known
    std::string host = {};   // empty: not known
    int64_t process = 0;     // 0: not known
    std::string phase = {};  // what it did when it was last heard: "in step 12, at its meeting 3"; empty: not known
    int64_t step = -1;       // of that phase; -1: not known
    Noticed noticed = Noticed::kUnknown;
    int64_t replica = -1;  // of all, whose exception it was; -1: no single one, or not known
  };

  using Error::Error;
  PeerError(ErrorCode code, const std::string& fact, const std::string& remedy, Failed failed)
      : Error(code, fact, remedy), failed_(std::move(failed)) {}

  const Failed& failed() const noexcept { return failed_; }

 private:
  Failed failed_;
};

/// A file, stream or checkpoint is missing or damaged: the path and, where there is one, the offset are named.
class DataError : public Error {
 public:
  using Error::Error;
};

/// A worker's stream has no more data.
class EndOfStream : public DataError {
 public:
  using DataError::DataError;
};

/// Values that must be equal on all replicas are not, or something other than the library wrote them.
class DivergenceError : public Error {
 public:
  using Error::Error;
};

/// A loss, gradient or norm that must be finite is not; the step it belongs to was not applied.
class NonFiniteError : public Error {
 public:
  using Error::Error;
};

/// A mistake of this library: please report it with the message.
class InternalError : public Error {
 public:
  using Error::Error;
};

/// What `Strategy::run` throws when a step fails, also where there is only one replica. It carries the failure of every
/// replica that failed. The first failure's exception is nested in it: `std::rethrow_if_nested` throws the exception
/// that the step itself threw.
class ReplicaError : public Error, public std::nested_exception {
 public:
  struct Failure {
    ReplicaId replica;
    std::string message;
    std::exception_ptr exception;
  };

  /// `what()` quotes each different message once, at most eight of them, with the replicas that it came from; messages
  /// that differ only in the replica's own number count as one. `remedy()` is the first failure's. Construct it inside
  /// a handler of `failures.front().exception`, which becomes the nested exception. `failures` is not empty and is
  /// sorted by replica. `evaluation` is true where Strategy::evaluate failed, after `step` completed runs.
  ReplicaError(int64_t step, std::vector<Failure> failures, bool evaluation = false);

  /// The lowest replica that failed, on this worker. Where none has, the one on another worker whose failure ended the
  /// step, if it is known which: then its PeerError is the only failure.
  ReplicaId replica() const { return failures_.front().replica; }
  /// The step that failed: how many runs of the strategy were completed before it.
  int64_t step() const { return step_; }
  /// Each failed replica's own message, in replica order.
  std::vector<std::string> messages() const;
  /// Each failed replica's own exception, in replica order.
  std::vector<std::exception_ptr> exceptions() const;
  /// Each failed replica with its message and its exception, in replica order.
  const std::vector<Failure>& failures() const { return failures_; }

 private:
  int64_t step_;
  std::vector<Failure> failures_;
};

/// The text of an exception, whatever its type; LibTorch's errors come without their backtrace.
std::string message_of(const std::exception_ptr& exception);

}  // namespace lockstep
