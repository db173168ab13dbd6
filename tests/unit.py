#!/usr/bin/env python3
"""Builds the tests in Rust and runs them as `cargo test --workspace` does, but two programs of
tests at a time: else the slowest test of each has the machine to itself.

usage: unit.py [ARGUMENT OF A TEST PROGRAM]...

What a program prints is shown when it has ended. Exit status 1 when a test failed.
"""

import json
import os
import subprocess
import sys
import threading
import time

CARGO = os.environ.get("CARGO", "cargo")
AT_A_TIME = 2
# In each, so that there are two tests a processor: a program under overspill waits for the thread
# that serves its faults much of the time.
THREADS = os.environ.get("RUST_TEST_THREADS") or str(os.cpu_count())
# These take longest, and begin first.
LONGEST = ["semantics", "loaded", "settings"]


def test_programs():
    """Builds everything; the name, path and package of each program of tests."""
    command = [CARGO, "test", "--workspace", "--no-run", "--message-format=json-render-diagnostics"]
    built = subprocess.run(command, stdout=subprocess.PIPE, text=True)
    if built.returncode:
        sys.exit(1)
    messages = map(json.loads, built.stdout.splitlines())
    programs = [
        (one["target"]["name"], one["executable"], os.path.dirname(one["manifest_path"]))
        for one in messages
        if one["reason"] == "compiler-artifact" and one["profile"]["test"] and one["executable"]
    ]
    return sorted(programs, key=lambda one: (LONGEST + [one[0]]).index(one[0]))


def run(program, arguments, lock):
    """Runs one and shows what it printed; whether all its tests passed."""
    name, path, package = program
    own = {"CARGO": CARGO, "CARGO_MANIFEST_DIR": package, "RUST_TEST_THREADS": THREADS}
    with lock:
        print(f"     Running {name} ({path})", flush=True)
    began = time.monotonic()
    done = subprocess.run(
        [path, *arguments],
        cwd=package,
        env=os.environ | own,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
    )
    with lock:
        print(f"     Ran {name}: {time.monotonic() - began:.1f} s")
        print(done.stdout, end="", flush=True)
    return done.returncode == 0


def main():
    programs, failed, lock = iter(test_programs()), [], threading.Lock()

    def work():
        while True:
            with lock:
                program = next(programs, None)
            if program is None:
                return
            if not run(program, sys.argv[1:], lock):
                failed.append(program[0])

    workers = [threading.Thread(target=work) for _ in range(AT_A_TIME)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    if subprocess.run([CARGO, "test", "--workspace", "--doc", "--no-fail-fast"]).returncode:
        failed.append("the examples of the documentation")
    if failed:
        sys.exit(f"failed: {', '.join(failed)}")


if __name__ == "__main__":
    main()
