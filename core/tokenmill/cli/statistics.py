"""What a generation took, in one line and as JSON."""

from __future__ import annotations

from typing import Any

from tokenmill.generation.piece import FinishReason, Statistics


def statistics_line(statistics: Statistics, reason: FinishReason) -> str:
    """For people; goes to stderr."""
    reused = f" ({statistics.reused_tokens} kept)" if statistics.reused_tokens else ""
    parts = [f"prompt {statistics.prompt_tokens} tokens{reused}, {statistics.prompt_rate:,.1f}/s"]
    parts.append(f"new {statistics.new_tokens} tokens, {statistics.decode_rate:,.1f}/s")
    if statistics.first_token_seconds is not None:
        parts.append(f"first after {statistics.first_token_seconds:.2f} s")
    if statistics.peak_memory is not None:
        parts.append(f"peak memory {statistics.peak_memory / 2**20:,.0f} MiB")
    return f"{'; '.join(parts)}; ended by {reason}"


def statistics_json(statistics: Statistics) -> dict[str, Any]:
    """Keys are added, never renamed or removed. Rates are tokens per second, times seconds, memory bytes."""
    return {
        "prompt_tokens": statistics.prompt_tokens,
        "reused_tokens": statistics.reused_tokens,
        "new_tokens": statistics.new_tokens,
        "prompt_seconds": statistics.prompt_seconds,
        "decode_seconds": statistics.decode_seconds,
        "first_token_seconds": statistics.first_token_seconds,
        "prompt_rate": statistics.prompt_rate,
        "decode_rate": statistics.decode_rate,
        "peak_memory": statistics.peak_memory,
    }
