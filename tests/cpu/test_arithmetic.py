from __future__ import annotations

import numpy as np
import pytest
from single_node import on_cpu

FUNCTIONS = {"Add": np.add, "Sub": np.subtract, "Mul": np.multiply, "Div": np.divide}


@pytest.fixture
def rng():
    return np.random.default_rng(13)


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ((3, 40, 177), (3, 40, 177)),
        ((3, 40, 177), (177,)),
        ((3, 40, 177), (1, 1, 177)),
        ((3, 40, 177), ()),
        ((3, 40, 177), (1, 1, 1)),
        ((3, 40, 177), (3, 40, 1)),
        ((5000,), (5000,)),
        ((5000,), (1,)),
        # Left to numpy.
        ((3, 40, 177), (40, 177)),
        ((3, 40, 177), (40, 1)),
        ((3, 40, 177), (3, 1, 177)),
        ((5000,), (1, 1)),
        ((700, 1), (1, 70)),
        ((2000, 3), (3,)),
        ((177,), (177,)),
    ],
)
@pytest.mark.parametrize("swapped", [False, True])
@pytest.mark.parametrize("operator", FUNCTIONS)
def test_is_what_numpy_computes(rng, operator, swapped, first, second):
    inputs = [rng.standard_normal(shape).astype(np.float32) for shape in (first, second)]
    inputs = inputs[::-1] if swapped else inputs
    expected = FUNCTIONS[operator](*inputs)
    for threads in (1, 2, 3, 4):
        for constants in [(), (1,)]:
            (y,) = on_cpu(operator, inputs, threads=threads, constants=constants)
            assert y.shape == expected.shape
            np.testing.assert_array_equal(y, expected)


@pytest.mark.parametrize("operator", FUNCTIONS)
def test_views_and_special_values(rng, operator):
    a, b = (rng.standard_normal((80, 100)).astype(np.float32).T for _ in range(2))
    a[3, :4], b[3, 2:6] = [np.nan, np.inf, 0, -np.inf], [0, np.inf, np.nan, -0.0]
    with np.errstate(all="ignore"):
        for given in ([a, b], [a.copy(), b.copy()]):
            np.testing.assert_array_equal(on_cpu(operator, given)[0], FUNCTIONS[operator](a, b))
