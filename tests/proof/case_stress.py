"""stress-ng's memory stressors, which check what they read, in a fraction of the memory that they
use.

stress-ng runs each stressor in processes of its own, so one budget does not bound them all: there
is no cgroup here. Its stressors restart a worker that crashed and go on, so a clean exit is not
enough: the log must tell of no crash.
"""

import re
import subprocess

from harness import MIB, Run, Stats, check, require

# Lines of `stress-ng -v` that tell of wrong memory, or of a worker that crashed (and was started
# again).
BAD = re.compile(r"\bfail:|\berror:|child died|restarts?\b|terminated on signal|killed by")

# name, budget, stressor, options, whether it uses more memory than it gets. A worker gets a quarter
# of the budget: its parent is a child too. Small budgets and sizes give many operations in a short
# time: mmap draws flags by chance, and some of them (MAP_STACK, MAP_GROWSDOWN, MAP_32BIT) make
# memory that is not managed, so that a few operations may show nothing. madvise works on 4 MiB, so
# it gets the least that a process can have.
STRESSORS = [
    ("stress-vm", 128 * MIB, "vm", ["--vm", "2", "--vm-bytes", "512M"], True),
    ("stress-vm-populate", 128 * MIB, "vm",
     ["--vm", "2", "--vm-bytes", "512M", "--vm-populate"], True),
    ("stress-mremap", 64 * MIB, "mremap", ["--mremap", "1", "--mremap-bytes", "64M"], True),
    ("stress-madvise", 8 * MIB, "madvise", ["--madvise", "1"], True),
    ("stress-mmap", 32 * MIB, "mmap", ["--mmap", "2", "--mmap-bytes", "32M"], True),
    ("stress-fork", 128 * MIB, "fork", ["--fork", "2"], False),
]


def _stress(settings, budget, stressor, options, evicts):
    seconds = 5 if settings.quick else 60
    command = [
        require("stress-ng"), *options, "--verify", "-t", f"{seconds}s", "--metrics-brief", "-v",
    ]
    argv, stats_path = settings.managed([*command, "--temp-path", settings.work], budget)
    with Run(settings, argv, stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as run:
        log = run.process.stdout.read().decode(errors="replace")
        status = run.wait()
    bad = [line for line in log.splitlines() if BAD.search(line)]
    check(not bad, "; ".join(bad[:3]))
    check(status == 0, f"stress-ng ended with status {status}: {log[-500:]}")
    operations = re.search(rf"metrc:.*\b{stressor}\s+(\d+)\s", log)
    check(operations and int(operations[1]) > 0, f"no operation was finished: {log[-500:]}")
    words = f"{operations[1]} operations verified in {run.seconds:.0f} s"
    if stats_path:
        stats = Stats(stats_path)
        words += f", {stats['pgfault']} faults, {stats.evicted()} pages out, {stats['forks']} forks"
        check(
            not evicts or stats.evicted() > 0,
            f"{words}: nothing was evicted, so the case showed nothing",
        )
    return words


def _case(*what):
    return lambda settings: _stress(settings, *what)


CASES = [(name, _case(*what)) for name, *what in STRESSORS]
