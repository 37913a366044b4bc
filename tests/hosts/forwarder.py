"""Two hosts whose every connection goes through a forwarder, which delays, breaks and changes what it passes on."""

import asyncio
import contextlib
import ctypes
import os
import socket
import struct
import threading
import time

from hosts import EXPECTED_WAIT, PORT, Host, Hosts, Skipped, check

NETWORK = 0x40000000  # CLONE_NEWNET
_c = ctypes.CDLL(None, use_errno=True)


def enter_network(pid):
    """This thread goes to the network in which the process is. Its sockets stay where they were made."""
    with open(f'/proc/{pid}/ns/net', encoding='utf-8') as there:
        if _c.setns(there.fileno(), NETWORK) != 0:
            raise Skipped(f'setns: {os.strerror(ctypes.get_errno())}')


class ForwardedHosts(Hosts):
    """Hosts 1 and 2 without a switch. The cable of each leads to a place that has the other's address, and between the
    places is a forwarder. It passes on what host 2 sends to the port PORT of host 1, and the answers; and no
    datagrams, which a firewall may stop as well."""

    def __init__(self):
        self.forwarder = None
        super().__init__(2)

    def connect(self, count):
        for i in (1, 2):
            there = Host(f'place{i}')
            self.between.append(there)
            self.add_host(i, there)
            there.do('ip', 'addr', 'add', f'10.77.0.{3 - i}/24', 'dev', f'port{i}')
            there.do('ip', 'link', 'set', f'port{i}', 'up')
        self.forwarder = Forwarder(*(place.holder.pid for place in self.between))

    def end(self):
        if self.forwarder:
            self.forwarder.end()
            self.forwarder = None
        super().end()


class Forwarder:
    """Each method may be called by the main thread at any time."""

    def __init__(self, place1, place2):
        self.delay = None  # gives the seconds that the next piece is delayed
        self._places = place1, place2
        self._pairs = []  # of sockets: of host 2, of host 1
        self._moved = {}  # bytes, by pair, since flip()
        self._flip_after = None
        self._changed = threading.Event()
        self._is_ready = threading.Event()
        self._failure = None
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()
        check(self._is_ready.wait(EXPECTED_WAIT), 'the forwarder does not start')
        if self._failure:
            raise self._failure

    def reset(self, is_all):
        """Both ends of connections get a reset: of all, or of the one that has moved most. Gives the time."""
        return self._call(self._reset, is_all)

    def flip(self, after):
        """Changes one bit of what goes to host 1, in the first connection that has moved so many bytes from now on."""
        self._call(self._arm, after)

    def wait_for_flip(self):
        """Until the bit is changed; gives the time."""
        check(self._changed.wait(EXPECTED_WAIT), 'no connection has moved so many bytes')
        return time.monotonic()

    def end(self):
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)

    def _call(self, function, *arguments):
        async def call():
            return function(*arguments)
        return asyncio.run_coroutine_threadsafe(call(), self._loop).result(10)

    def _run(self):
        try:
            enter_network(self._places[1])
            listener = socket.create_server(('10.77.0.1', PORT), backlog=100)
            listener.setblocking(False)
            enter_network(self._places[0])
        except (OSError, Skipped) as why:
            self._failure = Skipped(str(why))
        self._is_ready.set()
        if self._failure:
            return
        with listener:
            accepting = self._loop.create_task(self._accept(listener))
            self._loop.run_forever()
            accepting.cancel()
            for task in asyncio.all_tasks(self._loop):
                task.cancel()
            self._loop.run_until_complete(asyncio.sleep(0.01))
        for pair in self._pairs:
            for one in pair:
                one.close()
        self._loop.close()

    async def _accept(self, listener):
        while True:
            near, _ = await self._loop.sock_accept(listener)
            near.setblocking(False)
            far = socket.socket()
            far.setblocking(False)
            self._loop.create_task(self._connect(near, far))

    async def _connect(self, near, far):
        try:
            await self._loop.sock_connect(far, ('10.77.0.1', PORT))
        except OSError:
            near.close()
            far.close()
            return
        pair = near, far
        for one in pair:
            one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._pairs.append(pair)
        self._moved[pair] = 0
        await asyncio.gather(self._pass_on(pair, near, far), self._pass_on(pair, far, near))

    async def _pass_on(self, pair, source, target):
        """Until the source ends. The pieces keep their order."""
        pieces = asyncio.Queue(64)

        async def read():
            data = b'?'
            while data:
                data = bytearray(await self._loop.sock_recv(source, 1 << 16))
                await pieces.put((time.monotonic() + (self.delay() if self.delay else 0), data))

        async def write():
            while True:
                due, data = await pieces.get()
                wait = due - time.monotonic()
                if wait > 0:
                    await asyncio.sleep(wait)
                if not data:
                    target.shutdown(socket.SHUT_WR)
                    return
                self._count(pair, data, target is pair[1])
                await self._loop.sock_sendall(target, data)

        with contextlib.suppress(OSError, ValueError):  # the latter of a socket that reset() has closed
            await asyncio.gather(read(), write())

    def _count(self, pair, data, is_to_host_1):
        if not is_to_host_1 or pair not in self._moved:  # which reset() has closed
            return
        before = self._moved[pair]
        self._moved[pair] += len(data)
        if self._flip_after is not None and self._moved[pair] > self._flip_after:
            data[max(0, self._flip_after - before)] ^= 1 << 3
            self._flip_after = None
            self._changed.set()

    def _arm(self, after):
        self._moved = dict.fromkeys(self._moved, 0)
        self._changed.clear()
        self._flip_after = after

    def _reset(self, is_all):
        pairs = list(self._pairs) if is_all else [max(self._moved, key=self._moved.get)]
        now = time.monotonic()
        for pair in pairs:
            for one in pair:
                with contextlib.suppress(OSError):
                    one.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack('ii', 1, 0))
                self._loop.remove_reader(one.fileno())
                self._loop.remove_writer(one.fileno())
                one.close()
        self._pairs = [pair for pair in self._pairs if pair not in pairs]
        self._moved = {pair: moved for pair, moved in self._moved.items() if pair in self._pairs}
        return now
