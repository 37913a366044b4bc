"""Cases of scripts/test-hosts in which the machine or the network works badly, and those that are run with seeds."""

import contextlib
import os
import random
import re
import signal
import time

from forwarder import ForwardedHosts
from hosts import (LOST, Failed, Hosts, Settings, check, expect_done, expect_good_end, expect_joined,
                   expect_verdict, flags_of, packets, span)

SMALL = {'bytes': 100000, 'pause': 1}  # what the calls of most cases exchange
LARGE = {'bytes': 4 << 20}
AT_ONCE = 1.0  # seconds until all know of what the system tells one of them


def with_seeds(case):
    """Runs a case once for each of --seeds. Its random numbers decide when something happens, and to whom."""
    def run():
        words = []
        for seed in range(1, Settings.seeds + 1):
            try:
                words.append(case(random.Random(seed)))
            except Failed as why:
                raise Failed(f'seed {seed}: {why}') from None
        times = [float(word) for word in words]
        return f'{len(words)} seed{"s" if len(words) > 1 else ""}, the slowest after {max(times):.3f} s'
    run.__name__ = case.__name__
    return run


@contextlib.contextmanager
def two_cores():
    """What starts meanwhile runs on two cores, or on the one that there is."""
    allowed = os.sched_getaffinity(0)
    chosen = sorted(allowed)[:2]
    os.sched_setaffinity(0, chosen)
    try:
        yield len(chosen)
    finally:
        os.sched_setaffinity(0, allowed)


def expect_no_alarm(workers, seconds):
    """For so long no worker fails, ends or warns."""
    begin = time.monotonic()
    while time.monotonic() < begin + seconds:
        for worker in workers:
            check(not worker.has_printed('failed|ended|wrong|log: ', begin), f'worker {worker.index}: {worker.last()}')
        time.sleep(1)


def bears_full_load():
    """Eight workers and two programs that never sleep, on two cores."""
    seconds = 1800 if Settings.long else 60
    with Hosts(2) as hosts, two_cores() as cores:
        workers = hosts.start_all([1, 1, 1, 1, 2, 2, 2, 2], flags_of(lost=5, join=120.0, **SMALL))
        expect_joined(workers, 'tls', within=120)
        hosts.burn(2)
        expect_no_alarm(workers, seconds)
        calls, longest = expect_good_end(workers)
        return f'on {cores} cores {calls} calls in {seconds} s, the longest {longest:.2f} s'


def bears_loss(section, seconds):
    """What is promised of up to 5 %: no worker is given up, and the calls go on."""
    packets()
    with Hosts(2) as hosts:
        for i in (1, 2):
            hosts.filter_incoming(i, section)
        begin = time.monotonic()
        workers = hosts.start_all([1, 1, 2, 2], flags_of(lost=5, **SMALL))
        expect_joined(workers, 'tls')
        joined = time.monotonic() - begin
        expect_no_alarm(workers, seconds)
        calls, longest = expect_good_end(workers)
        return f'joined after {joined:.1f} s, {calls} calls in {seconds} s, the longest {longest:.2f} s'


def bears_one_percent_of_loss():
    return bears_loss('lose1', 30)


def bears_five_percent_of_loss():
    return bears_loss('lose5', 1800 if Settings.long else 60)


def goes_on_or_ends_at_thirty_percent_of_loss():
    """What is promised of more: the calls go on, however slowly, or all workers report one failure. No worker hangs."""
    seconds = 30
    packets()
    with Hosts(2) as hosts:
        workers = hosts.start_all([1, 1, 2, 2], flags_of(lost=5, **SMALL))
        expect_joined(workers, 'tls')
        for i in (1, 2):
            hosts.filter_incoming(i, 'lose30')
        since = time.monotonic()
        while time.monotonic() < since + seconds:
            if any(worker.has_printed('failed|ended') for worker in workers):
                return f'ended after {span(expect_verdict(workers, since, seconds + 6, set(range(4))))}'
            time.sleep(0.2)
        calls = workers[0].calls(time.monotonic()) - workers[0].calls(since)
        for i in (1, 2):
            hosts.filter_nothing(i)
        # TCP may wait for as long again as it has waited last.
        mended = time.monotonic()
        for worker in workers:
            worker.expect('call ', after=mended, within=120)
        _, longest = expect_good_end(workers)
        return f'no worker was given up, {calls} calls in {seconds} s, the longest {longest:.2f} s'


def works_at_1_megabit():
    calls, size = 4, 200000
    with Hosts(2) as hosts:
        for i in (1, 2):
            hosts.limit(i, '1mbit')
        workers = hosts.start_all([1, 2], flags_of(lost=5, bytes=size, calls=calls))
        _, longest = expect_done(workers)
        check(longest > size * 8 / 1e6 / 2, f'the longest call took {longest:.2f} s: nothing was slow')
        return f'{calls} exchanges of {size} bytes in each direction, the longest {longest:.2f} s'


def bears_delay():
    """Each piece 50 to 200 ms in each direction, and no datagrams."""
    seconds = 20
    with ForwardedHosts() as hosts:
        numbers = random.Random(1)
        hosts.forwarder.delay = lambda: numbers.uniform(0.05, 0.2)
        begin = time.monotonic()
        workers = hosts.start_all([1, 2], flags_of(lost=5, **SMALL))
        for worker in workers:
            worker.expect('joined tls')
        joined = time.monotonic() - begin
        expect_no_alarm(workers, seconds)
        calls, longest = expect_good_end(workers)
        check(longest > 0.1, f'the longest call took {longest:.2f} s: nothing was delayed')
        return f'joined after {joined:.1f} s, {calls} calls in {seconds} s, the longest {longest:.2f} s'


@with_seeds
def names_the_other_side_of_reset_connections(numbers):
    """All connections, after which each side is alone, or the one that moves the bytes. Worker 0 finds nobody at worker
    1's address, and knows at once. Worker 1 gets no answer from worker 0, nor datagrams: heartbeats decide."""
    is_all = numbers.random() < 0.5
    with ForwardedHosts() as hosts:
        workers = hosts.start_all([1, 2], flags_of(**LARGE))
        for worker in workers:
            worker.expect('call ')
        time.sleep(numbers.uniform(0, 0.3))
        since = hosts.forwarder.reset(is_all)
        sides = [[one] for one in workers] if is_all else [workers]
        named = [{1}, {0}] if is_all else [{0, 1}]
        bounds = [AT_ONCE, LOST + AT_ONCE] if is_all else [AT_ONCE]
        times = [expect_verdict(*one)[1] for one in zip(sides, [since] * len(sides), bounds, named)]
        return f'{max(times):.3f}'


@with_seeds
def names_a_flipped_bit_under_tls(numbers):
    with ForwardedHosts() as hosts:
        workers = hosts.start_all([1, 2], flags_of(**LARGE))
        for worker in workers:
            worker.expect('call ')
        hosts.forwarder.flip(numbers.randrange(1 << 20, 8 << 20))
        since = hosts.forwarder.wait_for_flip()
        last = expect_verdict(workers, since, AT_ONCE, {0, 1})[1]
        text = workers[0].expect('failed')[1]
        check(re.search('changed on (their|its) way', text), f'it does not say what has happened: {text}')
        return f'{last:.3f}'


def does_not_see_a_flipped_bit_under_tcp():
    """By design: whoever trusts a network says so. The worker itself compares the bytes that it gets."""
    with ForwardedHosts() as hosts:
        workers = hosts.start_all([1, 2], flags_of(**LARGE), LOCKSTEP_TRUSTED_NETWORK='1')
        for worker in workers:
            worker.expect('joined tcp')
            worker.expect('call ')
        # Within the bytes of a message: a bit of its head would be an error.
        hosts.forwarder.flip((4 << 20) // 2)
        hosts.forwarder.wait_for_flip()
        text = workers[0].expect('wrong bytes|failed')[1]
        check(text.startswith('wrong bytes from worker 1'), f'the bit came to something else: {text}')
        return 'the receiver got it'


@with_seeds
def names_a_worker_that_is_killed(numbers):
    """Any worker, at any moment, in calls of any size."""
    with Hosts(2) as hosts:
        size = numbers.choice([0, 1000, 100000, 4 << 20])
        workers = hosts.start_all([1, 1, 2, 2], flags_of(bytes=size))
        for worker in workers:
            worker.expect('call ')
        time.sleep(numbers.uniform(0, 0.3))
        victim = numbers.choice(workers)
        since = victim.signal(signal.SIGKILL)
        survivors = [w for w in workers if w is not victim]
        return f'{expect_verdict(survivors, since, AT_ONCE, {victim.index})[1]:.3f}'


@with_seeds
def names_a_worker_that_is_stopped(numbers):
    with Hosts(2) as hosts:
        size = numbers.choice([0, 1000, 100000, 4 << 20])
        workers = hosts.start_all([1, 1, 2, 2], flags_of(bytes=size, lost=1))
        for worker in workers:
            worker.expect('call ')
        time.sleep(numbers.uniform(0, 0.3))
        victim = numbers.choice(workers)
        since = victim.signal(signal.SIGSTOP)
        survivors = [w for w in workers if w is not victim]
        return f'{expect_verdict(survivors, since, 1 + AT_ONCE, {victim.index})[1]:.3f}'


CASES = [
    bears_full_load,
    bears_one_percent_of_loss,
    bears_five_percent_of_loss,
    goes_on_or_ends_at_thirty_percent_of_loss,
    works_at_1_megabit,
    bears_delay,
    names_the_other_side_of_reset_connections,
    names_a_flipped_bit_under_tls,
    does_not_see_a_flipped_bit_under_tcp,
    names_a_worker_that_is_killed,
    names_a_worker_that_is_stopped,
]
