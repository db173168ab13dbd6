"""Arrays of a pool: what is in them, where they are, and how long."""

import gc
import threading
import weakref

import numpy as np
import overspill
import pytest
from conftest import BYTES, is_mixed, mix, numbers


def test_an_array_of_four_times_the_memory_keeps_what_is_in_it(pool):
    array = numbers(pool)
    assert is_mixed(array)
    stats = pool.stats()
    assert stats["pgfault"] > 0 and stats["nr_swap_used"] > 0
    assert stats["budget_bytes"] == 16 << 20
    assert pool.nbytes == BYTES and pool.holds(array) and pool.holds(array[5:100:3])


def test_zeros_are_zero_also_where_others_were(pool):
    numbers(pool)
    gc.collect()
    assert pool.nbytes == 0
    zeros = pool.zeros((64, 1 << 17))
    assert zeros.shape == (64, 1 << 17) and not zeros.any()


def test_shapes_types_and_orders(pool):
    assert pool.empty((3, 4), np.int16, order="F").flags.f_contiguous
    assert pool.zeros(0).size == 0 and pool.zeros((5, 0, 7)).shape == (5, 0, 7)
    assert pool.zeros((), "f4")[()] == 0
    record = np.dtype([("name", "S7"), ("at", "M8[us]"), ("value", "f8", 3)])
    assert pool.zeros(1000, record)["value"].shape == (1000, 3)
    copy = pool.array([[1, 2], [3, 4]])
    assert copy.tolist() == [[1, 2], [3, 4]] and pool.holds(copy)
    objects = pool.array([None, "text", 12**30], object)
    assert objects.tolist() == [None, "text", 12**30]


def test_the_memory_goes_with_the_last_view(pool):
    array = numbers(pool, 1 << 16)
    view = array[100:200]
    gone = weakref.ref(array)
    del array
    gc.collect()
    assert gone() is not None and pool.nbytes == 1 << 19
    del view
    gc.collect()
    assert gone() is None and pool.nbytes == 0


def test_a_pool_is_not_closed_under_an_array(pool):
    array = numbers(pool, 1 << 16)
    with pytest.raises(BufferError, match="1 array is still in the pool, 512 KiB: delete"):
        pool.close()
    assert is_mixed(array)
    with pool, pytest.raises(BufferError, match="in use by a with block"):
        pool.close()


def test_an_array_outlives_its_pool(swap):
    array = numbers(overspill.Pool("8M", swap), 1 << 21)
    gc.collect()
    assert is_mixed(array)


def test_a_cycle_does_not_keep_a_pool_from_being_closed(swap):
    pool = overspill.Pool("8M", swap)
    cycle = [pool.zeros(1000)]
    cycle.append(cycle)
    del cycle
    pool.close()
    with pytest.raises(ValueError, match="the pool is closed: make another"):
        pool.empty(5)
    with pytest.raises(ValueError, match="the pool is closed"):
        with pool:
            pass
    pool.close()


def test_large_arrays_of_a_with_block_are_of_the_pool(pool):
    small = 1000
    with pool:
        arrays = np.arange(100_000), np.ones(small), np.zeros((300, 300)), np.sort(np.arange(9e5))
        with pool:
            inner = np.full(100_000, 7)
        after = np.arange(100_000)
    outside = np.arange(100_000)
    assert [pool.holds(one) for one in arrays] == [True, False, True, True]
    assert pool.holds(inner) and pool.holds(after) and not pool.holds(outside)
    assert arrays[0].sum() == outside.sum() == after.sum() and (inner == 7).all()
    with pytest.raises(ZeroDivisionError), pool:
        raise ZeroDivisionError
    assert not pool.holds(np.arange(100_000))


def test_least_says_what_is_large(swap):
    pool = overspill.Pool("8M", swap, least=1000)
    with pool:
        assert not pool.holds(np.zeros(999, np.uint8)) and pool.holds(np.zeros(1000, np.uint8))
    pool.close()


def test_two_pools_hold_their_own(pool, tmp_path):
    (tmp_path / "other").mkdir()
    other = overspill.Pool("8M", tmp_path / "other")
    with pool:
        outer = np.ones(100_000)
        with other:
            inner = np.ones(100_000)
        again = np.ones(100_000)
    assert pool.holds(outer) and pool.holds(again) and other.holds(inner)
    assert not pool.holds(inner) and not other.holds(outer)
    del inner
    other.close()


def test_a_block_is_of_its_thread(pool):
    def work():
        made.append(np.arange(100_000))
        with pool:
            made.append(np.arange(100_000))

    made = []
    with pool:
        thread = threading.Thread(target=work, name="other")
        thread.start()
        thread.join()
    # Python 3.14 can hand a thread what its parent has set.
    assert pool.holds(made[1]) and (made[0] == made[1]).all()
    made.clear()


def test_memory_is_given_back_after_the_block_and_by_other_threads(pool):
    with pool:
        arrays = [np.full(20_000, at) for at in range(40)]
    assert pool.nbytes >= 40 * 160_000
    threads = [
        threading.Thread(target=lambda: [arrays.pop().sum() for _ in range(10)])
        for _ in range(4)
    ]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
    assert not arrays and pool.nbytes == 0


def test_a_block_grows_into_the_pool_and_shrinks_in_it(pool):
    with pool:
        array = np.arange(1000)
    assert not pool.holds(array)
    for size in (200_000, 500_000, 100_000, 500, 300_000):
        held = min(array.size, size)
        array.resize(size, refcheck=False)
        assert (array[: min(held, 500)] == np.arange(min(held, 500))).all()
        assert pool.holds(array)
        assert pool.nbytes == -(-array.nbytes // 4096) * 4096
        array[:] = np.arange(size)
    with pool:
        # numpy does not know the length, and reallocates.
        grown = np.fromiter((at for at in range(100_000)), np.int64)
    assert pool.holds(grown) and (grown == np.arange(100_000)).all()


def test_many_arrays_come_and_go(pool):
    made = np.random.default_rng(5)
    arrays = {}
    for step in range(600):
        at = int(made.integers(40))
        if at in arrays:
            array, seed = arrays.pop(at)
            assert is_mixed(array, seed)
        else:
            array = pool.empty(int(made.integers(1, 1 << 17)), np.uint64)
            mix(array, step)
            arrays[at] = array, step
    assert all(is_mixed(array, seed) for array, seed in arrays.values())
    del array
    arrays.clear()
    assert pool.nbytes == 0


def test_threads_share_a_pool(pool):
    def work(first):
        array = pool.empty(1 << 20, np.uint64)
        mix(array, first)
        results.append(is_mixed(array, first) and is_mixed(array, first))

    results = []
    threads = [threading.Thread(target=work, args=(at << 21,)) for at in range(6)]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
    assert results == [True] * 6


def test_budgets_and_devices_change(pool, tmp_path):
    array = numbers(pool)
    pool.set_memory("24M")
    assert pool.stats()["budget_bytes"] == 24 << 20
    pool.set_memory(16 << 20)
    assert pool.reclaim("4M") >= 4 << 20
    (tmp_path / "second").mkdir()
    before = pool.stats()["swap_total_bytes"]
    pool.swapon(f"{tmp_path}/second:256M,label=second")
    assert pool.stats()["swap_total_bytes"] == before + (256 << 20)
    pool.swapoff(tmp_path / "swap")
    assert pool.stats()["swap_total_bytes"] == 256 << 20
    assert is_mixed(array)
    with pytest.raises(MemoryError, match="has room for [0-9]+ pages of it: add a device"):
        pool.swapoff("second")
    with pytest.raises(ValueError, match="no swap device is called 'third'"):
        pool.swapoff("third")
    assert is_mixed(array)
