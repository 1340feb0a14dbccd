"""`genai_config.json` and `tokenizer_config.json`, as onnxruntime-genai and transformers lay them out."""

from __future__ import annotations

from typing import Any

from tokenmill_strategies.sources.gguf_import.architecture import Architecture
from tokenmill_strategies.sources.gguf_import.reading import GgufFile
from tokenmill_strategies.sources.gguf_import.vocabulary import Vocabulary


def genai_config(a: Architecture, vocabulary: Vocabulary) -> dict[str, Any]:
    """Ports by templates (`%d` is the layer), sizes, special tokens and defaults of the search."""
    padding = vocabulary.padding if vocabulary.padding is not None else vocabulary.eos
    special = {"bos_token_id": vocabulary.bos, "eos_token_id": list(vocabulary.ends), "pad_token_id": padding}
    return {
        "model": {
            **{key: value for key, value in special.items() if value is not None and value != []},
            "context_length": a.context,
            "decoder": {
                "session_options": {"log_id": "onnxruntime-genai", "provider_options": []},
                "filename": "model.onnx",
                "head_size": a.head_size,
                "hidden_size": a.hidden,
                "inputs": {
                    "input_ids": "input_ids",
                    "attention_mask": "attention_mask",
                    "past_key_names": "past_key_values.%d.key",
                    "past_value_names": "past_key_values.%d.value",
                },
                "outputs": {
                    "logits": "logits",
                    "present_key_names": "present.%d.key",
                    "present_value_names": "present.%d.value",
                },
                "num_attention_heads": a.heads,
                "num_hidden_layers": a.layers,
                "num_key_value_heads": a.kv_heads,
            },
            "type": a.family.genai_type,
            "vocab_size": a.vocabulary,
        },
        "search": {
            "do_sample": False,
            "early_stopping": True,
            "max_length": a.context,
            "min_length": 0,
            "num_beams": 1,
            "num_return_sequences": 1,
            "past_present_share_buffer": True,
            "repetition_penalty": 1.0,
            "temperature": 1.0,
            "top_k": 50,
            "top_p": 1.0,
        },
    }


def tokenizer_config(file: GgufFile, vocabulary: Vocabulary) -> dict[str, Any]:
    """Special tokens by their text, and the chat template where the file has one."""
    special = {
        "bos_token": vocabulary.text(vocabulary.bos),
        "eos_token": vocabulary.text(vocabulary.eos),
        "unk_token": vocabulary.text(vocabulary.unknown),
        "pad_token": vocabulary.text(vocabulary.padding),
        "chat_template": file.value("tokenizer.chat_template"),
    }
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "add_bos_token": vocabulary.adds_bos,
        "add_eos_token": vocabulary.adds_eos,
        "clean_up_tokenization_spaces": False,
        **{key: value for key, value in special.items() if value is not None},
    }
