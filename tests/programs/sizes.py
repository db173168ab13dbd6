#!/usr/bin/env python3
"""How far what `overspill size` predicts is from what is so.

    tests/programs/sizes.py [--only NAME] [--rounds N] [--scale X] [--json FILE]

Five programs run once under `overspill size`, then under `overspill run` with four budgets of the
curve, so many rounds of it, in turn. For each budget it prints the time that was predicted, the
median that was measured, and by how much the one is off; the same of pages that came back, which
depend less on what else the machine does. With two rounds and more it also prints how far what was
measured is apart itself: less than that nothing can be said about a prediction.
OVERSPILL_BIN names the command under test (default: that of target/release). It asserts nothing.
"""

import argparse
import json
import os
import pathlib
import shutil
import statistics
import subprocess
import sys
import tempfile
import time

from cases.tools import SQL

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
PYTHON = "/usr/bin/python3"
# Where the budgets lie between that of the run and all that it had.
PLACES = (0.15, 0.35, 0.55, 0.8)
MIB = 1 << 20

SORT = """
import random, sys
random.seed(1)
rows = [(random.random(), i) for i in range(int(sys.argv[1]))]
rows.sort()
print(sum(i * (n % 7) for n, (_, i) in enumerate(rows)))
"""
DISTINCT = "select count(distinct b) from t;\n"
# Types that refer to one another, so that a compiler keeps much in mind.
SOURCE_HEAD = "#include <map>\n#include <string>\n#include <vector>\n#include <algorithm>\n"
SOURCE_UNIT = """
template <int N> struct Mix{i} {{
  std::map<int, std::vector<std::string>> all;
  int each(int v) {{ all[v % N].push_back(std::to_string(v)); return int(all.size()); }}
}};
int unit_{i}(int n) {{
  Mix{i}<{m}> mix; std::vector<int> v(n);
  std::sort(v.begin(), v.end(), [](int a, int b) {{ return a * {m} < b; }});
  for (int x : v) n += mix.each(x);
  return n;
}}
"""


def lines(folder, count):
    """A file of lines in random order."""
    state = 1
    with open(folder / "lines", "w") as out:
        for _ in range(count):
            state = (state * 6364136223846793005 + 1442695040888963407) % (1 << 64)
            out.write(f"{state:016x} service event {state >> 40:x} status=200 level=INFO value\n")


def programs(folder, scale):
    """Name and words of each, with what it reads made."""
    lines(folder, int(900_000 * scale))
    sql = SQL.format(cache=400000, count=int(150_000 * scale)) + DISTINCT
    (folder / "script.sql").write_text(sql)
    units = (SOURCE_UNIT.format(i=i, m=i % 97 + 1) for i in range(int(120 * scale)))
    (folder / "source.cpp").write_text(SOURCE_HEAD + "".join(units))
    # The compiler proper does not know where the headers are.
    subprocess.run(["g++", "-E", "source.cpp", "-o", "source.ii"], cwd=folder, check=True)
    shutil.copy(folder / "lines", folder / "text")
    compiler = subprocess.run(
        ["g++", "-print-prog-name=cc1plus"], capture_output=True, text=True
    ).stdout.strip()
    return {
        "python": [PYTHON, "-c", SORT, str(int(700_000 * scale))],
        "sqlite": ["sqlite3", ":memory:", ".read script.sql"],
        "gcc": [compiler, "-quiet", "-fpreprocessed", "-O1", "source.ii", "-o", "/dev/null"],
        "zstd": ["zstd", "-q", "-f", "--long=27", "-3", "-T1", "text", "-o", "text.zst"],
        "sort": ["env", "LC_ALL=C", "sort", "--parallel=1", "-S", "2G", "lines", "-o", "sorted"],
    }


def overspill():
    return os.environ.get("OVERSPILL_BIN") or str(ROOT / "target/release/overspill")


def run(words, folder):
    """Seconds that a command takes, which has to succeed."""
    began = time.monotonic()
    done = subprocess.run(
        words, cwd=folder, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE, timeout=900, env={**os.environ, "XDG_STATE_HOME": str(folder)},
    )
    if done.returncode != 0:
        sys.exit(f"{' '.join(map(str, words[:6]))}: {done.returncode}: {done.stderr.decode()}")
    return time.monotonic() - began


def at(curve, budget):
    """The point of a curve at a budget, or the next above."""
    return next((point for point in curve if point["budget_bytes"] >= budget), curve[-1])


def refaults(stats):
    """Pages that came back in a run."""
    return json.loads(stats.read_text())["total"]["counters"]["refault_seen"]


def spread(measured):
    """How much more the highest value is than the lowest."""
    return round(max(measured) / max(min(measured), 1e-9) - 1, 3) if max(measured) else 0.0


def validate(name, words, folder, rounds):
    """What is predicted and measured of a program, a row a budget."""
    told, stats = folder / "told.json", folder / "stats.json"
    run([overspill(), "size", "--no-save", "--json", told, "--", *words], folder)
    report = json.loads(told.read_text())
    low, most = report["budget_bytes"], report["most_bytes"]
    budgets = [int(low + place * (most - low)) // MIB * MIB for place in PLACES]
    seconds, pages = {b: [] for b in budgets}, {b: [] for b in budgets}
    for _ in range(rounds):
        for budget in budgets:
            run_words = [overspill(), "run", "--memory", str(budget), "--stats-json", stats, "--"]
            seconds[budget].append(run([*run_words, *words], folder))
            pages[budget].append(refaults(stats))
    rows = []
    for budget in budgets:
        point = at(report["curve"], budget)
        measured = statistics.median(seconds[budget])
        came_back = statistics.median(pages[budget])
        rows.append({
            "program": name,
            "budget_mib": budget // MIB,
            "most_mib": most // MIB,
            "predicted_s": round(point["elapsed_s"], 2),
            "measured_s": round(measured, 2),
            "off": round(point["elapsed_s"] / measured - 1, 3),
            "spread": spread(seconds[budget]),
            "predicted_refaults": point["refaults"],
            "measured_refaults": int(came_back),
            "off_refaults": round(point["refaults"] / max(came_back, 1) - 1, 3),
            "spread_refaults": spread(pages[budget]),
            "fastest_s": round(report["fastest_s"], 2),
            "sized_s": round(report["elapsed_s"], 2),
        })
    return rows


def summarise(rows):
    """How many predictions are within 15 %, and how many measurements agree so far."""
    for what, end in [("time", ""), ("pages that come back", "_refaults")]:
        off = [abs(row["off" + end]) for row in rows]
        apart = [row["spread" + end] for row in rows]
        print(
            f"{what}: {sum(each <= 0.15 for each in off)} of {len(rows)} budgets within 15 %, "
            f"the median is off by {statistics.median(off):.0%}; what was measured is apart by "
            f"{statistics.median(apart):.0%} in the median, in {sum(a <= 0.15 for a in apart)} of "
            f"{len(rows)} by 15 % or less"
        )


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--only")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--scale", type=float, default=1.0)
    parser.add_argument("--json", type=pathlib.Path)
    parser.add_argument("--dir", default="/var/tmp", help="where inputs are")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=args.dir) as folder:
        folder = pathlib.Path(folder)
        rows = []
        for name, words in programs(folder, args.scale).items():
            if args.only in (None, name):
                for row in validate(name, words, folder, args.rounds):
                    rows.append(row)
                    print("  ".join(f"{key} {value}" for key, value in row.items()), flush=True)
    summarise(rows)
    if args.json:
        args.json.write_text(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
