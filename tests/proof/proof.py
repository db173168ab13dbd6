#!/usr/bin/env python3
"""The proof: real, unmodified programs that a memory cgroup kills, and that with overspill are
right in the same one.

Prints a line a case (`ok`, `FAIL` or `skip`, the name, what was seen) and ends with the counts.
Exit status 1 when a case failed.
"""

import argparse
import os
import shutil
import signal
import sys
import tempfile
import time
import traceback

import case_numpy
import case_redis
import case_sort
import case_stress
from cgroup import MemoryCgroup, Unavailable
from harness import GIB, Failed, Settings, Skip, mib, target_directory

CASES = case_sort.CASES + case_numpy.CASES + case_redis.CASES + case_stress.CASES


def arguments():
    parser = argparse.ArgumentParser(
        description="Runs real programs under overspill in memory cgroups."
    )
    names = ", ".join(name for name, _ in CASES)
    parser.add_argument(
        "cases", nargs="*", metavar="CASE", help=f"cases to run (default: all): {names}"
    )
    parser.add_argument(
        "--quick", action="store_true", help="a quarter of the sizes or less, short stress runs"
    )
    parser.add_argument(
        "--native", action="store_true", help="no overspill, no limit: checks the cases"
    )
    parser.add_argument("--keep", action="store_true", help="keep the files of the run")
    chosen = parser.parse_args()
    unknown = set(chosen.cases) - {name for name, _ in CASES}
    if unknown:
        parser.error(f"there is no case {', '.join(sorted(unknown))}")
    return chosen


def cgroups_work():
    try:
        with MemoryCgroup(1 * GIB):
            return True
    except Unavailable as e:
        print(f"NOTE: {e}: cases run without a cgroup, control runs are skipped", flush=True)
        return False


def run_case(name, case, settings):
    began = time.monotonic()
    try:
        outcome, words = "ok", case(settings)
    except Skip as e:
        outcome, words = "skip", str(e)
    except Failed as e:
        outcome, words = "FAIL", str(e)
    except Exception as e:
        traceback.print_exc(file=sys.stdout)
        outcome, words = "FAIL", f"{type(e).__name__}: {e}"
    print(f"{outcome} {name}: {words} [{time.monotonic() - began:.0f} s]", flush=True)
    return outcome


def main():
    chosen = arguments()
    # So that `with` blocks end programs and remove cgroups also when the proof is told to stop.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("stopped"))
    os.makedirs(target_directory(), exist_ok=True)
    work = tempfile.mkdtemp(prefix="proof-", dir=target_directory())
    counts = {"ok": 0, "FAIL": 0, "skip": 0}
    try:
        settings = Settings(chosen.quick, chosen.native, work, cgroups_work())
        if not settings.native and not os.access(settings.overspill, os.X_OK):
            sys.exit(
                f"proof: there is no {settings.overspill}: run `make build`, or set OVERSPILL_BIN"
            )
        need, free = settings.size(8 * GIB), shutil.disk_usage(work).free
        if free < need:
            sys.exit(
                f"proof: {work} has {mib(free)} of free space, and {mib(need)} are needed for data "
                "and swap"
            )
        for name, case in CASES:
            if not chosen.cases or name in chosen.cases:
                counts[run_case(name, case, settings)] += 1
    finally:
        if not chosen.keep:
            shutil.rmtree(work, ignore_errors=True)
    print(f"{counts['ok']} passed, {counts['FAIL']} failed, {counts['skip']} skipped")
    return 1 if counts["FAIL"] else 0


if __name__ == "__main__":
    sys.exit(main())
