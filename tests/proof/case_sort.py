"""GNU sort of a file with a buffer larger than the budget: one big allocation, random access, pipes
and read(2)."""

import hashlib
import os
import subprocess

from harness import GIB, MIB, REPOSITORY, Run, Stats, check, judge_oom_killed, require

# Sorting touches memory at random, in more time than all other cases together: in quick mode it
# gets smaller sizes than they do.
QUICK_PART = 16


class Sort:
    """The sizes, and the file to sort."""

    def __init__(self, settings):
        self.file_bytes = settings.size(1 * GIB, QUICK_PART)
        self.budget = settings.size(256 * MIB, QUICK_PART)
        self.buffer = settings.size(2 * GIB, QUICK_PART)
        self.file = settings.path("lines.txt")
        program = require("sort")
        self.command = [
            program, "-S", f"{self.buffer}b", "--parallel=2", "-T", settings.work, self.file,
        ]
        if not os.path.exists(self.file):
            generator = settings.path("lines")
            source = os.path.join(REPOSITORY, "tests", "proof", "lines.c")
            subprocess.run([require("gcc"), "-O2", "-o", generator, source], check=True)
            with open(self.file, "wb") as out:
                subprocess.run([generator, str(self.file_bytes)], stdout=out, check=True)


def _digest(run):
    """SHA-256 of what the program prints, read as it comes."""
    sha = hashlib.sha256()
    while chunk := run.process.stdout.read(1 << 20):
        sha.update(chunk)
    run.expect_success()
    return sha.hexdigest()


def sort(settings):
    case = Sort(settings)
    with Run(settings, case.command, stdout=subprocess.PIPE) as run:
        expected, alone = _digest(run), run.seconds
    argv, stats = settings.managed(case.command, case.budget)
    with settings.cgroup(case.budget, case.buffer) as cgroup:
        with Run(settings, argv, cgroup, stdout=subprocess.PIPE) as run:
            digest = _digest(run)
        check(digest == expected, f"sorted wrongly: SHA-256 {digest}, without limits {expected}")
        memory = run.judge_memory(case.budget, Stats(stats) if stats else None)
    seconds = f"{run.seconds:.1f} s ({alone:.1f} s without limits)"
    return f"same SHA-256 as without limits; {seconds}; {memory}"


def sort_control(settings):
    case = Sort(settings)
    with settings.control_cgroup(case.budget, case.buffer) as cgroup:
        with Run(settings, case.command, cgroup, stdout=subprocess.DEVNULL) as run:
            return judge_oom_killed(run)


CASES = [("sort", sort), ("sort-control", sort_control)]
