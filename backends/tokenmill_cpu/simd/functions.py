"""Transcendental functions of vectors. Errors are relative to float64, over all of float32."""

from __future__ import annotations

import numpy as np

from tokenmill_cpu.launch import inlined
from tokenmill_cpu.simd.vectors import (
    absolute,
    fma,
    keep_nan,
    largest,
    power_of_two,
    rounded,
    smallest,
    splat_number,
    where_negative,
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
    """1 / (1 + exp(-x)), within 2e-7."""
    return number_vector(1.0) / (number_vector(1.0) + exp(-x))


@inlined
def silu(x, alpha):
    """x * sigmoid(alpha * x)."""
    return x / (number_vector(1.0) + exp(-(x * number_vector(alpha))))


@inlined
def tanh(x):
    """Within 1.3e-7. Near zero a polynomial (Cephes), elsewhere 1 - 2 / (exp(2 |x|) + 1)."""
    z, size = x * x, absolute(x)
    p = number_vector(-5.70498872745e-3)
    p = fma(p, z, number_vector(2.06390887954e-2))
    p = fma(p, z, number_vector(-5.37397155531e-2))
    p = fma(p, z, number_vector(1.33314422036e-1))
    p = fma(p, z, number_vector(-3.33332819422e-1))
    near = fma(p * z, x, x)
    far = number_vector(1.0) - number_vector(2.0) / (exp(size + size) + number_vector(1.0))
    return where_negative(size - number_vector(0.625), near, where_negative(x, -far, far))


@inlined
def erf(x):
    """Within 1e-7. Near zero a polynomial, elsewhere 1 minus e to the power of one (N. Juffa)."""
    z, size = x * x, absolute(x)
    p = number_vector(-5.96761703e-4)
    p = fma(p, z, number_vector(4.99119423e-3))
    p = fma(p, z, number_vector(-2.67681349e-2))
    p = fma(p, z, number_vector(1.12819925e-1))
    p = fma(p, z, number_vector(-3.76125336e-1))
    p = fma(p, z, number_vector(1.28379166e-1))
    near = fma(p, x, x)
    # From 4 on it rounds to 1, and the polynomial is not made for more.
    t = keep_nan(x, smallest(size, number_vector(4.0)))
    q = number_vector(-1.72853470e-5)
    q = fma(q, t, number_vector(3.83197126e-4))
    q = fma(q, t, number_vector(-3.88396438e-3))
    q = fma(q, t, number_vector(2.42546219e-2))
    q = fma(q, t, number_vector(-1.06777877e-1))
    q = fma(q, t, number_vector(-6.34846687e-1))
    q = fma(q, t, number_vector(-1.28717512e-1))
    far = number_vector(1.0) - exp(fma(q, t, -t))
    return where_negative(size - number_vector(0.927734375), near, where_negative(x, -far, far))


@inlined
def gelu(x):
    """x / 2 * (1 + erf(x / sqrt(2))), within 1.2e-7 times |x|."""
    return x * number_vector(0.5) * (number_vector(1.0) + erf(x * number_vector(0.7071067811865476)))


@inlined
def gelu_tanh(x):
    """x / 2 * (1 + tanh(u)) with u = sqrt(2 / pi) * (x + 0.044715 x ** 3), as x * sigmoid(2 u)."""
    z = x * x
    twice = x * fma(z, number_vector(0.07135481282805733), number_vector(1.5957691216057308))
    return x / (number_vector(1.0) + exp(-twice))


@inlined
def log1p(x):
    """Logarithm of 1 + x for x from 0 to 1, within 2e-7: twice the inverse hyperbolic tangent of x / (2 + x)."""
    s = x / (number_vector(2.0) + x)
    z = s * s
    p = number_vector(2 / 15)
    p = fma(p, z, number_vector(2 / 13))
    p = fma(p, z, number_vector(2 / 11))
    p = fma(p, z, number_vector(2 / 9))
    p = fma(p, z, number_vector(2 / 7))
    p = fma(p, z, number_vector(2 / 5))
    p = fma(p, z, number_vector(2 / 3))
    return fma(p * z, s, s + s)


@inlined
def softplus(x):
    """Logarithm of 1 + exp(x), within 2.5e-7."""
    return largest(x, number_vector(0.0)) + log1p(exp(-absolute(x)))
