"""From a recorded op to a case of it: the ops that the suite covers, and how each is fed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from zllm.backend.contract import Op, PlanKey, Value, Weight
from zllm.backend.selftest import chains, emitted, reduce, reduce_sequence
from zllm.backend.selftest.build import Banks, Builder, Formats, Rounds
from zllm.backend.selftest.case import Case
from zllm.backend.selftest.reduce import SMALL, Rule, Size


@dataclass(frozen=True, slots=True)
class Recipe:
    build: Callable[[Builder], Case]
    reduce: Rule
    cached: bool = False  # what it gives depends on rounds before


RECIPES = {
    "embed": Recipe(emitted.embed, reduce.embed),
    "rms_norm": Recipe(chains.plain, reduce.norm),
    "layer_norm": Recipe(chains.plain, reduce.norm),
    "linear": Recipe(chains.plain, reduce.linear),
    "gated_linear": Recipe(chains.plain, reduce.gated_linear),
    "gated": Recipe(chains.plain, reduce.columns),
    "add": Recipe(chains.plain, reduce.columns),
    "soft_cap": Recipe(chains.plain, reduce.columns),
    "last_rows": Recipe(emitted.last_rows, reduce.columns),
    "logits": Recipe(emitted.logits, reduce.same),
    "sample": Recipe(emitted.sample, reduce.sample),
    "rope": Recipe(chains.plain, reduce_sequence.heads, cached=True),
    "rope_append": Recipe(chains.rope_append, reduce_sequence.grouped_queries, cached=True),
    "attend": Recipe(chains.attend, reduce_sequence.grouped_queries, cached=True),
    "latent_append": Recipe(chains.latent_append, reduce.same, cached=True),
    "attend_latent": Recipe(chains.attend_latent, reduce_sequence.attend_latent, cached=True),
    "index_append": Recipe(chains.index_append, reduce.same, cached=True),
    "select": Recipe(chains.select, reduce_sequence.select, cached=True),
    "unit_norm": Recipe(chains.plain, reduce.unit_norm),
    "compress_append": Recipe(chains.compress_append, reduce_sequence.compress_append, cached=True),
    "select_entries": Recipe(chains.select_entries, reduce_sequence.select_entries, cached=True),
    "attend_compressed": Recipe(
        chains.attend_compressed, reduce_sequence.attend_compressed, cached=True
    ),
    "grouped_linear": Recipe(chains.plain, reduce.grouped_linear),
    "conv": Recipe(chains.conv, reduce_sequence.conv, cached=True),
    "decay": Recipe(chains.plain, reduce_sequence.heads),
    "delta": Recipe(chains.delta, reduce_sequence.heads, cached=True),
    "gated_norm": Recipe(chains.plain, reduce.norm),
    "route": Recipe(chains.plain, reduce.same),
    "route_by_token": Recipe(chains.route_by_token, reduce.same),
    "experts": Recipe(chains.experts, reduce.experts),
    "hc_start": Recipe(chains.plain, reduce.streams),
    "hc_split": Recipe(chains.plain, reduce.streams),
    "hc_join": Recipe(chains.plain, reduce.streams),
    "hc_mean": Recipe(chains.plain, reduce.streams),
    "hc_head": Recipe(chains.plain, reduce.streams),
}


def build(
    op: Op,
    rounds: Rounds,
    name: str,
    *,
    formats: Formats | None = None,
    norm: Op | None = None,
    banks: Banks | None = None,
) -> Case:
    """The case of an op exactly as wide as it is; its rows are those of `rounds`.

    formats: of matrices by name, one for each part in turn; f32 where there is none. norm: an
    rms_norm that the op's operand 0 passes through first. banks: into how many buffers matrices of
    experts are cut, by name. Numbers follow from `name`.
    """
    return RECIPES[op.name].build(Builder(op, rounds, formats or {}, name, norm, banks or {}))


def case_of(
    op: Op,
    key: PlanKey,
    formats: Formats,
    *,
    size: Size = SMALL,
    norm: Op | None = None,
    banks: Banks | None = None,
) -> Case:
    """A small case of a recorded op: the same spec and formats, fewer rows, columns and heads.

    `key` is the recording's: decode and prefill plans run other kernels. KeyError for an op
    without a recipe.
    """
    recipe = RECIPES[op.name]
    small = recipe.reduce(op, size)
    rounds = rounds_of(key, size, cached=recipe.cached)
    operands = [x for x in (*small.ins, *small.outs) if isinstance(x, Value | Weight)]
    shapes = ", ".join(str(list(x.shape)) for x in operands)
    name = f"{op.name} {shapes}"
    return build(small, rounds, name, formats=formats, norm=norm, banks=banks)


def rounds_of(key: PlanKey, size: Size, *, cached: bool) -> Rounds:
    """The last round is like the plan's; where it matters tokens are cached before it."""
    seqs = min(key.seqs, size.seqs)
    histories = (size.history, 0, size.history // 2)[:seqs]
    if key.rows == key.seqs:
        last = (1,) * seqs
    else:
        rows = max(min(key.rows, size.rows), seqs + 1)
        last = (rows - seqs + 1, *(1,) * (seqs - 1))
    return (histories, last) if cached else (last,)
