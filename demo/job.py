"""A job that holds all of its data in memory: makes a table, goes over it forwards and backwards,
changes it, sums it up.

usage: job.py MEBIBYTES
"""

import hashlib
import sys

BLOCK = 1 << 16


def block(number):
    """64 KiB, half of them random, half of them text: what data in memory are like."""
    seed = number.to_bytes(8, "little")
    text = b"row %d: the quick brown fox jumps over the lazy dog; " % number
    random = hashlib.shake_128(seed).digest(BLOCK // 2)
    return bytearray(random + (text * (BLOCK // 2 // len(text) + 1))[: BLOCK // 2])


def digest(blocks):
    total = hashlib.blake2b(digest_size=16)
    for part in blocks:
        total.update(part)
    return total.hexdigest()


def main():
    table = [block(number) for number in range(int(sys.argv[1]) << 20 >> 16)]
    print("made:     ", digest(table))
    print("backwards:", digest(reversed(table)))
    for number, part in enumerate(table):
        part[number % BLOCK] ^= 255
    print("changed:  ", digest(table))


main()
