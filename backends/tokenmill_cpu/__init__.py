"""Runs ONNX graphs on the CPU with kernels compiled by numba."""
