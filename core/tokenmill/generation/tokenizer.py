"""Text to ids and back, by the model's own `tokenizer.json`."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tokenmill.errors import TokenizerError

if TYPE_CHECKING:
    import tokenizers

TOKENIZER = "tokenizer.json"
CONFIGURATION = "tokenizer_config.json"
SPECIAL_TOKENS = "special_tokens_map.json"

#: Tokens with a role, by the names that configurations and chat templates use.
ROLES = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")


class Tokenizer:
    """A tokenizer with the settings that lie beside it.

    :param special_tokens: texts of tokens with a role, such as `bos_token`.
    :param configuration: the whole `tokenizer_config.json`.
    """

    def __init__(
        self,
        backend: tokenizers.Tokenizer,
        special_tokens: Mapping[str, str] | None = None,
        configuration: Mapping[str, Any] | None = None,
    ) -> None:
        backend.no_truncation()
        backend.no_padding()
        self.backend = backend
        self.special_tokens = dict(special_tokens or {})
        self.configuration = dict(configuration or {})
        added = backend.get_added_tokens_decoder()
        self._special = frozenset(token for token, entry in added.items() if entry.special)

    @property
    def vocab_size(self) -> int:
        """Ids that it knows, added tokens included. The model's logits may be wider."""
        return int(self.backend.get_vocab_size(with_added_tokens=True))

    @property
    def special_ids(self) -> frozenset[int]:
        """Tokens that are no text."""
        return self._special

    def encode(self, text: str, *, special: bool = True) -> list[int]:
        """:param special: add what the tokenizer itself puts around a text, such as a first token. Chat templates write
            these themselves.
        :raises TokenizerError: text that is no valid Unicode.
        """
        try:
            return list(self.backend.encode(text, add_special_tokens=special).ids)
        except Exception as error:
            raise TokenizerError("the text cannot be encoded", why=str(error)) from error

    def decode(self, tokens: Sequence[int], *, special: bool = False) -> str:
        """:param special: keep special tokens. Ids that it does not know are passed over."""
        try:
            return str(self.backend.decode(list(tokens), skip_special_tokens=not special))
        except Exception as error:
            raise TokenizerError("the tokens cannot be decoded", why=str(error)) from error

    def token(self, number: int) -> str | None:
        """A token as the vocabulary spells it; None for an id that it does not know."""
        found: str | None = self.backend.id_to_token(number)
        return found

    def number(self, token: str) -> int | None:
        """The id of a token; None for one that it does not know."""
        found: int | None = self.backend.token_to_id(token)
        return found


def read_tokenizer(directory: Path | None, file: str | None = None) -> Tokenizer:
    """Read a model's tokenizer.

    :param directory: of the model.
    :param file: a `tokenizer.json`, or a directory with one, to use instead.
    :raises TokenizerError: no such file, or one that cannot be read.
    """
    import tokenizers

    path = _location(directory, file)
    try:
        backend = tokenizers.Tokenizer.from_file(str(path))
    except BaseException as error:  # a panic of the library is no Exception
        if isinstance(error, (KeyboardInterrupt, SystemExit)):
            raise
        raise TokenizerError(
            f"'{path}' cannot be read", why=" ".join(str(error).split()), remedy="fetch the file again"
        ) from error
    configuration = _json(path.parent / CONFIGURATION)
    named = {**_json(path.parent / SPECIAL_TOKENS), **configuration}
    special = {role: text for role in ROLES if (text := _content(named.get(role))) is not None}
    return Tokenizer(backend, special, configuration)


def _location(directory: Path | None, file: str | None) -> Path:
    if file is not None:
        chosen = Path(file).expanduser()
        path = chosen / TOKENIZER if chosen.is_dir() else chosen
        if not path.is_file():
            raise TokenizerError(f"there is no tokenizer '{path}'", remedy="correct model.tokenizer")
        return path
    path = (directory or Path()) / TOKENIZER
    if directory is None or not path.is_file():
        raise TokenizerError(
            f"there is no {TOKENIZER}" + (f" in '{directory}'" if directory else " beside the graph"),
            why="without it text cannot be turned into token ids",
            remedy=f"put the model's {TOKENIZER} there, set model.tokenizer, or give token ids instead of text",
        )
    return path


def _json(file: Path) -> dict[str, Any]:
    if not file.is_file():
        return {}
    try:
        found = json.loads(file.read_text(encoding="utf-8-sig"))
    except (OSError, ValueError, RecursionError) as error:
        raise TokenizerError(f"'{file}' cannot be read", why=str(error), remedy="fetch the file again") from error
    if not isinstance(found, dict):
        raise TokenizerError(f"'{file}' is a {type(found).__name__}", why="a JSON object is needed")
    return found


def _content(value: Any) -> str | None:
    """A token is written as its text, or as a table with the text in `content`."""
    if isinstance(value, dict):
        value = value.get("content")
    return value if isinstance(value, str) and value else None
