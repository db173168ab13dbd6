"""A pool of four processes, each of which builds lists and sums them: prints the sum of all.

usage: pool.py BYTES
"""

import multiprocessing
import sys

WORKERS = 4
TASKS = 12
ELEMENT_BYTES = 40  # of a list: a pointer, and a number of 32 bytes


def work(task):
    elements = int(sys.argv[1]) // WORKERS // ELEMENT_BYTES
    values = [(i * 7919 + task) % 1_000_003 + 1_000 for i in range(elements)]
    return sum(sum(values[first::7]) for first in range(7))


with multiprocessing.get_context("fork").Pool(WORKERS) as pool:
    print(sum(pool.map(work, range(TASKS), chunksize=1)))
