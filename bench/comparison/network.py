"""Hosts that are network namespaces of this machine (tests/hosts), for contestants that train over a network."""
import os
import sys

from .running import Failure

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path.insert(0, os.path.join(ROOT, "tests", "hosts"))
import hosts as namespaces  # noqa: E402

PORT = 29600


class Network:
    """So many hosts of so many workers; each host sends at most so fast, by htb. Use it in a `with`."""

    def __init__(self, count, rate, workers_of_host=1):
        try:
            self.hosts = namespaces.Hosts(count)
            for i in range(1, count + 1):
                self.hosts.limit(i, rate)
        except (namespaces.Skipped, OSError) as reason:
            raise Failure(f"no hosts: {reason}") from None
        self.count = count * workers_of_host
        self.workers_of_host = workers_of_host

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.hosts.end()

    def inside(self, rank, command):
        """The command as worker `rank`, from 0, on its host. The network and a core are the host's own: without a core
        each, replicas of all hosts would be pinned to the same one, because a host sees no other."""
        cores = sorted(os.sched_getaffinity(0))
        host = rank // self.workers_of_host
        variables = {"LOCKSTEP_NUM_WORKERS": self.count, "LOCKSTEP_WORKER_INDEX": rank, "LOCKSTEP_LOCAL_WORKER": rank % self.workers_of_host,
                     "LOCKSTEP_CHIEF_ADDRESS": f"10.77.0.1:{PORT}", "LOCKSTEP_SECRET": namespaces.secret,
                     "LOCKSTEP_TRUSTED_NETWORK": 1, "GLOO_SOCKET_IFNAME": "eth0"}
        return ["nsenter", f"--target={self.hosts.host(host + 1).holder.pid}", "--net", "--",
                "taskset", "--cpu-list", str(cores[host % len(cores)]), "env",
                *(f"{name}={value}" for name, value in variables.items()), *command]
