#include "lockstep/server/remote/task_messages.h"

#include <fmt/format.h>

#include <algorithm>

#include "lockstep/core/bytes.h"

namespace lockstep::internal::inline server {

std::string message_of_task(TaskWord word, std::string_view text) {
  std::string bytes;
  ByteWriter(bytes).put(static_cast<uint8_t>(word));
  return bytes.append(text);
}

TaskWord take_word(std::string_view& message) {
  MessageReader from(message, -1, "a message of a task");
  const auto word = from.get<uint8_t>();
  from.expect(word <= static_cast<uint8_t>(TaskWord::kEnd));
  message.remove_prefix(1);
  return static_cast<TaskWord>(word);
}

std::string to_bytes(const TaskWelcome& welcome) {
  std::string bytes = message_of_task(TaskWord::kWelcome);
  ByteWriter to(bytes);
  to.put(welcome.epoch);
  to.put(welcome.incarnation);
  to.put(welcome.begin.position);
  to.put(welcome.begin.counted);
  to.put(welcome.begin.floor);
  to.put_list(welcome.begin.counted_above);
  to.put_list(welcome.begin.closed_above);
  to.put(uint64_t{welcome.servers.size()});
  for (const TaskWelcome::Place& one : welcome.servers) {
    to.put(one.port);
    to.put_text(one.address);
  }
  return bytes;
}

TaskWelcome task_welcome(std::string_view bytes) {
  MessageReader from(bytes, -1, "the chief's welcome");
  TaskWelcome welcome;
  welcome.epoch = from.get<uint64_t>();
  welcome.incarnation = from.get<uint32_t>();
  welcome.begin.position = from.get<Position>();
  welcome.begin.counted = from.get<int64_t>();
  welcome.begin.floor = from.get<int64_t>();
  welcome.begin.counted_above = from.get_list<int64_t>();
  welcome.begin.closed_above = from.get_list<int64_t>();
  for (std::size_t left = from.get_count(sizeof(uint16_t) + sizeof(uint64_t)); left > 0; --left) {
    TaskWelcome::Place place;
    place.port = from.get<uint16_t>();
    place.address = from.get_text();
    welcome.servers.push_back(std::move(place));
  }
  from.expect(welcome.begin.floor >= 0 && welcome.begin.counted >= 0);
  from.expect_end();
  return welcome;
}

std::string to_bytes(const TaskEnd& end) {
  std::string bytes = message_of_task(TaskWord::kEnd);
  ByteWriter to(bytes);
  to.put(end.code);
  to.put_text(end.failure);
  return bytes;
}

TaskEnd task_end(std::string_view bytes) {
  MessageReader from(bytes, -1, "the chief's last message");
  TaskEnd end;
  end.code = from.get<int32_t>();
  end.failure = from.get_text();
  from.expect_end();
  return end;
}

std::string settled_message(int64_t settled) {
  std::string bytes = message_of_task(TaskWord::kSettled);
  ByteWriter(bytes).put(settled);
  return bytes;
}

int64_t settled_of(std::string_view bytes) {
  MessageReader from(bytes, -1, "a number of steps");
  const auto settled = from.get<int64_t>();
  from.expect_end();
  return settled;
}

std::string difference_of_programs(const std::string& theirs, const std::string& mine, const std::string& them) {
  if (theirs == mine) return {};
  std::string_view a(theirs);
  std::string_view b(mine);
  while (!a.empty() || !b.empty()) {
    const std::string_view line_a = a.substr(0, a.find('\n'));
    const std::string_view line_b = b.substr(0, b.find('\n'));
    // Who computes nothing of a data set need not make it.
    if ((a.empty() && line_b.starts_with(kDataSet)) || (b.empty() && line_a.starts_with(kDataSet))) return {};
    if (line_a != line_b) {
      constexpr std::size_t kShown = 300;
      return fmt::format("{} has \"{}\", and the chief has \"{}\"", them,
                         line_a.empty() ? "nothing more" : line_a.substr(0, kShown),
                         line_b.empty() ? "nothing more" : line_b.substr(0, kShown));
    }
    a.remove_prefix(std::min(a.size(), line_a.size() + 1));
    b.remove_prefix(std::min(b.size(), line_b.size() + 1));
  }
  return fmt::format("{} describes its program otherwise than the chief", them);
}

std::string without_schedules(const std::string& program) {
  std::string text;
  for (std::string_view left(program); !left.empty();) {
    const std::string_view line = left.substr(0, left.find('\n') + 1);  // of npos: nothing
    if (!line.starts_with(kSchedule)) text += line;
    left.remove_prefix(line.empty() ? left.size() : line.size());
  }
  return text;
}

}  // namespace lockstep::internal::server
