"""Prefill and decode of one model in tokenmill: one JSON line.

usage: measure_tokenmill.py MODEL PROMPT NEW [REPEATS]
"""

from __future__ import annotations

import importlib.metadata
import json
import resource
import statistics
import sys
import time

import numpy as np
from tokenmill.assembly import assemble
from tokenmill.config import load_config


def main(model: str, prompt: int, new: int, repeats: int = 3) -> None:
    start = time.perf_counter()
    assembly = assemble(model, load_config(overrides={"backend": {"name": "cpu"}}))
    session = assembly.session()
    load_s = time.perf_counter() - start
    ids = np.random.default_rng(0).integers(100, 40000, size=prompt).tolist()

    def once() -> tuple[float, float, list[int]]:
        session.reset()
        began = time.perf_counter()
        tokens = [session.decode(ids, 0, want="token")]
        first = time.perf_counter()
        for _ in range(new):
            tokens.append(session.decode([tokens[-1]], session.length, want="token"))
        return prompt / (first - began), new / (time.perf_counter() - first), tokens

    once()
    runs = [once() for _ in range(repeats)]
    print(
        json.dumps(
            {
                "runtime": f"tokenmill {importlib.metadata.version('tokenmill')}",
                "backend": [str(decision) for decision in assembly.decisions if "backend" in str(decision)][:1],
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
