"""ONNX operators on top of kernels, by family. Importing a family registers its operators."""

from tokenmill_cpu.operators import activations as activations
from tokenmill_cpu.operators import attention as attention
from tokenmill_cpu.operators import casts as casts
from tokenmill_cpu.operators import elementwise as elementwise
from tokenmill_cpu.operators import gathers as gathers
from tokenmill_cpu.operators import group_query_attention as group_query_attention
from tokenmill_cpu.operators import joins as joins
from tokenmill_cpu.operators import norms as norms
from tokenmill_cpu.operators import products as products
from tokenmill_cpu.operators import quantized as quantized
from tokenmill_cpu.operators import reductions as reductions
from tokenmill_cpu.operators import rotary as rotary
from tokenmill_cpu.operators import shapes as shapes
from tokenmill_cpu.operators import softmax as softmax
from tokenmill_cpu.operators.operator import Node, Operator, implements, preparation_of

__all__ = ["Node", "Operator", "implements", "preparation_of"]
