"""The cache of imported files: whole or absent, checked, and made once by any number of processes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from tiny_gguf import Tiny, write
from tokenmill.contracts.sourcing import NoProgress
from tokenmill.errors import SourceError
from tokenmill_strategies.sources.gguf_file import GgufSource
from tokenmill_strategies.sources.kept import SEAL

#: Resolves a file and says what it did; `die` ends the process in the middle of the import.
RESOLVE = """
import os, sys
from tokenmill_strategies.sources.gguf_file import GgufSource

class Bar:
    def start(self, label, total=None):
        print(label.split()[0], flush=True)
    def advance(self, amount=1.0):
        if sys.argv[2] == "die":
            os._exit(3)
    def finish(self):
        pass

print(GgufSource().resolve(sys.argv[1], Bar()))
"""


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TOKENMILL_HOME", str(tmp_path / "home"))
    return write(tmp_path / "tiny.gguf", Tiny())


def names(directory: Path) -> set[str]:
    return {path.name for path in directory.iterdir()}


class Counting(NoProgress):
    """How often an import began."""

    count = 0

    def start(self, label: str, total: float | None = None) -> None:
        self.count += label.startswith("importing")


def imports(file: Path) -> tuple[Path, int]:
    progress = Counting()
    return GgufSource().resolve(str(file), progress), progress.count


def process(file: Path, what: str = "live") -> subprocess.Popen[str]:
    return subprocess.Popen([sys.executable, "-c", RESOLVE, str(file), what], stdout=subprocess.PIPE, text=True)


def test_a_file_is_imported_once(file: Path) -> None:
    directory, count = imports(file)
    assert count == 1
    wanted = {"model.onnx", "model.onnx.data", "tokenizer.json", "tokenizer_config.json", "genai_config.json"}
    assert wanted < names(directory)
    assert imports(file) == (directory, 0)


def test_another_content_under_the_same_name_is_imported_anew(file: Path) -> None:
    directory, _ = imports(file)
    before = (directory / "model.onnx.data").read_bytes()
    file.unlink()
    write(file, Tiny(seed=1))
    assert imports(file) == (directory, 1)
    assert (directory / "model.onnx.data").read_bytes() != before


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


DAMAGES = {
    "a flipped bit": lambda directory: flip(directory / "model.onnx.data"),
    "a truncated file": lambda directory: os.truncate(directory / "model.onnx.data", 100),
    "a missing file": lambda directory: (directory / "tokenizer.json").unlink(),
    "a missing seal": lambda directory: (directory / SEAL).unlink(),
    "a damaged seal": lambda directory: (directory / SEAL).write_text("{"),
    "a seal of another form": lambda directory: (directory / SEAL).write_text("[]"),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_import_is_made_anew(damage: str, file: Path) -> None:
    directory, _ = imports(file)
    whole = (directory / "model.onnx.data").read_bytes()
    DAMAGES[damage](directory)
    assert imports(file) == (directory, 1)
    assert (directory / "model.onnx.data").read_bytes() == whole
    assert imports(file) == (directory, 0)


def test_a_file_that_was_only_touched_is_still_good(file: Path) -> None:
    directory, _ = imports(file)
    os.utime(directory / "model.onnx.data")
    assert imports(file) == (directory, 0)


def test_an_interrupted_import_leaves_nothing(file: Path, tmp_path: Path) -> None:
    class Interrupted(NoProgress):
        def advance(self, amount: float = 1.0) -> None:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        GgufSource().resolve(str(file), Interrupted())
    assert [path.suffix for path in (tmp_path / "home" / "imported").iterdir()] == [".lock"]
    assert imports(file)[1] == 1


def test_an_import_whose_process_died_is_made_anew(file: Path, tmp_path: Path) -> None:
    with process(file, "die") as dying:
        assert dying.wait(60) == 3
    assert {path.suffix for path in (tmp_path / "home" / "imported").iterdir()} == {".lock", ".part"}
    directory, count = imports(file)
    assert count == 1
    assert names(directory.parent) == {directory.name, f"{directory.name}.lock"}


def test_processes_at_once_make_it_once(file: Path) -> None:
    running = [process(file) for _ in range(4)]
    said = [one.communicate(timeout=120)[0].split("\n") for one in running]
    assert all(one.returncode == 0 for one in running)
    assert len({lines[-2] for lines in said}) == 1
    assert sum("importing" in lines for lines in said) == 1


def test_a_cache_that_cannot_be_written_is_an_error_with_the_setting(
    file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "occupied").write_text("a file")
    monkeypatch.setenv("TOKENMILL_HOME", str(tmp_path / "occupied"))
    with pytest.raises(SourceError, match=r"cannot be written: Not a directory; .*TOKENMILL_HOME"):
        imports(file)


def test_the_seal_says_what_it_was_made_from(file: Path) -> None:
    directory, _ = imports(file)
    seal = json.loads((directory / SEAL).read_text())
    assert seal["identity"]["size"] == file.stat().st_size
    assert set(seal["files"]) == names(directory) - {SEAL}
