"""The program of the numpy case: fills an array of float64, sorts it in place, checks it, prints
its SHA-256.

usage: numpy_sort.py ELEMENTS
"""

import hashlib
import sys

import numpy

STEP = 1 << 20  # elements at a time, so that no temporary is as large as the array


def bits(array):
    """Sum and exclusive or of all elements as integers: what no order changes."""
    total, parity = 0, 0
    for i in range(0, len(array), STEP):
        words = array[i : i + STEP].view(numpy.uint64)
        total += int(words.sum(dtype=numpy.uint64))
        parity ^= int(numpy.bitwise_xor.reduce(words))
    return total % (1 << 64), parity


def main():
    elements = int(sys.argv[1])
    random = numpy.random.default_rng(20240229)
    array = numpy.empty(elements, dtype=numpy.float64)
    for i in range(0, elements, STEP):
        random.random(out=array[i : i + STEP])
    before = bits(array)
    array.sort()
    if bits(array) != before:
        sys.exit("wrong: the sorted array does not hold the elements that were put in")
    sha = hashlib.sha256()
    for i in range(0, elements, STEP):
        # One element more, so that neighbours in different steps are compared too.
        part = array[i : i + STEP + 1]
        if not bool((part[:-1] <= part[1:]).all()):
            sys.exit(f"wrong: not in order near element {i}")
        sha.update(array[i : i + STEP])
    print(sha.hexdigest())


if __name__ == "__main__":
    main()
