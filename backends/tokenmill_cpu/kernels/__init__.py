"""Compiled kernels, by what they compute. Nothing here knows of ONNX nodes."""
