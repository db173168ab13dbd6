"""What a case of the test of programs is: a program, its input, what of it is compared."""

import dataclasses
import glob
import os
import pwd
import re
import shlex
import shutil
import subprocess
import sys
from typing import Callable, Optional

sys.path.insert(
    0, os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "proof")
)
# For the modules of cases too.
from harness import MIB, REPOSITORY, Failed, Skip, check, mib  # noqa: E402,F401

# Debian's own programs come first: a machine may have others of the same name in /usr/local.
FOLDERS = [
    "/usr/sbin",
    "/usr/bin",
    "/sbin",
    "/bin",
    *sorted(glob.glob("/usr/lib/postgresql/*/bin")),
    "/usr/local/bin",
    "/usr/local/go/bin",
]
CARGO_HOME = os.environ.get("CARGO_HOME") or os.path.expanduser("~/.cargo")
RUSTUP_HOME = os.environ.get("RUSTUP_HOME") or os.path.expanduser("~/.rustup")
PATH = ":".join([*FOLDERS, os.path.join(CARGO_HOME, "bin")])


@dataclasses.dataclass(frozen=True)
class Case:
    """One program with its input.

    `command` runs in an empty folder, in which `input` leads to what `files` and `prepare` made.
    Its standard output, its exit status and the files named in `results` are compared with those of
    the native run, after `normalise`.
    """

    name: str
    command: list  # words; or one string, which is a script for /bin/sh
    quick: bool = False
    needs: tuple = ()  # programs besides the first word of the command; all of a script's
    files: dict = dataclasses.field(default_factory=dict)  # name in `input`: text
    prepare: Optional[Callable] = None  # called once with a Folder, whose path is `input`
    # Called before each run with a Folder, whose path is where the program will run.
    setup: Optional[Callable] = None
    # Called with the Program while it runs; gives the output that is compared.
    session: Optional[Callable] = None
    results: tuple = ()  # files that the program makes
    normalise: Callable = bytes  # of the standard output and of each result
    compared: bool = True  # whether the standard output (or what the session gives) is compared
    env: dict = dataclasses.field(default_factory=dict)
    user: Optional[str] = None  # who runs it, where root is not allowed to
    status: int = 0  # exit status that is right
    # MiB that it may use besides the budget and BESIDE_*: of memory that README says is not
    # managed.
    beside: int = 0
    least: int = 48  # MiB that the budget has at least
    slow: int = 10  # times the native time that it may take
    excuse: Optional[Callable] = None  # why it cannot run on this machine (None: it can)

    def argv(self):
        return (
            ["/bin/sh", "-c", self.command] if isinstance(self.command, str) else list(self.command)
        )

    def missing(self):
        """Why the case cannot run here, or None."""
        first = () if isinstance(self.command, str) else self.command[:1]
        lacking = [name for name in [*first, *self.needs] if shutil.which(name, path=PATH) is None]
        if lacking:
            return f"not installed: {', '.join(lacking)}"
        if self.user and os.geteuid() != 0:
            return f"only root can run it as {self.user}"
        if self.user and not any(entry.pw_name == self.user for entry in pwd.getpwall()):
            return f"there is no user {self.user}"
        return self.excuse() if self.excuse else None


class Folder:
    """A folder that a case prepares natively."""

    def __init__(self, path, quick, env):
        self.path = path
        self.quick = quick
        self._env = env

    def size(self, full, quick):
        return quick if self.quick else full

    def file(self, name):
        return os.path.join(self.path, name)

    def write(self, name, content):
        os.makedirs(os.path.dirname(self.file(name)), exist_ok=True)
        with open(self.file(name), "wb" if isinstance(content, bytes) else "w") as file:
            file.write(content)

    def run(self, command):
        """Runs a script natively, which must succeed."""
        done = subprocess.run(
            ["/bin/sh", "-ec", command],
            cwd=self.path,
            env=self._env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=600,
        )
        tail = done.stdout.decode(errors="replace")[-800:]
        check(
            done.returncode == 0, f"cannot prepare the case: {shlex.quote(command)[:200]}: {tail}"
        )


def python_module(name):
    """An `excuse`: Debian's Python lacks a module."""

    def excuse():
        command = ["/usr/bin/python3", "-c", f"import {name}"]
        lacking = subprocess.run(command, stderr=subprocess.DEVNULL).returncode != 0
        return f"not installed: python3-{name}" if lacking else None

    return excuse


def without(*patterns):
    """A `normalise`: takes away what fits one of the regular expressions."""
    expression = re.compile("|".join(patterns).encode(), re.MULTILINE)
    return lambda output: expression.sub(b"", output)


def words(count, seed=1):
    """Text that is the same each time and packs about 3:1: `count` lines."""
    lines, state = [], seed
    for number in range(count):
        state = (state * 6364136223846793005 + 1442695040888963407) % (1 << 64)
        lines.append(
            f"{number} {state >> 40:x} the {state >> 20 & 0xFFF} of {state & 0xFFFF:04x}\n"
        )
    return "".join(lines)
