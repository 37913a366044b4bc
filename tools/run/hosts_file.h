// The file of `lockstep run --hosts`: on which hosts a job has workers.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

namespace lockstep::tools {

/// The most workers that one launcher starts.
inline constexpr int kMostLocalWorkers = 1024;

/// A host of a job, as its line in the file says it.
struct HostLine {
  std::size_t line = 0;  // in the file, from 1
  std::string host;      // a name or a number, without brackets
  int slots = 0;         // how many workers the line asks for; 0 where it does not say
};

/// The hosts of a file in their order; `name` is the file's, for messages. A line is "host", "host:slots" or "host
/// slots=K", where an IPv6 number stands in brackets; '#' begins a comment. The byte order mark of UTF-8 is skipped. A
/// UsageError (LS-HOSTS) names the line and the column, counted in bytes from 1:
///
/// - a line that is none of these, a file without any host, and a text in UTF-16, of which it names no line;
/// - a host that two lines name;
/// - a loopback address beside a host that has another one: it would mean a different host on each host.
std::vector<HostLine> parse_hosts(const std::string& name, const std::string& text);

/// The same for a file. A UsageError (LS-HOSTS) where it cannot be read or is larger than 1 MiB.
std::vector<HostLine> read_hosts(const std::string& path);

}  // namespace lockstep::tools
