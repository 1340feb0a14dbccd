"""Tokenmill: a plugin-based runtime for ONNX language-model decoders."""
