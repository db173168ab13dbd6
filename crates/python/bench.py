#!/usr/bin/env python3
"""Sorts two tables and joins them in a fourth of their memory, in four ways.

    bench.py [--budget MIB] [--rounds N] [--only NAME]... [--directory DIR]

Each way runs in a process of its own, in a memory cgroup, in turn: with the budget, beside what
its imports take. It reads the same two files, and its result is checked. As root; run it with the
Python of an environment that has the wheel, numpy, and for `dask` also dask[dataframe].
"""

import argparse
import inspect
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time

HERE = pathlib.Path(__file__).resolve().parent
#: Beside the budget and the imports, for stacks and buffers.
BESIDE = 24 << 20
LIMIT_SECONDS = 900


def in_pool(directory, budget):
    import numpy as np
    import overspill

    pool = overspill.Pool(budget, f"{directory}:{40 * budget}", delivery=DELIVERY)
    orders, customers = pool.load("orders.npy"), pool.load("customers.npy")
    orders.sort()
    customers.sort()
    with pool:
        place = np.searchsorted(customers >> 32, orders >> 32)
        return int(((orders & LOW) * (1000 - (customers[place] & LOW))).sum())


def by_memmap(directory, budget):
    import numpy as np

    def mapped(name):
        return np.memmap(f"{directory}/{name}", np.uint64, "w+", shape=rows)

    rows = np.load("orders.npy", mmap_mode="r").size
    orders, customers = mapped("o"), mapped("c")
    orders[:] = np.load("orders.npy", mmap_mode="r")
    customers[:] = np.load("customers.npy", mmap_mode="r")
    orders.sort()
    customers.sort()
    order_keys, customer_keys, place, paid = map(mapped, "1234")
    np.right_shift(orders, 32, out=order_keys)
    np.right_shift(customers, 32, out=customer_keys)
    # searchsorted and take make new arrays, which would not fit: so they are made in pieces.
    step = budget // 64
    for at in range(0, rows, step):
        here = slice(at, at + step)
        place[here] = np.searchsorted(customer_keys, order_keys[here])
        paid[here] = (orders[here] & LOW) * (1000 - (customers[place[here].astype(int)] & LOW))
    return int(paid.sum())


def by_hand(directory, budget):
    import numpy as np

    def partition(name):
        source = np.load(name, mmap_mode="r")
        parts = -(-source.nbytes * 8 // budget)
        files = [open(f"{directory}/{name}.{part}", "wb") for part in range(parts)]
        for at in range(0, source.size, budget // 64):
            piece = np.sort(source[at : at + budget // 64])
            ends = [(part * source.size // parts) << 32 for part in range(1, parts)]
            cuts = np.searchsorted(piece, np.array(ends, np.uint64))
            for file, part in zip(files, np.split(piece, cuts)):
                part.tofile(file)
        for file in files:
            file.close()
        return parts

    total = 0
    parts = partition("orders.npy")
    assert partition("customers.npy") == parts
    for part in range(parts):
        orders = np.sort(np.fromfile(f"{directory}/orders.npy.{part}", np.uint64))
        customers = np.sort(np.fromfile(f"{directory}/customers.npy.{part}", np.uint64))
        place = np.searchsorted(customers >> 32, orders >> 32)
        total += int(((orders & LOW) * (1000 - (customers[place] & LOW))).sum())
    return total


def by_dask(directory, budget):
    import dask
    import dask.dataframe as dd
    import numpy as np
    import pandas as pd

    def frame(name, value):
        def piece(at):
            rows = np.load(name, mmap_mode="r")[at : at + step]
            return pd.DataFrame({"customer": rows >> 32, value: rows & LOW})

        size = np.load(name, mmap_mode="r").size
        return dd.from_map(piece, range(0, size, step)).set_index("customer")

    step = budget // 256
    dask.config.set({"scheduler": "threads", "num_workers": 1, "temporary-directory": directory,
                     "dataframe.shuffle.method": "disk"})
    orders, customers = frame("orders.npy", "cents"), frame("customers.npy", "discount")
    joined = orders.merge(customers, left_index=True, right_index=True)
    return int((joined["cents"] * (1000 - joined["discount"])).sum().compute())


WAYS = {
    "pool, by thread": (in_pool, "numpy overspill"),
    "pool, by signal": (in_pool, "numpy overspill"),
    "numpy.memmap": (by_memmap, "numpy"),
    "chunks by hand": (by_hand, "numpy"),
    "dask": (by_dask, "numpy pandas dask.dataframe"),
}
DELIVERY = "thread"
LOW = 0xFFFF_FFFF


def child(name, directory, budget):
    """One way, in a process of its own: what it found, how long that took, and of processors."""
    global DELIVERY, LOW
    import numpy as np

    LOW = np.uint64(LOW)
    DELIVERY = "signal" if "signal" in name else "thread"
    began, processors = time.monotonic(), time.process_time()
    found = WAYS[name][0](directory, budget)
    print(found, time.monotonic() - began, time.process_time() - processors)


def resident_after(imports):
    """Bytes that a process takes that has only imported something."""
    text = f"import {imports.replace(' ', ', ')}; print(open('/proc/self/statm').read())"
    done = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, check=True)
    return int(done.stdout.split()[1]) * 4096


def lines_of(way):
    """Lines of code, without those that are empty or a comment, and the imports."""
    lines = [line.strip() for line in inspect.getsource(way).splitlines()[1:]]
    return sum(1 for line in lines if line and not line.startswith(("#", "import ")))


def make_files(rows):
    """The two tables, in no order, and what comes out."""
    import numpy as np

    rng = np.random.default_rng(7)
    numbers = rng.permutation(rows).astype(np.uint64)
    discounts = rng.integers(0, 300, rows).astype(np.uint64)
    np.save("customers.npy", numbers << 32 | discounts)
    chosen, cents = rng.integers(0, rows, rows), rng.integers(0, 99_991, rows).astype(np.uint64)
    np.save("orders.npy", numbers[chosen] << 32 | cents)
    return int((cents * (1000 - discounts[chosen])).sum())


def run_in_cgroup(name, budget, directory):
    """What was found, seconds, and seconds of processors; or why not."""
    from cgroup import MemoryCgroup

    command = [sys.executable, HERE / "bench.py", "--child", name, directory, str(budget)]
    with MemoryCgroup(budget + resident_after(WAYS[name][1]) + BESIDE) as cgroup:
        try:
            done = subprocess.run(cgroup.wrap(list(map(str, command))), capture_output=True,
                                  text=True, timeout=LIMIT_SECONDS, check=False)
        except subprocess.TimeoutExpired:
            return f"more than {LIMIT_SECONDS} s"
    if done.returncode == -9:
        return "killed: out of memory"
    if done.returncode:
        return done.stderr.strip().splitlines()[-1]
    found, seconds, processors = done.stdout.split()
    return int(found), float(seconds), float(processors)


def shown(results):
    """Medians of what a way took, with the lowest and the highest; or why it did not."""
    for one in results:
        if isinstance(one, str):
            return f"{one} |"
    columns = ([result[column] for result in results] for column in (1, 2))
    return " | ".join(f"{statistics.median(column):.1f} ({min(column):.1f} to {max(column):.1f})"
                      for column in columns)


def options_of(arguments):
    """What is asked for: every way, unless some are named."""
    options = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    options.add_argument("--budget", type=int, default=64, help="in MiB")
    options.add_argument("--rounds", type=int, default=3)
    options.add_argument("--only", action="append", choices=WAYS)
    options.add_argument("--directory", default="/var/tmp")
    options = options.parse_args(arguments)
    options.only = options.only or list(WAYS)
    return options


def main():
    options = options_of(sys.argv[1:])
    sys.path.insert(0, str(HERE.parent.parent / "tests" / "proof"))
    budget = options.budget << 20
    results = {name: [] for name in options.only}
    with tempfile.TemporaryDirectory(dir=options.directory) as home:
        os.chdir(home)
        expected = make_files(2 * budget // 8)
        for _ in range(options.rounds):
            for name, rounds in results.items():
                with tempfile.TemporaryDirectory(dir=home) as directory:
                    os.sync()
                    result = run_in_cgroup(name, budget, directory)
                    found = result[0] if isinstance(result, tuple) else expected
                    assert found == expected, (name, result, expected)
                    rounds.append(result)
                    print(name, result, file=sys.stderr, flush=True)
    print("| | s | s of processors | lines |\n|---|---|---|---|")
    for name, rounds in results.items():
        print(f"| {name} | {shown(rounds)} | {lines_of(WAYS[name][0])} |")


if __name__ == "__main__":
    if sys.argv[1:2] == ["--child"]:
        child(sys.argv[2], sys.argv[3], int(sys.argv[4]))
    else:
        main()
