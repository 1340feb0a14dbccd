"""Operators of `com.microsoft`, from ONNX Runtime's published operator documentation, in plain numpy.

They are read as the definition that every backend is held to: short before fast.
"""

from __future__ import annotations

from collections.abc import Mapping

from tokenmill_reference.contrib import (
    activation,
    fused_matmul,
    gather_block_quantized,
    group_query_attention,
    linear_quantization,
    matmul_nbits,
    mixture_of_experts,
    multi_head_attention,
    normalization,
    recurrent,
    rotary,
)
from tokenmill_reference.contrib.convention import Operator

_MICROSOFT: dict[str, Operator] = {
    **activation.OPERATORS,
    **fused_matmul.OPERATORS,
    **normalization.OPERATORS,
    **recurrent.OPERATORS,
    "Attention": multi_head_attention.attention,
    "DequantizeLinear": linear_quantization.dequantize_linear,
    "GatherBlockQuantized": gather_block_quantized.gather_block_quantized,
    "GemmaRotaryEmbedding": rotary.gemma_rotary_embedding,
    "GroupQueryAttention": group_query_attention.group_query_attention,
    "MRotaryEmbedding": rotary.multimodal_rotary_embedding,
    "MatMulNBits": matmul_nbits.matmul_nbits,
    "MoE": mixture_of_experts.moe,
    "MultiHeadAttention": multi_head_attention.multi_head_attention,
    "QMoE": mixture_of_experts.qmoe,
    "QuantizeLinear": linear_quantization.quantize_linear,
    "RotaryEmbedding": rotary.rotary_embedding,
}


def operators() -> Mapping[tuple[str, str], Operator]:
    """Every operator by (domain, name).

    Of the standard domain are `SimplifiedLayerNormalization`, which exporters write there, and two normalizations that
    `onnx.reference` computes in the input's own type, so that squares of float16 values overflow.
    """
    table = {("com.microsoft", name): operator for name, operator in _MICROSOFT.items()}
    table["", "SimplifiedLayerNormalization"] = normalization.simplified_layer_normalization
    table["", "RMSNormalization"] = normalization.simplified_layer_normalization
    table["", "LayerNormalization"] = normalization.layer_normalization
    return table
