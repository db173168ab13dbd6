#!/usr/bin/env python3
"""Sorts and joins a data set of four times the budget, in plain numpy, and checks the result.

    sort_and_join.py [BUDGET_MIB [SWAP_DIRECTORY]]

Cells are marked by `# %%`, as notebooks and editors know them.
"""

# %% A pool: the budget, and where the rest goes.
import sys
import time

import numpy as np
import overspill

BUDGET = int(sys.argv[1]) if len(sys.argv) > 1 else 64
SWAP = sys.argv[2] if len(sys.argv) > 2 else "/var/tmp"

pool = overspill.Pool(f"{BUDGET}M", f"{SWAP}:{40 * BUDGET}M")
began = time.monotonic()

# %% The data: orders (customer, cents) and customers (number, discount in permille), both in no
# order, two numbers in one word each. Together they are four times the budget.
ROWS = 2 * BUDGET * (1 << 20) // 8
LOW = np.uint64(0xFFFF_FFFF)


def order(at):
    """Customer and cents of an order."""
    return at * 2654435761 % ROWS, at * 48271 % 99_991


def discount(customer):
    """In permille."""
    return customer * 37 % 300


def pieces(step=1 << 18):
    """Row numbers, in pieces that fit anywhere."""
    for first in range(0, ROWS, step):
        yield np.arange(first, min(first + step, ROWS), dtype=np.uint64)


orders = pool.empty(ROWS, np.uint64)
customers = pool.empty(ROWS, np.uint64)
for rows in pieces():
    here = slice(int(rows[0]), int(rows[-1]) + 1)
    customer, cents = order(rows)
    orders[here] = customer << np.uint64(32) | cents
    number = (rows * np.uint64(40503) + np.uint64(11)) % np.uint64(ROWS)
    customers[here] = number << np.uint64(32) | discount(number)
print(f"{(orders.nbytes + customers.nbytes) >> 20} MiB in a budget of {BUDGET} MiB")

# %% Sorted where they lie.
orders.sort()
customers.sort()

# %% Joined: what is made meanwhile is of the pool, too.
with pool:
    place = np.searchsorted(customers >> np.uint64(32), orders >> np.uint64(32))
    paid = (orders & LOW) * (np.uint64(1000) - (customers[place] & LOW))
total = int(paid.sum())

# %% Checked, by numbers that were neither sorted nor joined.
assert (orders[1:] >= orders[:-1]).all() and (customers[1:] >= customers[:-1]).all()
expected = 0
for rows in pieces():
    customer, cents = order(rows)
    expected += int((cents * (np.uint64(1000) - discount(customer))).sum())
assert total == expected, (total, expected)

# %% What that took.
stats = pool.stats()
print(f"total {total / 1e5:.2f}, as it should be, after {time.monotonic() - began:.1f} s")
print(f"most in use {stats['charged_peak_bytes'] >> 20} MiB, of {pool.nbytes >> 20} MiB in arrays")
print(f"{stats['pgfault']} faults, {stats['zswpin']} pages from compressed, "
      f"{stats['pswpin']} from the swap file")
del orders, customers, place, paid
pool.close()
