// Which of the hosts of a job this host is, and which workers are its share.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "tools/run/hosts_file.h"

namespace lockstep::tools {

/// The workers that one launcher starts, among all workers of the job. Workers are numbered in the order of the hosts.
struct HostShare {
  int host = 0;  // of this launcher, from 0
  int num_hosts = 1;
  int first_worker = 0;
  int workers = 0;      // of this host
  int num_workers = 0;  // of the job
};

/// The share of host `host`. A line without slots has `workers_of_each`; 0: nobody said how many, and such a line is a
/// UsageError (LS-FLAG).
HostShare share_of(const std::vector<HostLine>& hosts, std::size_t host, int workers_of_each);

/// A name that all launchers of a job find by themselves: it follows from the hosts' names and the port. Slots do not
/// count, so that launchers that count the workers differently meet and say so.
std::string job_id_of(const std::vector<HostLine>& hosts, uint16_t port);

/// How this host is called.
struct ThisHost {
  std::string name;
  std::vector<std::string> addresses;
};

/// The numbers of a host by its name. Throws a ClusterError where there are none.
using LookUp = std::function<std::vector<std::string>(const std::string& host)>;

/// Which of the hosts is `self`: that which has its name or one of its addresses. Only where there is none are all
/// names looked up. A loopback address that a name leads to says nothing. A UsageError (LS-HOST-INDEX) where no host or
/// several fit: it shows what this host is called.
std::size_t index_of(const ThisHost& self, const std::vector<HostLine>& hosts, const LookUp& look_up);

}  // namespace lockstep::tools
