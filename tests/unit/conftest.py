"""A small decoder with random weights, with a tokenizer and a chat template beside it."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from tiny_tokenizers import trained_byte_level

DATA = Path(__file__).parents[1] / "data"
TEMPLATE = (
    "{% for m in messages %}{{ '<' + m.role + '>' + m.content + '\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)


@pytest.fixture(scope="session")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """llama of the zoo (vocabulary 512, context 256) with a byte-level tokenizer of its vocabulary."""
    path = tmp_path_factory.mktemp("models") / "tiny"
    shutil.copytree(DATA / "zoo" / "llama-fp32", path)
    trained_byte_level(512).save(str(path / "tokenizer.json"))
    (path / "tokenizer_config.json").write_text(json.dumps({"bos_token": "<s>", "chat_template": TEMPLATE}))
    return path
