"""redis-server filled to four times its budget, read back, and snapshot by a fork while it is
written to.

Two sorts of keys, filled in turn so that they share pages: `frozen` keys are written once; `hot`
keys are overwritten, one after another in a random order, while BGSAVE runs. A value can be
computed from its key and its version (the number of the write), so every value can be told right or
wrong, and the snapshot can be told to be of one moment: if the newest write in it is the N-th, each
key must have the version it had after the N-th write.
"""

import hashlib
import os
import random
import subprocess
import tempfile
import threading
import time

from harness import GIB, MIB, Run, Stats, check, judge_oom_killed, require
from resp import Client

VALUE_BYTES = 8192  # on average
PIPELINE = 64  # commands sent at once


def key_of(number):
    """One key in eight is hot."""
    return f"hot:{number}" if number % 8 == 0 else f"frozen:{number}"


def value_of(number, version):
    """A value from its key and version: 1 KiB to 15 KiB, half of it random, half of it
    repetition."""
    seed = b"%d %d " % (number, version)
    chance = int.from_bytes(hashlib.sha256(b"%d" % number).digest()[:4], "big")
    half = (VALUE_BYTES // 8 + chance % (VALUE_BYTES * 7 // 4)) // 2
    return seed + hashlib.shake_128(seed).digest(half) + seed * (half // len(seed))


class Server:
    """A redis-server that runs, with a connection to it."""

    def __init__(self, settings, folder, budget=None, cgroup=None):
        # A socket's path has at most 107 bytes, so it cannot lie just anywhere.
        self._socket_folder = tempfile.TemporaryDirectory(prefix="proof-")
        self.socket = os.path.join(self._socket_folder.name, "redis.sock")
        command = [
            require("redis-server"), "--port", "0", "--unixsocket", self.socket, "--dir", folder,
        ]
        command += [
            "--save", "", "--appendonly", "no", "--dbfilename", "dump.rdb", "--daemonize", "no",
        ]
        argv, self._stats = settings.managed(command, budget) if budget else (command, None)
        self.log = os.path.join(folder, "log")
        with open(self.log, "wb") as log:
            self.run = Run(settings, argv, cgroup, stdout=log, stderr=subprocess.STDOUT)
        self.timeout = settings.timeout

    def __enter__(self):
        return self

    def __exit__(self, kind, error, trace):
        try:
            if isinstance(error, ConnectionError):
                self.run.expect_success(self.tail())  # tells how the server ended
        finally:
            self.run.__exit__(kind, error, trace)
            self._socket_folder.cleanup()

    def connect(self):
        """A connection, once the server has loaded what it loads."""
        until = time.monotonic() + self.timeout
        while True:
            check(self.run.process.poll() is None, f"redis-server ended early: {self.tail()}")
            try:
                client = Client(self.socket, self.timeout)
                if "loading:0" in client.call("INFO", "persistence").decode().split():
                    return client
                client.__exit__()
            except (FileNotFoundError, ConnectionRefusedError):
                pass
            check(time.monotonic() < until, "redis-server does not answer")
            time.sleep(0.05)

    def tail(self):
        with open(self.log, errors="replace") as log:
            return log.read()[-500:].strip()

    def stop(self, client):
        """Ends the server in order; returns its statistics."""
        try:
            client.call("SHUTDOWN", "NOSAVE")
        except ConnectionError:
            pass  # the answer to SHUTDOWN is the end of the connection
        self.run.expect_success(self.tail())
        return Stats(self._stats) if self._stats else None


class Writer(threading.Thread):
    """Overwrites hot keys, one at a time, and remembers the order."""

    def __init__(self, client, numbers):
        super().__init__()
        self.client = client
        # Key number of each write; the version of a write is its place here plus one.
        self.history = []
        self.error = None
        self._numbers = numbers
        self._ended = threading.Event()

    def run(self):
        order = random.Random(7)
        try:
            while not self._ended.is_set():
                number = order.choice(self._numbers)
                self.history.append(number)
                self.client.call("SET", key_of(number), value_of(number, len(self.history)))
        except Exception as e:
            self.error = e

    def stop(self):
        self._ended.set()
        self.join()
        if self.error:
            raise self.error

    def versions(self, writes):
        """The version of each hot key after so many writes."""
        return {number: i + 1 for i, number in enumerate(self.history[:writes])}


def fill(client, count):
    for first in range(0, count, PIPELINE):
        numbers = range(first, min(first + PIPELINE, count))
        client.pipeline([("SET", key_of(n), value_of(n, 0)) for n in numbers])


def read_back(client, count, versions, where):
    """Checks every value, in random order, so that the eviction order does not help."""
    numbers = list(range(count))
    random.Random(11).shuffle(numbers)
    for first in range(0, count, PIPELINE):
        batch = numbers[first : first + PIPELINE]
        for n, value in zip(batch, client.pipeline([("GET", key_of(n)) for n in batch])):
            check(
                value == value_of(n, versions.get(n, 0)),
                f"{where}: the value of {key_of(n)} is wrong",
            )
    check(client.call("DBSIZE") == count, f"{where}: a key too many or too few")


def save_under_load(server, client, hot):
    """BGSAVE while hot keys are overwritten; returns the writer and how many writes came while the
    fork was there."""
    with server.connect() as connection:
        writer = Writer(connection, hot)
        writer.start()
        try:
            client.call("BGSAVE")
            before = len(writer.history)
            while True:
                info = client.call("INFO", "persistence").decode().split()
                if "rdb_bgsave_in_progress:0" in info:
                    break
                check(writer.is_alive(), f"a write failed during BGSAVE: {writer.error}")
                time.sleep(0.02)
            during = len(writer.history) - before
        finally:
            writer.stop()
    check("rdb_last_bgsave_status:ok" in info, f"BGSAVE failed: {server.tail()}")
    check(during > 0, "no write came while BGSAVE ran")
    return writer, during


def snapshot_versions(client, writer, hot):
    """The versions that a snapshot of one moment holds, by the newest write that is in it."""
    newest = 0
    for first in range(0, len(hot), PIPELINE):
        batch = hot[first : first + PIPELINE]
        for n, value in zip(batch, client.pipeline([("GET", key_of(n)) for n in batch])):
            words = (value or b"").split(b" ", 2)
            check(words[0] == b"%d" % n and len(words) == 3, f"the snapshot lacks {key_of(n)}")
            newest = max(newest, int(words[1]))
    return writer.versions(newest)


def _sizes(settings):
    budget = settings.size(256 * MIB)
    data = settings.size(1 * GIB)
    return budget, data, data // VALUE_BYTES


def redis(settings):
    budget, data, count = _sizes(settings)
    hot = [n for n in range(count) if key_of(n).startswith("hot")]
    with tempfile.TemporaryDirectory(dir=settings.work) as folder:
        with settings.cgroup(budget, data) as cgroup:
            with Server(settings, folder, budget, cgroup) as server, server.connect() as client:
                fill(client, count)
                read_back(client, count, {}, "before the fork")
                writer, during = save_under_load(server, client, hot)
                read_back(client, count, writer.versions(len(writer.history)), "after the fork")
                stats = server.stop(client)
            memory = server.run.judge_memory(budget, stats)
        with Server(settings, folder) as server, server.connect() as client:
            versions = snapshot_versions(client, writer, hot)
            read_back(client, count, versions, "the snapshot, loaded without overspill")
            server.stop(client)
    return (
        f"{count} values right before and after BGSAVE and in its snapshot, {during} writes "
        "meanwhile; "
        f"{server.run.seconds:.1f} s to check the snapshot; {memory}"
    )


def redis_control(settings):
    budget, data, count = _sizes(settings)
    with tempfile.TemporaryDirectory(dir=settings.work) as folder:
        with settings.control_cgroup(budget, data) as cgroup:
            with Server(settings, folder, None, cgroup) as server, server.connect() as client:
                try:
                    fill(client, count)
                except (ConnectionError, OSError):
                    pass  # the server has died, as it must
                else:
                    server.stop(client)
                return judge_oom_killed(server.run)


CASES = [("redis", redis), ("redis-control", redis_control)]
