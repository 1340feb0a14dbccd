"""Small GGUF files with random weights, and what such a model computes, in float64 from the file's own contents.

The forward pass follows the published definitions (RMSNorm, rotary embedding, grouped-query attention, gated
feed-forward) and the file's own row order; it shares nothing with the importer but the `gguf` package's dequantization.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from attrs import field, frozen
from gguf import GGMLQuantizationType, GGUFReader, GGUFWriter, dequantize, quantize
from tokenizers import pre_tokenizers

Q = GGMLQuantizationType
BYTES = sorted(pre_tokenizers.ByteLevel.alphabet())
#: Tokens of every byte, three merges, and special ones up to a multiple of 32.
TOKENS = [*BYTES, "he", "ll", "Ġhe", "<|bos|>", "<|im_end|>", "<|tool|>", *(f"<|unused_{i}|>" for i in range(26))]
BOS, END, TOOL = (TOKENS.index(text) for text in ("<|bos|>", "<|im_end|>", "<|tool|>"))


@frozen(kw_only=True)
class Tiny:
    """One model. :param types: of matrices by the end of their name; `""` is the others.
    :param metadata: more of it, or None in place of what would be written.
    """

    architecture: str = "llama"
    layers: int = 2
    hidden: int = 64
    inner: int = 96
    heads: int = 4
    kv_heads: int = 2
    head_size: int = 16
    rotated: int | None = None
    tied: bool = True
    biased: bool = False
    head_norms: bool = False
    post_norms: bool = False
    types: Mapping[str, GGMLQuantizationType] = field(factory=lambda: {"": Q.Q8_0})
    metadata: Mapping[str, Any] = field(factory=dict)
    vectors: Mapping[str, Any] = field(factory=dict)
    vocabulary: int = len(TOKENS)
    seed: int = 0

    @property
    def context(self) -> int:
        return 64

    def matrices(self) -> dict[str, tuple[int, int]]:
        """Shapes, rows first."""
        q, kv = self.heads * self.head_size, self.kv_heads * self.head_size
        shapes = {"token_embd": (self.vocabulary, self.hidden)}
        if not self.tied:
            shapes["output"] = (self.vocabulary, self.hidden)
        for i in range(self.layers):
            layer = {
                "attn_q": (q, self.hidden),
                "attn_k": (kv, self.hidden),
                "attn_v": (kv, self.hidden),
                "attn_output": (self.hidden, q),
                "ffn_gate": (self.inner, self.hidden),
                "ffn_up": (self.inner, self.hidden),
                "ffn_down": (self.hidden, self.inner),
            }
            shapes.update({f"blk.{i}.{name}": shape for name, shape in layer.items()})
        return shapes

    def norms(self) -> dict[str, int]:
        sizes = {"output_norm": self.hidden}
        for i in range(self.layers):
            layer = {"attn_norm": self.hidden, "ffn_norm": self.hidden}
            if self.head_norms:
                layer.update(attn_q_norm=self.head_size, attn_k_norm=self.head_size)
            if self.post_norms:
                layer.update(post_attention_norm=self.hidden, post_ffw_norm=self.hidden)
            sizes.update({f"blk.{i}.{name}": size for name, size in layer.items()})
        return sizes

    def own_metadata(self) -> dict[str, Any]:
        arch = self.architecture
        values: dict[str, Any] = {
            f"{arch}.block_count": self.layers,
            f"{arch}.context_length": self.context,
            f"{arch}.embedding_length": self.hidden,
            f"{arch}.feed_forward_length": self.inner,
            f"{arch}.attention.head_count": self.heads,
            f"{arch}.attention.head_count_kv": self.kv_heads,
            f"{arch}.attention.key_length": self.head_size,
            f"{arch}.attention.value_length": self.head_size,
            f"{arch}.attention.layer_norm_rms_epsilon": 1e-5,
            f"{arch}.rope.freq_base": 100.0,
            f"{arch}.rope.dimension_count": self.rotated or self.head_size,
            "tokenizer.ggml.model": "gpt2",
            "tokenizer.ggml.pre": "smollm",
            "tokenizer.ggml.tokens": TOKENS,
            "tokenizer.ggml.token_type": [3 if text.startswith("<|") else 1 for text in TOKENS],
            "tokenizer.ggml.merges": ["h e", "l l", "Ġ he"],
            "tokenizer.ggml.bos_token_id": BOS,
            "tokenizer.ggml.eos_token_id": END,
            "tokenizer.ggml.padding_token_id": END,
            "tokenizer.chat_template": "{{ messages }}",
        }
        values.update({key.replace("ARCH", arch): value for key, value in self.metadata.items()})
        return {key: value for key, value in values.items() if value is not None}


def stored(values: np.ndarray, kind: GGMLQuantizationType, rng: np.random.Generator) -> np.ndarray:
    """Values in a type; for the K types, which the package cannot write, random blocks of finite scales instead."""
    if kind in (Q.Q4_K, Q.Q5_K, Q.Q6_K):
        size = {Q.Q4_K: 144, Q.Q5_K: 176, Q.Q6_K: 210}[kind]
        blocks = rng.integers(0, 256, (*values.shape[:-1], values.shape[-1] // 256, size), dtype=np.uint8)
        # Of 6, 4 and 5 bits: the scale, and that of the minima, so that weights are of the size of the others.
        sizes = {Q.Q6_K: (4e-5, 0), Q.Q4_K: (2e-4, 1.5e-3), Q.Q5_K: (1e-4, 1.5e-3)}[kind]
        d = (rng.uniform(0.9, 1.1, (*blocks.shape[:-1], 2)) * sizes).astype(np.float16)
        where = slice(208, 210) if kind is Q.Q6_K else slice(0, 4)
        blocks[..., where] = d.view(np.uint8)[..., : where.stop - where.start]
        return blocks.reshape(*values.shape[:-1], -1)
    return np.asarray(quantize(values.astype(np.float32), kind))


def write(path: Path, tiny: Tiny) -> Path:
    """The file."""
    rng = np.random.default_rng(tiny.seed)
    writer = GGUFWriter(path, tiny.architecture)
    for key, value in tiny.own_metadata().items():
        if isinstance(value, bool):
            writer.add_bool(key, value)
        elif isinstance(value, int):
            writer.add_uint32(key, value)
        elif isinstance(value, float):
            writer.add_float32(key, value)
        elif isinstance(value, str):
            writer.add_string(key, value)
        else:
            writer.add_array(key, value)
    for name, shape in tiny.matrices().items():
        kind = next((kind for end, kind in tiny.types.items() if end and name.endswith(end)), tiny.types[""])
        values = rng.standard_normal(shape) / math.sqrt(shape[1])
        writer.add_tensor(f"{name}.weight", stored(values, kind, rng), raw_dtype=kind)
        if tiny.biased and name.endswith(("attn_q", "attn_k", "attn_v")):
            writer.add_tensor(f"{name}.bias", rng.standard_normal(shape[0]).astype(np.float32))
    for name, size in tiny.norms().items():
        writer.add_tensor(f"{name}.weight", rng.uniform(0.5, 1.5, size).astype(np.float32))
    for name, vector in tiny.vectors.items():
        writer.add_tensor(name, np.asarray(vector, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def everything(layer: int) -> int | None:
    """No layer has a window."""
    return None


@frozen(kw_only=True)
class Semantics:
    """What the architecture's definition says of the forward pass.

    :param angles: radians by layer, `f(layer) -> [rotated / 2]`.
    :param window: tokens that a layer sees, itself included, `f(layer) -> int | None`.
    """

    interleaved: bool
    angles: Callable[[int], np.ndarray]
    gelu: bool = False
    embedding_scale: float = 1.0
    window: Callable[[int], int | None] = everything
    magnitude: float = 1.0


def forward(path: Path, tiny: Tiny, semantics: Semantics, ids: list[int]) -> np.ndarray:
    """Logits `[length, vocabulary] float64`."""
    weights = {
        tensor.name: np.asarray(dequantize(tensor.data, tensor.tensor_type), np.float64)
        for tensor in GGUFReader(path).tensors
    }
    positions = np.arange(len(ids))
    x = weights["token_embd.weight"][ids] * semantics.embedding_scale

    def norm(value: np.ndarray, name: str) -> np.ndarray:
        return value / np.sqrt(np.mean(value**2, axis=-1, keepdims=True) + 1e-5) * weights[f"{name}.weight"]

    def linear(value: np.ndarray, name: str) -> np.ndarray:
        return value @ weights[f"{name}.weight"].T + weights.get(f"{name}.bias", 0.0)

    def rotate(value: np.ndarray, layer: int) -> np.ndarray:
        """`[length, heads, head_size]`; the pairs are neighbours, or half of the rotated elements apart."""
        frequencies = semantics.angles(layer)
        angle = positions[:, None, None] * frequencies
        cos, sin = np.cos(angle) * semantics.magnitude, np.sin(angle) * semantics.magnitude
        rotated = 2 * len(frequencies)
        first, second = (
            (slice(0, rotated, 2), slice(1, rotated, 2))
            if semantics.interleaved
            else (slice(0, rotated // 2), slice(rotated // 2, rotated))
        )
        result = value.copy()
        result[..., first] = value[..., first] * cos - value[..., second] * sin
        result[..., second] = value[..., second] * cos + value[..., first] * sin
        return result

    def attention(value: np.ndarray, layer: int) -> np.ndarray:
        name = f"blk.{layer}"
        q = linear(value, f"{name}.attn_q").reshape(len(ids), tiny.heads, tiny.head_size)
        k = linear(value, f"{name}.attn_k").reshape(len(ids), tiny.kv_heads, tiny.head_size)
        v = linear(value, f"{name}.attn_v").reshape(len(ids), tiny.kv_heads, tiny.head_size)
        if tiny.head_norms:
            q, k = norm(q, f"{name}.attn_q_norm"), norm(k, f"{name}.attn_k_norm")
        q, k = rotate(q, layer), rotate(k, layer)
        k, v = (np.repeat(part, tiny.heads // tiny.kv_heads, axis=1) for part in (k, v))
        scores = np.einsum("qhd,khd->hqk", q, k) / math.sqrt(tiny.head_size)
        distance = positions[:, None] - positions[None, :]
        hidden = distance < 0
        if (window := semantics.window(layer)) is not None:
            hidden |= distance >= window
        scores = np.where(hidden, -np.inf, scores)
        shares = np.exp(scores - scores.max(-1, keepdims=True))
        shares /= shares.sum(-1, keepdims=True)
        return linear(np.einsum("hqk,khd->qhd", shares, v).reshape(len(ids), -1), f"{name}.attn_output")

    def feed_forward(value: np.ndarray, layer: int) -> np.ndarray:
        name = f"blk.{layer}"
        gate, up = linear(value, f"{name}.ffn_gate"), linear(value, f"{name}.ffn_up")
        if semantics.gelu:
            active = 0.5 * gate * (1 + np.tanh(math.sqrt(2 / math.pi) * (gate + 0.044715 * gate**3)))
        else:
            active = gate / (1 + np.exp(-gate))
        return linear(active * up, f"{name}.ffn_down")

    for layer in range(tiny.layers):
        y = attention(norm(x, f"blk.{layer}.attn_norm"), layer)
        x = x + (norm(y, f"blk.{layer}.post_attention_norm") if tiny.post_norms else y)
        y = feed_forward(norm(x, f"blk.{layer}.ffn_norm"), layer)
        x = x + (norm(y, f"blk.{layer}.post_ffw_norm") if tiny.post_norms else y)
    return linear(norm(x, "output_norm"), "token_embd" if tiny.tied else "output")
