"""Tokenizers that merge pairs of characters by the score of the result (SentencePiece), with bytes for what is left."""

from __future__ import annotations

from tokenizers import Tokenizer, decoders, normalizers, pre_tokenizers
from tokenizers.models import BPE
from tokenmill.errors import SourceError

from tokenmill_strategies.sources.gguf_import.reading import GgufFile
from tokenmill_strategies.sources.gguf_import.vocabulary import TokenKind, Vocabulary

SPACE = "\N{LOWER ONE EIGHTH BLOCK}"


def scored_pairs(file: GgufFile, vocabulary: Vocabulary) -> Tokenizer:
    """:raises SourceError: scores that are missing or do not fit the tokens."""
    scores = [float(score) for score in file.listed("tokenizer.ggml.scores")]
    if len(scores) != len(vocabulary.tokens):
        raise SourceError(f"'{file.path}' has {len(scores)} scores for {len(vocabulary.tokens)} tokens")
    prefix = file.flag("tokenizer.ggml.add_space_prefix", True)
    tokens = {text: i for i, text in enumerate(vocabulary.tokens)}
    tokenizer = Tokenizer(
        BPE(
            tokens,
            merges_by_score(vocabulary, scores),
            unk_token=vocabulary.text(vocabulary.unknown),
            fuse_unk=True,
            byte_fallback=TokenKind.BYTE in vocabulary.kinds,
        )
    )
    spaces = normalizers.Replace(" ", SPACE)
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend(SPACE), spaces]) if prefix else spaces
    tokenizer.pre_tokenizer = pre_tokenizers.Split(" ", "merged_with_previous")
    steps = [decoders.Replace(SPACE, " "), decoders.ByteFallback(), decoders.Fuse()]
    tokenizer.decoder = decoders.Sequence([*steps, decoders.Strip(" ", 1, 0)] if prefix else steps)
    return tokenizer


def merges_by_score(vocabulary: Vocabulary, scores: list[float]) -> list[tuple[str, str]]:
    """Every pair of tokens that makes a token, the highest score of the result first."""
    normal = {text: i for i, text in enumerate(vocabulary.tokens) if vocabulary.kinds[i] == TokenKind.NORMAL}
    found = [
        (-scores[i], normal[text[:at]], normal[text[at:]], text[:at], text[at:])
        for text, i in normal.items()
        for at in range(1, len(text))
        if text[:at] in normal and text[at:] in normal
    ]
    return [(left, right) for *_, left, right in sorted(found)]
