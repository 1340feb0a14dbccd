"""Small tokenizers of the kinds that models have, made on the spot."""

from __future__ import annotations

from pathlib import Path

from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

TEXT = Path(__file__).parents[1] / "data" / "text.txt"


def trained_byte_level(vocabulary: int) -> Tokenizer:
    """A byte-level BPE with special tokens."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary,
        special_tokens=["<pad>", "<s>", "</s>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train([str(TEXT)], trainer)
    return tokenizer


def byte_level() -> Tokenizer:
    """A byte-level BPE with special tokens, and added ones that are text."""
    tokenizer = trained_byte_level(500)
    tokenizer.add_tokens([AddedToken("<think>", normalized=False), AddedToken("\t \n", normalized=False)])
    tokenizer.add_tokens([AddedToken("é🦙", normalized=False)])
    return tokenizer


def byte_fallback() -> Tokenizer:
    """As sentencepiece models are converted: spaces as ▁, unknown characters as bytes, one leading space dropped."""
    pieces = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    pieces += ["▁", "a", "b", "c", "▁a", "▁b", "▁c", "é", "▁▁", ".", "�"]
    vocabulary = {piece: index for index, piece in enumerate(pieces)}
    merges = [("▁", "a"), ("▁", "b"), ("▁", "c"), ("▁", "▁")]
    tokenizer = Tokenizer(models.BPE(vocabulary, merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    tokenizer.add_special_tokens(["<s>", "</s>"])
    return tokenizer


def metaspace() -> Tokenizer:
    """Pieces with their leading space, the first of which is dropped."""
    vocabulary = {piece: index for index, piece in enumerate(["<unk>", "▁", "a", "b", "▁a", "▁b", "."])}
    tokenizer = Tokenizer(models.BPE(vocabulary, [("▁", "a"), ("▁", "b")], unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Metaspace()
    return tokenizer


def spaced() -> Tokenizer:
    """No decoder: tokens are joined by spaces."""
    return Tokenizer(models.WordLevel({"a": 0, "b": 1, "[UNK]": 2}, unk_token="[UNK]"))
