"""Transcendental functions of vectors. Errors are relative to float64, over all of float32."""

from __future__ import annotations

import numpy as np

from tokenmill_cpu.launch import inlined
from tokenmill_cpu.simd.vectors import (
    fma,
    keep_nan,
    largest,
    power_of_two,
    rounded,
    smallest,
    splat_number,
)


@inlined
def number_vector(x):
    """16 times a number that is given as float64."""
    return splat_number(np.float32(x))


@inlined
def exp(x):
    """e to the power of x, within 1.3e-7 where that is a normal float32; 0 and infinity beyond."""
    bounded = largest(smallest(x, number_vector(88.8)), number_vector(-104.0))
    k = rounded(bounded * number_vector(1.44269504088896341))
    r = fma(k, number_vector(-0.693359375), bounded)
    r = fma(k, number_vector(2.12194440e-4), r)
    p = number_vector(1.9875691500e-4)
    p = fma(p, r, number_vector(1.3981999507e-3))
    p = fma(p, r, number_vector(8.3334519073e-3))
    p = fma(p, r, number_vector(4.1665795894e-2))
    p = fma(p, r, number_vector(1.6666665459e-1))
    p = fma(p, r, number_vector(5.0000001201e-1))
    p = fma(p, r * r, r + number_vector(1.0))
    # 2**128 is no float32: the power is taken in two halves.
    half = rounded(k * number_vector(0.5))
    return keep_nan(x, p * power_of_two(half) * power_of_two(k - half))


@inlined
def sigmoid(x):
    """1 / (1 + exp(-x))."""
    return number_vector(1.0) / (number_vector(1.0) + exp(-x))
