// The record of a run of parameter servers: a file that says in which order steps counted and which state each of their
// pulls saw, so that the run can be repeated. docs/parameter-servers.md has its format.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/core/process/file_descriptor.h"
#include "lockstep/server/protocol/messages.h"

namespace lockstep::internal::inline server {

/// Something that the chief learned or was told, and that decides what a run computes. Values are in it nowhere.
struct RecordEvent {
  enum class Kind : uint8_t {
    kRan,             // a worker has run the step to its end; of several such of a step, one that is not late counts
    kCancelled,       // the program has called cancel()
    kRoundCompleted,  // the program has waited for a step of a round that was not full
    kGivenUp,         // the step was lost or overdue too often
    kChanged,         // the program had called the strategy for changes `state` times when it scheduled a step
    kRead,            // the program has read values, which were those of `state`
  };
  Kind kind = Kind::kRan;
  int64_t scheduled = 0;  // how many steps the program had scheduled in this run; of kRan only where it is not kDone
  int64_t step = 0;       // of kRan and kGivenUp
  // Of kRan:
  int32_t worker = 0;
  uint32_t function = 0;  // as ParameterServerStrategy::step has numbered them
  StepOutcome outcome = StepOutcome::kDone;
  bool pushed = false;
  bool is_late = false;               // it had been decided, or given to another worker, before it ended
  uint32_t data = 0;                  // a digest, of 24 bits, of the batches that the step has taken
  uint32_t push = 0;                  // the same of what it has pushed
  std::vector<Position> states = {};  // for each pull: how many steps, or rounds, were applied to what it saw
  // Of kRead the same; of kChanged the count:
  Position state = 0;

  bool operator==(const RecordEvent&) const = default;
};

/// Appends an event's bytes; reads one of them. Both begin anew at each chunk, so that each can be read by itself.
class EventCoder {
 public:
  void put(const RecordEvent& event, std::string& bytes);
  /// False where the bytes are no event. Takes its bytes from the beginning.
  [[nodiscard]] bool get(std::string_view& bytes, RecordEvent& event);

 private:
  // Of the event before, which the next one is like.
  int64_t step_ = 0;
  int64_t scheduled_ = 0;
  Position state_ = 0;
  uint32_t function_ = 0;
};

/// The function of a Trainer's steps, which the program has not named.
inline constexpr uint32_t kTrainerStep = UINT32_MAX;

/// What a call of coordinate() did.
struct RunEvents {
  std::string program = {};  // a JSON object: what has to be the same for a replay
  std::vector<RecordEvent> events = {};
  bool is_whole = false;  // false: the run, or its record, was cut off
};

struct ReplayRecord {
  std::vector<RunEvents> runs = {};
  /// Where the file stops being readable, and why; empty where it is whole.
  std::string torn = {};
};

/// A DataError (LS-RUN-RECORD) for a file that is no record, or one of another version; LS-FILE for one that cannot be
/// read, and for a pipe or a device. What follows the last whole chunk is left out, and ReplayRecord::torn says so.
ReplayRecord read_record(const std::filesystem::path& file);

/// Writes a record. Events are kept until 64 KiB have come together or a second has passed, and then written by one
/// call. One thread at a time. Each member throws a DataError (LS-FILE) that names the path where the file system
/// refuses, and after that each further one.
class RecordFile {
 public:
  /// Makes the file, or empties one that is there and that no other RecordFile writes.
  explicit RecordFile(const std::filesystem::path& file);
  /// Writes what is kept, as far as it can.
  ~RecordFile();
  RecordFile(const RecordFile&) = delete;
  RecordFile& operator=(const RecordFile&) = delete;

  void begin_run(const std::string& program);
  void add(const RecordEvent& event);
  void end_run();
  void flush();
  /// The file was there, with the record of an earlier run, which is lost.
  bool replaces() const { return replaces_; }

 private:
  void write_chunk(char type, std::string_view content);
  void write(std::string_view bytes);

  const std::filesystem::path path_;
  FileDescriptor file_;
  EventCoder coder_;
  std::string waiting_;
  double written_at_ = 0;
  bool replaces_ = false;
  std::string failure_ = {};  // why it cannot be written any more
};

}  // namespace lockstep::internal::server
