from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from tokenmill_cpu.frame import address_of


@pytest.mark.parametrize(
    "array",
    [
        np.arange(6.0),
        np.arange(6, dtype=np.int8)[3:],
        np.zeros((4, 5), np.float32).T[1:],
        np.zeros(3, ml_dtypes.bfloat16),
        np.array(1),
        np.empty((0, 4)),
        np.frombuffer(b"12345678", np.uint8),
    ],
    ids=str,
)
def test_the_address_is_the_one_that_numpy_says(array):
    assert address_of(array) == array.ctypes.data
