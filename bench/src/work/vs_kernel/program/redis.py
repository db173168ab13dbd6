"""The client of a redis-server: fills it, has redis-benchmark read at random, reads everything back
and ends it, all with the tools of Redis. Prints what the reads took as JSON.

usage: redis.py SOCKET VALUES PROCESS

VALUES is a file with a value a line, as redis-cli prints them; PROCESS is the server's.
"""

import csv
import json
import os
import subprocess
import sys
import threading
import time
import zlib

VALUE_BYTES = 992
AT_ONCE = 64  # values that are asked for at once
PATIENCE_S = 20  # until the server answers for the first time

socket, values, server = sys.argv[1:]
keys = os.path.getsize(values) // (VALUE_BYTES + 1)


def tell(tool, parts):
    # One that does not listen any more has failed, which its status tells.
    try:
        with tool.stdin:
            tool.stdin.writelines(parts)
    except BrokenPipeError:
        pass


def printed(name, *args, told=()):
    """What a tool prints that works with the server, part by part, while it is told something."""
    command = [name, "-s", socket, *args]
    tool = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    threading.Thread(target=tell, args=(tool, told)).start()
    yield from iter(lambda: tool.stdout.read(1 << 16), b"")
    if tool.wait() != 0:
        sys.exit(f"{name} failed (status {tool.returncode})")


def ask(name, *args, told=()):
    return b"".join(printed(name, *args, told=told)).decode()


def answers():
    ping = ["redis-cli", "-s", socket, "PING"]
    return subprocess.run(ping, capture_output=True).stdout.strip() == b"PONG"


def sets():
    """Commands in the protocol of Redis (RESP2): values hold any bytes. Keys are as redis-benchmark
    makes them."""
    with open(values, "rb") as file:
        for key in range(keys):
            value = file.read(VALUE_BYTES + 1)[:-1]
            yield b"*3\r\n$3\r\nSET\r\n$16\r\nkey:%012d\r\n$%d\r\n%s\r\n" % (key, len(value), value)


def gets():
    for first in range(0, keys, AT_ONCE):
        names = (b" key:%012d" % key for key in range(first, min(first + AT_ONCE, keys)))
        yield b"MGET%s\n" % b"".join(names)


def cpu_s():
    """Processor time of the server so far, in user mode and in the kernel."""
    told = dict(line.split(":") for line in ask("redis-cli", "INFO", "cpu").split() if ":" in line)
    return [float(told[name]) for name in ("used_cpu_user", "used_cpu_sys")]


def checksum(parts):
    sum = 0
    for part in parts:
        sum = zlib.crc32(part, sum)
    return sum


began = time.monotonic()
while not answers():
    if not os.path.exists(f"/proc/{server}") or time.monotonic() - began > PATIENCE_S:
        sys.exit("redis-server does not answer")
    time.sleep(0.005)
# 1. Values, in sequence.
ask("redis-cli", "--pipe", "--pipe-timeout", "0", told=sets())
# 2. As many reads at random as there are keys.
before = cpu_s()
began = time.monotonic()
count = str(keys)
table = ask("redis-benchmark", "--csv", "-n", count, "-r", count, "GET", "key:__rand_int__")
elapsed = time.monotonic() - began
after = cpu_s()
if "p99_latency_ms" not in table:
    sys.exit(f"redis-benchmark printed no percentiles: {table}")
reads = next(csv.DictReader(table.splitlines()))
# 3. Every value is what it was.
with open(values, "rb") as file:
    expected = checksum(iter(lambda: file.read(1 << 16), b""))
if checksum(printed("redis-cli", told=gets())) != expected:
    sys.exit("redis-server gave back other values than it was given")
# 4. The end.
ask("redis-cli", "SHUTDOWN", "NOSAVE")
told = {
    "elapsed_s": elapsed,
    "cpu_s": [after[mode] - before[mode] for mode in (0, 1)],
    "percentiles_ns": [float(reads[f"p{n}_latency_ms"]) * 1e6 for n in (50, 99)],
    "checksum": expected,
}
print(json.dumps(told))
