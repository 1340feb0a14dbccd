"""Vectors as values: explicit SIMD for kernels."""
