"""Measures and prints for all rivals: one JSON line of median, p10 and p90 over blocks."""
import json
import math
import os
import sys
import time


def summary(seconds):
    """Of the seconds of a call in each block."""
    ordered = sorted(seconds)
    at = lambda share: 1e3 * ordered[round(share * (len(ordered) - 1))]
    return {"median": at(0.5), "p10": at(0.1), "p90": at(0.9)}


def measure(repeat, blocks, block_seconds, before_block=lambda: None, agree=lambda calls: calls):
    """Times `repeat(n)`, which makes n calls; `agree` may change n: so that ranks take the same, or whole calls of many."""
    before_block()
    repeat(agree(3))
    calls = agree(1)
    while True:
        before_block()
        start = time.perf_counter()
        repeat(calls)
        took = time.perf_counter() - start
        wanted = calls if took >= block_seconds else max(calls + 1, min(calls * 100, math.ceil(calls * block_seconds / max(took, 1e-7) * 1.05)))
        wanted = agree(wanted)
        if wanted <= calls:
            break
        calls = wanted
    seconds = []
    for _ in range(blocks):
        before_block()
        start = time.perf_counter()
        repeat(calls)
        seconds.append((time.perf_counter() - start) / calls)
    return summary(seconds)


def peak_memory_mib():
    """The largest part of memory that this process has had."""
    with open("/proc/self/status") as status:
        for line in status:
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) / 1024
    return 0


def report(**values):
    print(json.dumps(values), flush=True)


def end_ranks(barrier):
    """Ends the process once all ranks are through. PyTorch's threads are not taken down one by one: now and then one of
    them was left when the process ended, and aborted it ("terminate called without an active exception")."""
    barrier()
    sys.stdout.flush()
    os._exit(0)
