#!/usr/bin/env python3
"""What many workers and parameter servers would do, and which part ends scaling: a simulation of queues with costs that
were measured on one machine (docs/performance.md, "Parameter servers").

A step is given by the chief, asks every server for its share of rows and dense weights, computes, pushes its share to
every server, and is reported when all have it. The chief logs it, and every server reads that entry and applies the
push. A task has a thread that moves messages and one that works; both, and its wire in each direction, do one thing at
a time, in the order in which work comes. An entry is a message to each server, and one back. Entries wait at the chief
while a server has not read --eager of those that it was sent, and then go together.

    bench/server_scaling.py                                   # the cases of docs/performance.md
    bench/server_scaling.py --workers 1000 --servers 64       # one case
    bench/server_scaling.py --eager 1000000000                # as if each entry went by itself
    bench/server_scaling.py --check                           # compares small cases with what must come out
"""
import argparse
import heapq
import json


class Part:
    """Does one thing at a time."""
    __slots__ = ("free", "busy")

    def __init__(self):
        self.free = self.busy = 0.0

    def serve(self, at, takes):
        self.free = max(at, self.free) + takes
        self.busy += takes
        return self.free


class Task:
    __slots__ = ("mail", "desk", "wire_in", "wire_out")

    def __init__(self):
        self.mail, self.desk, self.wire_in, self.wire_out = Part(), Part(), Part(), Part()


class Run:
    """`c`: a case with its costs, in seconds and bytes."""

    def __init__(self, c):
        self.c, self.events, self.order = c, [], 0
        self.chief, self.servers = Task(), [Task() for _ in range(c.servers)]
        self.workers = [Task() for _ in range(c.workers)]
        self.waiting = [None] * c.workers  # answers that are missing, and when the others were there
        self.log, self.sent, self.read = 0, [0] * c.servers, [0] * c.servers
        self.steps, self.ends = 0, []
        share = 1 / c.servers
        self.rows = c.rows * share
        self.values = (c.rows * c.dim * 4 + c.dense) * share
        self.ids = c.rows * 8 * share
        self.look_up = self.rows * c.row_look_up
        self.apply = self.rows * c.row_update + c.dense * share * c.dense_update

    def at(self, time, what, *arguments):
        self.order += 1
        heapq.heappush(self.events, (time, self.order, what, arguments))

    def send(self, task, time, size):
        """From a thread that works to the end of the wire's other side."""
        written = task.mail.serve(time, self.c.message + size * self.c.byte)
        return task.wire_out.serve(written, size / self.c.wire) + self.c.latency

    def receive(self, task, time, size):
        """From the wire to a thread that works."""
        return task.mail.serve(task.wire_in.serve(time, size / self.c.wire), self.c.message + size * self.c.byte)

    def slow(self, server):
        return self.c.slow if server == 0 else 1

    # Events. Each one uses a thread that moves messages from its own time on: so messages go in their order.

    def begin(self, worker):
        self.ask(worker, self.ids, "pull")

    def ask(self, worker, size, what):
        self.waiting[worker] = [len(self.servers), []]
        for server in range(len(self.servers)):
            self.at(self.send(self.workers[worker], self.c.now, size), what, worker, server)

    def pull(self, worker, server):
        """A request for values comes to a server."""
        task = self.servers[server]
        work = (self.c.work + self.look_up + self.values * self.c.byte) * self.slow(server)
        self.at(task.desk.serve(self.receive(task, self.c.now, self.ids), work), "answer", worker, server, self.values, "compute")

    def push(self, worker, server):
        task = self.servers[server]
        work = (self.c.work + self.values * self.c.byte) * self.slow(server)
        held = task.desk.serve(self.receive(task, self.c.now, self.values + self.ids), work)
        self.at(held, "answer", worker, server, 0, "report")

    def answer(self, worker, server, size, then):
        waiting = self.waiting[worker]
        waiting[0] -= 1
        waiting[1].append(self.send(self.servers[server], self.c.now, size))
        if waiting[0]:
            return
        for there in sorted(waiting[1]):
            end = self.receive(self.workers[worker], there, size)
        self.at(self.workers[worker].desk.serve(end, self.c.work * len(self.servers)), then, worker)

    def compute(self, worker):
        writing = (self.values * self.c.byte + self.c.work) * len(self.servers)
        self.at(self.workers[worker].desk.serve(self.c.now, self.c.compute + writing), "pushes", worker)

    def pushes(self, worker):
        self.ask(worker, self.values + self.ids, "push")

    def report(self, worker):
        self.at(self.send(self.workers[worker], self.c.now, 0), "done", worker)

    def done(self, worker):
        """A report comes to the chief, which counts the step and gives the next one."""
        self.at(self.chief.desk.serve(self.receive(self.chief, self.c.now, 0), self.c.work), "counted", worker)

    def counted(self, worker):
        self.steps += 1
        self.ends.append(self.c.now)
        self.log += 1
        self.at(self.send(self.chief, self.c.now, 0), "given", worker)
        for server in range(len(self.servers)):
            self.entries(server)

    def given(self, worker):
        self.at(self.receive(self.workers[worker], self.c.now, 0), "begin", worker)

    def entries(self, server):
        outstanding = self.sent[server] - self.read[server]
        if self.sent[server] == self.log or (outstanding >= self.c.eager):
            return
        many, self.sent[server] = self.log - self.sent[server], self.log
        # The thread that works writes them; what it counts next waits for that.
        self.chief.desk.serve(self.c.now, self.c.work)
        self.at(self.send(self.chief, self.c.now, 24 * many), "entered", server, many)

    def entered(self, server, many):
        task = self.servers[server]
        read = self.receive(task, self.c.now, 24 * many)
        self.at(task.desk.serve(read, (self.c.work + many * self.apply) * self.slow(server)), "applied", server, many)

    def applied(self, server, many):
        self.at(self.send(self.servers[server], self.c.now, 0), "was_read", server, many)

    def was_read(self, server, many):
        self.at(self.chief.desk.serve(self.receive(self.chief, self.c.now, 0), self.c.work), "noted", server, many)

    def noted(self, server, many):
        self.read[server] += many
        self.entries(server)

    def until(self, steps):
        for worker in range(len(self.workers)):
            self.at(worker * self.c.compute / len(self.workers), "begin", worker)
        begin, before = 0.0, None
        while self.steps < steps:
            self.c.now, _, what, arguments = heapq.heappop(self.events)
            getattr(self, what)(*arguments)
            if before is None and self.steps >= steps // 3:  # which has filled the queues
                begin, before = self.c.now, self.busy()
        took = self.c.now - begin
        first = len([end for end in self.ends if end <= begin])
        return (self.steps - first) / took, {name: (busy - before[name]) / took for name, busy in self.busy().items()}

    def busy(self):
        """How long the busiest task of each kind has done what."""
        times = {}
        for name, tasks in (("a worker", self.workers), ("a server", self.servers), ("the chief", [self.chief])):
            for part, what in (("mail", "messages"), ("desk", "work"), ("wire_in", "wire in"), ("wire_out", "wire out")):
                if (name, part) != ("a worker", "desk"):
                    parts = [getattr(task, part) for task in tasks]  # what waits there has not been done
                    times[f"{name}'s {what}"] = max(one.busy - max(0.0, one.free - self.c.now) for one in parts)
        return times


def result(c):
    run = Run(c)
    rate, shares = run.until(max(300, c.rounds * c.workers))
    shares["the workers' computing"] = c.compute * rate / c.workers
    busiest = max(shares, key=shares.get)
    return {"workers": c.workers, "servers": c.servers, "steps_per_second": rate,
            "share_of_compute": rate * c.compute / c.workers, "busiest": busiest, "its_share": min(1.0, shares[busiest]),
            "shares": shares}


def case(args, **changes):
    return argparse.Namespace(**{**vars(args), **changes})


CASES = [
    ("10 ms of computing, 512 rows of 32, 17 KB dense", {}, [(100, 16), (1000, 4), (1000, 8), (1000, 16), (1000, 32), (1000, 64), (2000, 64)]),
    ("1 ms of computing", {"compute": 1e-3}, [(100, 16), (1000, 64)]),
    ("5 MB dense", {"dense": 5e6}, [(100, 64), (1000, 64)]),
    ("one server 4 times as slow", {"slow": 4}, [(1000, 64)]),
]


def show(title, one):
    print(f"{title:50} {one['workers']:>6,} {one['servers']:>4} {one['steps_per_second']:>9,.0f} "
          f"{100 * one['share_of_compute']:>5.0f} %  {one['busiest']} ({100 * one['its_share']:.0f} %)")


def check(args):
    """What queues must give, whatever the costs."""
    def near(a, b, by):
        assert abs(a - b) <= by * b, f"{a} is not {b}"

    # Alone nothing waits: a step is the sum of what it goes through.
    alone = case(args, workers=1, servers=1, rounds=50)
    c, values, ids = alone, alone.rows * alone.dim * 4 + alone.dense, alone.rows * 8
    def hop(size):
        return 2 * (c.message + size * c.byte + size / c.wire) + c.latency
    worked = 5 * c.work + c.rows * c.row_look_up + 3 * values * c.byte
    path = hop(ids) + hop(values) + hop(values + ids) + 3 * hop(0) + worked + c.compute + c.work
    near(1 / result(alone)["steps_per_second"], path, 0.1)
    # Far below all limits, twice the workers make twice the steps.
    few = [result(case(args, workers=w, servers=4))["steps_per_second"] for w in (4, 8)]
    near(few[1], 2 * few[0], 0.05)
    # No part can be busier than always, and what is said to end scaling is.
    for workers, servers, changes in ((200, 2, {"compute": 1e-4}), (400, 1, {"dense": 5e6, "compute": 1e-3})):
        one = result(case(args, workers=workers, servers=servers, rounds=8, **changes))
        assert 0.9 <= one["shares"][one["busiest"]] <= 1.001, one
    # The wire: a server cannot give more than its wire takes.
    dense = result(case(args, workers=200, servers=1, dense=5e6, rounds=4))
    assert dense["steps_per_second"] <= 1.01 * args.wire / 5e6, dense
    # Entries that are sent to servers one by one cannot be faster.
    each = result(case(args, workers=300, servers=32, rounds=6, eager=10**9))["steps_per_second"]
    assert each <= 1.02 * result(case(args, workers=300, servers=32, rounds=6, eager=4))["steps_per_second"]
    print("all is as it must be")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workers", type=int)
    parser.add_argument("--servers", type=int, default=16)
    parser.add_argument("--rows", type=float, default=512, help="that a step looks up and pushes (%(default)s)")
    parser.add_argument("--dim", type=int, default=32)
    parser.add_argument("--dense", type=float, default=17e3, help="bytes of dense weights (%(default)s)")
    parser.add_argument("--compute", type=float, default=10e-3, help="seconds of a step (%(default)s)")
    parser.add_argument("--message", type=float, default=4e-6, help="seconds of a thread that moves a message (%(default)s)")
    parser.add_argument("--work", type=float, default=4e-6, help="seconds of a thread that takes a message (%(default)s)")
    parser.add_argument("--byte", type=float, default=0.25e-9, help="seconds a byte, for each of these (%(default)s)")
    parser.add_argument("--row-look-up", type=float, default=40e-9)
    parser.add_argument("--row-update", type=float, default=80e-9)
    parser.add_argument("--dense-update", type=float, default=0.5e-9, help="seconds a byte")
    parser.add_argument("--latency", type=float, default=30e-6, help="seconds one way (%(default)s)")
    parser.add_argument("--wire", type=float, default=1.25e9, help="bytes a second in each direction (%(default)s)")
    parser.add_argument("--slow", type=float, default=1, help="how many times as long the first server takes")
    parser.add_argument("--rounds", type=int, default=10, help="steps of each worker (%(default)s)")
    parser.add_argument("--eager", type=int, default=4, help="entries that a server may lack before others wait (%(default)s)")
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    if args.check:
        return check(args)
    cases = CASES if args.workers is None else [("this case", {}, [(args.workers, args.servers)])]
    if not args.json:
        print(f"{'':50} workers, servers, steps a second, of computing alone, what is busiest")
    for title, changes, sizes in cases:
        for workers, servers in sizes:
            one = result(case(args, workers=workers, servers=servers, **changes))
            print(json.dumps(one), flush=True) if args.json else show(title, one)


if __name__ == "__main__":
    main()
