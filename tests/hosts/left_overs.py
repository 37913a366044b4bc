"""What workers may leave behind, and whether they have: processes, files, memory, ports, interfaces and mounts."""

import contextlib
import glob
import os
import re
import time

MARK = 'LOCKSTEP_TEST_HOSTS'  # in the environment of every process that a run starts, with its token
LISTENS = '0A'  # a state of TCP in /proc


def marked_processes(of):
    """The processes of a run, which all have its token in their environment."""
    found = []
    for folder in glob.glob('/proc/[0-9]*'):
        with contextlib.suppress(OSError), open(f'{folder}/environ', 'rb') as file:
            if f'{MARK}={of}'.encode() in file.read().split(b'\0'):
                with open(f'{folder}/comm', encoding='utf-8') as name:
                    found.append(f'{name.read().strip()} {folder[6:]}')
    return found


def left_overs(of, before):
    """Waits for an end of what a run has made, and gives what is still there."""
    end = time.monotonic() + 10
    while True:
        left = marked_processes(of)
        left += sorted(surroundings() - before)
        if not left or time.monotonic() > end:
            return left
        time.sleep(0.1)


def surroundings():
    """What a run might leave on the machine itself: an interface, or a mount by tc."""
    found = {f'interface {name}' for name in os.listdir('/sys/class/net') if re.match(r'switch|port\d', name)}
    with open('/proc/self/mounts', encoding='utf-8') as file:
        return found | {f'mount {line.split()[1]}' for line in file if '/sys/fs/bpf' in line}


def ports(pid):
    """The ports at which somebody listens, and the local sockets, of the network in which this process is."""
    found = []
    for protocol in ('tcp', 'tcp6', 'udp', 'udp6'):
        with contextlib.suppress(FileNotFoundError), open(f'/proc/{pid}/net/{protocol}', encoding='utf-8') as file:
            for line in file.readlines()[1:]:
                _, own, _, state = line.split()[:4]
                if state == LISTENS or protocol.startswith('udp'):
                    found.append(f'port {int(own.split(":")[-1], 16)} of {protocol[:3]}')
    with open(f'/proc/{pid}/net/unix', encoding='utf-8') as file:
        return found + [f'socket {line.split()[-1]}' for line in file if '@' in line]


def listening_sockets(processes=None):
    """The sockets of this network at which somebody listens by TCP: all, or those that these processes have open, which
    marked_processes() gives."""
    found = set()
    for protocol in ('tcp', 'tcp6'):
        with contextlib.suppress(FileNotFoundError), open(f'/proc/net/{protocol}', encoding='utf-8') as file:
            for line in file.readlines()[1:]:
                parts = line.split()
                if parts[3] == LISTENS:
                    found.add(f'socket:[{parts[9]}]')
    if processes is None:
        return found
    opened = set()
    for process in processes:
        for path in glob.glob(f'/proc/{process.split()[-1]}/fd/*'):
            with contextlib.suppress(OSError):
                opened.add(os.readlink(path))
    return found & opened


def files(root=''):
    """What lies where programs put what they share or need for a while."""
    return {f'{folder}/{name}' for folder in ('/tmp', '/dev/shm') for name in os.listdir(f'{root}{folder}')}


def left_on_host(pid, within=10.0):
    """What is left on a host that only workers have used; this process holds it. They have ended, and what the kernel
    gives back when a process ends is back soon."""
    end = time.monotonic() + within
    while True:
        left = sorted(files(f'/proc/{pid}/root')) + ports(pid)
        if not left or time.monotonic() > end:
            return left
        time.sleep(0.05)
