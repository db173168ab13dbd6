#!/usr/bin/env python3
"""Test suites of others as judges: each by itself, and under `overspill run`.

usage: suites.py git|go|posix|python|stress [NAME...] [--fault signal|thread|both] [--memory SIZE]
                 [--timeout SECONDS] [--json FILE]

git     scripts of git's own tests, such as t6500-gc, in the folder t of a git that was built from
        its source: GIT_TESTS names that folder. Every test.
go      packages of the standard library of the Go that is on the PATH, in their short form: every
        test and its parts. These programs are managed by signal only.
posix   functions of the Open POSIX Test Suite, such as mmap, which the Linux Test Project has in
        testcases/open_posix_testsuite and builds with `make conformance-all`; POSIX_TESTS names its
        folder conformance/interfaces. Every program: its exit status.
python  modules of CPython's own tests (`python3 -m test`), where they are installed: every test.
stress  stressors of stress-ng, a second each, which verify what they do: the exit status.

Without a name all functions of POSIX, and of the others those that have to do with memory,
processes, threads, signals, files and sockets.
What differs is told, a line each. Natively a test may fail, or need what is not there: it counts
as the same if it does so under overspill.

Environment: OVERSPILL_BIN names the binary (target/release/overspill of this repository otherwise).
Exit status: 0 if nothing differs, 1 if something does, 2 for a mistake on the command line, 125 if
it cannot run.
"""

import argparse
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree

HERE = os.path.dirname(os.path.abspath(__file__))
REPOSITORY = os.path.dirname(os.path.dirname(HERE))
DELIVERIES = ("signal", "thread")

NAMES = {
    "git": """t0005-signals t0021-conversion t0052-simple-ipc t0061-run-command
        t0301-credential-cache t1006-cat-file t1050-large t1060-object-corruption
        t1400-update-ref t1450-fsck t2080-parallel-checkout-basics t5300-pack-object
        t5302-pack-index t5303-pack-corruption-resilience t5304-prune t5309-pack-delta-cycles
        t5310-pack-bitmaps t5318-commit-graph t5319-multi-pack-index t5351-unpack-large-objects
        t5500-fetch-pack t5526-fetch-submodules t5570-git-daemon t5601-clone t5616-partial-clone
        t6500-gc t7004-tag t7006-pager t7400-submodule-basic t7519-status-fsmonitor
        t7527-builtin-fsmonitor t7700-repack t7701-repack-unpack-unreachable
        t7703-repack-geometric t7810-grep t7900-maintenance t9300-fast-import""",
    "go": """os os/exec os/signal os/user syscall runtime runtime/debug runtime/pprof runtime/trace
        sync sync/atomic time net net/http reflect bytes strings sort""",
    "python": """test_mmap test_signal test_subprocess test_os test_posix test_threading test_thread
        test_threadsignals test_fork1 test_wait3 test_wait4 test_asyncio test_select test_selectors
        test_epoll test_poll test_io test_fileio test_tempfile test_shutil test_pty test_resource
        test_faulthandler test_gc test_ctypes test_zlib test_bz2 test_lzma test_sqlite3 test_ssl
        test_eintr test_fcntl test_memoryview test_pickle test_queue test_capi test_embed
        test_tracemalloc test_httpservers test_logging test_socketserver test_sys test_mailbox
        test_array test_bytes test_list test_dict test_re test_decimal test_weakref""",
    "stress": """affinity aio alarm atomic bad-altstack brk clone close context daemon dup
        dynlib env epoll eventfd exec exit-group fault fcntl fork futex get getrandom hrtimers
        itimer kcmp kill locka lockf madvise malloc matrix membarrier memcpy memfd memrate memthrash
        mincore misaligned mlock mmap mmapaddr mmapfixed mmapfork mmapmany mprotect mq mremap msg
        msync munmap mutex nanosleep open pagemove personality pidfd pipe poll prctl prefetch procfs
        pthread ptrace pty qsort readahead remap resched rlimit rmap seal seccomp seek sem sem-sysv
        sendfile session shm shm-sysv sigabrt sigchld sigfd sigfpe sigio signal signest sigpending
        sigpipe sigq sigrt sigsegv sigsuspend sigtrap sleep sock sockfd sockpair spawn splice stack
        stackmmap stream switch sysbadaddr syscall tee timer timerfd tree unshare userfaultfd
        usersyscall vdso vfork vforkmany vm vm-addr vm-rw vm-segv vm-splice wait x86syscall yield
        zlib zombie""",
}

GIT_TESTS = os.environ.get("GIT_TESTS", "t")
POSIX_TESTS = os.environ.get("POSIX_TESTS", "conformance/interfaces")
POSIX_PROGRAM = ".run-test"
GIT_RESULT = re.compile(r"^(ok|not ok) (\d+.*)$", re.MULTILINE)
GO_RESULT = re.compile(r"^ *--- (PASS|FAIL|SKIP): (\S+)", re.MULTILINE)


def run(command, seconds, directory):
    """Runs a command: its exit status or "hang", and what it said."""
    with tempfile.TemporaryFile() as output:
        child = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT,
            cwd=directory, start_new_session=True,
        )
        try:
            status = child.wait(seconds)
        except subprocess.TimeoutExpired:
            status = "hang"
        # Whatever it has left running.
        try:
            os.killpg(child.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        child.wait()
        output.seek(0)
        return status, output.read().decode(errors="replace")


class Git:
    """Each test of a script, by its line."""

    def __init__(self, room):
        # What scripts leave goes there, and nobody looks at how they are written.
        os.environ.update(TEST_OUTPUT_DIRECTORY=room, GIT_TEST_CHAIN_LINT="0")

    def results(self, name, prefix, seconds):
        status, output = run([*prefix, "sh", f"./{name}.sh"], seconds, GIT_TESTS)
        found = {test: verdict for verdict, test in GIT_RESULT.findall(output)}
        return {**found, "exit status": str(status)}


class Go:
    """Each test of a package, by what it says."""

    def __init__(self, room):
        self.room = room
        self.root = subprocess.check_output(["go", "env", "GOROOT"], text=True).strip()

    def results(self, name, prefix, seconds):
        program = os.path.join(self.room, name.replace("/", "_") + ".test")
        if not os.path.exists(program):
            subprocess.run(["go", "test", "-c", "-o", program, name], check=True)
        command = [program, "-test.short", "-test.v", f"-test.timeout={seconds}s"]
        directory = os.path.join(self.root, "src", name)
        status, output = run(prefix + command, seconds + 30, directory)
        found = {test: verdict for verdict, test in GO_RESULT.findall(output)}
        return {**found, "exit status": str(status)}


class Posix:
    """The exit status of each program in the folder of a function. They are managed from their
    beginning: most are small."""

    def __init__(self, _):
        os.environ["OVERSPILL_BASELINES"] = "dormant=off"

    def results(self, name, prefix, seconds):
        folder = os.path.join(POSIX_TESTS, name)
        programs = (program for program in os.listdir(folder) if program.endswith(POSIX_PROGRAM))
        results = {}
        for program in sorted(programs):
            status, _ = run([*prefix, f"./{program}"], seconds, folder)
            results[program.removesuffix(POSIX_PROGRAM)] = str(status)
        return results


class Python:
    """Each test of a module, by the report that it writes."""

    def __init__(self, room):
        self.room = room

    def results(self, name, prefix, seconds):
        report = os.path.join(self.room, "report.xml")
        if os.path.exists(report):
            os.unlink(report)
        command = [
            "python3", "-m", "test", "--timeout", str(seconds), "--junit-xml", report, name,
        ]
        status, _ = run(prefix + command, seconds + 30, self.room)
        found = {"exit status": str(status)}
        if os.path.exists(report):
            for case in xml.etree.ElementTree.parse(report).iter("testcase"):
                verdict = [part.tag for part in case if part.tag in ("failure", "error", "skipped")]
                found[case.get("name")] = verdict[0] if verdict else "passed"
        return found


class Stress:
    """The exit status of a stressor."""

    def __init__(self, room):
        self.room = room

    def results(self, name, prefix, seconds):
        command = [
            "stress-ng", f"--{name}", "1", "--timeout", "1", "--verify", "--temp-path", self.room,
            "--no-rand-seed", "--oomable",
        ]
        status, _ = run(prefix + command, seconds, self.room)
        return {"exit status": str(status)}


# The judge, and the program that it needs.
SUITES = {
    "git": (Git, os.path.join(GIT_TESTS, "helper", "test-tool")),
    "go": (Go, "go"),
    "posix": (Posix, os.path.join(POSIX_TESTS, "mmap", f"mmap_1-1{POSIX_PROGRAM}")),
    "python": (Python, "python3"),
    "stress": (Stress, "stress-ng"),
}


def all_names(suite):
    """What is run where nothing is named."""
    if suite == "posix":
        return sorted(entry.name for entry in os.scandir(POSIX_TESTS) if entry.is_dir())
    return list(dict.fromkeys(NAMES[suite].split()))


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("suite", choices=SUITES)
    parser.add_argument("names", nargs="*", metavar="NAME")
    parser.add_argument("--fault", choices=(*DELIVERIES, "both"), default="both")
    parser.add_argument("--memory", default="150M", metavar="SIZE")
    parser.add_argument("--timeout", type=int, default=300, metavar="SECONDS")
    parser.add_argument("--json", metavar="FILE")
    args = parser.parse_args()
    suite, tool = SUITES[args.suite]
    release = os.path.join(REPOSITORY, "target", "release", "overspill")
    overspill = os.environ.get("OVERSPILL_BIN", release)
    for needed in (tool, overspill):
        if not shutil.which(needed):
            print(f"suites.py: there is no {needed}", file=sys.stderr)
            return 125
    deliveries = DELIVERIES if args.fault == "both" else (args.fault,)
    names = args.names or all_names(args.suite)
    everything, same, differ = {}, 0, 0
    with tempfile.TemporaryDirectory(prefix="suites.") as room:
        judge = suite(room)
        for number, name in enumerate(names, 1):
            began = time.monotonic()
            native = judge.results(name, [], args.timeout)
            everything[name] = {"native": native}
            seconds = [f"native {time.monotonic() - began:.0f} s"]
            for fault in deliveries:
                prefix = [overspill, "run", "--memory", args.memory, "--fault", fault]
                began = time.monotonic()
                found = judge.results(name, [*prefix, "--swap", room, "--"], args.timeout)
                seconds.append(f"{fault} {time.monotonic() - began:.0f} s")
                everything[name][fault] = found
                for test in sorted(native.keys() | found.keys()):
                    if native.get(test) == found.get(test):
                        same += 1
                    else:
                        differ += 1
                        print(
                            f"{name}, {fault}: {test}: natively {native.get(test)}, "
                            f"under overspill {found.get(test)}"
                        )
            print(f"[{number}/{len(names)}] {name}: {', '.join(seconds)}", flush=True)
    if args.json:
        with open(args.json, "w", encoding="utf-8") as file:
            json.dump(everything, file, indent=1)
    print(f"{args.suite}: {same} results the same, {differ} differ")
    return 1 if differ else 0


if __name__ == "__main__":
    sys.exit(main())
