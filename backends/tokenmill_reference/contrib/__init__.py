"""Operators of `com.microsoft`, from ONNX Runtime's published operator documentation, in plain numpy.

They are read as the definition that every backend is held to: short before fast.
"""

from __future__ import annotations

from collections.abc import Mapping

from tokenmill_reference.contrib import activation, fused_matmul, normalization, recurrent
from tokenmill_reference.contrib.convention import Operator
from tokenmill_reference.contrib.gather_block_quantized import gather_block_quantized
from tokenmill_reference.contrib.group_query_attention import group_query_attention
from tokenmill_reference.contrib.linear_quantization import dequantize_linear, quantize_linear
from tokenmill_reference.contrib.matmul_nbits import matmul_nbits
from tokenmill_reference.contrib.mixture_of_experts import moe, qmoe
from tokenmill_reference.contrib.multi_head_attention import attention, multi_head_attention
from tokenmill_reference.contrib.rotary import gemma_rotary_embedding, multimodal_rotary_embedding, rotary_embedding

_MICROSOFT: dict[str, Operator] = {
    **activation.OPERATORS,
    **fused_matmul.OPERATORS,
    **normalization.OPERATORS,
    **recurrent.OPERATORS,
    "Attention": attention,
    "DequantizeLinear": dequantize_linear,
    "GatherBlockQuantized": gather_block_quantized,
    "GemmaRotaryEmbedding": gemma_rotary_embedding,
    "GroupQueryAttention": group_query_attention,
    "MRotaryEmbedding": multimodal_rotary_embedding,
    "MatMulNBits": matmul_nbits,
    "MoE": moe,
    "MultiHeadAttention": multi_head_attention,
    "QMoE": qmoe,
    "QuantizeLinear": quantize_linear,
    "RotaryEmbedding": rotary_embedding,
}


def operators() -> Mapping[tuple[str, str], Operator]:
    """Every operator by (domain, name). Exporters write `SimplifiedLayerNormalization` in the standard domain."""
    table = {("com.microsoft", name): operator for name, operator in _MICROSOFT.items()}
    table["", "SimplifiedLayerNormalization"] = normalization.simplified_layer_normalization
    return table
