"""pandas and scipy on arrays of a pool."""

import numpy as np
import pytest
from conftest import numbers

pd = pytest.importorskip("pandas")


def test_pandas_joins_and_groups(pool):
    count = 1 << 20
    with pool:
        keys = np.arange(count) * 7919 % count
        left = pd.DataFrame({"key": keys, "left": keys * 2.0})
        right = pd.DataFrame({"key": np.arange(count), "right": np.arange(count) * 3})
        joined = left.merge(right, on="key")
        groups = joined.groupby(joined["key"] % 10)["right"].sum()
        in_order = joined.sort_values("key")
    assert any(pool.holds(joined[name].to_numpy()) for name in joined)
    assert (joined["left"] * 1.5 == joined["right"]).all()
    assert groups.sum() == 3 * count * (count - 1) // 2
    assert (in_order["key"].to_numpy() == np.arange(count)).all()


def test_scipy_transforms_and_solves(pool):
    fft = pytest.importorskip("scipy.fft")
    sparse = pytest.importorskip("scipy.sparse")
    linalg = pytest.importorskip("scipy.linalg")
    with pool:
        signal = np.random.default_rng(1).normal(size=1 << 20)
        back = fft.irfft(fft.rfft(signal))
        matrix = sparse.random(20_000, 20_000, 1e-3, "csr", rng=np.random.default_rng(2))
        product = matrix @ np.ones(20_000)
        square = np.random.default_rng(3).normal(size=(300, 300))
        inverse = linalg.inv(square)
    assert np.allclose(signal, back)
    assert np.allclose(product, np.asarray(matrix.sum(axis=1)).ravel())
    assert np.allclose(square @ inverse, np.eye(300))


def test_numpy_sorts_multiplies_and_counts(pool):
    array = numbers(pool)
    with pool:
        total = int(np.bitwise_xor.reduce(array))
        array.sort()
        matrix = (np.arange(700 * 700) % 11).reshape(700, 700).astype(float)
        product = matrix @ matrix
        values, counts = np.unique(np.arange(1 << 20) % 1000, return_counts=True)
    assert (array[1:] >= array[:-1]).all() and int(np.bitwise_xor.reduce(array)) == total
    assert product[5, 7] == (matrix[5] * matrix[:, 7]).sum()
    assert counts.sum() == 1 << 20 and len(values) == 1000
