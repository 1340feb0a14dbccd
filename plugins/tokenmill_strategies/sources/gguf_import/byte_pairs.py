"""Tokenizers that merge pairs of bytes: text is cut by patterns first, and `tokenizer.ggml.pre` says by which.

The patterns are those that the models' own tokenizers publish and that llama.cpp applies for each name.
"""

from __future__ import annotations

from collections.abc import Mapping

from tokenizers import Regex, Tokenizer, decoders, pre_tokenizers, processors
from tokenizers.models import BPE
from tokenmill.errors import SourceError

from tokenmill_strategies.sources.gguf_import.reading import GgufFile
from tokenmill_strategies.sources.gguf_import.vocabulary import Vocabulary

_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_ENDINGS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_REST = r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_LLAMA3 = rf"{_ENDINGS}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}{{1,3}}{_REST}"
_QWEN2 = rf"{_ENDINGS}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}{_REST}"
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_TEKKEN = (
    rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+|[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*|\p{{N}}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_DIGIT, _DIGITS3 = r"\p{N}", r"[0-9][0-9][0-9]"
_PUNCTUATION = r"[\p{P}\$\+<=>\^~\|]+"

#: Patterns, one applied to what the one before has left.
PATTERNS: Mapping[str, tuple[str, ...]] = {
    **dict.fromkeys(("llama-bpe", "llama3", "llama-v3", "falcon3", "pixtral", "dbrx", "smaug-bpe"), (_LLAMA3,)),
    **dict.fromkeys(("qwen2", "deepseek-r1-qwen", "stablelm2", "megrez", "hunyuan"), (_QWEN2,)),
    **dict.fromkeys(("smollm", "starcoder", "refact", "command-r", "codeshell"), (_DIGIT, _GPT2)),
    **dict.fromkeys(("gpt-2", "phi-2", "mpt", "olmo", "jais", "roberta-bpe", "jina-es"), (_GPT2,)),
    "tekken": (_TEKKEN,),
    "falcon": (r"[\p{P}\$\+<=>\^~\|`]+", _GPT2, _DIGITS3),
    "default": (_PUNCTUATION, _GPT2, r"\p{N}+", _DIGITS3),
}
#: Take a piece that is a token as that token, whatever the merges make of it.
WHOLE_PIECES = ("llama-bpe", "llama3", "llama-v3", "falcon3", "pixtral", "tekken")


def byte_pairs(file: GgufFile, vocabulary: Vocabulary) -> Tokenizer:
    """:raises SourceError: patterns of a name that is not known, or merges that do not fit the tokens."""
    name = file.text("tokenizer.ggml.pre", "default")
    if name not in PATTERNS:
        raise SourceError(
            f"'{file.path}' cuts text by '{name}' (tokenizer.ggml.pre), which is not known",
            why=f"known are {', '.join(sorted(PATTERNS))}",
            remedy="export the model to ONNX instead: other patterns would give other tokens",
        )
    # The separator comes after the first character, which may be a space itself.
    merges = [
        (text[:at], text[at + 1 :]) for text in file.listed("tokenizer.ggml.merges") if (at := text.find(" ", 1)) > 0
    ]
    try:
        return byte_pair_tokenizer({text: i for i, text in enumerate(vocabulary.tokens)}, merges, name)
    except Exception as error:
        raise SourceError(f"'{file.path}' has merges that do not fit its tokens", why=str(error)) from error


def byte_pair_tokenizer(tokens: dict[str, int], merges: list[tuple[str, str]], name: str) -> Tokenizer:
    """:param name: a key of `PATTERNS`."""
    tokenizer = Tokenizer(BPE(tokens, merges, ignore_merges=name in WHOLE_PIECES))
    cuts = [pre_tokenizers.Split(Regex(pattern), "isolated") for pattern in PATTERNS[name]]
    level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([*cuts, level])
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.post_processor = processors.ByteLevel(trim_offsets=False)
    return tokenizer
