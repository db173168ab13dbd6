"""Memory for numpy beyond the RAM budget: compressed, then on swap files, encrypted.

    import numpy as np
    import overspill

    pool = overspill.Pool("256M", swap="/var/tmp:4G")
    a = pool.zeros((20_000, 20_000))  # 3 GiB
    with pool:
        b = np.sort(a, axis=0)        # new arrays of numpy, pandas, scipy are of the pool, too

The arrays are ordinary ones. What does not fit into the budget is compressed in memory or written
to a swap device, and comes back when it is touched.
"""

from __future__ import annotations

import contextlib
import contextvars
import gc
import os
from types import TracebackType
from typing import Any, Dict, Iterable, Iterator, List, Optional, Sequence, Tuple, Type, Union

import numpy as np

from . import _engine

__all__ = ["Pool", "__version__"]

__version__ = _engine.VERSION

Size = Union[int, str]
Device = Union[str, "os.PathLike[str]"]
Shape = Union[int, Sequence[int]]
Array = np.ndarray[Any, np.dtype[Any]]

#: Smallest arrays, in bytes, that ``with pool:`` puts into the pool.
LEAST = 64 << 10

# What numpy took its memory from before each ``with`` of this thread, or asynchronous task.
_before: contextvars.ContextVar[Tuple[object, ...]] = contextvars.ContextVar(
    "overspill", default=()
)


class Pool:
    """A budget of memory with swap devices behind it, and arrays in it.

    ``memory`` is the budget, such as ``"256M"`` or a number of bytes. ``swap`` names devices as
    ``overspill run --swap`` does: a directory, a file or a block device, with ``:SIZE``; several
    in a list. Without any, what does not fit compressed has no room.

    ``delivery`` says who serves faults. ``"thread"`` needs rights, and an array is then like any
    other. ``"signal"`` needs none, but system calls that are handed memory which is out just then
    fail (EFAULT): ``tofile``, ``readinto``, ``send``.

    An array for which there is no room raises MemoryError: in the budget and on the devices, as
    if nothing could be compressed. ``overcommit=True`` gives out more; then the process is killed
    if it does not fit. So it is without devices.

    Arrays of ``least`` bytes and more are of the pool in a ``with`` block. ``settings`` is a list
    as that of ``overspill run --set``.
    """

    def __init__(
        self,
        memory: Size,
        swap: Union[None, Device, Sequence[Device]] = None,
        *,
        delivery: str = "thread",
        overcommit: bool = False,
        least: int = LEAST,
        settings: str = "",
    ) -> None:
        if least < 1:
            raise ValueError(f"least cannot be {least}: it is a number of bytes, 1 or more")
        names = ",".join(_devices(swap))
        self._engine = _engine.Pool(_size(memory), names, delivery, settings, overcommit)
        self._all = self._engine.handler(1)
        self._large = self._engine.handler(least)
        self._entered = 0

    def empty(self, shape: Shape, dtype: Any = float, order: Any = "C") -> Array:
        """An array of the pool. What it holds is not defined, as with numpy.empty."""
        with self._allocating():
            return np.empty(shape, dtype, order)

    def zeros(self, shape: Shape, dtype: Any = float, order: Any = "C") -> Array:
        """An array of the pool, all zero. It takes no memory before it is touched."""
        with self._allocating():
            return np.zeros(shape, dtype, order)

    def array(self, values: Any, dtype: Any = None, order: Any = "K") -> Array:
        """A copy in the pool of an array, or what numpy makes one of."""
        with self._allocating():
            return np.array(values, dtype, order=order)

    def load(self, file: Union[str, "os.PathLike[str]"]) -> Array:
        """The array in a .npy file, in the pool."""
        # No system call is handed memory of the pool: so it works in both deliveries.
        try:
            mapped = np.load(file, mmap_mode="r")
        except (ValueError, EOFError) as error:
            # What numpy advises is an option of its own.
            reason = "no array, or one of objects" if "pickle" in str(error) else error
            raise ValueError(
                f"{os.fspath(file)!r} cannot be loaded ({reason}): name a .npy file with an array "
                "of numbers, as numpy.save writes it"
            ) from None
        if not isinstance(mapped, np.ndarray):
            raise ValueError(f"{os.fspath(file)!r} has several arrays: use numpy.load")
        with self._allocating():
            array = np.empty_like(mapped, subok=False)
        np.copyto(array, mapped)
        return array

    def holds(self, array: Array) -> bool:
        """Whether an array, or what it is a view of, is in the pool."""
        if not isinstance(array, np.ndarray):
            raise TypeError(
                f"this {type(array).__name__} is not an array of numpy: give what the pool or "
                "numpy has made"
            )
        return self._engine.contains(array.__array_interface__["data"][0])

    def stats(self) -> Dict[str, int]:
        """The counters, by their names in ``overspill stat --json``."""
        return self._engine.stats()

    @property
    def nbytes(self) -> int:
        """Bytes of all arrays that are in the pool, in whole pages."""
        return self._engine.given()[1]

    def set_memory(self, memory: Size) -> None:
        """Changes the budget. A smaller one is reached by and by."""
        self._engine.set_memory(_size(memory))

    def reclaim(self, memory: Size) -> int:
        """Takes so much out of memory ahead of need, and returns how many bytes have left."""
        return self._engine.reclaim(_size(memory))

    def swapon(self, device: Device) -> None:
        """Adds a swap device."""
        self._engine.swapon(_device(device))

    def swapoff(self, device: Device) -> None:
        """Takes a swap device out of use: its pages go elsewhere.

        ``device`` is its path or label. Raises MemoryError where nothing has room for its pages;
        then it stays. Raises OSError if some could not be read: those are lost.
        """
        lost = self._engine.swapoff(_device(device))
        if lost:
            raise OSError(f"{lost} pages could not be read: an access to one of them is SIGBUS")

    def close(self) -> None:
        """Ends the pool, and gives its memory and devices back.

        Raises BufferError while arrays are in it. Without this it ends with its last array.
        """
        if self._entered:
            raise BufferError("the pool is in use by a with block: close it after that")
        if self._engine.given()[0]:
            gc.collect()
        self._engine.close()

    def __enter__(self) -> Pool:
        """From here on large arrays of this thread, or asynchronous task, are of the pool."""
        self._engine.check_open()
        _before.set((*_before.get(), _engine.set_handler(self._large)))
        self._entered += 1
        return self

    def __exit__(
        self,
        kind: Optional[Type[BaseException]],
        error: Optional[BaseException],
        trace: Optional[TracebackType],
    ) -> None:
        *rest, last = _before.get()
        _before.set(tuple(rest))
        _engine.set_handler(last)
        self._entered -= 1

    def __repr__(self) -> str:
        arrays, nbytes, left = self._engine.given()
        room = "" if left is None else f", room for {left} more"
        return f"<overspill.Pool: {arrays} arrays of {nbytes} bytes{room}>"

    @contextlib.contextmanager
    def _allocating(self) -> Iterator[None]:
        """Has arrays of any size be of the pool, and MemoryError say what there is room for."""
        self._engine.check_open()
        before = _engine.set_handler(self._all)
        try:
            yield
        except MemoryError as error:
            left = self._engine.given()[2]
            if left is None:
                raise
            raise MemoryError(
                f"{error}: the pool has room for {left} bytes more; delete arrays, or add a swap "
                "device (swapon)"
            ) from None
        finally:
            _engine.set_handler(before)


def _devices(swap: Union[None, Device, Sequence[Device]]) -> List[str]:
    """The names of swap devices."""
    if swap is None:
        return []
    if isinstance(swap, (str, bytes, os.PathLike)) or not isinstance(swap, Iterable):
        return [_device(swap)]
    return [_device(device) for device in swap]


def _device(device: object) -> str:
    """The name of a swap device."""
    if isinstance(device, (str, os.PathLike)):
        name = os.fspath(device)
        if isinstance(name, str):
            return name
    raise TypeError(
        f"{device!r} is not a swap device: name a directory, a file or a block device, such as "
        "'/var/tmp:4G', or several in a list"
    )


def _size(size: Size) -> str:
    """A size as the engine reads it."""
    if isinstance(size, (int, np.integer)) and not isinstance(size, bool) and size >= 0:
        return str(int(size))
    if isinstance(size, str):
        return size
    raise ValueError(f"{size!r} is not a size: write a number of bytes, or a text such as '512M'")
