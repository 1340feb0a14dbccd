"""What a file is, by its first bytes: the answer to "this is not an ONNX model" that helps."""

from __future__ import annotations

from attrs import frozen

#: Bytes that `recognise` wants to see.
SNIFFED_BYTES = 512


@frozen
class ForeignFile:
    """A file of another kind: what it is and what to do about it."""

    kind: str
    remedy: str


_FETCH_AGAIN = "download the file itself again, and compare its size with the publisher's"
_EXPORT = "export the model to ONNX, for example with onnxruntime-genai's model builder or Optimum"


def recognise(head: bytes) -> ForeignFile | None:
    """Name a file that cannot be an ONNX model.

    :param head: the first `SNIFFED_BYTES` bytes, or all of a shorter file.
    :returns: None when it may be one. ONNX has no magic number: a protobuf begins with the tag of its first field.
    """
    if head.startswith(b"version https://git-lfs.github.com/spec/"):
        return ForeignFile("a git-lfs pointer, not the file that it stands for", "run `git lfs pull` in its repository")
    if head.startswith(b"GGUF"):
        return ForeignFile("a GGUF model", "load it by its own name, ending in .gguf, so that it is imported")
    if head.startswith(b"ORTM", 4):
        return ForeignFile("a model in onnxruntime's ORT format", "use the .onnx file that it was made from")
    if len(head) > 8 and head[8:9] == b"{" and int.from_bytes(head[:8], "little") < 1 << 32:
        return ForeignFile("a safetensors file, which holds weights without a graph", _EXPORT)
    if head.startswith(b"PK\x03\x04"):
        return ForeignFile("a zip archive or PyTorch checkpoint", f"unpack it, or {_EXPORT}")
    if head.startswith(b"\x89HDF\r\n\x1a\n"):
        return ForeignFile("an HDF5 file", _EXPORT)
    if head.startswith((b"\x80\x02", b"\x80\x03", b"\x80\x04", b"\x80\x05")):
        return ForeignFile("a Python pickle", _EXPORT)
    if head.startswith(b"\x1f\x8b"):
        return ForeignFile("a gzip archive", "unpack it first")
    if head.startswith(b"\x28\xb5\x2f\xfd"):
        return ForeignFile("a zstandard archive", "unpack it first")
    return _recognise_text(head)


def _recognise_text(head: bytes) -> ForeignFile | None:
    text = head.removeprefix(b"\xef\xbb\xbf").lstrip().lower()
    # 0x0a, a line feed, is also how a protobuf says "field 1, of some length": only printable beginnings count.
    if text.startswith((b"<!doctype", b"<html", b"<head", b"<?xml", b"<!--")):
        return ForeignFile("an HTML or XML page, most likely a site's error or sign-in page", _FETCH_AGAIN)
    if text.startswith((b"{", b"[")) and _printable(head):
        return ForeignFile("JSON text", "give the .onnx file or the model's directory instead")
    if len(head) >= 8 and _printable(head):
        return ForeignFile(f"text that begins {head[:40].decode('ascii', 'replace')!r}", _FETCH_AGAIN)
    if head and not head.strip(b"\0"):
        return ForeignFile("nothing but zero bytes, as an interrupted download leaves them", _FETCH_AGAIN)
    return None


def _printable(head: bytes) -> bool:
    return all(byte in b"\t\n\r" or 32 <= byte < 127 for byte in head)
