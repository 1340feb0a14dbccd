"""tokenmill against onnxruntime-genai on one model directory, in alternation; prints a table of medians and ratios.

usage: compare.py MODEL_DIRECTORY PEER_PYTHON [ROUNDS]

PEER_PYTHON is an interpreter that has onnxruntime-genai (`tests/models/build.sh` makes one). Nothing else may run meanwhile.
"""

from __future__ import annotations

import json
import os
import platform
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
#: (prompt tokens, new tokens)
WORKLOADS = ((32, 64), (512, 64))


def measure(interpreter: str, script: str, model: str, prompt: int, new: int) -> dict[str, Any]:
    command = [interpreter, str(HERE / script), model, str(prompt), str(new), "3"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return result


def main(model: str, peer_python: str, rounds: int = 3) -> None:
    print(f"{Path(model).name}, {len(os.sched_getaffinity(0))} cores of {platform.processor() or platform.machine()}")
    print("| prompt | what | tokenmill | onnxruntime-genai | ratio |\n|---|---|--:|--:|--:|")
    for prompt, new in WORKLOADS:
        ours, theirs = [], []
        for _ in range(rounds):
            ours.append(measure(sys.executable, "measure_tokenmill.py", model, prompt, new))
            theirs.append(measure(peer_python, "measure_onnxruntime_genai.py", model, prompt, new))
        for what in ("prefill_tps", "decode_tps", "peak_rss_mb"):
            a, b = (statistics.median(run[what] for run in runs) for runs in (ours, theirs))
            print(f"| {prompt} | {what} | {a:.1f} | {b:.1f} | {a / b:.2f} |")
        pairs = zip(ours[0]["tokens"], theirs[0]["tokens"], strict=True)
        agree = next((i for i, (a, b) in enumerate(pairs) if a != b), len(ours[0]["tokens"]))
        print(f"| {prompt} | equal greedy tokens | {agree} | of {len(theirs[0]['tokens'])} | |")
    print(f"\n{ours[0]['runtime']}, {theirs[0]['runtime']}; medians of {rounds} processes with 3 runs each")


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], *map(int, sys.argv[3:]))
