#!/usr/bin/env python3
"""The Linux Test Project as an outside judge: its tests by themselves, and under `overspill run`.

usage: ltp.py LTP_TREE [--fault signal|thread|both] [--memory SIZE] [--only PATTERN,...]
              [--dormant] [--jobs N] [--timeout SECONDS] [--json FILE]

LTP_TREE is an installed tree (what `make install` put under --prefix). To get one, as root on
Debian or Ubuntu, in three minutes:

    apt-get install autoconf automake m4 make gcc pkg-config bison flex libaio-dev libcap-dev \\
        libacl1-dev libattr1-dev libnuma-dev libkeyutils-dev acl attr
    git clone --depth 1 https://github.com/linux-test-project/ltp && cd ltp
    make autotools && ./configure --disable-metadata --prefix=/opt/ltp
    for part in lib libs testcases/lib testcases/kernel/syscalls testcases/kernel/mem runtest; do
        make -C $part -j2 all && make -C $part install
    done

The entries of runtest/syscalls and runtest/mm run natively and in each delivery. Exit status, and
how often a test says TPASS, TFAIL, TBROK, TCONF and TWARN, have to be the same. As root each run
has mount, process, host name and IPC namespaces of its own, so what it mounts, starts and makes
goes away with it.

Most tests need so little that no process of theirs would have an engine. So all processes are
managed from their beginning, but with --dormant, where they begin as users have them.

Where a run differs, it and the native one are repeated by themselves, with nothing beside them:
entries that natively differ from themselves are left out, and what agrees the second time is
counted as unsteady.

left-out.txt lists the entries that are not run, expected.txt the differences that are known, with a
reason each. Entries that natively fail, are skipped, or take longer than a minute are left out as
well.

Environment: OVERSPILL_BIN names the binary (target/release/overspill of this repository otherwise).
Exit status: 0 if there is no difference but the expected ones, 1 if there is, 2 for a mistake on
the command line, 125 if it cannot run.
"""

import argparse
import collections
import concurrent.futures
import dataclasses
import fnmatch
import json
import os
import re
import resource
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time

HERE = os.path.dirname(os.path.abspath(__file__))
REPOSITORY = os.path.dirname(os.path.dirname(HERE))
DELIVERIES = ("signal", "thread")
RUNTEST_FILES = ("syscalls", "mm")
NATIVE_SECONDS = 60
# What most systems allow a process at first.
OPEN_FILES = 1024
VERDICTS = ("TPASS", "TFAIL", "TBROK", "TCONF", "TWARN")
# The exit status of a test that was skipped; a shell's of a command that is not there.
STATUS_SKIPPED, STATUS_NOT_FOUND = 32, 127

# How a test says what it found: "file.c:12: TPASS: ..." and, in old ones, "name 1 TPASS : ...".
VERDICT_LINE = re.compile(r"^(?:\S+:\d+: |\S+ +\d+ +)(TPASS|TFAIL|TBROK|TCONF|TWARN)\b")
# The sums at the end, which are right also where a test says nothing of what passed.
SUMMARY_LINE = re.compile(r"^(passed|failed|broken|skipped|warnings) +(\d+)$")
SUMMARY_NAMES = dict(zip(("passed", "failed", "broken", "skipped", "warnings"), VERDICTS))
# Commands of a runtest file that need a shell.
SHELL_CHARACTERS = re.compile(r"[`$;|&<>*?=]")

# The program is not the first process of its namespace, which would be spared most signals, and
# leads a session of its own. LTP names files in /dev/shm by the process number, which is the same
# in each namespace.
NAMESPACES = [
    "unshare", "--mount", "--uts", "--ipc", "--pid", "--fork", "--kill-child", "--mount-proc",
    "--propagation", "private",
]
FIRST_PROCESS = ["sh", "-c", 'mount -t tmpfs ltp /dev/shm; setsid --wait "$@"; exit $?', "sh"]


@dataclasses.dataclass(frozen=True)
class Entry:
    """A line of a runtest file."""

    name: str
    command: str

    def argv(self):
        return (
            ["sh", "-c", self.command]
            if SHELL_CHARACTERS.search(self.command)
            else shlex.split(self.command)
        )


@dataclasses.dataclass(frozen=True)
class Result:
    """How one run of an entry ended."""

    status: object  # the exit status, "signal N", or "hang"
    counts: tuple  # of VERDICTS
    seconds: float = dataclasses.field(compare=False)
    output: str = dataclasses.field(compare=False)

    def __str__(self):
        found = ", ".join(
            f"{count} {verdict}" for verdict, count in zip(VERDICTS, self.counts) if count
        )
        return f"status {self.status}" + (f" ({found})" if found else "")

    def complaint(self):
        """The first line that says what is wrong."""
        lines = self.output.splitlines()
        for sign in ("TFAIL", "TBROK", "overspill:", "TWARN", "TCONF"):
            for line in lines:
                if sign in line:
                    return line.strip()
        return lines[-1].strip() if lines else ""


class Settings:
    """What the command line says, and where things are."""

    def __init__(self, arguments, scratch):
        self.tree = os.path.abspath(arguments.tree)
        self.memory = arguments.memory
        self.timeout = arguments.timeout
        self.dormant = arguments.dormant
        self.scratch = scratch
        self.overspill = os.path.abspath(
            os.environ.get("OVERSPILL_BIN") or os.path.join(REPOSITORY, "target/release/overspill")
        )
        self.isolated = can_isolate()

    def launcher(self, delivery):
        """What comes before the command of an entry."""
        if delivery is None:
            return []
        return [self.overspill, "run", "--memory", self.memory, "--fault", delivery, "--"]

    def environment(self, folder, delivery):
        binaries = os.path.join(self.tree, "testcases", "bin")
        kept = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("OVERSPILL_", "LTP", "LD_"))
        }
        if delivery and not self.dormant:
            kept["OVERSPILL_BASELINES"] = "dormant=off"
        return {
            **kept,
            "LTPROOT": self.tree,
            "PATH": f"{binaries}:{kept.get('PATH', '')}",
            "TMPDIR": os.path.join(folder, "tmp"),
            "OVERSPILL_RUNTIME_DIR": os.path.join(folder, "run"),
            "LC_ALL": "C",
            # A test that wants a device is to say so, not to take one of the machine's.
            "LTP_DEV": "/dev/null",
        }


def can_isolate():
    """Whether namespaces of its own can be had for a run."""
    try:
        return (
            subprocess.run([*NAMESPACES, "true"], stderr=subprocess.DEVNULL, check=False).returncode
            == 0
        )
    except OSError:
        return False


def read_entries(tree):
    """The entries of the runtest files."""
    entries = []
    for name in RUNTEST_FILES:
        with open(os.path.join(tree, "runtest", name), encoding="utf-8") as file:
            for line in file:
                words = line.split("#")[0].split(None, 1)
                if len(words) == 2:
                    entries.append(Entry(words[0], words[1].strip()))
    return entries


def read_list(name, columns):
    """The lines of a list beside this file, split at `|`."""
    rows = []
    with open(os.path.join(HERE, name), encoding="utf-8") as file:
        for number, line in enumerate(file, 1):
            line = line.strip()
            if not line or line.startswith("#"):
                continue
            row = [cell.strip() for cell in line.split("|", columns - 1)]
            if len(row) != columns or not all(row):
                raise ValueError(f"{name}, line {number}: not {columns} columns")
            rows.append(row)
    return rows


def reasons_to_leave_out():
    """Pairs of a pattern of names and a reason."""
    return [
        (pattern, reason)
        for patterns, reason in read_list("left-out.txt", 2)
        for pattern in patterns.split()
    ]


class Expected:
    """The differences that are known."""

    def __init__(self):
        self.rows = [tuple(row) for row in read_list("expected.txt", 3)]
        self.used = set()

    def reason(self, name, delivery):
        for row in self.rows:
            pattern, where, reason = row
            if fnmatch.fnmatchcase(name, pattern) and where in (delivery, "both"):
                self.used.add(row)
                return reason
        return None

    def unused(self, compared, deliveries):
        """Those that were not seen although an entry of theirs was compared in all that they
        name."""

        def was_tried(pattern, where):
            whole = where in deliveries or (where == "both" and len(deliveries) == len(DELIVERIES))
            return whole and fnmatch.filter(compared, pattern)

        return [row for row in self.rows if row not in self.used and was_tried(row[0], row[1])]


def count_verdicts(output):
    """How often each verdict was given: by the last summary, where the test prints one."""
    summary = {}
    said = collections.Counter()
    for line in output.splitlines():
        if found := SUMMARY_LINE.match(line):
            summary[SUMMARY_NAMES[found.group(1)]] = int(found.group(2))
        elif found := VERDICT_LINE.match(line):
            said[found.group(1)] += 1
    counts = summary if len(summary) == len(VERDICTS) else said
    return tuple(counts.get(verdict, 0) for verdict in VERDICTS)


def end(process):
    """Ends a run: all of its namespace, or all of its session's process group."""
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass
    process.wait()


def run(settings, entry, delivery, limit):
    """Runs an entry, natively where `delivery` is None."""
    folder = tempfile.mkdtemp(prefix="r", dir=settings.scratch)
    os.chmod(folder, 0o755)
    for name, mode in (("tmp", 0o777), ("run", 0o700)):
        os.mkdir(os.path.join(folder, name))
        os.chmod(os.path.join(folder, name), mode)
    command = settings.launcher(delivery) + entry.argv()
    if settings.isolated:
        command = NAMESPACES + FIRST_PROCESS + command
    with open(os.path.join(folder, "output"), "wb+") as output:
        began = time.monotonic()
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            cwd=os.path.join(folder, "tmp"),
            env=settings.environment(folder, delivery),
            start_new_session=True,
        )
        try:
            code = process.wait(limit)
            status = code if code >= 0 else f"signal {-code}"
        except subprocess.TimeoutExpired:
            status = "hang"
        seconds = time.monotonic() - began
        end(process)
        output.seek(0)
        text = output.read().decode("utf-8", "replace")
    shutil.rmtree(folder, ignore_errors=True)
    return Result(status, count_verdicts(text), seconds, text)


def unfit(native):
    """Why an entry with this native result is not compared."""
    if native.status == "hang":
        return f"takes longer than {NATIVE_SECONDS} s natively"
    if native.status == STATUS_NOT_FOUND:
        return "not built"
    if native.status == STATUS_SKIPPED and not native.counts[0]:
        return "skipped natively"
    if native.status not in (0, STATUS_SKIPPED):
        return "fails natively"
    return None


@dataclasses.dataclass
class Outcome:
    """What came of an entry: left out with a reason, or compared."""

    entry: Entry
    native: Result = None
    left_out: str = None
    runs: dict = dataclasses.field(default_factory=dict)  # by delivery
    unsteady: set = dataclasses.field(default_factory=set)  # deliveries that agreed when repeated

    def differing(self):
        return [
            delivery
            for delivery, result in self.runs.items()
            if result != self.native and delivery not in self.unsteady
        ]


def time_limit(settings, native):
    return max(settings.timeout, 3 * native.seconds + 10)


def compare(settings, entry, deliveries):
    """Runs an entry natively and in each delivery."""
    outcome = Outcome(entry)
    outcome.native = run(settings, entry, None, NATIVE_SECONDS)
    outcome.left_out = unfit(outcome.native)
    if outcome.left_out is None:
        for delivery in deliveries:
            outcome.runs[delivery] = run(
                settings, entry, delivery, time_limit(settings, outcome.native)
            )
    return outcome


def repeat(settings, outcome):
    """Looks again at an entry that differs, with nothing beside it."""
    if run(settings, outcome.entry, None, NATIVE_SECONDS) != outcome.native:
        outcome.left_out = "differs from itself natively"
        return
    for delivery in outcome.differing():
        result = run(settings, outcome.entry, delivery, time_limit(settings, outcome.native))
        if result == outcome.native:
            outcome.unsteady.add(delivery)
        else:
            outcome.runs[delivery] = result


def select(entries, only):
    if only is None:
        return entries
    patterns = only.split(",")
    return [
        entry
        for entry in entries
        if any(fnmatch.fnmatchcase(entry.name, pattern) for pattern in patterns)
    ]


def compare_all(settings, entries, deliveries, jobs):
    """Compares all entries, then repeats those that differ one at a time."""
    listed = reasons_to_leave_out()
    outcomes = []
    to_run = []
    for entry in entries:
        reason = next(
            (reason for pattern, reason in listed if fnmatch.fnmatchcase(entry.name, pattern)), None
        )
        if reason:
            outcomes.append(Outcome(entry, left_out=reason))
        else:
            to_run.append(entry)
    with concurrent.futures.ThreadPoolExecutor(jobs) as pool:
        for number, outcome in enumerate(
            pool.map(lambda entry: compare(settings, entry, deliveries), to_run), 1
        ):
            say_progress(number, len(to_run), outcome)
            outcomes.append(outcome)
    differing = [outcome for outcome in outcomes if outcome.differing()]
    print(f"repeating {len(differing)} that differ", flush=True)
    for outcome in differing:
        repeat(settings, outcome)
    return outcomes


def say_progress(number, total, outcome):
    said = [f"{delivery}: {outcome.runs[delivery]}" for delivery in outcome.differing()]
    if said:
        print(
            f"[{number}/{total}] {outcome.entry.name}: native {outcome.native}; {'; '.join(said)}",
            flush=True,
        )
    elif number % 100 == 0:
        print(f"[{number}/{total}]", flush=True)


def differences(outcomes, expected):
    """A row for each difference: its kind, entry, delivery, both results, and the reason where it
    is expected."""
    rows = []
    for outcome in outcomes:
        if outcome.left_out:
            continue
        for delivery in sorted(set(outcome.differing()) | outcome.unsteady):
            result = outcome.runs[delivery]
            reason = expected.reason(outcome.entry.name, delivery)
            if delivery in outcome.unsteady:
                kind = "unsteady"
            elif reason:
                kind = "expected"
            else:
                kind = "hang" if result.status == "hang" else "unexpected"
            rows.append((kind, outcome.entry.name, delivery, outcome.native, result, reason))
    return rows


def print_table(rows):
    for kind, name, delivery, native, result, reason in sorted(rows, key=lambda row: row[:3]):
        print(f"{kind:10} {name:28} {delivery:6}  native {native}; overspill {result}")
        print(f"{'':10} {reason or result.complaint()}")


def print_totals(outcomes, rows, deliveries, seconds):
    left_out = collections.Counter(outcome.left_out for outcome in outcomes if outcome.left_out)
    compared = len(outcomes) - sum(left_out.values())
    print("left out:")
    for reason, count in left_out.most_common():
        print(f"{count:6} {reason}")
    for delivery in deliveries:
        kinds = collections.Counter(row[0] for row in rows if row[2] == delivery)
        same = compared - sum(kinds.values())
        print(
            f"{delivery}: {compared} compared, {same} same, {kinds['expected']} expected "
            f"differences, {kinds['unexpected']} unexpected, "
            f"{kinds['hang']} hangs, {kinds['unsteady']} unsteady"
        )
    print(f"{sum(left_out.values())} entries left out; {seconds:.0f} s")


def write_json(path, outcomes, expected):
    def plain(result):
        return {
            "status": result.status,
            "counts": dict(zip(VERDICTS, result.counts)),
            "seconds": round(result.seconds, 3),
            "output": result.output[-8192:],
        }

    table = []
    for outcome in outcomes:
        row = {"entry": outcome.entry.name, "command": outcome.entry.command}
        if outcome.left_out:
            row["left_out"] = outcome.left_out
        if outcome.native:
            row["native"] = plain(outcome.native)
        for delivery, result in outcome.runs.items():
            row[delivery] = {"same": result == outcome.native, **plain(result)}
            if result != outcome.native:
                row[delivery]["unsteady"] = delivery in outcome.unsteady
                row[delivery]["expected"] = expected.reason(outcome.entry.name, delivery)
        table.append(row)
    with open(path, "w", encoding="utf-8") as file:
        json.dump(table, file, indent=1)


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("tree", metavar="LTP_TREE", help="an installed tree of LTP")
    parser.add_argument(
        "--fault",
        choices=(*DELIVERIES, "both"),
        default="both",
        help="how faults are served (default: both)",
    )
    parser.add_argument("--memory", metavar="SIZE", default="64M", help="the budget (default: 64M)")
    parser.add_argument("--only", metavar="PATTERN,...", help="entries by name, with * and ?")
    parser.add_argument(
        "--dormant",
        action="store_true",
        help="processes begin without an engine, as users have them, and most stay so",
    )
    parser.add_argument(
        "--jobs", type=int, metavar="N", default=2, help="entries at a time (default: 2)"
    )
    timeout_help = "of a run under overspill; at least 3 times native and 10 s (default: 120)"
    parser.add_argument("--timeout", type=float, metavar="SECONDS", default=120, help=timeout_help)
    parser.add_argument("--json", metavar="FILE", help="write all results")
    return parser.parse_args()


def main():
    arguments = parse_arguments()
    deliveries = DELIVERIES if arguments.fault == "both" else (arguments.fault,)
    began = time.monotonic()
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(
        resource.RLIMIT_NOFILE,
        (OPEN_FILES if most == resource.RLIM_INFINITY else min(OPEN_FILES, most), most),
    )
    scratch = tempfile.mkdtemp(prefix="ltp.")
    os.chmod(scratch, 0o755)
    settings = Settings(arguments, scratch)
    try:
        if not os.access(settings.overspill, os.X_OK):
            raise ValueError(f"there is no {settings.overspill}: run make, or set OVERSPILL_BIN")
        entries = select(read_entries(settings.tree), arguments.only)
        expected = Expected()
        outcomes = compare_all(settings, entries, deliveries, max(1, arguments.jobs))
    except (OSError, ValueError) as error:
        print(f"ltp.py: {error}", file=sys.stderr)
        return 125
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    rows = differences(outcomes, expected)
    print_table(rows)
    if arguments.json:
        write_json(arguments.json, outcomes, expected)
    for pattern, where, _ in expected.unused(
        [outcome.entry.name for outcome in outcomes if not outcome.left_out], deliveries
    ):
        print(f"expected.txt: {pattern} ({where}) does not differ")
    print_totals(outcomes, rows, deliveries, time.monotonic() - began)
    return 1 if any(row[0] in ("unexpected", "hang") for row in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
