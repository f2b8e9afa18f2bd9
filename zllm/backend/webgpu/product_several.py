"""Kernels of matrix products for several tokens on GPUs: product_pairs, product_shared."""

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
MOST_TOKENS = 8  # of one thread
MOST_ROWS = 4  # of one thread: sums of a token are a vec4
STAGED = 1024  # vec4s of workgroup memory: 16 KiB
MOST_CHUNK = 32  # blocks of x at a time
FULL_THREADS = 1 << 16  # of a grid
INPUT_THREADS = 128  # of product_input: one a block, and a row of 4096 is 128 blocks
INPUT_ACCESS: tuple[Access, ...] = ("write", "read", "read")
PAIR_VEC4S = 4  # of a block and token in product_pairs


@dataclass(frozen=True, slots=True)
class Shape:
    """Of a kernel: its own sources, what they need, its grid."""

    sources: tuple[str, ...]
    values: dict[str, float]  # overrides
    grid: tuple[int, int, int]
    text: dict[str, int] = field(default_factory=dict)  # sizes of arrays and of unrolled loops


def takes_pairs(format: str, tokens: int, info: DeviceInfo) -> bool:
    """Whether x of so many tokens goes to product_input before it meets a bank of the format."""
    if info.software or not 1 < tokens <= info.tuning.few_tokens:
        return False
    few = info.tuning.few(format, tokens)
    return few.kernel == "pairs" and format in CODES and "subgroups" in info.features


def batch_of(tokens: int) -> int:
    """Tokens of a thread: as many groups as there must be, of one size."""
    return ceil_div(tokens, ceil_div(tokens, MOST_TOKENS))


def several_shape(
    few: Few, bank: Bank, quads: str, rows: int, tokens: int, gated: bool, info: DeviceInfo
) -> Shape:
    """`quads` is the source that decodes the format's blocks quad by quad."""
    batch, spec = batch_of(tokens), FORMATS[bank.format]
    pairs = few.kernel == "pairs"
    own = (f"codes_{bank.format}",) if pairs else (quads,)
    vec4s = pair_slot(batch) if pairs else spec.elements // 4 * batch
    chunk = min(MOST_CHUNK, 1 << (STAGED // vec4s).bit_length() - 1)
    slot = vec4s | 1 if chunk * (vec4s | 1) <= STAGED else vec4s
    threads, each = few.threads, min(few.rows, MOST_ROWS)
    lanes = min(few.lanes, chunk, threads)
    groups = ceil_div(tokens, batch)
    # Few rows fill a GPU by more threads a row. The text stays: a small case speaks for it (trust).
    while rows * (1 + gated) // each * lanes * groups < FULL_THREADS and lanes < min(
        chunk, threads
    ):
        lanes *= 2
    teams = ceil_div(rows, each // 2 if gated else each)
    per = min(batch, chunk * slot // threads)
    text = {
        "EACH": each,
        "BATCH": batch,
        "QUADS": spec.elements // 4,
        "CHUNK": chunk,
        "SLOT": slot,
        "HELD": ceil_div(chunk * slot, threads),
        "PER": per,
        "PASSES": ceil_div(batch, per),
    }
    values: dict[str, float] = {"THREADS": threads, "TEAMS": teams, "LANES": lanes}
    across, _, _ = strided_grid(ceil_div(teams, threads // lanes), info)
    return Shape((*own, "product_few", f"product_{few.kernel}"), values, (across, groups, 1), text)


def pair_slot(batch: int) -> int:
    """vec4s of a block in product_input's result; odd, as workgroup memory has it."""
    return (PAIR_VEC4S * batch + ceil_div(batch, 2)) | 1


def pairs_bytes(tokens: int, columns: int, format: str) -> int:
    batch = batch_of(tokens)
    blocks = FORMATS[format].blocks(columns)
    return 16 * ceil_div(tokens, batch) * blocks * pair_slot(batch)


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
    batch = batch_of(x.rows)
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
    text = {"BATCH": batch, "SLOT": pair_slot(batch)}
    wgsl = with_sizes(compose(source, reduction(info), "product_input"), text)
    kernel = Kernel(f"product_input_{format}", wgsl, INPUT_ACCESS, constants(values))
    # A norm needs all of a row, and is by its workgroup alone.
    across = 1 if norm is not None else ceil_div(blocks, INPUT_THREADS)
    return Dispatch(kernel, (to, x.buffer, norm or x.buffer), (x.rows, across, 1))


def with_sizes(wgsl: str, text: dict[str, int]) -> str:
    """Its loops unrolled, its sizes as constants."""
    sizes = "".join(f"const {name}: u32 = {value}u;\n" for name, value in text.items())
    return sizes + unroll(wgsl, text)
