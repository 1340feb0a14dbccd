"""Prefill and decode of one model directory in onnxruntime-genai: one JSON line. Runs in an environment that has it.

usage: measure_onnxruntime_genai.py MODEL_DIRECTORY PROMPT NEW [REPEATS]
"""

from __future__ import annotations

import json
import os
import resource
import statistics
import sys
import time

import numpy as np
import onnxruntime_genai as og


def main(directory: str, prompt: int, new: int, repeats: int = 3) -> None:
    start = time.perf_counter()
    config = og.Config(directory)
    # Left alone it runs on one thread on some machines: it gets every core that this process may use.
    threads = len(os.sched_getaffinity(0))
    config.overlay(json.dumps({"model": {"decoder": {"session_options": {"intra_op_num_threads": threads}}}}))
    model = og.Model(config)
    load_s = time.perf_counter() - start
    ids = np.random.default_rng(0).integers(100, 40000, size=prompt).astype(np.int32)

    def once() -> tuple[float, float, list[int]]:
        parameters = og.GeneratorParams(model)
        length = prompt + new + 1
        parameters.set_search_options(max_length=length, min_length=length, do_sample=False)
        generator = og.Generator(model, parameters)
        began = time.perf_counter()
        generator.append_tokens(ids)
        generator.generate_next_token()
        first = time.perf_counter()
        for _ in range(new):
            generator.generate_next_token()
        ended = time.perf_counter()
        return prompt / (first - began), new / (ended - first), [int(t) for t in generator.get_sequence(0)[prompt:]]

    once()
    runs = [once() for _ in range(repeats)]
    print(
        json.dumps(
            {
                "runtime": f"onnxruntime-genai {og.__version__}",
                "prompt": prompt,
                "new": new,
                "load_s": round(load_s, 3),
                "prefill_tps": statistics.median(run[0] for run in runs),
                "decode_tps": statistics.median(run[1] for run in runs),
                "peak_rss_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024,
                "tokens": runs[0][2][:16],
            }
        )
    )


if __name__ == "__main__":
    main(sys.argv[1], *map(int, sys.argv[2:]))
