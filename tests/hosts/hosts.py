"""Hosts that are network namespaces of this machine, and workers on them: what scripts/test-hosts consists of.

Nothing of it is left, however the process that uses it ends: a namespace has no name and ends with the process that
holds it, all processes are killed where that which started them ends, and there are no files.
"""

import os
import re
import secrets
import shutil
import signal
import subprocess
import threading
import time

from left_overs import MARK, left_on_host

UNTIL_THIS_ENDS = ('setpriv', '--pdeathsig', 'KILL', '--')  # before a command: it is killed where this process ends
PORT = 4000
LOST = 2.0  # seconds, where a case names no other
EXPECTED_WAIT = 40.0  # seconds for what should happen at once, on a machine that has other work too

token = os.environ.get(f'{MARK}_TOKEN') or secrets.token_hex(8)
secret = secrets.token_hex(16)

# What drops packets: the kernel's netem is often not there. Section, and what the program does.
PACKET_PROGRAMS = """
#define IN(name) __attribute__((section(name), used))
static unsigned (*const random_number)(void) = (void*)7;
enum { kPass = 0, kDrop = 2 };
IN("drop") int drop_all(void* packet) { return kDrop; }
IN("lose1") int lose_1_percent(void* packet) { return random_number() < 42949673u ? kDrop : kPass; }
IN("lose5") int lose_5_percent(void* packet) { return random_number() < 214748365u ? kDrop : kPass; }
IN("lose30") int lose_30_percent(void* packet) { return random_number() < 1288490189u ? kDrop : kPass; }
IN("license") char license_of_all[] = "GPL";
"""


class Settings:
    """What the user of scripts/test-hosts has asked for."""

    long = False
    seeds = 1


class Failed(Exception):
    """A case has not come out as it should."""


class Skipped(Exception):
    """A case cannot run on this machine."""


def check(holds, text):
    if not holds:
        raise Failed(text)


def first_line(text):
    return text.strip().split('\n')[0]


def run(*words):
    done = subprocess.run(words, capture_output=True, text=True, stdin=subprocess.DEVNULL)
    if done.returncode != 0:
        raise Skipped(f'`{" ".join(words)}`: {first_line(done.stderr or done.stdout)}')
    return done


class Packets:
    """The compiled PACKET_PROGRAMS, in memory, so that no file can be left."""

    def __init__(self):
        compiler = next((c for c in ('clang', 'clang-16', 'clang-14') if shutil.which(c)), None)
        if not compiler:
            raise Skipped('there is no clang, which compiles what drops packets')
        done = subprocess.run([compiler, '-O2', '-w', '-target', 'bpf', '-x', 'c', '-c', '-', '-o', '-'],
                              input=PACKET_PROGRAMS.encode(), capture_output=True)
        if done.returncode != 0:
            raise Skipped(f'{compiler} cannot compile for bpf: {first_line(done.stderr.decode())}')
        self.file = os.memfd_create('packets')
        os.write(self.file, done.stdout)
        self.path = f'/proc/{os.getpid()}/fd/{self.file}'


_packets = []


def packets():
    """The one that all cases share."""
    if not _packets:
        _packets.append(Packets())
    return _packets[0]


class Host:
    """A network namespace. It lasts as long as the process that holds it, which ends with this one. Its mounts are its
    own: tc mounts a file system where it loads a program, and /tmp and /dev/shm begin empty, so that what is left there
    is left by the workers."""

    def __init__(self, name):
        self.name = name
        self.holder = subprocess.Popen(
            [*UNTIL_THIS_ENDS, 'unshare', '--net', '--uts', '--mount', '--', 'sh', '-c',
             'hostname "$0" && mount -t tmpfs tmpfs /tmp && mount -t tmpfs tmpfs /dev/shm && echo ready && exec cat',
             name],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            env=os.environ | {MARK: token})
        if self.holder.stdout.readline() != 'ready\n':
            raise Skipped(f'no namespaces: {self.holder.stderr.read().strip()}')
        self.do('ip', 'link', 'set', 'lo', 'up')

    def inside(self, *words):
        return ['nsenter', f'--target={self.holder.pid}', '--net', '--uts', '--mount', '--', *words]

    def do(self, *words):
        return run(*self.inside(*words))

    def left(self):
        """What the workers have left here. None of them lives any more."""
        return [f'{one} on {self.name}' for one in left_on_host(self.holder.pid)]

    def end(self):
        self.holder.kill()
        self.holder.wait()
        for pipe in (self.holder.stdin, self.holder.stdout, self.holder.stderr):
            pipe.close()


class Hosts:
    """Hosts that a switch connects. Host i has the address 10.77.0.i, from 1."""

    def __init__(self, count):
        self.all = []
        self.workers = []
        self.burners = []
        self.between = []  # what connects them
        try:
            self.connect(count)
        except BaseException:
            self.end()
            raise

    def connect(self, count):
        self.switch = Host('switch')
        self.between.append(self.switch)
        self.switch.do('ip', 'link', 'add', 'switch', 'type', 'bridge')
        self.switch.do('ip', 'link', 'set', 'switch', 'up')
        for i in range(1, count + 1):
            self.add_host(i, self.switch)
            self.switch.do('ip', 'link', 'set', f'port{i}', 'master', 'switch', 'up')

    def add_host(self, i, there):
        """Host i, with a cable to the port `port`i of the host that is there."""
        host = Host(f'host{i}')
        self.all.append(host)
        there.do('ip', 'link', 'add', f'port{i}', 'type', 'veth', 'peer', 'name', 'eth0', 'netns', str(host.holder.pid))
        host.do('ip', 'addr', 'add', f'10.77.0.{i}/24', 'dev', 'eth0')
        host.do('ip', 'link', 'set', 'eth0', 'up')

    def host(self, i):
        return self.all[i - 1]

    def __enter__(self):
        return self

    def __exit__(self, kind, *_):
        try:
            self.end_processes()
            left = [one for host in self.all for one in host.left()]
            check(kind or not left, f'its workers have left {", ".join(left)}')
        finally:
            self.end()

    def end_processes(self):
        for worker in self.workers:
            worker.end()
        self.end_burners()

    def end_burners(self):
        for burner in self.burners:
            burner.kill()
            burner.wait()
        self.burners.clear()

    def end(self):
        self.end_processes()
        for host in [*self.all, *self.between]:
            host.end()

    def burn(self, count):
        """Programs that never sleep, and take no memory."""
        for _ in range(count):
            self.burners.append(subprocess.Popen([*UNTIL_THIS_ENDS, 'sh', '-c', 'while :; do :; done'],
                                                 env=os.environ | {MARK: token}))

    def plug(self, i, in_or_out):
        """Puts the cable of host i into the switch, or pulls it."""
        self.switch.do('ip', 'link', 'set', f'port{i}', 'up' if in_or_out == 'in' else 'down')
        return time.monotonic()

    def filter_incoming(self, i, section):
        """What host i receives goes through a program of PACKET_PROGRAMS."""
        host = self.host(i)
        host.do('tc', 'qdisc', 'add', 'dev', 'eth0', 'clsact')
        host.do('tc', 'filter', 'add', 'dev', 'eth0', 'ingress', 'bpf', 'direct-action', 'object-file', packets().path,
                'section', section)

    def filter_nothing(self, i):
        """Ends filter_incoming()."""
        self.host(i).do('tc', 'qdisc', 'del', 'dev', 'eth0', 'clsact')

    def limit(self, i, rate):
        """What host i sends is at most so fast."""
        host = self.host(i)
        host.do('tc', 'qdisc', 'add', 'dev', 'eth0', 'root', 'handle', '1:', 'htb', 'default', '1')
        host.do('tc', 'class', 'add', 'dev', 'eth0', 'parent', '1:', 'classid', '1:1', 'htb', 'rate', rate,
                'ceil', rate, 'burst', '64k', 'cburst', '64k', 'quantum', '60000')

    def start(self, i, index, flags=(), **environment):
        worker = Worker(self.host(i), i, index, flags, environment)
        self.workers.append(worker)
        return worker

    def start_all(self, places, flags=(), **environment):
        """One worker for each entry of `places`, on the host that it names."""
        variables = variables_of(len(places)) | environment
        return [self.start(i, w, flags, LOCKSTEP_WORKER_INDEX=str(w), **variables) for w, i in enumerate(places)]


def variables_of(count):
    return {'LOCKSTEP_NUM_WORKERS': str(count), 'LOCKSTEP_CHIEF_ADDRESS': f'10.77.0.1:{PORT}',
            'LOCKSTEP_SECRET': secret}


class Worker:
    """A process of hosts_worker, and what it has printed."""

    program = None  # its path

    def __init__(self, host, place, index, flags, environment):
        self.index = index
        self.place = place  # the host's number
        self.lines = []  # (time, text)
        self.rest = []  # what it printed without a time
        self.changed = threading.Condition()
        kept = {name: value for name, value in os.environ.items()
                if name in ('PATH', 'HOME', 'LD_LIBRARY_PATH') or name.endswith('SAN_OPTIONS')}
        given = {k: v for k, v in environment.items() if v is not None}
        self.process = subprocess.Popen(
            [*UNTIL_THIS_ENDS, *host.inside(Worker.program, *flags)], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT, text=True, errors='replace', env=kept | given | {MARK: token})
        self.reader = threading.Thread(target=self.read, daemon=True)
        self.reader.start()

    def read(self):
        for line in self.process.stdout:
            found = re.match(r'(\d+\.\d+) (.*)', line)
            with self.changed:
                if found:
                    self.lines.append((float(found[1]) / 1000, found[2]))
                else:
                    self.rest.append(line.rstrip())
                self.changed.notify_all()
        with self.changed:
            self.lines.append((time.monotonic(), 'ended'))
            self.changed.notify_all()

    def expect(self, pattern, within=EXPECTED_WAIT, after=0.0):
        """The time and the text of the first line that matches from its beginning on. A worker that ends without it, or
        does not print it in time, fails the case."""
        end = time.monotonic() + within
        seen = 0
        with self.changed:
            while True:
                for when, text in self.lines[seen:]:
                    if when >= after and re.match(pattern, text):
                        return when, text
                    if text == 'ended':
                        raise Failed(f'worker {self.index} ended without "{pattern}": {self.last()}')
                seen = len(self.lines)
                left = end - time.monotonic()
                if left <= 0:
                    raise Failed(f'worker {self.index} has not printed "{pattern}" in {within:.1f} s: {self.last()}')
                self.changed.wait(left)

    def has_printed(self, pattern, after=0.0):
        with self.changed:
            return any(when >= after and re.match(pattern, text) for when, text in self.lines)

    def calls(self, until):
        """How many it had made by then."""
        with self.changed:
            counts = [int(text[5:]) for when, text in self.lines if when <= until and text.startswith('call ')]
        return max(counts, default=0)

    def last(self):
        """What it printed last, besides the counts of calls."""
        told = [text for _, text in self.lines if not re.match(r'call \d|ended', text)]
        calls = [text for _, text in self.lines if re.match(r'call \d', text)]
        return ' // '.join(self.rest[-3:] + told[-3:] + calls[-1:])

    def signal(self, number):
        self.process.send_signal(number)
        return time.monotonic()

    def end_code(self, within=EXPECTED_WAIT):
        try:
            code = self.process.wait(within)
        except subprocess.TimeoutExpired:
            raise Failed(f'worker {self.index} has not ended in {within:.0f} s: {self.last()}') from None
        self.reader.join()
        return code

    def end(self):
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        self.reader.join()
        self.process.stdout.close()


def expect_joined(workers, engine, within=EXPECTED_WAIT):
    for worker in workers:
        worker.expect(f'joined {engine}: ', within)
    for worker in workers:
        worker.expect(r'call \d\d')


def expect_good_end(workers):
    """Stops the workers by the first of them; gives the calls that all have made, and the longest of them."""
    workers[0].signal(signal.SIGTERM)
    return expect_done(workers)


def expect_done(workers):
    ends = set()
    longest = 0.0
    for worker in workers:
        text = worker.expect('done|failed|wrong')[1]
        found = re.match(r'done after (\d+) calls.* the longest call ([\d.]+) s', text)
        check(found, f'worker {worker.index}: {text}')
        ends.add(int(found[1]))
        longest = max(longest, float(found[2]))
        code = worker.end_code()
        check(code == 0, f'worker {worker.index} ended with code {code}: {worker.last()}')
    check(len(ends) == 1, f'the workers made different numbers of calls: {sorted(ends)}')
    return ends.pop(), longest


def expect_verdict(survivors, since, bound, named):
    """All of these workers report within the bound; one text, which names a worker of `named`, after as many calls.
    Gives the earliest and the latest of their times."""
    texts = set()
    times = []
    for worker in survivors:
        when, text = worker.expect('failed after|done|wrong', within=bound + 10)
        check(text.startswith('failed after'), f'worker {worker.index}: {text}')
        times.append(when - since)
        texts.add(text)
        name = re.search(r'worker (\d+) \(process', text)
        says = f'worker {worker.index} reported after {when - since:.2f} s: {text}'
        check(name and int(name[1]) in named, f'it names none of the workers {sorted(named)}: {says}')
        check(when - since <= bound, f'that is later than {bound:.1f} s: {says}')
        code = worker.end_code()
        check(code == 75, f'worker {worker.index} ended with code {code}: {worker.last()}')
    check(len(texts) == 1, f'workers that reach each other report different texts: {" // ".join(sorted(texts))}')
    return min(times), max(times)


def span(times):
    return f'{times[0]:.2f} to {times[1]:.2f} s'


def flags_of(lost=LOST, join=30.0, **more):
    words = ['--lost', str(int(lost * 1000)), '--join', str(int(join * 1000))]
    for name, value in more.items():
        words += [f'--{name}', str(value)]
    return words
