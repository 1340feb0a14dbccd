"""Each built-in processor against its formula, spelled out over lists."""

from __future__ import annotations

import math
from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenmill.contracts.descriptors import LogitProcessorDescriptor
from tokenmill.contracts.processing import GenerationSettings, LogitProcessor
from tokenmill.errors import GenerationError
from tokenmill.generation.choosing import make_chooser
from tokenmill.hooks.attributes import load_attribute
from tokenmill.hooks.registry import Registry, default_registry

VOCABULARY = 12
ROWS = st.lists(st.floats(-20, 20, width=32), min_size=VOCABULARY, max_size=VOCABULARY)
TOKENS = st.lists(st.integers(0, VOCABULARY - 1), max_size=8)
#: A processor computes in float32, the formula in float64: some units in the last place of the largest value, 20.
TOLERANCE = 20 * 2.0**-22


def made(name: str, vocabulary: int = VOCABULARY, **settings: object) -> LogitProcessor | None:
    factory = load_attribute(default_registry().find(LogitProcessorDescriptor, name).factory)
    found: LogitProcessor | None = factory(GenerationSettings(**settings), vocabulary)  # type: ignore[arg-type]
    return found


def applied(
    name: str, row: list[float], prompt: list[int] | None = None, generated: list[int] | None = None, **settings: object
) -> list[float]:
    processor = made(name, len(row), **settings)
    assert processor is not None
    return [float(x) for x in processor(np.array(row, np.float32), prompt or [], generated or [])]


@given(row=ROWS, prompt=TOKENS, generated=TOKENS, penalty=st.floats(0.25, 4).filter(lambda x: x != 1))
def test_repetition_penalty(row: list[float], prompt: list[int], generated: list[int], penalty: float) -> None:
    expected = [
        (x / penalty if x > 0 else x * penalty) if token in prompt + generated else x for token, x in enumerate(row)
    ]
    found = applied("repetition_penalty", row, prompt, generated, repetition_penalty=penalty)
    assert found == pytest.approx(expected, abs=4 * TOLERANCE)


@given(row=ROWS, prompt=TOKENS, generated=TOKENS, frequency=st.floats(-2, 2), presence=st.floats(0.5, 2))
def test_occurrence_penalty(
    row: list[float], prompt: list[int], generated: list[int], frequency: float, presence: float
) -> None:
    counts = Counter(generated)
    expected = [x - counts[token] * frequency - (presence if counts[token] else 0) for token, x in enumerate(row)]
    found = applied(
        "occurrence_penalty", row, prompt, generated, frequency_penalty=frequency, presence_penalty=presence
    )
    assert found == pytest.approx(expected, abs=2 * TOLERANCE)


@given(steps=st.lists(TOKENS, min_size=1, max_size=6))
def test_penalties_follow_an_output_that_is_taken_back(steps: list[list[int]]) -> None:
    processor = made("occurrence_penalty", frequency_penalty=1.0)
    assert processor is not None
    generated: list[int] = []
    for step in steps:
        # One token more, or a draft given up: both occur with speculation.
        generated = [*generated, *step[:1]] if len(step) % 2 else [*generated[:-1], *step]
        found = processor(np.zeros(VOCABULARY, np.float32), [], generated)
        counts = Counter(generated)
        assert [-float(x) for x in found] == [counts[token] for token in range(VOCABULARY)]


@given(row=ROWS, k=st.integers(1, VOCABULARY - 1))
def test_top_k(row: list[float], k: int) -> None:
    kept = sorted(range(VOCABULARY), key=lambda token: (-row[token], token))[:k]
    expected = [x if token in kept else -math.inf for token, x in enumerate(row)]
    assert applied("top_k", row, temperature=1.0, top_k=k) == expected


@given(
    row=st.lists(st.integers(-20, 20), min_size=VOCABULARY, max_size=VOCABULARY, unique=True), p=st.floats(0.01, 0.99)
)
def test_top_p(row: list[int], p: float) -> None:
    total = math.fsum(math.exp(x) for x in row)
    kept: list[int] = []
    mass = 0.0
    for token in sorted(range(VOCABULARY), key=lambda token: -row[token]):
        if mass >= p - 1e-12 and kept:
            break
        kept.append(token)
        mass += math.exp(row[token]) / total
    expected = [float(x) if token in kept else -math.inf for token, x in enumerate(row)]
    found = applied("top_p", [float(x) for x in row], temperature=1.0, top_p=p)
    if abs(mass - p) > 1e-9:  # else the last place decides
        assert found == expected


def test_top_p_of_a_large_vocabulary() -> None:
    row = np.random.default_rng(0).normal(size=50_000).astype(np.float32)
    flat = made("top_p", len(row), temperature=1.0, top_p=0.9)
    assert flat is not None
    found = flat(row.copy(), [], [])
    weights = np.sort(np.exp(row.astype(np.float64)))[::-1]
    size = int(np.searchsorted(np.cumsum(weights) / weights.sum(), 0.9)) + 1
    assert size > 1024 and np.isfinite(found).sum() == size
    assert found[np.isfinite(found)].min() == np.sort(row)[-size]
    sharp = flat(row * 20, [], [])
    weights = np.sort(np.exp(20 * row.astype(np.float64)))[::-1]
    assert np.isfinite(sharp).sum() == int(np.searchsorted(np.cumsum(weights) / weights.sum(), 0.9)) + 1


@given(row=ROWS, share=st.floats(0.001, 1))
def test_min_p(row: list[float], share: float) -> None:
    border = max(row) + math.log(share)
    found = applied("min_p", row, temperature=1.0, min_p=share)
    for x, y in zip(row, found, strict=True):
        if abs(x - border) > TOLERANCE:
            assert y == (x if x > border else -math.inf)


@given(row=ROWS, temperature=st.floats(0.01, 100).filter(lambda x: x != 1))
def test_temperature(row: list[float], temperature: float) -> None:
    expected = [(x - max(row)) / temperature for x in row]
    found = applied("temperature", row, temperature=temperature)
    assert found == pytest.approx(expected, rel=1e-5, abs=4 * TOLERANCE / temperature)


def test_the_smallest_temperature_is_greedy() -> None:
    assert applied("temperature", [1.0, 2.0, -3.0], temperature=1e-300) == [-math.inf, 0.0, -math.inf]


@given(row=ROWS, bias=st.dictionaries(st.integers(0, VOCABULARY - 1), st.floats(-10, 10), min_size=1))
def test_logit_bias(row: list[float], bias: dict[int, float]) -> None:
    expected = [x + bias.get(token, 0) for token, x in enumerate(row)]
    assert applied("logit_bias", row, logit_bias=bias) == pytest.approx(expected, abs=2 * TOLERANCE)


@pytest.mark.parametrize("bias", [{VOCABULARY: 1.0}, {-1: 1.0}, {0: math.nan}, {0: math.inf}])
def test_a_bias_that_fits_no_token(bias: dict[int, float]) -> None:
    with pytest.raises(GenerationError, match=r"generation\.logit_bias"):
        made("logit_bias", logit_bias=bias)


def test_min_new_tokens() -> None:
    given = {"min_new_tokens": 2, "stop_token_ids": (1, 3, 99)}
    for count, allowed in ((0, False), (1, False), (2, True)):
        found = applied("min_new_tokens", [0.0] * 5, [1], [0] * count, **given)
        assert [x == 0 for x in found] == [True, allowed, True, allowed, True]


@pytest.mark.parametrize(
    "name", [descriptor.name for descriptor in default_registry().active(LogitProcessorDescriptor)]
)
def test_idle_by_default(name: str) -> None:
    assert made(name) is None


def test_a_stranger_s_processor_joins_the_chain() -> None:
    """By the hook, at its priority: behind the built-in ones."""
    import types

    from tokenmill.hooks.markers import hookimpl

    plugin = types.ModuleType("only_seven")
    plugin.TOKENMILL_API = (1, 0)  # type: ignore[attr-defined]

    @hookimpl
    def tokenmill_logit_processors() -> list[LogitProcessorDescriptor]:
        return [LogitProcessorDescriptor(name="only-seven", summary="allows 7 alone", factory=f"{__name__}:only_seven")]

    plugin.tokenmill_logit_processors = tokenmill_logit_processors  # type: ignore[attr-defined]
    registry = Registry()
    assert registry.register(plugin, "only-seven").state == "active"
    chooser = make_chooser(registry, GenerationSettings(), VOCABULARY)
    assert chooser.want == "last"
    assert chooser.choose(np.zeros(VOCABULARY, np.float32), [], []).token == 7


def only_seven(settings: GenerationSettings, vocabulary: int) -> LogitProcessor:
    def allow(logits: np.ndarray, prompt: object, generated: object) -> np.ndarray:
        return np.where(np.arange(vocabulary) == 7, logits, -np.inf).astype(np.float32)

    return allow
