// Who takes part in a job, as workers tell each other when they join.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace lockstep::internal::inline comm {

/// One worker of the job and where it can be reached.
struct Member {
  int64_t worker = 0;
  int64_t process = 0;
  std::string host = {};     // its name, for messages
  std::string host_id = {};  // equal for two workers that can share memory
  std::string address = {};  // of its listener: a number; it travels without a zone, which each host has for itself
  uint16_t port = 0;
  uint16_t datagram_port = 0;  // 0: it receives none

  /// "worker 3 (process 77 on host b)"
  std::string name() const;
  bool operator==(const Member&) const = default;
};

/// What a worker says when it comes to worker 0.
struct Joiner {
  Member member;
  int64_t num_workers = 0;
  /// What must be equal on all workers: one fact on each line.
  std::string must_match = {};
  /// Where it was told that the workers are: by worker, "host:port"; empty where it does not know. May be shorter.
  std::vector<std::string> expected = {};
};

/// What worker 0 says when all have come.
struct Members {
  std::vector<Member> all;   // by worker
  std::string session = {};  // 32 hexadecimal digits that this run has and no other
};

/// What a worker says on a new connection to another one.
struct Attachment {
  enum class Purpose : uint8_t { kControl = 1, kData = 2 };
  int64_t worker = 0;  // that opens the connection
  int64_t to = 0;      // for whom it is
  Purpose purpose = Purpose::kControl;
  std::string session = {};
};

/// As texts of frames, and back; nothing for texts that encode() does not make.
std::string encode(const Joiner& joiner);
std::string encode(const Members& members);
std::string encode(const Attachment& attachment);
std::optional<Joiner> decode_joiner(const std::string& text);
std::optional<Members> decode_members(const std::string& text);
std::optional<Attachment> decode_attachment(const std::string& text);

/// Gives the members' addresses the zone by which this host reaches the others, where they need one.
void set_zone(std::vector<Member>& members, const std::string& zone);

/// Why a process does not fit to worker 0, or an empty text. `chief` is what worker 0 itself would say.
std::string objection_to(const Joiner& joiner, const Joiner& chief);

}  // namespace lockstep::internal::comm
