"""What jobs that die of want of memory are made of: data frames, queries, learning.

They come from PyPI, into an environment of their own (install.sh). Most bring an allocator, and
threads, of their own.
"""

import os
import subprocess

from case import Case
from harness import target_directory

PYTHON = os.environ.get("OVERSPILL_DATA_PYTHON") or os.path.join(
    target_directory(), "programs", "venv", "bin", "python"
)

POLARS = """
import numpy, polars as pl
random = numpy.random.default_rng(1)
rows = 3_000_000
frame = pl.DataFrame({"key": random.integers(0, 200_000, rows),
                      "value": random.integers(0, 1 << 40, rows),
                      "name": random.integers(0, 1000, rows).astype(str)})
weights = pl.DataFrame({"key": numpy.arange(200_000), "weight": random.integers(0, 100, 200_000)})
joined = frame.join(weights, on="key").with_columns(paid=pl.col("value") * pl.col("weight"))
groups = joined.group_by("name").agg(pl.col("paid").sum(), pl.col("value").max(), pl.len())
print(groups.sort("name").head(5).write_csv(), int(groups["paid"].sum()))
print(int(frame.sort(["value", "key"])["value"].to_numpy()[::1000].sum()))
"""

DUCKDB = """
import duckdb
connection = duckdb.connect()
connection.execute("set threads = 2")
connection.execute('''create table sales as select (i * 7919) % 1000003 as key,
    (i * 104729) % 5000011 as value, 'name' || (i % 50000) as name from range(4000000) r(i)''')
connection.execute('''create table weights as
    select i as key, i % 97 as weight from range(1000003) r(i)''')
for query in (
    '''select sum(value * weight), count(*), count(distinct name)
        from sales join weights using (key)''',
    "select name, sum(value) from sales group by name order by 2 desc, 1 limit 5",
    '''select sum(place * value) from (select value, row_number() over
        (order by value, key, name) % 7 as place from sales)''',
):
    print(connection.execute(query).fetchall())
"""

ARROW = """
import numpy, pyarrow as pa, pyarrow.compute as pc, pyarrow.parquet as pq
random = numpy.random.default_rng(2)
rows = 4_000_000
table = pa.table({"a": random.integers(0, 1 << 50, rows), "b": random.normal(size=rows),
                  "c": pa.array(random.integers(0, 5000, rows).astype(str)).dictionary_encode()})
pq.write_table(table.sort_by("a"), "sorted.parquet", compression="zstd")
back = pq.read_table("sorted.parquet")
print(back.num_rows, pc.sum(back["a"]), back["a"][12345], back["b"][54321])
print(back.group_by("c").aggregate([("a", "max")]).sort_by("a_max").slice(0, 3).to_pylist())
"""

# OpenMP's threads, and then processes of joblib's, which map what they share from a file.
LEARN = """
import numpy
from joblib import Parallel, delayed
from sklearn.cluster import KMeans
from sklearn.ensemble import HistGradientBoostingClassifier, RandomForestClassifier

def middle(table, part):
    return float(numpy.sort(table[part::4].ravel())[table.size // 8])

if __name__ == "__main__":
    random = numpy.random.default_rng(3)
    table = random.normal(size=(150_000, 60))
    truth = (table[:, 0] * table[:, 1] + table[:, 2] > 0).astype(int)
    boosted = HistGradientBoostingClassifier(max_iter=15, random_state=0).fit(table, truth)
    forest = RandomForestClassifier(8, max_depth=8, n_jobs=2, random_state=0).fit(table, truth)
    means = KMeans(8, n_init=1, max_iter=5, random_state=0).fit(table)
    print(boosted.score(table, truth), forest.score(table, truth), round(means.inertia_, 2))
    print(Parallel(n_jobs=2)(delayed(middle)(table, part) for part in range(4)))
"""

BOOST = """
import numpy, xgboost
random = numpy.random.default_rng(4)
table = random.normal(size=(300_000, 40)).astype(numpy.float32)
data = xgboost.DMatrix(table, label=table[:, 0] * table[:, 1] > 0)
settings = {"tree_method": "hist", "max_depth": 6, "nthread": 2, "seed": 1,
            "objective": "binary:logistic"}
print(round(float(xgboost.train(settings, data, 15).predict(data).sum()), 1))
"""

# Code that LLVM makes while it runs.
NUMBA = """
import numba, numpy

@numba.njit(parallel=True)
def total(table):
    found = 0.0
    for row in numba.prange(table.shape[0]):
        for column in range(table.shape[1]):
            found += table[row, column] * (column % 7)
    return found

@numba.njit
def primes(count):
    sieve = numpy.ones(count, numpy.uint8)
    sieve[:2] = 0
    number = 2
    while number * number < count:
        if sieve[number]:
            sieve[number * number :: number] = 0
        number += 1
    return sieve.sum()

print(total(numpy.arange(20_000_000, dtype=numpy.float64).reshape(5000, 4000)), primes(40_000_000))
"""

JAX = """
import jax, jax.numpy as jnp

@jax.jit
def step(weights, inputs, truth):
    def loss(weights):
        return jnp.mean((jnp.tanh(inputs @ weights[0]) @ weights[1] - truth) ** 2)
    return [w - 0.01 * g for w, g in zip(weights, jax.grad(loss)(weights))]

key = jax.random.PRNGKey(0)
weights = [jax.random.normal(key, (400, 400)), jax.random.normal(key, (400, 1))]
inputs = jax.random.normal(key, (20_000, 400))
for _ in range(3):
    weights = step(weights, inputs, jnp.sin(inputs[:, :1]))
print(round(float(jnp.sum(jnp.abs(weights[0])))))
"""

DASK = """
import dask, dask.array

if __name__ == "__main__":
    table = dask.array.random.RandomState(1).normal(size=(4000, 4000), chunks=(1000, 1000))
    for scheduler in ("threads", "processes"):
        with dask.config.set(scheduler=scheduler, num_workers=2):
            print(round(float((table @ table.T).trace().compute()), 2))
"""


def case(name, module, text, **settings):
    """A case that needs a module of the environment."""

    def excuse():
        if not os.access(PYTHON, os.X_OK):
            return f"not installed: {PYTHON} (tests/programs/install.sh makes it)"
        lacking = subprocess.run([PYTHON, "-c", f"import {module}"], stderr=subprocess.DEVNULL)
        return f"not installed: {module}" if lacking.returncode else None

    file = f"{module}_.py"
    return Case(name, [PYTHON, f"input/{file}"], files={file: text}, excuse=excuse, **settings)


CASES = [
    case("data-polars", "polars", POLARS),
    case("data-duckdb", "duckdb", DUCKDB),
    case("data-arrow", "pyarrow", ARROW),
    case("data-scikit-learn", "sklearn", LEARN),
    case("data-xgboost", "xgboost", BOOST),
    case("data-numba", "numba", NUMBA),
    case("data-jax", "jax", JAX),
    case("data-dask", "dask", DASK),
]
