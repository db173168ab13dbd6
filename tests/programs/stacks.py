"""Where the threads of processes stand: what gdb and /proc tell of them, as text."""

import os
import re
import shutil
import subprocess

GDB_SECONDS = 40
GDB = [
    "gdb", "-nx", "-batch", "-ex", "set debuginfod enabled off", "-ex",
    "set print frame-arguments scalars",
]
MOST_PROCESSES, MOST_FRAMES = 16, 30
# Frames of Rust's library and of gdb's greeting say nothing.
NOISE = re.compile(
    r"/rustc/|^#\d+ .*\bin (std|core|alloc)::|^\[New LWP|^\[Thread debugging|^Using host|^warning: "
    r"|^$|^\d+\s.*No such file"
)
STATUS = ("Name", "State", "PPid", "Threads", "SigBlk", "SigPnd", "ShdPnd", "Seccomp", "RssAnon")


def _read(path):
    try:
        with open(path, errors="replace") as file:
            return file.read().strip()
    except OSError as e:
        return f"({e.strerror})"


def _status(folder):
    lines = (line.split(":", 1) for line in _read(f"{folder}/status").splitlines())
    return ", ".join(
        f"{pair[0]} {pair[1].strip()}" for pair in lines if pair[0] in STATUS and len(pair) == 2
    )


def _threads(pid):
    try:
        numbers = os.listdir(f"/proc/{pid}/task")
    except OSError:
        return
    for thread in sorted(numbers, key=int):
        folder = f"/proc/{pid}/task/{thread}"
        yield f"  thread {thread}: {_status(folder)}"
        yield f"    wchan {_read(f'{folder}/wchan')}, syscall {_read(f'{folder}/syscall')}"
        for line in _read(f"{folder}/stack").splitlines():
            yield f"    {line}"


def _backtraces(pid):
    if shutil.which("gdb") is None:
        return "  (there is no gdb)"
    command = [*GDB, "-p", str(pid), "-ex", f"thread apply all bt {MOST_FRAMES}"]
    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=GDB_SECONDS,
        )
        lines = done.stdout.decode(errors="replace").splitlines()
        return "\n".join(f"  {line}" for line in lines if not NOISE.search(line))
    except subprocess.TimeoutExpired as e:
        return (
            f"  (gdb did not end in {GDB_SECONDS} s)\n{(e.stdout or b'').decode(errors='replace')}"
        )


def _is_ours(pid, words):
    """Whether it is the launcher, or overspill's helper beside a program: they wait for the
    others."""
    launcher = os.path.basename(words.split()[0] if words.split() else "") == "overspill"
    return launcher or _read(f"/proc/{pid}/comm") == "overspill"


def describe(pids):
    """All threads of the processes: state, kernel stack, and the stack in the program."""
    named = [(pid, _read(f"/proc/{pid}/cmdline").replace("\0", " ")) for pid in sorted(pids)]
    named.sort(key=lambda pair: _is_ours(*pair))
    parts = [f"{len(named)} processes"]
    for pid, words in named[:MOST_PROCESSES]:
        parts.append(f"== process {pid}: {words[:300]}")
        parts.extend(_threads(pid))
        parts.append(_backtraces(pid))
    if named[MOST_PROCESSES:]:
        parts.append(f"== and {len(named) - MOST_PROCESSES} more")
    return "\n".join(parts)
