"""What is shown to users runs: the code of the guide, the example, and each way of the bench."""

import pathlib
import re
import subprocess
import sys

import pytest

HERE = pathlib.Path(__file__).resolve().parent.parent
GUIDE = HERE.parent.parent / "docs" / "guide" / "python.md"


def run(directory, *command):
    done = subprocess.run([sys.executable, *map(str, command)], cwd=directory, check=False,
                          capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done
    return done.stdout


def test_the_guide(tmp_path):
    blocks = re.findall(r"^```python\n(.*?)^```$", GUIDE.read_text(), re.M | re.S)
    assert blocks
    for block in blocks:
        run(tmp_path, "-c", block.replace("/var/tmp", str(tmp_path)))


def test_the_example(tmp_path):
    printed = run(tmp_path, HERE / "examples" / "sort_and_join.py", 16, tmp_path)
    assert "64 MiB in a budget of 16 MiB" in printed and "as it should be" in printed


def test_the_bench_runs_every_way_unless_some_are_named(tmp_path):
    run(tmp_path, "-c", f"""
import sys
sys.path.insert(0, {str(HERE)!r})
import bench
assert bench.options_of([]).only == list(bench.WAYS)
assert bench.options_of(["--only", "pool, by signal"]).only == ["pool, by signal"]
""")


@pytest.mark.parametrize("way", ["in_pool", "by_memmap", "by_hand"])
def test_the_ways_of_the_bench(way, tmp_path):
    run(tmp_path, "-c", f"""
import sys
sys.path.insert(0, {str(HERE)!r})
import numpy, bench
expected = bench.make_files(1 << 18)
bench.LOW = numpy.uint64(bench.LOW)
assert bench.{way}({str(tmp_path)!r}, 8 << 20) == expected
""")
