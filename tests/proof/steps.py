#!/usr/bin/env python3
"""Runs make targets one after another and ends with one line that sums them up.

usage: steps.py TARGET...

A step that fails does not keep the next from running. The counts that cargo test and the proof
print are added up. Exit status 1 when a step failed.
"""

import re
import subprocess
import sys
import time

CARGO = re.compile(r"^test result: \w+\. (?P<passed>\d+) passed; (?P<failed>\d+) failed; (?P<skipped>\d+) ignored")
PLAIN = re.compile(r"^(?P<passed>\d+) passed, (?P<failed>\d+) failed, (?P<skipped>\d+) skipped$")


def run_step(target, counts):
    """Runs one target, adds up the counts it prints, returns whether it passed."""
    print(f"==== make {target}", flush=True)
    command = ["make", "--no-print-directory", target]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace")
    for line in process.stdout:
        print(line, end="", flush=True)
        if found := CARGO.match(line) or PLAIN.match(line):
            for name, number in found.groupdict().items():
                counts[name] += int(number)
    return process.wait() == 0


def main():
    counts = {"passed": 0, "failed": 0, "skipped": 0}
    steps, broken = [], []
    for target in sys.argv[1:]:
        began = time.monotonic()
        passed = run_step(target, counts)
        steps.append(f"{target} {'ok' if passed else 'FAILED'} {time.monotonic() - began:.0f} s")
        if not passed:
            broken.append(target)
    print(f"steps: {', '.join(steps)}")
    totals = f"{counts['passed']} passed, {counts['failed']} failed, {counts['skipped']} skipped"
    verdict = f"FAILED in {', '.join(broken)}" if broken else "all steps passed"
    print(f"make test: {totals}; {verdict}")
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
