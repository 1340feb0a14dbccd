"""A decoder: a graph, the roles of its ports, and what its directory says about it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from attrs import field, frozen

from tokenmill.model.graph import OnnxGraph
from tokenmill.model.roles import IoSpec


@frozen
class DecoderMetadata:
    """Facts from the files beside the model. None is unknown.

    :param context_length: tokens that the model was trained for.
    :param head_size: of the KV heads.
    :param search: the model's own generation defaults, as `genai_config.json` spells them.
    """

    context_length: int | None = None
    vocab_size: int | None = None
    hidden_size: int | None = None
    num_layers: int | None = None
    num_heads: int | None = None
    num_kv_heads: int | None = None
    head_size: int | None = None
    bos_token_id: int | None = None
    eos_token_ids: tuple[int, ...] = ()
    pad_token_id: int | None = None
    search: Mapping[str, Any] = field(factory=dict)
    sources: tuple[str, ...] = ()


@frozen(eq=False)
class Decoder:
    """Everything known of a decoder before a backend compiles it. Made by `tokenmill.model.loading.load_decoder`.

    :param directory: where its tokenizer and chat template are; None for a bare graph.
    """

    graph: OnnxGraph
    io: IoSpec
    metadata: DecoderMetadata
    directory: Path | None = None
