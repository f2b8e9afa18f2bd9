"""Matrix products of several tokens on GPUs, for formats with integers apart from their scales."""

from __future__ import annotations

from dataclasses import dataclass, field

from zllm.backend.webgpu.device import Access, Buffer, DeviceInfo, Dispatch, Kernel
from zllm.backend.webgpu.kernels import ceil_div, constants, reduction, strided_grid
from zllm.backend.webgpu.lowering import Bank, View
from zllm.backend.webgpu.tuning import Few
from zllm.backend.webgpu.wgsl_format import FORMATS
from zllm.kernel.wgsl.source import compose
from zllm.kernel.wgsl.unroll import unroll
from zllm.norm import RmsNormSpec

# Formats of codes_<format>.wgsl. Where there are subgroups there are packed dot products.
CODES = ("q4_0", "q4_1", "q8_0")
MOST_ROWS = 4  # of one thread: sums of a token are a vec4; each lane of a team gets one result
MOST_TOKENS = 4  # of one thread
INPUT_THREADS = 256  # of product_input
INPUT_ACCESS: tuple[Access, ...] = ("write", "read", "read")
BLOCK_LANES = 8  # of product_input, neighbours in a subgroup


@dataclass(frozen=True, slots=True)
class Shape:
    """Of a kernel: its own sources, what they need, its grid."""

    sources: tuple[str, ...]
    values: dict[str, float]  # overrides
    grid: tuple[int, int, int]
    text: dict[str, int] = field(default_factory=dict)  # sizes of arrays and of unrolled loops


def few_of(format: str, tokens: int, info: DeviceInfo) -> Few:
    """The setting for so many tokens; for product_pairs only where it can be."""
    able = tokens > 1 and format in CODES and info.subgroup_size >= BLOCK_LANES
    return info.tuning.few(format, tokens, pairs=able)


def takes_pairs(format: str, tokens: int, info: DeviceInfo) -> bool:
    """Whether x of so many tokens goes to product_input before it meets a bank of the format."""
    if info.software or tokens > info.tuning.pair_tokens:
        return False
    return few_of(format, tokens, info).kernel == "pairs"


def batch_of(tokens: int, most: int) -> int:
    """Tokens of a thread: as many groups as there must be, of one size."""
    return ceil_div(tokens, ceil_div(tokens, most))


def pairs_shape(
    few: Few, bank: Bank, rows: int, tokens: int, gated: bool, info: DeviceInfo
) -> Shape:
    """Each lane of a team ends with one result, or none."""
    batch, each = pairs_batch(tokens, info), min(few.rows, MOST_ROWS)
    lanes = min(max(few.lanes, MOST_ROWS * batch), info.subgroup_size)
    teams = ceil_div(rows, each // 2 if gated else each)
    values: dict[str, float] = {"THREADS": few.threads, "TEAMS": teams, "LANES": lanes}
    across, _, _ = strided_grid(ceil_div(teams, few.threads // lanes), info)
    return Shape(
        (f"codes_{bank.format}", "team_row", "product_pairs"),
        values,
        (ceil_div(tokens, batch), across, 1),
        {"EACH": each, "BATCH": batch, "WORDS": pair_words(batch)},
    )


def pairs_batch(tokens: int, info: DeviceInfo) -> int:
    """Of all formats, so that they can share x."""
    return batch_of(tokens, min(MOST_TOKENS, info.subgroup_size // MOST_ROWS))


def pair_words(batch: int) -> int:
    """vec4s of a block and group in product_input's result."""
    return 4 * batch + ceil_div(batch, 2)


def pairs_bytes(tokens: int, columns: int, format: str, info: DeviceInfo) -> int:
    batch = pairs_batch(tokens, info)
    blocks = FORMATS[format].blocks(columns)
    return 16 * ceil_div(tokens, batch) * blocks * pair_words(batch)


def pairs_dispatch(
    x: View,
    norm: Buffer | None,
    spec: RmsNormSpec,
    source: str,
    to: Buffer,
    format: str,
    info: DeviceInfo,
) -> Dispatch:
    """x, normalised if there is a norm weight, as product_pairs reads it for banks of a format."""
    batch = pairs_batch(x.rows, info)
    blocks = FORMATS[format].blocks(x.columns)
    values = {
        "COLUMNS": x.columns,
        "X_OFFSET": x.offset,
        "X_STRIDE": x.stride,
        "BLOCKS": blocks,
        "NORM": norm is not None,
        "EPS": spec.eps,
        "NORM_OFFSET": spec.offset,
        "THREADS": INPUT_THREADS,
    }
    text = {"BATCH": batch, "WORDS": pair_words(batch)}
    wgsl = with_sizes(compose(source, reduction(info), "product_input"), text)
    kernel = Kernel(f"product_input_{format}", wgsl, INPUT_ACCESS, constants(values))
    # A norm needs all of a row, and is by its workgroup alone.
    across = 1 if norm is not None else ceil_div(BLOCK_LANES * blocks, INPUT_THREADS)
    return Dispatch(kernel, (to, x.buffer, norm or x.buffer), (x.rows, across, 1))


def with_sizes(wgsl: str, text: dict[str, int]) -> str:
    """Its loops unrolled, its sizes as constants."""
    sizes = "".join(f"const {name}: u32 = {value}u;\n" for name, value in text.items())
    return sizes + unroll(wgsl, text)
