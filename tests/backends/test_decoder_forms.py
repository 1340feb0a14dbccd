"""Decoders in the forms that exporters and quantizers write, through a session, against onnxruntime fed by hand."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from decoder_graphs import (
    CACHE,
    HEAD_SIZE,
    HEADS,
    block_dequantized,
    decoder,
    dynamically_quantized,
    matmul_nbits,
    merged_decoder,
    plain,
)
from node_cases import recorded_backends
from onnx import TensorProto
from tokenmill.assembly import assemble
from tokenmill.config import load_config

PROMPT, STEPS = [3, 17, 64, 5, 90, 41, 2], [8, 33, 70, 95]

#: Name, graph, and what the largest difference may be relative to the row's norm. Float32 sums of up to 96 terms of
#: either order stay within 1e-5. Dynamic quantization may round an activation to the neighbouring one of 256 codes
#: where float32 sums differ in the last bit; a row of 64 activations then moves by about 1 / 255 of one of them. Halves
#: round every intermediate value to 2^-11, in an order that each implementation chooses.
FORMS = [
    ("float weights", decoder(plain), 1e-5),
    ("block-dequantized int4", decoder(block_dequantized(4)), 1e-5),
    ("block-dequantized int8", decoder(block_dequantized(8)), 1e-5),
    ("dynamically quantized", decoder(dynamically_quantized), 1e-2),
    ("MatMulNBits", decoder(matmul_nbits), 1e-5),
    ("halves with int4 weights", decoder(matmul_nbits, TensorProto.FLOAT16), 5e-3),
    ("merged", merged_decoder(), 1e-5),
]


class Oracle:
    """The same graph in onnxruntime."""

    def __init__(self, model: onnx.ModelProto) -> None:
        options = onnxruntime.SessionOptions()
        options.log_severity_level = 3
        # Its optimizer would fuse block-dequantized matmuls, and round their activations to int8.
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
        self._session = onnxruntime.InferenceSession(model.SerializeToString(), options)
        element = model.graph.input[1].type.tensor_type.elem_type
        dtype = onnx.helper.tensor_dtype_to_np_dtype(element)
        self._past = {role: np.zeros((1, HEADS, 0, HEAD_SIZE), dtype) for role in CACHE}
        self._branching = any(port.name == "use_cache_branch" for port in self._session.get_inputs())

    def logits(self, tokens: list[int]) -> np.ndarray:
        """`[rows, vocab] float32`; keeps the presents."""
        feeds = {"input_ids": np.array([tokens]), **{f"past.{role}": value for role, value in self._past.items()}}
        if self._branching:
            feeds["use_cache_branch"] = np.array([self._past["key"].shape[2] > 0])
        logits, *presents = self._session.run(["logits", *(f"present.{role}" for role in CACHE)], feeds)
        self._past = dict(zip(CACHE, presents, strict=True))
        return logits[0].astype(np.float32)


@pytest.mark.parametrize("backend", recorded_backends())
@pytest.mark.parametrize(("model", "tolerance"), [form[1:] for form in FORMS], ids=[form[0] for form in FORMS])
def test_prompt_and_steps_give_the_logits_of_onnxruntime(
    model: onnx.ModelProto, tolerance: float, backend: str, tmp_path: Path
) -> None:
    onnx.save(model, tmp_path / "model.onnx")
    config = load_config(overrides={"backend": {"name": backend}, "cache": {"max_len": 32}})
    assembly = assemble(tmp_path / "model.onnx", config)
    oracle = Oracle(model)
    with assembly.session() as session:
        for tokens in (PROMPT, *([token] for token in STEPS)):
            got = session.decode(tokens, session.length)
            expected = oracle.logits(tokens)
            assert got.shape == expected.shape
            distances = np.linalg.norm(got - expected, axis=-1) / np.linalg.norm(expected, axis=-1)
            assert distances.max() < tolerance
    assembly.close()
