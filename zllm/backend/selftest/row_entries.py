"""Ops that look at one row at a time, in every shape that has tripped a kernel somewhere."""

from __future__ import annotations

from collections.abc import Iterator

from zllm.activation import GatedSpec, SoftCapSpec
from zllm.attention.kda import DecaySpec
from zllm.backend.contract import Op
from zllm.backend.selftest.build import Rounds
from zllm.backend.selftest.entry import Entry, op, value, weight
from zllm.backend.selftest.random_weight import SCHEMES
from zllm.hyper_connection import HyperSpec
from zllm.linear import GroupedLinearSpec, LinearSpec
from zllm.moe.experts import ExpertsSpec
from zllm.moe.routing import RouteSpec
from zllm.norm import LayerNormSpec, RmsNormSpec, UnitNormSpec
from zllm.quant.formats import FORMATS
from zllm.sampling import SampleSpec

ONE: Rounds = ((1,),)
THREE: Rounds = ((1, 1, 1),)
PREFILL: Rounds = ((5, 1, 7),)
MANY: Rounds = ((67,),)  # more than a workgroup has threads
SHAPES = {"one row": ONE, "a decode of three": THREE, "a prefill": PREFILL, "many rows": MANY}

NOT_WEIGHTS = {"f8_e8m0", "bool", "i8", "u8", "i16", "u16", "i32", "u32", "i64", "u64"}
WEIGHT_FORMATS = (*(name for name in FORMATS if name not in NOT_WEIGHTS), *SCHEMES)
SEVERAL_ROWS = {"f16", "q4_0", "q4_1", "q8_0", "q4_k", "q6_k", "mxfp4", "scaled_e4m3", "gptq"}

NORM = op("rms_norm", (value(96), weight(96)), (96,), RmsNormSpec(1e-5))
GATES = [GatedSpec("silu"), GatedSpec("gelu_tanh"), GatedSpec("swiglu_oai", limit=7.0)]


def entries() -> Iterator[Entry]:
    for group in (_embed, _norms, _formats, _products, _gated, _sums, _experts, _streams, _ends):
        yield from group()


def _over(
    name: str,
    what: Op,
    *shapes: str,
    formats: tuple[str, ...] = (),
    norm: Op | None = None,
    banks: int = 1,
) -> Iterator[Entry]:
    """In the shapes named, all of them if none is."""
    named = {"w": formats} if formats else {}
    for shape in shapes or SHAPES:
        yield Entry(f"{name}, {shape}", what, SHAPES[shape], named, norm, {"w": banks})


def _embed() -> Iterator[Entry]:
    for format, width in (("f32", 43), ("f16", 43), ("bf16", 72), ("q4_1", 96), ("q6_k", 256)):
        table = op("embed", (weight(68, width),), (width,))
        yield from _over(f"embed {format}", table, "one row", "many rows", formats=(format,))
    scaled = op("embed", (weight(40, 24),), (24,), LinearSpec(3.5))
    yield from _over("embed scaled", scaled, "a prefill")
    joined = op("embed", (weight(68, 64, parts=(40, 28)),), (64,))
    yield from _over("embed of two formats", joined, "many rows", formats=("q8_0", "f16"))


def _norms() -> Iterator[Entry]:
    for width, run in ((43, 43), (576, 576), (96, 32)):
        x, w = value(width), weight(run)
        yield from _over(
            f"rms_norm {width} by {run}", op("rms_norm", (x, w), (width,), RmsNormSpec(1e-5, 1.0))
        )
        yield from _over(
            f"layer_norm {width} by {run}",
            op("layer_norm", (x, w, w), (width,), LayerNormSpec(1e-5)),
            "one row",
            "many rows",
        )
        yield from _over(
            f"gated_norm {width} by {run}",
            op("gated_norm", (x, x, w), (width,), RmsNormSpec(1e-5)),
            "one row",
            "many rows",
        )
        yield from _over(
            f"unit_norm {width} by {run}",
            op("unit_norm", (x,), (width,), UnitNormSpec(run, 1e-6)),
            "one row",
            "many rows",
        )


def _formats() -> Iterator[Entry]:
    """Every format, of one row; of some rows those that lie differently on a device."""
    for format in WEIGHT_FORMATS:
        product = op("linear", (value(256), weight(24, 256), None, None), (24,))
        shapes = ("one row", "a prefill") if format in SEVERAL_ROWS else ("one row",)
        yield from _over(f"linear {format}", product, *shapes, formats=(format,))


def _products() -> Iterator[Entry]:
    for format, columns, rows in (
        ("f32", 43, 9),
        ("q4_1", 96, 103),
        ("bf16", 44, 1),
        ("f16", 8, 70),
    ):
        w = weight(rows, columns)
        product = op("linear", (value(columns), w, None, None), (rows,))
        yield from _over(f"linear {rows} by {columns}", product, formats=(format,))
    w, widths = weight(103, 96, parts=(64, 32, 7)), (64, 32, 7)
    joined = op("linear", (value(96), w, weight(103), None), widths)
    yield from _over("linear with bias in parts", joined, formats=("q4_1", "q8_0", "f16"))
    yield from _over("linear after a norm", joined, formats=("q4_0",), norm=NORM)
    full = op("linear", (value(96), weight(40, 96), weight(40), value(40)), (40,), LinearSpec(0.5))
    yield from _over("linear scaled with residual", full, formats=("q8_0",))
    grouped = op("grouped_linear", (value(96), weight(51, 32)), (51,), GroupedLinearSpec(3))
    for format in ("f32", "q8_0"):
        yield from _over(f"grouped_linear {format}", grouped, formats=(format,))


def _gated() -> Iterator[Entry]:
    w = weight(78, 96, parts=(39, 39))
    for spec in GATES:
        name = f"{spec.activation}"
        fused = op("gated_linear", (value(96), w, weight(78)), (39,), spec)
        yield from _over(f"gated_linear {name}", fused, "one row", "a prefill", formats=("q4_1",))
        plain = op("gated", (value(39), value(39)), (39,), spec)
        yield from _over(f"gated {name}", plain, "one row", "many rows")
    bare = op("gated_linear", (value(96), w, None), (39,), GATES[0])
    yield from _over("gated_linear after a norm", bare, formats=("q8_0",), norm=NORM)


def _sums() -> Iterator[Entry]:
    for width in (1, 103):
        x = value(width)
        yield from _over(f"add {width}", op("add", (x, x), (width,)), "one row", "many rows")
    yield from _over("soft_cap", op("soft_cap", (value(103),), (103,), SoftCapSpec(30.0)))
    for bound in (0.0, -5.0):
        decay = op(
            "decay", (value(40), weight(5), weight(40)), (40,), DecaySpec(5, 8, lower_bound=bound)
        )
        yield from _over(f"decay bounded by {bound:g}", decay, "one row", "many rows")


def _experts() -> Iterator[Entry]:
    specs = {
        "softmax": (RouteSpec("softmax", 4, normalise=True), 33),
        "sigmoid in groups": (RouteSpec("sigmoid", 4, True, 2.5, groups=4, kept_groups=2), 32),
        "sqrt_softplus": (RouteSpec("sqrt_softplus", 3, True, 1.5), 40),
        "softmax_of_chosen": (RouteSpec("softmax_of_chosen", 2), 7),
        "all experts": (RouteSpec("sigmoid", 5), 5),
    }
    for name, (spec, count) in specs.items():
        outs = value(spec.top_k, "i32"), value(spec.top_k)
        bias = weight(count) if spec.score != "softmax" else None
        yield from _over(f"route {name}", op("route", (value(count), bias), outs, spec))
        table = op("route_by_token", (value(count), weight(1, spec.top_k)), outs, spec)
        yield from _over(f"route_by_token {name}", table, "one row", "a prefill")
    for format, interleaved, biased in (
        ("f32", False, False),
        ("q4_0", True, False),
        ("mxfp4", True, True),
        ("q8_0", False, False),
    ):
        width, inner, count = 96, 64, 6
        gate_up, down = weight(2 * count * inner, width), weight(count * width, inner)
        biases = (weight(2 * count * inner), weight(count * width)) if biased else (None, None)
        layer = ExpertsSpec(count, inner, GATES[2 if biased else 0], interleaved)
        routed = value(2, "i32"), value(2)
        what = op("experts", (value(width), *routed, gate_up, down, *biases), (width,), layer)
        yield from _over(f"experts {format}", what, formats=(format,))
        for banks in (2, 6) if format in ("f32", "q8_0") else ():  # 6: more than one dispatch binds
            name = f"experts {format} in {banks} banks"
            shapes = ("one row", "a prefill", "many rows")
            yield from _over(name, what, *shapes, formats=(format,), banks=banks)


def _streams() -> Iterator[Entry]:
    for n, width in ((4, 40), (2, 43)):
        spec = HyperSpec(n, 1e-6, 1e-5, 3)
        x, wide = value(width), value(n * width)
        coefficients = (2 + n) * n
        fn = weight(coefficients, n * width)
        name = f"of {n} streams"
        start = op("hc_start", (x,), (n * width,), spec)
        mean = op("hc_mean", (wide,), (width,), spec)
        split = op("hc_split", (wide, fn, weight(coefficients), weight(3)), (width, n, n * n), spec)
        join = op("hc_join", (x, wide, value(n), value(n * n)), (n * width,))
        head = op("hc_head", (wide, weight(n, n * width), weight(n), weight(1)), (width,), spec)
        yield from _over(f"hc_start {name}", start, "one row", "many rows")
        yield from _over(f"hc_split {name}", split)
        yield from _over(f"hc_join {name}", join, "one row", "many rows")
        yield from _over(f"hc_mean {name}", mean, "one row", "many rows")
        yield from _over(f"hc_head {name}", head)
    stored = op("hc_split", (wide, fn, weight(8), weight(3)), (width, 2, 4), spec)
    yield from _over("hc_split bf16", stored, "a prefill", formats=("bf16",))


def _ends() -> Iterator[Entry]:
    """Sampling in two rounds: the second reads the tokens that the first drew."""
    for columns in (1, 103):
        yield from _over(f"logits {columns}", op("logits", (value(columns),)))
        if columns > 1:
            last = op("last_rows", (value(columns),), (columns,))
            yield from _over("last_rows", last, "a prefill", "many rows")
    for full in (False, True):
        for vocabulary, top in ((103, -1), (103, 0), (103, 20), (3001, 5)):
            spec = SampleSpec(vocabulary, full, top)
            kind = "full" if full else "greedy"
            what = op("sample", (value(vocabulary),), (), spec)
            rounds = ((1, 1, 1), (1, 1, 1))
            yield Entry(f"sample {kind}, {vocabulary} tokens, top {top}", what, rounds)
