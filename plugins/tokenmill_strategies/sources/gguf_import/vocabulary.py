"""The tokens of a GGUF file and which of them mean something."""

from __future__ import annotations

from enum import IntEnum

from attrs import frozen
from tokenmill.errors import SourceError

from tokenmill_strategies.sources.gguf_import.reading import GgufFile


class TokenKind(IntEnum):
    """As the format numbers them."""

    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3
    USER_DEFINED = 4
    UNUSED = 5
    BYTE = 6


#: Control tokens that end a turn or a text. Files name one `eos`; instruction models end with others, too.
ENDINGS = frozenset(
    ("<|endoftext|>", "<|im_end|>", "<|eot_id|>", "<|eom_id|>", "<|end_of_text|>", "<end_of_turn>", "<|end|>", "<EOT>")
)


@frozen(kw_only=True)
class Vocabulary:
    """Tokens by id. Special ones are ids, None where the file has none.

    :param model: `gpt2` for pairs of bytes, `llama` for pairs of characters with scores.
    :param ends: ids that end a generation, the file's `eos` first.
    """

    model: str
    tokens: tuple[str, ...]
    kinds: tuple[int, ...]
    bos: int | None
    eos: int | None
    unknown: int | None
    padding: int | None
    ends: tuple[int, ...]
    adds_bos: bool
    adds_eos: bool

    def text(self, token: int | None) -> str | None:
        return None if token is None else self.tokens[token]


def read_vocabulary(file: GgufFile, rows: int) -> Vocabulary:
    """:param rows: of the embedding table. :raises SourceError: missing or contradictory metadata."""
    tokens = tuple(str(token) for token in file.listed("tokenizer.ggml.tokens"))
    kinds = tuple(int(kind) for kind in file.listed("tokenizer.ggml.token_type", [TokenKind.NORMAL] * len(tokens)))
    if len(tokens) > rows or len(kinds) != len(tokens):
        raise SourceError(
            f"'{file.path}' has {len(tokens)} tokens, {len(kinds)} kinds of them and {rows} embeddings",
            why="they must agree",
        )

    def special(name: str) -> int | None:
        key = f"tokenizer.ggml.{name}_token_id"
        token = file.count(key) if file.value(key) is not None else None
        if token is not None and token >= len(tokens):
            raise SourceError(f"'{file.path}' has '{key}' = {token}", why=f"it has {len(tokens)} tokens")
        return token

    model = file.text("tokenizer.ggml.model")
    eos = special("eos")
    ends = [eos, special("eot"), special("eom")]
    ends += [i for i, text in enumerate(tokens) if text in ENDINGS and kinds[i] == TokenKind.CONTROL]
    # Where a file does not say it, llama.cpp adds the first token for scored pairs and for Llama 3's and Tekken's.
    starts = model == "llama" or file.text("tokenizer.ggml.pre", "default") in (
        "llama-bpe",
        "llama3",
        "llama-v3",
        "tekken",
    )
    return Vocabulary(
        model=model,
        tokens=tokens,
        kinds=kinds,
        bos=special("bos"),
        eos=eos,
        unknown=special("unknown"),
        padding=special("padding"),
        ends=tuple(dict.fromkeys(token for token in ends if token is not None)),
        adds_bos=file.flag("tokenizer.ggml.add_bos_token", starts),
        adds_eos=file.flag("tokenizer.ggml.add_eos_token", False),
    )
