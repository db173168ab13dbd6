"""Bad input: one exception that says what to do."""

import importlib.metadata

import numpy as np
import overspill
import pytest


@pytest.mark.parametrize(
    "memory, error, says",
    [
        ("1M", ValueError, "a budget of 1 MiB is too small: the smallest possible is"),
        ("900T", ValueError, "too large"),
        ("much", ValueError, "'much' is not a size: write a number with K, M, G or T"),
        (-5, ValueError, "-5 is not a size"),
        (1.5, ValueError, "1.5 is not a size"),
        (None, ValueError, "None is not a size"),
    ],
)
def test_budgets(memory, error, says):
    with pytest.raises(error, match=says):
        overspill.Pool(memory)


def test_what_a_pool_is_made_with(tmp_path):
    with pytest.raises(OSError, match="missing"):
        overspill.Pool("16M", tmp_path / "missing")
    with pytest.raises(ValueError, match="'1X' is not a size"):
        overspill.Pool("16M", f"{tmp_path}:1X")
    with pytest.raises(ValueError, match="delivery cannot be 'x': it takes thread or signal"):
        overspill.Pool("16M", delivery="x")
    with pytest.raises(ValueError, match="zswap.codec cannot be 'lzo': it takes auto"):
        overspill.Pool("16M", settings="zswap.codec=lzo")
    with pytest.raises(ValueError, match="least cannot be 0"):
        overspill.Pool("16M", least=0)
    with pytest.raises(TypeError):
        overspill.Pool()
    for swap in (5, b"/var/tmp", ["/var/tmp", 5]):
        with pytest.raises(TypeError, match="is not a swap device: name a directory"):
            overspill.Pool("16M", swap)


def test_what_is_no_array(pool, tmp_path):
    for value in ([1, 2], 5, None):
        with pytest.raises(TypeError, match="is not an array of numpy: give what"):
            pool.holds(value)
    with pytest.raises(TypeError, match="5 is not a swap device"):
        pool.swapon(5)
    whole = tmp_path / "whole.npy"
    np.save(whole, np.arange(1000))
    objects = tmp_path / "objects.npy"
    np.save(objects, np.array([None, "x"], dtype=object))
    for name, content in (("text", b"no array"), ("empty", b""), ("cut", whole.read_bytes()[:99])):
        (tmp_path / name).write_bytes(content)
        with pytest.raises(ValueError, match="cannot be loaded .*: name a .npy file") as raised:
            pool.load(tmp_path / name)
        assert "allow_pickle" not in str(raised.value)
    with pytest.raises(ValueError, match="objects.npy' cannot be loaded") as raised:
        pool.load(objects)
    assert "allow_pickle" not in str(raised.value)


def test_the_version_is_that_of_the_package():
    assert overspill.__version__ == importlib.metadata.version("overspill")


@pytest.mark.parametrize("delivery", ["thread", "signal"])
def test_a_kernel_without_userfaultfd(program, delivery):
    done = program(
        f"""
        import overspill
        try:
            overspill.Pool("16M", delivery="{delivery}")
        except OSError as error:
            print(type(error).__name__, error)
        """,
        OVERSPILL_SIMULATE="no-uffd",
    )
    said = "run Linux 5.7 or later, built with CONFIG_USERFAULTFD=y\n"
    assert done.stdout.startswith("OSError [Errno 38]") and done.stdout.endswith(said), done
    assert "delivery=" not in done.stdout


def test_what_there_is_no_room_for(pool):
    with pytest.raises(MemoryError, match="the pool has room for 553648128 bytes more; delete"):
        pool.empty(600 << 20, np.uint8)
    with pool, pytest.raises(MemoryError):
        np.empty(600 << 20, np.uint8)
    held = pool.empty(500 << 20, np.uint8)
    with pytest.raises(MemoryError):
        pool.empty(100 << 20, np.uint8)
    with pytest.raises(MemoryError):
        held.resize(600 << 20, refcheck=False)
    del held
    assert pool.empty(100 << 20, np.uint8).nbytes == 100 << 20
    with pytest.raises((MemoryError, ValueError)):
        pool.empty(1 << 62, np.uint8)


def test_more_is_given_out_where_that_is_wanted(swap):
    pool = overspill.Pool("16M", swap, overcommit=True)
    array = pool.zeros(10 << 30, np.uint8)
    array[:: 1 << 24] = 1
    assert array[::4096].sum() == 640
    del array
    pool.close()
    compressed_only = overspill.Pool("16M")
    array = compressed_only.zeros(1 << 24)
    array[:] = np.arange(array.size) // 4096
    assert array[-1] == (array.size - 1) // 4096
    del array
    compressed_only.close()


@pytest.mark.parametrize("call", ["stats", "set_memory", "reclaim", "swapon", "swapoff", "load"])
def test_a_closed_pool(call, swap, tmp_path):
    np.save(tmp_path / "file.npy", np.arange(5))
    pool = overspill.Pool("16M", swap)
    pool.close()
    arguments = {"stats": (), "load": (tmp_path / "file.npy",)}.get(call, ("1M",))
    with pytest.raises(ValueError, match="the pool is closed: make another"):
        getattr(pool, call)(*arguments)


def test_a_user_without_rights_is_told_what_to_do(program):
    done = program(
        """
        import os
        import overspill
        if os.getuid() == 0:
            os.setgroups([])
            os.setgid(65534)
            os.setuid(65534)
        try:
            overspill.Pool("16M")
            print("allowed")
        except PermissionError as error:
            print(error)
        pool = overspill.Pool("16M", delivery="signal")
        print(int(pool.zeros(1 << 22).sum()))
        """
    )
    assert (done.returncode, done.stderr) == (0, ""), done
    if done.stdout == "allowed\n0\n":
        pytest.skip("every user may have a userfaultfd that serves system calls")
    assert 'or pass delivery="signal"' in done.stdout and done.stdout.endswith("\n0\n")


def test_any_number_of_pools_may_follow_each_other(swap):
    for at in range(200):
        pool = overspill.Pool("8M", swap, delivery=["signal", "thread"][at % 2])
        array = pool.array(np.arange(at, 5000))
        assert array.sum() == 4999 * 2500 - at * (at - 1) // 2
        del array
        pool.close()


def test_too_many_pools_at_once_in_signal_delivery():
    with pytest.raises(OSError, match="64 pools in signal delivery, which is the most"):
        pools = []
        for _ in range(65):
            pools.append(overspill.Pool("8M", delivery="signal"))
    assert len(pools) == 64


def test_what_is_no_allocator():
    with pytest.raises(TypeError, match="that is no allocator"):
        overspill._engine.set_handler(5)


def test_a_program_ends_with_arrays_in_a_pool(program):
    for delivery in ("thread", "signal"):
        done = program(
            f"""
            import numpy as np, overspill
            pool = overspill.Pool("16M", "swap:256M", delivery="{delivery}")
            array = pool.zeros(1 << 22)
            array += 1
            pool.__enter__()
            more = np.arange(1 << 20)
            print(array.sum())
            """
        )
        assert (done.returncode, done.stdout, done.stderr) == (0, "4194304.0\n", "")
