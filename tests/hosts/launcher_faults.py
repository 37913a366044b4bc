"""A worker that dies or stands still under a launcher: what the launcher does to the others, and what is left. Cases of
scripts/test-launchers."""

import glob
import os
import re
import secrets
import signal
import subprocess
import tempfile
import time

from hosts import EXPECTED_WAIT, UNTIL_THIS_ENDS, check, secret
from left_overs import MARK, files, listening_sockets, marked_processes

LOST = 1.0  # seconds
LONGEST_END = 10.0  # seconds from a failure until nothing is left
OURS_AND_MPIS = re.compile(r'lockstep|ompi|openmpi|vader|pmix|prte|ucx', re.IGNORECASE)


def rank_of(pid):
    with open(f'/proc/{pid}/environ', encoding='utf-8', errors='replace') as file:
        found = re.search(r'(?:^|\0)OMPI_COMM_WORLD_RANK=(\d+)', file.read())
    return int(found[1]) if found else None


def workers_of(token, count):
    """The workers' process ids, by rank, when all run."""
    end = time.monotonic() + EXPECTED_WAIT
    while True:
        pids = [int(name.split()[-1]) for name in marked_processes(token) if name.startswith('hosts_worker')]
        by_rank = {rank_of(pid): pid for pid in pids}
        if len(by_rank) == count:
            return by_rank
        check(time.monotonic() < end, f'{len(by_rank)} of {count} workers have started')
        time.sleep(0.05)


def texts_in(folder):
    texts = []
    for path in glob.glob(f'{folder}/out-*'):
        with open(path, encoding='utf-8') as file:
            texts.append(file.read())
    return texts


class Job:
    """Workers that mpirun has started, and that make calls until something happens."""

    def __init__(self, command, worker, engine, count, scratch):
        self.token = secrets.token_hex(8)
        self.folder = tempfile.mkdtemp(dir=scratch)
        self.before = files()
        program = [worker, '--engine', engine, '--lost', str(int(LOST * 1000)), '--bytes', '100000']
        words = ['sh', '-c', f'exec "$@" > "$(mktemp {self.folder}/out-XXXXXX)" 2>&1', 'sh', *program]
        kept = {name: os.environ[name] for name in ('PATH', 'HOME', 'LD_LIBRARY_PATH') if name in os.environ}
        self.launcher = subprocess.Popen(
            [*UNTIL_THIS_ENDS, *command(count), *words], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT, text=True,
            env=kept | {MARK: self.token, 'TMPDIR': self.folder, 'LOCKSTEP_SECRET': secret})

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.launcher.kill()
        self.launcher.wait()
        self.launcher.stdout.close()
        for name in marked_processes(self.token):
            os.kill(int(name.split()[-1]), signal.SIGKILL)

    def wait_for_calls(self, count):
        end = time.monotonic() + EXPECTED_WAIT
        while sum('call ' in text for text in texts_in(self.folder)) < count:
            check(self.launcher.poll() is None, f'it has ended too early: {" // ".join(texts_in(self.folder))}')
            check(time.monotonic() < end, 'the workers make no calls')
            time.sleep(0.05)

    def left(self, sockets, end):
        """Processes, ports and files of the job that are there at the end."""
        while True:
            left = marked_processes(self.token)
            left += [f'a port ({one})' for one in sockets & listening_sockets()]
            left += sorted(name for name in files() - self.before
                           if OURS_AND_MPIS.search(name) and not self.folder.startswith(name))
            left += glob.glob(f'{self.folder}/**/*mpi*', recursive=True)
            if not left or time.monotonic() > end:
                return left
            time.sleep(0.05)


def ends_whole(command, worker, scratch):
    """`command(count)` are the words of mpirun. By each engine a worker is killed, and one is stopped."""
    words = []
    count = 3
    for engine in ('mpi', 'tls', 'auto'):
        for number in (signal.SIGKILL, signal.SIGSTOP):
            what = f'{engine}, {number.name}'
            with Job(command, worker, engine, count, scratch) as job:
                pids = workers_of(job.token, count)
                job.wait_for_calls(count)
                sockets = listening_sockets(marked_processes(job.token))
                begin = time.monotonic()
                os.kill(pids[1], number)
                try:
                    output = job.launcher.communicate(timeout=LONGEST_END)[0]
                except subprocess.TimeoutExpired:
                    check(False, f'{what}: mpirun has not ended after {LONGEST_END:.0f} s: {texts_in(job.folder)}')
                took = time.monotonic() - begin
                left = job.left(sockets, begin + LONGEST_END)
                check(not left, f'{what}: left {LONGEST_END:.0f} s later: {", ".join(left)}')
                code = job.launcher.returncode
                check(code != 0, f'{what}: mpirun has ended with code 0')
                named = sum('LS-PEER-LOST' in text and 'worker 1 (' in text for text in texts_in(job.folder))
                # Of a rank that has died mpirun knows at once, and it may end the others before they can say anything.
                # Of one that stands still it knows nothing, until another one ends for that.
                if number == signal.SIGSTOP:
                    check(named > 0, f'{what}: no worker has named worker 1: {texts_in(job.folder)}')
                else:
                    check(re.search(r'rank 1\b.*(signal 9|Killed)', output, re.DOTALL) or named > 0,
                          f'{what}: neither mpirun nor a worker names rank 1: {output}')
                words.append(f'{what}: code {code} after {took:.1f} s, {named} workers have named it')
    return '; '.join(words)
