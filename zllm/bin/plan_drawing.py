"""A model's layer plan as text: like layers share a letter and a line."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any

from zllm.runtime.survey import Layer
from zllm.runtime.survey_parts import Part

FORWARD = ("ffn", "experts", "shared")
LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"

Facts = dict[str, Any]


def plan_lines(layers: Sequence[Layer]) -> list[str]:
    """The order of the kinds of layer, then for each its layers, caches and parts.

    `26 layers: (5A B) × 4 2A`, then `A  0-4, 6-10, …  64 B/token  GQA …` and below it `FFN …`.
    """
    kinds = _kinds(layers)
    letters = dict(zip(kinds, map(_letter, range(len(kinds))), strict=True))
    heads = [(letters[kind], _ranges(indices), _kept(kind)) for kind, indices in kinds.items()]
    widths = [max(map(len, column)) for column in zip(*heads, strict=True)]
    lines = [f"{len(layers)} layers: {repeats(''.join(letters[_kind(layer)] for layer in layers))}"]
    for head, kind in zip(heads, kinds, strict=True):
        left = "  ".join(text.ljust(width) for text, width in zip(head, widths, strict=True))
        for text in _texts(kind.parts):
            lines.append(f"{left}  {text}".rstrip())
            left = " " * len(left)
    return lines


def _kinds(layers: Sequence[Layer]) -> dict[Layer, list[int]]:
    kinds: dict[Layer, list[int]] = {}
    for layer in layers:
        kinds.setdefault(_kind(layer), []).append(layer.index)
    return kinds


def _kind(layer: Layer) -> Layer:
    # Some checkpoints store some layers in more bits: that makes no other kind.
    return replace(layer, index=0, weights_bytes=0)


def _letter(number: int) -> str:
    return LETTERS[number] if number < len(LETTERS) else f"<{number}>"


def repeats(order: str) -> str:
    """`AAAABAAAAB` as `(4A B) × 2`: the shortest period from each place on, runs as counts."""
    pieces: list[str] = []
    at = 0
    while at < len(order):
        period, times = _period(order[at:])
        unit = _runs(order[at : at + period])
        pieces.append(f"({unit}) × {times}" if times > 1 else unit)
        at += period * times
    return " ".join(pieces)


def _period(order: str) -> tuple[int, int]:
    """The length that repeats at the beginning and covers most, and how often; else one run."""
    run = len(order) - len(order.lstrip(order[0]))
    best, covered = (run, 1), run
    for period in range(run + 1, len(order) // 2 + 1):
        times = 1
        while order.startswith(order[:period], times * period):
            times += 1
        if times > 1 and times * period > covered:
            best, covered = (period, times), times * period
    return best


def _runs(order: str) -> str:
    runs: list[tuple[str, int]] = []
    for letter in order:
        if runs and runs[-1][0] == letter:
            runs[-1] = letter, runs[-1][1] + 1
        else:
            runs.append((letter, 1))
    return " ".join(f"{count}{letter}" if count > 1 else letter for letter, count in runs)


def _ranges(indices: Sequence[int]) -> str:
    ranges: list[tuple[int, int]] = []
    for index in indices:
        if ranges and index == ranges[-1][1] + 1:
            ranges[-1] = ranges[-1][0], index
        else:
            ranges.append((index, index))
    return ", ".join(str(a) if a == b else f"{a}-{b}" for a, b in ranges)


def _kept(layer: Layer) -> str:
    parts = []
    if layer.cache_bytes_per_token:
        parts.append(f"{layer.cache_bytes_per_token:,} B/token")
    if layer.state_bytes:
        parts.append(f"{layer.state_bytes:,} B state")
    return " + ".join(parts)


def _texts(parts: Iterable[Part]) -> list[str]:
    """What mixes tokens, then what feeds forward; a part that comes twice is told once."""
    told = dict.fromkeys(parts)
    forward = [part_text(part) for part in told if part.kind in FORWARD]
    mixing = [part_text(part) for part in told if part.kind not in FORWARD]
    return [" · ".join(texts) for texts in (mixing, forward) if texts]


def part_text(part: Part) -> str:
    facts: Facts = dict(part.facts)
    name = _NAMES[part.kind](facts) if part.kind in _NAMES else part.kind
    return ", ".join([name, *(_fact(key, value) for key, value in facts.items())])


def _fact(key: str, value: Any) -> str:
    key = key.replace("_", " ")
    if value is True:
        return key
    return f"{key} {value:g}" if isinstance(value, float) else f"{key} {value}"


# Each takes what it tells out of the facts; the rest follows by name.


def _gqa(facts: Facts) -> str:
    heads, shared = facts.pop("heads"), facts.pop("kv_heads")
    return f"GQA {heads}/{shared} heads of {facts.pop('head_size')}"


def _mla(facts: Facts) -> str:
    sizes = f"{facts.pop('nope')}+{facts.pop('rotated')}"
    rank, value = facts.pop("rank"), facts.pop("value")
    return f"MLA {facts.pop('heads')} heads of {sizes}/{value}, latent {rank}{_sparse(facts)}"


def _compressed(facts: Facts) -> str:
    window = facts.pop("window")
    text = f"MQA {facts.pop('heads')} heads of {facts.pop('size')}, window {window}"
    rate = facts.pop("rate", 0)
    return text + (f", then 1 entry of {rate}{_sparse(facts)}" if rate else "")


def _sparse(facts: Facts) -> str:
    chosen = facts.pop("chosen", None)
    return {"here": ", sparse", "shared": ", sparse by an earlier selection"}.get(chosen, "")


def _indexer(facts: Facts) -> str:
    index = f"{facts.pop('heads')} × {facts.pop('size')}"
    text = f"indexer {index}, top {facts.pop('top_k')}"
    pool = facts.pop("pool", 1)
    return text + (f" in pools of {pool}" if pool > 1 else "")


def _kda(facts: Facts) -> str:
    return f"KDA {facts.pop('heads')} heads of {facts.pop('head_size')}"


def _conv(facts: Facts) -> str:
    return f"conv {facts.pop('kernel')}"


def _hyper(facts: Facts) -> str:
    return f"mHC {facts.pop('streams')} streams, Sinkhorn {facts.pop('iterations')}"


def _experts(facts: Facts) -> str:
    count = f"{facts.pop('top_k')} of {facts.pop('experts')}"
    score = facts.pop("score").replace("_", " ")
    activation = facts.pop("activation")
    return f"experts {count} × {facts.pop('width')} {activation}, by {score}"


def _ffn(facts: Facts) -> str:
    return f"FFN {facts.pop('width')} {facts.pop('activation')}"


def _shared(facts: Facts) -> str:
    facts.pop("activation")
    facts.pop("limit", None)
    return f"shared {facts.pop('width')}"


_NAMES: dict[str, Callable[[Facts], str]] = {
    "gqa": _gqa,
    "mla": _mla,
    "compressed": _compressed,
    "indexer": _indexer,
    "kda": _kda,
    "conv": _conv,
    "hyper": _hyper,
    "experts": _experts,
    "ffn": _ffn,
    "shared": _shared,
}
