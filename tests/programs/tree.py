"""A process with all that it starts: its memory, its end, and a watchdog for when it stands still
or does not end."""

import os
import signal
import subprocess
import threading
import time

from cgroup import MemoryCgroup, Unavailable
from harness import GIB, SAMPLE_SECONDS, _anonymous_rss, _session_pids

import stacks

# A tree that uses less processor time than this in so many seconds stands still.
STILL_SECONDS, STILL_USE = 20, 0.1
TICK = 1 / os.sysconf("SC_CLK_TCK")


class Session:
    """In place of a memory cgroup where none can be made: the processes of a session. What leaves
    it is not seen."""

    def __init__(self):
        self._leader = None

    def __enter__(self):
        return self

    def __exit__(self, *_):
        _kill_all(self.pids)

    def lead(self, pid):
        self._leader = pid

    def wrap(self, argv):
        return argv

    def pids(self):
        return _session_pids(self._leader) if self._leader else []

    def anonymous(self):
        """An upper bound: what processes share after a fork counts for each."""
        return sum(map(_anonymous_rss, self.pids()))


class Cgroup(MemoryCgroup):
    """A memory cgroup without a limit, for its counters."""

    def __init__(self):
        super().__init__(64 * GIB)

    def lead(self, pid):
        pass


def enclosure():
    """What holds a tree of processes: a memory cgroup where one can be made."""
    try:
        return Cgroup()
    except Unavailable:
        return Session()


def _kill_all(pids_now):
    # More than once, since a process may have forked meanwhile.
    for _ in range(100):
        pids = pids_now()
        if not pids:
            return
        for pid in pids:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
        time.sleep(0.02)


def _processor_time(pid):
    try:
        with open(f"/proc/{pid}/stat") as file:
            return sum(map(int, file.read().rpartition(")")[2].split()[11:15])) * TICK
    except OSError:
        return 0.0  # it has ended


class Stillness:
    """Tells when a tree has not used the processor for a while."""

    def __init__(self):
        self._used = self._since = None

    def now(self, pids):
        moment = time.monotonic()
        if self._since and moment - self._since < STILL_SECONDS:
            return False
        used = {pid: _processor_time(pid) for pid in pids}
        # Who has come or gone since has done something.
        still = self._used is not None and used.keys() == self._used.keys()
        still = still and sum(used.values()) - sum(self._used.values()) < STILL_USE
        self._used, self._since = used, moment
        return still


class Tree:
    """Runs a command in an enclosure until it ends, stands still or takes longer than `limit`
    seconds.

    Use as a context manager; its end ends all processes. `peak` and `processes` are the highest
    seen. A tree that the watchdog ended has in `ended` why (hang or slow), and in `stacks` where
    its threads stood.
    """

    def __init__(self, argv, limit, **popen):
        self.limit = limit
        self.peak = self.processes = 0
        self.ended = self.stacks = None
        self._enclosure = enclosure()
        self._ended = threading.Event()
        self._began = time.monotonic()
        try:
            self.process = subprocess.Popen(
                self._enclosure.wrap(argv),
                stdin=subprocess.DEVNULL,
                start_new_session=True,
                **popen,
            )
        except BaseException:
            self._enclosure.__exit__()
            raise
        self._enclosure.lead(self.process.pid)
        self._sampler = threading.Thread(target=self._sample, daemon=True)
        self._sampler.start()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._ended.set()
        _kill_all(self._enclosure.pids)
        self.process.kill()
        self.process.wait()
        self._sampler.join()
        self._enclosure.__exit__()

    def _sample(self):
        stillness = Stillness()
        while not self._ended.wait(SAMPLE_SECONDS):
            pids = self._enclosure.pids()
            self.peak = max(self.peak, self._enclosure.anonymous())
            self.processes = max(self.processes, len(pids))
            if stillness.now(pids):
                self.ended = "hang"
            elif time.monotonic() - self._began > self.limit:
                self.ended = "slow"
            if self.ended:
                self.stacks = stacks.describe(pids)
                _kill_all(self._enclosure.pids)
                return

    def living(self):
        """Whether the command still runs."""
        return self.process.poll() is None

    def wait(self):
        """Waits for the end; gives the exit status, as a shell does, and the seconds that it
        took."""
        status = self.process.wait()
        return (128 - status if status < 0 else status), time.monotonic() - self._began
