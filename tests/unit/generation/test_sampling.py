"""Probabilities, draws and log-probabilities against formulas in float64."""

from __future__ import annotations

import numpy as np
import pytest
from tokenmill.api import Model
from tokenmill.contracts.processing import GenerationSettings
from tokenmill.errors import GenerationError
from tokenmill.generation.choosing import Chooser, make_chooser
from tokenmill.generation.sampling import draw, highest, log_probabilities, probabilities
from tokenmill.hooks.registry import default_registry

LOGITS = np.array([2.0, -1.0, 0.5, 2.0, -30.0, 1.0], np.float32)


def softmax(logits: np.ndarray) -> np.ndarray:
    weights = np.exp(logits.astype(np.float64))
    return weights / weights.sum()


def test_probabilities() -> None:
    # Both are float64 sums of six terms: they differ by some units in the last place.
    np.testing.assert_allclose(probabilities(LOGITS), softmax(LOGITS), rtol=1e-14)
    np.testing.assert_allclose(np.exp(log_probabilities(LOGITS)), softmax(LOGITS), rtol=1e-13)


def test_no_overflow() -> None:
    huge = np.array([3e38, 3e38, -3e38, -np.inf], np.float32)
    np.testing.assert_array_equal(probabilities(huge), [0.5, 0.5, 0, 0])


def test_the_lowest_id_of_equals() -> None:
    assert highest(LOGITS) == 0


def test_draws_follow_the_distribution() -> None:
    expected = softmax(LOGITS)
    generator = np.random.default_rng(0)
    count = 20_000
    found = np.bincount([draw(expected, generator) for _ in range(count)], minlength=6) / count
    # Five standard deviations of a binomial share.
    assert (np.abs(found - expected) <= 5 * np.sqrt(expected * (1 - expected) / count) + 1e-12).all()


def test_what_has_no_probability_is_never_drawn() -> None:
    class Edges:
        def __init__(self, value: float) -> None:
            self.value = value

        def random(self) -> float:
            return self.value

    distribution = np.array([0.0, 0.5, 0.0, 0.5, 0.0])
    assert draw(distribution, Edges(0.0)) == 1  # type: ignore[arg-type]
    assert draw(distribution, Edges(np.nextafter(1.0, 0))) == 3  # type: ignore[arg-type]


def sampled_shares(settings: GenerationSettings, logits: np.ndarray, count: int = 20_000) -> np.ndarray:
    chooser = make_chooser(default_registry(), settings, len(logits))
    tokens = [chooser.choose(logits.copy(), [], []).token for _ in range(count)]
    return np.bincount(tokens, minlength=len(logits)) / count


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        ({"temperature": 0.5}, [0, 1, 2, 3, 4, 5]),
        ({"temperature": 2.0, "top_k": 3}, [0, 3, 5]),
        ({"temperature": 1.0, "top_p": 0.7}, [0, 3]),  # 0.384 + 0.384 reach it
        ({"temperature": 1.0, "min_p": 0.3}, [0, 3, 5]),  # e^-1 of the highest is 0.37, e^-1.5 is 0.22
        ({"temperature": 0.7, "top_k": 4, "top_p": 0.95, "min_p": 0.05}, [0, 3, 5]),
    ],
)
def test_shares_of_sampled_tokens(given: dict[str, float], kept: list[int]) -> None:
    tempered = LOGITS.astype(np.float64) / given["temperature"]
    expected = np.zeros(6)
    expected[kept] = softmax(tempered[kept])
    found = sampled_shares(GenerationSettings(seed=1, **given), LOGITS)  # type: ignore[arg-type]
    # Five standard deviations of a binomial share.
    assert (np.abs(found - expected) <= 5 * np.sqrt(expected * (1 - expected) / 20_000) + 1e-12).all()


def test_the_seed_decides(model: Model) -> None:
    def tokens(seed: int) -> tuple[int, ...]:
        return model.generate([5, 6], temperature=1.0, seed=seed, max_new_tokens=12, ignore_eos=True).tokens

    assert tokens(1) == tokens(1) != tokens(2)


def test_logprobs_are_the_model_s_own(model: Model) -> None:
    """Before processors and temperature: the bias and the temperature do not show in them."""
    found = model.generate(
        [5, 6, 7], max_new_tokens=4, logprobs=3, temperature=3.0, seed=4, logit_bias={9: 3.0}, ignore_eos=True
    )
    with model.session() as session:
        rows = session.decode([5, 6, 7, *found.tokens[:-1]], 0)[2:]
    expected = np.log(np.stack([softmax(row) for row in rows]))
    for step, token in enumerate(found.tokens):
        # Rows computed together and one by one differ by float32 rounding.
        assert found.logprobs[step] == pytest.approx(expected[step, token], abs=1e-4)
        assert [item.logprob for item in found.alternatives[step]] == pytest.approx(
            np.sort(expected[step])[::-1][:3].tolist(), abs=1e-4
        )


def test_greedy_without_processors_leaves_the_choice_to_the_backend() -> None:
    registry = default_registry()
    assert make_chooser(registry, GenerationSettings(top_k=5, top_p=0.5, min_p=0.1), 6).want == "token"
    for given in ({"temperature": 1.0}, {"logprobs": 0}, {"repetition_penalty": 1.5}):
        assert make_chooser(registry, GenerationSettings(**given), 6).want == "last"  # type: ignore[arg-type]


def test_nothing_left_to_choose() -> None:
    ruled_out = Chooser(GenerationSettings(), [lambda logits, prompt, generated: logits - np.inf])
    with pytest.raises(GenerationError, match="ruled every token out"):
        ruled_out.choose(LOGITS.copy(), [], [])
    broken = Chooser(GenerationSettings(temperature=1), [lambda logits, prompt, generated: logits * np.nan])
    with pytest.raises(GenerationError, match="made a logit nan"):
        broken.choose(LOGITS.copy(), [], [])


def test_a_processor_that_gives_no_logits() -> None:
    cut = Chooser(GenerationSettings(), [lambda logits, prompt, generated: logits[:3]])
    with pytest.raises(GenerationError, match=r"logits of \[6\] are needed"):
        cut.choose(LOGITS.copy(), [], [])
