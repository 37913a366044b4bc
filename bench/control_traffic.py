#!/usr/bin/env python3
"""What a step's control traffic costs with many workers: the protocol of lockstep/comm/network, message by message.

A step over a network has five agreements and two exchanges: bench/many_workers counts them. At the end of each of these calls
all workers tell each other that they have taken it. Up to 16 workers send a record, and then "taken", to each other
one. With more of them records and "taken" go in rounds of doubling distance (lockstep/comm/network/dissemination.h). A
worker sends and receives one message at a time. Each worker sends heartbeats to those with whom it deals in rounds, by
TCP and as a datagram in each tick. When all have come, the list of members goes from worker 0 down a binomial tree.

The bytes of gradients are left out: only what is said about them is counted. An exchange sends a message from each
worker to each other one, which has gradients; what these messages cost beside their bytes is a column of its own.

    bench/control_traffic.py                       # 2 to 4,096 workers
    bench/control_traffic.py --direct              # as if any number of workers sent to each other one
    bench/control_traffic.py --check               # compares small cases with a plain simulation of events
"""
import argparse
import heapq
import json
import random

AGREEMENTS = 5  # of a step: its begin, the meeting, which gradients, the end of all replicas, the end
EXCHANGES = 2  # partial sums, sums
MOST_DIRECT = 16
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


def rounds(start, latency, send, receive, late):
    """When each worker has all records, or "taken" of all, where these go in rounds from `start` on."""
    workers = len(start)
    now = list(start)
    distance = 1
    while distance < workers:
        sent = [time + send for time in now]
        there = [sent[(w + distance) % workers] + latency + late() for w in range(workers)]
        now = [max(sent[w], there[w]) + receive for w in range(workers)]
        distance *= 2
    return now


def num_rounds(workers):
    return (workers - 1).bit_length()


def step(workers, args, seed):
    """Seconds that the slowest worker spends in the control traffic of a step, and in all messages of its calls."""
    draw = random.Random(seed)
    late = (lambda: draw.expovariate(1 / args.jitter)) if args.jitter > 0 else (lambda: 0.0)
    control = all_to_all if workers <= MOST_DIRECT or args.direct else rounds
    constants = (args.latency, args.send, args.receive, late)
    now = [0.0] * workers
    for _ in range(AGREEMENTS):
        now = control(control(now, *constants), *constants)  # records, "taken"
    for _ in range(EXCHANGES):
        now = control(now, *constants)
    of_control = max(now)
    for _ in range(EXCHANGES):
        now = all_to_all(now, *constants)
    return of_control, max(now) - of_control


def row(workers, args):
    control, data = step(workers, args, seed=1)
    is_direct = workers <= MOST_DIRECT or args.direct
    partners = workers - 1 if is_direct else num_rounds(workers)
    neighbours = workers - 1 if is_direct else len(neighbours_of(0, workers))
    children = workers - 1 if is_direct else num_rounds(workers)
    # Equal records are one: each message has one, whatever number of workers it is of.
    record = AGREEMENTS * partners * (args.record + args.head + (0 if is_direct else 16))
    return {
        "workers": workers,
        "control_ms": 1e3 * control,
        "percent_of_step": 100 * control / args.step,
        "data_messages_ms": 1e3 * data,
        "control_messages_of_a_worker": (2 * AGREEMENTS + EXCHANGES) * partners,  # the chief sends no more
        "record_bytes_of_a_worker": record,
        "heartbeat_percent_of_a_core": 100 * 2 * neighbours * (args.send + args.receive) / TICK,
        "reading_ms": 1e3 * args.read * AGREEMENTS * workers,
        "join_mib_of_the_chief": (children * workers * args.member + workers * args.head) / 2**20,
    }


def neighbours_of(worker, workers):
    distances = [2**k for k in range(num_rounds(workers))]
    return {(worker + sign * d) % workers for d in distances for sign in (1, -1)}


def rounds_by_events(start, latency, send, receive):
    """As rounds(), with a queue of events; a message of a later round waits until its turn."""
    workers = len(start)
    events = []  # (time, the worker that gets a message, its round)
    here = [set() for _ in range(workers)]
    round_of = [0] * workers
    free = list(start)

    def tell(w):
        free[w] += send
        heapq.heappush(events, (free[w] + latency, (w - 2 ** round_of[w]) % workers, round_of[w]))

    for w in range(workers):
        tell(w)
    while events:
        time, w, number = heapq.heappop(events)
        here[w].add((number, time))
        while round_of[w] < num_rounds(workers):
            arrived = [at for k, at in here[w] if k == round_of[w]]
            if not arrived:
                break
            free[w] = max(free[w], arrived[0]) + receive
            round_of[w] += 1
            if round_of[w] < num_rounds(workers):
                tell(w)
    return free


def check():
    draw = random.Random(2)
    for workers in (2, 3, 8, 33):
        start = [draw.random() for _ in range(workers)]
        fast = all_to_all(start, 0.3, 0.01, 0.02, lambda: 0.0)
        plain = all_to_all_by_events(start, 0.3, 0.01, 0.02)
        assert all(abs(a - b) < 1e-12 for a, b in zip(fast, plain)), (workers, fast, plain)
        fast = rounds(start, 0.3, 0.01, 0.02, lambda: 0.0)
        plain = rounds_by_events(start, 0.3, 0.01, 0.02)
        assert all(abs(a - b) < 1e-12 for a, b in zip(fast, plain)), (workers, fast, plain)
    print("the simulations agree")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workers", type=int, nargs="*", default=[2, 4, 8, 16, 17, 64, 256, 1024, 4096])
    parser.add_argument("--step", type=float, default=0.3, help="seconds of a step without control traffic")
    parser.add_argument("--latency", type=float, default=4e-6, help="seconds from worker to worker")
    parser.add_argument("--send", type=float, default=2.5e-6, help="seconds of a core to send one message")
    parser.add_argument("--receive", type=float, default=2.5e-6, help="seconds of a core to receive one")
    parser.add_argument("--jitter", type=float, default=1e-6, help="mean of what a message is late, at random")
    parser.add_argument("--record", type=int, default=200, help="bytes of a record")
    parser.add_argument("--head", type=int, default=24, help="bytes of a message's head and of 'taken'")
    parser.add_argument("--read", type=float, default=0.0, help="seconds to read one worker's record: bench/many_workers")
    parser.add_argument("--direct", action="store_true", help="no rounds, whatever the number of workers")
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
    names = ["workers", "control, ms", "% of a step", "reading, ms", "messages", "records, KiB", "heartbeats, % of a core"]
    names += ["join, MiB", "messages of data, ms"]
    print("  ".join(names))
    for one in rows:
        values = [
            f"{one['workers']}",
            f"{one['control_ms']:.2f}",
            f"{one['percent_of_step']:.2f}",
            f"{one['reading_ms']:.2f}",
            f"{one['control_messages_of_a_worker']}",
            f"{one['record_bytes_of_a_worker'] / 1024:.1f}",
            f"{one['heartbeat_percent_of_a_core']:.2f}",
            f"{one['join_mib_of_the_chief']:.2f}",
            f"{one['data_messages_ms']:.2f}",
        ]
        print("  ".join(value.rjust(len(name)) for value, name in zip(values, names)))


if __name__ == "__main__":
    main()
