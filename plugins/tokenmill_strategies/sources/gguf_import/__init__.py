"""A GGUF file, written as an ordinary decoder directory: graph, weights, tokenizer, configuration and report."""
