"""Facts of a model from the files beside it; for each fact the first file that states it wins."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from attrs import frozen

from tokenmill.model.beside import (
    GENAI_CONFIG,
    GENERATION_CONFIG,
    HF_CONFIG,
    INFERENCE_METADATA,
    BesideFiles,
    Place,
    section,
)
from tokenmill.model.decoder import DecoderMetadata

#: How genai_config.json, config.json of the model families, and inference_metadata.yaml spell each size.
SPELLINGS: dict[str, tuple[str, ...]] = {
    "context_length": ("context_length", "max_position_embeddings", "n_positions", "n_ctx", "max_sequence_length"),
    "vocab_size": ("vocab_size",),
    "hidden_size": ("hidden_size", "n_embd", "d_model"),
    "num_layers": ("num_hidden_layers", "num_layers", "n_layer"),
    "num_heads": ("num_attention_heads", "num_heads", "n_head"),
    "num_kv_heads": ("num_key_value_heads", "num_kv_heads"),
    "head_size": ("head_size", "head_dim"),
}
EOS_SPELLINGS = ("eos_token_id", "eos_token_ids")

#: Generation defaults of a generation_config.json that `genai_config.json` has in `search`, under the same names.
SEARCH_KEYS = (
    "do_sample", "temperature", "top_k", "top_p", "min_p", "repetition_penalty", "no_repeat_ngram_size",
    "max_length", "min_length", "num_beams", "num_return_sequences", "length_penalty", "early_stopping",
)  # fmt: skip


@frozen
class _Section:
    """One mapping that may state facts, with its place for messages."""

    values: Mapping[str, Any]
    place: Place
    file: str


def read_metadata(beside: BesideFiles) -> DecoderMetadata:
    """Collect what is known.

    :raises ModelFileError: a fact of the wrong type or extent; names file and key.
    """
    sections = list(_sections(beside))
    sizes = {fact: _first_size(sections, spellings) for fact, spellings in SPELLINGS.items()}
    if sizes["num_kv_heads"] is None:
        sizes["num_kv_heads"] = sizes["num_heads"]  # multi-head attention does not state it
    hidden, heads = sizes["hidden_size"], sizes["num_heads"]
    if sizes["head_size"] is None and hidden and heads and hidden % heads == 0:
        sizes["head_size"] = hidden // heads
    return DecoderMetadata(
        **sizes,
        bos_token_id=next(iter(_first_ids(sections, ("bos_token_id",))), None),
        eos_token_ids=_first_ids(sections, EOS_SPELLINGS),
        pad_token_id=next(iter(_first_ids(sections, ("pad_token_id",))), None),
        search=_search(beside),
        sources=tuple(dict.fromkeys(part.file for part in sections if part.values)),
    )


def _sections(beside: BesideFiles) -> Iterator[_Section]:
    place = beside.place(INFERENCE_METADATA)
    yield _Section(section(beside.inference, "model", place), place / "model", INFERENCE_METADATA)
    place = beside.place(GENAI_CONFIG)
    model = section(beside.genai, "model", place)
    yield _Section(section(model, "decoder", place / "model"), place / "model" / "decoder", GENAI_CONFIG)
    yield _Section(model, place / "model", GENAI_CONFIG)
    # Of the two transformers files, this one states which tokens end a generation; the other may lack some.
    yield _Section(beside.generation, beside.place(GENERATION_CONFIG), GENERATION_CONFIG)
    place = beside.place(HF_CONFIG)
    # A multimodal model keeps its decoder's sizes in a section of their own.
    yield _Section(section(beside.hf, "text_config", place), place / "text_config", HF_CONFIG)
    yield _Section(beside.hf, place, HF_CONFIG)


def _first_size(sections: list[_Section], spellings: tuple[str, ...]) -> int | None:
    for part in sections:
        for key in spellings:
            value = part.values.get(key)
            if value is None:
                continue
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise (part.place / key).refuse(value, "a positive whole number")
            return value
    return None


def _first_ids(sections: list[_Section], spellings: tuple[str, ...]) -> tuple[int, ...]:
    for part in sections:
        for key in spellings:
            value = part.values.get(key)
            if value is None:
                continue
            ids = value if isinstance(value, list) else [value]
            if any(isinstance(item, bool) or not isinstance(item, int) for item in ids):
                raise (part.place / key).refuse(value, "a token id or a list of them")
            # Some configurations write "no such token" as -1.
            valid = tuple(dict.fromkeys(item for item in ids if item >= 0))
            if valid:
                return valid
    return ()


def _search(beside: BesideFiles) -> dict[str, Any]:
    stated = section(beside.genai, "search", beside.place(GENAI_CONFIG))
    if stated:
        return stated
    return {key: beside.generation[key] for key in SEARCH_KEYS if beside.generation.get(key) is not None}
