"""Interpreters: Python and its ways to start processes, Perl, Ruby, PHP, R, Lua, Node, and a
shell."""

from case import Case, python_module

# Each process builds a table of words, changes it and sums it up; the results come back through a
# pool.
POOL = """
import multiprocessing, sys, zlib

def work(number):
    table = {f"{number}-{i}": [i, str(i * 7)] for i in range(WORDS)}
    for i in range(0, WORDS, 3):
        table[f"{number}-{i}"].append("changed")
    return zlib.crc32(repr(sorted(table.items())).encode())

WORDS = int(sys.argv[2])
if __name__ == "__main__":
    ours = work(99)
    with multiprocessing.get_context(sys.argv[1]).Pool(2) as pool:
        print(ours, pool.map(work, range(6)))
"""

ASYNCIO = """
import asyncio, zlib

async def serve(reader, writer):
    while line := await reader.readline():
        size = int(line)
        writer.write(zlib.compress(bytes(i % 251 for i in range(size))).ljust(size, b"."))
        await writer.drain()
    writer.close()

async def ask(path, number):
    reader, writer = await asyncio.open_unix_connection(path)
    kept = []
    for i in range(12):
        size = 30_000 + number * 101 + i
        writer.write(b"%d\\n" % size)
        kept.append(await reader.readexactly(size))
    writer.close()
    return sum(map(zlib.crc32, kept))

async def main():
    server = await asyncio.start_unix_server(serve, "socket", limit=1 << 20)
    sums = await asyncio.gather(*(ask("socket", n) for n in range(60)))
    listing = await asyncio.create_subprocess_exec(
        "echo", "from a child", stdout=asyncio.subprocess.PIPE)
    print(sum(sums), await listing.communicate(),
          await asyncio.to_thread(sum, list(range(2_000_000))))
    server.close()

asyncio.run(main())
"""

THREADS = """
import hashlib, threading

def work(number, results):
    table = [hashlib.sha256(b"%d %d" % (number, i)).hexdigest() for i in range(100_000)]
    table.sort()
    results[number] = hashlib.sha256("".join(table).encode()).hexdigest()

results = {}
threads = [threading.Thread(target=work, args=(n, results)) for n in range(4)]
[t.start() for t in threads]
[t.join() for t in threads]
print(sorted(results.items()))
"""

CHILDREN = """
import os, subprocess, sys

kept = [bytes([i % 256]) * 50_000 for i in range(3_000)]
for i in range(40):
    done = subprocess.run(["sh", "-c", "read line; echo got $line; exit %d" % i],
                          input=b"%d\\n" % i, capture_output=True)
    print(done.returncode, done.stdout.decode().strip())
for i in range(20):
    pid = os.fork()
    if pid == 0:
        os._exit(sum(map(len, kept[i::20])) % 251)
    print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), end=" ")
    sys.stdout.flush()
print(sum(piece[7] for piece in kept))
"""

NUMPY = """
import numpy
random = numpy.random.default_rng(7)
table = random.random((2600, 2600))
print(repr(float((table @ table[:, :400]).sum().round(3))))
column = table.ravel().copy()
column.sort()
print(repr(column[::100_000].round(9).tolist()),
      float(numpy.linalg.norm(table[:500, :500]).round(6)))
"""

PANDAS = """
import numpy, pandas
random = numpy.random.default_rng(3)
size = 1_200_000
names = [f"n{i}" for i in range(977)]
frame = pandas.DataFrame({"key": random.integers(0, 5000, size),
                          "name": [names[i % 977] for i in range(size)],
                          "value": random.integers(0, 1000, size)})
print(frame.groupby("name").value.sum().sort_values().head(5).to_dict())
most = frame.groupby("key").value.max().rename("most")
joined = frame.merge(most, left_on="key", right_index=True)
print(joined.sort_values(["most", "key", "value", "name"]).tail(3).to_csv(index=False), len(joined))
"""

PERL = r"""
my %table;
$table{"key $_"} = "value " . ($_ * 7919 % 1000003) . "x" x 4000 for 1 .. $ARGV[0];
my $sum = 0;
for my $key (sort { $table{$a} cmp $table{$b} } keys %table) {
  $sum = ($sum * 31 + length($key) + ord(substr $table{$key}, 8)) % 1000000007
}
my $pid = fork // die;
if (!$pid) { my $n = () = grep { /99/ } values %table; print "child: $n\n"; exit 3 }
waitpid $pid, 0;
print "sum $sum, child ", $? >> 8, ", ", scalar(`echo from a shell`);
"""

RUBY = """
table = {}
File.read("input/size").to_i.times do |i|
  table["key #{i}"] = ["value #{i * 7919 % 1_000_003}", i.to_s * 20]
end
threads = (0..3).map do |n|
  Thread.new { table.select { |k, v| v[0].hash && k.size % 4 == n }.sum { |k, v| v[1].size } }
end
puts threads.map(&:value).inspect
pid = fork { puts "child #{table.sum { |k, v| v[0].size }}"; exit 4 }
Process.wait(pid)
puts $?.exitstatus, table.values.map(&:first).sort.each_slice(10_000).map(&:first).inspect
puts `echo from a shell`
"""

PHP = r"""<?php
ini_set('memory_limit', '-1');
$table = [];
$size = (int)file_get_contents('input/size');
for ($i = 0; $i < $size; $i++) $table["key $i"] = [$i, str_repeat(chr(97 + $i % 26), 1000)];
$sum = 0;
foreach ($table as $key => $value)
  if (preg_match('/7(\d)9$/', $key, $found)) $sum += $value[0] * $found[1];
uasort($table, fn($a, $b) => $a[1] <=> $b[1] ?: $a[0] <=> $b[0]);
echo $sum, ' ', array_key_last($table), ' ', md5(serialize(array_slice($table, 0, 1000))), ' ',
  shell_exec('echo from a shell');
"""

R = """
set.seed(5)
table <- matrix(runif(2200 * 2200), 2200)
cat(format(sum(table %*% table[, 1:200]), digits = 12),
    format(sort(table)[1e6], digits = 12), "\\n")
frame <- data.frame(key = sample(1:2000, 4e5, TRUE), value = runif(4e5))
print(head(aggregate(value ~ key, frame, length), 3))
print(unlist(parallel::mclapply(1:4, function(n) round(sum(table[n, ]), 6), mc.cores = 2)))
"""

LUA = """
local parts, sum = {}, 0
for i = 1, io.open("input/size"):read("n") do
  parts[i] = { i, tostring(i * 7919 % 1000003) .. string.rep("x", 2500) }
end
for round = 1, 3 do
  for i = round, #parts, 3 do parts[i][2] = parts[i][2] .. round end
  collectgarbage()
end
table.sort(parts, function(a, b) return a[2] < b[2] end)
for i = 1, #parts, 100 do sum = (sum * 31 + parts[i][1]) % 1000000007 end
print(sum)
"""

NODE = """
const { Worker, isMainThread, parentPort, workerData } = require('worker_threads');
const { execFileSync } = require('child_process');
function work(number) {
  const table = new Map();
  for (let i = 0; i < 150000; i++)
    table.set(`${number} ${i}`, { i, text: String(i * 7919 % 1000003).repeat(8) });
  let sum = 0;
  for (const [key, value] of table)
    sum = (sum * 31 + key.length + value.text.charCodeAt(3)) % 1000000007;
  return sum;
}
if (isMainThread) {
  const kept = Buffer.alloc(60 << 20, 'overspill');
  Promise.all([1, 2, 3].map(n => new Promise((done, failed) => {
    const worker = new Worker(__filename, { workerData: n });
    worker.on('message', done); worker.on('error', failed);
  }))).then(sums => console.log(work(0), sums, kept.indexOf('spillover', 50 << 20),
                                String(execFileSync('echo', ['from a child']))));
} else parentPort.postMessage(work(workerData));
"""

SHELL = r"""
kept=$(seq 1 400000)
total=0
for i in $(seq 1 60); do
    n=$(printf '%s\n' "$i" | sed 's/^/1/' | (read -r line; echo "$line"))
    total=$((total + n))
done
echo "$total ${#kept}"
(exit 5) & wait $!; echo "child $?"
trap 'echo trapped' USR1; kill -USR1 $$; echo done
"""


def python_pool(method):
    command = ["python3", "input/pool.py", method, "50000"]
    return Case(f"python-{method}", command, quick=True, files={"pool.py": POOL})


def script(name, program, file, text, *arguments, **settings):
    return Case(name, [program, f"input/{file}", *arguments], files={file: text}, **settings)


def size(full, quick):
    """A `prepare`: how much there is to do, in a file that the script reads."""
    return lambda folder: folder.write("size", f"{folder.size(full, quick)}\n")


CASES = [
    python_pool("fork"),
    python_pool("spawn"),
    python_pool("forkserver"),
    script("python-asyncio", "python3", "serve.py", ASYNCIO, quick=True),
    script("python-threads", "python3", "threads.py", THREADS, quick=True),
    script("python-children", "python3", "children.py", CHILDREN, quick=True),
    script("python-numpy", "/usr/bin/python3", "table.py", NUMPY, excuse=python_module("numpy")),
    script("python-pandas", "/usr/bin/python3", "frame.py", PANDAS, excuse=python_module("pandas")),
    script("perl", "perl", "hash.pl", PERL, "25000", quick=True),
    script("ruby", "ruby", "hash.rb", RUBY, quick=True, prepare=size(200_000, 100_000)),
    script("php", "php", "hash.php", PHP, quick=True, prepare=size(120_000, 60_000)),
    Case("r", ["Rscript", "--vanilla", "input/table.R"], files={"table.R": R}),
    script("lua", "lua5.4", "table.lua", LUA, quick=True, prepare=size(40_000, 22_000)),
    # V8 maps the code that it makes executable, and its heap in part so.
    script("node-workers", "node", "workers.js", NODE, beside=64),
    script("bash", "bash", "loop.sh", SHELL, quick=True),
]
