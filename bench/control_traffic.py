#!/usr/bin/env python3
"""What a step's control traffic costs with many workers: the protocol of lockstep/comm/network, message by message.

In a call each worker sends a record to every other one, and when it has all of theirs, tells every other one that it
has taken the call; it returns when all have said so. A worker sends and receives one message at a time. A step over a
network has three agreements and two exchanges (docs/multi-worker.md), and every worker sends a heartbeat to every other
one by TCP and as a datagram in each tick. The bytes of gradients are left out: only what is said about them is counted.

    bench/control_traffic.py                       # 2 to 1,024 workers
    bench/control_traffic.py --workers 4096        # takes minutes
    bench/control_traffic.py --check               # compares small cases with a plain simulation of events

docs/scaling.md has the results, and where the constants come from.
"""
import argparse
import heapq
import json
import random

CALLS = 5  # of a step: the meeting, which gradients, partial sums, sums, the end
TICK = 0.25  # seconds between heartbeats where .timeouts.lost is 5 s


def arrivals(start, latency, send, late):
    """By receiver, when each other worker's message is there; every worker sends in the order after its own index."""
    workers = len(start)
    result = [[] for _ in range(workers)]
    for w in range(workers):
        at = start[w]
        for k in range(1, workers):
            at += send
            result[(w + k) % workers].append(at + latency + late())
    return result


def all_to_all(start, latency, send, receive, late):
    """When each worker has sent to all others from `start` on, and has received what they sent."""
    workers = len(start)
    ends = []
    for w, times in enumerate(arrivals(start, latency, send, late)):
        busy = start[w] + send * (workers - 1)  # it receives when it has sent
        for time in sorted(times):
            busy = max(busy, time) + receive
        ends.append(busy)
    return ends


def all_to_all_by_events(start, latency, send, receive):
    """The same with a queue of events and no shortcut, for --check."""
    workers = len(start)
    events = []  # (time, worker that is free or gets a message, is it a message)
    for w in range(workers):
        for k in range(1, workers):
            heapq.heappush(events, (start[w] + send * k + latency, (w + k) % workers))
    busy = [start[w] + send * (workers - 1) for w in range(workers)]
    while events:
        time, worker = heapq.heappop(events)
        busy[worker] = max(busy[worker], time) + receive
    return busy


def step(workers, args, seed):
    """Seconds that the slowest worker spends in the calls of a step."""
    draw = random.Random(seed)
    late = (lambda: draw.expovariate(1 / args.jitter)) if args.jitter > 0 else (lambda: 0.0)
    now = [0.0] * workers
    for _ in range(CALLS):
        now = all_to_all(now, args.latency, args.send, args.receive, late)  # records
        now = all_to_all(now, args.latency, args.send, args.receive, late)  # "taken"
    return max(now)


def row(workers, args):
    seconds = step(workers, args, seed=1)
    messages = 2 * CALLS * (workers - 1)
    beats = 2 * (workers - 1)
    return {
        "workers": workers,
        "step_ms": 1e3 * seconds,
        "percent_of_step": 100 * seconds / args.step,
        "messages_of_a_worker": messages,  # the chief sends no more than any other
        "record_bytes_of_a_worker": CALLS * (workers - 1) * (args.record + args.head),
        "heartbeat_percent_of_a_core": 100 * beats * (args.send + args.receive) / TICK,
        "join_mib_of_the_chief": workers * workers * args.member / 2**20,
    }


def check():
    draw = random.Random(2)
    for workers in (2, 3, 8, 33):
        start = [draw.random() for _ in range(workers)]
        fast = all_to_all(start, 0.3, 0.01, 0.02, lambda: 0.0)
        plain = all_to_all_by_events(start, 0.3, 0.01, 0.02)
        assert all(abs(a - b) < 1e-12 for a, b in zip(fast, plain)), (workers, fast, plain)
    print("both simulations agree")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workers", type=int, nargs="*", default=[2, 4, 8, 16, 64, 256, 1024])
    parser.add_argument("--step", type=float, default=0.3, help="seconds of a step without control traffic")
    parser.add_argument("--latency", type=float, default=4e-6, help="seconds from worker to worker")
    parser.add_argument("--send", type=float, default=2.5e-6, help="seconds of a core to send one message")
    parser.add_argument("--receive", type=float, default=2.5e-6, help="seconds of a core to receive one")
    parser.add_argument("--jitter", type=float, default=1e-6, help="mean of what a message is late, at random")
    parser.add_argument("--record", type=int, default=200, help="bytes of a record")
    parser.add_argument("--head", type=int, default=24, help="bytes of a message's head and of 'taken'")
    parser.add_argument("--member", type=int, default=100, help="bytes by which worker 0 tells of one worker")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--check", action="store_true")
    args = parser.parse_args()
    if args.check:
        return check()
    if any(workers < 2 for workers in args.workers):
        parser.error("--workers takes numbers of at least 2")
    rows = [row(workers, args) for workers in args.workers]
    if args.json:
        return print(json.dumps(rows, indent=2))
    print("workers  calls of a step, ms  % of a step  messages  records, KiB  heartbeats, % of a core  join, MiB")
    for one in rows:
        print(
            f"{one['workers']:7}  {one['step_ms']:19.2f}  {one['percent_of_step']:11.2f}"
            f"  {one['messages_of_a_worker']:8}  {one['record_bytes_of_a_worker'] / 1024:12.1f}"
            f"  {one['heartbeat_percent_of_a_core']:24.2f}  {one['join_mib_of_the_chief']:9.2f}"
        )


if __name__ == "__main__":
    main()
