"""A process that has memory forks again and again; each child writes to a part of that, and ends.
Prints a checksum of the memory, which no child has changed.

usage: forks.py BYTES
"""

import os
import random
import sys
import zlib

FORKS = 20
PAGE = 4096
PART = 100  # one page in so many is written to

# Pages pack about 2.5:1.
numbers = random.Random(7)
some = b"".join(numbers.randbytes(PAGE * 2 // 5) + bytes(PAGE - PAGE * 2 // 5) for _ in range(256))
memory = bytearray(some) * (int(sys.argv[1]) // len(some))
for fork in range(FORKS):
    if (child := os.fork()) == 0:
        for at in range(fork * PAGE, len(memory), PART * PAGE):
            memory[at] ^= 1
        os._exit(0)
    if os.waitpid(child, 0)[1] != 0:
        sys.exit("a child failed")
print(zlib.crc32(memory))
