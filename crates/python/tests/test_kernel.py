"""System calls on arrays of a pool: files, sockets, pickles; and what signal delivery cannot."""

import errno
import pickle
import socket
import threading

import numpy as np
import overspill
import pytest
from conftest import is_mixed, numbers


def swapped_out(pool):
    """An array most of which is out of memory."""
    array = numbers(pool, 1 << 22)
    pool.reclaim("12M")
    return array


def test_files(threads_pool, tmp_path):
    out = swapped_out(threads_pool)
    out.tofile(tmp_path / "raw")
    np.save(tmp_path / "saved.npy", out)
    with threads_pool:
        raw = np.fromfile(tmp_path / "raw", np.uint64)
        saved = np.load(tmp_path / "saved.npy")
    assert threads_pool.holds(raw) and threads_pool.holds(saved)
    assert is_mixed(raw) and is_mixed(saved)
    again = threads_pool.empty(out.size, np.uint64)
    with open(tmp_path / "raw", "rb", buffering=0) as file:
        assert file.readinto(again) == out.nbytes
    assert is_mixed(again)
    with open(tmp_path / "copy", "wb", buffering=0) as file:
        assert file.write(out) == out.nbytes
    assert (tmp_path / "copy").read_bytes() == out.tobytes()


def test_sockets(threads_pool):
    out = swapped_out(threads_pool)
    one, other = socket.socketpair()
    got = threads_pool.empty(out.size, np.uint64)

    def receive():
        view = memoryview(got).cast("B")
        while view:
            view = view[other.recv_into(view) :]

    with one, other:
        thread = threading.Thread(target=receive)
        thread.start()
        one.sendall(out)
        thread.join()
    assert is_mixed(got)
    del thread, receive


def test_pickles(threads_pool):
    out = swapped_out(threads_pool)
    buffers = []
    text = pickle.dumps(out, protocol=5, buffer_callback=buffers.append)
    assert is_mixed(pickle.loads(text, buffers=buffers)) and len(text) < 1000
    with threads_pool:
        copy = pickle.loads(pickle.dumps(out[: 1 << 20]))
    assert is_mixed(copy)
    with pytest.raises(TypeError, match="pickle"):
        pickle.dumps(threads_pool)
    buffers.clear()


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("dtype", ["u1", "<f8", ">i4", "M8[us]", [("a", "i4"), ("b", "S3")]])
def test_npy_files_are_loaded(pool, tmp_path, order, dtype):
    numbers = np.arange(21_000).reshape(300, 70) % 120
    made = np.zeros((300, 70), dtype, order=order)
    if made.dtype.names:
        made["a"], made["b"] = numbers, b"xyz"
    else:
        made[:] = numbers.astype(dtype)
    np.save(tmp_path / "one.npy", made)
    loaded = pool.load(tmp_path / "one.npy")
    assert pool.holds(loaded) and loaded.dtype == made.dtype and (loaded == made).all()
    assert loaded.flags.c_contiguous == made.flags.c_contiguous
    assert type(loaded) is np.ndarray and loaded.flags.writeable and loaded.flags.owndata


def test_a_npy_file_larger_than_the_memory(pool, tmp_path):
    array = numbers(pool)
    pieces = np.lib.format.open_memmap(tmp_path / "large.npy", "w+", np.uint64, array.shape)
    pieces[:] = array
    del pieces, array
    assert is_mixed(pool.load(str(tmp_path / "large.npy")))


def test_what_is_no_npy_file(pool, tmp_path):
    with pytest.raises(FileNotFoundError):
        pool.load(tmp_path / "missing.npy")
    np.save(tmp_path / "cut.npy", np.arange(100_000))
    with open(tmp_path / "cut.npy", "r+b") as file:
        file.truncate(4000)
    with pytest.raises(ValueError):
        pool.load(tmp_path / "cut.npy")
    np.save(tmp_path / "objects.npy", np.array([None, 1]), allow_pickle=True)
    with pytest.raises(ValueError):
        pool.load(tmp_path / "objects.npy")
    np.savez(tmp_path / "several.npz", a=np.arange(3))
    with pytest.raises(ValueError, match="has several arrays: use numpy.load"):
        pool.load(tmp_path / "several.npz")
    np.save(tmp_path / "none.npy", np.zeros((0, 5)))
    assert pool.load(tmp_path / "none.npy").shape == (0, 5)
    assert pool.nbytes == 0


def test_signal_delivery_fails_rather_than_being_wrong(swap, tmp_path):
    pool = overspill.Pool("16M", swap, delivery="signal")
    array = swapped_out(pool)
    with open(tmp_path / "raw", "wb", buffering=0) as file:
        with pytest.raises(OSError) as caught:
            file.write(array)
        assert caught.value.errno == errno.EFAULT
    # What is copied first can be handed over.
    (tmp_path / "raw").write_bytes(array.tobytes())
    assert is_mixed(np.fromfile(tmp_path / "raw", np.uint64)) and is_mixed(array)
    del array
    pool.close()
