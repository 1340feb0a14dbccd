"""ONNX operators on top of kernels, by family. Importing a family registers its operators."""

from tokenmill_cpu.operators.operator import Node, Operator, implements, preparation_of

__all__ = ["Node", "Operator", "implements", "preparation_of"]
