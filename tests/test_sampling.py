from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from zllm.sampling import Draw, choice_seed, draw_keys, gumbel, logprobs, mix, penalise, sample
from zllm.sampling import threshold as edge_of

NO_PENALTY = Draw()


def lowbias32(x: int) -> int:
    """The published hash in unbounded integers."""
    for shift, factor in ((16, 0x7FEB352D), (15, 0x846CA68B)):
        x = (x ^ (x >> shift)) * factor & 0xFFFFFFFF
    return x ^ (x >> 16)


def test_mix_known_values() -> None:
    """0 and 1 as the author of the hash gives them; the rest in unbounded integers."""
    words = [0, 1, 2, 0xDEADBEEF, 0x80000000, 0xFFFFFFFF]
    mixed = mix(np.array(words, np.uint32))
    assert mixed.dtype == np.uint32
    assert mixed.tolist() == [lowbias32(word) for word in words]
    assert mixed[:3].tolist() == KNOWN_MIX


KNOWN_MIX = [0, 1753845952, 3507691905]
# The noise of tokens 0 to 3 as f32 bits: the draw of old seeds must not change unnoticed.
KNOWN_GUMBEL = [
    (Draw(), [-1106669318, -1085684312, 1058021022, -1090320734]),
    (Draw(seed=(1, 0), position=7), [1054454365, 1076432346, 1041580176, 1076160983]),
    (
        Draw(seed=(0xFFFFFFFF, 0x80000001), position=131071),
        [1056244277, 1080626756, 1029401157, 1032167066],
    ),
]


def exact_gumbel(draw: Draw, token: int) -> float:
    """The definition in integers and f64."""
    first = lowbias32(lowbias32(draw.position ^ draw.seed[0]) ^ draw.seed[1])
    second = lowbias32((first + 0x9E3779B9) & 0xFFFFFFFF)
    bits = lowbias32(lowbias32(token ^ first) ^ second) >> 9
    return float(-np.log(-np.log1p(-(bits + 0.5) * 2.0**-23)))


@pytest.mark.parametrize(
    "draw",
    [
        Draw(),
        Draw(seed=(1, 0), position=7),
        Draw(seed=(0xFFFFFFFF, 0x80000001), position=131071),
        Draw(seed=(-1, -(2**31)), position=3),
    ],
    ids=["zero", "small", "large", "signed words"],
)
def test_gumbel_equals_its_definition(draw: Draw) -> None:
    noise = gumbel(draw, 3000)
    words = replace(draw, seed=(draw.seed[0] & 0xFFFFFFFF, draw.seed[1] & 0xFFFFFFFF))
    exact = [exact_gumbel(words, token) for token in range(3000)]
    assert noise.dtype == np.float32
    np.testing.assert_allclose(noise, exact, rtol=3e-6, atol=3e-7)


@pytest.mark.parametrize(("draw", "bits"), KNOWN_GUMBEL, ids=["zero", "small", "large"])
def test_gumbel_known_bits(draw: Draw, bits: list[int]) -> None:
    """Within one unit in the last place: libraries round the logarithm differently."""
    assert np.abs(gumbel(draw, 4).view(np.int32) - bits).max() <= 1


def test_gumbel_is_finite_at_both_ends_of_the_uniform() -> None:
    noise = np.concatenate([gumbel(Draw(seed=(i, 9)), 200_000) for i in range(20)])
    assert np.isfinite(noise).all()
    assert noise.max() < 16.7 and noise.min() > -2.9  # -log(2^-24), -log(log(2^24))
    assert noise.mean() == pytest.approx(0.5772, abs=2e-3)
    assert noise.var() == pytest.approx(np.pi**2 / 6, abs=5e-3)


def test_keys_tell_apart_seed_words_positions_and_choices() -> None:
    seeds = [choice_seed(seed, choice) for seed in range(20) for choice in range(3)]
    draws = [Draw(seed=words, position=at) for words in seeds for at in range(50)]
    assert len({tuple(map(int, draw_keys(draw))) for draw in draws}) == len(draws)
    given = [0, 1, -1, 2**63, 2**64 - 2, -(2**63)]  # the last and the fourth are one 64-bit word
    words = {choice_seed(seed, choice) for seed in given for choice in range(8)}
    assert len(words) == (len(given) - 1) * 8
    assert all(0 <= word < 2**32 for pair in words for word in pair)


@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0])
def test_draws_follow_the_distribution(temperature: float) -> None:
    """χ² of 20 000 draws with 7 degrees of freedom exceeds 24.3 once in a thousand seeds."""
    logits = np.log(np.array([0.3, 0.2, 0.15, 0.12, 0.1, 0.08, 0.03, 0.02], np.float32))
    weights = np.exp(logits.astype(np.float64) / temperature)
    expected = 20_000 * weights / weights.sum()
    drawn = np.zeros(8)
    for n in range(20_000):
        seed = choice_seed(n // 100, 0)
        drawn[sample(logits, Draw(temperature, seed=seed, position=n % 100))] += 1
    assert ((drawn - expected) ** 2 / expected).sum() < 24.3


def test_draws_of_neighbouring_positions_are_independent() -> None:
    """χ² of pairs with 9 degrees of freedom exceeds 27.9 once in a thousand seeds."""
    logits = np.zeros(4, np.float32)
    tokens = [sample(logits, Draw(1.0, seed=(3, 4), position=n)) for n in range(8001)]
    pairs = np.zeros((4, 4))
    np.add.at(pairs, (tokens[:-1], tokens[1:]), 1)
    expected = pairs.sum(1, keepdims=True) * pairs.sum(0, keepdims=True) / pairs.sum()
    assert ((pairs - expected) ** 2 / expected).sum() < 27.9


def kept(logits: list[float], draw: Draw) -> list[int]:
    """The ids that ever come out of 400 draws."""
    row = np.array(logits, np.float32)
    return sorted({sample(row, replace(draw, position=n)) for n in range(400)})


FLAT = [1.0, 0.9, 0.8, 0.7, 0.6]


@pytest.mark.parametrize(
    ("logits", "draw", "ids"),
    [
        (FLAT, Draw(1.0, top_k=1), [0]),
        (FLAT, Draw(1.0, top_k=3), [0, 1, 2]),
        (FLAT, Draw(1.0, top_k=5), [0, 1, 2, 3, 4]),
        (FLAT, Draw(1.0, top_k=0), [0, 1, 2, 3, 4]),
        ([1.0, 2.0, 2.0, 2.0, 0.0], Draw(1.0, top_k=2), [1, 2, 3]),
        (FLAT, Draw(1.0, top_p=1e-9), [0]),
        ([5.0, 5.0, -30.0], Draw(1.0, top_p=1e-9), [0, 1]),
        (FLAT, Draw(1.0, min_p=1.0), [0]),
        (FLAT, Draw(1.0, min_p=0.86), [0, 1]),
        (FLAT, Draw(0.5, min_p=0.86), [0]),
        (FLAT, Draw(1.0, min_p=0.0), [0, 1, 2, 3, 4]),
    ],
    ids=[
        "top_k 1",
        "top_k 3",
        "top_k of the vocabulary",
        "top_k off",
        "ties at the edge of top_k stay",
        "the likeliest always stays",
        "and so do its ties",
        "min_p 1",
        "min_p",
        "min_p after temperature",
        "min_p off",
    ],
)
def test_filters_keep(logits: list[float], draw: Draw, ids: list[int]) -> None:
    assert kept(logits, draw) == ids


def test_top_p_takes_the_smallest_set_that_reaches_p() -> None:
    half = [float(np.log(p)) for p in (0.5, 0.25, 0.125, 0.125)]
    assert kept(half, Draw(1.0, top_p=0.49)) == [0]
    assert kept(half, Draw(1.0, top_p=0.51)) == [0, 1]
    assert kept(half, Draw(1.0, top_p=0.74)) == [0, 1]
    assert kept(half, Draw(1.0, top_p=0.76)) == [0, 1, 2, 3], "the last two are ties"
    # Among what top_k keeps 0.5 of 0.75 is two thirds.
    assert kept(half, Draw(1.0, top_k=2, top_p=0.6)) == [0]
    assert kept(half, Draw(1.0, top_k=2, top_p=0.7)) == [0, 1]
    # The temperature comes first: 0.25 : 0.0625 : … at 0.5.
    assert kept(half, Draw(0.5, top_p=0.7)) == [0]


def test_filters_of_a_large_random_row_equal_a_sort() -> None:
    rng = np.random.default_rng(9)
    for _ in range(50):
        z = rng.standard_normal(1000).astype(np.float32) * 3
        z -= z.max()
        k, p = int(rng.integers(1, 1000)), float(rng.uniform(0.05, 0.999))
        order = np.argsort(-z, kind="stable")[:k]
        mass = np.cumsum(np.exp(z[order].astype(np.float64)))
        count = int((mass < p * mass[-1] * (1 - 1e-7)).sum()) + 1
        edge = edge_of(z, Draw(1.0, top_k=k, top_p=p))
        assert abs(int((z >= edge).sum()) - count) <= 1


@pytest.mark.parametrize("temperature", [0.0, 1e-30, 1e-7, 1e-5, 1e-4])
def test_a_tiny_temperature_takes_the_largest(temperature: float) -> None:
    """Case A10."""
    logits = np.array([3.0, 7.5, 7.4, -1e9], np.float32)
    draws = {sample(logits, Draw(temperature, seed=(1, 2), position=n)) for n in range(200)}
    assert draws == {1}


def test_ties_go_to_the_lower_id_when_greedy() -> None:
    assert sample(np.array([1, 4, 4, 4], np.float32), Draw()) == 1


def test_a_banned_token_never_comes_out() -> None:
    logits = np.array([0, 50 - 1e30, 0.5], np.float32)
    assert kept([0.0, float(np.float32(50 - 1e30)), 0.5], Draw(100.0)) == [0, 2]
    assert sample(logits, Draw()) == 2


def test_penalties_count_what_they_should() -> None:
    """Case A11: repetition sees prompt [0, 1] and answer [3]; the others only answer [3, 3]."""
    logits = np.array([2, -1, 0.5, 3], np.float32)
    repeated = penalise(logits, np.array([1, 1, 0, 3], np.int32), Draw(repetition=2.0))
    assert repeated.tolist() == [1, -2, 0.5, 1.5]
    for prompt in ([0, 0, 0], [1, 1, 1]):
        counts = np.array([*prompt, 5], np.int32)
        draw = Draw(frequency=0.5, presence=0.25)
        assert penalise(logits, counts, draw).tolist() == [2, -1, 0.5, 1.75]
    assert logits.tolist() == [2, -1, 0.5, 3]


def test_no_penalty_changes_nothing() -> None:
    logits = np.array([2, -1, 0.5, 3], np.float32)
    assert penalise(logits, np.array([7, 3, 1, 9], np.int32), NO_PENALTY).tolist() == [
        2,
        -1,
        0.5,
        3,
    ]


def test_logprobs_are_the_log_softmax() -> None:
    rng = np.random.default_rng(10)
    logits = (20 * rng.standard_normal(500)).astype(np.float32)
    exact = logits.astype(np.float64)
    exact -= exact.max()
    np.testing.assert_allclose(
        logprobs(logits), exact - np.log(np.exp(exact).sum()), rtol=1e-5, atol=1e-5
    )
    assert np.exp(logprobs(logits).astype(np.float64)).sum() == pytest.approx(1, abs=1e-5)
