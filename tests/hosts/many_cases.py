"""Cases of scripts/test-hosts with so many workers that not all of them are neighbours (docs/cluster.md)."""

import time

from hosts import LOST, Hosts, expect_good_end, expect_joined, expect_verdict, flags_of, span

PLACES = [1, 2, 3] * 6
SLACK = 2.0  # how much later than `lost` and its fifth one of so many workers may report
SMALL = {'bytes': 20000, 'pause': 1}


def joins_eighteen_workers():
    with Hosts(3) as hosts:
        workers = hosts.start_all(PLACES, flags_of(lost=5, **SMALL))
        expect_joined(workers, 'tls')
        return f'{expect_good_end(workers)[0]} calls'


def names_the_other_side_of_a_cut_between_eighteen_workers():
    words = []
    for cut in (1, 3):  # worker 0's host, and another one
        with Hosts(3) as hosts:
            workers = hosts.start_all(PLACES, flags_of(**SMALL))
            expect_joined(workers, 'tls')
            since = time.monotonic()
            hosts.plug(cut, 'out')
            here = [w for w in workers if w.place == cut]
            there = [w for w in workers if w.place != cut]
            bound = 1.2 * LOST + SLACK
            first = expect_verdict(here, since, bound, {w.index for w in there})
            second = expect_verdict(there, since, bound, {w.index for w in here})
            words.append(f'host {cut} cut off: it after {span(first)}, the others after {span(second)}')
    return '; '.join(words)


def ends_where_two_that_are_no_neighbours_are_cut():
    """Workers 0 and 6 are six places apart, and twelve the other way round: no powers of two."""
    places = [3] * 18
    places[0], places[6] = 1, 2
    with Hosts(3) as hosts:
        workers = hosts.start_all(places, flags_of(**SMALL))
        expect_joined(workers, 'tls')
        since = time.monotonic()
        for i, there in ((1, 2), (2, 1)):
            hosts.host(i).do('ip', 'route', 'add', 'blackhole', f'10.77.0.{there}')
        # They wait for each other in an exchange, and ask each other for heartbeats after half of the time.
        times = expect_verdict(workers, since, 1.5 * LOST + SLACK, {0, 6})
        return span(times)


CASES = [joins_eighteen_workers, names_the_other_side_of_a_cut_between_eighteen_workers,
         ends_where_two_that_are_no_neighbours_are_cut]
