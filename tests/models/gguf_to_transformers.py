"""Write a GGUF file as a transformers model in float32, tokenizer included: gguf_to_transformers.py FILE DIRECTORY."""

import sys
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

file, target = Path(sys.argv[1]), sys.argv[2]
place = {"pretrained_model_name_or_path": str(file.parent), "gguf_file": file.name}
model = AutoModelForCausalLM.from_pretrained(**place, dtype=torch.float32)
# It was read dequantized; without this it would be saved as if it still were quantized.
model.hf_quantizer, model.is_quantized = None, False
vars(model.config).pop("quantization_config", None)
model.save_pretrained(target)
AutoTokenizer.from_pretrained(**place).save_pretrained(target)
