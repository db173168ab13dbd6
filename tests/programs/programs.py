#!/usr/bin/env python3
"""The test of programs: everyday programs, as they come from Debian, give the same under overspill
as by themselves.

Each case runs natively, then under `overspill run` in each delivery of faults, with a third of its
native peak of memory. Output, exit status and results are compared, and the peak of the whole tree
of processes with the budget. A run that stands still (hang) or takes far too long (slow) is ended,
after the stacks of all its threads are printed. Exit status 1 when anything is not as it should be.
"""

import argparse
import json
import os
import shutil
import signal
import sys
import tempfile
import time
import traceback

import cases
import runner
from case import Failed, mib
from harness import target_directory

SENTENCE = 300  # characters of what is repeated at the end
SCRATCH = "/var/tmp"  # short, for sockets; reachable by every user


def arguments():
    parser = argparse.ArgumentParser(
        description="Compares programs under overspill with the same programs natively."
    )
    parser.add_argument(
        "--quick", action="store_true", help="the small cases only, of every kind (three minutes)"
    )
    parser.add_argument("--only", metavar="NAME,...", help="these cases only; NAME may end with *")
    parser.add_argument(
        "--fault", choices=("signal", "thread", "both"), default="both", help="deliveries to test"
    )
    parser.add_argument(
        "--thread", metavar="NAME,...", help="by thread these cases only; NAME may end with *"
    )
    parser.add_argument(
        "--native",
        action="store_true",
        help="no overspill, each case natively twice: checks the cases",
    )
    parser.add_argument("--json", metavar="FILE", help="write all results as JSON")
    parser.add_argument(
        "--repeat", type=int, default=1, metavar="N", help="run each case N times under overspill"
    )
    parser.add_argument("--keep", action="store_true", help="keep the files of the run")
    parser.add_argument("--list", action="store_true", help="list the cases")
    chosen = parser.parse_args()
    try:
        chosen.cases, chosen.thread = (
            cases.select(names.split(",") if names else [], chosen.quick)
            for names in (chosen.only, chosen.thread)
        )
    except KeyError as e:
        parser.error(f"there is no case {e.args[0]}")
    if chosen.native:
        chosen.fault = runner.NATIVE
    chosen.deliveries = runner.DELIVERIES if chosen.fault == "both" else (chosen.fault,)
    return chosen


class Table:
    """The rows of the result, each printed when its case is done."""

    HEAD = f"{'case':<22}{'native':>10}{'time':>8}{'budget':>10}"
    CELL = f"{'peak':>10}{'time':>7} verdict "

    def __init__(self, deliveries):
        self.rows = []
        self.deliveries = deliveries
        print(self.HEAD + "".join(f" | {delivery:<26}" for delivery in deliveries))
        print(" " * len(self.HEAD) + "".join(f" | {self.CELL:<26}" for _ in deliveries), flush=True)

    @staticmethod
    def _cell(verdicts, native):
        worst = next((v for v in verdicts if v.word != "ok"), verdicts[-1])
        peak = max(v.outcome.peak for v in verdicts)
        seconds = sorted(v.outcome.seconds for v in verdicts)[len(verdicts) // 2]
        wrong = sum(v.word != "ok" for v in verdicts)
        times = f" {wrong}/{len(verdicts)}" if len(verdicts) > 1 and wrong else ""
        return f"{mib(peak):>10}{seconds / max(native.seconds, 0.001):>6.1f}x {worst.word}{times}"

    def add(self, name, native, budget, verdicts):
        row = f"{name:<22}{mib(native.peak):>10}{native.seconds:>6.1f} s{mib(budget):>10}"
        for delivery in self.deliveries:
            ours = [v for v in verdicts if v.delivery == delivery]
            row += f" | {self._cell(ours, native) if ours else '':<26}"
        self.rows.append(row.rstrip())
        print(self.rows[-1], flush=True)


class Report:
    """Counts and details of all cases, for the closing line and for JSON."""

    def __init__(self, table):
        self.table = table
        self.counts = {"passed": 0, "failed": 0, "skipped": 0}
        self.entries = []
        self.failures = []

    def skip(self, case, why):
        self.counts["skipped"] += 1
        self.entries.append({"name": case.name, "skipped": why})
        print(f"{case.name:<22} SKIPPED: {why}", flush=True)

    def broken(self, case, why):
        """The case itself does not work, so nothing is known of the program."""
        self.counts["failed"] += 1
        self.entries.append({"name": case.name, "broken": why})
        self.failures.append(f"{case.name}: {why}")
        print(f"{case.name:<22} BROKEN: {why}", flush=True)

    def add(self, case, native, budget, verdicts):
        self.table.add(case.name, native, budget, verdicts)
        for delivery in dict.fromkeys(v.delivery for v in verdicts):
            fine = all(v.word == "ok" for v in verdicts if v.delivery == delivery)
            self.counts["passed" if fine else "failed"] += 1
        self.failures += [_sentence(case, v) for v in verdicts if v.word != "ok"]
        self.entries.append(
            {
                "name": case.name,
                "budget_bytes": budget,
                "native": _figures(native),
                "runs": [
                    {
                        "delivery": v.delivery,
                        "verdict": v.word,
                        "detail": v.detail,
                        "stacks": v.outcome.stacks,
                    }
                    | _figures(v.outcome)
                    for v in verdicts
                ],
            }
        )

    def write(self, path):
        with open(path, "w") as file:
            json.dump({"counts": self.counts, "cases": self.entries}, file, indent=1)
            file.write("\n")


def _sentence(case, verdict):
    detail = " / ".join(verdict.detail.splitlines())[:SENTENCE]
    return f"{case.name} ({verdict.delivery}): {verdict.word}: {detail}"


def _figures(outcome):
    return {
        "peak_bytes": outcome.peak,
        "processes": outcome.processes,
        "seconds": round(outcome.seconds, 3),
        "status": outcome.status,
    }


def run_case(case, chosen, scratch, report):
    if why := case.missing():
        return report.skip(case, why)
    folder = os.path.join(scratch, case.name)
    os.mkdir(folder)
    os.chmod(folder, 0o755)
    try:
        workshop = runner.Workshop(
            case, folder, os.path.join(scratch, "bin", "overspill"), chosen.quick
        )
        native = workshop.native()
        if why := runner.judge_native(case, native):
            return report.broken(case, why)
        budget, verdicts = workshop.budget(native), []
        deliveries = [d for d in chosen.deliveries if d != "thread" or case in chosen.thread]
        for _ in range(chosen.repeat):
            for delivery in deliveries:
                outcome = workshop.under_overspill(delivery, budget, native)
                verdicts.append(runner.judge(workshop, delivery, budget, outcome, native))
                if verdicts[-1].word != "ok":
                    explain(case, verdicts[-1])
        return report.add(case, native, budget, verdicts)
    except Failed as e:
        return report.broken(case, str(e))
    except Exception as e:
        traceback.print_exc(file=sys.stdout)
        return report.broken(case, f"{type(e).__name__}: {e}")
    finally:
        if not chosen.keep:
            shutil.rmtree(folder, ignore_errors=True)


def explain(case, verdict):
    """Prints what went wrong at once, so that an interrupted run has shown it."""
    print(f"---- {case.name} ({verdict.delivery}): {verdict.word}: {verdict.detail}", flush=True)
    if verdict.outcome.stacks:
        print(f"{verdict.outcome.stacks}\n----", flush=True)


def copy_overspill(scratch):
    """Copies the program, so that every user reaches it and a build meanwhile does not change
    it."""
    source = os.environ.get("OVERSPILL_BIN") or os.path.join(
        target_directory(), "release", "overspill"
    )
    if not os.access(source, os.X_OK):
        sys.exit(f"programs: there is no {source}: run `make build`, or set OVERSPILL_BIN")
    folder = os.path.join(scratch, "bin")
    os.mkdir(folder)
    for path in (source, os.path.join(os.path.dirname(source), "liboverspill_preload.so")):
        shutil.copy(path, folder)
        os.chmod(os.path.join(folder, os.path.basename(path)), 0o755)
    os.chmod(folder, 0o755)


def main():
    chosen = arguments()
    if chosen.list:
        for case in chosen.cases:
            print(
                f"{case.name:<22}{'quick' if case.quick else '':<7}{case.missing() or ''}".rstrip()
            )
        return 0
    # So that `with` blocks end programs and remove cgroups also when the test is told to stop.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("stopped"))
    began = time.monotonic()
    scratch = tempfile.mkdtemp(prefix="programs-", dir=SCRATCH)
    os.chmod(scratch, 0o755)
    report = None
    try:
        copy_overspill(scratch)
        report = Report(Table(chosen.deliveries))
        for case in chosen.cases:
            run_case(case, chosen, scratch, report)
    finally:
        if not chosen.keep:
            shutil.rmtree(scratch, ignore_errors=True)
        if report and chosen.json:
            report.write(chosen.json)
    if report.failures:
        print("==== what is wrong", *report.failures, sep="\n")
    print(f"programs: {time.monotonic() - began:.0f} s")
    counts = report.counts
    print(f"{counts['passed']} passed, {counts['failed']} failed, {counts['skipped']} skipped")
    return 1 if counts["failed"] else 0


if __name__ == "__main__":
    sys.exit(main())
