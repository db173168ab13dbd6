"""What every case stands on: the settings of a proof run, programs with and without overspill,
their peak memory."""

import contextlib
import json
import os
import shutil
import signal
import subprocess
import threading
import time

from cgroup import MemoryCgroup

KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30
REPOSITORY = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

# What a program may use beside its budget and the engine's metadata (1 % of the managed size): code
# and data of the program and its libraries that are not managed, stacks, page tables, sockets, the
# launcher.
BESIDE_BUDGET = 48 * MIB

SAMPLE_SECONDS = 0.02


class Skip(Exception):
    """The case cannot run here; the message says why."""


class Failed(Exception):
    """The case ran and something was wrong; the message says what."""


def check(condition, message):
    if not condition:
        raise Failed(message)


def mib(size):
    return f"{size / MIB:.0f} MiB"


def require(program):
    """The path of an installed program."""
    path = shutil.which(program)
    if path is None:
        raise Skip(f"{program} is not installed (tests/proof/install.sh installs it)")
    return path


def target_directory():
    return os.path.abspath(os.environ.get("CARGO_TARGET_DIR") or os.path.join(REPOSITORY, "target"))


def memory_limit(budget, managed):
    """What a program may use in all, in bytes, with `managed` bytes managed in `budget`."""
    return budget + managed // 100 + BESIDE_BUDGET


class Settings:
    """How this run of the proof goes: sizes, the binary, the folder of its files, what is not
    available."""

    def __init__(self, quick, native, work, cgroups):
        self.quick = quick
        self.native = native
        self.work = work
        self.cgroups = cgroups  # False: no memory cgroup can be made here
        self.timeout = 420 if quick else 5400
        self.overspill = os.environ.get("OVERSPILL_BIN") or os.path.join(
            target_directory(), "release", "overspill"
        )
        self._runs = 0

    def size(self, full, quick_part=4):
        """A size of the full mode as it is in this run: in quick mode it is divided by
        `quick_part`."""
        return full // quick_part if self.quick else full

    def path(self, name):
        return os.path.join(self.work, name)

    def cgroup(self, budget, managed):
        """The memory cgroup that a case runs in; without limit in native mode; gives None where
        none can be made."""
        if not self.cgroups:
            return contextlib.nullcontext()
        return MemoryCgroup(64 * GIB if self.native else memory_limit(budget, managed))

    def control_cgroup(self, budget, managed):
        """The same limit for the run without overspill, which must die of it."""
        if not self.cgroups:
            raise Skip(
                "no memory cgroup can be made here, so nothing would end the run without overspill"
            )
        return MemoryCgroup(memory_limit(budget, managed))

    def managed(self, argv, budget):
        """`argv` under overspill, and the file that will hold its statistics (None in native
        mode)."""
        if self.native:
            return argv, None
        self._runs += 1
        stats = self.path(f"stats-{self._runs}.json")
        options = ["--memory", str(budget), "--swap", self.work, "--stats-json", stats]
        return [self.overspill, "run", *options, "--", *argv], stats


class Stats:
    """What `overspill run --stats-json` wrote: counters summed over the processes of the run."""

    def __init__(self, path):
        check(os.path.exists(path), "overspill wrote no statistics")
        with open(path) as file:
            document = json.load(file)
        check(document["processes"], "no process ran under overspill")
        self._total = document["total"]["counters"]
        # A forked child begins with the managed memory of its parent, so the sum would count that
        # twice.
        self.managed_peak = max(
            (p["counters"]["managed_peak_bytes"] for p in document["processes"])
        )

    def __getitem__(self, name):
        return self._total[name]

    def evicted(self):
        """Pages that left memory."""
        return self["zswpout"] + self["pswpout"] + self["same_filled_out"]


def _anonymous_rss(pid):
    try:
        with open(f"/proc/{pid}/status") as file:
            for line in file:
                if line.startswith("RssAnon:"):
                    return int(line.split()[1]) * KIB
    except OSError:
        pass  # it has ended
    return 0


def _session_pids(session):
    """The living processes of a session: everything that a run has started, whatever group it is
    in."""
    pids = []
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                with open(f"/proc/{name}/stat") as file:
                    state, _, _, owner = file.read().rpartition(")")[2].split()[:4]
            except OSError:
                continue  # it has ended
            if int(owner) == session and state != "Z":
                pids.append(int(name))
    return pids


class Run:
    """A program that runs: in a cgroup or not, its memory sampled, ended with everything it
    started.

    `argv` is what to run, `cgroup` where (or None). Use as a context manager. After `wait`,
    `peak_anonymous` is the most anonymous memory that was seen: of the cgroup, or of one process
    where there is no cgroup (a sum would count what a fork shares twice).
    """

    def __init__(self, settings, argv, cgroup=None, **popen):
        self.cgroup = cgroup
        self.peak_anonymous = self.peak_kernel = 0
        self._done = threading.Event()
        self._sampler_error = None
        self._timeout = settings.timeout
        self._timed_out = False
        self._began = time.monotonic()
        self.process = subprocess.Popen(
            cgroup.wrap(argv) if cgroup else argv,
            stdin=subprocess.DEVNULL,
            cwd=settings.work,
            env=dict(os.environ, LC_ALL="C", OPENBLAS_NUM_THREADS="1"),
            start_new_session=True,
            **popen,
        )
        self._watchdog = threading.Timer(self._timeout, self._expire)
        self._sampler = threading.Thread(target=self._sample)
        self._watchdog.start()
        self._sampler.start()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._stop_watching()
        self._kill()
        self.process.wait()
        for pipe in (self.process.stdout, self.process.stderr):
            if pipe:
                pipe.close()

    def _sample(self):
        try:
            while not self._done.wait(SAMPLE_SECONDS):
                if self.cgroup:
                    self.peak_anonymous = max(self.peak_anonymous, self.cgroup.anonymous())
                    self.peak_kernel = max(self.peak_kernel, self.cgroup.kernel())
                else:
                    rss = max(map(_anonymous_rss, _session_pids(self.process.pid)), default=0)
                    self.peak_anonymous = max(self.peak_anonymous, rss)
        except Exception as e:
            self._sampler_error = e

    def _expire(self):
        self._timed_out = True
        self._kill()

    def _kill(self):
        # More than once, since a process may have forked meanwhile.
        for _ in range(50):
            pids = _session_pids(self.process.pid)
            if not pids:
                return
            for pid in pids:
                try:
                    os.kill(pid, signal.SIGKILL)
                except ProcessLookupError:
                    pass
            time.sleep(0.02)

    def _stop_watching(self):
        self._watchdog.cancel()
        self._done.set()
        self._sampler.join()

    def wait(self):
        """Waits for the end; returns the exit status as subprocess does (-9: killed)."""
        self.process.wait()
        self.seconds = time.monotonic() - self._began
        self._stop_watching()
        check(not self._timed_out, f"not finished after {self._timeout} s")
        if self._sampler_error:
            raise self._sampler_error
        return self.process.returncode

    def expect_success(self, output=""):
        """Waits for the end, which must be exit status 0; `output` is what the program said."""
        status = self.wait()
        kills = (
            f", {self.cgroup.oom_kills()} OOM kills in {mib(self.cgroup.limit)}"
            if self.cgroup
            else ""
        )
        check(
            status == 0,
            f"ended with status {status}{kills}{': ' if output else ''}{output[-500:].strip()}",
        )

    def judge_memory(self, budget, stats):
        """Checks the peak against the budget; returns the words for the case's line."""
        words = f"anonymous peak {mib(self.peak_anonymous)}"
        if self.cgroup:
            check(
                self.cgroup.oom_kills() == 0,
                f"the cgroup of {mib(self.cgroup.limit)} killed a process",
            )
            words += f", kernel {mib(self.peak_kernel)}, cgroup {mib(self.cgroup.limit)}"
        else:
            words += ", no cgroup"
        if stats:
            limit = memory_limit(budget, stats.managed_peak)
            words += f", {mib(stats.managed_peak)} managed in {mib(budget)}"
            words += f", {stats['pgfault']} faults, {stats.evicted()} pages out"
            check(self.peak_anonymous <= limit, f"{words}: over {mib(limit)}")
            check(stats.evicted() > 0, f"{words}: nothing was evicted, so the case showed nothing")
            check(stats["fault_errors"] == 0, f"{words}: {stats['fault_errors']} faults failed")
        return words


def judge_oom_killed(run):
    """Checks that the run without overspill was killed for memory; returns the words for the case's
    line."""
    status = run.wait()
    kills = run.cgroup.oom_kills()
    check(
        status == -signal.SIGKILL and kills > 0,
        f"not OOM-killed: exit status {status}, {kills} OOM kills",
    )
    return f"OOM-killed in {mib(run.cgroup.limit)} as it must be, after {run.seconds:.1f} s"
