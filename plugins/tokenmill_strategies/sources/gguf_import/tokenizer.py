"""`tokenizer.json` from a GGUF file's vocabulary."""

from __future__ import annotations

from pathlib import Path

from tokenizers import AddedToken, Tokenizer
from tokenizers.processors import ByteLevel, Sequence, TemplateProcessing
from tokenmill.errors import SourceError

from tokenmill_strategies.sources.gguf_import.byte_pairs import byte_pairs
from tokenmill_strategies.sources.gguf_import.reading import GgufFile
from tokenmill_strategies.sources.gguf_import.scored_pairs import scored_pairs
from tokenmill_strategies.sources.gguf_import.vocabulary import TokenKind, Vocabulary

MODELS = {"gpt2": byte_pairs, "llama": scored_pairs}


def write_tokenizer(file: GgufFile, vocabulary: Vocabulary, path: Path) -> None:
    """:raises SourceError: a tokenizer that is not known, or merges that do not fit the tokens."""
    build = MODELS.get(vocabulary.model)
    if build is None:
        raise SourceError(
            f"'{file.path}' has a tokenizer '{vocabulary.model}', which cannot be imported",
            why=f"known are {', '.join(sorted(MODELS))}",
            remedy="export the model to ONNX instead",
        )
    tokenizer = build(file, vocabulary)
    _add_special(tokenizer, vocabulary)
    _add_ends(tokenizer, vocabulary)
    tokenizer.save(str(path))


def _add_special(tokenizer: Tokenizer, vocabulary: Vocabulary) -> None:
    """Tokens that are found in the text before it is cut: control tokens, which decoding may leave out, and others."""
    special = (TokenKind.CONTROL, TokenKind.UNKNOWN)
    added = [
        AddedToken(text, special=kind in special, normalized=False)
        for text, kind in zip(vocabulary.tokens, vocabulary.kinds, strict=True)
        if text and kind in (*special, TokenKind.USER_DEFINED)
    ]
    tokenizer.add_tokens(added)


def _add_ends(tokenizer: Tokenizer, vocabulary: Vocabulary) -> None:
    """What encoding puts before and after a text."""
    before = vocabulary.bos if vocabulary.adds_bos else None
    after = vocabulary.eos if vocabulary.adds_eos else None
    names = [(vocabulary.tokens[token], token) for token in (before, after) if token is not None]
    if not names:
        return
    first, last = (([vocabulary.tokens[token]] if token is not None else []) for token in (before, after))
    template = TemplateProcessing(
        single=[*first, "$A", *last], pair=[*first, "$A", *last, *first, "$B:1", *last], special_tokens=names
    )
    level = [ByteLevel(trim_offsets=False)] if vocabulary.model == "gpt2" else []
    tokenizer.post_processor = Sequence([*level, template])
