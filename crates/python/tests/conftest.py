"""What tests have: a directory for swap files, pools, and programs of their own."""

import gc
import subprocess
import sys
import textwrap

import numpy as np
import overspill
import pytest

MEMORY = "16M"
#: Four times the memory.
BYTES = 64 << 20


@pytest.fixture
def swap(tmp_path):
    (tmp_path / "swap").mkdir()
    return f"{tmp_path}/swap:512M"


@pytest.fixture(params=["thread", "signal"])
def pool(request, swap):
    """A pool in each delivery, closed at the end: a test leaves no array behind."""
    made = overspill.Pool(MEMORY, swap, delivery=request.param)
    yield made
    gc.collect()
    made.close()


@pytest.fixture
def threads_pool(swap):
    """A pool whose arrays the kernel may be handed."""
    made = overspill.Pool(MEMORY, swap)
    yield made
    gc.collect()
    made.close()


@pytest.fixture
def program(tmp_path):
    """Runs a program of its own process, in a directory where it finds `swap`."""
    (tmp_path / "swap").mkdir(exist_ok=True)

    def run(text, **environment):
        import os

        return subprocess.run(
            [sys.executable, "-c", textwrap.dedent(text)],
            cwd=tmp_path, env={**os.environ, **environment}, capture_output=True, text=True,
            timeout=120, check=False,
        )

    return run


def numbers(pool, count=BYTES // 8):
    """Numbers that do not compress, in the pool, made without an array of their size elsewhere."""
    array = pool.empty(count, np.uint64)
    mix(array)
    return array


def mix(array, first=0):
    """Fills an array with numbers that depend on where they are."""
    step = 1 << 17
    for at in range(0, array.size, step):
        part = np.arange(first + at, first + min(at + step, array.size), dtype=np.uint64)
        part *= np.uint64(0x9E3779B97F4A7C15)
        part ^= part >> np.uint64(29)
        array[at : at + step] = part


def is_mixed(array, first=0):
    """Whether an array has what `mix` has filled it with."""
    step = 1 << 17
    expected = np.empty(step, np.uint64)
    for at in range(0, array.size, step):
        part = expected[: min(step, array.size - at)]
        mix(part, first + at)
        if not np.array_equal(array[at : at + step], part):
            return False
    return True
