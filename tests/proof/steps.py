#!/usr/bin/env python3
"""Runs make targets one after another and ends with one line that sums them up.

usage: steps.py TARGET[+BESIDE...]...

Those behind a + are run beside that step, one after the other, as it leaves them a processor, and
printed after it. A step that fails does not keep the next from running. The counts that cargo test
and the proof print are added up; how each failing test begins to say why is repeated at the end,
where it is found. Exit status 1 when a step failed.
"""

import re
import subprocess
import sys
import threading
import time

CARGO = re.compile(
    r"^test result: \w+\. (?P<passed>\d+) passed; (?P<failed>\d+) failed; (?P<skipped>\d+) ignored"
)
# What a failing test said follows the first, up to the second.
FAILURE = re.compile(r"^---- \S+.* stdout ----$")
FAILURES_END = re.compile(r"^(failures:|test result:)")
FAILURE_LINES, LINE_LENGTH = 16, 400
PLAIN = re.compile(r"^(?P<passed>\d+) passed, (?P<failed>\d+) failed, (?P<skipped>\d+) skipped$")


def run_step(target, show):
    """Runs one target, shows each line that it prints, returns whether it passed and how long it
    took."""
    began = time.monotonic()
    show(f"==== make {target}\n")
    command = ["make", "--no-print-directory", target]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace"
    )
    for line in process.stdout:
        show(line)
    return process.wait() == 0, time.monotonic() - began


def main():
    counts = {"passed": 0, "failed": 0, "skipped": 0}
    failures, in_failure = [], False

    def show(line):
        nonlocal in_failure
        print(line, end="", flush=True)
        if FAILURE.match(line):
            in_failure = True
            failures.append([])
        elif FAILURES_END.match(line):
            in_failure = False
        if in_failure and len(failures[-1]) < FAILURE_LINES:
            failures[-1].append(line.rstrip("\n")[:LINE_LENGTH])
        if found := CARGO.match(line) or PLAIN.match(line):
            for name, number in found.groupdict().items():
                counts[name] += int(number)

    results = {}
    for step in sys.argv[1:]:
        target, *beside = step.split("+")
        lines = []

        def run_beside(targets=beside, say=lines.append):
            for other in targets:
                results[other] = run_step(other, say)

        others = threading.Thread(target=run_beside)
        others.start()
        results[target] = run_step(target, show)
        others.join()
        for line in lines:
            show(line)
    broken = [target for target, (passed, _) in results.items() if not passed]
    steps = [
        f"{target} {'ok' if passed else 'FAILED'} {seconds:.0f} s"
        for target, (passed, seconds) in results.items()
    ]
    if failures:
        print(
            "==== what failed", *("\n".join(failure).rstrip() for failure in failures), sep="\n\n"
        )
    print(f"steps: {', '.join(steps)}")
    totals = f"{counts['passed']} passed, {counts['failed']} failed, {counts['skipped']} skipped"
    verdict = f"FAILED in {', '.join(broken)}" if broken else "all steps passed"
    print(f"make test: {totals}; {verdict}")
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
