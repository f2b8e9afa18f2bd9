from __future__ import annotations

import random
import time

import pytest

from zllm.errors import RequestError
from zllm.text.stop import StopStrings

CHAIN = [" alpha", " be", "ta", " gam", "ma", " delta"]


def run(stops: str | list[str], pushes: list[str]) -> tuple[list[str], bool]:
    stop = StopStrings(stops)
    emitted = []
    for text in pushes:
        safe, matched = stop.push(text)
        emitted.append(safe)
        if matched:
            break
    emitted.append(stop.flush())
    return emitted, stop.matched


@pytest.mark.parametrize(
    ("stops", "text", "matched"),
    [
        (["beta gamma"], " alpha ", True),
        (["beta golf"], " alpha beta gamma delta", False),
        (["delta force"], " alpha beta gamma delta", False),
        (["gamma", "beta"], " alpha ", True),
        ("gam", " alpha beta ", True),
    ],
    ids="abcde",
)
def test_stop_over_several_tokens(stops: str | list[str], text: str, matched: bool) -> None:
    """Case A09."""
    emitted, found = run(stops, CHAIN)
    assert ("".join(emitted), found) == (text, matched)


def test_holds_back_only_what_may_begin_a_stop() -> None:
    assert run(["beta golf"], CHAIN)[0] == [" alpha", " ", "", "beta gam", "ma", " delta", ""]
    assert run(["aab"], ["a", "a", "a", "c"])[0] == ["", "", "a", "aac", ""]


def test_nothing_passes_after_a_match() -> None:
    stop = StopStrings(["x"])
    assert stop.push("axb") == ("a", True)
    assert stop.push("c") == ("", True) and stop.flush() == ""


def test_no_stops_pass_everything() -> None:
    assert run([], ["a", "b"]) == (["a", "b", ""], False)


def test_match_inside_the_start_of_a_longer_stop() -> None:
    stops = ["abcd", "bc"]
    assert run(stops, ["abc", "d"]) == (["", "", ""], True)
    assert run(stops, ["abc", "x"]) == (["", "a", ""], True)
    assert run(stops, ["abc"]) == (["", "a"], True)


def test_empty_stop_is_refused() -> None:
    with pytest.raises(RequestError, match=r"stop\[1\]"):
        StopStrings(["a", ""])


def whole_text_search(stops: list[str], text: str) -> tuple[str, bool]:
    starts = [start for stop in stops if (start := text.find(stop)) >= 0]
    return (text[: min(starts)], True) if starts else (text, False)


def test_equals_search_of_the_whole_text() -> None:
    rng = random.Random(7)
    matches = 0
    for _ in range(20_000):
        stops = ["".join(rng.choices("abc", k=rng.randint(1, 6))) for _ in range(rng.randint(1, 3))]
        text = "".join(rng.choices("abc", k=rng.randint(0, 24)))
        cuts = sorted(rng.randint(0, len(text)) for _ in range(rng.randint(0, 6)))
        pushes = [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]
        emitted, matched = run(stops, pushes)
        assert ("".join(emitted), matched) == whole_text_search(stops, text), (stops, pushes)
        matches += matched
    assert 5_000 < matches < 19_000


def test_held_text_is_the_longest_possible_start_of_a_stop() -> None:
    rng = random.Random(8)
    for _ in range(2000):
        stops = ["".join(rng.choices("ab", k=rng.randint(2, 6))) for _ in range(rng.randint(1, 3))]
        stop, text, emitted = StopStrings(stops), "", ""
        for character in rng.choices("ab", k=20):
            text += character
            safe, _ = stop.push(character)
            if any(one in text for one in stops):
                break
            emitted += safe
            tails = (text[start:] for start in range(len(text) + 1))
            held = next(tail for tail in tails if any(one.startswith(tail) for one in stops))
            assert emitted + held == text


def test_time_is_linear() -> None:
    stops = ["a" * 5000 + "b", "ab" * 2500 + "b"]
    stop = StopStrings(stops)
    started = time.process_time()
    for _ in range(25_000):
        stop.push("aaaa")
    # Measured 0.15 s; a quadratic search would take minutes.
    assert time.process_time() - started < 2.0
