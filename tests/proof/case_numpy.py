"""Python with numpy: an array four times the budget, filled, sorted in place and checked."""

import os
import subprocess
import sys

from harness import GIB, MIB, Run, Skip, Stats, check, judge_oom_killed

PROGRAM = os.path.join(os.path.dirname(os.path.abspath(__file__)), "numpy_sort.py")


def _python():
    """A Python that has numpy: the distribution's, or the one that runs this."""
    for python in ("/usr/bin/python3", sys.executable):
        probe = [python, "-c", "import numpy"]
        if os.path.exists(python) and subprocess.run(probe, capture_output=True).returncode == 0:
            return python
    raise Skip("numpy is not installed (tests/proof/install.sh installs it)")


def _sizes(settings):
    data, budget = settings.size(1 * GIB), settings.size(256 * MIB)
    return data, budget, [_python(), PROGRAM, str(data // 8)]


def _printed(run):
    out, err = (pipe.read().decode().strip() for pipe in (run.process.stdout, run.process.stderr))
    run.expect_success(err)
    return out


def numpy(settings):
    data, budget, command = _sizes(settings)
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with Run(settings, command, **pipes) as run:
        expected, alone = _printed(run), run.seconds
    argv, stats = settings.managed(command, budget)
    with settings.cgroup(budget, data) as cgroup:
        with Run(settings, argv, cgroup, **pipes) as run:
            printed = _printed(run)
        check(printed == expected, f"printed {printed}, without limits {expected}")
        memory = run.judge_memory(budget, Stats(stats) if stats else None)
    return f"sorted and checked; {run.seconds:.1f} s ({alone:.1f} s without limits); {memory}"


def numpy_control(settings):
    data, budget, command = _sizes(settings)
    with settings.control_cgroup(budget, data) as cgroup:
        with Run(settings, command, cgroup, stdout=subprocess.DEVNULL) as run:
            return judge_oom_killed(run)


CASES = [("numpy", numpy), ("numpy-control", numpy_control)]
