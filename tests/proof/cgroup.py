"""A memory cgroup, version 1 or 2, that ends with its user: limit, no swap, what is charged to it,
its OOM kills.

Only processes that were started in the cgroup are ever killed. A cgroup that an interrupted run
left behind is removed by the next run, once it is empty.
"""

import errno
import os
import signal
import time

PREFIX = "overspill-proof-"


class Unavailable(Exception):
    """The memory cgroup cannot be made here; the message says why."""


def _read(path):
    with open(path) as file:
        return file.read()


def _write(path, value):
    with open(path, "w") as file:
        file.write(str(value))


def _fields(path):
    """Lines of `name number` as a dictionary."""
    pairs = (line.split() for line in _read(path).splitlines())
    return {pair[0]: int(pair[1]) for pair in pairs if len(pair) == 2}


def _hierarchy():
    """(mount point, version) of the hierarchy that has the memory controller."""
    unified = None
    for line in _read("/proc/mounts").splitlines():
        _, mount, kind, options = line.split()[:4]
        if kind == "cgroup" and "memory" in options.split(","):
            return mount, 1
        if kind == "cgroup2":
            unified = mount
    if unified and "memory" in _read(os.path.join(unified, "cgroup.controllers")).split():
        return unified, 2
    raise Unavailable("no memory cgroup hierarchy is mounted")


class MemoryCgroup:
    """Use as a context manager. Sizes are in bytes."""

    _made = 0

    def __init__(self, limit):
        self.limit = limit
        self._delegated = None
        mount, self.version = _hierarchy()
        try:
            self._sweep(mount)
            if self.version == 2:
                self._delegate(mount)
            MemoryCgroup._made += 1
            self.path = os.path.join(mount, f"{PREFIX}{os.getpid()}-{MemoryCgroup._made}")
            os.mkdir(self.path)
        except OSError as e:
            self._undelegate()
            raise Unavailable(f"cannot make a memory cgroup in {mount}: {e.strerror}") from e
        try:
            self._set_limit()
        except OSError as e:
            self.remove()
            raise Unavailable(f"cannot limit the memory cgroup {self.path}: {e.strerror}") from e

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.remove()

    def _file(self, name):
        return os.path.join(self.path, name)

    def _sweep(self, mount):
        for name in os.listdir(mount):
            if name.startswith(PREFIX) and not os.path.exists(
                f"/proc/{name[len(PREFIX):].split('-')[0]}"
            ):
                try:
                    os.rmdir(os.path.join(mount, name))
                except OSError:
                    pass  # a process of that run is still in it

    def _delegate(self, mount):
        control = os.path.join(mount, "cgroup.subtree_control")
        if "memory" not in _read(control).split():
            _write(control, "+memory")
            self._delegated = control

    def _undelegate(self):
        if self._delegated:
            try:
                _write(self._delegated, "-memory")
            except OSError:
                pass  # another cgroup uses it by now
            self._delegated = None

    def _set_limit(self):
        if self.version == 1:
            _write(self._file("memory.limit_in_bytes"), self.limit)
            _write(self._file("memory.swappiness"), 0)
            if os.path.exists(self._file("memory.memsw.limit_in_bytes")):
                _write(self._file("memory.memsw.limit_in_bytes"), self.limit)
            self.limit = int(_read(self._file("memory.limit_in_bytes")))
        else:
            _write(self._file("memory.max"), self.limit)
            if os.path.exists(self._file("memory.swap.max")):
                _write(self._file("memory.swap.max"), 0)
            self.limit = int(_read(self._file("memory.max")))

    def wrap(self, argv):
        """The command that runs `argv` inside: a shell enters the cgroup and becomes the
        program."""
        return ["/bin/sh", "-c", 'echo $$ >"$0" && exec "$@"', self._file("cgroup.procs"), *argv]

    def pids(self):
        """The processes inside."""
        return [int(pid) for pid in _read(self._file("cgroup.procs")).split()]

    def anonymous(self):
        """Anonymous memory now: what no reclaim can take away without swap."""
        return _fields(self._file("memory.stat"))["rss" if self.version == 1 else "anon"]

    def kernel(self):
        """Kernel memory charged now: page tables, sockets, and so on."""
        if self.version == 1:
            return int(_read(self._file("memory.kmem.usage_in_bytes")))
        return _fields(self._file("memory.stat")).get("kernel", 0)

    def usage(self):
        """All that is charged now, page cache included."""
        return int(
            _read(self._file("memory.usage_in_bytes" if self.version == 1 else "memory.current"))
        )

    def usage_peak(self):
        """Highest `usage` as the kernel saw it; None where the kernel does not keep it."""
        path = self._file("memory.max_usage_in_bytes" if self.version == 1 else "memory.peak")
        return int(_read(path)) if os.path.exists(path) else None

    def oom_kills(self):
        """Processes killed because the limit was reached."""
        return _fields(self._file("memory.oom_control" if self.version == 1 else "memory.events"))[
            "oom_kill"
        ]

    def remove(self):
        """Kills what still runs inside and removes the cgroup."""
        for _ in range(500):
            for pid in self.pids():
                try:
                    os.kill(pid, signal.SIGKILL)
                except ProcessLookupError:
                    pass
            try:
                os.rmdir(self.path)
                break
            except OSError as e:
                if e.errno != errno.EBUSY:
                    raise
                time.sleep(0.02)
        else:
            raise RuntimeError(f"cannot remove {self.path}: it stays busy")
        self._undelegate()
