"""Processes: what a fork copies is right in parent and child, and nothing hangs."""

import multiprocessing
import os
import subprocess
import sys
import threading
import warnings

import numpy as np
import overspill
import pytest
from conftest import is_mixed, mix, numbers

pytestmark = pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning")


def in_child(work):
    """The status of a child in which a function is called: 0 where it returns what is true."""
    child = os.fork()
    if child == 0:
        status = 1
        try:
            status = 0 if work() else 2
        finally:
            os._exit(status)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def test_a_child_has_the_arrays_and_its_writes_are_its_own(pool):
    array = numbers(pool)

    def work():
        good = is_mixed(array)
        mix(array, 12345)
        more = numbers(pool, 1 << 21)
        return good and is_mixed(array, 12345) and is_mixed(more) and pool.holds(more)

    assert in_child(work) == 0
    assert is_mixed(array)


def test_the_parent_writes_while_the_child_reads(pool):
    array = numbers(pool)
    ready, go_on = os.pipe()

    def work():
        os.read(ready, 1)
        return is_mixed(array)

    child = os.fork()
    if child == 0:
        os._exit(0 if work() else 2)
    mix(array, 99)
    os.write(go_on, b"x")
    assert is_mixed(array, 99)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    os.close(ready)
    os.close(go_on)


def test_children_of_children_and_of_several_pools(pool, tmp_path):
    (tmp_path / "other").mkdir()
    other = overspill.Pool("8M", f"{tmp_path}/other:256M")
    arrays = [numbers(pool, 1 << 21), numbers(other, 1 << 21)]

    def both():
        return all(map(is_mixed, arrays))

    assert in_child(lambda: both() and in_child(lambda: both() and in_child(both) == 0) == 0) == 0
    for _ in range(10):
        assert in_child(lambda: True) == 0
    assert both()
    arrays.clear()
    other.close()


def test_a_child_closes_what_it_has(pool):
    arrays = [pool.zeros(100_000)]

    def work():
        with pytest.raises(BufferError):
            pool.close()
        arrays.clear()
        pool.close()
        return True

    assert in_child(work) == 0
    assert not arrays[0].any()


def test_forks_while_threads_fault(pool):
    def work(first):
        array = pool.empty(1 << 19, np.uint64)
        while not ended.is_set():
            mix(array, first)
            results.append(is_mixed(array, first))

    ended, results = threading.Event(), []
    array = numbers(pool, 1 << 21)
    threads = [threading.Thread(target=work, args=(at << 20,)) for at in range(3)]
    [thread.start() for thread in threads]
    statuses = [in_child(lambda: is_mixed(array)) for _ in range(8)]
    ended.set()
    [thread.join() for thread in threads]
    assert statuses == [0] * 8 and results and all(results) and is_mixed(array)


def part_is_mixed(first):
    """In a worker, which has the array from its parent."""
    count = SHARED.size // 8
    return is_mixed(SHARED[first * count : (first + 1) * count], first * count)


def double(array):
    return array * np.uint64(2)


def test_multiprocessing_forks_and_spawns(threads_pool):
    global SHARED
    SHARED = numbers(threads_pool)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with multiprocessing.get_context("fork").Pool(4) as workers:
            assert all(workers.map(part_is_mixed, range(8)))
            parts = [SHARED[:100_000], SHARED[100_000:200_000]]
            assert all(np.array_equal(p * np.uint64(2), d)
                       for p, d in zip(parts, workers.map(double, parts)))
    receive, send = multiprocessing.get_context("fork").Pipe(duplex=False)
    thread = threading.Thread(target=lambda: send.send_bytes(SHARED[: 1 << 20]))
    thread.start()
    got = np.frombuffer(receive.recv_bytes(), np.uint64)
    thread.join()
    assert is_mixed(got)
    with multiprocessing.get_context("spawn").Pool(1) as workers:
        assert np.array_equal(workers.apply(abs, (SHARED[:1000],)), SHARED[:1000])
    del SHARED, parts, thread


def test_programs_are_started(pool):
    array = numbers(pool, 1 << 21)
    for options in ({}, {"preexec_fn": lambda: None}, {"start_new_session": True}):
        done = subprocess.run(
            [sys.executable, "-c", "print(6 * 7)"], capture_output=True, check=True, **options
        )
        assert done.stdout == b"42\n"
    assert os.system("exit 3") == 3 << 8
    assert is_mixed(array)
