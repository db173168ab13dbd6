"""The numpy programs of the bench: prints a checksum of what was computed.

usage: numpy.py sort|product BYTES

Values are whole numbers below 64, as measurements have few values: a page of them packs
about 2.5:1, before and after.
"""

import sys
import zlib

import numpy

STEP = 1 << 20  # elements at a time, so that no temporary is as large as an array
WIDTH = 128  # columns of the matrices that are multiplied
LAYERS = 3  # products, one after the other


def filled(random, elements, below):
    array = numpy.empty(elements, dtype=numpy.float64)
    for i in range(0, elements, STEP):
        part = array[i : i + STEP]
        part[:] = random.integers(0, below, len(part))
    return array


def sort(elements):
    array = filled(numpy.random.default_rng(7), elements, 64)
    array.sort()
    return zlib.crc32(array)


def product(elements):
    """A tall matrix times small ones, as a layer of a neural network. The numbers stay whole, so
    every order of adding gives the same."""
    random = numpy.random.default_rng(7)
    rows = elements // 2 // WIDTH
    here = filled(random, rows * WIDTH, 16).reshape(rows, WIDTH)
    there = numpy.empty_like(here)
    for _ in range(LAYERS):
        weights = numpy.zeros((WIDTH, WIDTH))
        for column in range(WIDTH):
            weights[random.choice(WIDTH, 4, replace=False), column] = 1
        numpy.matmul(here, weights, out=there)
        here, there = there, here
    return zlib.crc32(here)


print({"sort": sort, "product": product}[sys.argv[1]](int(sys.argv[2]) // 8))
