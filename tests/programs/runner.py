"""Runs a case, natively and under overspill, and judges what it did."""

import dataclasses
import os
import pwd
import shutil
import signal
import subprocess
import time
from typing import Optional

from case import CARGO_HOME, MIB, PATH, RUSTUP_HOME, Failed, Folder, check, mib
from tree import Tree

NATIVE_SECONDS = 300  # that a native run may take
LEAST_SECONDS = 60  # that a run under overspill has
DELIVERIES = ("signal", "thread")
NATIVE = "native"  # in place of a delivery: once more without overspill, to check the cases

# What a tree may use besides the budget and what its case declares: the launcher; of each process
# code and data of the program and its libraries that are written to, stacks, the preloaded
# library's own data; and the engine's tables.
BESIDE_TREE = 8 * MIB
BESIDE_PROCESS = 6 * MIB
TABLES = 0.03  # of the native peak


@dataclasses.dataclass
class Outcome:
    """What one run did."""

    status: int = 0
    seconds: float = 0.0
    peak: int = 0
    processes: int = 0
    output: bytes = b""
    results: dict = dataclasses.field(default_factory=dict)
    said: str = ""  # the end of standard error
    error: Optional[str] = None  # what the case's session met
    ended: Optional[str] = None  # why the watchdog ended it: hang or slow
    stacks: Optional[str] = None  # where its threads stood then


@dataclasses.dataclass
class Verdict:
    """How a run compares with the native one; `word` is ok, hang, slow, crash, status, differs,
    session or over."""

    delivery: str
    word: str
    detail: str
    outcome: Outcome


class Program:
    """A program that runs, as the session of a case sees it."""

    def __init__(self, tree, folder):
        self.tree = tree
        self.folder = folder

    def file(self, name):
        return os.path.join(self.folder, name)

    def until(self, ready, what):
        """Waits until `ready()` is true; an OSError counts as not yet."""
        while True:
            try:
                if value := ready():
                    return value
            except OSError:
                pass
            check(self.tree.living(), f"the program ended before {what}")
            time.sleep(0.02)

    def client(self, command, data=None):
        """Runs a client natively, outside of the tree; gives its standard output."""
        done = subprocess.run(
            command,
            cwd=self.folder,
            env=environment(self.folder),
            input=data or b"",
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            timeout=self.tree.limit,
        )
        said = done.stderr.decode(errors="replace")[-500:]
        check(done.returncode == 0, f"{command[0]} ended with {done.returncode}: {said}")
        return done.stdout

    def stop(self, number=signal.SIGTERM):
        if self.tree.living():
            self.tree.process.send_signal(number)


def environment(folder, extra=None):
    return {
        "PATH": PATH,
        "HOME": folder,
        "LC_ALL": "C.UTF-8",
        "TZ": "UTC",
        "CARGO_HOME": CARGO_HOME,
        "RUSTUP_HOME": RUSTUP_HOME,
        "OPENBLAS_NUM_THREADS": "1",
        **(extra or {}),
    }


def _as_user(user, capabilities):
    """The words before a command that make it run as another user, with capabilities or without
    any."""
    entry = pwd.getpwnam(user)
    words = ["setpriv", f"--reuid={entry.pw_uid}", f"--regid={entry.pw_gid}", "--clear-groups"]
    if capabilities:
        words += [f"--inh-caps={capabilities}", f"--ambient-caps={capabilities}"]
    return [*words, "--"]


class Workshop:
    """One case in a folder of its own: its input, and its runs."""

    def __init__(self, case, folder, overspill, quick):
        self.case = case
        self.overspill = overspill
        self.quick = quick
        self._folder = folder
        self._input = os.path.join(folder, "input")
        os.makedirs(self._input)
        maker = self._maker(self._input)
        for name, text in case.files.items():
            maker.write(name, text)
        if case.prepare:
            case.prepare(maker)
        if case.user:
            maker.run(f"chown -R {case.user}: .")

    def _maker(self, path):
        return Folder(path, self.quick, environment(path, self.case.env))

    def _fresh(self):
        path = os.path.join(self._folder, "run")
        shutil.rmtree(path, ignore_errors=True)
        os.mkdir(path)
        os.symlink(self._input, os.path.join(path, "input"))
        if self.case.setup:
            self.case.setup(self._maker(path))
        if self.case.user:
            self._maker(path).run(f"chown -R -h {self.case.user}: .")
        return path

    def native(self):
        return self._run(self._user_words(None) + self.case.argv(), NATIVE_SECONDS)

    def under_overspill(self, delivery, budget, native):
        if delivery == NATIVE:
            return self.native()
        options = ["--memory", str(budget), "--fault", delivery]
        capabilities = "+sys_ptrace" if delivery == "thread" else None  # to serve faults by thread
        words = self._user_words(capabilities) + [self.overspill, "run", *options, "--"]
        return self._run(
            words + self.case.argv(), max(LEAST_SECONDS, self.case.slow * native.seconds)
        )

    def _user_words(self, capabilities):
        return _as_user(self.case.user, capabilities) if self.case.user else []

    def _run(self, argv, limit):
        run, outcome = self._fresh(), Outcome()
        paths = [os.path.join(self._folder, name) for name in ("stdout", "stderr")]
        with open(paths[0], "wb") as stdout, open(paths[1], "wb") as stderr:
            popen = {
                "cwd": run,
                "env": environment(run, self.case.env),
                "stdout": stdout,
                "stderr": stderr,
            }
            with Tree(argv, limit, **popen) as tree:
                session_output = self._session(tree, run, outcome)
                outcome.status, outcome.seconds = tree.wait()
        outcome.peak, outcome.processes, outcome.ended, outcome.stacks = (
            tree.peak,
            tree.processes,
            tree.ended,
            tree.stacks,
        )
        outcome.said = _content(paths[1])[-1500:].decode(errors="replace").strip()
        if self.case.compared:
            output = session_output if self.case.session else _content(paths[0])
            outcome.output = self.case.normalise(output)
        for name in self.case.results:
            outcome.results[name] = self.case.normalise(_content(os.path.join(run, name)))
        return outcome

    def _session(self, tree, run, outcome):
        if not self.case.session:
            return b""
        program = Program(tree, run)
        try:
            return self.case.session(program) or b""
        except (Failed, OSError, EOFError, ValueError, subprocess.SubprocessError) as e:
            outcome.error = f"{type(e).__name__}: {e}"
            self._end_broken(tree)
            return b""

    def _end_broken(self, tree):
        """What a broken session left: it may end by itself in a moment, else it is asked to, else
        made to."""
        for wait, number in ((1, signal.SIGTERM), (5, signal.SIGKILL)):
            try:
                tree.process.wait(wait)
                return
            except subprocess.TimeoutExpired:
                tree.process.send_signal(number)

    def budget(self, native):
        return max(native.peak // 3, self.case.least * MIB)

    def most(self, budget, outcome, native):
        """The most memory that a run may have used, in bytes."""
        beside = BESIDE_TREE + BESIDE_PROCESS * max(outcome.processes, native.processes)
        return int(budget + beside + self.case.beside * MIB + TABLES * native.peak)


def _content(path):
    try:
        with open(path, "rb") as file:
            return file.read()
    except OSError:
        return b"(missing)"


def _first_difference(ours, native):
    """Where two outputs part, in words."""
    place = next(
        (i for i, (a, b) in enumerate(zip(ours, native)) if a != b), min(len(ours), len(native))
    )

    def around(data):
        return data[max(place - 20, 0) : place + 60].decode(errors="replace")

    return (
        f"{len(ours)} bytes for {len(native)}, "
        f"from byte {place} on {around(ours)!r} for {around(native)!r}"
    )


def _what_differs(ours, native):
    if ours.output != native.output:
        return f"standard output: {_first_difference(ours.output, native.output)}"
    for name, content in ours.results.items():
        if content != native.results[name]:
            return f"{name}: {_first_difference(content, native.results[name])}"
    return None


def judge(workshop, delivery, budget, outcome, native):
    """The verdict on a run under overspill."""
    limit = workshop.most(budget, outcome, native)
    if outcome.ended:
        word, detail = outcome.ended, f"ended after {outcome.seconds:.0f} s: {outcome.said}"
    elif outcome.error:
        word, detail = "session", f"{outcome.error}; status {outcome.status}; {outcome.said}"
    elif outcome.status != native.status:
        word = "crash" if outcome.status > 128 else "status"
        detail = f"{outcome.status} for {native.status}: {outcome.said}"
    elif difference := _what_differs(outcome, native):
        word, detail = "differs", f"{difference}; {outcome.said}"
    elif outcome.peak > limit and delivery != NATIVE:
        word, detail = (
            "over",
            f"{mib(outcome.peak)}, and {mib(limit)} is allowed for {outcome.processes} processes",
        )
    else:
        word, detail = "ok", ""
    return Verdict(delivery, word, detail, outcome)


def judge_native(case, outcome):
    """Why the native run is no measure for the others, or None."""
    if outcome.ended:
        return f"does not end natively: {outcome.ended}"
    if outcome.error or outcome.status != case.status:
        return f"fails natively: {outcome.error or ''} status {outcome.status}: {outcome.said}"
    return None
