"""What a decoder is, from a GGUF file's metadata: sizes, heads, rotary embedding, windows."""

from __future__ import annotations

import math
from collections.abc import Mapping

from attrs import frozen
from tokenmill.errors import SourceError

from tokenmill_strategies.sources.gguf_import.reading import GgufFile
from tokenmill_strategies.sources.gguf_import.rotary import Rotary, global_rotary, windowed_rotary


@frozen(kw_only=True)
class Family:
    """What an architecture's name says beyond the file's own metadata and tensors.

    :param interleaved: rows of q and k are permuted so that rotated pairs are neighbours.
    :param activation: of the gate: `silu` or `gelu_tanh`.
    :param scaled_embedding: embeddings are multiplied by the square root of their length.
    :param window_period: every so many layers attend to everything, those between to a window; 0 knows no windows.
    :param genai_type: what `genai_config.json` calls it.
    """

    interleaved: bool = False
    activation: str = "silu"
    scaled_embedding: bool = False
    window_period: int = 0
    genai_type: str


FAMILIES: Mapping[str, Family] = {
    "llama": Family(interleaved=True, genai_type="llama"),
    "qwen2": Family(genai_type="qwen2"),
    "qwen3": Family(genai_type="qwen3"),
    "gemma3": Family(activation="gelu_tanh", scaled_embedding=True, window_period=6, genai_type="gemma3_text"),
}


#: Tokens. Tables of cosines and sines have a row for each position.
LONGEST_CONTEXT = 1 << 22


@frozen(kw_only=True)
class Architecture:
    """Sizes in elements; `windows` has a layer's window in tokens, or -1 where it attends to everything.

    :param rotary: of layers without a window.
    :param windowed_rotary: of layers with one.
    :param logit_softcap: 0 is none; `attention_softcap` likewise.
    """

    family: Family
    layers: int
    hidden: int
    inner: int
    heads: int
    kv_heads: int
    head_size: int
    vocabulary: int
    context: int
    epsilon: float
    attention_scale: float
    attention_softcap: float
    logit_softcap: float
    rotary: Rotary
    windowed_rotary: Rotary
    windows: tuple[int, ...]

    def rotary_of(self, layer: int) -> Rotary:
        return self.rotary if self.windows[layer] < 0 else self.windowed_rotary


def read_architecture(file: GgufFile) -> Architecture:
    """:raises SourceError: an architecture that is not known, or metadata that are missing or contradict each other."""
    family = FAMILIES.get(file.architecture)
    if family is None:
        raise SourceError(
            f"'{file.path}' has the architecture '{file.architecture}', which cannot be imported",
            why=f"known are {', '.join(sorted(FAMILIES))}",
            remedy="export the model to ONNX instead",
        )
    if experts := file.count(file.own("expert_count"), 0):
        raise SourceError(
            f"'{file.path}' is a mixture of {experts} experts, which cannot be imported",
            remedy="export the model to ONNX instead",
        )
    hidden, heads = file.count(file.own("embedding_length")), file.count(file.own("attention.head_count"))
    if heads == 0 or (kv_heads := file.count(file.own("attention.head_count_kv"), heads)) == 0 or heads % kv_heads:
        raise SourceError(f"'{file.path}' has {heads} heads", why="they must be a multiple of the key and value heads")
    head_size = file.count(file.own("attention.key_length"), hidden // heads)
    if (value_size := file.count(file.own("attention.value_length"), head_size)) != head_size:
        raise SourceError(
            f"'{file.path}' has keys of length {head_size}, values of {value_size}", why="they must agree"
        )
    layers, context = file.count(file.own("block_count")), file.count(file.own("context_length"))
    if min(layers, context, head_size) == 0 or layers > file.tensors or context > LONGEST_CONTEXT:
        raise SourceError(
            f"'{file.path}' has {layers} layers, heads of size {head_size} and a context of {context} tokens",
            why=f"it has {file.tensors} tensors, and a context may have 1 to {LONGEST_CONTEXT} tokens",
        )
    return Architecture(
        family=family,
        layers=layers,
        hidden=hidden,
        inner=file.count(file.own("feed_forward_length")),
        heads=heads,
        kv_heads=kv_heads,
        head_size=head_size,
        vocabulary=file.rows_of("token_embd.weight"),
        context=context,
        epsilon=file.number(file.own("attention.layer_norm_rms_epsilon")),
        attention_scale=_attention_scale(file, family, layers, hidden // heads, head_size),
        attention_softcap=file.number(file.own("attn_logit_softcapping"), 0.0),
        logit_softcap=file.number(file.own("final_logit_softcapping"), 0.0),
        rotary=global_rotary(file, head_size),
        windowed_rotary=windowed_rotary(file, head_size),
        windows=_windows(file, family, layers),
    )


def _attention_scale(file: GgufFile, family: Family, layers: int, hidden_per_head: int, head_size: int) -> float:
    # Gemma 3 of 27 billion weights is scaled by the embedding's share of a head; its files do not say so, and
    # llama.cpp, whose format this is, tells it by its 62 layers.
    by_hidden = family.window_period > 0 and layers == 62
    default = 1.0 / math.sqrt(hidden_per_head if by_hidden else head_size)
    return file.number(file.own("attention.scale"), 0.0) or default


def _windows(file: GgufFile, family: Family, layers: int) -> tuple[int, ...]:
    window = file.count(file.own("attention.sliding_window"), 0) if family.window_period else 0
    pattern = file.value(file.own("attention.sliding_window_pattern"), family.window_period)
    if not window:
        return (-1,) * layers
    if isinstance(pattern, list):
        if len(pattern) != layers:
            raise SourceError(
                f"'{file.path}' says of {len(pattern)} layers whether they have a window", why=f"it has {layers}"
            )
        return tuple(window if windowed else -1 for windowed in pattern)
    return tuple(-1 if (layer + 1) % pattern == 0 else window for layer in range(layers))
