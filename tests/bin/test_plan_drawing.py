"""Layer plans as text: what repeats is told once, and nothing of a layer is lost."""

from __future__ import annotations

import re

import pytest

from zllm.bin.plan_drawing import part_text, plan_lines, repeats
from zllm.runtime.survey import Layer
from zllm.runtime.survey_parts import Part

GQA = Part("gqa", (("heads", 4), ("kv_heads", 2), ("head_size", 8)))
WINDOW = Part("gqa", (*GQA.facts, ("window", 512)))
FFN = Part("ffn", (("width", 64), ("activation", "silu")))
HYPER = Part("hyper", (("streams", 4), ("iterations", 20)))
FACTS = {"score": "sigmoid", "top_k": 2, "experts": 8, "width": 16, "activation": "silu"}
EXPERTS = Part("experts", tuple(FACTS.items()))


def layers(*kinds: tuple[Part, ...]) -> list[Layer]:
    return [Layer(i, parts, 100 + i, 64, 0) for i, parts in enumerate(kinds)]


def test_like_layers_share_a_line() -> None:
    local, globe = (WINDOW, FFN), (GQA, FFN)
    lines = plan_lines(layers(local, local, globe, local, local, globe, local))
    assert lines == [
        "7 layers: (2A B) × 2 A",
        "A  0-1, 3-4, 6  64 B/token  GQA 4/2 heads of 8, window 512",
        "                            FFN 64 silu",
        "B  2, 5         64 B/token  GQA 4/2 heads of 8",
        "                            FFN 64 silu",
    ]


def test_caches_tell_layers_apart_and_stored_size_does_not() -> None:
    a, b = layers((GQA,), (GQA,))
    assert a.weights_bytes != b.weights_bytes
    assert plan_lines([a, b])[0] == "2 layers: 2A"
    c = Layer(1, (GQA,), 0, 64, 4096)
    assert plan_lines([a, c])[0] == "2 layers: A B"
    assert plan_lines([a, c])[2].startswith("B  1  64 B/token + 4,096 B state  GQA")


def test_what_surrounds_both_sublayers_is_told_once() -> None:
    shared = Part("shared", FFN.facts)
    lines = plan_lines(layers((HYPER, GQA, HYPER, EXPERTS, shared)))
    assert lines[1].endswith("mHC 4 streams, Sinkhorn 20 · GQA 4/2 heads of 8")
    assert lines[2].strip() == "experts 2 of 8 × 16 silu, by sigmoid · shared 64"


def test_a_model_without_layers_has_a_plan() -> None:
    assert plan_lines([]) == ["0 layers: "]


@pytest.mark.parametrize(
    ("order", "text"),
    [
        ("", ""),
        ("A", "A"),
        ("AAA", "3A"),
        ("ABCBA", "A B C B A"),
        ("AAABBBB", "3A 4B"),
        ("ABABAB", "(A B) × 3"),
        ("AAAAAB" * 4 + "AA", "(5A B) × 4 2A"),
        ("AAABAAAC" * 3, "(3A B 3A C) × 3"),
        ("A" + "BBC" * 5, "A (2B C) × 5"),
    ],
)
def test_order_of_layers(order: str, text: str) -> None:
    assert repeats(order) == text


def test_order_can_be_read_back() -> None:
    for number in range(3**6):
        order = "".join("ABC"[number // 3**place % 3] for place in range(6))
        assert _spelled(repeats(order)) == order


def _spelled(text: str) -> str:
    def unit(runs: str) -> str:
        return "".join(letter * int(count or 1) for count, letter in re.findall(r"(\d*)(\w)", runs))

    pieces = re.findall(r"\(([^)]*)\) × (\d+)|(\d*[A-Z])", text)
    return "".join(unit(group) * int(times) if group else unit(run) for group, times, run in pieces)


@pytest.mark.parametrize(
    ("part", "text"),
    [
        (Part("gqa", (("sinks", True), *GQA.facts)), "GQA 4/2 heads of 8, sinks"),
        (
            Part(
                "indexer", (("heads", 8), ("size", 16), ("top_k", 9), ("pool", 4), ("tail", True))
            ),
            "indexer 8 × 16, top 9 in pools of 4, tail",
        ),
        (
            Part("compressed", (("heads", 4), ("size", 16), ("window", 8))),
            "MQA 4 heads of 16, window 8",
        ),
        (
            Part(
                "compressed",
                (("chosen", "here"), ("heads", 4), ("size", 16), ("window", 8), ("rate", 4)),
            ),
            "MQA 4 heads of 16, window 8, then 1 entry of 4, sparse",
        ),
        (Part("kda", (("heads", 4), ("head_size", 12))), "KDA 4 heads of 12"),
        (Part("decay", (("lower_bound", -5.0),)), "decay, lower bound -5"),
        # An operator that this file has never heard of.
        (Part("new_op", (("size", 3), ("deep_end", 0.5))), "new_op, size 3, deep end 0.5"),
    ],
)
def test_part(part: Part, text: str) -> None:
    assert part_text(part) == text
