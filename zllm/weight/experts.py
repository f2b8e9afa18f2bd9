"""Experts of a layer in a file: one by one, or all in one tensor with the expert as first axis."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from zllm.errors import LoadError
from zllm.weight.linear_weight import LinearWeight, flattened, rows
from zllm.weight.names import Expected, Tensors


@dataclass(frozen=True, slots=True)
class ExpertNames:
    """What a Hugging Face folder calls the three matrices of `experts.{e}.`."""

    gate: str = "gate_proj"
    up: str = "up_proj"
    down: str = "down_proj"

    @property
    def fused(self) -> dict[str, tuple[str, ...]]:
        """The fused spelling [transformers, conversion_mapping.py], for `per_expert`."""
        gate, up = (f"experts.{{}}.{name}.weight" for name in (self.gate, self.up))
        return {
            "experts.gate_up_proj": (gate, up),  # [E, 2F, D], gate rows first
            "experts.down_proj": (f"experts.{{}}.{self.down}.weight",),  # [E, D, F]
        }


_CANONICAL = {
    f"experts.{part}{kind}": (f"experts.{{}}.{part}{kind}",)
    for part in ("gate", "up", "gate_up", "down")
    for kind in ("", ".bias")
}


@dataclass(frozen=True, slots=True)
class ExpertSizes:
    experts: int  # E
    width: int  # D
    ffn_width: int  # F of one expert


def expected(
    canonical: str, stored: str, sizes: ExpertSizes, names: ExpertNames
) -> Iterator[Expected]:
    """The experts one by one. The prefixes end in a dot: `layers.3.`, `model.layers.3.mlp.`."""
    inner, outer = (sizes.ffn_width, sizes.width), (sizes.width, sizes.ffn_width)
    for e in range(sizes.experts):
        here, there = f"{canonical}experts.{e}.", f"{stored}experts.{e}."
        yield Expected(f"{here}gate", f"{there}{names.gate}.weight", inner)
        yield Expected(f"{here}up", f"{there}{names.up}.weight", inner)
        yield Expected(f"{here}down", f"{there}{names.down}.weight", outer)


def expected_gguf(
    canonical: str, stored: str, sizes: ExpertSizes, *, biased: bool = False
) -> Iterator[Expected]:
    """All experts in one tensor each: llama.cpp, gguf-py/gguf/constants.py. See `one_by_one`."""
    inner, outer = (sizes.ffn_width, sizes.width), (sizes.width, sizes.ffn_width)
    for part, shape in (("gate", inner), ("up", inner), ("down", outer)):
        here, there = f"{canonical}experts.{part}", f"{stored}ffn_{part}_exps"
        yield Expected(here, f"{there}.weight", (sizes.experts, *shape))
        if biased:
            yield Expected(f"{here}.bias", f"{there}.bias", (sizes.experts, shape[0]))


def one_by_one(tensors: Mapping[str, LinearWeight], experts: int) -> Tensors:
    """Canonical names `experts.{part}` become `experts.{e}.{part}`; the others stay."""
    return per_expert(tensors, _CANONICAL, experts)


def per_expert(
    tensors: Mapping[str, LinearWeight], fused: Mapping[str, tuple[str, ...]], experts: int
) -> Tensors:
    """All tensors, the fused ones cut into one per expert and part.

    `fused`: the end of a fused tensor's name -> that of each of its parts, `{}` for the expert.
    Parts are equal runs of rows of [E, N, D], or of numbers of [E, N]. LoadError on other shapes.
    """
    cut: Tensors = {}
    for name, weight in tensors.items():
        end = next((end for end in fused if name.endswith(f".{end}")), None)
        parts = {name: weight}
        if end is not None:
            prefix, names = name.removesuffix(end), fused[end]
            parts = {
                prefix + part.format(e): run
                for e, runs in enumerate(_cut(name, weight, experts, len(names)))
                for part, run in zip(names, runs, strict=True)
            }
        for part in parts.keys() & cut.keys():
            raise LoadError(f"tensor {part!r} is stored twice: by itself and in a fused tensor")
        cut |= parts
    return cut


def _cut(
    name: str, weight: LinearWeight, experts: int, parts: int
) -> Iterator[tuple[LinearWeight, ...]]:
    shape = weight.shape
    if len(shape) not in (2, 3) or shape[0] != experts or shape[1] % parts:
        raise LoadError(
            f"tensor {name!r}: shape {list(shape)}, expected {experts} experts of one matrix or"
            f" vector, of {parts} equal part{'s' * (parts > 1)}"
        )
    count = shape[1] // parts
    if len(shape) == 2:
        each = replace(weight, shape=(experts * parts, count))
        for e in range(experts):
            runs = (rows(each, e * parts + part, 1) for part in range(parts))
            yield tuple(replace(run, shape=(count,)) for run in runs)
        return
    matrix = flattened(weight)
    for e in range(experts):
        first = e * shape[1]
        yield tuple(rows(matrix, first + part * count, count) for part in range(parts))
