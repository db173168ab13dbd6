"""A process makes data and forks workers; all read it again and again, and each writes to a part.
Prints a checksum of what all have read.

usage: workers.py BYTES
"""

import os
import random
import sys

WORKERS = 4
PAGE = 4096
ROUNDS = 20
PART = 20  # one page in so many is written to

# Pages do not pack.
some = random.Random(7).randbytes(256 * PAGE)
memory = bytearray(some) * (int(sys.argv[1]) // len(some))
begun, begin = os.pipe()
read, results = os.pipe()
for worker in range(WORKERS):
    if os.fork() == 0:
        # All at the same time.
        os.close(begin)
        os.read(begun, 1)
        for at in range(worker * PAGE, len(memory), PART * PAGE):
            memory[at] ^= 1
        total = sum(sum(memory[::PAGE]) for _ in range(ROUNDS))
        os.write(results, total.to_bytes(8, "little"))
        os._exit(0)
os.close(begin)
total = sum(sum(memory[::PAGE]) for _ in range(ROUNDS))
for worker in range(WORKERS):
    total += int.from_bytes(os.read(read, 8), "little")
    if os.wait()[1] != 0:
        sys.exit("a worker failed")
print(total)
