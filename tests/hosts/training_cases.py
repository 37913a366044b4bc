"""Cases of scripts/test-hosts in which workers train: whom the survivors name, and that they have a completed step."""

import re
import time

from hard_cases import expect_no_alarm, two_cores
from hosts import (EXPECTED_WAIT, LOST, Hosts, Settings, check, expect_good_end, expect_joined, expect_verdict, flags_of,
                   packets, span)

SLACK = 1.0  # how many seconds later than `lost` a worker may report


def digest_of(worker, within=EXPECTED_WAIT):
    """Of the weights and slots that it has at its end."""
    return worker.expect(r'has \w', within)[1].split()[1]


def digest_after(hosts, steps, within=EXPECTED_WAIT):
    """The digest after so many steps of a process that is alone."""
    return digest_of(hosts.start(1, 0, flags_of(calls=steps, train='yes')), within)


def expect_completed_step(hosts, survivors):
    """These workers, which reach each other and have failed, have the bits of one completed step: the last that they
    counted, or that which was under way. Gives its number."""
    digests = {digest_of(worker) for worker in survivors}
    made = int(re.match(r'failed after (\d+) calls', survivors[0].expect('failed after')[1])[1])
    check(len(digests) == 1, f'after {made} steps they have different weights: {sorted(digests)}')
    found = digests.pop()
    for steps in (made, made + 1):
        if steps > 0 and digest_after(hosts, steps) == found:
            return steps
    check(False, f'after {made} steps the weights of workers {[w.index for w in survivors]} are of no completed step')


def expect_sides(hosts, sides, since, bound, named):
    """Each side, workers that reach each other, reports in time and has a completed step."""
    words = []
    for side, names in zip(sides, named):
        times = expect_verdict(side, since, bound, names)
        words.append(f'{[w.index for w in side]} after {span(times)}')
    # Only now, because the processes that compute this take time from those that are to report.
    steps = [expect_completed_step(hosts, side) for side in sides]
    check(max(steps) - min(steps) <= 1, f'the sides have steps {steps}')
    return f'{", ".join(words)}, with the weights of steps {sorted(set(steps))}'


def trains_until_a_host_is_cut_off():
    words = []
    for places, cut in (([1, 1, 2, 2], 2), ([1, 2, 3], 3), ([1, 2, 3], 1)):
        with Hosts(max(places)) as hosts:
            workers = hosts.start_all(places, flags_of(train='yes'))
            expect_joined(workers, 'tls')
            since = time.monotonic()
            hosts.plug(cut, 'out')
            here = [w for w in workers if w.place == cut]
            there = [w for w in workers if w.place != cut]
            named = [{w.index for w in there}, {w.index for w in here}]
            words.append(f'host {cut} of {places}: ' + expect_sides(hosts, [here, there], since, LOST + SLACK, named))
    return '; '.join(words)


def trains_until_one_way_is_cut():
    words = []
    packets()
    for places, deaf in (([1, 1, 2, 2], 1), ([1, 1, 2, 2], 2), ([1, 2, 3], 3)):
        with Hosts(max(places)) as hosts:
            workers = hosts.start_all(places, flags_of(train='yes'))
            expect_joined(workers, 'tls')
            since = time.monotonic()
            hosts.filter_incoming(deaf, 'drop')
            sides = [[w for w in workers if w.place == deaf], [w for w in workers if w.place != deaf]]
            everybody = {w.index for w in workers}
            words.append(f'host {deaf} of {places} hears nothing: ' +
                         expect_sides(hosts, sides, since, 2 * LOST + SLACK / 2, [everybody, everybody]))
    return '; '.join(words)


def trains_under_full_load():
    """Four workers and two programs that never sleep, on two cores. The bits are those of one process."""
    seconds = 1800 if Settings.long else 60
    with Hosts(2) as hosts, two_cores() as cores:
        workers = hosts.start_all([1, 1, 2, 2], flags_of(lost=5, join=120.0, train='yes'))
        expect_joined(workers, 'tls', within=120)
        hosts.burn(2)
        expect_no_alarm(workers, seconds)
        steps, longest = expect_good_end(workers)
        hosts.end_burners()
        digests = {digest_of(worker) for worker in workers}
        expected = digest_after(hosts, steps, within=2 * seconds)
        check(digests == {expected}, f'after {steps} steps the weights are {sorted(digests)}, alone {expected}')
        return (f'on {cores} cores {steps} steps in {seconds} s without a false alarm, the longest {longest:.2f} s, with '
                'the bits of one process')


CASES = [trains_until_a_host_is_cut_off, trains_until_one_way_is_cut, trains_under_full_load]
